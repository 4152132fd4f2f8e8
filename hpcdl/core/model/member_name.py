"""Names of an array's members: the name of the submit, and in brackets what is a member's own.

`nightly[3,lr=0.1]` is the member of `nightly` with index 3. Only what `member_name` added is cut off again: a user's
own brackets are part of the name. Every command that names jobs loads this file, so it imports nothing of the core.
"""

from collections.abc import Iterable

Values = Iterable[tuple[str, str]]
"""A member's values of the sweeps, by name."""

LONGEST = 200


def _label(index: int | None, sweep: Values) -> str:
    label = [] if index is None else [str(index)]
    return f"[{','.join([*label, *(f'{name}={value}' for name, value in sweep)])}]"


def printable(name: str) -> str:
    """The name as a job may have it; of one that is too long the end, where members differ."""
    if not name.isprintable():
        name = "".join(c if c.isprintable() else "?" for c in name)
    return name[-LONGEST:] or "array"


def member_name(base: str, index: int | None, sweep: Values) -> str:
    """A member's name; `index`: None for an array that was submitted without indices."""
    return printable(base + _label(index, sweep))


def base_name(name: str, index: int, sweep: Values) -> str:
    """The name that the array was submitted with; the member's own where the user has put its values into it."""
    sweep = tuple(sweep)
    for own in (index, None) if sweep else (index,):
        if (base := name.removesuffix(printable(_label(own, sweep)))) and base != name:
            return base
    return name
