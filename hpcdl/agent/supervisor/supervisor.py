"""The supervisor of one incarnation: `python -m hpcdl.agent.supervisor RUNFOLDER [--lock-fd N]`.

It starts the trainer, holds the side channel, carries out suspends and ends, and writes what happened. It outlives the
agent; the trainer never outlives it. One thread, but for that of checkpoint_drain.py; standard library only;
docs/protocols.md says what it speaks.
"""

from __future__ import annotations

import glob
import os
import selectors
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from hpcdl.agent.supervisor import exit_cause, launch, packets, processes, resources, run_folder
from hpcdl.agent.supervisor.checkpoint_drain import CheckpointDrain
from hpcdl.agent.supervisor.claim import ClaimBeat, Foreign, Stale, supervisor_here, write_claim
from hpcdl.agent.supervisor.clients import RETRY_S, ClientRefusal, Clients
from hpcdl.agent.supervisor.drill import DrillKill
from hpcdl.agent.supervisor.exit_cause import FAILED, HIDDEN_KILL, STALE, Exit, exit_of, given_up, node_failure
from hpcdl.agent.supervisor.memberships import Memberships
from hpcdl.agent.supervisor.output import Log, OutputPipe, ProgressReader, TrainerOutput, printable
from hpcdl.agent.supervisor.packets import AttachPacket, ProgressPacket
from hpcdl.agent.supervisor.ranks import Rank, TrainerProcesses
from hpcdl.agent.supervisor.run_folder import AlreadyStarted, Records
from hpcdl.agent.supervisor.script_end import Lingering, in_teardown, is_launcher
from hpcdl.agent.supervisor.side_channel import NAME, Listener, RunningClock, SideChannelClient, Wakeup
from hpcdl.agent.supervisor.start_file import SAVED_STEP, START_FILE, BadStart, Start, read_start
from hpcdl.agent.supervisor.termination import ABSENCE, DONE, END, LEAVE, SUSPEND, Termination
from hpcdl.wire.private_files import NotPrivate, open_private_folder

TICK_S = 1.0

FAST_TICK_S = 0.05  # while something is about to end

DRAIN_TICK_S = 0.2

CLAIMLESS_GRACE_S = 5.0  # for a trainer at the gate whose claim failed, or that fails again and again

LINGER_S = 2.0  # for the agent to take the last records

ERROR_NOTES = 10

CLAIM_FAILED = os.EX_CANTCREAT

REFUSED = os.EX_USAGE  # exit codes of the supervisor itself: nothing was started, no record was written

USAGE = "usage: python -m hpcdl.agent.supervisor RUNFOLDER [--lock-fd N]"


class Supervisor:
    """The loop of one supervisor, from the start of its attempt to the `exit` record."""

    def __init__(self, start: Start, path: str, records: Records, listener: Listener, umask: int) -> None:
        self._path = path
        self._umask = umask
        self._records = records
        self._listener = listener
        self._clock = RunningClock()
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup(launch.IGNORED)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._wakeup.clear)
        self._clients = Clients(self._selector, listener, self._clock, records.packets, self, self._note)
        self._trainer = TrainerProcesses(start.tag, records.folder)
        self._drain = CheckpointDrain(start, self._drained, self._not_drained, self._note)
        self._drain_until: float | None = None  # as was asked once the trainer had ended
        self._start = start
        self._closing = Termination(start, self._trainer, self._record, self._clients.send, self._clock.now())
        self._drill = DrillKill(self._trainer, self._record)
        self._memberships = Memberships(start, self._trainer, self._record, self._clients.send)
        me = os.getpid()
        self._record("supervisor", pid=me, start=processes.start_ticks(me))
        self._start = self._with_local_tier(start)
        log = Log(start.log, start.log_limit_bytes, self._note, apart=start.apart)
        reader = ProgressReader(start.progress_regex, start.steps, self._note, start.progress)
        self._read_progress = reader
        on_mark = self._on_rank_failure
        self._output = TrainerOutput(log, reader, self._on_progress, exit_cause.MARK, on_mark, apart=start.apart)
        self._reading: set[OutputPipe] = set()
        self._gpu_env: Mapping[str, str] | None = None
        self._failure: Exit | None = None  # why we ended or never began it
        self._unloadable = ""  # the trainer's word that no checkpoint is whole; it ends, unless its script goes on
        self._ended_by: str | None = None
        self._exited_at: float | None = None  # when `exit` was recorded
        self._step: int | None = None
        self._asked_at: float | None = None  # by the clock of the run folder's file system
        self._lingering = Lingering(start.log, start.linger_s)
        self._said_done = False  # it is recorded that all of its steps are done
        self._by_itself = False  # it ended before it was sent a signal that ends it
        self._closing.finished = lambda: self._finished
        self._beat: ClaimBeat | None = None  # None while it has not claimed a folder
        self._save_failed = False
        self._save_errno: int | None = None
        self._saved_step = -1  # of the newest checkpoint where all nodes see it
        self._errors = 0
        self._retry_at = 0.0
        self._oom_kills = exit_cause.OomKillCounter(start.cgroup)
        self._oom_kills.watch(me)  # where the trainer begins
        self._memory = resources.MemoryLimit(start.memory_mib, f"{start.job}.{start.incarnation}.{me}")

    # the loop

    def run(self) -> None:
        """Returns when the incarnation has ended, and its records are durable or nobody is left to want them."""
        self._begin()
        while not self._may_leave():
            timeout = self._timeout()
            events = self._selector.select(timeout)
            lost_s = self._clock.turn(timeout)
            if lost_s:
                self._note(f"the supervisor, or the machine, was stopped for {lost_s:.0f} s")
            for key, _ in events:
                self._guarded(key.data)
            self._guarded(self._turn)
        self._listener.close()

    @property
    def drains(self) -> bool:
        """A checkpoint is still being copied; the time to wait for it is over."""
        return self._drain.busy

    def _timeout(self) -> float:
        if self._closing.ended_by or self._trainer.status is not None or self._exited_at is not None:
            return FAST_TICK_S
        dues = [due for due in (self._clients.next_due, self._drill.due, self._trainer.due) if due is not None]
        return min([DRAIN_TICK_S if self._drain.busy else TICK_S, *(max(0.0, due - self._clock.now()) for due in dues)])

    def _guarded(self, act: Callable[[], None]) -> None:
        # An error of ours in one packet or one look must not cost the job its trainer.
        try:
            act()
        except Exception as error:
            self._errors += 1
            if self._errors <= ERROR_NOTES:
                self._note(f"error in the supervisor: {type(error).__name__}: {error}"[:500])

    def _turn(self) -> None:
        now = self._clock.now()
        if self._exited_at is None:
            if self._asked_at is None and self._closing.ended_by is not None and self._start.resumes:
                self._asked_at = self._records.changed_at
            self._supervise(now)
        if not self._records.durable and now >= self._retry_at:
            self._retry_at = now + RETRY_S
            self._records.flush()
        self._clients.look_after()

    def _supervise(self, now: float) -> None:
        running = self._trainer.status is None
        self._drill.look(now)
        self._trainer.look(now)
        if running and self._trainer.status is not None:
            self._ended_by, self._by_itself = self._closing.ended_by, not self._signalled
        if self._trainer.status is not None:
            if self._closing.emptied(now):
                self._guarded(self._clients.drain)  # the word of what was saved last may be still on its way
                if self._drain.over(now, self._drain_deadline):
                    self._finish()
            return
        self._drain.look(now)
        if self._failure is None and (why := self._memory.exceeded(os.getpid(), now)):
            self._give_up(Exit(FAILED, detail=why, oom=True, permanent=True))
        absent, limit = self._clients.absent_since, self._start.agent_absence_s
        # A batch system's comes to the agent too, which may have better to say: to leave a job that goes on elsewhere.
        if self._wakeup.terminate and not (self._start.batch and absent is None):
            self._wakeup.take_terminate()
            self._closing.request(SUSPEND, "agent", self._start.grace_s, now)
        if absent is not None and limit is not None and now - absent >= limit and self._closing.ended_by is None:
            self._closing.request(ABSENCE, "absence", self._start.grace_s, now)
        self._memberships.look(now, self._step, self._lingering.done or self._closing.ended_by is not None)
        if self._closing.ended_by is None and self._lingering.over(os.getpid(), now):
            self._note(f"done, and still for {self._start.linger_s:g} s without an end: the trainer is ended")
            self._closing.request(DONE, "", self._start.grace_s, now)
        self._closing.escalate(now)
        self._closing.watch_stopped(now)

    @property
    def _drain_deadline(self) -> float | None:
        """Until when the exit waits for the drain: the end of the grace period of whoever asked for the end."""
        asked = self._closing.deadline if self._ended_by not in (None, DONE) and self._failure is None else None
        return min((due for due in (asked, self._drain_until) if due is not None), default=None)

    def _may_leave(self) -> bool:
        if self._exited_at is None:
            return False
        if not self._records.durable:
            # They are all that is left of the incarnation: until they are durable, we are what answers for them.
            return self._wakeup.take_terminate() or self._records.abandoned()
        return self._clients.delivered or self._clock.now() - self._exited_at > LINGER_S

    def _record(self, kind: str, **body: object) -> None:
        self._trainer.before(kind, self._clock.now())
        self._records.append(kind, **body)
        self._clients.push()

    def _note(self, text: str) -> None:
        self._record("note", text=text)

    # start and gate

    def _with_local_tier(self, start: Start) -> Start:
        """Without it where this node's folder cannot be used."""
        if start.local_checkpoint_dir is None:
            return start
        try:
            self._drain.open()
        except (OSError, NotPrivate) as error:
            self._note(f"checkpoints go straight to {start.checkpoint_dir}: {error}"[:500])
            return replace(start, local_checkpoint_dir=None)
        return start

    def _begin(self) -> None:
        if not self._open_files() or (not self._start.gate and not self._claim(self._start.gpu_env or {})):
            self._finish()
            return
        environment = self._start.environment(os.path.join(self._path, NAME))
        try:
            cpus = resources.processors(None if self._start.gate else self._start.gpu_env)
            ways = (*self._output.write_ends, self._umask, cpus, self._memory.entrance)
            pid = launch.launch(self._start, environment, *ways)
        except launch.CommandNotStarted as error:
            if error.error is None:
                self._failure = Exit(error.code, detail=str(error))
            else:
                self._failure = node_failure(error.code, error.error, str(error))
            self._finish()
            return
        self._output.started()
        self._trainer.main = pid
        self._oom_kills.watch(pid)
        for pipe in self._output.pipes:
            self._selector.register(pipe, selectors.EVENT_READ, partial(self._on_output, pipe))
            self._reading.add(pipe)
        self._record("started", pid=pid, start=processes.start_ticks_of_child(pid))
        if self._beat is not None:
            self._beat.begin()

    def _open_files(self) -> bool:
        """Those that its output goes to besides the log; False, and why in `_failure`, if we must not go on."""
        ours = os.umask(self._umask)
        try:
            self._output.copy_to(self._start.output, self._start.error, self._note)
        except OSError as error:
            why = f"cannot write its output to {error.filename}: {error.strerror}"
            self._failure = node_failure(CLAIM_FAILED, error, why)
            return False
        finally:
            os.umask(ours)
        return True

    def _claim(self, gpu_env: Mapping[str, str]) -> bool:
        """Write the claim, if there is a checkpoint folder; False, and why in `_failure`, if we must not go on."""
        start, directory = self._start, self._start.checkpoint_dir
        if directory is None:
            return True
        saved = gpu_env.get(SAVED_STEP)
        if saved is not None and gpu_env.get("HPCDL_NODE_RANK", "0") == "0" and not self._drain.any_checkpoint():
            why = f"no checkpoint was found in {directory}"
            self._failure = Exit(os.EX_DATAERR, detail=why, missing=int(saved))
            return False
        try:
            owner = (start.job, start.incarnation, start.tag, start.identity, start.continue_from)
            note = write_claim(directory, *owner, supervisor_here(start.node), start.nonce, start.nonces)
        except Stale as error:
            self._failure = Exit(STALE, detail=str(error), stale=True, claimed=error.claimed)
        except Foreign as error:
            self._failure = Exit(launch.NOT_EXECUTABLE, detail=str(error))
        except OSError as error:
            why = f"cannot write the claim in {directory}: {error.strerror}"
            self._failure = node_failure(CLAIM_FAILED, error, why)
            self._save_errno = error.errno
        else:
            self._record("claimed", incarnation=start.incarnation)
            if note:
                self._note(note)
            self._beat = ClaimBeat(directory, start.tag, start.nonce)
            if start.local_checkpoint_dir is not None:
                self._drain.claimed()
            return True
        return False

    def _open(self, gpu_env: Mapping[str, str]) -> None:
        if not self._start.gate or self._gpu_env is not None or self._closing.ended_by or self._failure:
            return
        if not self._claim(gpu_env):
            self._closing.request(END, "", CLAIMLESS_GRACE_S, self._clock.now())
            return
        if self._beat is not None:
            self._beat.begin()
        self._gpu_env = gpu_env
        resources.bind_all(os.getpid(), resources.processors(gpu_env))
        for rank in self._trainer.ranks.values():
            if rank.gated:
                self._clients.send(rank, "open", env=dict(gpu_env))

    # what comes

    def _on_output(self, pipe: OutputPipe) -> None:
        if not self._output.read(pipe):
            self._stop_reading(pipe)

    def _stop_reading(self, pipe: OutputPipe) -> None:
        self._reading.remove(pipe)
        self._selector.unregister(pipe)

    def _on_progress(self, progress: ProgressPacket) -> None:
        self._reached(progress.step)
        self._clients.progress(progress)

        self._note_done()

    @property
    def _finished(self) -> bool:
        """All of its steps are done: what runs is its script's end."""
        return self._lingering.done or self._read_progress.complete

    def _note_done(self) -> None:
        if self._finished != self._said_done:
            self._said_done = self._finished
            if self._finished:
                self._record("done", step=self._step or 0)

    def _reached(self, step: int | None) -> None:
        if step is not None:
            self._step = step if self._step is None else max(self._step, step)

    def on_agent(self, packet: packets.FromAgent) -> None:
        """The agent commands; after the trainer has ended only how long a drain may take."""
        if isinstance(packet, packets.OpenPacket):
            self._open(packet.gpu_env)
            return
        now, usual_s = self._clock.now(), self._start.grace_s
        if self._trainer.status is not None:
            if isinstance(packet, packets.SuspendPacket | packets.LeavePacket | packets.EndPacket):
                due = now + (usual_s if packet.grace_s is None else packet.grace_s)
                self._drain_until = due if self._drain_until is None else min(due, self._drain_until)
            return
        match packet:
            case packets.DrillPacket():
                self._drill.order(packet, now)
            case packets.RescalePacket():
                self._memberships.order(packet, now)
            case packets.SuspendPacket(grace_s=grace_s, by=by):
                self._closing.request(SUSPEND, by, usual_s if grace_s is None else grace_s, now)
            case packets.LeavePacket(grace_s=grace_s):
                state = self._memberships.ordered
                self._closing.request(LEAVE, "", usual_s if grace_s is None else grace_s, now, state)
            case packets.EndPacket(grace_s=grace_s):
                self._drill.forget()
                self._closing.request(END, "", usual_s if grace_s is None else grace_s, now)

    def on_attach(self, packet: AttachPacket, connection: SideChannelClient) -> Rank:
        """A rank says who it is. Raises ClientRefusal for one of another incarnation, or of a membership before the
        first that this node was asked to be in: whoever is merely behind gets the newest."""
        if packet.incarnation != self._start.incarnation:
            raise ClientRefusal(f"attempt {packet.incarnation} attached to attempt {self._start.incarnation}")
        if packet.membership < self._start.membership:
            raise ClientRefusal(f"membership {packet.membership} is stale: this is {self._start.membership}")
        if self._exited_at is not None:
            raise ClientRefusal("the attempt has ended")
        if not self._trainer.holds(packet.pid):
            raise ClientRefusal(f"process {packet.pid} is not of this attempt")
        rank = self._trainer.attach(packet, connection)
        self._oom_kills.watch(packet.pid)
        self._record("attached", pid=packet.pid, rank=packet.rank, handler=packet.handler)
        return rank

    def on_attached(self, rank: Rank) -> None:
        """A membership, a suspend or a leave that came before it is passed on."""
        why = self._memberships.greet(rank, self._step)
        if why and self._failure is None:
            self._give_up(Exit(FAILED, detail=why))
        self._closing.greet(rank, self._clock.now())

    def on_gone(self, rank: Rank) -> None:
        """A rank's connection has ended, in most cases with its process."""
        rank.was_killed = rank.was_killed or rank.killed

    def _on_rank_failure(self, output: bytes) -> None:
        """torchrun has seen one of its ranks fail, and starts them again. `output`: the last of it."""
        failure = exit_cause.torchrun_failure(output)
        if failure is None or self._failure is not None or self._closing.ended_by is not None:
            return
        killed = failure.signal == signal.SIGKILL.name and not self._drill.killed
        oom, detail = self._oom_kills.verdict(exit_cause.output_before_failure(output), killed)
        repeats, why = self._memberships.failed(failure, oom, self._step, self._clock.now())
        if why:
            self._give_up(given_up(failure, oom, detail or why, repeats))

    def _give_up(self, end: Exit) -> None:
        self._failure = end
        self._closing.request(END, "", CLAIMLESS_GRACE_S, self._clock.now())

    def on_rank(self, rank: Rank, packet: packets.FromRank) -> None:
        """A rank reports."""
        rank.hear(packet)
        match packet:
            case packets.GatePacket():
                rank.gated = True
                self._record("gate", warm_s=packet.warm_s, cuda=packet.cuda)
                if self._gpu_env is not None:
                    self._clients.send(rank, "open", env=dict(self._gpu_env))
            case packets.OpenedPacket():
                rank.gated = False
                self._record("opened", gpus=packet.gpus, ok=packet.ok)
            case packets.JoinPacket() | packets.ReformedPacket() | packets.BrokenPacket():
                self._memberships.on_rank(rank, packet, self._clock.now())
                if not isinstance(packet, packets.JoinPacket):
                    self._reached(packet.step)
            case packets.ReadyPacket():
                self._memberships.on_rank(rank, packet, self._clock.now())
                if rank is self._trainer.lead:
                    self._record("ready", step=packet.step)
                self._reached(packet.step)
            case packets.ProgressPacket():
                self._lingering.trained(packet.step)
                if rank is self._trainer.lead:
                    self._memberships.trained(self._clock.now())
                    self._on_progress(packet)
            case packets.ModelPacket():
                if rank is self._trainer.lead:
                    self._record("model", **asdict(packet))
            case packets.SavingPacket():
                self._reached(packet.step)
                self._drill.saving(self._clock.now())
                rank.saving = True
                self._closing.heard = True
            case packets.SavedPacket():
                self._on_saved(rank, packet)
            case packets.SaveFailedPacket():
                rank.saving = False
                self._drill.saved()
                self._save_failed, self._save_errno = True, packet.errno
                self._record("save_failed", step=packet.step, errno=packet.errno, why=packet.why)
            case packets.DamagedPacket() if packet.step is None:
                self._unloadable = packet.why
            case packets.DamagedPacket():
                self._record("damaged", **asdict(packet))
            case packets.MissingPacket():
                self._give_up(Exit(os.EX_DATAERR, detail=packet.why, missing=packet.step))
            case packets.DonePacket():
                self._reached(packet.step)
                self._lingering.said_done(self._step or 0, self._clock.now(), self._trainer.writes(rank))
                self._note_done()
            case packets.LeftPacket():
                rank.left = self._heeds_left
                self._trainer.by_launcher = is_launcher(processes.words_of(self._trainer.main or 0))

    def _on_saved(self, rank: Rank, packet: packets.SavedPacket) -> None:
        rank.saving = False
        writes = self._memberships.writes(rank, packet.membership)
        if packet.incarnation != self._start.incarnation or writes is None:
            self._note(f"ignored: a save of attempt {packet.incarnation}, membership {packet.membership}")
            return
        self._closing.heard = True
        self._drill.saved()
        if not writes:
            return  # what others saved is theirs
        self._closing.final = self._closing.final or packet.final
        self._reached(packet.step)
        if self._start.local_checkpoint_dir is not None and self._drain.takes(packet.path):
            self._drain.add(packet, self._clock.now())
        else:
            self._durable(packet)

    def _durable(self, packet: packets.SavedPacket) -> None:
        """A checkpoint is where all nodes see it."""
        self._save_failed, self._save_errno = False, None
        self._saved_step = max(self._saved_step, packet.step)
        self._record("saved", **asdict(packet))

    def _drained(self, packet: packets.SavedPacket) -> None:
        if packet.step >= self._saved_step:  # else a newer one went straight there meanwhile
            self._durable(packet)

    def _not_drained(self, step: int, error: OSError) -> None:
        self._save_failed, self._save_errno = True, error.errno
        self._record("save_failed", step=step, errno=error.errno, why=f"it is on this node alone: {error.strerror}")

    # the end

    def _finish(self) -> None:
        """Nothing of the incarnation runs any more: hear what is still on its way, and say how it ended."""
        self._guarded(self._clients.drain)
        for pipe in tuple(self._reading):
            self._stop_reading(pipe)
        self._guarded(self._output.finish)
        self._guarded(self._clients.finish)
        if self._clients.malformed:
            self._note(f"{self._clients.malformed} malformed packets were ignored")
        ours = self._closing.killed or self._drill.killed
        how, left = self._failure, False
        if how is not None:
            self._ended_by = None
        elif self._ended_by == DONE:
            left = in_teardown(self._trainer, None)
            what = "it was done" if left else "it was at its script's end"
            how = Exit(
                0 if left else FAILED, detail=f"ended by its supervisor: {what}, and stood still", still=not left
            )
            self._ended_by = None
        else:
            trainer, tail = self._trainer, self._output.tail
            status = HIDDEN_KILL if trainer.status == 0 and trainer.cut_off else trainer.status
            how = exit_of(status, tail, trainer.attached, ours, self._oom_kills, trainer.killed_one)
            left = in_teardown(trainer, how.code) and self._drain.error is None
            if how.oom and how.signal is not None and (why := self._memory.words()):
                how = replace(how, detail=why, permanent=self._memory.enforced)
            if self._unloadable and how.code and self._ended_by is None:  # no retry finds one either
                how = Exit(launch.NOT_EXECUTABLE, detail=self._unloadable)
            if how.code == 0 and self._ended_by is None and self._drain.error is not None:
                # The end of training, which is on one node alone: no success.
                self._save_failed, self._save_errno = True, self._drain.error.errno
                how = Exit(CLAIM_FAILED, detail=f"its last checkpoint is on this node alone: {self._drain.error}")
        self._drain.close()
        if self._beat is not None:
            self._beat.end()
        self._record(
            "exit",
            **how.fields,
            attached=self._trainer.attached,
            ended_by=self._ended_by,
            drill=self._drill.killed and how.code != 0,
            save_failed=self._save_failed,
            save_errno=self._save_errno,
            done=self._lingering.done or (self._read_progress.complete and how.code == 0),
            left=left,
            by_itself=self._by_itself and self._is_own(how),
            step=self._step,
            **self._own_saves(),
        )
        self._memory.close()
        self._exited_at = self._clock.now()

    @property
    def _heeds_left(self) -> bool:
        """What comes to its script's end after a SIGTERM has caught that, and cut its end short. In a batch job its
        library has caught it (`heed`), and the script went on."""
        return self._start.batch or not self._closing.terminated

    @property
    def _signalled(self) -> bool:
        """It was sent a signal that ends it: by us, or in a batch job by its system, which sends it to us, too."""
        return self._closing.terminated or self._wakeup.terminate

    def _is_own(self, how: Exit) -> bool:
        """A trainer that attached ended with a code of its own, and nothing that it saved answered a suspend."""
        return how.code is not None and how.killed is None and self._trainer.attached and not self._closing.final

    def _own_saves(self) -> dict[str, object]:
        """The newest of its program's own checkpoints: `kept` where it came since it was asked to go, else `older`."""
        if not self._start.resumes:
            return {}
        try:
            began = os.stat(os.path.join(self._path, START_FILE)).st_mtime
            kept = "" if self._asked_at is None else newest(self._start.resumes, self._start.cwd, self._asked_at)
            return {"kept": printable(kept), "older": printable(newest(self._start.resumes, self._start.cwd, began))}
        except OSError:
            return {}


def main(argv: list[str]) -> int:
    """Exit code 0 after an `exit` record; REFUSED, and a line on stderr, if this run folder is not ours to start."""
    try:
        path, lock = run_folder.arguments(argv)
    except ValueError as error:
        return _refuse(f"{error}\n{USAGE}")
    umask = os.umask(0o077)
    try:
        folder = open_private_folder(Path(path))
        held = run_folder.hold_lock(folder, lock)
        records = Records(folder)
    except (OSError, NotPrivate, run_folder.RunFolderTaken, AlreadyStarted) as error:
        return _refuse(f"{path}: {error}")
    if os.getsid(0) != os.getpid() and os.getpgrp() != os.getpid():
        os.setsid()
    os.chdir("/")
    launch.become_subreaper()
    try:
        start = read_start(folder)
        listener = Listener(folder)
    except (BadStart, NotPrivate, OSError) as error:
        end = Exit(launch.NOT_EXECUTABLE, detail=f"the supervisor could not start it: {error}")
        never: dict[str, object] = dict.fromkeys(("attached", "save_failed", "done"), False)
        records.append("exit", **end.fields, **never, ended_by=None, step=None)
        return 0
    supervisor = Supervisor(start, path, records, listener, umask)
    supervisor.run()
    if supervisor.drains:
        os._exit(0)  # its threads may hang in the file system
    os.close(held)
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write(f"supervisor: {why}\n")
    return REFUSED


SLACK_S = 2.0  # of file systems that round times


def newest(pattern: str, cwd: str, since: float) -> str:
    """Of the checkpoints that a program writes by itself, found by its user's pattern (`--resumes 'out/checkpoint-*'`),
    the one that was changed last; "" where none was since then (seconds, of the file system)."""
    found: tuple[float, str] | None = None
    for path in glob.iglob(os.path.join(cwd, os.path.expanduser(pattern))):
        try:
            changed = os.stat(path).st_mtime
        except OSError:
            continue
        if changed >= since - SLACK_S and (found is None or (changed, path) > found):
            found = (changed, path)
    return "" if found is None else os.path.basename(found[1].rstrip("/"))
