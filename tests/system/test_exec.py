"""`hpcdl exec` and `attach` with a real daemon, agent and trainer."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from hpcdl.wire.access import read_access
from hpcdl.wire.readable import readable
from hpcdl.wire.tls import client_context
from tests.support.waiting import until
from tests.system.cluster import PATIENCE_S, Cluster

HPCDL = [sys.executable, "-m", "hpcdl"]


@pytest.fixture
def job(kept_cluster: Cluster) -> int:
    number = kept_cluster.submit("--save-every", 20, gpus="2", steps=100_000)
    kept_cluster.until_step(number, 1)
    return number


def execute(
    cluster: Cluster, job: int, *command: str, data: bytes = b"", limit_s: float = PATIENCE_S
) -> tuple[int, bytes, str]:
    argv = [*HPCDL, "exec", str(job), "--", *command]
    done = subprocess.run(argv, input=data, capture_output=True, env=cluster.environment, timeout=limit_s)
    return done.returncode, done.stdout, done.stderr.decode()


def test_a_command_beside_a_job(kept_cluster: Cluster, job: int) -> None:
    cluster = kept_cluster
    seen = (
        'echo "$PWD $HPCDL_JOB $HPCDL_GPU_COUNT $CUDA_VISIBLE_DEVICES [$HPCDL_TAG$HPCDL_SOCKET]"; echo bad >&2; exit 7'
    )
    code, out, err = execute(cluster, job, "sh", "-c", seen)
    assert (code, err) == (7, "bad\n")
    folder, number, count, gpus, ours = out.decode().split()
    assert (folder, number, count, len(gpus.split(",")), ours) == (os.getcwd(), str(job), "2", 2, "[]")

    data = os.urandom(1 << 20)
    assert execute(cluster, job, "cat", data=data) == (0, data, "")
    assert execute(cluster, job, "no-such-command") == (127, b"", "hpcdl: command not found: no-such-command\n")
    assert execute(cluster, 999, "true")[2] == "hpcdl: there is no job 999: hpcdl ls --all lists them\n"
    cluster.until(lambda: cluster.kinds(job).count("Noted") >= 3)  # its agent reports it while the command runs
    noted = [event["body"]["text"] for event in cluster.events(job) if event["kind"] == "Noted"]
    assert noted == ["a command was run beside it"] * 3
    assert "no-such-command" not in str(cluster.events(job)) + cluster.logs()


def test_the_owners_token_alone_opens_one(kept_cluster: Cluster, job: int) -> None:
    access = read_access(kept_cluster.home)
    viewers = json.loads((kept_cluster.home / "viewer.json").read_text())["token"] if _viewable(kept_cluster) else "x"
    for token in ("", "Bearer ", f"Bearer {access.token}x", f"Bearer {viewers}"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(
                f"wss://{access.host}:{access.port}/v1/jobs/{job}/shell",
                ssl=client_context(access.certificate),
                additional_headers={"Authorization": token},
                proxy=None,
                open_timeout=60,
            )
    assert "Noted" not in kept_cluster.kinds(job)


def _viewable(cluster: Cluster) -> bool:
    return (cluster.home / "viewer.json").exists()


def test_it_goes_when_the_job_is_suspended_and_holds_no_gpu(kept_cluster: Cluster, job: int) -> None:
    cluster = kept_cluster
    stubborn = "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done"
    argv = [*HPCDL, "exec", str(job), "--", "sh", "-c", stubborn]
    beside = subprocess.Popen(argv, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=-3)
    assert beside.stdout is not None
    assert beside.stdout.readline() == b"ready\n"
    cluster.cli("suspend", str(job))
    _, err = beside.communicate(timeout=PATIENCE_S)
    assert (beside.returncode, err.decode()) == (1, f"hpcdl: job {job}.1 is being suspended\n")
    cluster.until_state(job, "SUSPENDED")
    code, _, told = execute(cluster, job, "true")
    assert (code, "so nothing can run beside it: once it runs" in told) == (1, True)


@pytest.fixture
def begun(kept_cluster: Cluster, job: int) -> Iterator[Callable[..., tuple["subprocess.Popen[bytes]", bytes]]]:
    """Starts `hpcdl exec`, and returns it with the first line of its command. One that hangs spoils no other test."""
    all_of_them: list[subprocess.Popen[bytes]] = []

    def begin(*command: str) -> tuple["subprocess.Popen[bytes]", bytes]:
        argv = [*HPCDL, "exec", str(job), "--", *command]
        beside = subprocess.Popen(argv, env=kept_cluster.environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        all_of_them.append(beside)
        assert beside.stdout is not None
        return beside, beside.stdout.readline()

    yield begin
    for each in all_of_them:
        each.kill()
        each.communicate(timeout=PATIENCE_S)


def test_ctrl_c_is_the_commands_and_a_client_that_is_killed_takes_it_with_it(
    kept_cluster: Cluster, begun: Callable[..., tuple["subprocess.Popen[bytes]", bytes]]
) -> None:
    cluster = kept_cluster

    beside, said = begun("sh", "-c", "trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.1; done")
    assert said == b"ready\n"
    beside.send_signal(signal.SIGINT)
    out, _ = beside.communicate(timeout=PATIENCE_S)
    assert (out, beside.returncode) == (b"caught\n", 4)

    beside, said = begun("sh", "-c", "echo $$; exec sleep 600")
    beside.kill()
    beside.communicate(timeout=PATIENCE_S)
    cluster.until(lambda: not Path(f"/proc/{int(said)}").exists())


def test_a_shell_on_a_terminal_that_is_as_before_afterwards(kept_cluster: Cluster, job: int) -> None:
    cluster = kept_cluster
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (41, 77))
    before = termios.tcgetattr(theirs)
    env = cluster.environment | {"SHELL": "/bin/sh", "TERM": "xterm"}

    def on_terminal() -> None:
        os.setsid()

    argv = [*HPCDL, "attach", str(job)]
    shell = subprocess.Popen(argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=on_terminal)
    said = b""

    def comes(what: Callable[[], bool]) -> None:
        def look() -> bool:
            nonlocal said
            if readable([ours], 0.1):
                said += os.read(ours, 4096)
            return what()

        until(look, "what the shell is to do", story=lambda: repr(said))

    try:
        comes(lambda: bool(said))
        os.write(ours, b"PS1=re''ady:\n")
        comes(lambda: said.count(b"ready:") == 1)
        os.write(ours, b"stty size; echo job $HPCDL_JOB\n")
        comes(lambda: b"41 77\r\n" in said and f"job {job}\r\n".encode() in said and said.count(b"ready:") == 2)
        # Who says it has begun is in the foreground by then: Ctrl-C between the shell's fork and exec would be lost.
        os.write(ours, b"sh -c 'echo begun; exec sleep 600'; echo slept\n")
        comes(lambda: b"\r\nbegun\r\n" in said)
        os.write(ours, b"\x03")
        comes(lambda: said.count(b"ready:") == 3)
        os.write(ours, b"exit 6\n")
        comes(lambda: shell.poll() is not None)
        assert shell.returncode == 6
        assert b"\r\nslept" not in said
        assert termios.tcgetattr(theirs) == before
    finally:
        shell.kill()
        shell.wait()
        for fd in (ours, theirs):
            os.close(fd)
