"""The process that stands by one run of a job: starts it, signals everything in it, and leaves nothing of it behind.

It is forked from the scheduler. What comes down its pipe: `SIG n`, a line each; the pipe's end is the scheduler's, and
then all is killed. It answers `started PID` and, when the job's own process and all that it left are gone,
`exited STATUS`, as of waitpid.
"""

import ctypes
import os
import select
import signal
from collections.abc import Mapping, Sequence

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


class Run:
    """What is run, and where its output goes; "" is /dev/null."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        files: tuple[str, str, str],
        over: tuple[bool, bool],
    ) -> None:
        self.argv, self.cwd, self.env, self.files, self.over = list(argv), cwd, dict(env), files, over


class Resident:
    """The scheduler's end of it."""

    def __init__(self, run: Run) -> None:
        answers, self._theirs = os.pipe()
        commands, mine = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(commands, 0)
                os.dup2(self._theirs, 1)
                os.closerange(3, 1024)
                code = _stand_by(run)
            finally:
                os._exit(code)
        os.close(commands)
        os.close(self._theirs)
        self.pid = pid
        self.answers = answers
        self._commands = mine
        self._text = b""

    def signal(self, number: int) -> None:
        try:
            os.write(self._commands, f"SIG {number}\n".encode())
        except BrokenPipeError:
            return

    def lines(self) -> list[str] | None:
        """What it has said since the last call; None once it has ended. Call it when `answers` is readable."""
        data = os.read(self.answers, 65536)
        if not data:
            return None
        *lines, self._text = (self._text + data).split(b"\n")
        return [line.decode() for line in lines]

    def close(self) -> None:
        """Kills what runs, and waits until it is gone."""
        os.close(self._commands)
        os.waitpid(self.pid, 0)
        os.close(self.answers)


def descendants(top: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found, unseen = [], [top]
    while unseen:
        below = children.get(unseen.pop(), [])
        found.extend(below)
        unseen.extend(below)
    return found


def signal_all(top: int, number: int) -> bool:
    """Whether there was anything below."""
    pids = descendants(top)
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
    return bool(pids)


def _stand_by(run: Run) -> int:
    os.setsid()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    main = _start(run)
    os.write(1, f"started {main}\n".encode())
    status, text = None, b""
    while status is None:
        ready, _, _ = select.select([0, woken], [], [], 1.0)
        if woken in ready:
            os.read(woken, 4096)
        status = _reap(main)
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                break
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                signal_all(os.getpid(), int(line.split()[1]))
    while signal_all(os.getpid(), signal.SIGKILL):
        select.select([woken], [], [], 0.01)
        _reap(0)
    if status is not None:
        os.write(1, f"exited {status}\n".encode())
    return 0


def _reap(main: int) -> int | None:
    """The status of the job's own process, once it has ended."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == main:
            found = status


def _start(run: Run) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(run.cwd)
        except OSError:
            os.chdir("/")
        stdin, stdout, stderr = run.files
        os.dup2(os.open(stdin or os.devnull, os.O_RDONLY), 0)
        os.dup2(_opened(stdout, run.over[0]), 1)
        os.dup2(_opened(stderr, run.over[1]) if stderr else 1, 2)
        os.closerange(3, 64)
        os.execvpe(run.argv[0], run.argv, run.env)
    except OSError as error:
        os.write(2, f"{run.argv[0]}: {error.strerror}\n".encode())
        code = 127
    finally:
        os._exit(code)


def _opened(path: str, over: bool) -> int:
    how = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if over else os.O_APPEND)
    return os.open(path or os.devnull, how, 0o666)
