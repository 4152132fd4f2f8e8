"""One rank's part in the handshake: attach, resume, progress, suspend, checkpoint, exit.

`channel.py` carries the packets, `checkpoints.py` has the folder. Standard library only, and a no-op outside of hpcdl.
Nothing here may end a training for want of a supervisor: the rank goes on to its next step boundary.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from hpcdl.trainer import checkpoints, completion, exit, step_gate
from hpcdl.trainer.channel import Channel, Refused
from hpcdl.trainer.checkpoints import Checkpoint, StaleIncarnation, Tier
from hpcdl.trainer.completion import Limits
from hpcdl.trainer.group.membership import Membership, from_packet
from hpcdl.trainer.metrics import PendingMetrics, detached
from hpcdl.trainer.script_end import ScriptEnd

log = logging.getLogger("hpcdl.trainer")

PRESETS: Mapping[str, signal.Signals | None] = {
    "hpcdl": signal.SIGTSTP,
    "lightning": signal.SIGUSR1,
    "submitit": signal.SIGUSR2,
    "hf": signal.SIGTERM,
    "SIGTERM": signal.SIGTERM,
    "SIGUSR1": signal.SIGUSR1,
    "SIGUSR2": signal.SIGUSR2,
    "none": None,
}

IN_PROCESS = "in-process"  # HPCDL_RESCALE: the ranks form a new group themselves

# Launchers put a rank's number into one of these; a script without a launcher is one rank a node.
RANK_VARIABLES = ("HOROVOD_RANK", "RANK", "HPCDL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

LIGHTNING = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")

ONE_TRAINING = (
    "this process has completed a training, and hpcdl knows one for each job: a second would go on from the checkpoint "
    "of the first. Make a job of each (submit --array, --sweep or --after), or one loop of all of them"
)

ESSENTIAL_WAIT_S = 3.0

ANSWER_WAIT_S = 5.0

PROGRESS_INTERVAL_S = 0.2

POLL_INTERVAL_S = 0.01

ENDED_UNSAVED = 128 + signal.SIGTERM  # asked to suspend with nothing saved: as if it had been ended by SIGTERM


class Gathering(Protocol):
    """A group of ranks, as `peers.RankAgreement` is one."""

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks."""
        ...


@dataclass(frozen=True)
class _Durable:
    step: int
    path: Path
    seconds: float


class Session:
    """What a training script holds of hpcdl. Outside hpcdl every method does nothing, except that checkpoints still
    work on a folder that was given. Steps count those that are done: after the first one, `step` is 1."""

    def __init__(self, environ: Mapping[str, str], rank: int | None, checkpoint_dir: str | Path | None) -> None:
        self._pid = os.getpid()
        self.inside = bool(environ.get("HPCDL_SOCKET"))
        self.rescale = (environ.get("HPCDL_RESCALE") or "restart") if self.inside else "restart"
        self.node = environ.get("HPCDL_NODE", "")
        self.local_rank = int(environ.get("HPCDL_LOCAL_RANK") or environ.get("LOCAL_RANK") or 0)
        if rank is None:
            # A rank that is rescaled in place has no number yet; on its node it is known by this one.
            rank = self.local_rank if self.rescale == IN_PROCESS else _rank(environ)
        self.rank = rank
        self.formed = self.rescale != IN_PROCESS
        self.job = environ.get("HPCDL_JOB", "")
        self.tag = environ.get("HPCDL_TAG", "") if self.inside else ""
        self.identity = environ.get("HPCDL_IDENTITY", "") if self.inside else ""
        self.incarnation = int(environ.get("HPCDL_INCARNATION") or 0)
        self.membership = int(environ.get("HPCDL_MEMBERSHIP") or 0)
        # Whose checkpoints count: ours and those that name no job; the agent has seen to it whose others may.
        self._only = "" if environ.get("HPCDL_CONTINUE_FROM") else self.identity
        self.total = int(environ["HPCDL_STEPS"]) if environ.get("HPCDL_STEPS") else None
        chosen = environ.get("HPCDL_CHECKPOINT_DIR") or checkpoint_dir
        self.checkpoint_dir = Path(chosen) if chosen else None
        # Where checkpoints are written, if not there at once: the supervisor copies them to `checkpoint_dir`.
        local = environ.get("HPCDL_LOCAL_CHECKPOINT_DIR") if environ.get("HPCDL_CHECKPOINT_DIR") else None
        self._local = Path(local) if local and self.inside else None
        self._local_failed = False
        self._bytes = 0  # of the newest checkpoint
        self._socket = environ.get("HPCDL_SOCKET", "")
        self._signal = PRESETS.get(environ.get("HPCDL_SIGNAL") or "hpcdl") if self.inside else None
        self._before: Any = None
        self._handles = False
        self._loops = False  # it was said that the training loop has begun
        self._complete = False  # it was said that the training is
        self._script_end: ScriptEnd | None = None  # from the last step on
        self._asked = False
        self._ended = self._exiting = False
        self._batch = self.inside and bool(environ.get("HPCDL_ALLOCATION"))
        self._channel: Channel | None = None
        self._durable: _Durable | None = None
        self._next_progress = 0.0
        self._next_metric = 0.0
        self._metric: float | None = None  # to be sent with the next packet
        self._metrics = PendingMetrics()
        self._place: tuple[int, int | None, int | None] | None = None  # step, total and samples that came last
        self._total = self.total  # the last that was said: of a loop's report, and of its script's own between
        self._next_poll = 0.0
        self._reading = threading.RLock()  # a thread may look at the channel while the main one is in a collective
        self.target: Membership | None = None  # the newest membership that was asked for
        self.leaving = False  # asked to go, because no membership from now on has this rank
        self.terminated = False  # its launcher wants this rank gone
        self._environ = environ
        self._gate: step_gate.StepGate | None = None
        self._knows_gate = not self.inside  # whether the environment was looked at: a warm start gets its GPUs late

    @property
    def writer(self) -> bool:
        """Only rank 0 writes checkpoints; before the first membership is formed nobody does."""
        return self.formed and self.rank == 0

    # attaching

    def connect(self) -> None:
        """Install the handler, connect and say who we are. A supervisor that is gone already counts as a request to
        suspend; raises Refused if it does not take us."""
        if not self.inside:
            return
        self._install()
        if self._batch:
            heed(self._terminated, self._signal)
        try:
            self._channel = Channel(self._socket)
        except OSError:
            self._asked = True
            return
        body = {"pid": os.getpid(), "rank": self.rank, "incarnation": self.incarnation}
        self.send("attach", **body, membership=self.membership, handler=self._handles, says_loop=True)
        until = time.monotonic() + ANSWER_WAIT_S
        while (left := until - time.monotonic()) > 0:
            message = self.receive(left)
            if message is None or message["type"] == "attached":
                return

    def _install(self) -> None:
        # The handler stays while saving, too: it only sets a flag, and a signal that was ignored for that time would
        # look, in /proc, as if nobody handled it.
        if self._signal is None or threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.signal(self._signal, self._on_signal)
        self._handles = True

    def _terminated(self) -> bool:
        """In a batch job, whose SIGTERM comes to all: whether this one is meant to end this rank without a save."""
        if self._exiting:
            return False
        while self._channel is not None and not self._channel.gone and self.receive(0.0) is not None:
            continue
        if self._channel is None or self._channel.gone or self._ended:
            return True
        if self.rescale == "restart":
            self._asked = True  # as the agent will ask in a moment; ranks that may go on without their node wait for it
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def disown(self) -> None:
        """In a forked child: it is not this rank, so it neither holds the channel nor catches the signal."""
        if self._channel is not None:
            self._channel.close(shared=True)
            self._channel = None
        if self._signal is not None and self._handles:
            signal.signal(self._signal, signal.SIG_DFL if self._before is None else self._before)
            self._handles = False
        self.inside = False

    # the channel

    def send(self, kind: str, **body: object) -> bool:
        """Send an essential packet, waiting some seconds for a channel that is full; then training goes on."""
        return self._channel is not None and self._channel.send(kind, body, ESSENTIAL_WAIT_S)

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        """The next packet, or None; what it asks for (suspend, rescale, leave) is remembered. Raises Refused."""
        if self._channel is None:
            return None
        with self._reading:
            message = self._channel.receive(wait_s)
            if message is not None:
                self._heed(message)
            if self._channel.gone:
                self._asked = True
        return message

    def _heed(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "suspend":
            self._asked = True
        elif kind == "rescale":
            wanted = from_packet(message)
            if wanted is not None and wanted.number > (0 if self.target is None else self.target.number):
                self.target = wanted
                self.leaving = False
        elif kind == "leave":
            self.leaving = True
        elif kind == "end":
            self._ended = True
        elif kind == "refused":
            raise Refused(f"the supervisor refused rank {self.rank}: {message.get('why', 'no reason given')}")

    @property
    def asked(self) -> bool:
        """As `should_suspend`, from what has been read so far."""
        return self._asked

    def should_suspend(self) -> bool:
        """True once a suspend was asked for, by signal or on the channel, or once the supervisor is gone. Who asks can
        save: before the first call, and before `ready`, a suspend ends the trainer at once.

        This is a step boundary: where the job shares its GPUs as a background, it waits here for its step gate."""
        if not self._loops:
            self._loops = self.send("loop")
        if self.page is not None and self._gate is not None:
            self._gate.boundary()
        return self.poll()

    @property
    def run_folder(self) -> Path:
        """The folder of the attempt on this node."""
        return Path(self._socket).parent

    @property
    def page(self) -> step_gate.SharePage | None:
        """What a job that shares its GPUs has in common with its agent, None for any other; once it has its GPUs."""
        if not self._knows_gate:
            self._knows_gate = True
            self._make_gate(self._environ.get("HPCDL_SHARE", ""))
        return None if self._gate is None else self._gate.page

    def _make_gate(self, role: str) -> None:
        from hpcdl.trainer.group.peers import size

        try:
            if role in (step_gate.FOREGROUND, step_gate.BACKGROUND):
                self._gate = step_gate.StepGate(self, self.run_folder, role, size(self._environ))
        except (OSError, ValueError) as error:
            log.warning("no step gate: %s", error)

    def poll(self) -> bool:
        """As `should_suspend`, where nothing was trained yet and there is nothing to save."""
        if self._asked or self._channel is None:
            return self._asked
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + POLL_INTERVAL_S
            while self.receive(0.0) is not None:
                pass
        return self._asked

    def require_first_training(self) -> None:
        """Raises RuntimeError where this process has completed a training: another would go on from the checkpoint of
        that one. Every rank calls it before it loads anything."""
        if self._complete and (self.inside or self.checkpoint_dir is not None):
            raise RuntimeError(ONE_TRAINING)

    def ready(self, step: int) -> None:
        """The training loop begins with `step` steps done. Raises RuntimeError where one was completed before;
        SystemExit (65) at step 0 where the job had saved: its user is asked."""
        self.require_first_training()
        if int(step) == 0:
            found = "" if self._durable is None else f", though it resumed from {self._durable.path}"
            self._require_checkpoint(f"its script begins at step 0{found}")
        self._loops = True
        self.send("ready", step=int(step))

    def progress(
        self,
        step: int,
        total: int | None = None,
        samples: int | None = None,
        metric: float | None = None,
        **more: Any,
    ) -> None:
        """Report how far training is; cheap enough for every step, and dropped when the channel is full.

        `metric`: what `submit --accuracy` is about, as often as it is known. `more`: other numbers by name, loss=0.3,
        of which hpcdl keeps a curve as it does of the metric; tensors are read only when they are sent. What cannot be
        sent at once goes with the next call.
        """
        if self._channel is None:
            return
        if metric is not None:
            value = float(detached(metric))
            if math.isfinite(value):
                self._metric = value
            else:
                more["metric"] = value
        if more:
            self._metrics.take(more)
        self._total = self._total if total is None else int(total)
        self._place = step, self._total, samples
        now = time.monotonic()
        if now < (self._next_progress if self._metric is None else self._next_metric):
            return
        self._next_progress = now + PROGRESS_INTERVAL_S
        self._send_progress()

    @property
    def progress_due(self) -> bool:
        """Whether the next `progress` would be sent: what is costly to measure need not be measured before."""
        return self._channel is not None and time.monotonic() >= self._next_progress

    def measure(self, numbers: Mapping[str, Any]) -> None:
        """Numbers by name, of which curves are kept, to go with the next `progress`."""
        if self._channel is not None:
            self._metrics.take(numbers)

    def _send_progress(self) -> None:
        """Send the last place, with what was measured and not sent yet."""
        if self._channel is None or self._place is None:
            return
        step, total, samples = self._place
        body: dict[str, object] = {"step": int(step), "total": total}
        body["samples"] = None if samples is None else int(samples)
        numbers = self._metrics.numbers()
        if self._metric is not None:
            body["metric"] = self._metric
        if numbers:
            body["metrics"] = numbers
        if self._channel.send("progress", body):
            self._metrics.sent()
            if self._metric is not None:
                self._metric = None
                self._next_metric = self._next_progress

    def _flush(self) -> None:
        """Send what was measured and could not be sent at once."""
        if self._metric is not None or self._metrics:
            self._send_progress()

    def done(self, step: int) -> None:
        """Training is complete after `step` steps."""
        self._flush()
        self._complete = True
        self.send("done", step=int(step))
        self._watch_script_end()

    def end_early(self, step: int, save: Callable[[], object]) -> None:
        """A `break` has left the loop after `step` steps: `save()` writes the last checkpoint. Raises nothing, for of
        what a generator raises while it is dropped Python only prints a traceback."""
        if os.getpid() != self._pid:
            return  # a forked child of the loop's, which is no rank
        try:
            save()
        except StaleIncarnation as error:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(error.code or 0))
        except Exception as error:
            log.error("the last checkpoint, of step %d, failed, and training is not complete: %s", step, error)
        else:
            self.done(step)

    def _watch_script_end(self) -> None:
        """What follows the last step is a part of the job until the script has come to its end, which is said."""
        if self.inside and self._script_end is None:
            self._script_end = ScriptEnd(self._left)

    def _left(self) -> None:
        if not self._exiting:
            self.send("left")

    # memberships

    def join(self, address: str) -> None:
        """Say that this rank is ready to be taken into a membership; `address`: of the store that a node's lead rank
        keeps, "" from the others. Until `adopt` it writes nothing."""
        self.formed = False
        self.membership = 0
        self.send("join", address=address)

    def adopt(self, membership: int, rank: int) -> None:
        """This rank is number `rank` of the membership from now on; rank 0 claims the checkpoint folder for it, and
        goes on where that cannot be written. Raises StaleIncarnation."""
        self.membership = membership
        self.rank = rank
        self.formed = True
        if self._gate is not None:
            self._gate.adopt(membership)
        if rank == 0 and self.inside and self.checkpoint_dir is not None:
            try:
                mine, job = self.incarnation, int(self.job or 0)
                checkpoints.claim(self.checkpoint_dir, job, mine, membership, self.tag, self.identity)
            except StaleIncarnation as error:
                log.error("%s", error)
                raise
            except OSError as error:
                log.warning("the claim of membership %d could not be written: %s", membership, error)

    def reformed(self, step: int, seconds: float) -> None:
        """The membership trains, at `step`, after `seconds` without progress. Rank 0 says it."""
        self.send("reformed", membership=self.membership, step=int(step), seconds=round(seconds, 6))

    def broken(self, step: int, why: str) -> None:
        """The ranks lost each other at `step`; this one keeps its state and waits for the next membership."""
        self.send("broken", membership=self.membership, step=int(step), why=why[:1000])

    # checkpoints

    def resume(self, before: Checkpoint | None = None) -> Checkpoint | None:
        """The best checkpoint that is whole, or None to begin at step 0. If it turns out not to load, pass it as
        `before` and get the one before it. It is read, and one that is not what was written is set aside and not given.
        Raises StaleIncarnation; DamagedCheckpoints where there are some, and none is whole; SystemExit (65) where there
        is none, and the job had saved; RuntimeError where this process has completed a training."""
        self.require_first_training()
        if self.checkpoint_dir is None:
            return None
        if self.inside:
            checkpoints.check_claim(self.checkpoint_dir, self.incarnation, self.tag, self.membership, self.identity)
        if before is not None and self.writer:
            self._passed_over(before, before.path, "it does not load")
        folders = [each for each in (self._local, self.checkpoint_dir) if each is not None]
        marked = [each for folder in folders for each in checkpoints.marked(folder, self._only)]
        for found in sorted(marked, key=lambda each: each.order, reverse=True):  # of two the same, this node's first
            if before is not None and found.order >= before.order:
                continue
            if self._is_whole(found):
                self._durable = _Durable(found.step, found.path, 0.0)
                self._bytes = 0 if self._local is None else checkpoints.size(found)
                return found
        self._durable = None
        for folder in folders:
            if before is None and (names := checkpoints.aside(folder)):
                error = checkpoints.DamagedCheckpoints(folder, names, self.job)
                log.error("%s", error)
                self.send("damaged", step=None, path="", why=str(error)[:2000])
                raise error
        if before is None:
            self._require_checkpoint(f"no checkpoint that can be used was found in {self.checkpoint_dir}")
        return None

    def _require_checkpoint(self, why: str) -> None:
        """Ends the trainer, which would begin at step 0, where the job had saved: that must be its user's wish."""
        saved = self._environ.get("HPCDL_SAVED_STEP", "") if self.inside and self.writer else ""
        if saved.isdigit():
            log.error("%s, and step %s was saved: nothing is trained before hpcdl resume %s", why, saved, self.job)
            self.send("missing", step=int(saved), why=why[:1000])
            raise SystemExit(os.EX_DATAERR)

    def is_complete(self, found: Checkpoint | None, limits: Limits) -> bool:
        """Whether that checkpoint is the last of this job's training, and these limits leave nothing to train."""
        return found is not None and completion.is_complete(found.path, self.identity, limits)

    def stored(self, step: int, incarnation: int) -> Checkpoint | None:
        """The checkpoint that another rank of this node has chosen: on this node where it is, else in the shared
        folder; None without one."""
        if self._local is not None and os.path.lexists((here := checkpoints.at(self._local, step, incarnation)).path):
            return here
        return None if self.checkpoint_dir is None else checkpoints.at(self.checkpoint_dir, step, incarnation)

    def _is_whole(self, found: Checkpoint) -> bool:
        """Reads all of a checkpoint; one that is not what was written is set aside by the writer, and reported."""
        if not checkpoints.is_ours(found):
            return False
        try:
            why = checkpoints.damage(found)
            if not why:
                return True
            if self.rank != 0:
                return False
            where = checkpoints.set_aside(found)
        except FileNotFoundError:
            return False  # another rank has set it aside
        except OSError as error:
            log.warning("the checkpoint %s cannot be read, and is left out: %s", found.path, error)
            if self.rank == 0:
                self._passed_over(found, found.path, f"it cannot be read: {error}")
            return False
        log.warning("the checkpoint %s is damaged (%s): it is kept as %s, and not used", found.path.name, why, where)
        self._passed_over(found, where, why)
        return False

    def _passed_over(self, found: Checkpoint, where: Path, why: str) -> None:
        self.send("damaged", step=found.step, attempt=found.incarnation, path=str(where), why=why[:1000])

    @contextmanager
    def checkpoint(self, step: int, ranks: Gathering | None = None, anew: bool = False) -> Iterator[Path]:
        """Yields an empty folder to write a checkpoint of `step` into; see `checkpoints.write`. On ranks that are not
        the writer what is put into it is thrown away. Raises StaleIncarnation, OSError, and what the block raises.

        `anew`: one that was written at this step before is replaced.

        `ranks`: of a training whose every rank writes files of its own into the one checkpoint; all of them call
        this at the same step, and the folder is on a file system that all nodes share: `checkpoints.write_together`.

        On a node with a local tier it is written there, and drained by the supervisor. Where that fails for want of
        disk this raises as ever, and the next one goes straight to the shared folder; `save` does not wait for that.
        """
        if ranks is None and not self.writer:
            scratch = Path(tempfile.mkdtemp(prefix="hpcdl-scratch-"))
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            return
        if self.checkpoint_dir is None:
            raise ValueError("no checkpoint folder: submit with --checkpoint-dir, or give attach() a checkpoint_dir")
        step = int(step)
        if self.writer:
            self.send("saving", step=step)
        began = time.monotonic()
        mine, local = self.incarnation, self._saves_locally(ranks)
        directory = local or self.checkpoint_dir
        tier = Tier(self.checkpoint_dir, mine, self.tag, self.membership, self.identity, local=local is not None)
        new = anew or not self.inside
        try:
            with (
                checkpoints.write(directory, step, mine, new, tier=tier)
                if ranks is None
                else checkpoints.write_together(
                    directory, step, mine, ranks.gather, self.rank, self.local_rank, new, tier=tier
                )
            ) as temporary:
                yield temporary
        except BaseException as error:
            number = errno.ESTALE if isinstance(error, StaleIncarnation) else getattr(error, "errno", None)
            why = f"{type(error).__name__}: {error}"[:1000]
            if self.writer:
                self.send("save_failed", step=step, errno=number if isinstance(number, int) else None, why=why)
            if isinstance(error, StaleIncarnation):
                log.error("%s", error)  # an exit says nothing by itself
            elif local is not None and isinstance(error, OSError):
                self._leave_local(str(error))
            raise
        written = checkpoints.at(directory, step, self.incarnation)
        self._durable = _Durable(step, written.path, time.monotonic() - began)
        self._bytes = 0 if local is None else checkpoints.size(written)
        if self.writer:
            self._say_saved(self._durable, final=False)

    def save(
        self,
        step: int,
        write: Callable[[Path], object],
        together: Gathering | None = None,
        others: Gathering | None = None,
        complete: Limits | None = None,
    ) -> None:
        """A checkpoint of `step`, of the files that `write(folder)` puts there. Where node-local storage takes none it
        is called again, for the shared folder. Raises as `checkpoint`.

        `complete`: it is the training's last one, which had these limits (see `completion.py`).
        `together`: as `ranks` there. `others`: the ranks that call this at the same step, where only one writes.
        """
        last = complete is not None

        def whole(folder: Path) -> None:
            write(folder)
            if complete is not None and self.writer:
                completion.mark(folder, self.identity, complete)

        failure: Exception | None = None
        tried = self._local is not None and not self._local_failed
        try:
            with self.checkpoint(step, together, last) as folder:
                whole(folder)
        except Exception as error:
            failure = error
        said = "1" if tried and isinstance(failure, OSError) else "0" if failure is None else "x"
        again, ranks = said == "1", together or others
        if self._local is not None and ranks is not None:  # whatever failed here: the others wait in this
            words = ranks.gather(said)
            again = "1" in words and "x" not in words
        if again:
            self._leave_local("another rank's failed")
            with self.checkpoint(step, together, last) as folder:
                whole(folder)
        elif failure is not None:
            raise failure

    def _saves_locally(self, ranks: Gathering | None) -> Path | None:
        """The folder on this node, where the next checkpoint is to be written there."""
        if self._local is None:
            return None
        if not self._local_failed and self._bytes and (self.writer or ranks is not None):
            try:
                free = shutil.disk_usage(self._local).free
            except OSError as error:
                self._leave_local(str(error))
            else:
                if free < self._bytes:
                    self._leave_local(f"{free >> 20} MiB are free, and the last one had {self._bytes >> 20}")
        if ranks is not None and "1" in ranks.gather("1" if self._local_failed else "0"):
            self._leave_local("another rank's failed")
        return None if self._local_failed else self._local

    def _leave_local(self, why: str) -> None:
        if not self._local_failed:
            self._local_failed = True
            if self.rank == 0:
                log.warning(
                    "checkpoints go straight to %s, for %s takes none: %s", self.checkpoint_dir, self._local, why
                )

    def _say_saved(self, durable: _Durable, final: bool) -> None:
        body = {"incarnation": self.incarnation, "membership": self.membership, "step": durable.step}
        self.send("saved", **body, path=str(durable.path), seconds=round(durable.seconds, 6), final=final)
        if self._total is not None and durable.step >= self._total:
            self._watch_script_end()  # its script may not say that it is done

    def exit_suspended(self, hard: bool = False, quick: bool = False) -> NoReturn:
        """Name the last durable checkpoint as the final one, wake the supervisor, and exit with 0; with 143 if there
        is no checkpoint, since an exit of 0 would say that training is complete.

        The exit is the interpreter's own (SystemExit), which ends data loaders' processes, but for its teardown where
        nothing is lost by that (see exit.py): the GPUs are waited for. `quick`: without the teardown in any case.
        `hard` leaves by os._exit instead, for programs whose threads do not end, and such processes then linger until
        they notice.
        """
        code = 0
        self._exiting = True
        self._flush()
        if self.inside and self.writer:
            if self._durable is None:
                code = ENDED_UNSAVED
            else:
                self._say_saved(self._durable, final=True)
            if self._channel is not None:
                self._channel.notify()
        self.close()
        if hard:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if quick or exit.nothing_is_lost():
            exit.leave(code)
        raise SystemExit(code)

    def leave(self, code: int) -> NoReturn:
        """Nothing is left to do here: close the channel and exit, quickly."""
        self.close()
        exit.leave(code)

    def close(self) -> None:
        """Close the channel, after what was sent on it; again is no error."""
        if self._channel is not None:
            self._channel.close()


def _rank(environ: Mapping[str, str]) -> int:
    step = ("SLURM_PROCID",) if environ.get("SLURM_STEP_NUM_TASKS") else ()  # a batch script has a number, too: 0
    for name in (*RANK_VARIABLES, *step):
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    if all(environ.get(name, "").isdigit() for name in LIGHTNING):
        # Lightning starts the ranks of a node itself, and numbers them by these alone.
        local, node, size = (int(environ[name]) for name in LIGHTNING)
        return node * (size // _nodes(environ)) + local
    value = environ.get("HPCDL_NODE_RANK", "")
    return int(value) if value.isdigit() else 0


def _nodes(environ: Mapping[str, str]) -> int:
    return max(1, len([name for name in environ.get("HPCDL_NODES", "").split(",") if name]))


_lock = threading.Lock()

_session: Session | None = None


def attach(rank: int | None = None, checkpoint_dir: str | Path | None = None) -> Session:
    """This process's session, made at the first call; later calls return the same one. Call it first of all, before
    heavy imports: from then on a suspend is noticed. `rank` overrules what launchers say in the environment,
    HPCDL_CHECKPOINT_DIR overrules `checkpoint_dir`. Raises Refused."""
    global _session
    with _lock:
        if _session is None:
            session = Session(os.environ, rank, checkpoint_dir)
            session.connect()
            _session = session
        elif _session.checkpoint_dir is None and checkpoint_dir is not None:
            _session.checkpoint_dir = Path(checkpoint_dir)
        return _session


def _after_fork() -> None:
    global _session, _lock
    _lock = threading.Lock()
    if _session is not None:
        _session.disown()
        _session = None


os.register_at_fork(after_in_child=_after_fork)

QUIET = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that a batch system sends to every process of a batch job when it wants nodes back, this one included.

They are the agent's to answer: it asks for a suspend, or has the rank leave. By default they would end a trainer that
is about to be asked to save. What the script handles itself is left alone."""


def heed(on_terminate: Callable[[], bool], kept: signal.Signals | None) -> None:
    """In the main thread: only a SIGTERM for which `on_terminate` is true ends this process, the others do nothing.

    `kept`: the signal by which a suspend is asked for; it has a handler already.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    mine = os.getpid()
    for number in QUIET:
        if number is not kept and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _nothing)
    if kept is signal.SIGTERM or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def terminated(number: int, frame: FrameType | None) -> Any:
        # A forked child, a data loader's say, is ended by it as ever.
        if os.getpid() != mine or on_terminate():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)


def _nothing(number: int, frame: FrameType | None) -> None:
    """To be woken is all; unlike SIG_IGN, a program that this one starts does not inherit it."""
