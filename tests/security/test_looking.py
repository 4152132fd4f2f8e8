"""`hpcdl ls --all-users` over daemons that do what a hostile one would."""

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli import all_users
from hpcdl.wire import viewer_file as files
from hpcdl.wire.tls import make_certificate, server_context
from tests.cli.conftest import Run
from tests.cli.conftest import home as home
from tests.cli.conftest import hpcdl as hpcdl
from tests.cli.fake import FakeDaemon
from tests.cli.fake import row as job_row
from tests.security.conftest import viewer_of

EVIL = "a\x1b[2Jb\nc\u202ed"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers is heard, however slow this machine is."""
    monkeypatch.setattr(all_users, "ASK_S", 60.0)
    monkeypatch.setattr(all_users, "PLACE_S", 120.0)


def put(shared: Path, content: Any) -> None:
    files.publish(shared, content, None)


def test_a_table_and_json_of_what_is_there(hpcdl: Run, fake: FakeDaemon, shared: Path) -> None:
    fake.world.jobs = {1: job_row(1, name="resnet", state="RUNNING", gpus=1, placement={"n1": [0]}, detail="python x")}
    put(shared, viewer_of(fake))
    (daemon,) = hpcdl("ls", "--all-users", "--json").value["daemons"]
    assert (daemon["uid"], daemon["home"], daemon["states"], daemon["gpus"], daemon["gpus_held"]) == (
        os.geteuid(), str(fake.home), {"RUNNING": 1}, 2, 1,
    )  # fmt: skip
    assert daemon["jobs"][0]["name"] == "resnet"
    assert "detail" not in daemon["jobs"][0], "whatever the daemon tells, only what a viewer is to see is kept"
    lines = hpcdl("ls", "--all-users").out.splitlines()
    assert lines[0].split() == ["USER", "HOST", "HOME", "POLICY", "JOBS", "GPUS", "LOAD", "UP"]
    assert "1 RUNNING" in lines[1]
    assert "resnet" in hpcdl("ls", "--all-users", "jobs").out
    assert len(hpcdl("ls", "--all-users", "gpus").out.splitlines()) == 3
    assert hpcdl("ls", "--all-users", "--quiet").out == f"{fake.home}\n"
    assert {method for method, _, _ in fake.requests} == {"GET"}


def test_nothing_to_be_seen(hpcdl: Run, shared: Path) -> None:
    outcome = hpcdl("ls", "--all-users")
    assert (outcome.code, outcome.out) == (0, "")
    assert "no daemon that you may look at" in outcome.err
    assert hpcdl("ls", "--all-users", "--json").value == {"schema": 1, "daemons": [], "problems": []}


@pytest.mark.parametrize("wrong", [("--all",), ("pilots",)])
def test_wrong_usage(hpcdl: Run, shared: Path, wrong: tuple[str, ...]) -> None:
    assert hpcdl("ls", "--all-users", *wrong).code == 2
    assert hpcdl("ls", "--homes", "/x").code == 2


def test_homes_by_folder_pattern_and_list(hpcdl: Run, fake: FakeDaemon, shared: Path, tmp_path: Path) -> None:
    files.keep(fake.home, viewer_of(fake))
    users = tmp_path / "users"
    (users / "ada").mkdir(parents=True)
    (users / "bob").mkdir()
    (users / "ada" / ".hpcdl").symlink_to(fake.home)
    listed = tmp_path / "homes"
    listed.write_text(f"# of the group\n\n{fake.home}\n{users}/*/.hpcdl\n{tmp_path}/gone\n")
    for given in (fake.home, users, tmp_path / "fa*", listed):
        answer = hpcdl("ls", "--all-users", "--json", "--homes", given).value
        assert [daemon["home"] for daemon in answer["daemons"]] == [str(fake.home)]
    assert answer["problems"] == [f"{tmp_path}/gone: there is no such folder"]
    both = hpcdl("ls", "--all-users", "--json", "--homes", fake.home, "--homes", users).value
    assert len(both["daemons"]) == 1, "the same daemon by two ways"


def test_a_folder_with_too_many_names_keeps_nobody_waiting(
    hpcdl: Run, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdl.cli.all_users.NAMES_LIMIT", 3)
    crowded = tmp_path / "crowded"
    for number in range(5):
        (crowded / str(number)).mkdir(parents=True)
    said = hpcdl("ls", "--all-users", "--homes", crowded).err
    assert f"{crowded}: holds over 3 names, and not all were looked at" in said


def test_control_characters_reach_no_terminal(hpcdl: Run, fake: FakeDaemon, shared: Path) -> None:
    fake.world.jobs = {1: job_row(1, name=EVIL, state=EVIL, placement={EVIL: [0]})}
    fake.world.config = {"policy": EVIL, "objective": EVIL}
    put(shared, viewer_of(fake, home=f"/home/{EVIL}"))
    for what in ("daemons", "jobs", "gpus"):
        outcome = hpcdl("ls", "--all-users", what)
        assert all(c.isprintable() or c == "\n" for c in outcome.out + outcome.err)
        assert len(outcome.out.splitlines()) == (3 if what == "gpus" else 2)
    fake.kill()
    problem = hpcdl("ls", "--all-users")
    assert "is stale" in problem.err
    assert all(c.isprintable() or c == "\n" for c in problem.err)


@pytest.mark.parametrize(
    "path, answer",
    [
        ("status", b"no JSON"),
        ("status", b"[]"),
        ("status", b"{}"),
        ("status", b'{"daemon":[]}'),
        ("status", b"[" * 100_000),
        ("jobs", b'{"jobs":[' + b"9" * 5000 + b"]}"),
    ],
)
def test_answers_that_are_none(hpcdl: Run, fake: FakeDaemon, shared: Path, path: str, answer: bytes) -> None:
    put(shared, viewer_of(fake))
    fake.answers[f"/v1/{path}"] = (200, answer)
    told = hpcdl("ls", "--all-users", "--json").value
    assert told["daemons"] == []
    assert len(told["problems"]) == 1


def test_only_what_has_the_right_form_is_believed(hpcdl: Run, fake: FakeDaemon, shared: Path) -> None:
    put(shared, viewer_of(fake))
    status = {"daemon": {"host": 7, "policy": None, "since_s": -1, "cpu_s": "x", "stopping": "no", "user": "root"}}
    jobs = [{"id": "1", "gpus": [], "placement": 3, "eta_s": -5, "name": {"x": 1}}, 5, None, {"name": "n" * 10_000}]
    nodes = [{"name": 1, "gpus": [{"index": True, "util": 1e400, "holder": {"job": "1"}}, 0]}, {"gpus": "many"}, "n"]
    fake.answers = {
        f"/v1/{name}": (200, json.dumps(body).encode())
        for name, body in (("status", status | {"jobs": [1]}), ("jobs", {"jobs": jobs}), ("nodes", {"nodes": nodes}))
    }
    outcome = hpcdl("ls", "--all-users", "--json")
    (daemon,) = json.loads(outcome.out, parse_constant=pytest.fail)["daemons"]
    assert (daemon["host"], daemon["since_s"], daemon["states"], daemon["stopping"]) == (None, None, {}, None)
    assert daemon["uid"] == os.geteuid()
    assert daemon["jobs"][0] == {
        "name": None, "id": None, "gpus": None, "eta_s": None, "placement": None
    }  # fmt: skip
    assert [len(job.get("name") or "") for job in daemon["jobs"]] == [0, 256]
    for what in ("daemons", "jobs", "gpus"):
        assert hpcdl("ls", "--all-users", what).code == 0


def test_a_refusal_is_a_line(hpcdl: Run, fake: FakeDaemon, shared: Path) -> None:
    put(shared, viewer_of(fake, token="x" * 64))
    assert "status 401" in hpcdl("ls", "--all-users").err


def test_a_file_whose_daemon_is_gone(hpcdl: Run, fake: FakeDaemon, shared: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    put(shared, viewer_of(fake, pid=child))
    assert f"(pid {child}) is gone" in hpcdl("ls", "--all-users").err
    assert fake.requests == []


def test_a_daemon_that_listens_on_its_own_machine_only(hpcdl: Run, fake: FakeDaemon, shared: Path) -> None:
    put(shared, viewer_of(fake, node="n77"))
    assert "listens on n77 alone: run this there" in hpcdl("ls", "--all-users").err
    assert fake.requests == []


class Hostile:
    """Listens with TLS or without; `answer` gets each connection, and what it does is up to it."""

    def __init__(self, answer: Callable[[socket.socket], None], context: ssl.SSLContext | None) -> None:
        self._answer = answer
        self._context = context
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            try:
                plain.settimeout(60)
                with plain if self._context is None else self._context.wrap_socket(plain, server_side=True) as peer:
                    self.heard += peer.recv(4096)
                    self._answer(peer)
            except OSError:
                continue  # the reader has gone away

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


def silent(peer: socket.socket) -> None:
    peer.recv(4096)


def dripping(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    for _ in range(1000):
        peer.sendall(b" ")
        time.sleep(0.05)


def endless_head(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.sendall(b"x: " + b"y" * 4000 + b"\r\n")


def large(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n")


def two_lengths(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} ")


def cut(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{")


def elsewhere(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 302 Found\r\nlocation: https://example.org/\r\ncontent-length: 0\r\n\r\n")


@pytest.fixture
def hostile(fake: FakeDaemon) -> Iterator[Callable[..., Hostile]]:
    made: list[Hostile] = []

    def make(answer: Callable[[socket.socket], None], *, tls: str = "its own") -> Hostile:
        context = None
        if tls == "its own":
            context = server_context(fake.home / "tls" / "certificate.pem", fake.home / "tls" / "key.pem")
        elif tls == "another's":
            folder = fake.home / "other"
            folder.mkdir(mode=0o700)
            for name, content in zip(("c", "k"), make_certificate(["localhost"], now=time.time()), strict=True):
                (folder / name).touch(0o600)
                (folder / name).write_bytes(content)
            context = server_context(folder / "c", folder / "k")
        made.append(Hostile(answer, context))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "answer, why",
    [
        (silent, "does not answer within"),
        (dripping, "does not answer within"),
        (endless_head, "is over 64 KiB"),
        (large, "is over 16 MiB"),
        (two_lengths, "two lengths"),
        (cut, "breaks off after 1 of 20 bytes"),
        (elsewhere, "status 302"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_who_does_not_answer_as_a_daemon_keeps_nobody_waiting(
    hpcdl: Run,
    fake: FakeDaemon,
    shared: Path,
    hostile: Callable[..., Hostile],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[socket.socket], None],
    why: str,
) -> None:
    if why.startswith("does not"):
        monkeypatch.setattr(all_users, "ASK_S", 4.0)  # the good one has no more either
    put(shared, viewer_of(fake, instance="good"))
    put(shared, viewer_of(fake, instance="bad", port=hostile(answer).port))
    told = hpcdl("ls", "--all-users", "--json").value
    assert [daemon["instance"] for daemon in told["daemons"]] == ["good"]
    (problem,) = told["problems"]
    assert why in problem


@pytest.mark.parametrize("tls", ["another's", "none"])
def test_who_is_not_the_daemon_gets_no_token(
    hpcdl: Run, fake: FakeDaemon, shared: Path, hostile: Callable[..., Hostile], tls: str
) -> None:
    viewer = viewer_of(fake)
    impostor = hostile(cut, tls=tls)
    put(shared, viewer_of(fake, port=impostor.port))
    assert "is not the daemon" in hpcdl("ls", "--all-users").err
    assert viewer.token.encode() not in impostor.heard


def test_a_place_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(all_users, "PLACE_S", 3.0)  # of which the other one has its part
    ended = threading.Event()

    def hang(home: Path) -> Iterator[files.ViewerFilePlace]:
        if home.name == "hangs":
            ended.wait(60)
        yield files.ViewerFilePlace(str(home), 1, None, f"{home.name} was looked at")

    monkeypatch.setattr(files, "in_home", hang)
    for name in ("hangs", "fine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "access.json").touch()
    seen = all_users.in_homes([str(tmp_path / "hangs"), str(tmp_path / "fine")])
    assert sorted(seen.problems) == [f"{tmp_path}/hangs: no answer within 3 s", "fine was looked at"]
    ended.set()
