"""Pids that mean another process than was thought, and strangers on a supervisor's socket."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.agent import agent, run_folder
from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor.run_folder import LOCK
from hpcdl.agent.supervisor.run_folder import RECORD_FILE as RECORDS
from hpcdl.agent.supervisor.side_channel import NAME as SOCKET
from tests.security.stranger import UID, as_uid, attempt
from tests.support.waiting import until
from tests.system.cluster import Cluster, kill

INSTANCE = "0123456789ab"
WAITS = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


def spawn(tag: str = "") -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "HPCDL_TAG": tag} if tag else {**os.environ}
    process = subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.communicate(timeout=60)


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of ours that has nothing to do with hpcdl."""
    process = spawn()
    yield process
    assert process.poll() is None, "it was signalled"
    end(process)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "1.1"
    folder.mkdir(mode=0o700)
    (folder / LOCK).touch(0o600)
    return folder


def test_a_forged_record_has_nobody_killed(bystander: "subprocess.Popen[bytes]", folder: Path) -> None:
    began = processes.start_ticks(bystander.pid)
    assert began is not None
    for record in (
        {"pid": bystander.pid, "start": began},  # all true, but it never was a supervisor here
        {"pid": bystander.pid, "start": began + 1},
        {"pid": bystander.pid},
        {"pid": str(bystander.pid), "start": began},
        {"pid": True, "start": True},
        {"pid": -1, "start": began},
        {"pid": 0, "start": began},
        {"pid": 1, "start": processes.start_ticks(1) or 0},
        {"pid": 1 << 40, "start": began},
        {},
    ):
        assert run_folder.holder(folder, record) is None, record


def test_who_holds_the_lock_is_the_supervisor(folder: Path) -> None:
    with (folder / LOCK).open() as lock:
        holder = subprocess.Popen(["sleep", "600"], stdin=lock)
    began = processes.start_ticks(holder.pid)
    assert began is not None
    another = run_folder.holder(folder, {"pid": holder.pid, "start": began + 1})
    assert another is not None
    assert not processes.signal_process(another, signal.SIGKILL), "its pid is another's by now"
    found = run_folder.holder(folder, {"pid": holder.pid, "start": began})
    assert found is not None
    assert processes.signal_process(found, signal.SIGKILL)
    assert holder.wait(60) == -signal.SIGKILL


def test_a_pid_that_is_used_again_is_left_alone(bystander: "subprocess.Popen[bytes]") -> None:
    now = processes.process_of(bystander.pid)
    assert now is not None
    for changed in (
        replace(now, start_ticks=now.start_ticks - 1),
        replace(now, tag=f"{INSTANCE}:1:1:n1"),
        replace(now, pid=1),
    ):
        assert processes.signal_process(changed, signal.SIGKILL) is False


def test_root_signals_nobody_elses_process(as_root: None, reachable: Path) -> None:
    """Not even one that carries our tag: whoever wants to be signalled as ours has to be ours."""
    tag = f"{INSTANCE}:7:1:n1"
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(UID)
        os.setuid(UID)
        os.close(told)
        os.dup2(tell, 1)
        os.chdir("/")
        try:
            os.execve("/bin/sh", ["sh", "-c", "echo up; exec sleep 600"], {"HPCDL_TAG": tag})
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(told, 2) == b"up"

        def sleeper() -> processes.Process | None:  # its tag can be read, unless it is just becoming another program
            process = processes.process_of(child)
            return process if process is not None and process.tag == tag else None

        found = until(sleeper, "its tag")
        assert processes.tagged(INSTANCE) == []
        assert processes.signal_process(found, signal.SIGKILL) is False
        assert processes.kill_all(lambda: [found], 0.05) == []
        assert agent.kill_unclaimed(INSTANCE, "n1", set(), Path("/nowhere")) == 0
        assert processes.process_of(child) is not None
    finally:
        kill(child)
        os.waitpid(child, 0)
        os.close(told)


def test_only_our_tag_is_swept(bystander: "subprocess.Popen[bytes]") -> None:
    others = [
        spawn(tag) for tag in ("another:7:1:n1", f"{INSTANCE}:7:1:n2", f"{INSTANCE}x:7:1:n1", f"{INSTANCE}:x:1:n1")
    ]
    ours = spawn(f"{INSTANCE}:7:1:n1")
    try:
        assert agent.kill_unclaimed(INSTANCE, "n1", set(), Path("/nowhere")) == 1
        assert ours.wait(60) == -signal.SIGKILL
        assert [process.poll() for process in others] == [None] * 4
        with pytest.raises(ValueError, match="every process"):
            processes.tagged("")
    finally:
        for process in (*others, ours):
            end(process)


@pytest.mark.parametrize("theirs", ["run/n1", "elsewhere"])
def test_what_a_supervisor_of_another_home_has_is_left_to_it(tmp_path: Path, theirs: str) -> None:
    """One was copied from the other, and they have one name."""
    folder = tmp_path / theirs / "7.1"
    folder.mkdir(parents=True)
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "instance").touch()
    code = "import os, subprocess, sys; subprocess.run(['sleep', '600'], env={'HPCDL_TAG': sys.argv[1]})"
    tag = f"{INSTANCE}:7:1:n1"
    argv = [sys.executable, "-c", code, tag, "-m", "hpcdl.agent.supervisor", str(folder), "--lock-fd", "3"]
    supervisor = subprocess.Popen(argv, start_new_session=True)
    try:
        until(lambda: processes.tagged(tag), "its trainer")
        swept = agent.kill_unclaimed(INSTANCE, "n1", set(), tmp_path / "another" / "run" / "n1")
        assert (swept == 0) is (theirs == "run/n1")
    finally:
        for each in processes.tree(supervisor.pid):
            processes.signal_process(each, signal.SIGKILL)
        supervisor.wait()


def test_forged_processes_are_not_signalled_without_pidfds(
    bystander: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", none)
    now = processes.process_of(bystander.pid)
    assert now is not None
    assert processes.signal_process(Process(now.pid, now.start_ticks + 1, "", "S"), signal.SIGKILL) is False


# --- a supervisor's socket --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(victim: Cluster) -> Path:
    """The run folder of a job that runs."""
    job = victim.submit(steps=5000)
    victim.until(lambda: victim.trainer_pid(job) > 0)
    folder = victim.home / "run" / "n1" / f"{job}.1"
    victim.until(lambda: b'"attached"' in (folder / RECORDS).read_bytes())
    return folder


def recorded(run: Path) -> list[str]:
    """What the supervisor has recorded, without what its trainer, which goes on, says of its training."""
    kinds = [json.loads(line)["type"] for line in (run / RECORDS).read_text().splitlines()]
    return [kind for kind in kinds if kind not in ("ready", "saving", "saved")]


def packets(pid: int) -> list[bytes]:
    """All that somebody could say there to end the job, or to pass for a rank or the agent."""
    attach = {"v": 1, "type": "attach", "pid": pid, "rank": 0, "incarnation": 1, "membership": 1, "handler": True}
    told = [
        attach,
        {"v": 1, "type": "hello", "after": 0},
        {"v": 1, "type": "end", "grace_s": 0.1},
        {"v": 9, "type": "end"},
    ]
    return [*(json.dumps(each).encode() for each in told), b"x" * 70_000, b"[" * 50_000, b"\xff", b""]


def say(folder: Path, pid: int) -> str:
    """What the supervisor answers, until it closes the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(60)
        peer.connect(str(folder / SOCKET))
        answers = b""
        try:
            for packet in packets(pid):
                peer.send(packet)
            while answer := peer.recv(65536):
                answers += answer
        except OSError as error:
            answers += type(error).__name__.encode()
        return answers.decode()


def test_another_uid_is_not_heard_by_a_supervisor(victim: Cluster, run: Path, as_root: None) -> None:
    way = [victim.home, victim.home / "run", run.parent, run, run / SOCKET]
    modes = [path.stat().st_mode & 0o7777 for path in way]
    before = recorded(run)
    try:
        assert as_uid(UID, lambda: attempt(lambda: say(run, os.getpid()))) == "PermissionError"
        for path in way:
            path.chmod(0o777)  # had its user opened all that hpcdl closed
        answer = as_uid(UID, lambda: say(run, os.getpid()))
    finally:
        for path, mode in zip(way, modes, strict=True):
            path.chmod(mode)
    assert answer in ("", "BrokenPipeError", "ConnectionResetError"), "nothing is said to a stranger"
    assert recorded(run) == before


def test_a_process_of_ours_that_is_no_rank_is_refused(victim: Cluster, run: Path) -> None:
    job = int(run.name.split(".")[0])
    before = recorded(run)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(60)
        peer.connect(str(run / SOCKET))
        peer.send(packets(os.getpid())[0])
        assert "is not of this attempt" in json.loads(peer.recv(65536))["why"]
        assert peer.recv(65536) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(60)
        peer.connect(str(run / SOCKET))
        peer.send(packets(victim.trainer_pid(job))[0])  # the pid of one that is
        assert "attached through a socket of pid" in json.loads(peer.recv(65536))["why"]
    assert recorded(run) == before
    assert victim.job(job)["state"] == "RUNNING"


def test_a_link_in_the_place_of_the_run_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    program = [sys.executable, "-m", "hpcdl.agent.supervisor"]
    assert subprocess.run([*program, tmp_path / "link"], check=False).returncode == os.EX_USAGE
    (tmp_path / "real").chmod(0o750)
    assert subprocess.run([*program, tmp_path / "real"], check=False).returncode == os.EX_USAGE
