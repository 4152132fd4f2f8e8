"""What follows a trainer's last step: the end of its script, which is a part of the job, and then its teardown."""

from __future__ import annotations

import os

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.exit_cause import SHELL_SIGNALLED
from hpcdl.agent.supervisor.ranks import TrainerProcesses
from hpcdl.agent.supervisor.watchdog import Watchdog

SHELLS = frozenset({"sh", "ash", "bash", "busybox", "dash", "fish", "ksh", "zsh"})

TICKS = os.sysconf("SC_CLK_TCK")  # of a second

MOMENT_S = 0.2  # in which a shell's next command comes to nothing

WATCH_S = 10.0  # after the scripts' ends, in which a next command would begin


class Teardown:
    """Whether what still runs of a trainer is only on its way out: all of its ranks have come to the ends of their
    scripts, and no process was started since. A shell goes on with its next command, and its code is that one's."""

    def __init__(self, trainer: TrainerProcesses) -> None:
        self._trainer = trainer
        self._newest = 0.0  # when the newest process was started, seconds after boot
        self._shell = False  # the main process is one
        self._rank_at: float | None = None  # when a rank was last seen to run
        self._since: float | None = None  # when it was first seen that all ranks had left

    def look(self, now: float) -> None:
        """Once a turn while the main process runs."""
        if self._trainer.left_at is None:
            return
        self._since = now if self._since is None else self._since
        if self._trainer.living_ranks:
            self._rank_at = now
        below = self._trainer.below()
        self._newest = max([self._newest, *(each.start_ticks / TICKS for each in below)])
        self._shell = self._trainer.main is not None and processes.name_of(self._trainer.main) in SHELLS

    def starts(self, now: float) -> bool:
        """Whether to look often: what is started and ends between two looks is not seen."""
        return self._trainer.left_at is not None and (self._since is None or now - self._since < WATCH_S)

    def begun(self, code: int | None, now: float) -> bool:
        """`code`: with which the main process has ended; None: a signal ended it, or it runs. One other than 0 says
        nothing where it is a launcher's, or where a shell has it of a rank that a signal ended; else it is its own."""
        left_at = self._trainer.left_at
        if left_at is None or self._newest > left_at:
            return False
        if code == 0:
            return True
        if self._shell:
            signalled = code is None or code > SHELL_SIGNALLED
            return signalled and self._rank_at is not None and now - self._rank_at <= MOMENT_S
        return code is None or self._trainer.main not in self._trainer.ranks


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
