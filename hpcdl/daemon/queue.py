"""The queue: what is in the way of each job that waits for GPUs, its place, and when it is estimated to start.

`ls`, `show`, `why`, `top` and the page take it from here, under every policy: the policies decide, and say why in
their own words; the places are those of one look ahead (`eta.queue_of`), as are the times of `hpcdl why`. Nothing is
decided here, and nothing that is recorded follows from it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.core.controller.light_runs import without_light_runs
from hpcdl.core.controller.view_builder import Views, build_view
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.plan import Profiles, View
from hpcdl.core.model.units import count, seconds_text, short_seconds_text
from hpcdl.core.model.world import Job, World

PLACES = 100
"""So many jobs have a place, the first ones; the others are behind them."""

PAUSE = 25.0
"""After a look that took a second there is none for so many: looks take 4 % of one core at most."""

FRESH_S = 10.0
"""A look is made anew after so long, even if nothing has happened."""

SOON_S = 1.0
"""A start that is nearer than this is not put into numbers."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A job's place in the queue, from 1. `starts_at`: None where it cannot be estimated; it can be once job `until`, 0
    for none, has shown how fast it trains. `by`: of one that was suspended, for whom, and who has its GPUs now.
    """

    number: int
    starts_at: float | None
    resumes: bool = False
    by: str = ""
    until: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """One look. `nodes`: of each node with GPUs that may be granted, how many these are and how many are free."""

    nodes: Sequence[tuple[int, int]] = ()
    waiting: frozenset[int] = frozenset()
    places: Mapping[int, QueuePlace] = field(default_factory=dict)
    _ways: dict[tuple[int, int], str] = field(default_factory=dict)

    def text(self, job: Job, now: float) -> str:
        """`waiting for 1 GPU: all 4 busy; 3rd in the queue, starts in about 46 s`.

        "" for a job that does not wait for GPUs, and where it fits what is free: then the policy knows why.
        """
        if job.id not in self.waiting:
            return ""
        key = (job.spec.nodes, job.spec.gpus_min)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = self._in_the_way(*key)
        if not way:
            return ""
        place = self.places.get(job.id)
        if place is None:
            return f"{way}; more than {PLACES} jobs are before it" if len(self.places) >= PLACES else way
        return f"{way}{place.by}; {place_text(place, now)}"

    def note(self, job: Job, now: float) -> str:
        """The same in short, where its place is known: `3rd in queue, starts in 46s`."""
        place = self.places.get(job.id)
        if place is None or not self.text(job, now):
            return ""
        left = None if place.starts_at is None else short_seconds_text(max(0.0, place.starts_at - now))
        return f"{_ordinal(place.number)} in queue" + (
            "" if left is None else f", {'resumes' if place.resumes else 'starts'} in {left}"
        )

    def is_alike(self, other: "Queue") -> bool:
        """Whether the other one says the same of a job that is in both or in neither, and has a place in none."""
        full = len(self.places) >= PLACES
        return self.nodes == other.nodes and full == (len(other.places) >= PLACES)

    def position(self, job: Job) -> int | None:
        """Its place, from 1; None for a job that has none, or has GPUs by now."""
        place = self.places.get(job.id)
        return None if place is None or job.running is not None or job.finished else place.number

    def _in_the_way(self, nodes: int, gpus: int) -> str:
        fitting = [free for size, free in self.nodes if size >= gpus]
        ready = sum(free >= gpus for free in fitting)
        if len(fitting) < nodes or ready >= nodes:
            return ""
        total, free = sum(size for size, _ in self.nodes), sum(free for _, free in self.nodes)
        if not free:
            what = f"all {total} busy" if total > 1 else "the only one is busy"
        elif nodes > 1:
            what = f"{count(ready, 'node')} of {len(fitting)} {'has' if ready == 1 else 'have'} so many free"
        else:
            most = max(free for _, free in self.nodes)
            what = f"{free} of {total} free" + (f", at most {most} on a node" if most < free else "")
        need = count(gpus, "GPU") + (f" on each of {nodes} nodes" if nodes > 1 else "")
        return f"waiting for {need}: {what}"


def place_text(place: QueuePlace, now: float) -> str:
    """`3rd in the queue, starts in about 46 s`."""
    if place.starts_at is None:
        known = f"; when it starts is known once job {place.until} shows how fast it trains" if place.until else ""
        return f"{_ordinal(place.number)} in the queue{known}"
    left = place.starts_at - now
    when = f"in about {seconds_text(left)}" if left >= SOON_S else "soon"
    return f"{_ordinal(place.number)} in the queue, {'resumes' if place.resumes else 'starts'} {when}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def jobs_text(world: World, numbers: Sequence[int], beside: Job) -> str:
    """`job 23 (priority 10)`: a priority is named where it is not that of `beside`."""
    found = []
    for number in numbers:
        other = world.jobs.get(number)
        higher = other is not None and other.spec.priority != beside.spec.priority
        found.append(f"{number} (priority {other.spec.priority})" if other is not None and higher else str(number))
    return f"{'job' if len(found) == 1 else 'jobs'} {', '.join(found)}"


def new_holders(world: World, job: Job, placement: Placement) -> list[int]:
    """The other jobs that hold GPUs of this placement now."""
    holders = {holder[0] for gpu in placement.gpus if (holder := world.holders.get(gpu)) is not None}
    return sorted(holders - {job.id})


class LastViews:
    """Views of one daemon's world: what has not changed since the last one is not worked out again. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views = Views()
        self._seq = 0

    def build(self, world: World, profiles: Profiles, now: float) -> View:
        """As `build_view`, without light runs: they are in nobody's way."""
        with self._lock:
            if world.seq >= self._seq:
                self._seq = world.seq
                views, self._views = self._views, Views()  # these, unless they fail
                view = views.build(world, profiles, now)
                self._views = views
                return without_light_runs(view)
        # Whoever took its world before us comes after us.
        return without_light_runs(build_view(world, profiles, now))


class Queues:
    """The queue of one daemon, looked at when it is asked for. For any thread."""

    def __init__(self, profiles: Profiles, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.views = LastViews()
        self._profiles = profiles
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last = Queue()
        self._seq = -1
        self._at = 0.0
        self._next_at = 0.0

    def look(self, world: World, now: float) -> Queue:
        """The queue of this world, or the last one that was made, while a new one would take too much time."""
        began = self._monotonic()
        if began < self._next_at or (world.seq == self._seq and abs(now - self._at) < FRESH_S):
            return self._last
        if self._lock.acquire(blocking=False):
            try:
                view = self.views.build(world, self._profiles, now)
                self._last, self._seq, self._at = queue_of(world, view), world.seq, now
                self._next_at = began + (1 + PAUSE) * (self._monotonic() - began)
            finally:
                self._lock.release()
        return self._last


def queue_of(world: World, view: View) -> Queue:
    """The queue of this world, and of its view."""
    from hpcdl.adaptive import eta  # numpy takes its time

    first, waiting = eta.queue_of(view, world.policy, PLACES)
    places = {}
    for number, start in enumerate(first, 1):
        job = world.jobs[start.job]
        held = job.last.placement
        holders = new_holders(world, job, held) if job.suspended and held is not None else []
        by = f", suspended for {jobs_text(world, job.suspended_for, job)}" if job.suspended_for else ""
        if holders and holders != [*job.suspended_for]:
            by += f", its own taken by {jobs_text(world, holders, job)}"
        starts_at = None if start.in_s is None else view.now + start.in_s
        places[job.id] = QueuePlace(number, starts_at, job.first_start_at is not None, by, start.until)
    nodes = [(len(node.gpus), len(view.free.get(node.name, ()))) for node in view.nodes]
    return Queue(nodes, waiting, places)
