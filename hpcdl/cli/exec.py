"""`hpcdl exec` and `attach`: a command or a shell beside a running job, on its node.

This is the client's end: streams, signals and the terminal, over a WebSocket to the daemon, which passes it on to the
agent (agent/shell.py). The terminal is put back as it was, whatever happens but SIGKILL.
"""

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
from typing import TYPE_CHECKING

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.job_selection import ONE_JOB, Word, concerned_by, one_job, word_text
from hpcdl.cli.output import say
from hpcdl.client import ClientError
from hpcdl.wire.access import AccessError, read_access
from hpcdl.wire.messages import (
    MAX_MESSAGE,
    SHELL_CHUNK,
    SHELL_WINDOW,
    BadMessage,
    Message,
    ShellDataMessage,
    ShellEndMessage,
    ShellMessage,
    ShellOpenMessage,
    ShellTakenMessage,
    ShellToldMessage,
    decode_message,
    encode_message,
)
from hpcdl.wire.readable import readable
from hpcdl.wire.tls import client_context

if TYPE_CHECKING:  # loaded when there is to be a connection
    from websockets.sync.client import ClientConnection

NODE = click.option(
    "--node", default="", metavar="NAME", help="Of a job on several nodes: there, not on the first one."
)

RANK = click.option(
    "--rank", type=click.IntRange(0, 99_999_999), metavar="N",
    help="Of a job on several nodes: where this rank is, of one for each GPU.",
)  # fmt: skip


@click.command("exec")
@click.argument("job", type=ONE_JOB)
@NODE
@RANK
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def execute(ctx: click.Context, job: Word, node: str, rank: int | None, tty: bool, command: tuple[str, ...]) -> None:
    """Run a command beside a running job: on its node, in its folder, with its environment and its GPUs.

    Input, output and errors are this command's, Ctrl-C goes to the command, and its exit code is the one here (128 and
    the number of a signal). It is no part of the job, and is ended when the job is suspended, moves or ends.
    """
    if not command[0]:
        raise click.UsageError("the command is empty", ctx)
    if tty:
        _need_terminal(f"hpcdl exec {word_text(job)} -- ... runs it without one")
    _run(ctx, job, command, node, rank, tty)


@click.command()
@click.argument("job", type=ONE_JOB)
@NODE
@RANK
@click.pass_context
def attach(ctx: click.Context, job: Word, node: str, rank: int | None) -> None:
    """Open a shell beside a running job: on its node, in its folder, with its environment and its GPUs.

    It is no part of the job, and is closed when the job is suspended, moves or ends.
    """
    _need_terminal(f"hpcdl exec {word_text(job)} -- COMMAND runs a command without one")
    _run(ctx, job, (os.environ.get("SHELL") or "/bin/sh",), node, rank, True)


def _need_terminal(instead: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException(f"stdin and stdout are no terminal: {instead}")


def _run(ctx: click.Context, word: Word, command: tuple[str, ...], node: str, rank: int | None, terminal: bool) -> None:
    if node and rank is not None:
        raise click.UsageError("--node and --rank exclude each other", ctx)
    with connect(ctx, 0.0) as client:
        job = one_job(client, word, concerned_by("exec"))
        client.get(f"/v1/jobs/{job}")  # says what is wrong with the daemon or the job in the usual words

    ended = run(ctx.find_root().obj, job, command, node, terminal, -1 if rank is None else rank)
    if ended.why:
        say(ended.why)
    ctx.exit(1 if ended.code is None else ended.code)


STDIN, STDOUT, STDERR = 0, 1, 2

OPEN_S = 15.0

PING_S = 10.0

CLOSE_S = 2.0
"""A connection on which nothing can be sent any more is not waited for longer, at the end."""

OVER = 0
"""No signal's number."""


@dataclass(frozen=True, slots=True)
class ShellExit:
    """How a session ended: the command's exit code, if it has one; `why`, where it did not end by itself."""

    code: int | None
    why: str = ""


def run(home: Path, job: int, argv: tuple[str, ...], node: str, terminal: bool, rank: int = -1) -> ShellExit:
    """Runs a command beside a job, with this process's streams, and returns when it is over. Raises ClientError.

    `node`, `rank`: where, "" and -1 for the writer's node.

    On a terminal this one is raw meanwhile, and as it was afterwards, whatever happens but SIGKILL.
    """
    from websockets.exceptions import InvalidStatus, WebSocketException
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
        ).__enter__()  # and `_close` leaves it: a connection that is stuck must not keep us
    except InvalidStatus as error:
        status = error.response.status_code
        if status == 403:
            raise ClientError("the token is not this daemon's owner's: only its user may run commands there") from None
        raise ClientError(f"the daemon refused with status {status}: use the daemon's hpcdl") from None
    except (AccessError, OSError, WebSocketException, TimeoutError) as error:
        raise ClientError(f"the daemon of {home} cannot be reached ({error}): hpcdl daemon status") from None
    streams = _Streams(terminal)
    try:
        # The terminal is as before once signals may end us again. They wait in a pipe until the command is opened.
        with streams.signals(), _raw() if terminal else contextlib.nullcontext():
            rows, columns = _size() if terminal else (0, 0)
            term = os.environ.get("TERM", "")
            streams.outgoing.put(ShellOpenMessage(argv, "", 0, 0, node, rows, columns, term, rank))
            for part in (lambda: _send_all(socket, streams), lambda: _receive_all(socket, streams), streams.read_input):
                threading.Thread(target=part, daemon=True).start()
            return streams.until_over()
    finally:
        streams.stop()
        closing = threading.Thread(target=_close, args=(socket,), daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _close(socket: "ClientConnection") -> None:
    with contextlib.suppress(Exception):
        socket.close()


def _send_all(socket: "ClientConnection", streams: "_Streams") -> None:
    """A thread's: sends what is queued, until the end of the queue or of the connection, which the receiver reports."""
    from websockets.exceptions import ConnectionClosed

    try:
        while (message := streams.outgoing.get()) is not None:
            socket.send(encode_message(message))
    except ConnectionClosed:
        return
    except Exception as error:
        streams.over(ShellExit(None, f"unexpected {type(error).__name__}: {error}"))


def _receive_all(socket: "ClientConnection", streams: "_Streams") -> None:
    """A thread's: hands on what comes, and says how it ended."""
    from websockets.exceptions import ConnectionClosed

    try:
        while not isinstance(message := decode_message(socket.recv()), ShellEndMessage):
            streams.take(message)
        streams.over(ShellExit(message.code, message.why))
    except ConnectionClosed:
        streams.over(ShellExit(None, "the daemon went away, and the session with it: once it runs again, begin anew"))
    except BadMessage as error:
        streams.over(ShellExit(None, f"the daemon sent what is not understood: {error}"))
    except BrokenPipeError:
        streams.over(ShellExit(128 + signal.SIGPIPE))
    except OSError as error:
        why = error.strerror or error
        streams.over(
            ShellExit(None, f"what the command prints cannot be written here ({why}): correct it, then begin anew")
        )
    except Exception as error:
        streams.over(ShellExit(None, f"unexpected {type(error).__name__}: {error}"))


class _Streams:
    """The streams of this process, its signals, and the messages that are to be sent."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self.outgoing: queue.SimpleQueue[ShellMessage | None] = queue.SimpleQueue()
        self._credit = SHELL_WINDOW
        self._more = threading.Condition()
        self._wake, self._waker = os.pipe()
        self._over = False
        self._woken, self._wakes = os.pipe()  # numbers of signals, and OVER
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
        self._ended = ShellExit(None)

    def stop(self) -> None:
        """Stop reading and sending."""
        self._over = True
        with self._more:
            self._more.notify_all()
        with contextlib.suppress(OSError):
            os.close(self._waker)
        self.outgoing.put(None)

    # --- in --------------------------------------------------------------------------------------------------------

    def read_input(self) -> None:
        """A thread: reads stdin, as far as the other end takes it, to its end."""
        while not self._over:
            with self._more:
                while self._credit <= 0 and not self._over:
                    self._more.wait()
                size = min(SHELL_CHUNK, self._credit)
            try:
                ready = readable([STDIN, self._wake], None)
                if self._wake in ready or self._over:
                    return
                data = os.read(STDIN, size)
            except BlockingIOError:
                continue  # another process has it, too, and was faster
            except OSError:
                data = b""  # stdin is closed, or not ours to read
            with self._more:
                self._credit -= len(data)
            self.outgoing.put(ShellDataMessage("", STDIN, base64.b64encode(data).decode()))
            if not data:
                return

    # --- out -------------------------------------------------------------------------------------------------------

    def take(self, message: Message) -> None:
        """Write what the command printed, or count what it took. Raises BrokenPipeError where nobody reads here."""
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
        """Meanwhile signals do nothing but wake `until_over`. Whichever thread gets one, and whenever: it is in the
        pipe before anybody can wait for it, while a handler of Python's might run only after the wait."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        if self._terminal:
            numbers += [signal.SIGWINCH, signal.SIGCONT]
        waker = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(waker)

    def over(self, ended: ShellExit) -> None:
        """Set how it ended; any thread may."""
        self._ended = ended
        with contextlib.suppress(BlockingIOError):  # full of signals: it is awake
            os.write(self._wakes, bytes([OVER]))

    def until_over(self) -> ShellExit:
        """Pass signals on until the command has ended, or a signal ends us."""
        interrupts = 0
        while True:
            readable([self._woken], None)
            for number in os.read(self._woken, 1 << 16):
                if number == OVER:
                    return self._ended
                if number in (signal.SIGTERM, signal.SIGHUP):
                    return ShellExit(128 + number)
                if number == signal.SIGINT:
                    interrupts += 1
                    if interrupts > 2:
                        return ShellExit(128 + number)
                    self.outgoing.put(ShellToldMessage("", "INT" if interrupts == 1 else "TERM"))
                elif number in (signal.SIGWINCH, signal.SIGCONT):
                    if number == signal.SIGCONT:
                        _make_raw()  # a shell that stopped us has its own idea of it
                    self.outgoing.put(ShellToldMessage("", "", *_size()))


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
    """The terminal in raw mode: every key goes to the other end; afterwards it is as it was."""
    import termios

    before = termios.tcgetattr(STDIN)
    try:
        _make_raw()
        yield
    finally:
        if _in_front():
            with contextlib.suppress(termios.error):  # it has gone
                termios.tcsetattr(STDIN, termios.TCSANOW, before)  # never waits for a terminal that is stopped
        sys.stderr.flush()


def _make_raw() -> None:
    import termios
    import tty

    if _in_front():
        with contextlib.suppress(termios.error):
            tty.setraw(STDIN, termios.TCSANOW)


def _in_front() -> bool:
    """Whether this process group may change the terminal: one in the background would be stopped."""
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return True  # a terminal that is nobody's
