"""What GENIE is measured against (section 7.1). None of them suspends anything.

The paper's first four treat jobs as black boxes, and it leaves open how many GPUs they give. Here each gives what the
user asked for: on the fewest nodes that the job allows, the most GPUs that it takes there. `asked` is that number.
Where a user gives a range, that is its maximum; where one number, that number.
"""

from collections.abc import Iterable, Sequence

from hpcdl.core.model.plan import ANY_OBJECTIVE, JobView, Plan, View
from hpcdl.genie.model import THETA, PlacementOption, Platform, expected_at, placements
from hpcdl.genie.start import NO_FIT, Launch, shape
from hpcdl.placement.pool import Pool, impossible


def requested_gpus(job: JobView, platform: Platform) -> int:
    """GPUs on each of the job's fewest nodes: the most that it takes and that so many nodes have; 0 if none."""
    limits = (sizes[job.nodes - 1] for _, sizes in platform.sizes if len(sizes) >= job.nodes)
    return max((numbers[-1] for limit in limits if (numbers := job.allowed(limit))), default=0)


class Fifo:
    """First in, first out: strictly in the order of submission, each job on the GPUs that it asked for.

    A job that does not fit holds up all behind it; one that could not even start on an empty cluster does not.
    """

    name = "fifo"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        launch = Launch(view)
        pool, platform = launch.pool, launch.platform
        first: JobView | None = None
        for job in self.order(pool.queue()):
            gpus = requested_gpus(job, platform)
            if not gpus:
                pool.refuse(job, impossible(pool, job) or NO_FIT)
            elif first is not None or not launch.start(job, job.nodes, gpus):
                before = "" if first is None else f"; job {first.id} is before it"
                pool.refuse(job, f"needs {shape(job.nodes, gpus)}, {launch.free(job.nodes, gpus)}{before}")
                first = first or job
        return pool.plan()

    def order(self, jobs: Sequence[JobView]) -> Sequence[JobView]:
        """The jobs, given in the order of submission, in the order in which they start."""
        return jobs


class MinMin(Fifo):
    """As `Fifo`, but those with the earliest ECT first; those without one last."""

    name = "min-min"
    deadlines = ANY_OBJECTIVE

    def order(self, jobs: Sequence[JobView]) -> Sequence[JobView]:
        """By ECT."""
        return _by(jobs, [expected_at(job) for job in jobs])


class WeightedFair(Fifo):
    """As `Fifo`, but by the mean of arrival and ECT (the paper gives no weights: one half each)."""

    name = "weighted-fair"
    deadlines = ANY_OBJECTIVE

    def order(self, jobs: Sequence[JobView]) -> Sequence[JobView]:
        """By the mean of arrival and ECT."""
        expected = ((job.submitted_at, expected_at(job)) for job in jobs)
        return _by(jobs, [None if due is None else (at + due) / 2 for at, due in expected])


def _by(jobs: Sequence[JobView], times: Iterable[float | None]) -> list[JobView]:
    pairs = sorted(zip(times, jobs, strict=True), key=lambda pair: (-pair[1].priority, pair[0] is None, pair[0] or 0.0))
    return [job for _, job in pairs]


class Capacity:
    """A queue of its own, with an equal share of all GPUs, for the jobs of each user; strictly FIFO in each.

    The paper's queues are its types of model, so its workload names those as users. "Each model type can only access
    its own allocated resources": a job gets what it asked for, or as much as its queue's share and the emptiest node
    leave of that, down to its minimum. Only queues with unfinished jobs have a share; one that holds nothing may start
    one job that is larger than its share.
    """

    name = "capacity"

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        launch = Launch(view)
        pool, platform = launch.pool, launch.platform
        shares = _shares(view)
        held = dict.fromkeys(shares, 0)
        for job in view.jobs:
            kept = pool.placements.get(job.id) or job.placement
            held[job.user] += len(kept.gpus) if kept is not None else 0
        stuck: dict[str, JobView] = {}
        for job in pool.queue():
            most = requested_gpus(job, platform)
            if not most:
                pool.refuse(job, impossible(pool, job) or NO_FIT)
                continue
            left = shares[job.user] - held[job.user]
            gpus = 0 if job.user in stuck else _within(pool, job, most, left, empty=not held[job.user])
            if gpus and launch.start(job, job.nodes, gpus):
                held[job.user] += gpus * job.nodes
                continue
            before = f"; job {stuck[job.user].id} is before it" if job.user in stuck else ""
            holds = f"its queue holds {held[job.user]} of its {shares[job.user]} GPUs"
            pool.refuse(job, f"{holds}, {launch.free(1, 1)}{before}")
            stuck.setdefault(job.user, job)
        return pool.plan()


def _shares(view: View) -> dict[str, int]:
    """GPUs of each user with unfinished jobs: equal, and one more for the first where they do not divide."""
    users = sorted({job.user for job in view.jobs})
    total = sum(len(node.gpus) for node in view.nodes)
    return {user: total // len(users) + (number < total % len(users)) for number, user in enumerate(users)}


def _within(pool: Pool, job: JobView, most: int, left: int, empty: bool) -> int:
    """GPUs per node, at most `most`, that the share has `left` and enough nodes have free; 0 if none."""
    free = sorted((len(gpus) for gpus in pool.free.values()), reverse=True)
    numbers = job.allowed(min(most, free[job.nodes - 1])) if len(free) >= job.nodes else ()
    within = [number for number in numbers if number * job.nodes <= left]
    if within:
        return within[-1]
    return numbers[0] if numbers and empty else 0


class TetrisPerf:
    """Tetris with GENIE's predictions: each job on the placement with the highest rate.

    In the order of submission; a job that does not fit does not hold up those behind it, as Tetris packs what fits.
    """

    name = "tetris-perf"

    def __init__(self, theta: float = THETA) -> None:
        """`theta`: of eq. 10."""
        self._theta = theta

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        launch = Launch(view, self._theta)
        pool, platform = launch.pool, launch.platform
        for job in pool.queue():
            options = placements(job, platform)
            if not options:
                pool.refuse(job, impossible(pool, job) or NO_FIT)
                continue
            option = self.pick(options)
            if not launch.start(job, option.nodes, option.gpus, option.kind):
                needs = shape(option.nodes, option.gpus)
                pool.refuse(job, f"{self.words(option)}: needs {needs}, {launch.free(option.nodes, option.gpus)}")
        return pool.plan()

    def pick(self, options: tuple[PlacementOption, ...]) -> PlacementOption:
        """The placement that the job is to have; `options` by falling CER."""
        return max(options, key=lambda option: option.rate)

    def words(self, option: PlacementOption) -> str:
        """Why that one."""
        return f"is fastest at {option.rate:.3g} steps/s"


class TetrisCer(TetrisPerf):
    """As `TetrisPerf`, on the placement with the highest CER (eq. 11), whatever the deadline."""

    name = "tetris-cer"

    def pick(self, options: tuple[PlacementOption, ...]) -> PlacementOption:
        """The first: they are by falling CER."""
        return options[0]

    def words(self, option: PlacementOption) -> str:
        """Why that one."""
        return f"has most for its cost at {option.rate:.3g} steps/s"
