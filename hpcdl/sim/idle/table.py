"""BFTrainer's table 1 of a machine's idle nodes, the numbers of its figures 1 and 6, and what pilots would have got.

Of a record (`hpcdl.batch.record.pieces`); `page` draws it. docs/record.md defines each number.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.batch.record.pieces import IdleRecord

Numbers = NDArray[np.float64]

HOUR_S = 3600.0
WINDOW_H = 12.0
"""Hours of a bar of figure 6."""
STARTUPS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
MARKS_MIN = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0)
"""Lengths at the axis of figure 1, at which the distribution always has a value."""


MOST_LENGTHS = 4_000
"""Of more than these the distribution has so many, evenly by rank: a month's pieces last a million different times."""


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """A bar of figure 6. Hours since the record's begin. `events`: changes of the set of idle nodes.

    `idle_nodes`: on average over the time in which somebody looked, None where nobody did; `share`: of all nodes.
    """

    from_h: float
    until_h: float
    events: int
    idle_nodes: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class PilotHarvest:
    """What pilots get of the idle time if each idle node trains from `startup_s` seconds after it joined until it
    leaves: `pilots` of them train at all, for so many node-hours, which are `share` of the idle ones.
    """

    startup_s: float
    pilots: int
    node_hours: float
    share: float


@dataclass(frozen=True, slots=True)
class IdleTable:
    """Table 1 and what stands round it. None: not known, or no time was observed.

    inc_per_hour, dec_per_hour: events an hour at which at least one node joined, or left; one may be both. hours:
    observed time, without gaps. equivalent_nodes: idle node-hours over hours (N_eq of eq. 18); ratio: of all `nodes`.
    pieces: times in which a node idled (fragments), `cut` of them by an end of the record or a gap.
    cdf: (minutes, share by count, share by node x time) of those that are not cut, at each length that there is, of
    very many at MOST_LENGTHS.
    """

    inc_per_hour: float | None
    dec_per_hour: float | None
    idle_node_hours: float
    ratio: float | None
    equivalent_nodes: float | None
    nodes: int | None
    hours: float
    pieces: int
    cdf: tuple[tuple[float, float, float], ...]
    cut: int
    events: int
    gaps: int
    gap_hours: float
    windows: tuple[IdleWindow, ...]
    harvest: tuple[PilotHarvest, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values: what `hpcdl holes --stats --json` answers with."""
        keys = ("inc_per_hour", "dec_per_hour", "idle_node_hours", "ratio", "equivalent_nodes", "nodes", "hours")
        more = ("cut", "events", "gaps", "gap_hours")
        return {
            **{key: getattr(self, key) for key in keys},
            "pieces": self.pieces,
            "cdf": [list(row) for row in self.cdf],
            **{key: getattr(self, key) for key in more},
            "windows": [
                {key: getattr(each, key) for key in ("from_h", "until_h", "events", "idle_nodes", "share")}
                for each in self.windows
            ],
            "harvest": [
                {key: getattr(each, key) for key in ("startup_s", "pilots", "node_hours", "share")}
                for each in self.harvest
            ],
        }

    def shorter_than(self, minutes: float) -> tuple[float, float] | None:
        """The shares, by count and by node x time, of the pieces that are not longer; None where none is whole."""
        row = next((row for row in reversed(self.cdf) if row[0] <= minutes), None)
        return (0.0, 0.0) if row is None and self.cdf else None if row is None else row[1:]


def table_of(record: IdleRecord, nodes: int | None = None) -> IdleTable:
    """The table of a record. `nodes`: how many the machine has, in place of what was recorded."""
    nodes = record.nodes if nodes is None else nodes
    begins = np.array([piece.begin for piece in record.pieces])
    ends = np.array([piece.end for piece in record.pieces])
    joined = np.array([piece.joined for piece in record.pieces], dtype=bool)
    left = np.array([piece.left for piece in record.pieces], dtype=bool)
    lengths = np.round(ends - begins, 6)  # a difference of two dates is off by parts of a microsecond
    hours, idle_h = record.seconds / HOUR_S, float(lengths.sum()) / HOUR_S
    joins, leaves = np.unique(begins[joined]), np.unique(ends[left])
    first = any(piece.span == 0 and not piece.joined for piece in record.pieces)
    last = any(piece.span == len(record.spans) - 1 and not piece.left for piece in record.pieces)
    changes = np.union1d(joins, leaves)
    mean = idle_h / hours if hours else None
    return IdleTable(
        inc_per_hour=(len(joins) + first) / hours if hours else None,
        dec_per_hour=(len(leaves) + last) / hours if hours else None,
        idle_node_hours=idle_h,
        ratio=mean / nodes if mean is not None and nodes else None,
        equivalent_nodes=mean,
        nodes=nodes,
        hours=hours,
        pieces=len(lengths),
        cdf=_distribution(lengths[joined & left]),
        cut=int((~(joined & left)).sum()),
        events=len(changes),
        gaps=len(record.spans) - 1,
        gap_hours=(record.spans[-1][1] - record.spans[0][0]) / HOUR_S - hours,
        windows=_windows(record, begins, ends, changes, nodes),
        harvest=tuple(_harvest(lengths, startup_s) for startup_s in STARTUPS_S),
    )


def _distribution(lengths: Numbers) -> tuple[tuple[float, float, float], ...]:
    """Figure 1, of lengths in seconds."""
    if not len(lengths):
        return ()
    ordered = np.sort(lengths)
    sums = np.append(0.0, np.cumsum(ordered))
    places = np.unique(np.linspace(0, len(ordered) - 1, MOST_LENGTHS).round().astype(int))
    every = np.unique(ordered)
    at = np.union1d(every if len(every) <= MOST_LENGTHS else ordered[places], 60 * np.array(MARKS_MIN))
    below = np.searchsorted(ordered, at, side="right")
    shares = (at / 60, below / len(ordered), sums[below] / (sums[-1] or 1.0))
    return tuple((float(minutes), float(count), float(time)) for minutes, count, time in zip(*shares, strict=True))


def _windows(
    record: IdleRecord, begins: Numbers, ends: Numbers, changes: Numbers, nodes: int | None
) -> tuple[IdleWindow, ...]:
    """Figure 6: time goes on through gaps."""
    origin, end = record.spans[0][0], record.spans[-1][1]
    width = WINDOW_H * HOUR_S
    edges = np.append(origin + width * np.arange(max(1, math.ceil((end - origin) / width))), end)
    spans = np.array(record.spans)
    idle = _time_before(edges, begins, ends)
    looked = _time_before(edges, spans[:, 0], spans[:, 1])
    counts, _ = np.histogram(changes, edges) if end > origin else (np.array([len(changes)]), edges)
    found = []
    for place, events in enumerate(counts):
        seconds = float(looked[place + 1] - looked[place])
        mean = float(idle[place + 1] - idle[place]) / seconds if seconds > 0 else None
        share = mean / nodes if mean is not None and nodes else None
        from_h, until_h = (float(each - origin) / HOUR_S for each in edges[place : place + 2])
        found.append(IdleWindow(from_h, until_h, int(events), mean, share))
    return tuple(found)


def _time_before(edges: Numbers, begins: Numbers, ends: Numbers) -> Numbers:
    """Of all times from a begin to its end the seconds before each edge, summed."""
    return np.array([float((np.minimum(ends, edge) - np.minimum(begins, edge)).sum()) for edge in edges])


def _harvest(lengths: Numbers, startup_s: float) -> PilotHarvest:
    left = np.maximum(lengths - startup_s, 0.0)
    total = float(lengths.sum())
    share = float(left.sum()) / total if total else 0.0
    return PilotHarvest(startup_s, int((left > 0).sum()), float(left.sum()) / HOUR_S, share)
