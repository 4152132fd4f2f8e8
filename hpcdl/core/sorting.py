"""The jobs of one view after another, kept sorted by how they stand and by node, so that a view costs what changed."""

from typing import Any

from hpcdl.core.model import LARGEST
from hpcdl.core.plan import JobView, Standing, held_on


class Sorted:
    """The jobs as they are now. What is handed out does not change any more."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobView] = {}
        self._standing = {each: _Ordered() for each in Standing}
        self._by_node: dict[str, tuple[JobView, ...]] = {}
        self._held: dict[str, frozenset[int]] = {}
        self._changed: set[str] = set()
        self._ordered = _Ordered()
        self._memo: dict[str, Any] | None = None

    def put(self, job: JobView) -> None:
        """A job is new, or stands otherwise than before."""
        before = self.jobs.get(job.id)
        if before is job:
            return
        self._memo = None
        self.jobs[job.id] = job
        self._ordered.put(job)
        if before is not None:
            self._off_nodes(before)
            if before.standing is not job.standing:
                self._standing[before.standing].drop(job.id)
        self._standing[job.standing].put(job)
        for name in () if job.placement is None else job.placement.nodes:
            others = self._by_node.get(name)
            there = (job,) if others is None else tuple(sorted((*others, job), key=lambda each: each.order))
            self._by_node[name], self._held[name] = there, held_on(name, there)
            self._changed.add(name)

    def drop(self, number: int) -> None:
        """A job is finished."""
        job = self.jobs.pop(number, None)
        if job is None:
            return
        self._memo = None
        self._ordered.drop(number)
        self._standing[job.standing].drop(number)
        self._off_nodes(job)

    def _off_nodes(self, job: JobView) -> None:
        for name in () if job.placement is None else job.placement.nodes:
            self._changed.add(name)
            left = tuple(each for each in self._by_node[name] if each is not job)
            if left:
                self._by_node[name], self._held[name] = left, held_on(name, left)
            else:
                del self._by_node[name], self._held[name]

    def changed_nodes(self) -> set[str]:
        """Nodes of which other jobs, or the same ones otherwise, hold GPUs than when this was asked for before."""
        changed, self._changed = self._changed, set()
        return changed

    def all(self) -> tuple[JobView, ...]:
        """Every job, in order."""
        return self._ordered.all()

    def memo(self) -> dict[str, Any]:
        """For `View.memo`: what a view would work out from all jobs."""
        if self._memo is None:
            standing = {each: ordered.all() for each, ordered in self._standing.items()}
            self._memo = {
                "standing": standing,
                "by_id": self._ordered.by_id(),
                "by_node": self._by_node.copy(),
                "held": self._held.copy(),
            }
        return self._memo


class _Ordered:
    """Jobs in their order."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobView] = {}
        self._last = (-LARGEST, 0)
        self._in_order = True
        self._all: tuple[JobView, ...] | None = None

    def put(self, job: JobView) -> None:
        self._all = None
        if job.id not in self._jobs:
            order = job.order
            self._in_order = self._in_order and order > self._last
            self._last = max(self._last, order)
        self._jobs[job.id] = job

    def drop(self, number: int) -> None:
        self._all = None
        del self._jobs[number]

    def by_id(self) -> dict[int, JobView]:
        self._sort()
        return self._jobs.copy()

    def _sort(self) -> None:
        if not self._in_order:
            found = sorted(self._jobs.values(), key=lambda job: job.order)
            self._jobs = {job.id: job for job in found}
            self._in_order = True

    def all(self) -> tuple[JobView, ...]:
        self._sort()
        if self._all is None:
            self._all = tuple(self._jobs.values())
        return self._all
