"""Finding and signalling processes by tag, with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.agent.supervisor import processes
from tests.agent.conftest import stopped
from tests.support.waiting import until

Spawn = Callable[..., "subprocess.Popen[bytes]"]
SLEEP = "import time; time.sleep(300)"


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    children: list[subprocess.Popen[bytes]] = []

    def start(tag: str, code: str = SLEEP, **more: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-S", "-c", code]
        children.append(subprocess.Popen(argv, env={"HPCDL_TAG": tag, **more}, stdout=subprocess.PIPE))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def instance() -> str:
    return f"test-{uuid.uuid4()}"


def pids(wanted: str) -> list[int]:
    return sorted(each.pid for each in processes.tagged(wanted))


def test_found_by_tag_or_by_the_parts_that_it_begins_with(spawn: Spawn, instance: str) -> None:
    one, two = spawn(f"{instance}:7:1"), spawn(f"{instance}:71:1")
    until(lambda: len(pids(instance)) == 2, "both")
    assert pids(f"{instance}:7") == pids(f"{instance}:7:1") == [one.pid]
    assert pids(f"{instance}:") == sorted([one.pid, two.pid])
    assert pids(instance[:-1]) == []
    with pytest.raises(ValueError, match="empty tag"):
        processes.tagged("")


def test_a_process_is_described(spawn: Spawn, instance: str) -> None:
    child = spawn(instance)
    until(lambda: pids(instance), "it")
    [found] = processes.tagged(instance)
    assert found == processes.Process(child.pid, found.start_ticks, instance, found.state)
    assert found.start_ticks == processes.start_ticks(child.pid)


def test_a_variable_that_only_ends_so_is_no_tag(spawn: Spawn, instance: str) -> None:
    child = spawn("", MY_HPCDL_TAG=instance, X=f"HPCDL_TAG={instance}")
    until(lambda: processes.process_of(child.pid), "it")
    assert pids(instance) == []


def test_a_zombie_is_gone(spawn: Spawn, instance: str) -> None:
    child = spawn(instance)
    until(lambda: pids(instance), "it")
    [found] = processes.tagged(instance)
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: processes.start_ticks(child.pid) is None, "its end")  # its tag is gone sooner
    assert pids(instance) == []
    assert processes.start_ticks_of_child(child.pid) == found.start_ticks
    assert processes.killed(child.pid, found.start_ticks)
    assert not processes.killed(child.pid, found.start_ticks + 1), "another one that had the number"
    assert not processes.killed(os.getpid(), processes.start_ticks_of_child(os.getpid()))
    assert processes.process_of(child.pid) is None
    assert not processes.signal_process(found, signal.SIGKILL)


def test_a_leader_that_ended_before_its_threads_is_not_gone(spawn: Spawn, instance: str) -> None:
    code = """if True:
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(300,)).start()
        libc = ctypes.CDLL(None)
        libc.syscall(60, 0)  # exit of this thread alone
    """
    if os.uname().machine != "x86_64":
        pytest.skip("the number of the call is that of x86_64")
    child = spawn(instance, code)
    until(lambda: [each.state for each in processes.tagged(instance)] == ["Z"], "the end of the first thread")
    [found] = processes.tagged(instance)
    assert (found.pid, found.state) == (child.pid, "Z")
    assert processes.signal_process(found, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_only_the_very_process_is_signalled(spawn: Spawn, instance: str) -> None:
    child = spawn(instance)
    until(lambda: pids(instance), "it")
    [found] = processes.tagged(instance)
    assert not processes.signal_process(replace(found, start_ticks=found.start_ticks + 1), signal.SIGKILL)
    assert not processes.signal_process(replace(found, tag="another"), signal.SIGKILL)
    assert not processes.signal_process(replace(found, pid=2**22 + 5), signal.SIGKILL)
    assert child.poll() is None
    assert processes.signal_process(found, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_handlers_and_stops_are_seen(spawn: Spawn, instance: str) -> None:
    code = """if True:
        import signal, time
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTSTP, lambda n, f: None)
        print("set", flush=True)
        time.sleep(300)
    """
    child = spawn(instance, code)
    assert child.stdout is not None
    assert child.stdout.readline() == b"set\n"
    assert processes.catches(child.pid, signal.SIGTSTP)
    assert not processes.catches(child.pid, signal.SIGUSR1)
    assert not processes.catches(child.pid, signal.SIGTERM)
    assert not processes.catches(2**22 + 5, signal.SIGTERM)
    assert not stopped(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: stopped(child.pid), "the stop")
    assert processes.tagged(instance)[0].stopped


def test_descendants_count_without_a_tag(spawn: Spawn, instance: str) -> None:
    code = """if True:
        import os, subprocess, sys
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"], env={})
        print(child.pid, flush=True)
        child.wait()
    """
    parent = spawn(instance, code)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert pids(instance) == [parent.pid]
    assert [each.pid for each in processes.descendants(parent.pid)] == [child]
    both = processes.incarnation(instance, os.getpid())
    assert {parent.pid, child} <= {each.pid for each in both}
    [untagged] = [each for each in both if each.pid == child]
    until(lambda: processes.process_of(child) is not None, "it")
    assert untagged.tag == ""
    assert processes.signal_process(untagged, signal.SIGKILL)
    assert parent.wait() == 0


def test_children_are_found_where_the_kernel_does_not_list_them(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    child = spawn("t")
    monkeypatch.setattr(processes, "_KERNEL_LISTS_CHILDREN", False)
    assert child.pid in processes._children_by_scan(os.getpid())
    assert child.pid in {each.pid for each in processes.descendants(os.getpid())}


def test_without_pidfds_the_check_is_what_protects(
    spawn: Spawn, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    child = spawn(instance)
    until(lambda: pids(instance), "it")
    [found] = processes.tagged(instance)
    monkeypatch.setattr(os, "pidfd_open", missing)
    assert not processes.signal_process(replace(found, start_ticks=0), signal.SIGKILL)
    assert processes.signal_process(found, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_the_boot_has_a_name() -> None:
    assert len(processes.boot_id()) == 36


def test_a_mark_stays_whatever_a_process_hides(tmp_path: Path) -> None:
    mark = processes.mark_of("i:7:2:n1")
    assert mark != processes.mark_of("i:7:3:n1")
    assert processes.marked(mark) == []
    file = tmp_path / "pid"
    script = (
        "import os, sys\n"
        "from hpcdl.agent.supervisor.resources import mark\n"
        f"mark({mark})\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(file)!r} + '.new', 'w').write(str(os.getpid())); os.rename({str(file)!r} + '.new', {str(file)!r})\n"
        "os.execve('/bin/sleep', ['sleep', '300'], {})\n"
    )
    subprocess.Popen([sys.executable, "-c", script]).wait()
    until(file.exists, "its pid")
    pid = int(file.read_text())
    try:
        until(lambda: [each.pid for each in processes.marked(mark)] == [pid], "it is found")
        assert processes.process_of(pid).tag == ""  # type: ignore[union-attr]
        assert processes.marked(processes.mark_of("i:7:3:n1")) == []
    finally:
        for each in processes.marked(mark):
            processes.signal_process(each, signal.SIGKILL)
    until(lambda: not processes.marked(mark), "its end")


@pytest.mark.parametrize("mark", [0, -1, 1024, 8 << 20, 1 << 60])
def test_what_may_be_anybodys_limit_is_no_mark(mark: int) -> None:
    assert processes.marked(mark) == []
