"""The end of a daemon as its clients and its terminal see it: real processes, ended by pid."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.client import Client, ClientError, path_with
from hpcdl.wire.readable import readable

SOON_S = 60.0


def run(home: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "hpcdl", "--home", str(home), *words], check=True, capture_output=True)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    run(folder, "daemon", "start", "--emulate-gpus", "1", "--node", "n1")
    yield folder
    with contextlib.suppress(subprocess.CalledProcessError):  # it is stopped already
        run(folder, "daemon", "stop", "--now")


def test_who_waits_at_a_stop_gets_an_answer(home: Path) -> None:
    got: list[dict[str, Any] | ClientError] = []
    asked = threading.Event()

    def follow() -> None:
        with Client(home, patience_s=0.0) as client:
            after = client.get("/v1/status")["events"]
            asked.set()
            try:
                while True:  # each of these waits; the one that the end of the daemon meets is what matters
                    answer = client.get(path_with("/v1/events", after=after, wait=30), wait_s=30)
                    after = max([after, *(event["seq"] for event in answer["events"])])
            except ClientError as error:
                got.append(error)

    follower = threading.Thread(target=follow)
    follower.start()
    assert asked.wait(SOON_S)
    run(home, "daemon", "stop")
    follower.join(SOON_S)
    assert not follower.is_alive()
    assert [type(each).__name__ for each in got] == ["DaemonAway"]
    assert "Traceback" not in (home / "daemon.log").read_text()


def test_a_terminal_that_is_closed_stops_the_daemon_in_order(home: Path) -> None:
    with Client(home, patience_s=0.0) as client:
        pid = client.get("/v1/status")["daemon"]["pid"]
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGHUP)
        ended = readable([descriptor], SOON_S)
    finally:
        os.close(descriptor)
    assert ended
    assert not (home / "lease").exists()  # given back: it was no death


def test_nohup_keeps_daemon_and_agent_when_the_terminal_is_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start = [sys.executable, "-m", "hpcdl", "--home", str(home), "daemon", "start", "--emulate-gpus", "1"]
    subprocess.run(["/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *start], check=True, capture_output=True)
    try:
        with Client(home, patience_s=0.0) as client:
            status = client.get("/v1/status")
        for pid in (status["daemon"]["pid"], status["agents"][0]["pid"]):
            (ignored,) = [line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if "SigIgn" in line]
            assert int(ignored.split()[1], 16) & 1 << signal.SIGHUP - 1
    finally:
        run(home, "daemon", "stop", "--now")
