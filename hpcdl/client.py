"""The daemon's API from Python: HTTPS to exactly the daemon of one HPCDL_HOME, riding out its restarts.

Every request of the API may be repeated: a submit carries its request id, the others say what is wanted rather than
what to do. So a connection that breaks, with the request perhaps carried out and perhaps not, is answered by asking
again, within the caller's patience. Standard library only, and few modules of it: each `hpcdl` command imports this.
"""

import errno
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from hpcdl.wire import http_client
from hpcdl.wire.access import NAME, AccessError, AccessFile, CopiedHome, NoAccessFile, read_access
from hpcdl.wire.http_client import Disconnected, HttpConnection, HttpError
from hpcdl.wire.last_start import start_step
from hpcdl.wire.tls import client_context

Answer: TypeAlias = dict[str, Any]

SCHEMA = 1
ANSWER_S = 30.0  # until the daemon must have answered, besides the seconds that a request asks it to wait
PATIENCE_S = 15.0  # for a daemon that went away in the middle of a request
FOLLOW_S = 60.0  # the same for commands that stay: wait, logs -f, events --follow
_QUIET_S = 1.0  # an absence shorter than this is not worth a note


class ClientError(Exception):
    """The request could not be carried out; the message is one line that names the next step."""


class DaemonAway(ClientError):
    """No daemon answers for this HPCDL_HOME. Whether an earlier attempt was carried out is not known."""


class AccessUnusable(ClientError):
    """The access file is damaged, or open to others: whether a daemon runs is not said by it."""


class CopyWithoutDaemon(ClientError):
    """This HPCDL_HOME is a copy of another one, and no daemon was started on it yet."""


class ApiError(ClientError):
    """The daemon refused. `code` is for programs (`unknown-job`), `status` is HTTP's."""

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class _Absent(Exception):
    """Nobody is there: no access file, connection refused, or somebody else's certificate. Nothing was sent."""


class _Broken(Exception):
    """There was a connection, and it broke before the whole answer was read."""


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket that fails, closed, when its peer was gone before the handshake.

    Python's own would then come back without TLS, or stay open behind the exception.
    """

    def getpeername(self) -> Any:
        """As the socket's; the constructor asks it whether there is a connection."""
        try:
            return super().getpeername()
        except OSError:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None


def path_with(path: str, **query: object) -> str:
    """`path` with a query; parameters that are None are left out."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


class Client:
    """One connection at a time to the daemon of `home`, kept between requests; not for several threads.

    The access file is read at each new connection, so a daemon that was restarted elsewhere is found. A daemon that
    nobody ever reached through this object is away at once (DaemonAway); one that was reached is waited for up to
    `patience_s` seconds, and `note` is called, once when it is missed and once when it is back.
    """

    def __init__(
        self,
        home: Path,
        *,
        patience_s: float = PATIENCE_S,
        note: Callable[[str], None] = lambda text: None,
        answer_s: float | None = None,
    ) -> None:
        """`answer_s`: in place of ANSWER_S."""
        self.home = home
        self._answer_s = answer_s
        self.patience_s = patience_s
        self.as_of: float | None = None  # when the last event was recorded, of answers that are not the daemon's
        self._note = note
        self._connection: HttpConnection | None = None
        self._access: AccessFile | None = None
        self._reached = False

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection, if there is one. The next request makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, *, wait_s: float = 0.0) -> Answer:
        """`request` with GET."""
        return self.request("GET", path, wait_s=wait_s)

    def get_text(self, path: str) -> str:
        """The same for an answer that is text, of which there is one: that of `/v1/metrics`."""
        answer = self._exchange("GET", path, None, 0.0)
        if answer.status >= 400:
            self._read(answer)
        return answer.content.decode("utf-8", "replace")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait_s: float = 0.0) -> Answer:
        """The answer's JSON object. `wait_s`: how long the request itself asks the daemon to hold the answer back.

        Raises ApiError (refused), DaemonAway (nobody there, or not any more) and ClientError (an answer that is not
        the daemon's). Repeated while the daemon is restarted, for as long as the client is patient.
        """
        return self._read(self._exchange(method, path, body, wait_s))

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, wait_s: float
    ) -> http_client.HttpResponse:
        missed_at: float | None = None
        noted = False
        pause_s = 0.0
        while True:
            try:
                answer = self._once(method, path, body, wait_s)
            except (_Absent, _Broken) as error:
                self.close()
                if isinstance(error, _Broken):
                    self._reached = True
                if not self._reached:
                    raise DaemonAway(str(error)) from None
                now = time.monotonic()
                missed_at = now if missed_at is None else missed_at
                away_s = now - missed_at
                if away_s >= self.patience_s:
                    raise DaemonAway(f"{error} (waited {self.patience_s:g} s)") from None
                if not noted and away_s >= _QUIET_S:
                    noted = True
                    self._note(f"the daemon is away; waiting up to {self.patience_s:g} s for it to come back")
                time.sleep(min(pause_s, self.patience_s - away_s))
                pause_s = min(1.0, max(0.05, 2 * pause_s))
            else:
                if noted:
                    self._note("the daemon is back")
                return answer

    def follow_events(
        self, after: int, job: int | None = None, *, limit: int = 1000, wait_s: Callable[[], float]
    ) -> Iterator[list[Answer]]:
        """Pages of at most `limit` events after the sequence number `after`, for ever; only those of `job`.

        A page is empty where nothing happened for `wait_s()` seconds. Raises as `request`.
        """
        certain = after  # what was recorded before the question was asked, so that its answer cannot have missed it
        while True:
            wait = wait_s()
            path = path_with("/v1/events", after=after, limit=limit, job=job, wait=round(wait, 3))
            answer = self.get(path, wait_s=wait)
            found: list[Answer] = answer["events"]
            yield found
            if found:
                after = found[-1]["seq"]
            if len(found) < limit:
                after = max(after, certain)  # the events of other jobs are behind us
            certain = answer["last"]

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None, wait_s: float) -> http_client.HttpResponse:
        limit_s = self._limit_s() + wait_s
        connection = self._connection or self._connect()
        connection.timeout_s = limit_s
        headers = {"Authorization": f"Bearer {self._access.token if self._access else ''}"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            try:
                connection.send(method, path, content, headers)
            except OSError:
                # The daemon may have answered (413, 401) and closed before it read everything: see what it said.
                answer = connection.receive()
            else:
                answer = connection.receive()
        except TimeoutError:
            self.close()
            raise self._silent(limit_s) from None
        except (OSError, HttpError) as error:
            raise _Broken(f"the daemon of {self.home} went away ({_words(error)}): {start_step(self.home)}") from None
        except BaseException:
            self.close()  # Ctrl-C: what is still to come answers this question, not the next one
            raise
        self._reached = True
        if answer.closes:
            self.close()
        return answer

    def _connect(self) -> HttpConnection:
        try:
            access = read_access(self.home)
        except CopiedHome as error:
            raise CopyWithoutDaemon(str(error)) from None
        except NoAccessFile:  # also where there is one by now
            raise _Absent(f"no daemon is running for {self.home}: {start_step(self.home)}") from None
        except AccessError as error:
            if (self.home / NAME).exists():  # damaged or open to others: waiting does not help
                raise AccessUnusable(str(error)) from None
            raise _Absent(f"no daemon is running for {self.home}: {start_step(self.home)}") from None
        if self._access is not None and access.instance != self._access.instance:
            raise ClientError(f"another daemon took over {self.home}: run the command again")
        where = f"{access.host}:{access.port}"
        try:
            context = client_context(access.certificate)
        except ssl.SSLError:
            raise ClientError(f"the certificate in {self.home / NAME} is damaged: restart the daemon") from None
        context.sslsocket_class = _TlsSocket
        try:
            connection = HttpConnection(access.host, access.port, self._limit_s(), context)
        except TimeoutError:
            self._access = access
            raise self._silent(self._limit_s()) from None
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise _Broken(f"the daemon of {self.home} went away ({_words(error)}): {start_step(self.home)}") from None
        except ssl.SSLError:
            step = start_step(self.home)
            raise _Absent(
                f"no daemon is running for {self.home} (what listens on {where} is something else): {step}"
            ) from None
        except ConnectionRefusedError:
            raise _Absent(
                f"no daemon is running for {self.home} (nothing listens on {where}): {start_step(self.home)}"
            ) from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise ClientError(f"cannot connect to {where}: {_words(error)}: close some files") from None
            raise _Absent(
                f"no daemon can be reached for {self.home} on {where} ({_words(error)}): {start_step(self.home)}"
            ) from None
        self._access = access
        self._connection = connection
        return connection

    def _limit_s(self) -> float:
        return ANSWER_S if self._answer_s is None else self._answer_s

    def _silent(self, limit_s: float) -> Exception:
        pid = self._access.pid if self._access else 0
        text = f"the daemon of {self.home} (pid {pid}) has not answered for {limit_s:g} s: see {self.home}/daemon.log"
        return _Broken(text) if self.patience_s > limit_s else DaemonAway(text)

    def _read(self, raw: http_client.HttpResponse) -> Answer:
        status = raw.status
        try:
            answer = json.loads(raw.content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ClientError(f"the daemon's answer (status {status}) is not JSON: see {self.home}/daemon.log")
        if answer.get("schema") != SCHEMA:
            raise ClientError(
                f"the daemon speaks schema {answer.get('schema')!r:.20}, this hpcdl {SCHEMA}: use the daemon's hpcdl"
            )
        if status >= 400:
            text = str(answer.get("error") or f"the daemon refused with status {status}")
            raise ApiError(" ".join(text.split()), str(answer.get("code") or "unknown"), status)
        return answer


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror
    if isinstance(error, Disconnected | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the connection was closed"
    return str(error) or type(error).__name__
