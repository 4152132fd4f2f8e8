"""bslots: backfill windows, in slots. No row is a promise, and each is a gap of its own: rows are not nested."""

import re
from dataclasses import dataclass

from hpcdl.batch import Completed
from hpcdl.lsf.moments import window_length
from hpcdl.lsf.text import hosts_of

_NONE = re.compile(r"No backfill window (?:exists|meets)", re.I)
_ROW = re.compile(r"^ *(\d+) +(UNLIMITED|\d.*?) *$", re.M | re.I)
_BLOCK = re.compile(
    r"^SLOTS:[ \t]*(\d+)[ \t]*\n *RUNTIME:[ \t]*(.*?)[ \t]*\n *HOSTS:(.*?)(?=^\S|^\s*$|\Z)", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class Window:
    """So many slots idle for `length_s` from now, None without an end. `hosts`: with their slots, () if not told."""

    slots: int
    length_s: float | None
    hosts: tuple[tuple[str, int], ...] = ()


def bslots_argv(*, long: bool, select: str) -> list[str]:
    """`select`: a resource that only hosts which compute have, "" for all; launch nodes' slots count otherwise."""
    return ["bslots", *(["-l"] if long else []), *([f"-Rselect[{select}]"] if select else [])]


def no_window(done: Completed) -> bool:
    """Whether there is none, which LSF says in two ways, on either stream, and with exit code 0 or another."""
    return _NONE.search(done.out + "\n" + done.err) is not None


def parse_bslots(text: str) -> tuple[Window, ...]:
    """Both forms, the table and that of -l. Raises ValueError for a length that nobody understands."""
    blocks = _BLOCK.findall(text)
    if blocks:
        return tuple(Window(int(slots), window_length(length), hosts_of(hosts)) for slots, length, hosts in blocks)
    return tuple(Window(int(slots), window_length(length)) for slots, length in _ROW.findall(text))
