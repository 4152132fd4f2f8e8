"""The events of notices: due with what caused them, sent, failed, given up. See `events`."""

from dataclasses import dataclass

from hpcdl.core.eventbase import Event
from hpcdl.core.notice import NoticeKind


@dataclass(frozen=True, slots=True)
class NoticeDue(Event):
    """These destinations are to be told; in the same commit as what they are to be told of. `notice`: its number.

    `about`: a job's id, 0 for none.
    """

    notice: int
    what: NoticeKind
    about: int
    name: str
    destinations: tuple[str, ...]
    state: str = ""
    cause: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NoticesSent(Event):
    """A destination has taken these, in one message."""

    destination: str
    notices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoticesFailed(Event):
    """A destination did not take them: the `attempt`-th time in a row; the next one is at `retry_at`."""

    destination: str
    notices: tuple[int, ...]
    attempt: int
    why: str
    retry_at: float


@dataclass(frozen=True, slots=True)
class NoticesGivenUp(Event):
    """A destination will not be told of these: it has not taken them for too long."""

    destination: str
    notices: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class NoticesRetried(Event):
    """`hpcdl notices --retry`: what failed or was given up is due again, at once."""


@dataclass(frozen=True, slots=True)
class NoticeDropped(Event):
    """`hpcdl notices --drop`: nobody is to be told of it any more."""

    notice: int


NOTICE_EVENTS: tuple[type[Event], ...] = (
    NoticeDue,
    NoticesSent,
    NoticesFailed,
    NoticesGivenUp,
    NoticesRetried,
    NoticeDropped,
)
"""The events of notices."""
