"""What follows a trainer's last step: the end of its script, which is a part of the job, and then its teardown."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdl.agent.supervisor.ranks import TrainerProcesses
from hpcdl.agent.supervisor.watchdog import Watchdog
from hpcdl.core.rules.launchers import SHELLS, launcher_of

OWN_LAUNCHER = "hpcdl.trainer.ranks"


def in_teardown(trainer: TrainerProcesses, code: int | None) -> bool:
    """Whether what still runs of a trainer, or ended last, is only on its way out: all of its ranks have come to the
    ends of their scripts. `code`: with which the main process has ended; None: a signal ended it, or it runs. One other
    than 0 says nothing where it is a launcher's; a shell, or a script that starts another, has more to do than that."""
    if not trainer.left:
        return False
    if trainer.main in trainer.ranks:
        return not code
    return code == 0 or trainer.by_launcher


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command does nothing but start ranks and wait for them. A shell may have other commands, too."""
    shell = any(word.rpartition("/")[2] in SHELLS for word in words)
    return OWN_LAUNCHER in words or (bool(launcher_of(words)) and not shell)


STILL = 0.02
"""Of a CPU for each rank. The threads of one that hangs wait with timeouts, which costs less."""

LOOK_S = 10.0


class Lingering:
    """A trainer that said that it is done and then stands still for ever: it would hold its GPUs for as long.

    `patience_s`: how long it may neither end, nor write output, nor use a CPU; who exports or evaluates does one of
    these. Times are the supervisor's clock's.
    """

    def __init__(self, log: str, patience_s: float) -> None:
        self._ranks = 0  # that are done
        self._writer = False  # is among them
        self._step = 0  # at which they were
        self._log = log
        self._patience_s = patience_s
        self._stillness = Watchdog(log, 0.0)
        self._next_look = 0.0

    @property
    def done(self) -> bool:
        """The rank that writes checkpoints said that training is complete. Another one's word says nothing of that: it
        may not wait for the writer, which may still train, or be killed as it saves."""
        return self._writer

    def trained(self, step: int) -> None:
        """A rank has come to this step: beyond the last one it is another training of the same program."""
        if step > self._step:
            self._ranks, self._writer = 0, False

    def said_done(self, step: int, now: float, writer: bool) -> None:
        """A rank says it. `writer`: the one that writes checkpoints."""
        self._ranks += 1
        self._writer = self._writer or writer
        self._step = max(self._step, step)
        self._stillness = Watchdog(self._log, now, STILL * self._ranks)
        self._next_look = now

    def over(self, supervisor: int, now: float) -> bool:
        """Once a turn while the main process runs: true when it has stood still for too long."""
        if not self.done or now < self._next_look:
            return False
        self._next_look = now + min(LOOK_S, self._patience_s / 4)
        self._stillness.look(supervisor, now)
        _, still_s, _ = self._stillness.measured(now)
        return still_s is not None and still_s >= self._patience_s
