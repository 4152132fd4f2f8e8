"""The end of a trainer: a request, its escalation on the real processes, and what the main process leaves behind.

`Escalation` is pure: it says what is due when. `Termination` does it. A trainer that saves since it was asked
to suspend is not sent SIGTERM before the end of its grace period. Nothing but this attempt's processes is signalled.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor.ranks import Rank, TrainerProcesses, send_all
from hpcdl.agent.supervisor.start_file import TORCHRUN, Start

ASK_AGAIN_AFTER = 1 / 3  # of the grace

TERMINATE_AFTER = 0.8

KILL_INTERVAL_S = 0.5

SUSPEND, END, ABSENCE, LEAVE = "suspend", "end", "absence", "leave"  # what `exit` says in `ended_by`

DONE = "done"  # it said that it is, and stands still: not asked for by anybody, so `exit` does not say it


class EscalationStep(Enum):
    """What is to be done to the trainer's processes; the value says to whom."""

    ASK = "the message and the suspend signal to whoever handles them"
    TERMINATE = "SIGTERM to all"
    KILL = "SIGKILL to all"


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """What is seen of the trainer now. `answerable`: somebody would notice being asked; `expected`: nobody yet, but it
    started just now and may attach; `saving`: a save is under way, or the final one is durable; `heard`: a save was
    begun or ended since it was asked."""

    answerable: bool
    expected: bool
    saving: bool
    heard: bool


class Escalation:
    """One request to end: when the trainer is asked, asked again, sent SIGTERM and SIGKILL. Pure; seconds on one
    clock."""

    def __init__(self, ended_by: str, began: float, grace_s: float, askable: bool, patient: bool = False) -> None:
        """`askable`: the trainer has a suspend signal, or is to leave, and this is not a cancel. `patient`: it has done
        all of its steps, so it is left to end by itself for most of the grace."""
        self._patient = patient
        self.ended_by = ended_by
        self._began = began
        self._grace_s = grace_s
        self._askable = askable and ended_by not in (END, DONE)
        self._asked_again = False
        self.asked = False
        self.terminated = False
        self._next_kill = began

    @property
    def deadline(self) -> float:
        return self._began + self._grace_s

    def left(self, now: float) -> float:
        """Seconds of the grace that are left."""
        return max(0.0, self.deadline - now)

    def hasten(self, now: float, grace_s: float) -> bool:
        """Asked again: the end of the grace may come nearer, and never moves away. True if it moved."""
        if now + grace_s >= self.deadline:
            return False
        self._began, self._grace_s = now, grace_s
        return True

    def next(self, now: float, look: Callable[[], TrainerStatus]) -> EscalationStep | None:
        """What is to be done now, if anything; done once, SIGKILL again and again. `look`: called where it matters."""
        if now >= self.deadline:
            if now < self._next_kill:
                return None
            self._next_kill = now + KILL_INTERVAL_S
            return EscalationStep.KILL
        if self.terminated:
            return None
        third = now >= self._began + ASK_AGAIN_AFTER * self._grace_s
        late = now >= self._began + TERMINATE_AFTER * self._grace_s
        if not self.asked and not self._patient:
            seen = look()
            if self._askable and seen.answerable:
                self.asked = True
                self._asked_again = third
                return EscalationStep.ASK
            return None if self._askable and seen.expected and not third else self._terminate()
        if late:
            return None if look().saving else self._terminate()
        if third and not self._asked_again and not self._patient:
            self._asked_again = True
            seen = look()
            return None if seen.heard or seen.saving else EscalationStep.ASK
        return None

    def _terminate(self) -> EscalationStep:
        self.terminated = True
        return EscalationStep.TERMINATE


YOUNG_S = 5.0  # a trainer younger than this may still be about to attach

UNTRAINED_GRACE_S = 5.0  # for a trainer that has nothing to save: to tidy up after SIGTERM

LEFTOVER_PATIENCE_S = 0.5  # after the main process ended, for the others to end by themselves

LEFTOVER_KILL_S = 5.0  # after their SIGTERM

STUCK_NOTE_S = 30.0

CONTINUE_INTERVAL_S = 0.5

LOOK_INTERVAL_S = 0.1

STOPPED_LOOK_S = 2.0


class Recorder(Protocol):
    """Adds a record of this kind to record.jsonl."""

    def __call__(self, kind: str, **body: object) -> None: ...


class Send(Protocol):
    """Sends a packet of this kind to a rank, if it is connected."""

    def __call__(self, rank: Rank, kind: str, **body: object) -> None: ...


class Termination:
    """What is under way to end this trainer, if anything is. Times are the supervisor's clock's."""

    def __init__(self, start: Start, trainer: TrainerProcesses, record: Recorder, send: Send, began: float) -> None:
        self._start = start
        self._trainer = trainer
        self._record = record
        self._send = send
        self._began = began
        self._signal = start.suspend_signal
        self._ending: Escalation | None = None
        self._young = False
        self._untrained = False
        self._stopped_since: dict[tuple[int, int], float] = {}
        self._next_stopped_look = began
        self._next_look = began
        self._killed: set[tuple[int, int]] = set()
        self._left_since: float | None = None
        self._left_terminated = False
        self._next_left_kill = 0.0
        self._stuck_noted = False
        self.heard = False  # a save was begun or ended since the trainer was asked
        self.final = False  # the final checkpoint is durable
        self.finished: Callable[[], bool] = lambda: False  # all of its steps are done: it is on its way out

    @property
    def ended_by(self) -> str | None:
        """What `exit` says, if the trainer ended now."""
        return None if self._ending is None else self._ending.ended_by

    @property
    def deadline(self) -> float | None:
        """The end of the grace period, if anything was asked."""
        return None if self._ending is None else self._ending.deadline

    @property
    def terminated(self) -> bool:
        """It was sent SIGTERM or SIGKILL while its main process ran."""
        return self.killed or (self._ending is not None and self._ending.terminated)

    @property
    def killed(self) -> bool:
        """SIGKILL was sent by us."""
        return bool(self._killed)

    def request(self, ended_by: str, by: str, grace_s: float, now: float, state: bool = True) -> None:
        """Suspend, leave or end. Repeated, the grace may only get shorter; an end replaces the others, nothing else
        replaces anything: who leaves is no part any more of what is suspended, and the reverse. `state`: its ranks may
        have something that the others need; a leave without it does not wait for them."""
        before = self._ending
        if before is not None and ended_by != END and (before.ended_by == LEAVE) != (ended_by == LEAVE):
            return
        if before is not None and before.ended_by == END and ended_by != END:
            return
        if before is None or (ended_by == END and before.ended_by != END):
            grace_s = grace_s if before is None else min(grace_s, before.left(now))
            finished = ended_by in (SUSPEND, ABSENCE) and self.finished()
            self._untrained = ended_by in (SUSPEND, ABSENCE) and not finished and self._nothing_to_save()
            askable = state if ended_by == LEAVE else self._signal is not None and not self._untrained
            if self._untrained and self._trainer.attached:
                grace_s = min(grace_s, UNTRAINED_GRACE_S)
            self._ending = Escalation(ended_by, now, grace_s, askable, finished)
            if finished:
                self._record("note", text=f"all of its steps are done: it has {grace_s:.0f} s to end by itself")
            self._young = not self._trainer.attached and now - self._began < YOUNG_S
            self.heard = False
        elif not before.hasten(now, grace_s):
            return
        if ended_by == LEAVE:
            self._record("leaving", grace_s=grace_s)
        elif ended_by not in (END, DONE):
            self._record("suspending", by=by, grace_s=grace_s)
        self._next_look = now
        self._next_stopped_look = now
        self.escalate(now)

    def _nothing_to_save(self) -> bool:
        """A trainer that says when its loop begins has not said it: whatever it has still to import is not waited for.

        Of a program that is none of hpcdl.trainer's only that it has just started, and that nobody in it would notice.
        """
        if self._start.signal != "hpcdl" or self._signal is None:
            return False
        return not (self._trainer.loops if self._trainer.attached else self._trainer.answers(self._signal))

    def greet(self, rank: Rank, now: float) -> None:
        """A rank attached while the trainer is to suspend or leave: it has not been asked."""
        if self._ending is None or self._ending.ended_by in (END, DONE):
            return
        self._next_look = now
        if not self._ending.asked and not self._ending.terminated:
            return  # escalate sees that somebody answers now, and asks
        if self._ending.ended_by == LEAVE:
            if self._start.rescale != TORCHRUN:
                self._send(rank, "leave")
            return
        self._send(rank, "suspend", grace_s=round(self._ending.left(now), 3))
        if self._ending.asked and self._signal is not None and rank.catches(self._signal):
            found = processes.process_of(rank.pid)
            self._signalled(self._signal, [found] if found is not None else [])

    def escalate(self, now: float) -> None:
        """Once a turn while the main process runs, and after it as long as ranks live: what is due now."""
        ending = self._ending
        if ending is not None and ending.ended_by == LEAVE and self._start.rescale == TORCHRUN:
            self._end_launcher(ending)
        if ending is None or now < self._next_look:
            return

        def look() -> TrainerStatus:
            self._next_look = now + LOOK_INTERVAL_S
            return self._seen(ending)

        action = ending.next(now, look)
        if action is EscalationStep.ASK:
            self._ask(ending, now)
        elif action is EscalationStep.TERMINATE:
            self._terminate()
        elif action is EscalationStep.KILL:
            self._kill()

    def _end_launcher(self, ending: Escalation) -> None:
        # torchrun's way to leave: it passes SIGTERM on to its ranks, which commit together with the other nodes'. If
        # they ended by themselves, it would wait for those, and then close the rendezvous for all of them.
        if ending.terminated:
            return
        ending.terminated = True
        found = None if self._trainer.main is None else processes.process_of(self._trainer.main)
        self._signalled(signal.SIGTERM, [] if found is None else [found])

    def _seen(self, ending: Escalation) -> TrainerStatus:
        if ending.asked:
            answers = False
        elif ending.ended_by == LEAVE:
            answers = any(rank.connection is not None for rank in self._trainer.living_ranks)
        else:
            answers = self._signal is not None and self._trainer.answers(self._signal)
        expected = self._young and not self._trainer.attached and self._start.signal == "hpcdl"
        return TrainerStatus(answers, expected, self._trainer.saving or self.final, self.heard)

    def _ask(self, ending: Escalation, now: float) -> None:
        self._continue([each for each in self._trainer.processes() if each.stopped])
        if ending.ended_by == LEAVE:  # no signal: it would suspend the ranks of the other nodes, too
            for rank in self._trainer.living_ranks:
                self._send(rank, "leave")
            return
        targets = [] if self._signal is None else self._trainer.askable(self._signal)
        for rank in self._trainer.living_ranks:
            self._send(rank, "suspend", grace_s=round(ending.left(now), 3))
        if self._signal is not None:
            self._signalled(self._signal, targets)

    def _terminate(self) -> None:
        if self._start.batch and (self.ended_by == END or self._untrained):
            # There a rank takes a SIGTERM for its batch system's, of which it hears more from us.
            for rank in self._trainer.living_ranks:
                self._send(rank, "end")
        found = self._trainer.processes()
        self._signalled(signal.SIGTERM, found)
        self._continue([each for each in found if each.stopped])  # SIGTERM waits until then

    def _kill(self) -> None:
        found = self._trainer.processes()
        new = [each for each in found if (each.pid, each.start_ticks) not in self._killed]
        send_all([each for each in found if each not in new], signal.SIGKILL)
        self._killed.update((each.pid, each.start_ticks) for each in new)
        if new:
            self._signalled(signal.SIGKILL, new)
        self._trainer.kill_rest()

    def _signalled(self, number: signal.Signals, targets: list[Process]) -> None:
        handled = {each.pid for each in targets if processes.catches(each.pid, number)}
        sent = send_all(targets, number)
        if sent:
            self._record("signalled", signal=number.name, pids=sent, handled=[pid for pid in sent if pid in handled])

    def _continue(self, stopped: list[Process]) -> None:
        if stopped:
            self._signalled(signal.SIGCONT, stopped)

    # processes that are stopped

    def watch_stopped(self, now: float) -> None:
        """Once a turn: continue processes that have been stopped for too long, or at all while the trainer is to end.

        A batch system that suspends its job stops this process, too, and the clock does not count that time.
        """
        limit = 0.0 if self._ending is not None else self._start.stopped_s
        if limit is None or now < self._next_stopped_look:
            return
        self._next_stopped_look = now + (CONTINUE_INTERVAL_S if limit == 0 else min(STOPPED_LOOK_S, limit / 4))
        stopped = {(each.pid, each.start_ticks): each for each in self._trainer.below() if each.stopped}
        self._stopped_since = {key: self._stopped_since.get(key, now) for key in stopped}
        overdue = [each for key, each in stopped.items() if now - self._stopped_since[key] >= limit]
        if overdue:
            self._continue(overdue)
            self._stopped_since.clear()
            if self._ending is None:
                names = ", ".join(str(each.pid) for each in overdue)
                self._record("note", text=f"stopped for {limit:g} s, continued: process {names}")

    # after the main process

    def emptied(self, now: float) -> bool:
        """Once a turn after the main process ended: true when no process of the incarnation is left. Until then the
        others get some time, SIGTERM, and SIGKILL; ranks that are still being suspended get the rest of the grace."""
        if self._left_since is None:
            self._left_since = now
        if not self._trainer.below() and not self._trainer.processes():
            return True
        self._press(now, self._left_since)
        return False

    def _press(self, now: float, since: float) -> None:
        ending = self._ending
        if ending is not None and now >= ending.deadline:
            self.escalate(now)
        elif ending is not None and ending.asked and not ending.terminated and self._trainer.living_ranks:
            self._left_since = now
            self.escalate(now)
            self.watch_stopped(now)
        elif not self._left_terminated:
            if now - since >= LEFTOVER_PATIENCE_S:
                self._left_terminated = True
                self._next_left_kill = now + LEFTOVER_KILL_S
                self._terminate()
        elif now >= self._next_left_kill:
            self._next_left_kill = now + KILL_INTERVAL_S
            self._kill()
        if now - since >= STUCK_NOTE_S and not self._stuck_noted:
            self._stuck_noted = True
            states = ", ".join(f"{each.pid} ({each.state})" for each in self._trainer.processes())
            self._record("note", text=f"processes that do not end although they were killed: {states}")
