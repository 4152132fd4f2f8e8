"""When a job with a deadline is expected to miss it, having been expected to meet it: a pure decision from forecasts.

It is reported once: not again until the forecasts had it well on time in between.
"""

from collections.abc import Iterable

from hpcdl.core.model.commands import DeadlineForecast
from hpcdl.core.model.events import DeadlineForeseen, DeadlineSlipped
from hpcdl.core.model.units import seconds_text
from hpcdl.core.model.world import RESTARTED, Job, World

MISSES = 0.5
"""A job whose deadline is met with a smaller probability is expected to miss it, ..."""

MEETS = 0.75
"""... and once it is, to meet it again only from this one on."""


def deadline_events(
    world: World, outlooks: Iterable[DeadlineForecast], now: float
) -> list[DeadlineForeseen | DeadlineSlipped]:
    """What is news of these forecasts. A deadline that is over is missed, whatever was predicted."""
    found: list[DeadlineForeseen | DeadlineSlipped] = []
    # Agents that have not called since the daemon's start may be about to: what they have is missing in the forecast.
    blind = any(node.reason == RESTARTED and not (node.connected or node.lost) for node in world.nodes.values())
    for outlook in outlooks:
        job = world.jobs.get(outlook.job)
        if job is None or job.finished or job.cancelling or job.spec.deadline is None:
            continue
        passed = now > job.spec.deadline
        if blind and not passed:
            continue
        chance, ends_at, known = 0.0 if passed else outlook.probability, outlook.ends_at, job.expectation
        if known is None and passed:
            continue  # nobody expected anything
        if known is None:
            found.append(DeadlineForeseen(job.id, chance >= MISSES, chance, ends_at))
        elif known.meets and chance < MISSES:
            found.append(DeadlineSlipped(job.id, chance, ends_at, passed))
        elif not known.meets and chance >= MEETS:
            found.append(DeadlineForeseen(job.id, True, chance, ends_at))
    return found


def deadline_text(job: Job, event: DeadlineSlipped) -> str:
    """In words: `it is met with a probability of 12 %; if nothing else comes, the job is done 40 min 10 s after it`."""
    late = ""
    if event.ends_at is not None and job.spec.deadline is not None:
        after_s = event.ends_at - job.spec.deadline
        when = f"{seconds_text(abs(after_s))} {'after' if after_s >= 0 else 'before'} it"
        late = f"if nothing else comes, the job is done {when}"
    if event.passed:
        return late
    chance = f"it is met with a probability of {min(99, round(100 * event.probability))} %"
    if event.probability == 0.0:
        chance = "it cannot be met any more"
    return f"{chance}; {late}" if late else chance
