"""Delivery of a notification to one destination: a command, a mail, or a POST to a web server.

Each call may take seconds and has its limit; a destination that fails raises NotDelivered, with nothing secret of its
URL. Which notification goes where and when it is tried again, `notifier` decides.
"""

import base64
import contextlib
import email.message
import json
import logging
import os
import pwd
import re
import shutil
import signal
import smtplib
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcdl.agent.supervisor.processes import TAG_VARIABLE, signal_process, tagged
from hpcdl.core.model.notice import Notice, address_of, redacted
from hpcdl.wire.http_client import HttpConnection, HttpError, Proxy
from hpcdl.wire.readable import readable

log = logging.getLogger("hpcdl.daemon")

VERSION = 1
"""Of what is sent as JSON."""

COMMAND_S = 30.0
"""A command that has not ended by then is killed."""

NETWORK_S = 15.0
"""So long a server may be silent."""

ANSWER_S = 40.0
"""So long a server may take in all: one that says a byte now and then would be waited for for ever."""

LINES, OUTPUT_BYTES = 5, 64 << 10
"""Of a command's output, so many lines of so many bytes of each stream come into the daemon's log."""

SHOWN, TEXT_LENGTH = 50, 4_000
"""Lines of a message of many notifications; characters of a variable."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class NotDelivered(Exception):
    """The destination has not taken the message; one line says why, without anything secret of a URL."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How this daemon delivers. `folder`: where commands run that have none of their jobs'. `sender`, `smtp_host`: of
    mails, None: the defaults.
    """

    instance: str
    folder: Path
    sender: str | None = None
    smtp_host: str | None = None

    def folder_of(self, letter: "Letter") -> str:
        """Where a command runs that gets it."""
        return letter.folder if os.path.isdir(letter.folder) else str(self.folder)


@dataclass(frozen=True, slots=True)
class Letter:
    """One message: some notifications for one destination. The same ones have the same `id`. `folder`: that of their
    jobs, "" where they have several or none.
    """

    instance: str
    notices: tuple[Notice, ...]
    folder: str = ""

    @property
    def id(self) -> str:
        """`INSTANCE-7`, or `INSTANCE-7-12x5` for five notifications from 7 to 12: who gets it twice can drop one."""
        numbers = [notice.id for notice in self.notices]
        more = f"-{numbers[-1]}x{len(numbers)}" if len(numbers) > 1 else ""
        return f"{self.instance}-{numbers[0]}{more}"

    @property
    def kind(self) -> str:
        """That of its notification; `digest` for several."""
        return str(self.notices[0].what) if len(self.notices) == 1 else "digest"

    @property
    def subject(self) -> str:
        """One line."""
        if len(self.notices) == 1:
            return _plain(self.notices[0].text)
        kinds: dict[str, int] = {}
        for notice in self.notices:
            kinds[notice.what] = kinds.get(notice.what, 0) + 1
        return f"{len(self.notices)} notifications: " + ", ".join(f"{many} {kind}" for kind, many in kinds.items())

    @property
    def text(self) -> str:
        """For people: a line each, of the first ones."""
        if len(self.notices) == 1:
            return self.subject
        more = len(self.notices) - SHOWN
        lines = [self.subject, *(_plain(notice.text) for notice in self.notices[:SHOWN])]
        return "\n".join([*lines, f"and {more} more: hpcdl ls --all"] if more > 0 else lines)

    @property
    def body(self) -> bytes:
        """One line of JSON, for commands and servers."""
        rows = [
            {
                "id": f"{self.instance}-{each.id}",
                "kind": each.what,
                "job": each.job or None,
                "name": each.name,
                "state": each.state,
                "cause": each.cause,
                "detail": each.detail,
                "text": each.text,
                "at": each.at,
            }
            for each in self.notices
        ]
        value = {"version": VERSION, "id": self.id, "kind": self.kind, "text": self.text, "notices": rows}
        return json.dumps(value).encode() + b"\n"

    @property
    def variables(self) -> dict[str, str]:
        """For commands, beside the JSON on their stdin. Of several notifications: what they have in common, else ""."""

        def one(values: list[str]) -> str:
            return _plain(values[0])[:TEXT_LENGTH] if len(set(values)) == 1 else ""

        return {
            "HPCDL_NOTICE_ID": self.id,
            "HPCDL_NOTICE_COUNT": str(len(self.notices)),
            "HPCDL_NOTICE_KIND": self.kind,
            "HPCDL_NOTICE_JOB": ",".join(str(each.job) for each in self.notices if each.job)[:TEXT_LENGTH],
            "HPCDL_NOTICE_NAME": one([each.name for each in self.notices]),
            "HPCDL_NOTICE_STATE": one([each.state for each in self.notices]),
            "HPCDL_NOTICE_CAUSE": one([each.cause for each in self.notices]),
            "HPCDL_NOTICE_DETAIL": one([each.detail for each in self.notices]),
            "HPCDL_NOTICE_TEXT": self.text[:TEXT_LENGTH],
        }


def _plain(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()


def deliver(destination: str, letter: Letter, ways: Ways) -> None:
    """Hands the message over. Raises NotDelivered."""
    try:
        if destination.startswith("mailto:"):
            _mail(address_of(destination), letter, ways)
        elif destination.startswith(("http://", "https://")):
            _post(destination, letter)
        else:
            # The user's own command with the user's own rights. No text of a notice is part of it: they come by stdin
            # and environment. This is the only place where hpcdl starts a shell (docs/security.md).
            _run(["/bin/sh", "-c", "--", destination], letter.body, letter.variables, ways, letter)
    except (OSError, ValueError, smtplib.SMTPException) as error:
        why = str(error).replace(destination, redacted(destination))
        raise NotDelivered(_plain(f"{type(error).__name__}: {why}")[:300]) from None


# --- commands ---------------------------------------------------------------------------------------------------------


def _run(argv: list[str], stdin: bytes, variables: Mapping[str, str], ways: Ways, letter: Letter) -> None:
    """Raises OSError, and NotDelivered with the last line of what the command wrote to stderr."""
    name = letter.id
    tag = f"{ways.instance}:notice:{name}"
    environment = {**os.environ, **variables, TAG_VARIABLE: tag}
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            argv,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ways.folder_of(letter),
            env=environment,
            start_new_session=True,
        )
    try:
        said, complaints, ended = _listen(process)
        for line in (_lines(complaints) + _lines(said))[:LINES]:
            log.info("notification %s: %s", name, line)
        if not ended:
            raise NotDelivered(f"the command has not ended within {COMMAND_S:g} s, and was killed")
        if process.returncode:
            why = "".join(f": {line}" for line in _lines(complaints)[-1:])
            raise NotDelivered(f"the command {_ending(process.returncode)}{why}"[:300])
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_commands(tag)


def _ending(status: int) -> str:
    """Of a command: `ended with 3`, `was ended by SIGKILL`."""
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with {status}"


def _lines(output: bytes) -> list[str]:
    lines = (_plain(line)[:300] for line in output.decode("utf-8", "replace").splitlines())
    return [line for line in lines if line]


def _listen(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes, bool]:
    """The beginning of its stdout, the end of its stderr, and whether the command ended in time. What it leaves behind
    is not waited for."""
    assert process.stdout is not None
    assert process.stderr is not None
    until = time.monotonic() + COMMAND_S
    said = complaints = b""
    with process.stdout as output, process.stderr as errors:
        open_ = [output, errors]
        while time.monotonic() < until:
            over = process.poll() is not None
            ready = readable([each.fileno() for each in open_], 0 if over else 0.1) if open_ else []
            if over and not ready:
                return said, complaints, True
            if not open_:
                time.sleep(0.02)
            for each in [each for each in open_ if each.fileno() in ready]:
                piece = os.read(each.fileno(), 1 << 16)
                if not piece:
                    open_.remove(each)
                elif each is output:
                    said = (said + piece)[:OUTPUT_BYTES]
                else:
                    complaints = (complaints + piece)[-OUTPUT_BYTES:]
    return said, complaints, False


def end_commands(tag: str) -> None:
    """Kills what carries this tag, or one that begins with it and a colon."""
    for process in tagged(tag):
        signal_process(process, signal.SIGKILL)


# --- mail -------------------------------------------------------------------------------------------------------------


def _mail(address: str, letter: Letter, ways: Ways) -> None:
    host = socket.getfqdn()
    message = email.message.EmailMessage()
    message["From"] = ways.sender or f"{pwd.getpwuid(os.getuid()).pw_name}@{host}"
    message["To"] = address
    message["Subject"] = f"hpcdl: {letter.subject}"[:200]
    message["Date"] = datetime.fromtimestamp(letter.notices[-1].at).astimezone()  # when the last of it happened
    message["Message-ID"] = f"<{letter.id}@{host}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.text + "\n")
    if ways.smtp_host is not None:
        name, _, port = ways.smtp_host.partition(":")
        with smtplib.SMTP(name, int(port or 25), timeout=NETWORK_S) as server:
            server.ehlo()
            if server.has_extn("starttls") and not _loopback(name):
                server.starttls(context=ssl.create_default_context())
            server.send_message(message)
        return
    program = shutil.which("sendmail", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/lib")
    if program is None:
        raise NotDelivered("there is no sendmail here: set smtp_host")
    _run([program, "-oi", "-t"], message.as_bytes(), {}, ways, letter)


def _loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


# --- servers ----------------------------------------------------------------------------------------------------------


def _post(url: str, letter: Letter) -> None:
    """No redirect is followed: what a server says elsewhere is not where its user wants notifications to go."""
    parts = urllib.parse.urlsplit(url)
    headers = {"Content-Type": "application/json", "User-Agent": "hpcdl", "Idempotency-Key": letter.id}
    headers |= _basic("Authorization", parts)
    secure = parts.scheme == "https"
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    try:
        connection = HttpConnection(
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            NETWORK_S,
            ssl.create_default_context() if secure else None,
            end=time.monotonic() + ANSWER_S,
            proxy=_proxy(parts),
        )
        with contextlib.closing(connection):
            connection.send("POST", path, letter.body, {**headers, "Connection": "close"})
            status = connection.receive_status()
    except (OSError, HttpError) as error:
        raise NotDelivered(_plain(f"{redacted(url)}: {error}")[:300]) from None
    if not 200 <= status < 300:
        told = " (redirects are not followed)" if 300 <= status < 400 else ""
        raise NotDelivered(f"{redacted(url)} answered {status}{told}")


def _proxy(parts: urllib.parse.SplitResult) -> Proxy | None:
    """That which the environment names for such a URL."""
    named = urllib.request.getproxies().get(parts.scheme)
    if not named or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = urllib.parse.urlsplit(named if "://" in named else f"http://{named}")
    return Proxy(proxy.hostname or "", proxy.port or 80, _basic("Proxy-Authorization", proxy))


def _basic(header: str, parts: urllib.parse.SplitResult) -> dict[str, str]:
    """The header for the user and password of a URL, where it has them."""
    if parts.username is None:
        return {}
    pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {header: "Basic " + base64.b64encode(pair.encode()).decode("ascii")}
