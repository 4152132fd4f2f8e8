"""Priorities that users give, under every objective: what they weigh, and who may not start before whom.

A weight for the objectives that sum worth (`weights`), a rank among overdue jobs (`required`), and a bar for starts
(`by_priority`), which wraps any objective. A priority never takes GPUs from a running job by itself.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.options import Candidate, Floats, OptionMenu
from hpcdl.core.model.plan import View

DOUBLES = 10.0
"""A job whose priority is higher by this much weighs twice as much."""

LEAST = 1e-9
"""The least weight, as a share of that of the highest priority: smaller ones would be lost in sums."""


def weights(found: OptionMenu) -> Floats:
    """What each candidate's priority makes of its weight, against the highest: 1 where all have the same."""
    priorities = np.array([candidate.job.priority for candidate in found.candidates], dtype=np.float64)
    return np.asarray(np.maximum(2.0 ** ((priorities - priorities.max(initial=0.0)) / DOUBLES), LEAST))


def differ(found: OptionMenu) -> bool:
    """Whether there are several priorities."""
    return len({candidate.job.priority for candidate in found.candidates}) > 1


def required(found: OptionMenu, due: list[Candidate]) -> list[int]:
    """The ids of overdue jobs, with those of a higher priority than some of them; the highest first."""
    if due and differ(found):
        least = min(candidate.job.priority for candidate in due)
        overdue = {candidate.job.id for candidate in due}
        due = due + [each for each in found.candidates if each.job.priority > least and each.job.id not in overdue]
        due.sort(key=lambda candidate: -candidate.job.priority)  # stable: the overdue ones stay before their equals
    return [each.job.id for each in due if each.options]


def by_priority(view: View, found: OptionMenu, choose: Callable[[View, OptionMenu], Choice]) -> Choice:
    """The objective's choice, in which no job starts while one of a higher priority waits that fits somewhere.

    Jobs that hold GPUs come and go as the objective says: a priority takes nothing from a job that runs, unless the
    objective would for the sake of the greater weight.
    """
    choice = choose(view, found)
    for priority in sorted({candidate.job.priority for candidate in found.candidates}, reverse=True)[:-1]:
        waits = any(
            each.job.priority == priority and each.options and choice.options.get(each.job.id) is None
            for each in found.candidates
        )
        barred = {
            each.job.id
            for each in found.candidates
            if each.job.priority < priority and each.kept is None and not each.fixed
        }
        if waits and any(choice.options.get(number) is not None for number in barred):
            some = OptionMenu(found.pools, tuple(each for each in found.candidates if each.job.id not in barred))
            choice = choose(view, some)
            return replace(choice, options=dict(choice.options) | dict.fromkeys(barred))
    return choice
