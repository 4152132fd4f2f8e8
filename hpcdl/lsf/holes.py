"""Backfill holes in LSF: the windows that bslots prints, in slots, or hosts that merely idle. Only whole nodes count.

Pure: `adapter.py` runs the commands. Slurm's holes are made from plans instead (`hpcdl.batch.holes`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hpcdl.batch.adapter import Completed
from hpcdl.core.model.pilot import Hole
from hpcdl.lsf.cluster import HostGpus, HostRow, LsfQueue, may_use
from hpcdl.lsf.text import LAUNCH, hosts_of, short, window_length

_NONE = re.compile(r"No backfill window (?:exists|meets)", re.I)

_ROW = re.compile(r"^ *(\d+) +(UNLIMITED|\d.*?) *$", re.M | re.I)

_BLOCK = re.compile(
    r"^SLOTS:[ \t]*(\d+)[ \t]*\n *RUNTIME:[ \t]*(.*?)[ \t]*\n *HOSTS:(.*?)(?=^\S|^\s*$|\Z)", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class BackfillWindow:
    """A row of bslots: so many slots idle for `length_s` from now, None without an end; no promise, and no part of
    another row. `hosts`: with their slots, () if they are not listed.
    """

    slots: int
    length_s: float | None
    hosts: tuple[tuple[str, int], ...] = ()


def bslots_argv(*, long: bool, select: str) -> list[str]:
    """`select`: a resource that only hosts which compute have, "" for all; launch nodes' slots count otherwise."""
    return ["bslots", *(["-l"] if long else []), *([f"-Rselect[{select}]"] if select else [])]


def no_window(done: Completed) -> bool:
    """Whether there is none, which LSF says in two ways, on either stream, and with exit code 0 or another."""
    return _NONE.search(done.out + "\n" + done.err) is not None


def parse_bslots(text: str) -> tuple[BackfillWindow, ...]:
    """Both forms, the table and that of -l. Raises ValueError for a length that nobody understands."""
    blocks = _BLOCK.findall(text)
    if blocks:
        return tuple(
            BackfillWindow(int(slots), window_length(length), hosts_of(hosts)) for slots, length, hosts in blocks
        )
    return tuple(BackfillWindow(int(slots), window_length(length)) for slots, length in _ROW.findall(text))


NO_END = "nobody says until when they idle: this LSF has no bslots"


def slots_of(rows: Sequence[HostRow], cpus: Mapping[str, int]) -> dict[str, int]:
    """Slots of each host that computes, by short name; its CPUs where bhosts sets no limit."""
    told = {row.name: many for row in rows if (many := row.most or cpus.get(row.name, 0))}
    marked = [name for name in told if LAUNCH.search(name)]
    found = {name: many for name, many in told.items() if len(marked) == len(told) or name not in marked}
    single = (usual(found.values()) or 1) > 1  # then those with one slot are launch nodes without a mark
    return {short(name): many for name, many in found.items() if many > 1 or not single}


def usual(slots: Iterable[int]) -> int | None:
    """How many slots most nodes have, None where that is not known; the larger number of two equally frequent ones."""
    counted = Counter(slots)
    return max(counted, key=lambda many: (counted[many], many), default=None)


def whole_hosts(windows: Sequence[BackfillWindow]) -> frozenset[str] | None:
    """The hosts, by short name, all of whose slots idle, a host having as many as most listed ones show; None where the
    windows do not name their hosts.
    """
    if any(window.slots and not window.hosts for window in windows):
        return None
    slots = {short(name): many for window in windows for name, many in window.hosts}
    most = usual(slots.values()) or 1
    return frozenset(name for name, many in slots.items() if many >= most)


def from_windows(
    windows: Sequence[BackfillWindow],
    slots: Mapping[str, int],
    gpus: Mapping[str, HostGpus],
    queue: LsfQueue | None,
    now: float,
) -> tuple[Hole, ...]:
    """A hole for each window, more where its hosts have different GPUs. Slots that make no whole node are left out, and
    so are hosts that the queue may not use. `slots`, `gpus`: by short name.
    """
    per_node, own = usual(slots.values()), _short_hosts(queue)
    hole = _hole_of(queue, per_node)
    if hole is None or per_node is None:
        return ()
    holes: list[Hole] = []
    cards = {gpus.get(host) for host in slots}
    for window in windows:
        until = None if window.length_s is None else now + window.length_s
        ends = partial(hole, until=until, why=_why(queue, until))
        if window.hosts:
            whole = [short(name) for name, many in window.hosts if many >= slots.get(short(name), many + 1)]
            holes += _by_gpus(ends, [name for name in whole if may_use(own, name, slots)], gpus)
        elif count := window.slots // per_node:
            holes.append(ends(count, **_card(next(iter(cards)) if len(cards) == 1 else None)))
    return tuple(holes)


def from_idle(
    rows: Sequence[HostRow], slots: Mapping[str, int], gpus: Mapping[str, HostGpus], queue: LsfQueue | None
) -> tuple[Hole, ...]:
    """Hosts on which nothing runs and nothing is reserved, as far as the queue may use them."""
    hole, own = _hole_of(queue, usual(slots.values())), _short_hosts(queue)
    if hole is None:
        return ()
    known = {short(row.name) for row in rows}
    idle = [short(row.name) for row in rows if row.idle and short(row.name) in slots]
    return tuple(_by_gpus(partial(hole, why=NO_END), [name for name in idle if may_use(own, name, known)], gpus))


def _short_hosts(queue: LsfQueue | None) -> LsfQueue | None:
    return queue if queue is None else replace(queue, hosts=tuple(short(host) for host in queue.hosts))


def _hole_of(queue: LsfQueue | None, per_node: int | None) -> "partial[Hole] | None":
    """A hole of the queue, to be called with the number of its nodes; None where the queue gives no whole node."""
    if queue is None:
        return None if per_node is None else partial(Hole, "")
    most = None if queue.slots_max is None or per_node is None else queue.slots_max // per_node
    if per_node is None or most == 0:
        return None
    return partial(Hole, queue.name, walltime_s=queue.run_limit_s, nodes_max=most)


def _why(queue: LsfQueue | None, until: float | None) -> str:
    if queue is not None and queue.interruptible_s is not None:
        return "LSF ends the job when a waiting one needs the nodes, whatever walltime was asked"
    return "no end is planned" if until is None else "a waiting job is to start"


def _by_gpus(hole: "partial[Hole]", names: Sequence[str], gpus: Mapping[str, HostGpus]) -> list[Hole]:
    """A hole for each kind of node among these."""
    kinds: dict[HostGpus | None, list[str]] = {}
    for name in names:
        kinds.setdefault(gpus.get(name), []).append(name)
    return [hole(len(same), tuple(same), **_card(card)) for card, same in kinds.items()]


def _card(card: HostGpus | None) -> dict[str, Any]:
    return {} if card is None else {"gpus": card.count, "kind": card.kind}
