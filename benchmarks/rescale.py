"""Seconds until an elastic trainer trains again after nodes came, went, or were lost: in place, by torchrun, anew.

    python benchmarks/rescale.py [--rounds 5] [--means in-process torchrun restart] [--frameworks VENV] [--json]

A daemon with three agents and emulated GPUs on this machine, PyTorch on gloo over loopback, and the example trainer.
In each round the job gives a node back (`hpcdl drain`), grows from 2 nodes to 3 again, and loses one by SIGKILL of all
that hpcdl has on it (not under `restart`: a job that starts anew must not run twice, so it waits for the lease of the
silent agent, minutes). `p50_s`, `all_s`: from what happened (the daemon's record of the command, the first SIGKILL)
until the new membership trains, by the daemon's record. `stalled_p50_s`: the part of it without progress, as the
trainer itself says, where it is rescaled in place. The means `horovod` (not by default) needs an environment with
Horovod: --frameworks, as `make test-frameworks` makes one. One JSON value on standard output, progress on stderr.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.system.cluster import Cluster, kill_node

SCRIPT = Path(__file__).resolve().parent.parent / "jobscripts" / "trainers" / "elastic_train.py"
HOROVOD = SCRIPT.parents[2] / "tests" / "frameworks" / "horovod_elastic_torch.py"
MEANS = ("in-process", "torchrun", "restart")
PATIENCE_S = 300.0

ONE_GROUP = (
    "export WORLD_SIZE=$(echo $HPCDL_NODES | tr , ' ' | wc -w) RANK=$HPCDL_NODE_RANK; "
    'export MASTER_ADDR=127.0.0.1 MASTER_PORT={port}; exec "$@"'
)
"""Where hpcdl does not, the command itself has to make its ranks one group."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


class Rounds:
    """One job under one means, and what is done to it."""

    def __init__(self, cluster: Cluster, means: str, frameworks: str) -> None:
        self.cluster, self.means = cluster, means
        self.seconds: dict[str, list[float]] = {"grow": [], "shrink": [], "node lost": []}
        self.stalled_s: dict[str, list[float]] = {"grow": [], "shrink": [], "node lost": []}
        command: tuple[str, ...] = (
            sys.executable,
            str(SCRIPT),
            "--steps",
            "1000000",
            "--every",
            "50",
            "--pace",
            "0.05",
        )
        if means == "horovod":
            command = (f"{frameworks}/bin/python", str(HOROVOD), "1000000", "0.05")
        if means == "restart":
            command = ("sh", "-c", ONE_GROUP.format(port=free_port()), "sh", *command)
        options = ["--profile", "scales", "--nodes", "1:3", "--rescale", means, "--cwd", "/", "--grace", "60"]
        if means == "horovod":
            options += ["--env", f"PYTHONPATH={SCRIPT.parents[2]}"]
        self.job = int(cluster.cli("submit", "--json", *options, "--", *command)["jobs"][0]["id"])

    def run(self, rounds: int) -> None:
        """All rounds; the job is cancelled at the end."""
        cluster = self.cluster
        self._until_on(3)
        for number in range(rounds):
            self._measure("shrink", 2, lambda: cluster.cli("drain", "n3"))
            self._measure("grow", 3, lambda: cluster.cli("undrain", "n3"))
            if self.means != "restart":
                self._measure("node lost", 2, lambda: kill_node(cluster, "n2"))
                cluster.add_agent("n2", 1)
                self._until_on(3)
            say(f"{self.means}: round {number + 1} of {rounds}: {self._last()}")
        cluster.cli("cancel", str(self.job))
        cluster.until_state(self.job, "CANCELLED", seconds=PATIENCE_S)

    def _measure(self, what: str, nodes: int, act: Callable[[], Any]) -> None:
        since = time.time()
        act()
        at, stalled_s = self._until_on(nodes)
        asked = [event["at"] for event in self.cluster.events() if event["kind"] == "NodeLeaves"]
        self.seconds[what].append(at - max([since, *asked]))
        if stalled_s is not None:
            self.stalled_s[what].append(stalled_s)

    def _until_on(self, nodes: int) -> tuple[float, float | None]:
        """When the job began to train on so many nodes, and how long it had not."""
        found: list[tuple[float, float | None]] = []

        def trains() -> bool:
            told, last = 0, None
            for event in self.cluster.events(self.job):
                if event["kind"] == "RescaleRequested":
                    told = len(event["body"]["members"])
                elif event["kind"] == "StartRequested" and self.means == "restart":
                    told = len(event["body"]["nodes"])
                elif event["kind"] in ("Reformed", "TrainerReady"):
                    last = (told, event["at"], event["body"].get("seconds"))
            state = self.cluster.job(self.job)["state"]
            if state in ("FAILED", "CANCELLED", "DONE"):
                raise SystemExit(f"{self.means}: the job is {state}: {self.cluster.cli('why', str(self.job))}")
            if last is None or last[0] != nodes or state != "RUNNING":
                return False
            found.append((last[1], last[2]))
            return True

        self.cluster.until(trains, seconds=PATIENCE_S)
        return found[-1]

    def _last(self) -> str:
        return ", ".join(f"{what} {times[-1]:.2f} s" for what, times in self.seconds.items() if times)

    def figures(self) -> dict[str, Any]:
        """By what happened: median and all."""
        return {
            what: {
                "p50_s": round(statistics.median(times), 3),
                "all_s": [round(each, 3) for each in times],
                "stalled_p50_s": round(statistics.median(self.stalled_s[what]), 3) if self.stalled_s[what] else None,
            }
            for what, times in self.seconds.items()
            if times
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--means", nargs="+", choices=(*MEANS, "horovod"), default=list(MEANS))
    parser.add_argument("--frameworks", default=".venv-frameworks", metavar="VENV")
    parser.add_argument("--json", action="store_true", help="has no effect: the output always is JSON")
    given = parser.parse_args()
    result: dict[str, Any] = {"cores": os.cpu_count(), "rounds": given.rounds, "means": {}}
    for means in given.means:
        base = Path(tempfile.mkdtemp(prefix="hpcdl-rescale-"))
        cluster = Cluster(base / "home", gpus=1, policy="bftrainer")
        try:
            # Three nodes of one machine are no faster than one, and a policy that learns this would give the job one.
            points = [{"nodes": nodes, "gpus": 1, "rate": 10.0 * nodes} for nodes in (1, 3)]
            cluster.add_profile("scales", points=points, startup_s=5, save_s=1, resume_s=5, grow_s=1, shrink_s=1)
            cluster.start()
            for node in ("n2", "n3"):
                cluster.add_agent(node, 1)
            rounds = Rounds(cluster, means, os.path.abspath(given.frameworks))
            rounds.run(given.rounds)
            result["means"][means] = rounds.figures()
        finally:
            cluster.stop()
            shutil.rmtree(base, ignore_errors=True)
    known = result["means"]
    if "in-process" in known:
        result["in_process_is_faster_by"] = {
            other: {what: round(known[other][what]["p50_s"] / known["in-process"][what]["p50_s"], 1) for what in found}
            for other, found in known.items()
            if other != "in-process"
        }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
