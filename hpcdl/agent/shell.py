"""Commands beside a trainer (`hpcdl exec` and `attach`) on this node: pipes or a terminal, from start to end.

They are no part of the attempt: they have no HPCDL_TAG, speak with no supervisor, and are ended before the GPUs are
looked at. What carries their own tag, HPCDL_SHELL, and what is below it, goes with them.
"""

import asyncio
import base64
import contextlib
import fcntl
import logging
import os
import pty
import signal
import subprocess
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.agent.orphans import Orphans
from hpcdl.agent.report_log import Key
from hpcdl.agent.supervisor import launch, process_file, processes
from hpcdl.agent.supervisor.process_file import ProcessFile
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor.resources import mark
from hpcdl.agent.supervisor.start_file import read_start
from hpcdl.wire import messages as msg
from hpcdl.wire.child import dies_with
from hpcdl.wire.private_files import NotPrivate, open_private_folder

log = logging.getLogger("hpcdl.agent")

STDIN, STDOUT, STDERR = 0, 1, 2

KILL_S = 1.0
"""Seconds between SIGTERM and SIGKILL for what is left of it."""

LOOK_S = 0.05

WATCH_S = 5.0

IDLE_S = 4 * 3600.0
"""A terminal on which nothing is typed and nothing printed for so long is closed."""

END_OF_INPUT = b"\x04"  # what a terminal takes for it

SHELL_KILLED = 128  # and the signal's number, as shells have it

SIGNALS = frozenset({"INT", "TERM", "QUIT", "HUP"})


@dataclass(frozen=True, slots=True)
class ShellTarget:
    """Where a command is to run. `tag`: names the part of the incarnation; `env`: complete, but for its own tag;
    `mark`: that of the incarnation's processes."""

    tag: str
    cwd: str
    env: Mapping[str, str]
    mark: int = 0


class Shell:
    """One command beside a trainer. Everything belongs to the event loop's thread. `send` gets the messages to the
    other end, at most SHELL_WINDOW bytes a stream more than it has taken."""

    def __init__(
        self,
        opened: msg.ShellOpenMessage,
        place: ShellTarget,
        send: Callable[[msg.ShellMessage], None],
        orphans: Orphans,
    ) -> None:
        self._opened = opened
        self._orphans = orphans
        self._place = place
        self._hand_on = send
        self._tag = f"{place.tag}:{opened.id}"
        self._process: subprocess.Popen[bytes] | None = None
        self._out: dict[int, int] = {}
        self._credit = {STDOUT: msg.SHELL_WINDOW, STDERR: msg.SHELL_WINDOW}
        self._in: int | None = None
        self._input: deque[bytes] = deque()
        self._input_over = False
        self._told_early: list[msg.ShellToldMessage] = []
        self._why = ""
        self._silent = False
        self._ended = asyncio.Event()
        self._drained = asyncio.Event()
        self._stirred = False
        self.gone = asyncio.Event()
        """No process of it is left."""

    @property
    def pid(self) -> int:
        """Of its first process while that is not reaped, else 0."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    @property
    def _terminal(self) -> bool:
        return self._opened.rows > 0

    # --- its life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From its start until nothing of it is left and its output was handed on, or nobody is there to take it."""
        code: int | None = None
        try:
            code = await self._live()
        except Exception as error:  # one session's trouble is nobody else's
            log.exception("a session failed")
            self._why = f"the session failed: {type(error).__name__}"
            await self._clear()
        finally:
            self.gone.set()
            self._close()
            self._send(msg.ShellEndMessage(self._opened.id, code, self._why))

    async def _live(self) -> int | None:
        try:
            self._process = await asyncio.to_thread(self._orphans.start, self._start)
        except FileNotFoundError as error:
            place = error.filename == self._place.cwd
            self._why = f"the job's folder is gone: {error.filename}" if place else f"command not found: {self._name}"
            return None if place else launch.NOT_FOUND
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._why = f"{self._name} cannot be started: {error}"
            return launch.NOT_EXECUTABLE
        for stream in self._out:
            self._listen(stream)
        for told in self._told_early:  # what came before it had started
            self._told(told)
        self._feed()
        try:
            await self._until_over(self._process)
        finally:
            await self._clear()
        self.gone.set()
        status = self._process.wait()
        if not self._ended.is_set():  # what it wrote last is still on its way; who takes it slowly gets it, too
            await first_of(self._drained, self._ended)
        if self._why:
            return None
        return status if status >= 0 else SHELL_KILLED - status

    @property
    def _name(self) -> str:
        return self._opened.argv[0]

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._terminal:
            return self._start_on_terminal()
        process = self._popen(subprocess.PIPE, dies_with(os.getpid(), launch.lead), {})
        ends = []
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                ends.append(os.dup(pipe.fileno()))
                pipe.close()
                os.set_blocking(ends[-1], False)
        self._in, self._out = ends[STDIN], {STDOUT: ends[STDOUT], STDERR: ends[STDERR]}
        return process

    def _popen(self, end: int, prepare: Callable[[], None], more: dict[str, str]) -> "subprocess.Popen[bytes]":
        """Starts it with `end` as stdin, stdout and stderr, and `more` variables."""
        number = self._place.mark

        def first() -> None:
            prepare()
            mark(number)

        return subprocess.Popen(
            self._opened.argv,
            cwd=self._place.cwd,
            env={**self._place.env, VARIABLE: self._tag, **more},
            stdin=end,
            stdout=end,
            stderr=end,
            bufsize=0,
            start_new_session=True,
            preexec_fn=first,
        )

    def _start_on_terminal(self) -> "subprocess.Popen[bytes]":
        ours, theirs = pty.openpty()
        try:
            termios.tcsetwinsize(ours, (self._opened.rows, self._opened.columns))
            first = dies_with(os.getpid(), launch.lead)

            def prepare() -> None:
                first()
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

            process = self._popen(theirs, prepare, {"TERM": self._opened.term or "dumb"})
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._out = {STDOUT: ours}
        self._in = os.dup(ours)
        return process

    async def _until_over(self, process: "subprocess.Popen[bytes]") -> None:
        """Until its first process has ended, or somebody wants it to."""
        loop, over = asyncio.get_running_loop(), self._ended
        silent_s, pause = 0.0, WATCH_S
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # a kernel before 5.3
            descriptor, pause = -1, LOOK_S
        first_gone = asyncio.Event()
        if descriptor >= 0:
            loop.add_reader(descriptor, first_gone.set)
        try:
            while process.poll() is None and not over.is_set():
                await first_of(first_gone, over, within_s=pause)
                silent_s = 0.0 if self._stirred else silent_s + pause
                self._stirred = False
                if self._terminal and silent_s > IDLE_S:
                    self.end(f"nothing was typed and nothing printed for {IDLE_S / 3600:.0f} h")
        finally:
            if descriptor >= 0:
                loop.remove_reader(descriptor)
                os.close(descriptor)

    async def _clear(self) -> None:
        """Ends what is left of it: asked first, killed then."""
        process, loop = self._process, asyncio.get_running_loop()
        asked, kill_at, none_before = False, loop.time() + KILL_S, False
        while True:
            # Once it was reaped, its number may be another's.
            root = process.pid if process is not None and process.poll() is None else None
            left = await asyncio.to_thread(beside, self._tag, root)
            if not left:  # what hid from us was handed on to this agent when the first process ended
                if root is None and not await asyncio.to_thread(self._orphans.end):
                    if none_before:
                        return
                    none_before = True  # what is being forked while /proc is listed is not in that list
                    continue
            none_before = False
            for each in left:
                if loop.time() >= kill_at:
                    processes.signal_process(each, signal.SIGKILL)
                elif not asked:
                    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
                        processes.signal_process(each, number)
            asked = True
            await asyncio.sleep(LOOK_S)

    def end(self, why: str, silent: bool = False) -> None:
        """Ends the command, within a second. `silent`: nobody is there to hear of it."""
        self._why = self._why or why
        self._silent = self._silent or silent
        self._ended.set()

    # --- what comes ------------------------------------------------------------------------------------------------

    def take(self, message: msg.ShellMessage) -> None:
        """What the other end sends. One that breaks the rules ends it."""
        self._stirred = True
        match message:
            case msg.ShellDataMessage():
                self._take_input(message)
            case msg.ShellTakenMessage(stream=stream, size=size) if stream in self._credit and size > 0:
                before = self._credit[stream]
                self._credit[stream] = min(msg.SHELL_WINDOW, before + size)
                if before <= 0:
                    self._listen(stream)
            case msg.ShellToldMessage():
                self._told(message)
            case msg.ShellEndMessage():
                self.end(message.why or "it was given up", silent=True)

    def _take_input(self, message: msg.ShellDataMessage) -> None:
        try:
            data = base64.b64decode(message.data, validate=True)
        except ValueError:
            self.end("its input was not understood")
            return
        if sum(map(len, self._input)) + len(data) > msg.SHELL_WINDOW + msg.SHELL_CHUNK:
            self.end("more input came than was asked for")
            return
        if data:
            self._input.append(data)
        elif self._terminal:
            self._input.append(END_OF_INPUT)
        else:
            self._input_over = True
        self._feed()

    def _feed(self) -> None:
        if self._in is not None and (self._input or self._input_over):
            asyncio.get_running_loop().add_writer(self._in, self._write)
        elif self._process is not None:
            self._spill()

    def _write(self) -> None:
        if self._in is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while self._input:
                wrote = os.write(self._in, self._input[0])
                rest = self._input.popleft()[wrote:]
                if rest:
                    self._input.appendleft(rest)
                self._send(msg.ShellTakenMessage(self._opened.id, STDIN, wrote))
        except BlockingIOError:
            return
        except OSError:
            self._input_over = True  # it reads no more
            self._spill()
        loop.remove_writer(self._in)
        if self._input_over:
            os.close(self._in)
            self._in = None

    def _spill(self) -> None:
        """Nobody reads it: taken, so that the other end need not wait."""
        lost = sum(map(len, self._input))
        self._input.clear()
        if lost:
            self._send(msg.ShellTakenMessage(self._opened.id, STDIN, lost))

    def _told(self, message: msg.ShellToldMessage) -> None:
        process = self._process
        if process is None:
            self._told_early.append(message)
            return
        if process.poll() is not None:
            return
        if self._terminal and message.rows > 0 and self._in is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetwinsize(self._in, (message.rows, message.columns))
        if message.signal in SIGNALS:
            with contextlib.suppress(OSError):  # its own session, whose leader we have not reaped
                os.killpg(process.pid, signal.Signals[f"SIG{message.signal}"])

    # --- what goes -------------------------------------------------------------------------------------------------

    def _send(self, message: msg.ShellMessage) -> None:
        if not self._silent:
            self._hand_on(message)

    def _listen(self, stream: int) -> None:
        if stream in self._out:
            asyncio.get_running_loop().add_reader(self._out[stream], self._read, stream)

    def _read(self, stream: int) -> None:
        fd = self._out[stream]
        try:
            data = os.read(fd, min(msg.SHELL_CHUNK, self._credit[stream]))
        except BlockingIOError:
            return
        except OSError:
            data = b""  # how a terminal ends whose last process has gone
        loop = asyncio.get_running_loop()
        self._stirred = True
        self._credit[stream] -= len(data)
        self._send(msg.ShellDataMessage(self._opened.id, stream, base64.b64encode(data).decode()))
        if not data:
            loop.remove_reader(fd)
            os.close(self._out.pop(stream))
            if not self._out:
                self._drained.set()
        elif self._credit[stream] <= 0:
            loop.remove_reader(fd)

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in self._out.values():
            loop.remove_reader(fd)
            os.close(fd)
        self._out.clear()
        if self._in is not None:
            loop.remove_writer(self._in)
            os.close(self._in)
            self._in = None


async def first_of(*events: asyncio.Event, within_s: float | None = None) -> None:
    """Returns when one of them is set, or the time is over."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()


VARIABLE = "HPCDL_SHELL"
"""The tag of commands beside trainers: instance, job, attempt, node and the command's id."""

SWEEP_S = 2.0
"""Seconds of one attempt to end what an earlier agent left."""


def beside(wanted: str, root: int | None = None) -> list[Process]:
    """Processes of our uid whose HPCDL_SHELL is that, or begins with it and a colon; and what is at or below `root`."""
    found = processes.tagged(wanted, VARIABLE)
    if root is not None:
        found += processes.tree(root)
    return list({each.pid: each for each in found}.values())


def end_left_commands(instance: str, node: str, run: Path) -> int:
    """SIGKILL to what an earlier agent of this node left of such commands; how many processes there were. `run`: the
    agent's folder."""

    def left() -> list[Process]:
        found = [each for each in beside(instance) if _node(each) == node]
        return processes.kin([*found, *process_file.read_process_file(run).below])

    return len(processes.kill_all(left, SWEEP_S))


def _node(process: Process) -> str:
    tag = (processes.variable(process.pid, VARIABLE) or "").split(":")
    return ":".join(tag[3:-1])  # a node's name may hold colons


MOST = 16
"""So many at once on a node."""

NOT_FOR_OTHERS = ("HPCDL_TAG", "HPCDL_SOCKET", "HPCDL_CHECKPOINT_DIR", "HPCDL_LOCAL_CHECKPOINT_DIR")
"""By these a process would be a rank of the trainer, or write checkpoints as one."""


def place(folder: Path, tag: str, gpu_env: Mapping[str, str]) -> ShellTarget:
    """Where a command beside the trainer of this run folder runs: its environment and its folder, and the GPUs that it
    has now. Raises OSError and ValueError."""
    try:
        opened = open_private_folder(folder)
        try:
            start = read_start(opened)
        finally:
            os.close(opened)
    except NotPrivate as error:
        raise ValueError(str(error)) from None
    env = {name: value for name, value in start.env.items() if name not in NOT_FOR_OTHERS}
    if start.checkpoint_dir is not None:
        env["HPCDL_JOB_CHECKPOINT_DIR"] = start.checkpoint_dir
    return ShellTarget(tag, start.cwd, env | dict(start.gpu_env or {}) | dict(gpu_env), start.mark)


class Shells:
    """The commands beside the trainers of this node: opened, fed and ended as the daemon says. Everything belongs to
    the event loop's thread. `outgoing`: messages to the daemon."""

    def __init__(self, orphans: Orphans, run: Path) -> None:
        """`run`: the agent's folder, where their processes are recorded for the next agent."""
        self._orphans = orphans
        self._run = run
        self._file: ProcessFile | None = None
        self.outgoing: asyncio.Queue[msg.ShellMessage] = asyncio.Queue()
        self._open: dict[str, tuple[Key, Shell]] = {}
        self._early: dict[str, list[msg.ShellMessage]] = {}
        self._lives: set[asyncio.Task[None]] = set()

    def open(self, message: msg.ShellOpenMessage, place: Callable[[], Awaitable[ShellTarget | str]]) -> None:
        """Starts one. `place()`: where, or why it cannot be there. Never waits."""
        if len(self._open) + len(self._early) >= MOST:
            why = f"{MOST} commands and shells are open on this node: end one of them first"
            self.outgoing.put_nowait(msg.ShellEndMessage(message.id, None, why))
        elif message.id not in self._open and message.id not in self._early:
            self._early[message.id] = []
            life = asyncio.create_task(self._live(message, place))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)

    async def _live(self, message: msg.ShellOpenMessage, place: Callable[[], Awaitable[ShellTarget | str]]) -> None:
        key = (message.job, message.incarnation)
        where = await place()
        early = self._early.pop(message.id)
        if isinstance(where, str):
            self.outgoing.put_nowait(msg.ShellEndMessage(message.id, None, where))
            return
        shell = Shell(message, where, self.outgoing.put_nowait, self._orphans)
        self._open[message.id] = key, shell
        log.info("a %s was opened beside job %d.%d", "terminal" if message.rows else "command", *key)
        for each in early:
            shell.take(each)
        try:
            await shell.run()
        finally:
            del self._open[message.id]
            log.info("a session beside job %d.%d has ended", *key)

    def take(self, message: msg.ShellMessage) -> None:
        """What comes for one of them; what is over hears nothing."""
        if message.id in self._early:
            self._early[message.id].append(message)
        elif message.id in self._open:
            self._open[message.id][1].take(message)

    def end(self, key: Key, why: str) -> None:
        """Those beside this incarnation are to end: it goes."""
        for of, shell in self._open.values():
            if of == key:
                shell.end(why)

    def record(self, now: float) -> None:
        """About once a second, by any monotonic clock: writes down what runs below them."""
        roots = [pid for _, shell in self._open.values() if (pid := shell.pid)]
        if not roots and self._file is None:
            return
        if self._file is None:
            try:
                self._file = ProcessFile(open_private_folder(self._run))
            except (OSError, NotPrivate):
                return
        self._file.look(roots, now)

    async def gone(self, key: Key) -> None:
        """Returns once no process of those beside this incarnation is left."""
        for shell in [shell for of, shell in self._open.values() if of == key]:
            await shell.gone.wait()

    def parted(self) -> None:
        """The daemon is away, and with it whoever would hear of them: they end."""
        for _, shell in self._open.values():
            shell.end("the daemon went away", silent=True)
        for early in self._early.values():
            early.append(msg.ShellEndMessage("", None, "the daemon went away"))
        while not self.outgoing.empty():
            self.outgoing.get_nowait()

    async def close(self) -> None:
        """The agent ends: nothing of theirs stays."""
        self.parted()
        if self._lives:
            await asyncio.wait(self._lives, timeout=5.0)
