"""The trainer's processes: the first one, the ranks that attached, and whatever they started.

Who belongs to the trainer is known by its tag or by being below this supervisor, never by a pid that somebody sent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.packets import AttachPacket, FromRank, GatePacket, JoinPacket, OpenedPacket
from hpcdl.agent.supervisor.process_file import ProcessFile
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor.side_channel import SideChannelClient

KILL_S = 0.1  # of one attempt to end what forks as fast as it is killed
RUNS = ("started", "attached", "ready")
WORLD_VARIABLE = "WORLD_SIZE"


def world_of(pid: int) -> int | None:
    """The number of ranks in all, as torchrun gave it to a process."""
    found = processes.variable(pid, WORLD_VARIABLE)
    return int(found) if found is not None and found.isdecimal() else None


class Rank:
    """A process of the trainer that attached. It keeps its pid over an exec, and then attaches again."""

    def __init__(self, attach: AttachPacket, connection: SideChannelClient) -> None:
        self.pid = attach.pid
        self.number = attach.rank
        self.membership = attach.membership
        self.connection: SideChannelClient | None = connection
        self.gated = False
        # An older hpcdl.trainer does not say when its loop begins, so it may be in it all the time.
        self.loops = not attach.says_loop
        self.ready_step: int | None = None
        self.ready_at = 0.0
        self.trained_before: float | None = None  # when others were last heard to train, once it was ready itself
        self.saving = False
        self.left = False  # its script has come to its end
        self.was_killed = False  # it was seen to end by SIGKILL
        self.world = world_of(attach.pid)
        self._start_ticks = processes.start_ticks(attach.pid)  # None: it is gone already, what it said still counts

    def hear(self, packet: FromRank) -> None:
        """Whatever a rank says but this, it says from its training loop."""
        self.loops = self.loops or not isinstance(packet, GatePacket | OpenedPacket | JoinPacket)

    @property
    def alive(self) -> bool:
        return self._start_ticks is not None and processes.start_ticks(self.pid) == self._start_ticks

    @property
    def killed(self) -> bool:
        """It has ended by SIGKILL, and whoever started it has not taken note yet."""
        return self._start_ticks is not None and processes.killed(self.pid, self._start_ticks)

    def catches(self, number: signal.Signals) -> bool:
        return self.alive and processes.catches(self.pid, number)


class TrainerProcesses:
    """The processes of one incarnation, below this supervisor or tagged."""

    def __init__(self, tag: str, folder: int) -> None:
        """`folder`: a descriptor of the run folder, where they are recorded for who comes after this supervisor."""
        self._tag = tag
        self._file = ProcessFile(folder)
        self.main: int | None = None
        self.status: int | None = None  # as waitpid gives it, once the main process has ended
        self.ranks: dict[int, Rank] = {}
        self.attached = False  # a rank ever did
        self.by_launcher = False  # what started its ranks does nothing else

    def look(self, now: float) -> None:
        """Once a turn: who has ended, and who runs now, which is recorded."""
        self.reap()
        self._file.look([os.getpid()], now)

    @property
    def due(self) -> float | None:
        """When `look` is to be called, if that is soon."""
        return self._file.due

    def before(self, kind: str, now: float) -> None:
        """A record of this kind is about to be made: who hears that it runs may kill this supervisor next."""
        if kind in RUNS:
            self._file.look([os.getpid()], now, at_once=True)

    def kill_rest(self) -> None:
        """What starts another and ends before anybody sees it; once the others, and the main process, were killed."""
        processes.kill_own_children(lambda pid: pid == self.main, self._reap_others, KILL_S)

    def _reap_others(self) -> None:
        for pid in processes.children_of(os.getpid()):
            if pid != self.main:
                os.waitpid(pid, os.WNOHANG)

    def reap(self) -> None:
        """Take the exit of every child that has ended, orphans that came to us included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = status

    def holds(self, pid: int) -> bool:
        """Whether the process is of this incarnation, by its tag or by who started it, or has ended since."""
        found = processes.process_of(pid)
        return found is None or found.tag == self._tag or any(each.pid == pid for each in self.below())

    def attach(self, packet: AttachPacket, connection: SideChannelClient) -> Rank:
        """The rank, in the place of the one that this pid was before an exec."""
        rank = self.ranks[packet.pid] = Rank(packet, connection)
        self.attached = True
        return rank

    @property
    def lead(self) -> Rank | None:
        """The lowest rank that is connected: its progress stands for all."""
        connected = [rank for rank in self.ranks.values() if rank.connection is not None]
        return min(connected, key=lambda rank: rank.number, default=None)

    def writes(self, rank: Rank) -> bool:
        """Whether it is the one of this node that may write checkpoints: none of a lower number was ever here."""
        return rank.number <= min(each.number for each in self.ranks.values())

    @property
    def living_ranks(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.alive]

    @property
    def left(self) -> bool:
        """All ranks have come to the ends of their scripts."""
        return bool(self._last_ranks) and all(rank.left for rank in self._last_ranks)

    @property
    def killed_one(self) -> bool:
        """A rank was seen to end by SIGKILL."""
        return any(rank.was_killed for rank in self.ranks.values())

    @property
    def cut_off(self) -> bool:
        """A rank was killed, and none has come to the end of its script: whoever started it may hide that."""
        return any(rank.was_killed for rank in self._last_ranks) and not any(rank.left for rank in self._last_ranks)

    @property
    def _last_ranks(self) -> list[Rank]:
        """One that was started again counts in the place of the one before."""
        return list({rank.number: rank for rank in self.ranks.values()}.values())

    @property
    def loops(self) -> bool:
        """A rank ever was in its training loop, as far as is known."""
        return any(rank.loops for rank in self.ranks.values())

    @property
    def saving(self) -> bool:
        return any(rank.saving for rank in self.ranks.values())

    def processes(self) -> list[Process]:
        """All of them. Costs a look at every process of the machine."""
        return processes.incarnation(self._tag, os.getpid())

    def below(self) -> list[Process]:
        """Those below this supervisor, which are all unless one left; cheap."""
        return processes.descendants(os.getpid())

    def answers(self, number: signal.Signals) -> bool:
        """Somebody would notice a suspend: an attached rank, or where none is, a process with a handler."""
        living = self.living_ranks
        if living:
            return any(rank.connection is not None or rank.catches(number) for rank in living)
        return any(processes.catches(each.pid, number) for each in self.below())

    def askable(self, number: signal.Signals) -> list[Process]:
        """Whom to send the suspend signal: living ranks that catch it; where there are none, every process that does.

        Nobody else: without a handler it is lost, or stops the process, or kills it.
        """
        living = {rank.pid for rank in self.living_ranks}
        all_of_them = self.processes()
        chosen = [each for each in all_of_them if each.pid in living] if living else all_of_them
        return [each for each in chosen if processes.catches(each.pid, number)]


def send_all(targets: Iterable[Process], number: signal.Signals) -> list[int]:
    """Signal them; the pids that were still there."""
    return [each.pid for each in targets if processes.signal_process(each, number)]
