"""The parts of the modelled cluster: a journal that can fail, how trainers behave, and what an agent remembers."""

from dataclasses import dataclass, field
from typing import Any

from hpcdl.core.controller.journal import JournalError, MemoryJournal
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Placement
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo

PLAIN = Profile("plain", ((1, 1, 1.0), (1, 2, 2.0)), startup_s=3.0, save_s=2.0, resume_s=4.0)


class FlakyJournal(MemoryJournal):
    """A journal whose next `failing` commits fail. `commits`: the kinds of the events of each that did not."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = 0
        self.commits: list[list[str]] = []

    def append(self, events: Any, requests: Any = (), settled: Any = ()) -> Any:
        if self.failing:
            self.failing -= 1
            raise JournalError("no space left on device")
        self.commits.append([type(event).__name__ for _, event in events])
        return super().append(events, requests, settled)

    def copy(self) -> "FlakyJournal":
        """A journal with the same content, as another process would read it."""
        other = FlakyJournal()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, list | dict) else value)
        return other


@dataclass(slots=True)
class Conduct:
    """How a job's trainer behaves. `fails`: exit codes of its first runs, 5 steps in."""

    fails: list[int] = field(default_factory=list)
    saves_slowly: bool = False
    never_answers: bool = False
    gate_fails: bool = False


@dataclass(slots=True)
class Trainer:
    """One incarnation on all its nodes; `parts`: whether each is still there."""

    job: int
    number: int
    parts: dict[str, bool]
    placement: Placement | None = None
    arrived: set[str] = field(default_factory=set)
    step: float = 0.0
    since: float | None = None
    stopping: bool = False
    turn: int = 0


@dataclass(slots=True)
class Agent:
    """A node's agent: its report log, what it took, and whether the daemon hears it."""

    node: str
    gpus: list[GpuInfo]
    boot: int = 1
    connected: bool = False
    log: list[ev.Event] = field(default_factory=list)
    sent: int = 0
    taken: set[tuple[int, int, str, int]] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)
    last_request_at: float = 0.0
    calls: int = 0
    fault: dict[str, Any] | None = None  # why nothing can be started there: of an `Exited`
