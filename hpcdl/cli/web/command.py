"""`hpcdl web`: where it listens, and the lines that say how to open it. See `server` for who is let in."""

import os
import socket
import ssl
from contextlib import ExitStack, closing
from functools import partial
from hashlib import sha256
from pathlib import Path

import click

from hpcdl.cli.offline import LedgerClient, LedgerReader
from hpcdl.cli.output import escape
from hpcdl.cli.params import user_name
from hpcdl.client import Client
from hpcdl.daemon.clock import WallClock
from hpcdl.wire.private_files import atomic_write, make_private_folder
from hpcdl.wire.tls import make_certificate, server_context

BACKLOG = 64

ANSWER_S = 10.0
"""A page waits for the daemon so long, and then shows what was known last."""

START_S = 2.0
"""So long a daemon may take to answer before the link is printed."""

LOCAL_PORT = 8787
"""Of the browser's machine, in the line for ssh."""

_LONGEST = 107  # bytes of a Unix socket's path


@click.command()
@click.option("--socket", "path", type=click.Path(path_type=Path), metavar="FILE",
              help="The Unix socket to listen on.  [default: web.sock in HPCDL_HOME]")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT",
              help="Listen on this port of 127.0.0.1, with TLS, in place of a socket.")  # fmt: skip
@click.pass_context
def web(ctx: click.Context, path: Path | None, port: int | None) -> None:
    """Serve the pages of jobs, GPUs and logs to your browser, read-only, until Ctrl-C.

    Only you are let in: on a Unix socket, which ssh forwards, or on loopback with TLS. It prints a link that opens one
    browser once; when that is used, the next one.
    """
    from hpcdl.cli.web.pages import Pages
    from hpcdl.cli.web.server import Guard, application, serve
    from hpcdl.cli.web.sessions import WebSessions

    if path is not None and port is not None:
        raise click.UsageError("--socket and --port exclude each other", ctx)
    home: Path = ctx.find_root().obj
    if not home.is_dir():
        raise click.ClickException(f"there is no {home}: hpcdl daemon start makes it")
    sessions = WebSessions()
    scheme, there = ("http", LOCAL_PORT) if port is None else ("https", port)

    def print_link() -> None:
        print(f"  {scheme}://{guard.host}:{there}/open/{sessions.new_link()}", flush=True)

    def opened() -> None:
        print("the link was used; one for another browser:")
        print_link()

    with ExitStack() as stack:
        reader = stack.enter_context(closing(LedgerReader(home, shared=True)))

        def connect(answer_s: float = ANSWER_S) -> Client:
            return LedgerClient(home, patience_s=0.0, answer_s=answer_s, reader=reader)

        guard = Guard(application(Pages(connect, home)), sessions, secure=port is not None, on_opened=opened)
        if port is None:
            path = (home / "web.sock" if path is None else path).absolute()
            listener = stack.enter_context(_unix(path))
            stack.callback(path.unlink, missing_ok=True)
            tls = None
            user, host = user_name(os.geteuid()), os.uname().nodename
            told = [
                f"serving {home} on {path}, for you alone, until Ctrl-C",
                "on the computer of your browser:",
                f"  ssh -N -L {LOCAL_PORT}:{path} {user}@{host}",
            ]
        else:
            listener = stack.enter_context(_loopback(port))
            tls, fingerprint = _tls(home)
            told = [
                f"serving {home} on port {port} of 127.0.0.1, with TLS, for you alone, until Ctrl-C",
                "your browser warns of a certificate that nobody signed; its SHA-256 fingerprint is to be",
                f"  {fingerprint}",
            ]

        trouble = Pages(partial(connect, START_S), home).trouble()
        if trouble:
            told.append(trouble)

        def started() -> None:
            print("\n".join(map(escape, told)))
            print("then open, once and within the hour:")
            print_link()

        number = serve(guard, listener, tls, started)
    raise click.exceptions.Exit(128 + number)


def _unix(path: Path) -> socket.socket:
    """Listens on a Unix socket that only its owner can connect to; one that nobody serves any more is replaced."""
    if len(os.fsencode(path)) > _LONGEST:
        raise click.ClickException(
            f"{path} is longer than {_LONGEST} bytes, which no socket may be: name one (--socket)"
        )
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            if other.connect_ex(os.fspath(path)) == 0:
                raise click.ClickException(
                    f"{path} is served already: end that hpcdl web, or name another with --socket"
                )
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise click.ClickException(f"cannot listen on {path}: {error.strerror}: name another with --socket") from None
    finally:
        os.umask(before)
    return listener


def _loopback(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise click.ClickException(f"cannot listen on port {port}: {error.strerror}: choose another --port") from None
    return listener


def _tls(home: Path) -> tuple[ssl.SSLContext, str]:
    """TLS by a key of its own, which is kept so that a browser has to be told but once; and the fingerprint."""
    folder = home / "web"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    make_private_folder(folder)
    if not (certificate.exists() and key.exists()):
        made, secret = make_certificate((), now=WallClock(0.0).now())
        atomic_write(key, secret)
        atomic_write(certificate, made)
    pem = certificate.read_text(encoding="ascii")
    digest = sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return server_context(certificate, key), ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
