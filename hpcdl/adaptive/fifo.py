"""The order of start, kept: no job starts before one that was submitted earlier and could have started instead."""

from collections.abc import Callable
from dataclasses import replace

from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.options import Found
from hpcdl.core.plan import View


def in_order(view: View, found: Found, choose: Callable[[View, Found], Choice]) -> Choice:
    """The objective's choice with as many of the first unstarted jobs as it gives GPUs to, and no later ones.

    Jobs that have been started before come and go as the objective says. Of the first unstarted jobs one that fits
    nowhere, even in an empty cluster, stops nobody.
    """
    fresh = [each.job.id for each in found.candidates if each.job.started_at is None and each.options]
    allowed = len(fresh)
    while True:
        barred = set(fresh[allowed:])
        some = Found(found.pools, tuple(each for each in found.candidates if each.job.id not in barred))
        choice = choose(view, some)
        missing = next((at for at, number in enumerate(fresh[:allowed]) if choice.options[number] is None), allowed)
        later = any(choice.options[number] is not None for number in fresh[missing:allowed])
        if not later:
            options = dict(choice.options) | dict.fromkeys(barred)
            return replace(choice, options=options)
        # Someone starts before the one at `missing`. It might start instead of them: they are barred.
        allowed = max(missing + 1, _first_later(choice, fresh, missing, allowed))


def _first_later(choice: Choice, fresh: list[int], missing: int, allowed: int) -> int:
    """Where the first job stands that was given something after `missing`."""
    return next(at for at in range(missing, allowed) if choice.options[fresh[at]] is not None)
