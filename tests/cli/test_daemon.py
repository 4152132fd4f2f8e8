"""`hpcdl daemon` and `config`."""

import errno
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.daemon.__main__ import _told
from hpcdl.daemon.launch import LaunchError
from hpcdl.daemon.ready import ReadyPipe
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


def test_config(fake: FakeDaemon, hpcdl: Run) -> None:
    shown = hpcdl("config").out
    assert shown.splitlines() == [
        "policy     marble  (of marble, fifo-exclusive)",
        "objective  makespan  (of makespan)",
    ]
    assert hpcdl("config", "--json").value["config"] == hpcdl("config", "show", "--json").value["config"]
    assert hpcdl("config", "--quiet").out == "marble\nmakespan\n"
    assert hpcdl("config", "policy", "fifo-exclusive", "--json").value["config"]["policy"] == "fifo-exclusive"
    assert hpcdl("config", "objective", "makespan", "--quiet").out == "fifo-exclusive\nmakespan\n"
    done = hpcdl("config", "policy", "nope")
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: no policy nope: one of marble\n")


def test_daemon_status(fake: FakeDaemon, hpcdl: Run) -> None:
    shown = hpcdl("daemon", "status").out
    for text in ("pid 4711 on h", "fence 2", "1 min 01 s", "marble", "1 RUNNING", "TRAINER", "AGENT"):
        assert text in shown
    value = hpcdl("daemon", "status", "--json").value
    assert (value["daemon"]["pid"], value["agents"][0]["node"], value["trainers"][0]["job"]) == (4711, "n1", 1)
    assert hpcdl("daemon", "status", "--quiet").out == "4711\n"


def test_daemon_status_without_a_daemon_is_json_and_exit_1(hpcdl: Run) -> None:
    done = hpcdl("daemon", "status", "--json")
    assert done.code == 1
    assert done.value["daemon"] is None
    assert done.value["agents"] == done.value["trainers"] == done.value["notes"] == []
    assert done.value["notices"] == {"waiting": 0, "given_up": 0, "failing": []}


def test_a_home_that_cannot_be_is_one_line_with_a_way_out(hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDL_HOME", "/proc/x")
    done = hpcdl("daemon", "start")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith("hpcdl: cannot use /proc/x: ")
    assert done.err.endswith(": name another folder with --home or HPCDL_HOME\n")


def test_a_stop_without_a_daemon_has_nothing_to_do(home: Path, hpcdl: Run) -> None:
    done = hpcdl("daemon", "stop")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"hpcdl: no daemon is running for {home}: there is nothing to stop\n"
    assert hpcdl("daemon", "stop", "--json").value["daemon"] is None
    assert not home.exists()
    home.mkdir(mode=0o700)
    (home / "lease.3").touch()
    done = hpcdl("daemon", "stop", "--quiet")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"hpcdl: no daemon is running for {home}, and it was not stopped: its jobs may go on; hpcdl daemon start takes "
        "them over, and a stop then saves them\n"
    )


def test_daemon_start_and_stop(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def start(*given: object) -> dict[str, object]:
        asked.append(given)
        return {"exit_code": 3} if given[3] else {"pid": 12, "home": str(home), "nodes": ["n1"], "fence": 1}

    def stop(*given: object) -> dict[str, object]:
        asked.append(given)
        return {"pid": 12, "stopped": True, "left": left}

    left: list[str] = []
    monkeypatch.setattr("hpcdl.daemon.launch.start", start)
    monkeypatch.setattr("hpcdl.daemon.launch.stop", stop)
    assert hpcdl("daemon", "start", "--emulate-gpus", 6, "--node", "n1").out == f"daemon (pid 12) started on {home}\n"
    assert hpcdl("daemon", "start", "--json").value["daemon"]["nodes"] == ["n1"]
    assert hpcdl("daemon", "start", "--quiet").out == "12\n"
    assert hpcdl("daemon", "start", "--foreground").code == 3
    assert hpcdl("daemon", "stop").out == "daemon (pid 12) stopped\n"
    assert hpcdl("daemon", "stop", "--now", "--json").value["daemon"] == {"pid": 12, "stopped": True, "left": []}
    assert asked == [
        (home, 6, "n1", False, False, False), (home, None, None, False, False, False),
        (home, None, None, False, False, False), (home, None, None, True, False, False),
        (home, False), (home, True),
    ]  # fmt: skip
    left += ["n1", "n2"]
    done = hpcdl("daemon", "stop")
    assert done.code == 0
    assert done.err.startswith("hpcdl: the agents of n[1-2] were away: trainers there checkpoint and end by themselves")


def test_a_start_without_gpus_names_the_next_step(
    fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdl.daemon.launch.start", lambda *given: {"pid": 12, "nodes": ["n1"], "fence": 1})
    assert hpcdl("daemon", "start").err == ""
    here = {"name": "vm", "connected": True, "lost": False, "gpus": []}
    away = {"name": "n1", "connected": False, "lost": False, "gpus": [{"index": 0}]}
    for nodes, known in (([here], ""), ([here, away], " (the node known here is n1: --node n1)")):
        fake.answers["/v1/nodes"] = (200, json.dumps({"schema": 1, "nodes": nodes}).encode())
        done = hpcdl("daemon", "start", "--json")
        assert done.value["daemon"]["pid"] == 12
        assert done.err.startswith(
            f"hpcdl: no GPU was found on vm{known}: hpcdl daemon stop, then hpcdl daemon start --emulate-"
        )
    there = {**away, "name": "n2", "allocation": "77"}  # of a batch job: no daemon is started there by hand
    fake.answers["/v1/nodes"] = (200, json.dumps({"schema": 1, "nodes": [here, there]}).encode())
    status = {"schema": 1, "daemon": {"pid": 12}, "batch": {"pilots_max": 2}}
    fake.answers["/v1/status"] = (200, json.dumps(status).encode())
    assert hpcdl("daemon", "start").err == "hpcdl: no GPU was found on vm: jobs wait for pilots to bring some\n"


def test_a_daemon_that_does_not_start_is_one_line(hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*given: object) -> None:
        raise LaunchError("pid 7 on h holds it: hpcdl daemon stop")

    monkeypatch.setattr("hpcdl.daemon.launch.start", start)
    done = hpcdl("daemon", "start")
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: pid 7 on h holds it: hpcdl daemon stop\n")


def test_a_folder_that_cannot_be_a_home_is_told_in_words(hpcdl: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = hpcdl("--home", tmp_path / "file", "daemon", "start")
    assert (done.code, done.out) == (1, "")
    assert "is not a folder" in done.err
    done = hpcdl("--home", tmp_path / ("n" * 300), "daemon", "start")
    assert done.code == 1
    assert "File name too long: name another folder" in done.err
    assert "Errno" not in done.err


def test_a_full_disk_is_named(tmp_path: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert _told(full, tmp_path) == f"{tmp_path}: No space left on device: make room, then start it again"
    monkeypatch.setattr("hpcdl.cli.submit.send.put", Mock(side_effect=full))
    done = hpcdl("submit", "--", "true")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("hpcdl: No space left on device: make room")


def test_what_a_daemon_in_the_foreground_says_is_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    told = {"pid": 7, "home": "/home/ada/.hpcdl", "nodes": ["n1"], "fence": 1}
    ReadyPipe(None, people=True).tell(told | {"note": "no agent has called"})
    ReadyPipe(None, people=True).tell({"error": "no room: make some"})
    out, err = capfd.readouterr()
    first = "daemon (pid 7) started on /home/ada/.hpcdl: Ctrl-C saves all jobs and stops it\n"
    assert (out, err) == (f"{first}no agent has called\n", "hpcdl: no room: make some\n")
    ReadyPipe(None).tell(told)
    assert json.loads(capfd.readouterr().out) == told
