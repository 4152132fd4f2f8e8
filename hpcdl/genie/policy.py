"""GENIE's scheduling policy: Algorithm 1 of the paper (section 5.4).

Jobs with the shortest waiting allowance first, each on its cheapest placement that is on time. What runs is never
suspended. model.py has the equations, start.py the starts and the words.
"""

from dataclasses import dataclass

from hpcdl.core.model.plan import ANY_OBJECTIVE, JobView, Plan, View
from hpcdl.genie.model import THETA, PlacementOption, expected_at, hopeful_latency, latency, placements
from hpcdl.genie.start import NO_FIT, Launch, allowance_words, shape
from hpcdl.placement.pool import impossible


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A waiting job: s_i*, its chosen placement; e_i, when it is expected; w_i, its waiting allowance in seconds."""

    job: JobView
    option: PlacementOption
    due: float | None
    allowance: float | None


class Genie:
    """The policy `genie`, Algorithm 1 line by line:

    ```
     1  for each waiting job i                      `choose`
     2    obtain its ECT e_i                        `model.expected_at` (eq. 9)
     3    generate all its placements M_i           `model.placements`, by falling CER (line 7, eq. 10 and 11)
     5    for each placement
     6      its latency l_ij                        `model.latency` (eq. 4)
     8      if it satisfies e_i                     now + l_ij <= e_i (eq. 12)
    10    if any satisfies e_i                      `_select`
    11      the one of these with the highest CER
    12    else
    13      the one of all with the highest CER
    14    waiting allowance w_i                     e_i - (l_i* + now) (eq. 13)
    15  reorder by shortest waiting allowance       `decide`; equal ones in the order of submission
    16  launch in that order                        "the scheduler [...] launches the tasks according to the reordered
                                                    waiting queue", on the placement chosen above or not at all
    ```
    "Each task under a placement runs to completion without the GPU preemption mechanism" (section 6): what runs keeps
    its GPUs, and nothing is suspended.

    Where the paper is silent. A job that does not fit does not hold up those behind it: with a queue that stops at its
    first job, GENIE is worse by far in its own figures. Of the nodes with enough free GPUs it takes those with the
    fewest left over, as the cost of section 5.2.2 is there against fragments. On a cluster with several types of GPU a
    placement has one of them, and N and G of eq. 10 are those of the whole. A job whose latency is not known counts
    with its deadline alone; without a deadline either, it comes last. A job without a deadline is normal. Nothing is
    kept free for a job that needs much at once, so it can wait for as long as smaller ones keep coming.
    """

    name = "genie"
    deadlines = ANY_OBJECTIVE

    def __init__(self, theta: float = THETA) -> None:
        """`theta`: of eq. 10; the higher, the fewer nodes a placement has."""
        self._theta = theta

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        launch = Launch(view, self._theta)
        pool = launch.pool
        queue: list[WaitingJob] = []
        for job in pool.queue():
            options = placements(job, launch.platform)
            if options:
                queue.append(choose(job, options, view.now))
            else:
                pool.refuse(job, impossible(pool, job) or NO_FIT)
        # Line 15, within each priority; sorting is stable.
        queue.sort(key=lambda each: (-each.job.priority, each.allowance is None, each.allowance or 0.0))
        for each in queue:
            option = each.option
            if not launch.start(each.job, option.nodes, option.gpus, option.kind):
                needs = f"{shape(option.nodes, option.gpus)}, {launch.free(option.nodes, option.gpus)}"
                pool.refuse(each.job, f"{allowance_words(each.job, each.allowance)}; needs {needs}")
        return pool.plan()


def choose(job: JobView, options: tuple[PlacementOption, ...], now: float) -> WaitingJob:
    """The placement and waiting allowance of one job (lines 2 to 14); `options`: by falling CER, at least one."""
    due = expected_at(job)
    option = _select(job, options, now, due)
    if due is None:
        return WaitingJob(job, option, None, None)
    return WaitingJob(job, option, due, due - (now + (latency(job, option, now) or 0.0)))


def _select(job: JobView, options: tuple[PlacementOption, ...], now: float, due: float | None) -> PlacementOption:
    """Lines 5 to 13. Where none satisfies e_i, one that well may: little may be known of the job's rate."""
    if due is None or due <= now:
        return options[0]
    for seconds_of in (latency, hopeful_latency):
        for option in options:
            seconds = seconds_of(job, option, now)
            if seconds is None or now + seconds <= due:
                return option
    return options[0]
