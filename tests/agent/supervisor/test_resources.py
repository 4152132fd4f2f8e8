"""Processors and memory of an attempt: a real supervisor, and what it does to a real trainer."""

import os
from pathlib import Path

import pytest

from hpcdl.agent.supervisor import resources
from tests.agent.conftest import ATTACH, Agent

CPUS = sorted(os.sched_getaffinity(0))
FILLS = """
held = []
print("begins", flush=True)
while True:
    held.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.01)
"""


def test_a_trainer_runs_on_the_processors_of_its_grant(agent: Agent) -> None:
    one = {"CUDA_VISIBLE_DEVICES": "GPU-1", resources.CPUS_VARIABLE: str(CPUS[-1])}
    agent.start("import subprocess; print(os.sched_getaffinity(0)); subprocess.run(['nproc'])", gpu_env=one)
    assert agent.exit()["code"] == 0
    assert agent.output().splitlines() == [str({CPUS[-1]}), "1"]


def test_one_that_waited_at_the_gate_is_bound_with_all_its_threads(agent: Agent) -> None:
    script = """
import threading
opened = threading.Event()
seen = []
def look():
    opened.wait()
    seen.append(os.sched_getaffinity(0))
thread = threading.Thread(target=look)
thread.start()
say("gate", warm_s=0.1, cuda=False)
hear()
opened.set()
thread.join()
print(seen[0] == os.sched_getaffinity(0), seen)
"""
    agent.start(ATTACH + script, gate=True, gpu_env=None)
    agent.wait("gate")
    client = agent.connect()
    client.send("open", gpu_env={"CUDA_VISIBLE_DEVICES": "GPU-1", resources.CPUS_VARIABLE: str(CPUS[0])})
    assert agent.exit()["code"] == 0
    assert agent.output().splitlines() == [f"True [{ {CPUS[0]} }]"]


def test_a_processor_that_is_not_there_stops_nothing(agent: Agent) -> None:
    agent.start("print(len(os.sched_getaffinity(0)))", gpu_env={resources.CPUS_VARIABLE: "65000"})
    assert agent.exit()["code"] == 0
    assert agent.output().split() == [str(len(CPUS))]


def test_one_that_takes_more_memory_than_it_may_is_ended(agent: Agent) -> None:
    agent.start(FILLS, memory_mib=100)
    record = agent.exit()
    assert record["oom"] is True
    assert "more than" in record["detail"]
    assert "100 MiB" in record["detail"]
    assert "--mem" in record["detail"]
    assert record["permanent"] is True, "another attempt comes no further"
    assert agent.supervisor
    # What other tests make there, those of another checkout too, may go while this looks: os.walk does not mind.
    groups = [Path(folder).name for folder, _, _ in os.walk("/sys/fs/cgroup")]
    assert f"{resources.PREFIX}7.2.{agent.supervisor.pid}" not in groups


def test_what_processes_share_counts_once(agent: Agent) -> None:
    """Five processes that have 200 MiB in common, of which none has a copy."""
    script = """
held = bytearray(200 << 20)
for each in range(0, len(held), 4096):
    held[each] = 1
children = []
for _ in range(4):
    pid = os.fork()
    if not pid:
        time.sleep(4)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""
    agent.start(script, memory_mib=400)
    record = agent.exit()
    assert (record["code"], record["oom"]) == (0, False)


def test_memory_is_watched_where_no_cgroup_may_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_make_cgroup", lambda limit, name: None)
    taken = iter((50.0, 120.0, 90.0, 120.0, 130.0))
    monkeypatch.setattr(resources, "taken_mib", lambda root, enough: next(taken))
    limit = resources.MemoryLimit(100, "1.1")
    assert limit.entrance is None
    said = [limit.exceeded(1, now) for now in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0)]
    assert said[:5] == [""] * 5, "once is not enough, and between two looks it is not asked"
    assert said[5] == "its processes took 130 MiB, more than its 100 MiB, of memory: give it more with --mem"
    assert resources.MemoryLimit(None, "1.1").exceeded(1, 0.0) == ""


def test_what_a_killed_supervisor_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """One that another supervisor has just made is empty, too."""
    for name in ("hpcdl-1.1.4194303", f"hpcdl-2.1.{os.getpid()}", "other"):
        (tmp_path / name).mkdir()
    assert resources._limited(tmp_path, "hpcdl-3.1.1", ("memory.max",), 100) == tmp_path / "hpcdl-3.1.1"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"hpcdl-2.1.{os.getpid()}", "hpcdl-3.1.1", "other"]
    assert (tmp_path / "hpcdl-3.1.1" / "memory.max").read_text() == str(100 << 20)
