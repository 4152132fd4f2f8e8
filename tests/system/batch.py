"""One HPCDL_HOME beside a batch system: daemon and agents in allocations and pilots, commands outside of them."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcdl.client import ApiError, Client, DaemonAway
from hpcdl.config.layers import conf_folder
from hpcdl.demo import trainer as demo
from tests.system.cluster import TRAINER, Cluster

FAST = {"monitor_interval_s": 1, "batch_interval_s": 1, "node_name": None}

SETS = (
    ("ResNet-50", 800),
    ("ResNet-50", 3600),
    ("Inception-v3", 1400),
    ("ResNet-50", 900),
    ("Inception-v3", 2000),
    ("VGG-16", 800),
)
"""Sets 1 and 3 of the MARBLE paper: models and their training steps."""
SEED = 7
SHOWN = """
name=$HPCDL_JOB.$HPCDL_INCARNATION
env -0 > "$0/part.$name" && mv "$0/part.$name" "$0/environment.$name"
exec "$@"
"""
"""Has a trainer leave what it was started with in the folder that is named first."""


class BatchHome(Cluster):
    """Emulated GPUs on each node, as many as the batch system granted there. `batch`: the setting of that name."""

    def __init__(self, folder: Path, batch: str, **settings: Any) -> None:
        super().__init__(folder, **{**FAST, "batch": batch, **settings})
        self.batch_jobs: list[str] = []

    def connected(self) -> list[str]:
        """The nodes whose agents are there."""
        return sorted(agent["node"] for agent in self.status()["agents"] if agent["connected"])

    def environments(self) -> dict[tuple[str, str], dict[str, str]]:
        """What each incarnation of the jobs of `submit_sets` was started with, by (job, incarnation)."""
        found = {}
        for path in self.home.glob("environment.*"):
            pairs = path.read_bytes().decode(errors="replace").split("\0")
            known = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            found[known["HPCDL_JOB"], known["HPCDL_INCARNATION"]] = known
        return found

    def resumed(self, job: int) -> list[int]:
        """The steps that the trainer began at, one a start, by its first rank's word."""
        return [int(step) for step in re.findall(r"^resumed at (\d+) on", self.cli("logs", str(job)), re.MULTILINE)]

    def saved(self, job: int) -> list[int]:
        """The steps of the job's checkpoints, in order."""
        return [event["body"]["step"] for event in self.events(job) if event["kind"] == "Saved"]

    def placement(self, job: int) -> list[str]:
        """The nodes that the job has now."""
        return sorted(self.job(job)["placement"] or ())

    def elastic(self, nodes: str, steps: int, *trainer: object) -> int:
        """Submits a job over several whole nodes, which is started anew when their number changes; its id."""
        if not (self.home / "profiles" / "scales.yaml").exists():
            raise AssertionError("the profile `scales` is added before the daemon starts")
        argv = [sys.executable, str(TRAINER), str(steps), *map(str, trainer)]
        options = ["--profile", "scales", "--nodes", nodes, "--gpus", "4", "--rescale", "restart", "--grace", "20"]
        answer = self.cli("submit", "--json", *options, "--steps", str(steps), "--cwd", "/", "--", *argv)
        return int(answer["jobs"][0]["id"])

    def submit_sets(self, scale: float) -> Iterator[int]:
        """Submits the six jobs of SETS, one a turn; their ids. `scale`: how much faster than on Summit they train."""
        profiles = conf_folder() / "profiles" / "summit-v100.yaml"
        for number, (model, steps) in enumerate(SETS):
            command = [
                "sh",
                "-c",
                SHOWN,
                str(self.home),
                sys.executable,
                "-m",
                "hpcdl.demo.trainer",
                "--model",
                model,
                "--steps",
                str(steps),
            ]
            command += ["--profile-file", str(profiles), "--scale", f"{scale:g}", "--seed", str(SEED + number)]
            options = ["--gpus", "1:4", "--profile", model.lower(), "--steps", str(steps), "--cwd", "/"]
            options += ["--env", "OMP_NUM_THREADS=1", "--env", "OPENBLAS_NUM_THREADS=1"]
            yield int(self.cli("submit", "--json", *options, "--", *command)["jobs"][0]["id"])

    def check_sets(self, jobs: list[int]) -> None:
        """What the six jobs have trained is what they train where nothing ever happens to them."""
        for number, ((model, steps), job) in enumerate(zip(SETS, jobs, strict=True)):
            found = demo.trained(self.home / "checkpoints" / str(job), model, steps, SEED + number)
            assert found == demo.reference(model, steps, SEED + number)

    def stop_daemon(self) -> None:
        """As a user would; nothing where none runs."""
        self.client.close()
        with contextlib.suppress(DaemonAway, ApiError):
            with Client(self.home) as client:  # no waiting for a daemon that the test killed
                client.get("/v1/status")
            self.cli("daemon", "stop", "--now")


def overlaps(record: Path) -> list[str]:
    """Processes of one rank of a job that were there at the same time, by what they wrote down themselves."""
    seen: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for path in record.iterdir():
        known = json.loads(path.read_text())
        seen.setdefault((known["job"], known["rank"]), []).append(known)
    found = []
    for known in seen.values():
        known.sort(key=lambda each: each["from"])
        found += [f"{one} {two}" for one, two in pairwise(known) if one["to"] > two["from"]]
    return found


def site_file(folder: Path, **values: Any) -> Path:
    """A file of limits for pilots."""
    path = folder / "site.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
    path.chmod(0o600)
    return path
