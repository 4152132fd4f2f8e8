import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.client import ApiError, Client, ClientError, DaemonAway, _TlsSocket, path_with
from hpcdl.wire.access import AccessFile, read_access, write_access
from hpcdl.wire.http_client import HttpConnection
from hpcdl.wire.tls import client_context
from tests.cli.fake import FakeDaemon, row


def _never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def slept(seconds: float) -> None:
        raise AssertionError(f"the client waits {seconds} s")

    monkeypatch.setattr("hpcdl.client.time.sleep", slept)


def test_without_a_daemon_it_is_away_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _never_sleeps(monkeypatch)
    with Client(home) as client, pytest.raises(DaemonAway, match=r"no daemon is running for .*: start one with: hpcdl"):
        client.get("/v1/status")


def test_a_daemon_that_starts_as_its_access_file_is_read_is_asked_again(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was not there at the read, and is there right after it."""
    monkeypatch.setattr("hpcdl.client.read_access", read_just_before(monkeypatch))
    with Client(fake.home) as client:
        with pytest.raises(DaemonAway, match="no daemon is running for"):
            client.get("/v1/status")
        assert client.get("/v1/status")["daemon"]["pid"] == 4711


def read_just_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], AccessFile]:
    """`read_access`, whose first call finds no file: it read just before there was one."""

    def read(home: Path) -> AccessFile:
        monkeypatch.setattr("hpcdl.client.read_access", read_access)
        return read_access(home / "nothing")

    return read


def test_a_killed_daemon_is_away_at_once(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.kill()
    _never_sleeps(monkeypatch)
    with Client(fake.home) as client, pytest.raises(DaemonAway, match="nothing listens on"):
        client.get("/v1/status")


def test_requests_share_a_connection(fake: FakeDaemon) -> None:
    with Client(fake.home) as client:
        for _ in range(3):
            assert client.get("/v1/status")["daemon"]["pid"] == 4711
        connection = client._connection
        client.get("/v1/nodes")
        assert client._connection is connection


def test_a_refusal_has_message_code_and_status(fake: FakeDaemon) -> None:
    with Client(fake.home) as client, pytest.raises(ApiError, match="there is no job 9") as caught:
        client.get("/v1/jobs/9")
    assert (caught.value.code, caught.value.status) == ("unknown-job", 404)


def test_a_submit_whose_answer_was_lost_is_asked_again_and_is_one_job(fake: FakeDaemon) -> None:
    fake.dies_at, fake.down_s = "/v1/jobs", 0.3
    body = {"request_id": "r1", "jobs": [{"command": ["true"], "name": "a"}]}
    port = read_access(fake.home).port
    with Client(fake.home) as client:
        answer = client.request("POST", "/v1/jobs", body)
    assert [job["id"] for job in answer["jobs"]] == [1]
    assert list(fake.world.jobs) == [1]
    assert [request[2]["request_id"] for request in fake.requests] == ["r1", "r1"]
    assert read_access(fake.home).port != port


def test_patience_ends(fake: FakeDaemon) -> None:
    fake.dies_at = "/v1/status"
    begun = time.monotonic()
    with Client(fake.home, patience_s=0.5) as client, pytest.raises(DaemonAway, match=r"waited 0.5 s"):
        client.get("/v1/status")
    assert 0.5 <= time.monotonic() - begun < 60


def test_an_outage_is_noted_once_and_its_end_too(fake: FakeDaemon) -> None:
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 1:
            fake.start()

    fake.dies_at = "/v1/status"
    with Client(fake.home, patience_s=60, note=note) as client:
        client.get("/v1/status")
    assert notes == ["the daemon is away; waiting up to 60 s for it to come back", "the daemon is back"]


def test_a_kept_connection_that_was_closed_is_no_outage(fake: FakeDaemon) -> None:
    notes: list[str] = []
    with Client(fake.home, note=notes.append) as client:
        client.get("/v1/status")
        fake.kill()
        fake.start()
        assert client.get("/v1/status")["events"] == 9
    assert notes == []


def test_another_daemon_in_the_same_home_is_not_taken_for_ours(fake: FakeDaemon) -> None:
    with Client(fake.home) as client:
        client.get("/v1/status")
        fake.kill()
        fake.instance = "d-other"
        fake.start()
        with pytest.raises(ClientError, match="another daemon took over"):
            client.get("/v1/status")


def test_somebody_else_on_the_port_is_no_daemon_and_gets_no_token(fake: FakeDaemon) -> None:
    fake.kill()
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        write_access(fake.home, replace(read_access(fake.home), port=listener.getsockname()[1]))

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with Client(fake.home) as client, pytest.raises(DaemonAway, match="something else"):
            client.get("/v1/status")
        thread.join()
    assert heard
    assert b"Bearer" not in heard[0]


def test_another_certificate_is_not_trusted(fake: FakeDaemon, tmp_path: Path) -> None:
    other_home = tmp_path / "other"
    other_home.mkdir(mode=0o700)
    other = FakeDaemon(other_home).start()
    try:
        ours = (fake.home / "access.json").read_text()
        wrong = ours.replace(f'"port": {read_access(fake.home).port}', f'"port": {read_access(other_home).port}')
        assert wrong != ours
        (fake.home / "access.json").write_text(wrong)
        with Client(fake.home) as client, pytest.raises(DaemonAway, match="something else"):
            client.get("/v1/status")
        assert other.requests == []
    finally:
        other.close()


@pytest.mark.parametrize(
    "content, message",
    [(b"<html>", "not JSON"), (b"[1]", "not JSON"), (b'{"schema":2}', "schema 2"), (b"[" * 100_000, "not JSON")],
)
def test_an_answer_that_is_not_the_daemons_is_an_error(fake: FakeDaemon, content: bytes, message: str) -> None:
    fake.answers["/v1/status"] = (200, content)
    with Client(fake.home) as client, pytest.raises(ClientError, match=message):
        client.get("/v1/status")


def test_an_open_access_file_is_refused_and_not_waited_for(fake: FakeDaemon) -> None:
    (fake.home / "access.json").chmod(0o644)
    with Client(fake.home) as client, pytest.raises(ClientError, match="chmod 600"):
        client.get("/v1/status")
    assert fake.requests == []


def test_a_daemon_that_does_not_answer_is_named(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.client.ANSWER_S", 0.3)
    fake.world.jobs[1] = row(1)
    with Client(fake.home, patience_s=0.2) as client, pytest.raises(DaemonAway, match="has not answered for"):
        client.request("GET", "/v1/wait?ids=1&timeout=5")


def test_after_a_ctrl_c_the_next_question_gets_its_own_answer(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.world.jobs[1] = row(1)
    receive = HttpConnection.receive

    def interrupted(connection: HttpConnection) -> object:
        monkeypatch.setattr(HttpConnection, "receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(HttpConnection, "receive", interrupted)
    with Client(fake.home) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get("/v1/events?after=0")
        assert client.get("/v1/jobs/1")["job"]["id"] == 1


def test_paths_with_queries() -> None:
    assert path_with("/v1/jobs") == "/v1/jobs"
    assert path_with("/v1/jobs", all=None) == "/v1/jobs"
    assert path_with("/v1/wait", ids="1,2", timeout=0.5) == "/v1/wait?ids=1%2C2&timeout=0.5"


def test_a_tls_socket_without_a_peer_is_refused_and_closed(fake: FakeDaemon) -> None:
    context = client_context(read_access(fake.home).certificate)
    context.sslsocket_class = _TlsSocket
    with socket.socket() as unconnected, pytest.raises(ConnectionResetError):
        context.wrap_socket(unconnected, server_hostname="localhost")
    assert unconnected.fileno() == -1
