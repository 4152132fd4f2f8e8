"""What a simulation is given: jobs with their true speed, and nodes with the time in which they are there. Values only.

All times are seconds on the clock of the workload, which begins at 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcdl.core.model.job import LARGEST, RESCALES, Sharing
from hpcdl.core.model.profile import MAX_GPUS, MAX_NODES, Profile
from hpcdl.core.model.units import count
from hpcdl.report.memory import ModelMemory
from hpcdl.sim.slowdowns import Slowdown

KINDS = ("training", "inference")
MAX_NAME = 200


class WorkloadError(ValueError):
    """A workload makes no sense; one line that names file, line and column where there are any, and what to do."""


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job as it arrives. Raises WorkloadError where a value makes no sense.

    `profile`: the truth about its speed; `believed`: what policies see of it, None: the truth; `told`: False gives them
    no profile at all. `steps`: training steps in all; `believed_steps`: what it tells of them on submit, 0 for nothing,
    and its trainers then tell no total; None: the truth, which its trainers tell, too. `gpus_min`, `gpus_max`: GPUs on
    each of its nodes, None: as many as a node has; `gpus_counts`: of these only such numbers, () all of them.
    `nodes_max`: None is `nodes`. `deadline_s`: when it should be done, on the clock of `submit_s`; one that equals
    `submit_s` cannot be met, and is allowed because GENIE's urgent ones are such. `predicted`: e, where policies are to
    see the remaining steps times exp(e * remaining / steps). `draw`: the number of GPUs that a static policy gives it.
    `rescale`: how it goes to other nodes (core.jobspec.RESCALES). `weight`: what it counts under the objective
    `priority`. `share`: what it agrees to on its GPUs; `gpu_memory_mib`: what it takes of each, as its user says;
    `memory`: what it does take, None: that.
    """

    submit_s: float
    name: str
    profile: Profile
    steps: int
    gpus_min: int = 1
    gpus_max: int | None = None
    gpus_counts: tuple[int, ...] = ()
    nodes: int = 1
    nodes_max: int | None = None
    user: str = ""
    kind: str = "training"
    deadline_s: float | None = None
    believed: Profile | None = None
    believed_steps: int | None = None
    told: bool = True
    predicted: float | None = None
    draw: int | None = None
    rescale: str = "restart"
    weight: float = 1.0
    share: Sharing | None = None
    gpu_memory_mib: int | None = None
    memory: ModelMemory | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME or not self.name.isprintable():
            raise WorkloadError(f"a job's name must have 1 to {MAX_NAME} printable characters, got {self.name[:40]!r}")
        if not math.isfinite(self.submit_s) or self.submit_s < 0:
            self._wrong("submit_s", f"must be a number of seconds, 0 or more, got {self.submit_s}")
        if not 1 <= self.steps <= LARGEST:
            self._wrong("steps", f"must be from 1 to {LARGEST}, got {self.steps}")
        if self.believed_steps is not None and not 0 <= self.believed_steps <= LARGEST:
            self._wrong("believed_steps", f"must be from 0 to {LARGEST}, got {self.believed_steps}")
        if not 1 <= self.gpus_min <= MAX_GPUS:
            self._wrong("gpus", f"must be from 1 to {MAX_GPUS} per node, got {self.gpus_min}")
        if self.gpus_max is not None and not self.gpus_min <= self.gpus_max <= MAX_GPUS:
            self._wrong(
                "gpus", f"the maximum must be from {self.gpus_min} (the minimum) to {MAX_GPUS}, got {self.gpus_max}"
            )
        self._check_counts()
        last = self.nodes if self.nodes_max is None else self.nodes_max
        if not 1 <= self.nodes <= last <= MAX_NODES:
            self._wrong("nodes", f"{self.nodes}:{last}: needs 1 <= MIN <= MAX <= {MAX_NODES}")
        if self.kind not in KINDS:
            self._wrong("kind", f"must be {' or '.join(KINDS)}, got {self.kind!r}")
        if not self.user.isprintable():
            self._wrong("user", f"must be printable, got {self.user!r}")
        if self.deadline_s is not None and not (math.isfinite(self.deadline_s) and self.deadline_s >= self.submit_s):
            self._wrong("deadline_s", f"{self.deadline_s} is before its submit at {self.submit_s:g}")
        if self.rescale not in RESCALES:
            self._wrong("rescale", f"must be one of {', '.join(RESCALES)}, got {self.rescale!r}")
        if not (math.isfinite(self.weight) and self.weight > 0):
            self._wrong("weight", f"must be a number above 0, got {self.weight}")
        if self.gpu_memory_mib is not None and not 1 <= self.gpu_memory_mib <= LARGEST:
            self._wrong("gpu_memory", f"must be 1 MiB or more, got {self.gpu_memory_mib}")
        if self.predicted is not None and not math.isfinite(self.predicted):
            self._wrong("predicted", f"must be a finite number, got {self.predicted}")

    def _check_counts(self) -> None:
        counts = self.gpus_counts
        if list(counts) != sorted(set(counts)):
            self._wrong("gpus", f"the allowed numbers must be ascending and distinct, got {counts}")
        if counts and (counts[0] < self.gpus_min or counts[-1] > (self.gpus_max or MAX_GPUS)):
            self._wrong("gpus", f"the allowed numbers {counts} must lie in {self.gpus_min}:{self.gpus_max or ''}")
        if self.draw is not None:
            if not self.gpus_min <= self.draw <= (self.gpus_max or MAX_GPUS):
                self._wrong("draw", f"{self.draw} GPUs are not in {self.gpus_min}:{self.gpus_max or ''}")
            if counts and self.draw not in counts:
                self._wrong("draw", f"{self.draw} GPUs are none of the allowed numbers {counts}")

    def _wrong(self, key: str, what: str) -> None:
        raise WorkloadError(f"job {self.name}: {key}: {what}")

    def smallest(self, limit: int) -> int | None:
        """The fewest GPUs per node that it may have on a node of `limit`; None: it cannot be on such a node."""
        counts = self.gpus_counts or (self.gpus_min,)
        return counts[0] if counts[0] <= limit else None


@dataclass(frozen=True, slots=True)
class NodeSpell:
    """A node is there, with its GPUs, from `from_s` until `until_s`. `kind`: the GPUs' type, in lower case.

    `memory_mib`: of each GPU; 0: not known, and nobody shares them.
    """

    name: str
    gpus: int
    kind: str = ""
    from_s: float = 0.0
    until_s: float = math.inf
    memory_mib: int = 0

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME or not self.name.isprintable():
            raise WorkloadError(f"a node's name must have 1 to {MAX_NAME} printable characters, got {self.name[:40]!r}")
        if not 1 <= self.gpus <= MAX_GPUS:
            raise WorkloadError(f"node {self.name}: GPUs must be from 1 to {MAX_GPUS}, got {self.gpus}")
        if self.kind != self.kind.strip().lower() or not self.kind.isprintable():
            raise WorkloadError(f"node {self.name}: a GPU type is written in lower case, got {self.kind!r}")
        if not math.isfinite(self.from_s) or self.from_s < 0 or not self.from_s < self.until_s:
            raise WorkloadError(
                f"node {self.name}: is there from {self.from_s} to {self.until_s}: needs 0 <= from < to"
            )


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their submits, and the nodes for them (none: the caller says which, see `cluster`).

    `source`: where it comes from, in words. `notes`: what was assumed where the input said nothing, for the reader of
    the results. `slowdowns`: what pairs of jobs on a GPU cost each other; the first that is about a pair counts.
    """

    name: str
    jobs: tuple[SimJob, ...]
    nodes: tuple[NodeSpell, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()

    def __post_init__(self) -> None:
        before: SimJob | None = None
        for job in self.jobs:
            if before is not None and job.submit_s < before.submit_s:
                raise WorkloadError(
                    f"workload {self.name}: job {job.name} is submitted at {job.submit_s:g}, "
                    f"before job {before.name} at {before.submit_s:g}: sort the jobs by submit_s"
                )
            before = job
        overlap = overlapping(self.nodes)
        if overlap is not None:
            first, second = overlap
            raise WorkloadError(
                f"workload {self.name}: node {first.name} is there twice at {second.from_s:g}: "
                f"{first.from_s:g} to {first.until_s:g} and {second.from_s:g} to {second.until_s:g}"
            )

    @property
    def shares(self) -> bool:
        """Whether a job agrees to be on a GPU with another one."""
        return any(job.share is not None for job in self.jobs)

    @property
    def nodes_named(self) -> Mapping[str, int]:
        """GPUs of each node by its name, however often it comes and goes; the most that it ever has."""
        found: dict[str, int] = {}
        for spell in self.nodes:
            found[spell.name] = max(spell.gpus, found.get(spell.name, 0))
        return found


def overlapping(spells: Iterable[NodeSpell]) -> tuple[NodeSpell, NodeSpell] | None:
    """Two spells of one node that share a moment, the earlier one first; None if there are none."""
    latest: dict[str, NodeSpell] = {}
    for spell in sorted(spells, key=lambda each: each.from_s):
        before = latest.get(spell.name)
        if before is not None and spell.from_s < before.until_s:
            return before, spell
        latest[spell.name] = spell
    return None


def cluster(nodes: int, gpus: int, kind: str = "", first: int = 1, memory_mib: int = 0) -> tuple[NodeSpell, ...]:
    """`nodes` nodes that are always there: n1, n2, ... (from `first` on), each with `gpus` GPUs of that type.

    `memory_mib`: of each GPU; 0: not known.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise WorkloadError(f"a cluster has 1 to {MAX_NODES} nodes, got {nodes}")
    return tuple(NodeSpell(f"n{number}", gpus, kind, memory_mib=memory_mib) for number in range(first, first + nodes))


def check_fits(workload: Workload) -> None:
    """WorkloadError for the first job that can never fit: it names the job and the largest node.

    A job fits where as many nodes as it needs, with GPUs of one type, have enough of them, at some moment together.
    """
    if not workload.nodes:
        raise WorkloadError(
            f"workload {workload.name} has no nodes: say how many, with how many GPUs each (--nodes, --gpus-per-node)"
        )
    largest = max(workload.nodes, key=lambda spell: spell.gpus)
    kinds = {spell.kind for spell in workload.nodes}
    together: dict[int, int] = {}
    for job in workload.jobs:
        need = job.smallest(largest.gpus)
        if need is None:
            counts = job.gpus_counts or (job.gpus_min,)
            raise WorkloadError(
                f"job {job.name} can never fit: it needs {count(counts[0], 'GPU')} on a node, and the largest node, "
                f"{largest.name}, has {largest.gpus}"
            )
        if need not in together:
            together[need] = max(
                _most_at_once([spell for spell in workload.nodes if spell.gpus >= need and spell.kind == kind])
                for kind in kinds
            )
        if together[need] < job.nodes:
            raise WorkloadError(
                f"job {job.name} can never fit: it needs {count(job.nodes, 'node')} with {count(need, 'GPU')} or more "
                f"of one type, and never are more than {together[need]} there at once; the largest node, "
                f"{largest.name}, has {largest.gpus}"
            )


def _most_at_once(spells: Sequence[NodeSpell]) -> int:
    moments = sorted([(spell.from_s, 1) for spell in spells] + [(spell.until_s, -1) for spell in spells])
    there = most = 0
    for _, change in moments:
        there += change
        most = max(most, there)
    return most
