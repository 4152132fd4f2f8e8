"""Tags and links: what users write about a job on submit, for filters, reports and pages. Nothing is decided by them.

Values only, checked before they are recorded: `ls`, `show` and pages show them as they are.
"""

import re

from hpcdl.core.model.notice import URL

MOST = 16
"""Tags that a job may have, and as many links."""

LONGEST_URL = 2_000

Links = tuple[tuple[str, str], ...]
"""(name, URL) of each."""

_TAG = re.compile(r"\w[\w.:=/@+-]{0,62}")
_NAME = re.compile(r"\w[\w.-]{0,62}")
_SECRET = re.compile(
    r"[?&#;]([\w.-]*(token|secret|passw|credential|signature)[\w.-]*|(api|access|private)[_-]?key|key|auth|sig|pat)=",
    re.IGNORECASE,
)


def check_tags(tags: tuple[str, ...]) -> None:
    """Raises ValueError unless each is a word, and none is there twice."""
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"{tag[:40]!r} is no tag: one word that begins with a letter or digit, with up to 63 of these and "
                "_ . : = / @ + -"
            )
    if len(set(tags)) < len(tags):
        raise ValueError("a job has each tag once")
    if len(tags) > MOST:
        raise ValueError(f"a job may have {MOST} tags, got {len(tags)}")


def check_links(links: Links) -> None:
    """Raises ValueError unless each has a name of its own and an http(s) URL without a password or key in it."""
    for name, url in links:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} cannot name a link: up to 63 letters, digits, '_', '.' and '-'")
        found = URL.fullmatch(url)
        if found is None or not url.isascii() or not url.isprintable() or " " in url or len(url) > LONGEST_URL:
            raise ValueError(f"the link {name} needs a URL like https://host/path, of {LONGEST_URL} characters at most")
        if found["user"] or _SECRET.search(url):
            raise ValueError(f"the link {name} holds a password or key, which pages would show: leave it out")
    if len({name for name, _ in links}) < len(links):
        raise ValueError("a job has one link of each name")
    if len(links) > MOST:
        raise ValueError(f"a job may have {MOST} links, got {len(links)}")
