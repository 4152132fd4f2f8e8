"""Deadlines under objectives that aim for something else: a job that would soon be late comes before the others.

Under `deadline` all deadlines are planned for (deadline.py). Under any other objective a job with a deadline is like
all others until its slack is short against what it still needs. From then on it has one of the options on which it is
on time, as an overdue job has one, whoever must go for that; as long as such jobs take no more than SHARE of all GPUs,
the first due first. So what they cost the others is bounded. Who cannot be on time any more is not protected.
"""

from collections.abc import Callable
from dataclasses import replace

from hpcdl.adaptive.choice import Choice
from hpcdl.adaptive.deadline import CompletionTable, Prospect, TimeOfDay, outlook
from hpcdl.adaptive.options import Candidate, OptionMenu, only
from hpcdl.core.model.plan import View

SHARE = 1 / 4
"""Of all GPUs, for jobs that are protected; the first of them may have MOST."""

MOST = 1 / 2

MARGIN = 0.5
"""A job is at risk from when it could wait no longer than for so many times what it still needs."""

LEAST_MARGIN_S = 60.0


def with_deadlines(view: View, found: OptionMenu, choose: Callable[[View, OptionMenu], Choice]) -> Choice:
    """The objective's choice, in which jobs at risk have options on which they are on time."""
    if all(each.job.deadline is None for each in found.candidates):
        return choose(view, found)
    table = outlook(view, found)
    risky = sorted(table.prospects, key=lambda each: (each.due, each.job.id))
    first = _first([each for each in risky if _risk_at(each) <= view.now], sum(found.capacity))
    if first:
        candidates = tuple(
            _on_time(each, table, place) if each.job.id in first else each
            for place, each in enumerate(found.candidates)
        )
        found = replace(found, candidates=candidates, first=frozenset(first))
    choice = choose(view, found)
    times = [at for each in risky if (at := _risk_at(each)) > view.now]
    wakes = [at for at in (choice.wake_at, min(times, default=None)) if at is not None]
    clock = TimeOfDay(view.now)
    why = {
        number: f"due at {clock.text(each.due)}, at risk: {'comes first' if choice.options.get(number) else 'waits'}"
        for number, each in first.items()
    }
    return replace(choice, why={**choice.why, **why}, wake_at=min(wakes, default=None))


def _risk_at(each: Prospect) -> float:
    """From when the job is at risk."""
    return each.starts_by - MARGIN * max(LEAST_MARGIN_S, each.needs_s)


def _first(risky: list[Prospect], gpus: int) -> dict[int, Prospect]:
    """Those of the jobs at risk, the first due first, that are protected, by id."""
    found: dict[int, Prospect] = {}
    room = gpus * SHARE
    for each in risky:
        units = each.cheapest.units
        if units <= room or (not found and units <= max(1.0, gpus * MOST)):
            found[each.job.id] = each
            room -= units
    return found


def _on_time(each: Candidate, table: CompletionTable, place: int) -> Candidate:
    """The candidate with those of its options alone on which it is on time."""
    if each.fixed:
        return each
    marks = table.on_time[table.starts[place] : table.starts[place + 1]].tolist()
    return only(each, tuple(option for option, good in zip(each.options, marks, strict=True) if good))
