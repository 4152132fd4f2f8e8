"""BFTrainer's baseline (section 5.1): the nodes are split equally among the trainers."""

from collections.abc import Sequence

from hpcdl.core.plan import Plan, View
from hpcdl.milp.case import Candidate, Case, case_of
from hpcdl.milp.decided import Decided
from hpcdl.milp.policy import planned
from hpcdl.milp.reallocation import Reallocation


class EqualShare:
    """As many nodes for each of the parallel trainers as for any other, between its fewest and its most.

    FCFS as `bftrainer`; what a rescale costs does not matter. Where nodes do not suffice for the fewest of all, the
    first ones have theirs; what is left of an equal split goes to the first ones too. With several groups of nodes a
    trainer stays in its own, and one that starts goes where most nodes are left for each.
    """

    name = "equal-share"

    def __init__(self, settings: Reallocation | None = None) -> None:
        self.settings = settings or Reallocation()

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        case = case_of(view, self.settings.parallel)
        counts, groups = shares(case)
        return planned(case, Decided(counts, groups, 0.0))


def shares(case: Case) -> tuple[list[int], list[int | None]]:
    """Nodes and group of each candidate."""
    capacities = case.capacities
    members: list[list[int]] = [[] for _ in capacities]
    counts = [0] * len(case.candidates)
    groups: list[int | None] = [None] * len(counts)
    left = list(capacities)
    order = sorted(range(len(counts)), key=lambda number: not case.candidates[number].must)
    for number in order:
        each = case.candidates[number]
        fitting = [at for at, gpus in enumerate(each.its.takes) if gpus and left[at] >= each.job.nodes]
        if not fitting:
            continue
        at = max(fitting, key=lambda at: (at == each.group, capacities[at] / (1 + len(members[at])), -at))
        left[at] -= each.job.nodes
        members[at].append(number)
    for at, numbers in enumerate(map(sorted, members)):
        given = _split([case.candidates[number] for number in numbers], capacities[at])
        for number, many in zip(numbers, given, strict=True):
            counts[number], groups[number] = many, at if many else None
    return counts, groups


def _split(sharers: Sequence[Candidate], nodes: int) -> list[int]:
    """Each its fewest, then to whoever has least; of equals the first. There are enough for the fewest of all."""
    given = [each.job.nodes for each in sharers]
    left = nodes - sum(given)
    while left > 0:
        open_to = [at for at, each in enumerate(sharers) if given[at] < each.job.nodes_max]
        if not open_to:
            break
        least = min(given[at] for at in open_to)
        lowest = [at for at in open_to if given[at] == least]
        # Up to the next level all of them rise together.
        above = [given[at] for at in open_to if given[at] > least]
        room = min([sharers[at].job.nodes_max - least for at in lowest] + [each - least for each in above])
        rise = min(room, left // len(lowest))
        if rise:
            for at in lowest:
                given[at] += rise
            left -= rise * len(lowest)
        else:
            for at in lowest[:left]:
                given[at] += 1
            left -= min(left, len(lowest))
    return given
