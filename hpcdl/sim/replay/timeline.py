"""What trainers held over time, and how often they were rescaled, from the records of the Controller.

Pure; `outcome` turns it into samples.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from hpcdl.core.model import events as ev
from hpcdl.core.model.events import Recorded


@dataclass(frozen=True, slots=True)
class NodeHolding:
    """A job held `nodes` nodes from `begin` to `end` seconds.

    `trains`: and made progress; else it started, or stood still for a rescale, which was `forced` where nodes had left
    and nothing else had happened to it.
    """

    job: int
    begin: float
    end: float
    nodes: int
    trains: bool
    forced: bool


@dataclass(frozen=True, slots=True)
class NodeChange:
    """At one moment a job went from `before` nodes to `after`. Of these, `kept` had not left by themselves."""

    at: float
    job: int
    before: int
    kept: int
    after: int

    def cost_s(self, up_s: float, down_s: float) -> tuple[float, float]:
        """Seconds that it costs (eq. 13): `before` nodes because some left, and `kept` because of the policy."""
        forced_s = down_s if self.kept < self.before else 0.0
        planned_s = up_s if self.after > self.kept else down_s if self.after < self.kept else 0.0
        return forced_s, planned_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """`stays` of a job do not overlap; both by time. `ends`: when each finished job began to run, and was done."""

    stays: tuple[NodeHolding, ...]
    rescales: tuple[NodeChange, ...]
    ends: dict[int, tuple[float, float]]


@dataclass(slots=True)
class _Job:
    nodes: set[str] = field(default_factory=set)
    trains: bool = False
    forced: bool = False
    since: float = 0.0
    began: float | None = None
    done: bool = False
    lost: int = 0
    before: tuple[int, bool, bool] = (0, False, False)

    @property
    def now(self) -> tuple[int, bool, bool]:
        return len(self.nodes), self.trains, self.forced


def timeline_of(records: Iterable[Recorded], end_s: float) -> Timeline:
    """The timeline until `end_s`. What happens at one moment is one rescale of a job, however many steps it took."""
    reading = _Reading()
    for at, together in groupby(records, key=lambda record: record.at):
        if at >= end_s:
            break
        reading.moment(at, [record.event for record in together])
    reading.close(end_s)
    return Timeline(tuple(reading.stays), tuple(reading.rescales), reading.ends)


class _Reading:
    def __init__(self) -> None:
        self.stays: list[NodeHolding] = []
        self.rescales: list[NodeChange] = []
        self.ends: dict[int, tuple[float, float]] = {}
        self._jobs: dict[int, _Job] = {}
        self._on: dict[str, int] = {}

    def moment(self, at: float, events: Iterable[ev.Event]) -> None:
        touched: dict[int, _Job] = {}
        for event in events:
            job = self._apply(event, at)
            if job is not None:
                touched[job] = self._jobs[job]
        for number, state in touched.items():
            self._settle(number, state, at)

    def close(self, end_s: float) -> None:
        for number, state in self._jobs.items():
            self._stay(number, state, end_s)

    def _apply(self, event: ev.Event, at: float) -> int | None:
        """The job that it changes."""
        if isinstance(event, ev.NodeLost):
            number = self._on.pop(event.node, None)
            if number is None:
                return None
            state = self._jobs[number]
            state.nodes.discard(event.node)
            state.lost += 1
            state.trains = False
            return number
        if not isinstance(event, ev.JobEvent):
            return None
        state = self._jobs.setdefault(event.job, _Job())
        match event:
            case ev.StartRequested() if event.placement is not None:
                self._hold(event.job, state, event.nodes)
                state.trains = False
                state.began = at if state.began is None else state.began
            case ev.RescaleRequested():
                self._hold(event.job, state, event.members)
                state.trains = False
            case ev.Reformed() | ev.TrainerReady():
                state.trains = bool(state.nodes)
            case ev.SuspendRequested():
                state.trains = False
            case ev.IncarnationEnded():
                self._hold(event.job, state, ())
                state.trains = False
            case ev.JobEnded():
                state.done = True
                if state.began is not None:
                    self.ends[event.job] = (state.began, at)
            case _:
                return None
        return event.job

    def _hold(self, number: int, state: _Job, nodes: Iterable[str]) -> None:
        for node in state.nodes:
            if self._on.get(node) == number:
                del self._on[node]
        state.nodes = set(nodes)
        for node in state.nodes:
            self._on[node] = number

    def _settle(self, number: int, state: _Job, at: float) -> None:
        before, after = state.before[0], len(state.nodes)
        kept = before - min(before, state.lost)
        changed = after != before or state.lost > 0
        if changed and not state.done:
            self.rescales.append(NodeChange(at, number, before, kept, after))
            state.forced = kept < before and after == kept
        state.lost = 0
        if state.now != state.before:
            self._stay(number, state, at)

    def _stay(self, number: int, state: _Job, at: float) -> None:
        nodes, trains, forced = state.before
        if nodes and at > state.since:
            self.stays.append(NodeHolding(number, state.since, at, nodes, trains, forced and not trains))
        state.since, state.before = at, state.now
