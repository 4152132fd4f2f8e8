"""Spooled submits: taken in once and in order; what is no private, whole, right one is put aside with its reason."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hpcdl.client import Client
from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError, MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Policies, Profiles
from hpcdl.daemon import spool as daemon_spool
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.spool import SpoolReader
from hpcdl.marble import POLICIES
from hpcdl.wire import spool as wire_spool
from hpcdl.wire.spool import LIMIT, Spool, StillChanging, put, waiting
from tests.support.waiting import until


class Running:
    """A loop on a journal in memory, with a reader of the spool of `home`."""

    def __init__(self, home: Path, journal: MemoryJournal | None = None) -> None:
        self.journal = journal or MemoryJournal()
        policies = Policies()
        policies.add(*POLICIES)
        self.loop = ControllerLoop(
            Controller(self.journal, policies, Profiles({})), WallClock(0.0), 0.005, lambda _: None, lambda _: None,
            lambda _: None,
        )  # fmt: skip
        self.loop.start()
        self.told: list[str] = []
        self.reader = SpoolReader(home, self.loop.send, lambda where, detail: self.told.append(f"{where}: {detail}"))

    def names(self) -> list[str]:
        return [job.spec.name for job in self.loop.world.jobs.values()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def running(home: Path) -> Iterator[Running]:
    running = Running(home)
    yield running
    running.loop.stop()


def spec(name: str, **values: Any) -> Any:
    return to_json(JobSpec(("true",), name, **values))


def spooled(home: Path, request_id: str, *names: str, at: float | None = None) -> Path:
    path = put(home, request_id, [spec(name) for name in names])
    if at is not None:
        os.utime(path, (at, at))
    return path


def refused(home: Path) -> dict[str, str]:
    """What was put aside, and why."""
    folder = home / "spool" / "refused"
    reasons = {path.name.removesuffix(".reason"): path.read_text().strip() for path in folder.glob("*.reason")}
    assert {path.name for path in folder.iterdir() if not path.name.endswith(".reason")} == set(reasons)
    return reasons


def test_what_was_spooled_is_submitted_in_its_order_and_gone(home: Path, running: Running) -> None:
    assert running.reader.look() == 0  # no such folder yet
    spooled(home, "b", "first", at=100.0)
    spooled(home, "c", "third", "fourth", at=300.0)
    spooled(home, "a", "second", at=200.0)
    assert [path.stat().st_mode & 0o7777 for path in (home / "spool").iterdir()] == [0o600] * 3
    assert (home / "spool").stat().st_mode & 0o7777 == 0o700
    assert waiting(home) == 3
    assert running.reader.look() == 3
    assert running.names() == ["first", "second", "third", "fourth"]
    assert running.loop.world.request_ids == {"b": (1,), "a": (2,), "c": (3, 4)}
    assert list((home / "spool").iterdir()) == []
    assert (waiting(home), running.told) == (0, [])


def test_a_crash_between_submit_and_removal_makes_no_second_job(home: Path, running: Running) -> None:
    path = spooled(home, "r", "once")
    content = path.read_bytes()
    assert running.reader.look() == 1
    path.write_bytes(content)
    path.chmod(0o600)
    assert running.reader.look() == 1
    assert running.names() == ["once"]
    assert not path.exists()


def test_the_first_one_of_a_request_id_stays(home: Path, running: Running) -> None:
    assert spooled(home, "r", "first") == spooled(home, "r", "second")
    odd = spooled(home, "../../x\u00e4 y", "odd")
    assert odd.parent == home / "spool"
    assert running.reader.look() == 2
    assert running.names() == ["first", "odd"]
    assert set(running.loop.world.request_ids) == {"r", "../../x\u00e4 y"}


def body(**changes: Any) -> bytes:
    return json.dumps({"version": 1, "request_id": "r", "jobs": [spec("j")], **changes}).encode()


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"\x00\xff garbage", "the file is not JSON"),
        (b"[" * 100_000, "the file is not JSON"),
        (b"[1]", "the file is not a JSON object"),
        (b"", "the file is not JSON"),
        (body(version=2), "it has version 2, this daemon reads 1"),
        (body(request_id=7), "request_id must be a string"),
        (body(jobs={}), "jobs must be a list"),
        (body(jobs=[{"command": [], "name": "x"}]), "a job needs a command"),
        (body(jobs=[]), "a submit takes 1 to 10000 jobs"),
        (body(jobs=[spec("j", profile="nope")]), "there is no profile 'nope'"),
        (body(jobs=[spec("j", after=(99,))]), "there is no job 99 to wait for"),
        (body(jobs=[spec("j", deadline=5.0)]), "the deadline was"),
        (b" " * (LIMIT + 1), "is larger than 8 MiB"),
    ],
)
def test_what_is_not_right_is_put_aside_and_told(home: Path, running: Running, content: bytes, reason: str) -> None:
    good = spooled(home, "good", "good")
    bad = home / "spool" / "bad.json"
    bad.write_bytes(content)
    bad.chmod(0o600)
    assert running.reader.look() == 1
    assert running.names() == ["good"]
    assert reason in refused(home)["bad.json"]
    assert (home / "spool" / "refused" / "bad.json").read_bytes() == content
    assert not bad.exists()
    assert not good.exists()
    assert len(running.told) == 1
    assert running.told[0].startswith("spool: a spooled submit is refused, and now ")
    assert reason in running.told[0]
    assert running.reader.look() == 0
    assert len(running.told) == 1


def test_what_is_no_private_file_is_put_aside_unread(home: Path, running: Running, tmp_path: Path) -> None:
    spooled(home, "good", "good")
    folder = home / "spool"
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_bytes(body())
    elsewhere.chmod(0o600)
    (folder / "link.json").symlink_to(elsewhere)
    (folder / "open.json").write_bytes(body())
    (folder / "open.json").chmod(0o640)
    (folder / "notes.txt").write_text("x")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json", 0o600)
    assert running.reader.look() == 1
    assert running.names() == ["good"]
    reasons = refused(home)
    assert "is a symbolic link" in reasons["link.json"]
    assert "is open to others (mode 0640)" in reasons["open.json"]
    assert "does not end in .json" in reasons["notes.txt"]
    assert "is not a file" in reasons["folder.json"]
    assert "is not a file" in reasons["pipe.json"]
    assert elsewhere.read_bytes() == body()
    assert (folder / "refused" / "link.json").is_symlink()
    # Again under the same name: the first stays.
    (folder / "notes.txt").write_text("y")
    running.reader.look()
    assert (folder / "refused" / "notes.txt.2").read_text() == "y"


def test_a_file_of_somebody_else_is_put_aside(home: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spooled(home, "r", "j")
    real, inode = os.fstat, path.stat().st_ino
    monkeypatch.setattr(os, "fstat", lambda fd: _of_another(real(fd), inode))
    assert running.reader.look() == 0
    assert "belongs to uid" in refused(home)["r.json"]
    assert running.names() == []


def _of_another(info: os.stat_result, inode: int) -> os.stat_result:
    if info.st_ino != inode:
        return info
    return os.stat_result((*info[:4], info.st_uid + 1, *info[5:]))


@pytest.mark.parametrize("mode", [0o770, 0o755, 0o1777])
def test_a_folder_that_others_may_enter_is_not_read(home: Path, running: Running, mode: int) -> None:
    path = spooled(home, "r", "j")
    path.parent.chmod(mode)
    assert running.reader.look() == 0
    assert running.names() == []
    assert path.exists()
    assert running.told == [
        f"spool: nothing is taken in: {path.parent} is open to others (mode {mode:04o}): run chmod 700 {path.parent}"
    ]
    assert waiting(home) == 0


def test_a_folder_that_is_a_link_or_of_another_is_not_read(
    home: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spooled(home, "r", "j")
    folder = path.parent
    folder.rename(home / "away")
    folder.symlink_to(home / "away")
    assert running.reader.look() == 0
    assert "is a symbolic link" in running.told[-1]
    folder.unlink()
    (home / "away").rename(folder)
    real, inode = os.fstat, folder.stat().st_ino
    monkeypatch.setattr(os, "fstat", lambda fd: _of_another(real(fd), inode))
    assert running.reader.look() == 0
    assert "belongs to uid" in running.told[-1]
    assert running.names() == []
    assert path.exists()


def test_a_file_that_changes_while_it_is_read_waits(
    home: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spooled(home, "r", "j")
    content = path.read_bytes()
    real = os.read
    grown: list[int] = []

    def read(descriptor: int, count: int) -> bytes:
        if os.fstat(descriptor).st_ino == path.stat().st_ino and not grown:
            grown.append(1)
            with path.open("ab") as file:
                file.write(b" ")
        return real(descriptor, count)

    monkeypatch.setattr(os, "read", read)
    with Spool(home) as spool, pytest.raises(StillChanging, match="changed while it was read"):
        spool.read("r.json")
    grown.clear()
    assert running.reader.look() == 0
    assert running.names() == []
    assert path.read_bytes() == content + b"  "
    assert running.reader.look() == 1  # it has come to rest
    assert running.names() == ["j"]


def test_a_look_takes_a_bounded_number(home: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_spool, "AT_ONCE", 3)
    for number in range(5):
        spooled(home, f"r{number}", f"j{number}", at=number)
    assert (running.reader.look(), waiting(home)) == (3, 2)
    assert (running.reader.look(), waiting(home)) == (2, 0)
    assert running.names() == [f"j{number}" for number in range(5)]
    monkeypatch.setattr(daemon_spool, "AT_ONCE_BYTES", 1)
    spooled(home, "a", "a")
    spooled(home, "b", "b")
    assert (running.reader.look(), running.reader.look()) == (1, 1)


def test_what_cannot_be_recorded_waits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(MemoryJournal):
        full = True

        def append(self, *args: Any, **kwargs: Any) -> Any:
            if self.full:
                raise JournalError("no space left")
            return super().append(*args, **kwargs)

    journal = Full()
    running = Running(home, journal)
    try:
        path = spooled(home, "r", "j")
        assert running.reader.look() == 0
        assert path.exists()
        journal.full = False
        assert running.reader.look() == 1
        assert (running.names(), running.told, path.exists()) == (["j"], [], False)
        running.loop.send(cmd.Stop(False)).result(60)
        path = spooled(home, "s", "k")
        assert running.reader.look() == 0
        assert (path.exists(), running.told) == (True, [])  # for the next daemon
    finally:
        running.loop.stop()


def test_a_submit_that_the_daemon_fails_at_does_not_hold_up_the_others(home: Path, running: Running) -> None:
    def fails(command: cmd.Command) -> Any:
        if isinstance(command, cmd.Submit) and command.request_id == "bad":
            return running.loop.call(lambda _: 1 // 0)
        return running.loop.send(command)

    spooled(home, "bad", "j", at=1.0)
    spooled(home, "good", "k", at=2.0)
    reader = SpoolReader(home, fails, lambda where, detail: running.told.append(detail))
    assert reader.look() == 1
    assert running.names() == ["k"]
    assert refused(home) == {"bad.json": "the daemon failed at it, see daemon.log: ZeroDivisionError"}


def test_a_slow_ledger_holds_a_look_up_once_only(home: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        spooled(home, f"r{number}", "j", at=number)
    stuck = [Future[Any]() for _ in range(20)]
    answers = iter(stuck)
    reader = SpoolReader(home, lambda _: next(answers), lambda where, detail: running.told.append(detail))
    with monkeypatch.context() as patched:
        patched.setattr(daemon_spool, "ANSWER_S", 0.2)
        assert (reader.look(), waiting(home), running.told) == (0, 20, [])
    assert running.reader.look() == 20
    assert len(running.names()) == 20


def test_too_large_a_submit_is_not_spooled(home: Path) -> None:
    with pytest.raises(wire_spool.SpoolError, match="is over 8 MiB"):
        put(home, "r", ["x" * LIMIT])
    assert not home.exists()


def test_a_daemon_takes_in_what_is_spooled(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("monitor_interval_s: 1\n")
    (home / "config.yaml").chmod(0o600)
    argv = [sys.executable, "-m", "hpcdl", "--home", str(home), "daemon"]
    put(home, "r", [spec("early")])
    subprocess.run([*argv, "start", "--emulate-gpus", "1"], check=True, capture_output=True)
    try:
        with Client(home) as client:

            def names() -> list[str]:
                return [job["name"] for job in client.get("/v1/jobs?all=1")["jobs"]]

            def trouble() -> list[str]:
                events = client.get("/v1/events?limit=10000")["events"]
                return [event["body"]["detail"] for event in events if event["kind"] == "TroubleSeen"]

            assert names() == ["early"]  # as soon as the start has returned
            put(home, "s", [spec("late"), spec("later")])
            (home / "spool" / "bad.json").touch(0o600)
            until(lambda: waiting(home) == 0 and trouble(), "an empty spool, and a trouble")
            assert names() == ["early", "late", "later"]
            aside = home / "spool" / "refused" / "bad.json"
            assert trouble() == [f"a spooled submit is refused, and now {aside}: the file is not JSON"]
    finally:
        subprocess.run([*argv, "stop", "--now"], check=True, capture_output=True)


def test_a_spooled_array_is_taken_in_like_any_other_submit(home: Path, running: Running) -> None:
    entry = {"command": ["train", "{index}"], "name": "j", "array": {"indices": "1-3", "max_parallel": 1}, "held": True}
    put(home, "r", [entry], strict=True)
    assert running.reader.look() == 1
    assert running.names() == ["j[1]", "j[2]", "j[3]"]
    assert {job.spec.array_most for job in running.loop.world.jobs.values()} == {1}
    put(home, "s", [entry | {"array": {"indices": "x"}}])
    assert running.reader.look() == 0
    assert "'x' is not an index" in running.told[-1]
