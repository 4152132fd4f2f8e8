"""The events of deadlines: what is expected of them, by forecasts. See `events`."""

from dataclasses import dataclass

from hpcdl.core.eventbase import JobEvent


@dataclass(frozen=True, slots=True)
class DeadlineForeseen(JobEvent):
    """Whether the job is expected to meet its deadline: for the first time, or again after it had slipped.

    `probability` that it is met; `ends_at`: when the job would be done if nothing else came, None: not in sight.
    """

    meets: bool
    probability: float
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class DeadlineSlipped(JobEvent):
    """It was expected to meet its deadline, and is not any more; `passed`: the deadline is over already."""

    probability: float
    ends_at: float | None = None
    passed: bool = False


DEADLINE_EVENTS = (DeadlineForeseen, DeadlineSlipped)
"""The events of this module."""
