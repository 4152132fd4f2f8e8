"""What tests ask of real agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdl.agent import run_folder
from tests.agent.daemon import Agents, Daemon, spec_of
from tests.support.waiting import until


def checkpoints(home: Path, job: int) -> str:
    return str(home / "checkpoints" / str(job))


def begin(daemon: Daemon, job: int = 1, incarnation: int = 1, gpus: Any = (0,), **keys: Any) -> int:
    return daemon.ask(
        "start",
        job,
        incarnation,
        gpus=gpus,
        spec=spec_of(**keys),
        checkpoint_dir=checkpoints(daemon.home, job),
    )


def supervisor_of(agents: Agents, job: int, incarnation: int = 1) -> dict[str, Any]:
    folder = agents.run / f"{job}.{incarnation}"
    return until(lambda: [r for r in run_folder.read_records(folder) if r["type"] == "supervisor"], "the supervisor")[0]
