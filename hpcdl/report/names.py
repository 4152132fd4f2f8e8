"""Names of jobs on pages: their colour, where a line may break in them, and which part of a long one is shown."""

import re
from collections.abc import Iterable, Sequence

from hpcdl.core.model.units import runs
from hpcdl.report.html import html

COLOURS = 10
"""Of jobs; page.css has them."""

_SEPARATORS = "_-/, ["


def job_colour(job: int) -> str:
    """The class of a job's colour: the same on every page, for it follows from the id alone."""
    return f"c{job % COLOURS}"


def job_mark(job: int) -> str:
    """A job's colour in grids and timelines, beside its id."""
    full = '<rect width="10" height="10" rx="2" class="full"/>'
    return f'<svg width="10" height="10" class="gpu {job_colour(job)}" aria-hidden="true">{full}</svg>'


def marked(job: int, number: str) -> str:
    """A job's colour and its number, a fragment of HTML, which stay together."""
    return f'<span class="kept">{job_mark(job)} {number}</span>'


def breakable(text: object, most: int = 200) -> str:
    """A name as a fragment of HTML that may break after `_`, `-`, `/`, `=` and `,`."""
    return re.sub(r"([_/=,-])", r"\1<wbr/>", html(text, most))


def short_names(names: Iterable[str], room: int) -> dict[str, str]:
    """What is shown of each name in so many letters: the beginning that it shares with its neighbours is left out, or
    as much of it as must be, then its middle. Members of one sweep are all shown alike."""
    ordered = sorted(set(names))
    long = {name.partition("[")[0] for name in ordered if len(name) > room}
    found = {}
    for place, name in enumerate(ordered):
        shown = values = _member_values(name)
        if len(name) <= room and not (values and name.partition("[")[0] in long):
            shown = name
        elif not values or len(values) > room:
            near = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
            alike = max((_alike(name, other) for other in near), default=0)
            cuts = [at + 1 for at in range(1, alike) if name[at] in _SEPARATORS]
            cut = next((at for at in cuts if len(name) - at < room), cuts[-1] if cuts else 0)
            shown = "…" + name[cut:] if cut else name
            if len(shown) > room:
                head = (room - 1) // 3
                shown = shown[:head] + "…" + shown[len(shown) - (room - 1 - head) :]
        found[name] = shown
    return found


def _member_values(name: str) -> str:
    """What tells a member of a sweep from the others, without the names of what is swept: `[0.1,32]` of
    `train.py[lr=0.1,bs=32]`; "" of another name."""
    members = re.search(r"\[([^\[\]]*=[^\[\]]*)\]$", name)
    return f"[{','.join(part.rpartition('=')[2] for part in members[1].split(','))}]" if members else ""


def _alike(one: str, other: str) -> int:
    """How many letters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def stem(names: Sequence[str]) -> str:
    """What names of one array have in common at the beginning: `train.py` of `train.py[1]` and `train.py[2]`."""
    first, last = min(names), max(names)
    alike = first[: _alike(first, last)]
    opened = max(alike.rfind(mark) for mark in "[{(")
    if opened > max(alike.rfind(mark) for mark in "]})"):
        alike = alike[:opened]  # whose digits are the name's
    else:
        alike = alike.rstrip("0123456789.")
    return alike.rstrip("-_=/, [") or first


def numbers_text(numbers: Iterable[int]) -> str:
    """`5-20`, `1,3-4`."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(sorted(numbers)))
