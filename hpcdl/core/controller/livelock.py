"""Plans that alternate at one moment: a policy that takes back what it has just decided, again and again.

Where a change takes no time, as in a simulation without costs, such a policy would never let time pass. So the
Controller asks here before it adopts a change. Of plans that came back TURNS times at one moment none is adopted any
more until something else happens, or the policy wants yet another plan. Knows neither policies nor the world's rules.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.units import fold_nodes
from hpcdl.core.model.world import Target

TURNS = 3
"""A plan may come back so often: what a plan brings about may make its policy think twice, but not for ever."""

MOMENT_S = 10.0
"""Changes that follow one another this closely are of one moment: in a simulation all of them are at the same time, in
the daemon requests take some. Policies that give GPUs in turns do so in minutes."""

MOST_NAMED = 4
"""Jobs that are named of a plan."""

_Plan: TypeAlias = tuple[frozenset[tuple[int, Placement | None]], tuple[int, ...]]
"""What the jobs are to hold that plans of this moment changed, and which jobs are started ahead."""


class LivelockGuard:
    """The changes of plan of one moment, and whether they go round in a circle."""

    def __init__(self) -> None:
        self._at = 0.0  # of the last change
        self._held: dict[int, Placement | None] = {}  # by each job that plans of this moment changed
        self._times: Counter[_Plan] = Counter()
        self._last: _Plan = (frozenset(), ())
        self._circle: frozenset[_Plan] = frozenset()  # none of these is adopted

    def forget(self) -> None:
        """Something happened that no plan brought about."""
        self._held.clear()
        self._times.clear()
        self._circle = frozenset()

    def refusal(
        self, targets: Mapping[int, Target], changed: Sequence[Target], warm: tuple[int, ...], now: float
    ) -> str | None:
        """Why this change is not adopted, in a line that names two plans; None: it is, and counts as one.

        `targets`: of the plan that is in force; `changed`: those that the new one gives something else.
        """
        if self._times and not self._circle and now - self._at > MOMENT_S:
            self.forget()
        for target in changed:
            if target.job not in self._held:
                before = targets.get(target.job)
                self._held[target.job] = None if before is None else before.placement
        wanted = {**self._held, **{target.job: target.placement for target in changed}}
        plan = (frozenset(wanted.items()), warm)
        if self._circle and plan not in self._circle:
            self.forget()
        if not self._circle and self._times[plan] >= TURNS:
            self._circle = frozenset(each for each, times in self._times.items() if times >= TURNS)
        if self._circle:
            return (
                "alternates between two plans at one moment, and the first is kept until something else happens: "
                f"{_words(self._last, plan)} or {_words(plan, self._last)}"
            )
        self._at, self._held, self._last = now, wanted, plan
        self._times[plan] += 1
        return None


def _words(plan: _Plan, other: _Plan) -> str:
    """`job 59 on n1 x 2 with job 82 on n1 x 2`: what the plan gives jobs otherwise than the other one does."""
    jobs = sorted(plan[0] - other[0], key=lambda entry: entry[0])
    named = [f"job {job} {_place(placement)}" for job, placement in jobs[:MOST_NAMED]]
    if len(jobs) > MOST_NAMED:
        named.append(f"{len(jobs) - MOST_NAMED} more")
    if not jobs:
        named.append(f"{_numbers(plan[1], 'job ')} started ahead")
    return " with ".join(named)


def _place(placement: Placement | None) -> str:
    if placement is None:
        return "without GPUs"
    if len(placement.shares) == 1:
        gpus = placement.shares[0].gpus
        return f"on {placement.nodes[0]} x {len(gpus)} (GPU {_numbers(gpus)})"
    return f"on {fold_nodes(placement.nodes)} x {placement.per_node}"


def _numbers(numbers: Iterable[int], what: str = "") -> str:
    return ", ".join(f"{what}{number}" for number in numbers) or "none"
