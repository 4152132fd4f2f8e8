"""One cycle of the daemon with a large Slurm: poll, parse, record, decide, submit. The commands are simulated.

    python benchmarks/holes.py [--nodes 4608] [--holes 200] [--trainers 100] [--cycles 100] [--seed 1] [--profile]

A cluster of that many nodes answers sinfo, squeue, scontrol and sbatch as text and JSON of Slurm 22.05, as long as a
real one's. Each cycle a tenth of its holes go, because their batch jobs start, and others come; pilots take them, an
agent joins from each of their nodes, and is gone with them. What the commands themselves take is not in it, nor are
the trainers. The ledger is on disk, and the thread is the daemon's own. One JSON value on standard output.
"""

import argparse
import cProfile
import gc
import json
import pstats
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.batch.adapter import Completed
from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.pilots import pilot_policy
from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import GpuInfo
from hpcdl.daemon.batch import BatchSettings, BatchThread
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.ledger import SqliteJournal
from hpcdl.milp import Reallocation
from hpcdl.policies import all_policies
from hpcdl.slurm.adapter import Slurm
from hpcdl.solver import prepare

GPUS = 6
INTERVAL_S = 30.0
TARGET_MS = 500.0
ENTRY = {
    "architecture": "ppc64le", "burstbuffer_network_address": "", "boards": 1, "boot_time": 1795324351, "comment": "",
    "cores": 22, "cpu_binding": 0, "cpu_load": 230, "extra": "", "free_memory": 23028, "cpus": 176, "features": "",
    "active_features": "", "gres_drained": "N/A", "mcs_label": "", "next_state_after_reboot": "invalid",
    "next_state_after_reboot_flags": [], "operating_system": "Linux 4.18.0 #1 SMP Mon Jan 1 00:00:00 UTC 2024",
    "owner": None, "partitions": ["batch", "killable"], "port": 6818, "real_memory": 600000, "reason": "",
    "reason_changed_at": 0, "reason_set_by_user": None, "slurmd_start_time": 1795325468, "sockets": 2, "threads": 4,
    "temporary_disk": 0, "weight": 1, "tres": "cpu=176,mem=600000M,billing=176,gres/gpu=6", "slurmd_version": "22.05.8",
    "tres_weighted": 8.0,
}  # fmt: skip
PARTITIONS = "".join(
    f"PartitionName={name} AllowGroups=ALL Default={default} GraceTime={grace} Hidden=NO MaxNodes=UNLIMITED "
    f"MaxTime={limit} MinNodes=0 RootOnly=NO ReqResv=NO OverSubscribe=NO PreemptMode={mode} State=UP\n"
    for name, default, grace, limit, mode in (
        ("batch", "YES", 0, "1-00:00:00", "OFF"),
        ("killable", "NO", 30, "1-00:00:00", "REQUEUE"),
    )
)


@dataclass(slots=True)
class Gap:
    """Idle nodes that a batch job waits for, and the pilots in it."""

    job: int
    start: float
    nodes: list[str]
    pilots: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Taken:
    """A pilot's batch job."""

    comment: str
    nodes: list[str]
    end: float
    over: bool = False


class Machine:
    """The cluster: `run` stands for its commands."""

    def __init__(self, nodes: int, holes: int, seed: int) -> None:
        self.names = [f"c{number:05d}" for number in range(nodes)]
        self.drawn = random.Random(seed)
        self.now = 0.0
        self.next_job = 1000
        self.gaps: dict[int, Gap] = {}
        self.pilots: dict[int, Taken] = {}
        self.busy = set(self.names)
        self.asked: Counter[str] = Counter()
        self.wanted = holes
        self.spent_s = self.spent_cpu_s = 0.0

    def begin(self, now: float) -> None:
        """All holes at once."""
        self.now = now
        while len(self.gaps) < self.wanted:
            self._open()

    def move(self, now: float) -> list[int]:
        """A tenth of the holes go and others come; the pilots that end with them."""
        self.now = now
        ended = []
        for job in self.drawn.sample(sorted(self.gaps), max(1, len(self.gaps) // 10)):
            gap = self.gaps.pop(job)
            self.busy.update(gap.nodes)
            ended += gap.pilots
            for pilot in gap.pilots:
                self.pilots[pilot].over = True
        while len(self.gaps) < self.wanted:
            self._open()
        return ended

    def _open(self) -> None:
        self.next_job += 1
        nodes = self.drawn.sample(sorted(self.busy), self.drawn.randint(1, 8))
        self.busy.difference_update(nodes)
        start = self.now + self.drawn.randint(900, 14_400)
        self.gaps[self.next_job] = Gap(self.next_job, float(int(start)), nodes)

    def run(
        self, argv: Sequence[str], timeout_s: float = 30.0, *, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> Completed:
        """See `hpcdl.batch.adapter.CommandRunner`. The seconds that it takes are counted as the cluster's."""
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            return self._answer(argv)
        finally:
            self.spent_s += time.perf_counter() - began
            self.spent_cpu_s += time.process_time() - began_cpu

    def _answer(self, argv: Sequence[str]) -> Completed:
        words = list(argv)
        while words[0] == "env" or words[0] == "-u" or words[0].startswith("SLURM_"):
            words = words[1:]
        self.asked[words[0]] += 1
        said = " ".join(words)
        if words[0] == "sbatch":
            return Completed(self._submit(words), "", 0)
        if words[0] == "scancel":
            return Completed("", "", 0)
        if "--version" in said:
            return Completed("slurm 22.05.8\n", "", 0)
        if words[0] == "sinfo":
            return Completed(self._sinfo(), "", 0)
        if words[0] == "scontrol":
            return Completed(PARTITIONS if "partition" in said else "No reservations in the system\n", "", 0)
        if "PENDING" in said:
            return Completed(self._expected(), "", 0)
        return Completed(self._listed(), "", 0)

    def _submit(self, words: Sequence[str]) -> str:
        options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
        nodes = options["--nodelist"].split(",")
        self.next_job += 1
        minutes = float(options["--time"])
        self.pilots[self.next_job] = Taken(options["--comment"], nodes, self.now + 60.0 * minutes)
        gap = next((gap for gap in self.gaps.values() if nodes[0] in gap.nodes), None)
        if gap is None:  # submitted in a later interval than it was decided in, and its hole is gone: it ends at once
            self.pilots[self.next_job].over = True
        else:
            gap.pilots.append(self.next_job)
        return f"{self.next_job}\n"

    def _sinfo(self) -> str:
        used = {name for taken in self.pilots.values() if not taken.over for name in taken.nodes}
        idle = {name for gap in self.gaps.values() for name in gap.nodes} - used
        return json.dumps({"meta": {}, "errors": [], "nodes": [self._entry(name, name in idle) for name in self.names]})

    def _entry(self, name: str, idle: bool) -> dict[str, Any]:
        return {
            **ENTRY,
            "name": name,
            "address": name,
            "hostname": name,
            "state": "idle" if idle else "allocated",
            "state_flags": ["PLANNED"] if idle else [],
            "gres": f"gpu:v100:{GPUS}(S:0-1)",
            "gres_used": f"gpu:v100:{0 if idle else GPUS}(IDX:N/A)",
            "alloc_memory": 0 if idle else 500_000,
            "alloc_cpus": 0 if idle else 176,
            "idle_cpus": 176 if idle else 0,
        }

    def _expected(self) -> str:
        lines = [f"{gap.job}|{gap.start:.0f}|{','.join(gap.nodes)}|" for gap in self.gaps.values()]
        return "\n".join(lines + [f"{900_000 + number}|N/A|(null)|" for number in range(2000)]) + "\n"

    def _listed(self) -> str:
        return "".join(
            f"{number}|killable|{'COMPLETED' if taken.over else 'RUNNING'}|{self.now - 30:.0f}|"
            f"{self.now if taken.over else taken.end:.0f}|N/A|0|{','.join(taken.nodes)}|(null)|None|{taken.comment}|\n"
            for number, taken in self.pilots.items()
        )


def specs(trainers: int) -> tuple[JobSpec, ...]:
    """Half of them elastic, half on one node."""
    elastic = [
        JobSpec(("true",), f"e{number}", gpus_min=GPUS, gpus_max=GPUS, nodes=1, nodes_max=32, rescale="in-process")
        for number in range(trainers // 2)
    ]
    single = [JobSpec(("true",), f"s{number}", gpus_max=GPUS) for number in range(trainers - len(elastic))]
    return (*elastic, *single)


@dataclass(frozen=True, slots=True)
class Took:
    """Milliseconds: to poll, parse and record; to decide; to submit. `cpu`: of the processor for the first two."""

    read: float
    decided: float
    submitted: float
    cpu: float


class Cycles:
    """The daemon's thread and Controller round the machine."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.machine = Machine(given.nodes, given.holes, given.seed)
        self.journal = SqliteJournal(folder / "ledger.sqlite")
        policies = all_policies(Reallocation(t_fwd_s=120.0))
        site = PilotLimits(pilots_max=given.holes, queues=("killable",))
        controller = Controller(self.journal, policies, Profiles({}), None, pilot_policy(site))
        self.loop = ControllerLoop(
            controller, WallClock(0.0), 0.0, lambda world: None, lambda requests: None, lambda why: None
        )
        self.loop.start()
        self.seconds = 0.0
        self.batching = BatchThread(
            Slurm(self.machine.run, environ={}),
            self.loop,
            BatchSettings(folder, "benchmark", INTERVAL_S, True),
            monotonic=lambda: self.seconds,
        )
        self.joined: dict[int, list[str]] = {}

    def begin(self, trainers: int) -> None:
        self.loop.call(lambda controller: None).result()
        self.loop.send(cmd.ChoosePolicy("harvest")).result()
        self.loop.send(cmd.Submit(specs(trainers), "all")).result()
        self.machine.begin(self.loop.now())
        gc.collect()
        gc.freeze()  # as the daemon does

    def cycle(self) -> Took:
        """One, as the daemon's thread does it: the pilots that are decided are submitted in its next turn."""
        self.seconds += INTERVAL_S
        marks = [self._mark()]
        self.batching.turn()
        marks.append(self._mark())
        self.loop.call(lambda controller: controller.decide(self.loop.now())).result()
        marks.append(self._mark())
        self.batching.turn()
        marks.append(self._mark())
        wall, cpu = zip(*marks, strict=True)
        read, decided, submitted = (1000 * (wall[at + 1] - wall[at]) for at in range(3))
        return Took(read, decided, submitted, 1000 * (cpu[2] - cpu[0]))

    def _mark(self) -> tuple[float, float]:
        """Seconds of the clock and of the processor, without what the machine took for its answers."""
        return time.perf_counter() - self.machine.spent_s, time.process_time() - self.machine.spent_cpu_s

    def between(self) -> None:
        """What happens until the next poll: agents join from pilots' nodes, holes come and go with their pilots."""
        for number, taken in self.machine.pilots.items():
            if not taken.over and number not in self.joined:
                self.joined[number] = taken.nodes
                for name in taken.nodes:
                    gpus = tuple(GpuInfo(index, f"{name}-{index}", "Tesla V100-SXM2-16GB") for index in range(GPUS))
                    until, key = self.loop.now() + 3600.0, str(number)
                    node = cmd.Inventory(name, gpus, 176, 600_000, 1, "boot", key, False, until=until, allocation=key)
                    self.loop.send(node)
        for number in self.machine.move(self.loop.now()):
            for name in self.joined.pop(number, ()):
                self.loop.send(cmd.AgentGone(name, "the connection ended"))
        self.loop.call(lambda controller: None).result()

    def end(self) -> None:
        self.loop.stop()
        self.journal.close()


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4608)
    parser.add_argument("--holes", type=int, default=200)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="where the time goes, on standard error")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare()  # as the daemon does
        cycles = Cycles(Path(folder), given)
        cycles.begin(given.trainers)
        profile = cProfile.Profile()
        took, most_asked, held = [], Counter[str](), []
        for _ in range(given.cycles):
            before = Counter(cycles.machine.asked)
            if given.profile:
                profile.enable()
            took.append(cycles.cycle())
            profile.disable()
            most_asked |= cycles.machine.asked - before
            held.append(sum(1 for taken in cycles.machine.pilots.values() if not taken.over))
            cycles.between()
        cycles.end()
    if given.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    first, *later = took  # the first one finds all holes new, and no code warm
    whole = [each.read + each.decided for each in later]
    print(
        json.dumps(
            {
                "nodes": given.nodes,
                "holes": given.holes,
                "trainers": given.trainers,
                "cycles": given.cycles,
                "p50_ms": quantile(whole, 0.5),
                "p99_ms": quantile(whole, 0.99),
                "most_ms": quantile(whole, 1.0),
                "target_ms": TARGET_MS,
                "met": quantile(whole, 0.99) < TARGET_MS,
                "cpu_p50_ms": quantile([each.cpu for each in later], 0.5),
                "cpu_p99_ms": quantile([each.cpu for each in later], 0.99),
                "read_p50_ms": quantile([each.read for each in later], 0.5),
                "decide_p50_ms": quantile([each.decided for each in later], 0.5),
                "submit_p50_ms": quantile([each.submitted for each in later], 0.5),
                "first_ms": round(first.read + first.decided, 1),
                "pilots_p50": quantile(held, 0.5),
                "commands_a_cycle_at_most": dict(sorted(most_asked.items())),
            },
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
