"""`hpcdl ls --watch`: in a pipe a table per change, on a terminal in place; over restarts, and until Ctrl-C."""

import json
import os
import pty
import signal
import subprocess

from hpcdl.wire.readable import readable
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row
from tests.cli.test_process import SOON_S, argv, environment, running
from tests.support.waiting import until


def test_in_a_pipe_each_change_is_a_table_and_ctrl_c_is_130(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1)
    with running(fake.home, "ls", "--watch", "0.1", "--columns", "id,state") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ID  STATE\n", " 1  QUEUED\n"]
        asked = len(fake.requests)
        until(lambda: len(fake.requests) >= asked + 3, "several looks at what has not changed")
        fake.world.jobs[1]["state"] = "RUNNING"
        assert [process.stdout.readline() for _ in range(3)] == ["\n", "ID  STATE\n", " 1  RUNNING\n"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON_S)
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_json_is_a_value_a_line_over_a_restart_of_the_daemon(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1)
    with running(fake.home, "ls", "--json", "--watch", "0.1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["jobs"][0]["state"] == "QUEUED"
        fake.kill()
        assert "the daemon is away" in process.stderr.readline()
        fake.world.jobs[1]["state"] = "RUNNING"
        fake.start()
        assert "the daemon is back" in process.stderr.readline()
        assert json.loads(process.stdout.readline())["jobs"][0]["state"] == "RUNNING"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SOON_S)
    assert process.returncode == 130


def test_without_a_daemon_there_is_nothing_to_watch(home: object, hpcdl: Run) -> None:
    done = hpcdl("ls", "--watch")
    assert (done.code, done.out) == (1, "")
    assert "no daemon is running" in done.err


def test_the_seconds_may_be_left_out_before_what_to_list(fake: FakeDaemon) -> None:
    with running(fake.home, "ls", "--quiet", "--watch", "gpus") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["n1:0\n", "n1:1\n"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SOON_S)
    assert process.returncode == 130


def test_a_terminal_is_redrawn_in_place(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1)
    ours, its = pty.openpty()
    process = subprocess.Popen(
        argv("ls", "--watch", "0.1"), env=environment(fake.home, TERM="xterm"), stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    text = b""

    def shows(wanted: bytes) -> bool:
        nonlocal text
        if readable([ours], 0.5):
            text += os.read(ours, 65536)
        return wanted in text

    try:
        until(lambda: shows(b"QUEUED"), "the job", story=lambda: repr(text))
        fake.world.jobs[1]["state"] = "RUNNING"
        until(lambda: shows(b"RUNNING"), "its start", story=lambda: repr(text))
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == 130
    finally:
        os.close(ours)
        process.kill()
    assert text.startswith(b"\x1b[2J\x1b[H")
    assert text.count(b"\x1b[2J") == 1, "cleared once, then drawn over"
    assert text.count(b"hpcdl ls jobs: every 0.1 s") >= 2
