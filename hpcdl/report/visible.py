"""Text of strangers in a page: names of jobs and nodes, reasons."""

from html import escape


def visible(text: object, most: int) -> str:
    """At most `most` letters, of which every one is seen: what is not printable, marks that turn the direction of
    writing among it, is written as an escape like `\\x1b`.
    """
    plain = str(text)
    shown = plain[:most]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return shown + "…" if len(plain) > most else shown


def html(text: object, most: int = 200) -> str:
    """As a fragment of HTML, also inside an attribute."""
    return escape(visible(text, most))
