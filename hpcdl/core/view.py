"""What a policy sees: nodes, and jobs where they stand."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from hpcdl.core.model import JobState, Placement
from hpcdl.core.profile import Profile


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the GPUs that may be granted. GPUs of a node that is away are not listed.

    `kind`: their type in lower case, as profiles name it (`v100`), or "". `since`: when it came. `until`: when it goes,
    where that is known (a reservation, the end of an allocation). `place`: where it is in the network, the outermost
    switch first; () where nobody has said.
    """

    name: str
    gpus: tuple[int, ...]
    kind: str = ""
    since: float = 0.0
    until: float | None = None
    place: tuple[str, ...] = ()


class Standing(IntEnum):
    """Where a job stands between two plans; see the properties of `View`."""

    STEADY = 0
    WAITING = 1
    BETWEEN = 2


@dataclass(frozen=True, slots=True)
class JobView:
    """An unfinished job as a policy sees it. GPU numbers are per node.

    `gpus_max` is settled: the user's maximum, or what the largest node has. `placement` is what it holds now
    (also while it starts, saves or ends); `target` is what the last plan gave it.
    `blocked` says in words why it cannot be placed now (held, dependency, pause after a failure), else "".
    `counts`: the only numbers of GPUs that it takes on a node, () where it takes each of its range. `step_at`: while it
    trains, when `step` was true. `held_gpu_s`: GPU seconds held before `held_since`, from when on it holds `placement`.
    `last`: what the incarnation before held. `gate`: it can be started ahead; `ahead_since`: when it was, None while it
    is not; `at_gate`: it was, and only GPUs are missing. `rescale`: how it goes to other nodes, one of RESCALES.
    `in_place`: it trains, and can do that without a suspend. `rescaling`: it is about it now. `members`: the nodes of
    its ranks in order; the first has the writer. `weight`: what it counts under the objective `priority`.
    `priority`: a higher one comes first. `exempt`: it is not to be preempted for the good of others now, so
    `can_suspend` is False; `exempt_until`: when that is over at the latest (see `exempt`).
    """

    id: int
    name: str
    state: JobState
    gpus_min: int
    gpus_max: int
    nodes: int
    step: int
    total: int | None
    profile: Profile | None
    placement: Placement | None
    target: Placement | None
    leaving: bool
    can_suspend: bool
    blocked: str
    submitted_at: float
    retry_at: float = 0.0
    user: str = ""
    counts: tuple[int, ...] = ()
    nodes_max: int = 0
    deadline: float | None = None
    started_at: float | None = None
    step_at: float | None = None
    held_gpu_s: float = 0.0
    held_since: float | None = None
    accuracy: tuple[tuple[int, float], ...] = ()
    accuracy_target: float | None = None
    last: Placement | None = None
    gate: bool = False
    ahead_since: float | None = None
    at_gate: bool = False
    rescale: str = "restart"
    in_place: bool = False
    rescaling: bool = False
    members: tuple[str, ...] = ()
    weight: float = 1.0
    priority: int = 0
    exempt: bool = False
    exempt_until: float = 0.0
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What follows from this value alone and was worked out before. A view keeps its JobViews while nothing changes."""

    def __post_init__(self) -> None:
        if self.nodes_max < self.nodes:
            object.__setattr__(self, "nodes_max", self.nodes)

    @property
    def order(self) -> tuple[int, int]:
        """Jobs of a higher priority come first, and of the same one those that were submitted first."""
        return -self.priority, self.id

    @property
    def standing(self) -> Standing:
        """How a plan has to treat it if it says nothing of its own about it."""
        if self.blocked or self.leaving or (self.placement is None and self.target is not None):
            return Standing.BETWEEN
        return Standing.WAITING if self.placement is None else Standing.STEADY

    def allowed(self, limit: int) -> tuple[int, ...]:
        """The numbers of GPUs that it may have on a node with `limit` of them, ascending; empty where none fits."""
        if self.counts:
            return tuple(number for number in self.counts if number <= limit)
        return tuple(range(self.gpus_min, min(self.gpus_max, limit) + 1))

    def steps(self, now: float, kind: str = "") -> float:
        """Steps done by `now`: those reported, carried on at its profile's rate on GPUs of that kind."""
        if self.step_at is None or self.placement is None or self.profile is None or now <= self.step_at:
            return float(self.step)
        rate = self.profile.on(kind).rate(self.placement.per_node, len(self.placement.shares))
        done = self.step + (now - self.step_at) * rate
        return done if self.total is None else min(done, float(self.total))

    def remaining(self, now: float, kind: str = "") -> float | None:
        """Steps that it still has to do at `now`, or None where their number is not known."""
        return None if self.total is None else max(0.0, self.total - self.steps(now, kind))

    def attained_gpu_s(self, now: float) -> float:
        """GPU seconds that it has held until `now`."""
        if self.placement is None or self.held_since is None:
            return self.held_gpu_s
        return self.held_gpu_s + max(0.0, now - self.held_since) * len(self.placement.gpus)

    def rescale_s(self, nodes: int, gpus: int) -> float:
        """Seconds without progress of going from what it holds to `nodes` nodes (0: none) with `gpus` GPUs on each.

        By the cheapest means that it has: in place, or by a suspend, a resume, a start. 0.0 without a profile.
        """
        profile, held = self.profile, self.placement
        if profile is None:
            return 0.0
        if held is None:
            if not nodes:
                return 0.0
            last = 0 if self.last is None else len(self.last.gpus)
            return profile.resume_for(last, nodes * gpus, moved=False) if last else profile.startup_s
        if not nodes:
            return profile.save_s
        if gpus == held.per_node and (nodes == len(held.shares) or self.in_place):
            return 0.0 if nodes == len(held.shares) else profile.rescale_for(len(held.shares), nodes)
        return profile.restart_s(len(held.gpus), nodes * gpus, moved=False, running=True)

    def best_gpus(self, limit: int) -> int:
        """GPUs per node at which its profile is fastest, within its own range and `limit`; MAX without a profile."""
        top = min(self.gpus_max, limit)
        if self.counts:
            return self._best_count(self.allowed(limit))
        if top <= self.gpus_min or self.profile is None:
            return max(top, self.gpus_min)
        return self.profile.best_gpus(top, self.gpus_min, self.nodes)

    def _best_count(self, numbers: tuple[int, ...]) -> int:
        if not numbers or self.profile is None:
            return numbers[-1] if numbers else self.gpus_min
        rates = [self.profile.rate(number, self.nodes) for number in numbers]
        return numbers[rates.index(max(rates))]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Jobs that were submitted together, at `at`: the GPUs of one of them, at least, and how long it held them.

    `seconds`: means, None while none of them is finished.
    """

    at: float
    gpus: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The world as a policy sees it: nodes by name, unfinished jobs in their order (`JobView.order`).

    `bare`: nodes whose agent is there and that are not in `nodes`, since none of the GPUs they have may be granted.
    `gaps`: seconds between the last changes of the set of nodes, the newest at the end. `arrivals`: the last submits,
    the newest at the end; empty where no policy is to expect more.
    """

    now: float
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    objective: str = "makespan"
    bare: frozenset[str] = frozenset()
    gaps: tuple[float, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What follows from this value alone and was worked out before."""

    @property
    def steady(self) -> tuple[JobView, ...]:
        """Jobs that hold GPUs, are not leaving them, and are not blocked; in order."""
        return self._sorted()[Standing.STEADY]

    @property
    def waiting(self) -> tuple[JobView, ...]:
        """Jobs that hold nothing, were given nothing by the last plan, and are not blocked; in order."""
        return self._sorted()[Standing.WAITING]

    @property
    def between(self) -> tuple[JobView, ...]:
        """All other jobs: blocked, leaving, or about to start on what the last plan gave them; in order."""
        return self._sorted()[Standing.BETWEEN]

    def _sorted(self) -> dict[Standing, tuple[JobView, ...]]:
        found: dict[Standing, tuple[JobView, ...]] | None = self.memo.get("standing")
        if found is None:
            found = {each: tuple(job for job in self.jobs if job.standing is each) for each in Standing}
            self.memo["standing"] = found
        return found

    @property
    def by_id(self) -> Mapping[int, JobView]:
        """The jobs by their ids."""
        found: dict[int, JobView] | None = self.memo.get("by_id")
        if found is None:
            found = self.memo["by_id"] = {job.id: job for job in self.jobs}
        return found

    @property
    def by_node(self) -> Mapping[str, tuple[JobView, ...]]:
        """The jobs that hold GPUs of a node, also where they are leaving them; nodes without such jobs are missing."""
        found: dict[str, tuple[JobView, ...]] | None = self.memo.get("by_node")
        if found is None:
            found = {}
            for job in self.jobs:
                for name in () if job.placement is None else job.placement.nodes:
                    found[name] = (*found.get(name, ()), job)
            self.memo["by_node"] = found
        return found

    def kind_of(self, node: str) -> str:
        """The type of GPU of a node, "" where it is not known."""
        return self.kinds.get(node, "")

    @property
    def kinds(self) -> Mapping[str, str]:
        """Types of GPUs by node."""
        found: dict[str, str] | None = self.memo.get("kinds")
        if found is None:
            found = self.memo["kinds"] = {each.name: each.kind for each in self.nodes}
        return found

    @property
    def gpus(self) -> Mapping[str, frozenset[int]]:
        """GPUs that may be granted, by node; nodes that are away are missing."""
        found: dict[str, frozenset[int]] | None = self.memo.get("gpus")
        if found is None:
            found = self.memo["gpus"] = {each.name: frozenset(each.gpus) for each in self.nodes}
        return found

    @property
    def free(self) -> Mapping[str, tuple[int, ...]]:
        """GPUs that may be granted and that nobody holds, by node, ascending."""
        found: dict[str, tuple[int, ...]] | None = self.memo.get("free")
        if found is None:
            none: frozenset[int] = frozenset()
            held = self.held
            found = {}
            for node in self.nodes:
                taken = held.get(node.name, none)
                found[node.name] = tuple([gpu for gpu in node.gpus if gpu not in taken]) if taken else node.gpus
            self.memo["free"] = found
        return found

    @property
    def held(self) -> Mapping[str, frozenset[int]]:
        """GPUs that jobs hold, by node; nodes without such are missing."""
        found: dict[str, frozenset[int]] | None = self.memo.get("held")
        if found is None:
            found = self.memo["held"] = {name: held_on(name, jobs) for name, jobs in self.by_node.items()}
        return found

    @property
    def largest_node(self) -> int:
        """GPUs of the node that has most, 0 without nodes."""
        return max((len(node.gpus) for node in self.nodes), default=0)


def held_on(node: str, jobs: Iterable[JobView]) -> frozenset[int]:
    """The GPUs of a node that these jobs hold."""
    found: list[int] = []
    for job in jobs:
        if job.placement is not None:
            nodes = job.placement.nodes  # sorted, as the shares are
            place = bisect_left(nodes, node)
            if place < len(nodes) and nodes[place] == node:
                found.extend(job.placement.shares[place].gpus)
    return frozenset(found)
