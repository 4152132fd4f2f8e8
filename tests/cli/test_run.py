"""`hpcdl run`: a job in the foreground, against a daemon that is only its API."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.core.model.world import UNDECIDED
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row
from tests.cli.test_process import running
from tests.support.waiting import until

OUTPUT = b"step 1\r\xff\x00 no newline"


def write_log(home: Path, content: bytes, attempt: int = 1) -> None:
    folder = home / "logs" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{attempt}.n1.log", "ab") as file:
        file.write(content)


def later(fake: FakeDaemon, act: Callable[[], None]) -> threading.Thread:
    """Does it once job 1 is submitted."""

    def wait_and_act() -> None:
        until(lambda: 1 in fake.world.jobs, "its job")
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def end(fake: FakeDaemon, **changes: object) -> None:
    fake.world.jobs[1] |= changes


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"state": "DONE", "exit_code": 0}, 0),
        ({"state": "FAILED", "exit_code": 7, "detail": "exit code 7"}, 7),
        ({"state": "FAILED", "exit_code": None}, 1),
        ({"state": "CANCELLED"}, 130),
    ],
)
def test_its_exit_code_is_the_jobs(fake: FakeDaemon, hpcdl: Run, changes: dict[str, object], code: int) -> None:
    thread = later(fake, lambda: end(fake, **changes))
    done = hpcdl("run", "--gpus", "2", "--name", "x", "--", "true")
    thread.join()
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("hpcdl: job 1 is QUEUED: needs 1 GPU, 0 free\n")
    (spec,) = next(body for method, _, body in fake.requests if method == "POST")["jobs"]
    assert (spec["command"], spec["gpus_min"], spec["name"]) == (["true"], 2, "x")


def test_a_reason_is_told_once_there_is_one(fake: FakeDaemon, hpcdl: Run) -> None:
    def looks() -> int:
        return sum(path.startswith("/v1/wait") for _, path, _ in fake.requests)

    def decide() -> None:
        until(lambda: looks() > 0, "a look")
        end(fake, reason="waiting for 1 GPU: all 4 busy")
        until(lambda: looks() > 2, "more of them")
        end(fake, state="DONE", exit_code=0)

    fake.world.jobs = {1: row(1, reason=UNDECIDED)}
    fake.answers["/v1/jobs"] = (200, json.dumps({"schema": 1, "jobs": [row(1, reason=UNDECIDED)]}).encode())
    thread = later(fake, decide)
    done = hpcdl("run", "--", "true")
    thread.join()
    assert done.err.splitlines()[:2] == [
        "hpcdl: job 1 is QUEUED", "hpcdl: job 1 is QUEUED: waiting for 1 GPU: all 4 busy"
    ]  # fmt: skip


def test_a_failure_that_is_tried_again_is_said(fake: FakeDaemon, hpcdl: Run) -> None:
    def looks() -> int:
        return sum(path.startswith("/v1/wait") for _, path, _ in fake.requests)

    def act() -> None:
        end(fake, failures=1, detail="killed from outside, ended by SIGKILL")
        looked = looks()
        until(lambda: looks() >= looked + 2, "two more looks")
        end(fake, state="DONE")

    thread = later(fake, act)
    done = hpcdl("run", "--", "true")
    thread.join()
    assert "hpcdl: job 1 has failed and is tried again: killed from outside, ended by SIGKILL\n" in done.err


def test_a_job_that_is_held_after_failures_is_not_said_to_be_tried_again(fake: FakeDaemon, hpcdl: Run) -> None:
    def looks() -> int:
        return sum(path.startswith("/v1/wait") for _, path, _ in fake.requests)

    def see(**changes: object) -> None:
        end(fake, **changes)
        looked = looks()
        until(lambda: looks() >= looked + 2, "two more looks")

    why = "held after 50 failures without a checkpoint, at last: exit code 1: hpcdl resume 1 tries again"

    def act() -> None:
        see(state="SUSPENDED", reason="it pauses")
        # it was started and failed between two looks
        see(failures=50, detail="exit code 1", held=True, held_after="50 failures", reason=why)
        end(fake, state="CANCELLED")

    thread = later(fake, act)
    done = hpcdl("run", "--", "true")
    thread.join()
    assert done.err.count(f"hpcdl: job 1 is {why}\n") == 1
    assert "is tried again" not in done.err


def test_a_signal_that_ended_it_is_told_as_shells_do(fake: FakeDaemon, hpcdl: Run) -> None:
    body = {"job": 1, "incarnation": 1, "node": "n1", "code": None, "signal": "SIGSEGV"}
    fake.world.events = [
        {"seq": 1, "at": 1.0, "stream": "job/1", "version": 1, "kind": "Exited", "body": body},
        {"seq": 2, "at": 1.0, "stream": "job/1", "version": 2, "kind": "JobEnded", "body": {}},
    ]
    thread = later(fake, lambda: end(fake, state="FAILED"))
    assert hpcdl("run", "-q", "--", "true").code == 128 + signal.SIGSEGV
    thread.join()


def test_its_output_is_printed_byte_for_byte_over_attempts(
    fake: FakeDaemon, home: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdl.cli.root import main

    monkeypatch.setenv("HPCDL_HOME", str(home))

    def act() -> None:
        write_log(home, OUTPUT)
        write_log(home, b"again\n", attempt=2)
        end(fake, state="DONE")

    thread = later(fake, act)
    assert main(["run", "--quiet", "--", "true"]) == 0
    thread.join()
    assert capfdbinary.readouterr() == (OUTPUT + b"again\n", b"")


def test_what_cannot_be_run_in_the_foreground(fake: FakeDaemon, hpcdl: Run) -> None:
    for words in (["run"], ["run", "--array", "1-3", "--", "true"], ["run", "--sweep", "a=1,2", "--", "true"]):
        done = hpcdl(*words)
        assert (done.code, done.err.count("\n")) == (2, 1)
    fake.kill()
    done = hpcdl("run", "--", "true")
    assert (done.code, "no daemon is running" in done.err) == (1, True)
    assert not list(fake.home.glob("spool/*"))


def test_ctrl_c_cancels_the_job(fake: FakeDaemon, home: Path) -> None:
    with running(home, "run", "--", "true") as process:
        until(lambda: any(path.startswith("/v1/wait") for _, path, _ in fake.requests), "its wait")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (130, "")
    assert "hpcdl: job 1 is being cancelled: Ctrl-C again does not wait for its end\n" in err
    assert fake.world.jobs[1]["state"] == "CANCELLED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal_leaves_the_job_alone(fake: FakeDaemon, home: Path, number: signal.Signals) -> None:
    with running(home, "run", "--", "true") as process:
        until(lambda: any(path.startswith("/v1/wait") for _, path, _ in fake.requests), "its wait")
        process.send_signal(number)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 128 + number
    assert err.endswith("job 1 goes on: hpcdl logs -f 1 follows it, hpcdl cancel 1 ends it\n")
    assert fake.world.jobs[1]["state"] == "QUEUED"


def test_the_second_ctrl_c_waits_for_nothing_and_a_restart_changes_nothing(fake: FakeDaemon, home: Path) -> None:
    with running(home, "run", "--", "true") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "hpcdl: job 1 is QUEUED: needs 1 GPU, 0 free\n"
        until(lambda: any(path.startswith("/v1/wait") for _, path, _ in fake.requests), "its wait")
        fake.kill()
        assert process.stderr.readline().endswith("job 1 goes on\n")
        fake.start()
        assert process.stderr.readline() == "hpcdl: the daemon is back\n"
        fake.kill()
        assert process.stderr.readline().endswith("job 1 goes on\n")

        def interrupted() -> bool:
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        until(interrupted, "its end")
    assert process.returncode == 130
