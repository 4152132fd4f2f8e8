"""Runs the commands of batch systems: with a deadline, a bound on what they print, and a clean environment.

Never a shell string; what a command starts ends with it. `Commands` counts them for the daemon, which can end the one
that runs.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hpcdl.batch.adapter import TIMEOUT_S, Completed
from hpcdl.batch.system import BatchError, systems

T = TypeVar("T")

LARGEST = 256 << 20
"""Bytes that a command may print: a list of all nodes in JSON has some tens of MiB on the largest clusters."""


def run(
    argv: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    on_start: Callable[["subprocess.Popen[bytes]"], None] | None = None,
) -> Completed:
    """See `CommandRunner`. `env`: variables over those of `environment`. A command that is too late, or that prints
    more than LARGEST, is ended with what it started.

    `on_start` is called with the process once it runs.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment(os.environ), **(env or {})},
            start_new_session=True,
        )
    except OSError as error:
        raise BatchError(f"cannot run {argv[0]}: {error.strerror}", away=True) from None
    with process:
        if on_start is not None:
            on_start(process)
        try:
            out, err = _talk(process, stdin.encode(), began + timeout_s)
        except TimeoutError:
            _kill(process)
            raise BatchError(f"{argv[0]} has not answered within {timeout_s:g} s", away=True) from None
        except OverflowError:
            _kill(process)
            raise BatchError(f"{argv[0]} has printed more than {LARGEST >> 20} MiB: that is no answer") from None
    text = (out.decode(errors="replace"), err.decode(errors="replace"))
    return Completed(*text, process.returncode, time.monotonic() - began)


def understood(command: str, parse: Callable[[], T], *, again: bool = False) -> T:
    """What `parse` makes of what a command printed. Raises BatchError, with the command's name, where it makes nothing
    of it (it raises BatchError or ValueError)."""
    try:
        return parse()
    except ValueError as error:
        raise BatchError(f"{command}: {error}", again=again) from None
    except BatchError as error:
        raise BatchError(f"{command}: {error}", away=error.away) from None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What commands of a batch system are run with: nothing in it changes what they print."""
    shapes = [system.output_variables for system in systems()]
    kept = {name: value for name, value in environ.items() if not any(shape.fullmatch(name) for shape in shapes)}
    # Our own commands are never for the drop-ins of jobscripts/, which may be the first sbatch or bsub in PATH.
    return {**kept, "LC_ALL": "C", "HPCDL_BYPASS": "1"}


def _talk(process: "subprocess.Popen[bytes]", stdin: bytes, end: float) -> tuple[bytes, bytes]:
    """What it prints, until it has ended. Raises TimeoutError at `end` (monotonic), OverflowError above LARGEST."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: PT018
    printed = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in printed:
            waiting.register(stream, selectors.EVENT_READ)
        os.set_blocking(process.stdin.fileno(), False)
        waiting.register(process.stdin, selectors.EVENT_WRITE)
        while waiting.get_map():
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            for key, _ in waiting.select(left_s):
                if key.fileobj is process.stdin:
                    with contextlib.suppress(BrokenPipeError):
                        stdin = stdin[os.write(key.fd, stdin[:65536]) :] if stdin else b""
                        if stdin:
                            continue
                    waiting.unregister(process.stdin)
                    process.stdin.close()
                    continue
                piece = os.read(key.fd, 65536)
                if not piece:
                    waiting.unregister(key.fileobj)
                    continue
                for stream, text in printed.items():
                    if stream is key.fileobj:
                        text += piece
                if sum(map(len, printed.values())) > LARGEST:
                    raise OverflowError
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    out, err = printed.values()
    return bytes(out), bytes(err)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends a command that `run` started, with what it started: at some sites they are scripts around the real ones."""
    if process.returncode is None:  # nobody has waited for it, so its number is still its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Commands:
    """A `CommandRunner` that counts what it runs, and that another thread can end, whatever runs just then."""

    def __init__(self, run: Callable[..., Completed] = run) -> None:
        """`run`: as the function of this module."""
        self.count = 0
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """See `CommandRunner`. For one thread."""
        if self._ended:
            raise BatchError(f"{argv[0]} is not run any more: the daemon ends", away=True)
        self.count += 1
        try:
            return self._run(argv, timeout_s, stdin=stdin, env=env, on_start=self._started)
        finally:
            self._process = None

    def _started(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        if self._ended:
            _kill(process)

    def end(self) -> None:
        """Kills the command that runs, if one does, with what it started; later ones fail."""
        self._ended = True
        process = self._process
        if process is not None:
            _kill(process)
