"""The command as a process of its own: what it imports, terminals, pipes, Ctrl-C, and daemons that come and go."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcdl.wire.readable import readable
from tests.cli.fake import FakeDaemon, row
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
HEAVY = {"sqlalchemy", "starlette", "uvicorn", "yaml", "psutil", "numpy", "apscheduler", "cryptography", "asyncio",
         "websockets", "pynvml", "subprocess", "urllib.request", "http.client",
         "prometheus_client"}  # fmt: skip
SOON_S = 180.0


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a command needs, and nothing that this test was started with."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "HPCDL_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **more}


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "hpcdl", *map(str, words)]


@contextmanager
def running(home: Path, *words: object) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        argv(*words), env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("line", ["--version", "--help", "ls", "ls --json", "submit -- true", "wait 1", "logs 1"])
def test_a_command_imports_only_what_it_needs(fake: FakeDaemon, line: str) -> None:
    fake.world.jobs[1] = row(1, state="DONE")
    (fake.home / "logs" / "1").mkdir(parents=True)
    (fake.home / "logs" / "1" / "1.n1.log").write_text("x\n")
    code = "import sys, hpcdl.cli as c; r = c.main(sys.argv[1:]); print(*sys.modules, file=sys.stderr); sys.exit(r)"
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()],
        env=environment(fake.home),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "hpcdl.cli.root" in loaded
    assert not loaded & HEAVY
    if line.startswith("--"):
        assert not loaded & {"hpcdl.cli.ls", "hpcdl.cli.submit.command", "hpcdl.core.model.world"}


def test_python_m_hpcdl_is_the_command(home: Path) -> None:
    from hpcdl import __version__

    done = subprocess.run(argv("--version"), env=environment(home), capture_output=True, text=True, check=True)
    assert done.stdout == f"hpcdl {__version__}\n"


def test_a_reader_that_goes_away_is_no_error(fake: FakeDaemon) -> None:
    fake.world.jobs = {number: row(number, note="x" * 200) for number in range(1, 2001)}
    with running(fake.home, "ls") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("  ID")
        process.stdout.close()
        assert process.wait(SOON_S) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stdout = None


def test_a_full_disk_is_one_line(fake: FakeDaemon) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            argv("ls", "--json"),
            env=environment(fake.home),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("hpcdl: No space left on device")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_is_130_without_a_traceback(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1)
    with running(fake.home, "wait", 1) as process:
        until(lambda: fake.requests, "a request")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON_S)
        assert (process.returncode, out, err.strip()) == (130, "", "")


def test_a_submit_survives_the_death_of_the_daemon_in_its_middle(fake: FakeDaemon) -> None:
    fake.dies_at = "/v1/jobs"
    with running(fake.home, "submit", "--json", "--", "true") as process:
        assert process.stderr is not None
        noted = process.stderr.readline()
        fake.start()
        out, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    assert [job["id"] for job in json.loads(out)["jobs"]] == [1]
    assert list(fake.world.jobs) == [1]
    assert len({request[2]["request_id"] for request in fake.requests}) == 1
    assert noted == "hpcdl: the daemon is away; waiting up to 15 s for it to come back\n"


def test_wait_rides_out_a_restart(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1, state="RUNNING")
    with running(fake.home, "wait", 1) as process:
        until(lambda: fake.requests, "a request")
        fake.kill()
        fake.world.jobs[1].update(state="FAILED", exit_code=9)
        assert process.stderr is not None
        noted = process.stderr.readline()
        fake.start()
        out, err = process.communicate(timeout=SOON_S)
    assert (process.returncode, out) == (9, "job 1 FAILED (exit code 9): job1\n")
    assert noted == "hpcdl: the daemon is away; waiting up to 60 s for it to come back\n"
    assert err == "hpcdl: the daemon is back\n"


def test_logs_are_followed_over_incarnations_and_a_restart(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1, state="RUNNING")
    folder = fake.home / "logs" / "1"
    with running(fake.home, "logs", "-f", 1) as process:
        until(lambda: fake.requests, "a request")
        folder.mkdir(parents=True)
        (folder / "1.n1.log").write_text("one\n")
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        fake.kill()
        (folder / "2.n1.log").write_text("two\n")
        fake.start()
        assert process.stdout.readline() == "==> attempt 2 on n1 <==\n"
        assert process.stdout.readline() == "two\n"
        with open(folder / "2.n1.log", "a") as log:
            log.write("the end\n")
        fake.world.jobs[1]["state"] = "DONE"
        out, _ = process.communicate(timeout=SOON_S)
    assert (process.returncode, out) == (0, "the end\n")


def test_events_are_followed_over_a_restart(fake: FakeDaemon) -> None:
    def happen(job: int) -> None:
        number = len(fake.world.events) + 1
        event = {"seq": number, "at": 1.0, "stream": f"job/{job}", "version": 1, "kind": "Ticked", "body": {"job": job}}
        fake.world.events.append(event)

    fake.world.jobs[1] = row(1)
    happen(1)
    with running(fake.home, "events", "--follow", "--quiet", "--job", 1, "--limit", 3) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        happen(2)
        happen(1)
        assert process.stdout.readline() == "3\n"
        happen(2)
        # Other jobs' events are behind it, and it does not spin.
        until(lambda: "after=4" in fake.requests[-1][1], "the next request")
        asked = len(fake.requests)
        fake.kill()
        fake.start()
        until(lambda: len(fake.requests) > asked, "another request")
        happen(1)
        out, _ = process.communicate(timeout=SOON_S)
    assert (process.returncode, out) == (0, "5\n")


def on_terminal(home: Path, columns: int, *words: object, **more: str) -> list[str]:
    """The lines of a command on a terminal of so many columns."""
    ours, its = pty.openpty()
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            argv(*words), env=environment(home, TERM="xterm", **more), stdin=its, stdout=its, stderr=subprocess.DEVNULL
        )
    finally:
        os.close(its)
    text = b""
    try:
        while readable([ours], SOON_S):
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            text += piece
    finally:
        os.close(ours)
        assert process.wait(SOON_S) == 0
    return text.decode().splitlines()


def test_a_terminal_gets_its_width_and_colour(fake: FakeDaemon) -> None:
    fake.world.jobs = {
        1: row(1, name="名前" * 20, state="RUNNING", note="r" * 300),
        2: row(2, name="n", state="FAILED", note="\x1b]0;x\x07"),
    }
    lines = on_terminal(fake.home, 80, "ls", "--all")
    assert "\x1b[32mRUNNING\x1b[0m" in lines[1]
    assert "\x1b[31mFAILED\x1b[0m" in lines[4]
    assert "\\x1b]0;x\\x07" in lines[4]
    plain = on_terminal(fake.home, 80, "ls", "--all", NO_COLOR="1")
    assert not any("\x1b" in line for line in plain)
    assert "…" in plain[1]
    for line in plain:
        assert len(line) + sum(c in "名前" for c in line) <= 80
    assert [set(line.strip("… ")) for line in plain[2:4]] == [{"r"}, {"r"}], "a long note has the lines below its row"
    assert plain[-1] == "2 jobs: 1 RUNNING, 1 FAILED"
    assert len(on_terminal(fake.home, 1000, "ls")[1]) > 300


def test_a_pipe_gets_everything_and_no_colour(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1, state="RUNNING", note="r" * 300)
    done = subprocess.run(argv("ls"), env=environment(fake.home), capture_output=True, text=True, check=True)
    assert "r" * 300 in done.stdout
    assert "\x1b" not in done.stdout


def test_ids_of_many_jobs_are_waited_for_at_once(fake: FakeDaemon) -> None:
    fake.world.jobs = {number: row(number, state="RUNNING") for number in range(1, 51)}
    with running(fake.home, "wait", "--quiet", *range(1, 51)) as process:
        until(lambda: fake.requests, "a request")

        def finish() -> None:
            for job in fake.world.jobs.values():
                job["state"] = "DONE"

        threading.Thread(target=finish).start()
        out, _ = process.communicate(timeout=SOON_S)
    assert (process.returncode, out.split()) == (0, [str(number) for number in range(1, 51)])
    assert len(fake.requests) == 1


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_matter(fake: FakeDaemon, closed: str) -> None:
    line = f'"$@" {closed}; echo "ended with $?"'
    for words in (("ls",), ("ls", "--json"), ("submit", "-q", "--", "true"), ("nosuch",)):
        done = subprocess.run(
            ["sh", "-c", f"({line}) 2>&1", "sh", *argv(*words)],
            env=environment(fake.home), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        said = [each for each in done.stdout.splitlines() if not each.startswith("hpcdl: ")]
        assert said == [f"ended with {2 if words == ('nosuch',) else 0}"]
        assert "unexpected" not in done.stdout
    assert len(fake.world.jobs) == 1
