"""Notifications: what people hear of their jobs, at which destinations, and which are still to be delivered.

Values only. `rules/notices.py` decides which events people hear of, `daemon/delivery` delivers. A destination may hold
a password: what is shown of it goes through `redacted`.
"""

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum

from hpcdl.core.model.units import one_of

MOST = 8
"""Destinations that one job may name."""

LONGEST = 2_000
"""Characters of one destination."""

POISON = "poison guard"
"""How the detail of a job begins that failed in the same way too often."""


PASSED = "passed"
"""The cause of a notice about a deadline that is over."""

LOST = "lost"
"""The cause of a notice about a checkpoint that a job did not find, so that it begins at step 0, or is held there."""

BEHIND = "behind"
"""The cause of a notice about a job that goes on behind what was saved."""


class NoticeKind(StrEnum):
    """What a notice is about."""

    END = "end"
    FAILURE = "failure"
    POISON = "poison"
    PREEMPTION = "preemption"
    STALL = "stall"
    GPU = "gpu"
    DEADLINE = "deadline"
    DAMAGE = "damage"
    IDLE = "idle"


_ADDRESS = re.compile(
    r"[A-Za-z0-9_+][A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{0,63}@[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"
)
URL = re.compile(
    r"https?://(?P<user>[^/?#\s@]*@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?#].*)?"
)
"""An http(s) URL; `user`: what stands before an @, a password among it."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(?i:mailto|https?):")


def check_destinations(destinations: tuple[str, ...]) -> None:
    """Raises ValueError unless each is a command, `mailto:ADDRESS` or an http(s) URL that a notice can go to."""
    if len(destinations) > MOST:
        raise ValueError(f"a job may name {MOST} destinations for its notifications, got {len(destinations)}")
    for text in destinations:
        _check(text)


def _check(text: str) -> None:
    if not text.strip() or len(text) > LONGEST or not text.isprintable():
        raise ValueError(f"a destination of notifications must have 1 to {LONGEST} printable characters")
    if text.startswith("mailto:"):
        if not _ADDRESS.fullmatch(address_of(text)) or ".." in text:
            raise ValueError("notifications: mailto: needs one plain address, mailto:me@example.org")
    elif text.startswith(("http://", "https://")):
        found = URL.fullmatch(text)
        if found is None or not text.isascii() or " " in text or int(found["port"] or 1) not in range(1, 65_536):
            raise ValueError("notifications: that URL cannot be understood: give https://host[:port]/path")
    elif _SCHEME.match(text):
        raise ValueError("notifications go to a command, mailto:ADDRESS, http://… or https://…")
    else:
        program_of(text)


def program_of(command: str) -> tuple[str, bool]:
    """The program that a shell command begins with, and whether more follows. Raises ValueError for open quotes.

    Variables that are set before it are left out: their values may be secret.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"notifications: a shell cannot read that command: {str(error).lower()}") from None
    program = next((word for word in words if word and "=" not in word), "")
    return program, words != [program]


def address_of(destination: str) -> str:
    """The address of a destination that begins with `mailto:`."""
    return destination.removeprefix("mailto:")


def is_command(destination: str) -> bool:
    """Whether it is one, and neither an address nor a URL."""
    return not destination.startswith(("mailto:", "http://", "https://"))


def redacted(destination: str) -> str:
    """As much of a destination as anybody may see: no user, password, path or query of a URL, no arguments."""
    if destination.startswith("mailto:"):
        return destination
    if destination.startswith(("http://", "https://")):
        found = URL.fullmatch(destination)
        scheme = destination.partition(":")[0]
        if found is None:
            return f"{scheme}://…"
        port = f":{found['port']}" if found["port"] else ""
        more = "/…" if found["path"] not in (None, "/") or found["user"] else ""
        return f"{scheme}://{found['host']}{port}{more}"
    try:
        program, longer = program_of(destination)
    except ValueError:
        return "…"
    return f"{program} …".strip() if longer else program


@dataclass(frozen=True, slots=True)
class NoticeRules:
    """Which notifications are sent, and where to."""

    destinations: tuple[str, ...] = ()  # for jobs that name none
    kinds: frozenset[str] = frozenset(NoticeKind)  # others are not sent to anybody

    def __post_init__(self) -> None:
        check_destinations(self.destinations)
        unknown = sorted(self.kinds - set(NoticeKind))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no kind of notification; {one_of(unknown[0], list(NoticeKind))}")


def rules_of(destinations: str | None, kinds: str) -> NoticeRules:
    """The rules that the settings `notify` (with `;` between) and `notify_on` (with commas) amount to.

    Raises ValueError.
    """
    to = tuple(each.strip() for each in (destinations or "").split(";") if each.strip())
    return NoticeRules(to, frozenset(each.strip() for each in kinds.split(",") if each.strip()))


_FOUND = {LOST: "found no checkpoint", BEHIND: "found an older checkpoint"}
"""What a notice about damage says of a job, by its cause; what is not here is a checkpoint that is damaged."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification. State, cause and detail are as they were when it happened."""

    id: int
    what: NoticeKind
    job: int  # 0: it is about no job
    name: str  # of the job, or what else it is about
    state: str
    cause: str
    detail: str
    at: float  # when it happened, the daemon's time
    waiting: tuple[str, ...]  # destinations that have not had it
    given_up: tuple[str, ...] = ()  # destinations that never will

    @property
    def text(self) -> str:
        """One line for people."""
        about = f"job {self.job} ({self.name})" if self.job else self.name
        state = {
            NoticeKind.STALL: "makes no progress",
            NoticeKind.DAMAGE: _FOUND.get(self.cause, "found a damaged checkpoint"),
            NoticeKind.IDLE: "leaves GPUs idle",
            NoticeKind.PREEMPTION: f"was interrupted ({self.cause})",
            NoticeKind.DEADLINE: f"{'has missed' if self.cause == PASSED else 'is likely to miss'} its deadline",
        }
        said = f"{about} {state.get(self.what, f'is {self.state}')}"
        return f"{said}: {self.detail}" if self.detail else said


@dataclass(frozen=True, slots=True)
class Route:
    """A destination that does not take its notifications. Times are the daemon's."""

    failed: int  # attempts in a row
    since: float  # the first of them
    retry_at: float  # the next is not before
    why: str  # what the last one met, in words
