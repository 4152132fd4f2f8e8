"""`python -m tests.allocation.batchjob HOME ID NODES SECONDS [--pilot] [OPTION...]`: the first process of a batch job.

Its batch system starts agents on this machine, and keeps what it was asked for in HOME/../asked, a line each. Its clock
is ahead by the number in HOME/../later, where that file is.
"""

import argparse
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hpcdl.allocation.pilot import run_pilot
from hpcdl.allocation.run import AllocationOptions, AllocationRun
from hpcdl.batch.adapter import Allocation, Capabilities, Completed, IdleNodes, PilotScript
from hpcdl.batch.system import Unsupported
from hpcdl.config.settings import load_config
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, PendingBatchJob, PilotSpec


class Here:
    """A batch system of one machine. Commands of others (sbatch) are answered by `command`."""

    kind = "slurm"

    def __init__(self, asked: Path, without: str = "") -> None:
        self._asked = asked
        self._without = without

    def ask(self, text: str) -> None:
        with self._asked.open("a") as file:
            file.write(f"{text}\n")

    def command(
        self,
        argv: Sequence[str],
        timeout_s: float = 30.0,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        words = list(argv[argv.index("sbatch") :]) if "sbatch" in argv else list(argv)
        self.ask(f"{' '.join(words)} < {stdin.splitlines()[:1]}")
        if "sbatch" in argv:
            return Completed("welcome to the cluster\n4712;east\n", "", 0)
        return Completed("JobId=4711 JobName=hpcdl Partition=normal TimeLimit=01:00:00 NumNodes=2 QOS=(null)\n", "", 0)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        return None

    def capabilities(self) -> Capabilities:
        return Capabilities(self.kind, "0", False)

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        return ()

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        return "1"

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        return {each: BatchJob(each, BatchState.MISSING) for each in ids}

    def idle_nodes(self) -> IdleNodes:
        return IdleNodes(frozenset())

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        return ()

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        return self.poll(ids)

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        return ()

    def cancel(self, ids: Collection[str]) -> None:
        self.ask(f"cancel {' '.join(ids)}")

    def signal(self, batch_id: str, name: str) -> None:
        self.ask(f"signal {batch_id} {name}")

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        if node == self._without:
            raise Unsupported("no agent there")
        return ("env", "CUDA_VISIBLE_DEVICES=0,1", *argv)

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        return {node: ("top", f"leaf-{node}") for node in nodes}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("id")
    parser.add_argument("nodes")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--pilot", action="store_true")
    parser.add_argument("--alone", type=float, default=60.0)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--chain", type=int)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--idle-exit", type=float)
    parser.add_argument("--without", default="")
    given = parser.parse_args()
    system = Here(given.home.parent / "asked", given.without)
    nodes = tuple(given.nodes.split(","))
    until = time.time() + given.seconds
    allocation = Allocation("slurm", given.id, nodes, 2, until, time.time(), "normal", nodes[0])

    later = given.home.parent / "later"

    def now() -> float:
        return time.time() + (float(later.read_text()) if later.exists() else 0.0)

    def say(text: str) -> None:
        print(text, flush=True)

    if given.pilot:
        return run_pilot(
            given.home, system, allocation, now, say, emulate_gpus="auto", idle_s=given.alone, grace_s=10.0
        )
    wishes = AllocationOptions(given.wait, given.chain, given.script, "auto", given.idle_exit)
    config = load_config(given.home)
    return AllocationRun(
        given.home, config, system, allocation, wishes, now, say, environ={}, command=system.command
    ).run()


if __name__ == "__main__":
    sys.exit(main())
