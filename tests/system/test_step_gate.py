"""Two real jobs on one emulated GPU: the background is held back by what it costs the foreground."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.agent.supervisor import processes
from hpcdl.trainer.step_gate import COUNT, SharePage
from tests.system.cluster import Cluster, kill

pytestmark = pytest.mark.timeout(600)

TRAINER = Path(__file__).with_name("slowed.py")


def submit(cluster: Cluster, share: str, file: Path) -> int:
    options = ("--share", share, "--gpu-memory", "2G")
    answer = cluster.cli("submit", "--json", *options, "--", sys.executable, str(TRAINER), str(file))
    return int(answer["jobs"][0]["id"])


def throttled(cluster: Cluster, job: int) -> list[dict[str, float]]:
    """What was recorded of the background's gate beside a foreground."""
    found = [each["body"] for each in cluster.events(job) if each["kind"] == "Throttled"]
    return [each for each in found if each["foreground"]]


def stands(page: SharePage) -> bool:
    before = page.words[COUNT]
    time.sleep(1.0)
    return page.words[COUNT] == before


def test_a_background_that_slows_its_foreground_down_is_held_back(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    (tmp_path / "steps").write_bytes(bytes(8))
    os.mkfifo(tmp_path / "control")
    cluster = make_cluster(gpus=1, sharing=True, mps_pipe_directory=str(tmp_path)).start()
    front = submit(cluster, "foreground", tmp_path / "steps")
    back = submit(cluster, "background", tmp_path / "steps")
    cluster.until(lambda: any(each.get("slowdown") is not None for each in throttled(cluster, back)))
    assert all(each["duty"] < 1.0 and each["foreground"] == front for each in throttled(cluster, back))
    assert f"job {front} is slowed down by" in cluster.cli("why", str(back))
    assert f"job {back}, a background beside it, " in cluster.cli("why", str(front))

    # Without its agent nobody knows what it costs: the gate is closed, and a suspend gets through it all the same.
    trainer, agent = cluster.trainer_pid(back), cluster.agent_pid()
    priorities = [processes.variable(cluster.trainer_pid(job), "CUDA_MPS_CLIENT_PRIORITY") for job in (front, back)]
    assert priorities == ["0", "1"]
    assert processes.variable(trainer, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == "0=2048M"
    socket = processes.variable(trainer, "HPCDL_SOCKET")
    assert socket is not None
    page = SharePage(Path(socket).parent)
    cluster.kill_daemon()
    kill(agent)
    cluster.until(lambda: page.duty == 0.0)
    cluster.until(lambda: stands(page))
    folder = cluster.home / "checkpoints" / str(back)
    assert not list(folder.glob("step-*"))
    os.kill(trainer, signal.SIGTSTP)
    cluster.until(lambda: processes.process_of(trainer) is None)
    assert len(list(folder.glob("step-*"))) == 1
    cluster.start()  # else what is left would wait for an agent before it ends
