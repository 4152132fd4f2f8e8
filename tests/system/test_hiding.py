"""Trainers whose child hides (another session, no environment, nobody's child), over the command line: none outlives
its job, and its GPU is not given on before it is gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor import processes
from tests.support.extent import one_of
from tests.system.cluster import Cluster, kill

pytestmark = pytest.mark.timeout(600)
HIDING = Path(__file__).parents[1] / "agent" / "hiding.py"
VANISHING = HIDING.with_name("vanishing.py")
Kill = Callable[[Cluster, dict[str, Any]], None]


def supervisor(cluster: Cluster, line: dict[str, Any]) -> None:
    kill(line["supervisor_pid"])


def both(cluster: Cluster, line: dict[str, Any]) -> None:
    agent = cluster.agent_pid()
    os.kill(agent, signal.SIGSTOP)  # neither sees what becomes of the other
    kill(line["supervisor_pid"])
    kill(agent)


def agent_first(cluster: Cluster, line: dict[str, Any]) -> None:
    old = cluster.agent_pid()
    kill(old)
    cluster.until(lambda: cluster.agent_pid() != old and cluster.status()["agents"][0]["connected"])
    kill(line["supervisor_pid"])


def nobody(cluster: Cluster, line: dict[str, Any]) -> None:
    """Only what follows ends it."""


@pytest.mark.parametrize("how", one_of(both, supervisor, agent_first, nobody))
def test_what_hides_ends_with_its_job(make_cluster: Callable[..., Cluster], tmp_path: Path, how: Kill) -> None:
    cluster = make_cluster(gpus=1).start()
    file = tmp_path / "hidden.pid"
    command = [sys.executable, str(HIDING), str(file), "deaf", "holds"]
    cluster.cli("submit", "--gpus", "1", "--grace", "1", "--name", "hides", "--", *command)
    cluster.until(file.exists)
    pid = int(file.read_text())
    file.unlink()

    def line() -> dict[str, Any]:
        rows = cluster.cli("daemon", "status", "--json")["trainers"]
        return next((row for row in rows if pid in row["pids"]), {})

    cluster.until(lambda: bool(line()))
    row = line()
    assert (row["job"], row["node"], row["incarnation"]) == (1, "n1", 1)
    assert {row["pid"], pid} <= set(row["pids"])
    assert row["supervisor_pid"] == row["supervisor"] not in row["pids"]
    how(cluster, row)
    cluster.cli("cancel", "1")
    job = cluster.submit(steps=5)
    cluster.until_done(job)
    assert processes.process_of(pid) is None, "the GPU was given on"
    cluster.cli("daemon", "stop", "--now")
    if file.exists():  # it was started again before the cancel came
        assert processes.process_of(int(file.read_text())) is None


def test_what_hides_as_supervisor_and_agent_die_together_is_found(cluster: Cluster, tmp_path: Path) -> None:
    """Before anybody has looked: nothing names it but the limit that it inherited."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    command = (sys.executable, str(VANISHING), str(folder))
    job = int(cluster.cli("submit", "--json", "--gpus", "4", "--", *command)["jobs"][0]["id"])
    cluster.until(lambda: len(list(folder.iterdir())) >= 2)
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")
    after = cluster.submit(steps=5, gpus="4")
    cluster.until_done(after)
    hidden = [int(path.name) for path in folder.iterdir()]
    assert len(hidden) >= 2
    assert [pid for pid in hidden if processes.process_of(pid) is not None] == [], "their GPUs were given on"
