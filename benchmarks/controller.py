"""How fast the Controller is: a step with its decision on a large cluster, and the fold of a long journal.

    python benchmarks/controller.py             # one JSON value
    python benchmarks/controller.py --quick     # 100 nodes, 200 jobs
    python benchmarks/controller.py --profile   # where the time of the steps goes, on stderr

A step takes in one command or two (a submit, a report of an agent), records what they amount to, asks the policy and
records its plan, in a journal in memory. Milliseconds are CPU time of the thread, so that other processes do not count;
garbage is collected as rarely as in the daemon. `times_as_much`: what the mean step costs with all the jobs, over what
it costs with a tenth of them.
"""

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from msgspec import structs

from benchmarks.measuring import setting
from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.fold.fold import fold
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.objectives import OBJECTIVES
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo, Job, World
from hpcdl.daemon import daemon
from hpcdl.policies import all_policies

PROFILE = Profile("p", ((1, 1, 1.0), (1, 5, 4.0), (1, 8, 3.5)))


class Bench:
    """A Controller with nodes and jobs, and the numbers of each agent's reports."""

    def __init__(self, nodes: int, gpus: int, policy: str, objective: str = "jct") -> None:
        self.journal = MemoryJournal()
        self.controller = Controller(self.journal, all_policies(), Profiles({"p": PROFILE}))
        self.now = 0.0
        self.numbers: dict[str, int] = {}
        self.took: list[float] = []
        self.controller.begin(ev.DaemonStarted(1, "0", 1, "host"), self.now)
        self.controller.step([cmd.ChoosePolicy(policy), cmd.ChooseObjective(objective)], self.now)
        for index in range(nodes):
            name = f"n{index:05d}"
            inventory = tuple(GpuInfo(gpu, f"{name}-{gpu}") for gpu in range(gpus))
            self.controller.step([cmd.Inventory(name, inventory, 8, 1, 1, "b", "log", False)], self.now)

    def step(self, *commands: cmd.Command) -> None:
        """One step and its decision, timed."""
        self.now += 1.0
        start = time.thread_time()
        self.controller.step(commands, self.now)
        if self.controller.undecided:
            self.controller.decide(self.now)
        self.took.append(time.thread_time() - start)

    def submit(self, number: int) -> None:
        spec = JobSpec(("train",), "j", gpus_max=8, profile="p", steps=1000)
        for index in range(number):
            self.step(cmd.Submit((spec,), f"{self.now}/{index}"))

    def submit_at_once(self, number: int) -> None:
        spec = JobSpec(("train",), "j", gpus_max=8, profile="p", steps=1000)
        self.step(*(cmd.Submit((spec,), f"at once/{index}") for index in range(number)))

    def report(self, job: Job, kind: type[ev.Report], **more: Any) -> cmd.AgentReport:
        running = job.running
        assert running is not None
        node = running.nodes[0]
        self.numbers[node] = number = self.numbers.get(node, 0) + 1
        return cmd.AgentReport(node, "log", number, kind(job.id, running.number, 1, node, **more))

    def churn(self, rounds: int) -> None:
        """Jobs start, report, end, and new ones come: each event is a step of its own."""
        for index in range(rounds):
            world = self.controller.world
            running = [world.jobs[n] for n in world.active if world.jobs[n].running is not None]
            job = running[index * 37 % len(running)]
            for kind in (ev.Started, ev.Attached, ev.TrainerReady, ev.Progressed):
                self.step(self.report(job, kind))
            self.step(self.report(job, ev.Exited, code=0), self.report(job, ev.GpusFreed))
            self.submit(1)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 3),
        "mean_ms": round(sum(ordered) / len(ordered) * 1e3, 3),
        "max_ms": round(ordered[-1] * 1e3, 3),
        "steps": len(ordered),
    }


def measure_steps(nodes: int, gpus: int, jobs: int, rounds: int, policy: str, objective: str) -> dict[str, float]:
    """Steps with decisions while `jobs` jobs are there."""
    bench = Bench(nodes, gpus, policy, objective)
    bench.submit_at_once(jobs)
    bench.churn(1)
    daemon.collect_garbage_rarely()
    bench.took.clear()
    bench.churn(rounds)
    return percentiles(bench.took)


def compared(nodes: int, gpus: int, jobs: int, rounds: int, policy: str, objective: str) -> dict[str, Any]:
    """The same with a tenth of the jobs, and what ten times as many cost."""
    many, few = (measure_steps(nodes, gpus, number, rounds, policy, objective) for number in (jobs, jobs // 10))
    return {**many, "with_a_tenth": few, "times_as_much": round(many["mean_ms"] / few["mean_ms"], 2)}


def measure_fold(events: int) -> dict[str, float]:
    """The fold of a journal of small jobs and their progress reports, from nothing."""
    bench = Bench(8, 8, "marble")
    while len(bench.journal.records) < min(events, 20_000):
        bench.submit(1)
        world = bench.controller.world
        job = world.jobs[max(world.jobs)]
        bench.step(*(bench.report(job, kind) for kind in (ev.Started, ev.Attached, ev.TrainerReady)))
        for step in range(10):
            bench.step(bench.report(world.jobs[job.id], ev.Progressed, step=step))
        bench.step(bench.report(job, ev.Exited, code=0), bench.report(job, ev.GpusFreed))
    records = bench.journal.records
    parts = [records]
    # The same story again, by other jobs: a long journal is long because many jobs were in it.
    jobs = len(bench.controller.world.jobs)
    while sum(map(len, parts)) < events:
        shift = jobs * len(parts)
        parts.append([shifted(record, shift, len(records) * len(parts)) for record in records if is_of_job(record)])
    whole = [record for part in parts for record in part][:events]
    start = time.perf_counter()
    fold(World(), whole)
    seconds = time.perf_counter() - start
    return {"events": len(whole), "seconds": round(seconds, 3), "per_event_us": round(seconds / len(whole) * 1e6, 2)}


def is_of_job(record: ev.Recorded) -> bool:
    """Whether the event can be repeated for another job."""
    return isinstance(record.event, ev.JobEvent)


def shifted(record: ev.Recorded, jobs: int, seq: int) -> ev.Recorded:
    """The record, of a job with a higher number."""
    event = record.event
    assert isinstance(event, ev.JobEvent)
    return ev.Recorded(record.seq + seq, record.at, record.version, structs.replace(event, job=event.job + jobs))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description="Speed of the Controller.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--profile", action="store_true", help="say on stderr where the time of the steps goes")
    parser.add_argument("--policy", nargs="*", default=["adaptive", "marble", "fifo-exclusive"])
    parser.add_argument("--objective", choices=OBJECTIVES, default="jct", help="what policies are to aim for")
    parser.add_argument("--quick", action="store_true", help="100 nodes, 200 jobs, 20 rounds, 20,000 events")
    options = parser.parse_args(argv)
    if options.quick:
        options.nodes, options.jobs, options.rounds, options.events = 100, 200, 20, 20_000
    profiler = cProfile.Profile() if options.profile else None
    if profiler is not None:
        profiler.enable()
    sizes = (options.nodes, options.gpus, options.jobs, options.rounds)
    steps = {policy: compared(*sizes, policy, options.objective) for policy in options.policy}
    if profiler is not None:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(15)
    figures = {
        "schema": 1,
        "setting": setting(),
        "nodes": options.nodes,
        "gpus": options.gpus,
        "jobs": options.jobs,
        "objective": options.objective,
        "step_and_decide": steps,
    }
    print(json.dumps(figures | {"fold": measure_fold(options.events)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
