"""What the metrics count: GPU-seconds by what they were for, and what ended, from each event as it is recorded.

Counted from this daemon's start on, as Prometheus' counters are; `hpcdl report` has the account of all time, by the
same rules. What an event costs here does not grow with the number of jobs or nodes, but for a node that is lost.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Incarnation, IncarnationState, Placement, Purpose
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState, World

log = logging.getLogger("hpcdl.daemon")

SHARES = ("training", "starting", "saving", "rescaling", "idle")
"""What GPU-seconds are counted for. `saving`: from the request to suspend, or the exit, until the GPU was seen free."""

_KEPT = frozenset({Cause.DONE, Cause.CANCELLED, Cause.SUSPENDED})

_Key = tuple[int, int]


@dataclass(slots=True)
class _Hold:
    """An incarnation with GPUs. `unsaved`: GPU-seconds that it has trained since its last checkpoint, until `since`."""

    gpus: set[GpuRef]
    share: str
    since: float
    unsaved: float = 0.0
    step: int = 0
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """GPU-seconds by SHARES; of those that trained, those in periodic checkpoints and those whose work was lost.
    `submitted`: jobs; `finished` by state, `ended`: incarnations by cause, `suspends` by purpose; all have every key.
    """

    gpu_s: Mapping[str, float]
    checkpoint_s: float
    lost_s: float
    submitted: int
    finished: Mapping[str, int]
    ended: Mapping[str, int]
    suspends: Mapping[str, int]


@dataclass(slots=True)
class Meter:
    """Counts GPU-seconds and ends, event by event. For one thread; times are in seconds since the epoch."""

    _at: float = 0.0
    _seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHARES, 0.0))
    _now: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARES, 0))
    _held: dict[_Key, _Hold] = field(default_factory=dict)
    _holders: Counter[GpuRef] = field(default_factory=Counter)
    _there: dict[str, set[GpuRef]] = field(default_factory=dict)
    _checkpoint_s: float = 0.0
    _lost_s: float = 0.0
    _submitted: int = 0
    _finished: Counter[str] = field(default_factory=Counter)
    _ended: Counter[str] = field(default_factory=Counter)
    _suspends: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, world: World, now: float) -> "Meter":
        """One that begins now, in this world."""
        meter = cls(now)
        for name, node in world.nodes.items():
            if node.connected and not node.lost:
                meter._arrive(name, {GpuRef(name, gpu.index) for gpu in node.gpus if gpu.state != "lost"})
        for number in world.live:
            job = world.jobs[number]
            for incarnation in job.live:
                gpus = {GpuRef(part.node, index) for part in incarnation.parts if not part.gone for index in part.gpus}
                if incarnation.placement is not None and gpus:
                    key = (number, incarnation.number)
                    meter._takes(key, gpus, now, _share_of(incarnation))
                    meter._held[key].ready = incarnation.progress is not None
                    meter._held[key].step = job.progress.step or 0
        return meter

    def take(self, records: Sequence[ev.Recorded]) -> None:
        """Counts what was recorded, in its order. A fault in here is logged, and is no fault of what was recorded."""
        try:
            for record in records:
                self._take(record.event, record.at)
        except Exception:
            log.exception("events were recorded, but not counted for the metrics")

    def totals(self, now: float) -> Totals:
        """Until now."""
        self._pass(now)
        return Totals(
            dict(self._seconds),
            self._checkpoint_s,
            self._lost_s,
            self._submitted,
            {str(each): self._finished[each] for each in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)},
            {str(each): self._ended[each] for each in Cause},
            {str(each): self._suspends[each] for each in Purpose},
        )

    # --- events ------------------------------------------------------------------------------------------------------

    def _take(self, event: ev.Event, at: float) -> None:
        match event:
            case ev.Progressed():
                hold = self._held.get((event.job, event.incarnation))
                if hold is not None:
                    hold.step = max(hold.step, event.step)
                    if not hold.ready:
                        self._trains(hold, at)
            case ev.IncarnationEvent():
                self._of_incarnation(event, (event.job, event.incarnation), at)
            case ev.JobSubmitted():
                self._submitted += 1
            case ev.ArraySubmitted():
                self._submitted += len(event.members)
            case ev.JobEnded():
                self._finished[event.state] += 1
            case ev.NodeEvent():
                self._of_node(event, at)
            case _:
                pass

    def _of_incarnation(self, event: ev.IncarnationEvent, key: _Key, at: float) -> None:
        hold = self._held.get(key)
        match event:
            case ev.StartRequested(placement=Placement() as placement) | ev.OpenRequested(placement=placement):
                self._takes(key, set(placement.gpus), at, "starting")
            case ev.SuspendRequested():
                self._suspends[event.purpose] += 1
                self._turns(hold, "saving", at)
            case ev.IncarnationEnded():
                self._ended[event.cause] += 1
                self._ends(key, hold, event, at)
            case _ if hold is not None:
                self._goes_on(key, hold, event, at)

    def _goes_on(self, key: _Key, hold: _Hold, event: ev.IncarnationEvent, at: float) -> None:
        match event:
            case ev.JoinRequested():
                self._takes(key, set(event.placement.gpus), at, hold.share)
            case ev.Started() if hold.share == "starting":
                self._turns(hold, "training", at)  # one that reports nothing trains once it runs
            case ev.Attached() if not hold.ready and hold.share == "training":
                hold.unsaved = 0.0
                self._turns(hold, "starting", at)
            case ev.TrainerReady() if not hold.ready:
                self._trains(hold, at)
            case ev.RescaleRequested() | ev.Broken() if hold.share == "training":
                self._turns(hold, "rescaling", at)
            case ev.Reformed():
                self._trains(hold, at)
                if event.step < hold.step:
                    self._lost_s += hold.unsaved
                    hold.unsaved = 0.0
                hold.step = event.step
            case ev.EndRequested() | ev.Exited():
                self._turns(hold, "saving", at)
            case ev.Saved():
                self._saved(hold, event, at)
            case ev.GpusFreed():
                self._frees(hold, (event.node,), at)
            case ev.LeftBehind():
                self._frees(hold, event.nodes, at)
            case _:
                pass

    def _trains(self, hold: _Hold, at: float) -> None:
        hold.ready = True
        if hold.share in ("starting", "rescaling"):
            self._turns(hold, "training", at)

    def _saved(self, hold: _Hold, event: ev.Saved, at: float) -> None:
        self._turns(hold, hold.share, at)
        age_s = max(0.0, event.age_s)
        hold.unsaved = min(hold.unsaved, len(hold.gpus) * age_s) if hold.share == "training" else 0.0
        if not event.final:
            self._checkpoint_s += len(hold.gpus) * max(0.0, event.seconds)

    def _ends(self, key: _Key, hold: _Hold | None, event: ev.IncarnationEnded, at: float) -> None:
        if hold is None:
            return
        self._turns(hold, hold.share, at)
        saved = event.step is not None and event.reached is not None and event.step >= event.reached
        if event.cause not in _KEPT and not saved:
            self._lost_s += hold.unsaved
        self._frees(hold, {gpu.node for gpu in hold.gpus}, at)
        del self._held[key]

    def _of_node(self, event: ev.NodeEvent, at: float) -> None:
        match event:
            case ev.NodeJoined():
                self._pass(at)
                self._leave(event.node)
                self._arrive(event.node, {GpuRef(event.node, gpu.index) for gpu in event.gpus if gpu.state != "lost"})
            case ev.NodeSilent():
                self._pass(at)
                self._leave(event.node)
            case ev.NodeLost():
                self._pass(at)
                self._leave(event.node)
                for hold in self._held.values():
                    self._frees(hold, (event.node,), at)
            case ev.GpuChanged() if event.node in self._there:
                self._pass(at)
                gpu, here = GpuRef(event.node, event.index), self._there[event.node]
                if (gpu in here) == (event.state == "lost"):
                    self._now["idle"] += 0 if self._holders[gpu] else -1 if gpu in here else 1
                    here ^= {gpu}
            case _:
                pass

    # --- counts ------------------------------------------------------------------------------------------------------

    def _pass(self, at: float) -> None:
        if at > self._at:
            for share, gpus in self._now.items():
                self._seconds[share] += gpus * (at - self._at)
            self._at = at

    def _turns(self, hold: _Hold | None, share: str, at: float) -> None:
        if hold is None:
            return
        self._pass(at)
        if hold.share == "training":
            hold.unsaved += len(hold.gpus) * max(0.0, at - hold.since)
        hold.since = at
        self._now[hold.share] -= len(hold.gpus)
        self._now[share] += len(hold.gpus)
        hold.share = share

    def _takes(self, key: _Key, gpus: set[GpuRef], at: float, share: str) -> None:
        hold = self._held.setdefault(key, _Hold(set(), share, at))
        self._turns(hold, share, at)
        for gpu in gpus - hold.gpus:
            self._now["idle"] -= not self._holders[gpu] and gpu in self._there.get(gpu.node, ())
            self._holders[gpu] += 1
        self._now[share] += len(gpus - hold.gpus)
        hold.gpus |= gpus

    def _frees(self, hold: _Hold, nodes: Iterable[str], at: float) -> None:
        names = frozenset(nodes)
        gone = {gpu for gpu in hold.gpus if gpu.node in names}
        if not gone:
            return
        self._turns(hold, hold.share, at)
        self._now[hold.share] -= len(gone)
        for gpu in gone:
            self._holders[gpu] -= 1
            if not self._holders[gpu]:
                del self._holders[gpu]
                self._now["idle"] += gpu in self._there.get(gpu.node, ())
        hold.gpus -= gone

    def _arrive(self, node: str, gpus: set[GpuRef]) -> None:
        self._there[node] = gpus
        self._now["idle"] += sum(1 for gpu in gpus if not self._holders[gpu])

    def _leave(self, node: str) -> None:
        self._now["idle"] -= sum(1 for gpu in self._there.pop(node, ()) if not self._holders[gpu])


def _share_of(incarnation: Incarnation) -> str:
    if incarnation.state is not IncarnationState.RUNNING:
        return "saving"
    if incarnation.broken_at is not None or incarnation.rescale_at is not None:
        return "rescaling"
    attached_or_new = incarnation.attached or incarnation.started_at is None
    return "starting" if incarnation.progress is None and attached_or_new else "training"


BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Durations:
    """A histogram of durations, counted by bucket. One thread adds, any may read."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Once more, and so long."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    @property
    def number(self) -> int:
        """How many times."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in seconds, and how many took at most so long."""
        so_far = 0
        for bound, number in zip(BOUNDS_S, self._counts, strict=False):
            so_far += number
            yield bound, so_far
