"""A running daemon, attacked by another uid of the same machine."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli import main
from hpcdl.client import Client
from hpcdl.wire.access import AccessFile, read_access
from hpcdl.wire.messages import VERSION
from hpcdl.wire.tls import client_context
from tests.security.stranger import UID, as_uid, attempt, held_by
from tests.system.cluster import Cluster

SECRET = "hunter2-0123456789"

LONGEST_SOCKET = 107
"""Bytes of the path of a UNIX socket: a longer one is refused before anybody looks who asks."""


@pytest.fixture(scope="module")
def job(victim: Cluster) -> int:
    """A job that runs for as long as the tests do, with a secret in its environment."""
    number = victim.submit(steps=5000, options=("--env", f"PRIVATE={SECRET}", "--name", "../../etc; rm 'x'"))
    victim.until_state(number, "RUNNING")
    victim.until(lambda: victim.trainer_pid(number) > 0)
    return number


@pytest.fixture
def access(victim: Cluster) -> AccessFile:
    return read_access(victim.home)


def below(home: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(home):
        yield from (Path(folder, name) for name in (*names, *files))


def standing(victim: Cluster) -> Any:
    """What a command, an agent or a stop would change; a job that runs changes nothing of it."""
    jobs = victim.client.get("/v1/jobs?all=1")["jobs"]
    nodes = victim.client.get("/v1/nodes")["nodes"]
    return [
        [(row["id"], row["held"], row["suspends"], row["incarnation"]) for row in jobs],
        [(node["name"], node["connected"], node["leaving"], node["agent_pid"]) for node in nodes],
        victim.client.get("/v1/config")["config"],
        victim.status()["daemon"]["stopping"],
    ]


# --- files ------------------------------------------------------------------------------------------------------------


def test_every_file_is_closed_by_itself_too(victim: Cluster, job: int) -> None:
    """The home's 0700 is not all that keeps others out."""
    open_ = []
    for path in below(victim.home):
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue  # a checkpoint that was replaced
        assert not stat.S_ISLNK(info.st_mode), path
        assert info.st_uid == os.geteuid()
        if info.st_mode & 0o077 and not stat.S_ISSOCK(info.st_mode):
            open_.append(f"{path.relative_to(victim.home)} {info.st_mode:o}")
    assert open_ == []


def test_a_stranger_can_do_nothing_to_any_file(victim: Cluster, job: int, as_root: None) -> None:
    paths = [victim.home, *below(victim.home)]
    assert len(paths) > 30

    def tries() -> dict[str, int]:
        got: dict[str, int] = {}
        for path in paths:
            actions: list[Callable[[], object]] = [
                lambda path=path: os.listdir(path) if path.is_dir() else path.read_bytes(),  # type: ignore[misc]
                lambda path=path: os.open(path, os.O_WRONLY),  # type: ignore[misc]
                lambda path=path: os.open(path / "new", os.O_WRONLY | os.O_CREAT),  # type: ignore[misc]
                lambda path=path: path.chmod(0o777),  # type: ignore[misc]
                lambda path=path: path.rename(path.with_name("moved")),  # type: ignore[misc]
                lambda path=path: path.unlink(),  # type: ignore[misc]
                lambda path=path: os.link(path, f"/tmp/hpcdl-link-{os.getpid()}"),  # type: ignore[misc]
                lambda path=path: path.with_name("link").symlink_to("/etc/passwd"),  # type: ignore[misc]
            ]
            if len(os.fsencode(path)) <= LONGEST_SOCKET:
                actions.append(
                    lambda path=path: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(str(path))  # type: ignore[misc]
                )
            for action in actions:
                name = attempt(action)
                got[name] = got.get(name, 0) + 1
        return got

    assert set(as_uid(UID, tries)) == {"PermissionError", "IsADirectoryError"}  # the latter: the home itself


def test_a_stranger_sees_no_environment_and_traces_nothing(victim: Cluster, job: int, as_root: None) -> None:
    pids = [*victim.ours(), *victim.tagged()]
    assert len(pids) >= 4  # daemon, agent, supervisor, trainer

    def tries() -> list[str]:
        got = set()
        for pid in pids:
            for name in ("environ", "mem", "maps"):
                got.add(attempt(lambda pid=pid, name=name: Path(f"/proc/{pid}/{name}").read_bytes()))  # type: ignore[misc]
            got.add(attempt(lambda pid=pid: os.listdir(f"/proc/{pid}/fd")))  # type: ignore[misc]
            got.add(attempt(lambda pid=pid: os.kill(pid, signal.SIGKILL)))  # type: ignore[misc]
        return sorted(got)

    assert as_uid(UID, tries) == ["PermissionError"]


def test_a_home_that_was_opened_is_refused_until_it_is_closed(victim: Cluster, as_root: None) -> None:
    try:
        for mode in (0o701, 0o750, 0o777):
            victim.home.chmod(mode)
            assert victim.cli("ls", code=1) == ""
    finally:
        victim.home.chmod(0o700)
    try:
        (victim.home / "access.json").chmod(0o644)
        assert victim.cli("ls", code=1) == ""
    finally:
        (victim.home / "access.json").chmod(0o600)
    victim.cli("ls")


# --- the listener -----------------------------------------------------------------------------------------------------


def ask(access: AccessFile, token: str | None, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection(
        access.host, access.port, timeout=60, context=client_context(access.certificate)
    )
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


ROUTES = [
    ("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("GET", "/v1/jobs/1"), ("GET", "/v1/jobs/1/why"),
    ("POST", "/v1/jobs/1/cancel"), ("GET", "/v1/wait?ids=1"), ("GET", "/v1/events"), ("GET", "/v1/nodes"),
    ("POST", "/v1/nodes/n1/drain"), ("GET", "/v1/profiles"), ("GET", "/v1/pilots"), ("POST", "/v1/pilots/1/cancel"),
    ("GET", "/v1/use"), ("GET", "/v1/holes"), ("GET", "/v1/status"), ("GET", "/v1/config"), ("PUT", "/v1/config"),
    ("POST", "/v1/stop"),
    ("POST", "/v1/jobs/verb"), ("POST", "/v1/jobs/1/preempt"), ("POST", "/v1/jobs/1/drill"), ("GET", "/v1/notices"),
    ("POST", "/v1/jobs/1/drilled"), ("POST", "/v1/nodes/n1/avoid"), ("POST", "/v1/nodes/n1/lift"),
    ("GET", "/v1/avoided"),
    ("POST", "/v1/notices/retry"), ("POST", "/v1/notices/1/drop"), ("POST", "/v1/profiles/read"),
    ("POST", "/v1/ledger/copy"), ("GET", "/v1/metrics"), ("GET", "/v1/overview"),
    ("GET", "/v1/jobs/1/series"), ("GET", "/v1/jobs/1/attempts"), ("POST", "/v1/notices/test"),
]  # fmt: skip


def test_no_route_answers_without_the_token(victim: Cluster, access: AccessFile) -> None:
    before = standing(victim)
    wrong = [
        "",
        "x",
        access.token[:-1],
        access.token + "0",
        access.token.upper(),
        access.token.swapcase() + "é",
        "0" * 64,
    ]
    for method, path in ROUTES:
        for token in (None, "0" * 64):
            status, content = ask(access, token, method, path, b'{"now":true}' if method != "GET" else None)
            assert (status, json.loads(content)["code"]) == (401, "token"), (method, path)
            assert access.token not in content.decode()
    for token in wrong:
        if token.isascii():
            assert ask(access, token, "GET", "/v1/status")[0] == 401
    assert standing(victim) == before


def test_every_route_is_among_these(victim: Cluster) -> None:
    """A route that is added asks for a token because `_guard` does; this sees one that goes without."""
    from hpcdl.daemon.api import app, context

    source = Path(app.__file__).read_text()
    lines = [line.strip() for line in source.splitlines()]
    assert [line for line in lines if "Route(each" in line] == [
        "routes = [Route(each.path, self._guard(each), methods=[each.method]) for each in ROUTES]"
    ]
    sockets = {line.split('"')[1] for line in lines if line.startswith("WebSocketRoute(")}
    assert sockets == {"/v1/agent", "/v1/jobs/{job:int}/shell"}
    assert len(context.ROUTES) >= 27
    known = {(method, path.split("?")[0]) for method, path in ROUTES}
    plain = {
        (each.method, re.sub(r"\{\w+:int\}", "1", each.path).replace("{node:str}", "n1")) for each in context.ROUTES
    }
    assert {each for each in plain if "{" not in each[1]} - known == set(), "add it to ROUTES"
    seen = {each.path for each in context.ROUTES if each.seen is not None}
    assert seen == {"/v1/jobs", "/v1/jobs/{job:int}", "/v1/nodes", "/v1/status", "/v1/metrics"}
    assert {each.method for each in context.ROUTES if each.seen is not None} == {"GET"}


def viewer_of(victim: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((victim.home / "viewer.json").read_text())
    return found


def test_a_viewer_reads_little_and_does_nothing(victim: Cluster, job: int, access: AccessFile) -> None:
    token = viewer_of(victim)["token"]
    assert token != access.token
    before = standing(victim)
    allowed = {("GET", path) for path in ("/v1/jobs", "/v1/jobs/1", "/v1/nodes", "/v1/status", "/v1/metrics")}
    for method, path in ROUTES:
        status, content = ask(access, token, method, path, b"{}" if method != "GET" else None)
        assert status == (200 if (method, path) in allowed else 403), (method, path)
        assert SECRET.encode() not in content
        assert b"trainer.py" not in content, "the command"
        assert str(victim.home).encode() not in content or path == "/v1/status"
    for query in ("?all=1", "?fields=detail,id", "?ids=1", "?state=RUNNING"):
        status, content = ask(access, token, "GET", f"/v1/jobs{query}")
        assert status == 200
        assert not {"detail", "reason", "profile", "spec"} & json.loads(content)["jobs"][0].keys()
    for query in ("?fields=id,detail,name&by=column", "?fields=reason&by=column", "?ids=99&fields=id&by=column"):
        status, content = ask(access, token, "GET", f"/v1/jobs{query}")
        assert status == 200
        assert json.loads(content)["columns"].keys() <= {"id", "name"}
    assert standing(victim) == before


def upgrade(access: AccessFile, path: str, token: str | None) -> bytes:
    """The first bytes of the answer to an agent's call, or to that for a shell."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2VjdXJpdHktdGVzdHMuLg==\r\n"
    head += f"Authorization: Bearer {token}\r\n\r\n" if token is not None else "\r\n"
    plain = socket.create_connection((access.host, access.port), timeout=60)
    with client_context(access.certificate).wrap_socket(plain) as peer:
        peer.sendall(head.encode())
        return peer.recv(100)


def test_agents_are_taken_with_the_owners_token_only(victim: Cluster, access: AccessFile) -> None:
    for path in ("/v1/agent", "/v1/jobs/1/shell"):
        for token in (None, "", "0" * 64, viewer_of(victim)["token"]):
            assert upgrade(access, path, token).startswith(b"HTTP/1.1 403")
    assert upgrade(access, "/v1/agent", access.token).startswith(b"HTTP/1.1 101")


def hello(**changes: Any) -> str:
    told = {"v": VERSION, "type": "hello", "node": "n9", "log_id": "l", "instance": "INSTANCE", "fence": 0}
    return json.dumps(told | changes)


@pytest.mark.parametrize(
    "frame",
    [
        "", "{}", "[]", "null", "x" * 70_000, '{"v":1}', json.dumps({"v": VERSION + 1, "type": "hello"}),
        json.dumps({"v": VERSION, "type": "inventory"}), '{"v":1,"type":"hello","node":7}', "[" * 100_000,
        hello(instance="another"), hello(node="../x"), hello(node=".."), hello(node="a\nb"), hello(node="n" * 300),
        hello(fence=1 << 40),
        "x" * ((1 << 20) + 1),
    ],
    ids=range(17),
)  # fmt: skip
def test_what_no_agent_would_say_ends_its_connection(victim: Cluster, access: AccessFile, frame: str) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    before = standing(victim)
    with connect(
        f"wss://{access.host}:{access.port}/v1/agent",
        ssl=client_context(access.certificate),
        additional_headers={"Authorization": f"Bearer {access.token}"},
        proxy=None,
        open_timeout=60,
    ) as connection:
        with pytest.raises(ConnectionClosed):
            connection.send(frame.replace("INSTANCE", access.instance))
            connection.recv(timeout=60)
            pytest.fail("it was welcomed")
    assert standing(victim) == before
    assert [node["name"] for node in victim.client.get("/v1/nodes")["nodes"]] == ["n1"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"\x00" * 100,
        b"\x80\x2e\x01\x00\x02",
        b"\x00" * 5000,
        b"SSH-2.0-x\r\n",
    ],
)  # fmt: skip
def test_who_speaks_no_tls_gets_nothing(victim: Cluster, access: AccessFile, sent: bytes) -> None:
    with socket.create_connection((access.host, access.port), timeout=60) as plain:
        try:
            plain.sendall(sent)
            with contextlib.suppress(OSError):  # ENOTCONN, where it has refused us already
                plain.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := plain.recv(4096):
                answer += piece
        except ConnectionError:
            answer = b""
    assert len(answer) < 20, "an alert at most"
    assert not answer.startswith(b"HTTP")


def test_older_tls_is_refused(access: AccessFile) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((access.host, access.port), timeout=60) as plain, pytest.raises(OSError):
        context.wrap_socket(plain)


def test_bodies_and_heads_have_limits(victim: Cluster, access: AccessFile) -> None:
    before = standing(victim)
    assert ask(access, access.token, "POST", "/v1/jobs", b"[" * (9 << 20))[0] == 413
    for body in (b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"jobs":' + b"9" * 10_000 + b"}", b"{}", b'{"jobs":[{}]}'):
        status, content = ask(access, access.token, "POST", "/v1/jobs", body)
        assert (status, json.loads(content)["schema"]) == (400, 1)
    plain = socket.create_connection((access.host, access.port), timeout=60)
    with client_context(access.certificate).wrap_socket(plain) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(300):
                peer.sendall(b"x-%d: " % _ + b"y" * 1000 + b"\r\n")
            assert not peer.recv(100).startswith(b"HTTP/1.1 200")
        except OSError:
            pass  # it was told to go, which is what was wanted
    assert standing(victim) == before


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_crowd_that_says_nothing_keeps_nobody_out(victim: Cluster, access: AccessFile, as_root: None) -> None:
    """600 connections of a stranger: silent, in half a handshake, and with TLS and half a request."""
    pid = victim.daemon_pid
    before = descriptors(pid)
    context = client_context(access.certificate)

    def crowd() -> list[socket.socket]:
        kept = []
        for number in range(600):
            with contextlib.suppress(OSError):  # it was sent away
                plain = socket.create_connection((access.host, access.port), timeout=60)
                if number % 3 == 1:
                    plain.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
                elif number % 3 == 2:
                    plain = context.wrap_socket(plain)
                    plain.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n")
                kept.append(plain)
        return kept

    with held_by(UID, crowd):
        with Client(victim.home, patience_s=60.0) as client:
            assert client.get("/v1/status")["daemon"]["pid"] == pid
        assert descriptors(pid) < before + 300
    victim.until(lambda: descriptors(pid) < before + 20)


# --- an impostor ------------------------------------------------------------------------------------------------------


def test_an_impostor_is_told_nothing(victim: Cluster, access: AccessFile, tmp_path: Path) -> None:
    """Somebody listens where the access file says, without the key: clients and agents send no token."""
    from tests.security.test_looking import Hostile

    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    impostor = Hostile(lambda peer: None, None)
    try:
        from dataclasses import replace

        from hpcdl.client import DaemonAway
        from hpcdl.wire.access import write_access

        write_access(home, replace(access, port=impostor.port))
        with Client(home, patience_s=0.0) as client, pytest.raises(DaemonAway):
            client.get("/v1/status")
    finally:
        impostor.close()
    assert impostor.heard.startswith(b"\x16\x03"), "a handshake was begun"
    assert access.token.encode() not in impostor.heard


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_are_where_they_belong_only(victim: Cluster, job: int, access: AccessFile) -> None:
    viewer = viewer_of(victim)["token"]
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (*victim.ours(), *victim.tagged())]
    shown = json.dumps([victim.job(job), victim.events(), victim.status(), victim.client.get("/v1/jobs?all=1")])
    shown += victim.cli("show", str(job)) + victim.cli("events") + victim.cli("events", "--json").__repr__()
    logs = victim.logs()
    for secret in (access.token, viewer, SECRET):
        assert not any(secret.encode() in line for line in lines), "arguments"
        assert secret not in shown
        assert secret not in logs
    for path in below(victim.home):
        if path.is_file() and path.name not in ("access.json", "token"):
            assert access.token.encode() not in path.read_bytes(), path
    for pid in victim.tagged():
        assert access.token.encode() not in Path(f"/proc/{pid}/environ").read_bytes(), "a job is not given it"


def test_a_name_is_only_a_name(victim: Cluster, job: int) -> None:
    table = victim.cli("ls")
    assert "../../etc; rm 'x'" in table
    assert sorted(path.name for path in (victim.home / "logs").iterdir()) == [str(job)]


# --- viewers ----------------------------------------------------------------------------------------------------------


def seen_by(groups: tuple[int, ...] = ()) -> Any:
    """What `hpcdl ls --all-users --json` prints for this uid."""

    def look() -> Any:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(writing)
        import sys

        sys.stdout = os.fdopen(1, "w")
        code = main(["ls", "--all-users", "--json"])
        sys.stdout.flush()
        return [code, json.loads(os.read(reading, 1 << 20))]

    return as_uid(UID, look, groups=groups)


def test_others_do_not_see_the_daemon_and_root_does(
    victim: Cluster, job: int, as_root: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = victim.home.parent / "shm"
    monkeypatch.setenv("HPCDL_VIEWERS_FOLDER", str(shared))
    monkeypatch.setenv("HPCDL_HOME", "/nonexistent/home")
    monkeypatch.setenv("HOME", "/nonexistent")
    assert main(["ls", "--all-users", "--json"]) == 0
    (daemon,) = json.loads(capfd.readouterr().out)["daemons"]
    assert (daemon["uid"], daemon["gpus"], daemon["gpus_held"], daemon["states"]) == (0, 2, 1, {"RUNNING": 1})
    assert [job["state"] for job in daemon["jobs"]] == ["RUNNING"]
    assert SECRET not in json.dumps(daemon)
    assert seen_by() == [0, {"schema": 1, "daemons": [], "problems": []}]
    path = next(shared.glob("*/*.json"))
    os.chown(path, -1, 7007)  # as the daemon does with a setting viewers_group
    path.chmod(0o640)
    try:
        code, told = seen_by((7007,))
        assert (code, [daemon["states"] for daemon in told["daemons"]]) == (0, [{"RUNNING": 1}])
    finally:
        path.chmod(0o600)


def test_doctor_finds_nothing_wrong(victim: Cluster, job: int) -> None:
    answer = victim.cli("doctor", "--security", "--json")
    states = {check["name"]: check["state"] for check in answer["checks"]}
    assert answer["ok"] is True
    for name in ("home", "files", "access", "sockets", "listener", "certificate", "viewers", "arguments"):
        assert states[name] == "OK", answer["checks"]
