"""The SIGKILL of a preemption test (`hpcdl drill`): to all that trains here, in the middle of a save, or at once.

Nothing but the processes of this attempt is killed, once, and only while the order is in time.
"""

from __future__ import annotations

import os
import signal

from hpcdl.agent.supervisor import packets, processes
from hpcdl.agent.supervisor.ranks import TrainerProcesses, send_all
from hpcdl.agent.supervisor.termination import Recorder

SOONER = 0.25  # of the time before: the last save was over before the kill


class DrillKill:
    """The kill that a preemption test has ordered: at most one is in store. Times are the supervisor's clock's."""

    def __init__(self, trainer: TrainerProcesses, record: Recorder) -> None:
        self._trainer = trainer
        self._record = record
        self._order: packets.DrillPacket | None = None
        self._heard = ""
        self._after_s = 0.0
        self._until = 0.0
        self.due: float | None = None
        self.killed = False

    def order(self, order: packets.DrillPacket, now: float) -> None:
        """Takes the place of an earlier order; the same one again changes nothing."""
        if order.id == self._heard or self.killed:
            return
        self._heard = order.id
        self._order, self._after_s, self._until = order, order.after_s, now + order.within_s
        self.due = None if order.saving else now
        self.look(now)

    def forget(self) -> None:
        """The trainer is to end for another reason."""
        self._order = self.due = None

    def saving(self, now: float) -> None:
        """A save begins."""
        if self._order is not None and self._order.saving:
            if now < self._until:
                self.due = now + self._after_s
            self.look(now)

    def saved(self) -> None:
        """The save is durable, or has failed: it was too quick for us."""
        if self._order is not None and self._order.saving and self.due is not None:
            self.due = None
            self._after_s *= SOONER

    def look(self, now: float) -> None:
        """Once a turn, and whenever it may be due."""
        if self._order is None:
            return
        if self.due is not None and now >= self.due:
            self._strike("in the middle of a save" if self._order.saving else "between two saves")
        elif now >= self._until:
            self.forget()

    def _strike(self, when: str) -> None:
        self.forget()
        self.killed = True
        # Those that save come first: to look for all the others takes as long as a small checkpoint.
        ranks = [each for rank in self._trainer.living_ranks if (each := processes.process_of(rank.pid)) is not None]
        hit = send_all(ranks, signal.SIGKILL)
        others = [each for each in self._trainer.processes() if each.pid not in hit and each.pid != os.getpid()]
        hit += send_all(others, signal.SIGKILL)
        self._record("signalled", signal=signal.SIGKILL.name, pids=hit, handled=[])
        self._record("note", text=f"killed by a preemption test, {when}")
