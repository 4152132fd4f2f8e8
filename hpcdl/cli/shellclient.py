"""The client's end of `hpcdl exec` and `attach`: streams, signals and the terminal, over a WebSocket to the daemon."""

import base64
import contextlib
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hpcdl.client import ClientError
from hpcdl.wire.access import AccessError, read_access
from hpcdl.wire.messages import (
    MAX_MESSAGE,
    SHELL_CHUNK,
    SHELL_WINDOW,
    BadMessage,
    ShellDataMessage,
    ShellEndMessage,
    ShellMessage,
    ShellOpenMessage,
    ShellTakenMessage,
    ShellToldMessage,
    decode_message,
    encode_message,
)
from hpcdl.wire.tls import client_context

STDIN, STDOUT, STDERR = 0, 1, 2
OPEN_S = 15.0
PING_S = 10.0
WAKE_S = 0.25
"""Signals are handled when this thread runs; one that the kernel gave to another thread does not wake it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: the command's exit code, None where there is none; and why, where that is not its own doing."""

    code: int | None
    why: str = ""


def run(home: Path, job: int, argv: tuple[str, ...], node: str, terminal: bool) -> Ended:
    """Runs a command beside a job, with this process's streams, and returns when it is over. Raises ClientError.

    On a terminal this one is raw meanwhile, and as it was afterwards, whatever happens but SIGKILL.
    """
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
    from websockets.sync.client import connect

    try:
        access = read_access(home)
        host = f"[{access.host}]" if ":" in access.host else access.host
        socket = connect(
            f"wss://{host}:{access.port}/v1/jobs/{job}/shell",
            ssl=client_context(access.certificate),
            additional_headers={"Authorization": f"Bearer {access.token}"},
            max_size=MAX_MESSAGE,
            max_queue=None,  # what is under way is bounded by what we say we took
            open_timeout=OPEN_S,
            close_timeout=1.0,
            ping_interval=PING_S,
            compression=None,
            proxy=None,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        if status == 403:
            raise ClientError("the token is not this daemon's owner's: only its user may run commands there") from None
        raise ClientError(f"the daemon refused with status {status}: use the daemon's hpcdl") from None
    except (AccessError, OSError, WebSocketException, TimeoutError) as error:
        raise ClientError(f"the daemon of {home} cannot be reached ({error}): hpcdl daemon status") from None
    rows, columns = _size() if terminal else (0, 0)
    streams = _Streams(terminal)
    try:
        socket.send(encode_message(ShellOpenMessage(argv, "", 0, 0, node, rows, columns, os.environ.get("TERM", ""))))
        sender = threading.Thread(target=_send_all, args=(socket, streams), daemon=True)
        sender.start()
        with _raw() if terminal else contextlib.nullcontext(), streams.signals():
            threading.Thread(target=streams.read_input, daemon=True).start()
            while True:
                try:
                    message = decode_message(socket.recv(WAKE_S))
                except TimeoutError:
                    continue
                if isinstance(message, ShellEndMessage):
                    return Ended(message.code, message.why)
                streams.take(message)  # type: ignore[arg-type]
    except ConnectionClosed:
        return Ended(None, "the daemon went away, and the session with it: once it runs again, begin anew")
    except BadMessage as error:
        return Ended(None, f"the daemon sent what is not understood: {error}")
    except BrokenPipeError:
        return Ended(128 + signal.SIGPIPE)
    finally:
        streams.stop()
        with contextlib.suppress(Exception):
            socket.close()


def _send_all(socket: object, streams: "_Streams") -> None:
    """Sends what is put in line, until the end of it or of the connection; the receiving side tells of the latter."""
    while (message := streams.outgoing.get()) is not None:
        try:
            socket.send(encode_message(message))  # type: ignore[attr-defined]
        except Exception:
            return


class _Streams:
    """Stdin, stdout and stderr of this process, and what is to be sent."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        # Signal handlers put into it, too: it must not have a lock of Python's.
        self.outgoing: queue.SimpleQueue[ShellMessage | None] = queue.SimpleQueue()
        self._credit = SHELL_WINDOW
        self._more = threading.Condition()
        self._wake, self._waker = os.pipe()
        self._over = False
        self._interrupts = 0

    def stop(self) -> None:
        """Nothing is read or sent from here on."""
        self._over = True
        with self._more:
            self._more.notify_all()
        with contextlib.suppress(OSError):
            os.close(self._waker)
        self.outgoing.put(None)

    # --- in --------------------------------------------------------------------------------------------------------

    def read_input(self) -> None:
        """A thread's: stdin as far as the other end takes it, and its end."""
        while not self._over:
            with self._more:
                while self._credit <= 0 and not self._over:
                    self._more.wait()
                size = min(SHELL_CHUNK, self._credit)
            try:
                ready, _, _ = select.select([STDIN, self._wake], [], [])
                if self._wake in ready or self._over:
                    return
                data = os.read(STDIN, size)
            except OSError:
                data = b""  # stdin is closed, or not ours to read
            with self._more:
                self._credit -= len(data)
            self.outgoing.put(ShellDataMessage("", STDIN, base64.b64encode(data).decode()))
            if not data:
                return

    # --- out -------------------------------------------------------------------------------------------------------

    def take(self, message: ShellMessage) -> None:
        """What the command printed, or took. Raises BrokenPipeError where nobody reads it here."""
        if isinstance(message, ShellTakenMessage) and message.stream == STDIN:
            with self._more:
                self._credit += message.size
                self._more.notify_all()
        elif isinstance(message, ShellDataMessage) and message.stream in (STDOUT, STDERR):
            data = base64.b64decode(message.data)
            left = memoryview(data)
            while left:
                try:
                    left = left[os.write(message.stream, left) :]
                except BlockingIOError:
                    select.select([], [message.stream], [])
            if data:
                self.outgoing.put(ShellTakenMessage("", message.stream, len(data)))

    # --- signals ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Meanwhile SIGINT is the command's, and the window's size is passed on."""
        handled = {signal.SIGINT: self._interrupted, signal.SIGTERM: _leave, signal.SIGHUP: _leave}
        if self._terminal:
            handled |= {signal.SIGWINCH: self._resized}
        before = {number: signal.signal(number, handler) for number, handler in handled.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._interrupts > 2:
            raise KeyboardInterrupt
        self.outgoing.put(ShellToldMessage("", "INT" if self._interrupts == 1 else "TERM"))

    def _resized(self, number: int, frame: FrameType | None) -> None:
        rows, columns = _size()
        self.outgoing.put(ShellToldMessage("", "", rows, columns))


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _size() -> tuple[int, int]:
    """Rows and columns of this terminal."""
    for stream in (STDOUT, STDIN, STDERR):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(stream)
            if size.lines > 0 and size.columns > 0:
                return size.lines, size.columns
    return 24, 80


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Every key is the other end's; afterwards the terminal is as it was."""
    import termios
    import tty

    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
        sys.stderr.flush()
