"""A solver of BFTrainer's program deciding live: how often it proves its counts in time, and what submits wait.

    python benchmarks/live_milp.py [--solver highs] [--trainers 30 --nodes 100] [--decisions 200] [--limit 5] [--seed 1]

The daemon's loop, Controller, ledger on disk, thread of plans and solver's process; only agents and trainers are the
simulator's, on a virtual clock. Nodes leave and come, a few at a time, until so many programs were solved. Meanwhile 20
submits a second come, each of which is timed until it is acknowledged. Prints JSON: of the programs, how many were
proven optimal within `--limit` seconds and how many the exact counts decided instead, the largest relative difference
to the exact value, seconds of a solve with its process, milliseconds of a submit.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import setting
from benchmarks.reallocation import GAP_S, workload
from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import Request
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.milp_solvers import MILP_SOLVERS
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.planning import PlanThread
from hpcdl.ledger import SqliteJournal
from hpcdl.milp import Reallocation
from hpcdl.milp.counting import CountedNodes, MilpCounts, exact_counts
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import Simulation
from hpcdl.sim.workload import Workload
from hpcdl.solver import ElasticTrainer, prepare

PAUSE_S = 0.05
UNFIT = JobSpec(("train",), "waits", gpus_min=9, gpus_max=9)
"""A job that no node can hold, so that it is no trainer."""


class Enough(Exception):
    """As many programs as were wanted are solved."""


class Counted:
    """A solver's counts, each compared with the exact ones."""

    def __init__(self, solver: str, limit_s: float, plans: PlanThread, most: int) -> None:
        self.most = most
        self.counts = MilpCounts(solver, limit_s, plans.solve)
        self.seconds: list[float] = []
        self.apart = 0.0

    def __call__(self, trainers: Sequence[ElasticTrainer], capacities: Sequence[int]) -> CountedNodes:
        if self.counts.solves >= self.most:  # what is begun after the last one is given up
            return exact_counts(trainers, capacities)
        before, began = self.counts.solves, time.perf_counter()
        found = self.counts(trainers, capacities)
        if self.counts.solves > before:
            self.seconds.append(time.perf_counter() - began)
            exact = exact_counts(trainers, capacities).allotment
            self.apart = max(self.apart, abs(found.allotment.value - exact.value) / max(1e-9, abs(exact.value)))
        return found


class Live(Simulation):
    """A simulation whose Controller runs in the daemon's loop, on the virtual clock."""

    def __init__(self, load: Workload, journal: SqliteJournal, counted: Counted, plans: PlanThread) -> None:
        self.ledger, self.counted, self.plans = journal, counted, plans
        self.requests: list[Request] = []
        policies = all_policies(Reallocation(t_fwd_s=120.0), counting=counted)
        super().__init__(load, "bftrainer", policies, Conditions(objective="throughput", progress_s=1e9), None)
        changed = lambda world: None  # noqa: E731
        self.loop = ControllerLoop(self._controller, self, 0.0, changed, self.requests.extend, sys.exit)  # type: ignore[arg-type]

    def _new_controller(self) -> Controller:
        return Controller(self.ledger, self._policies, self._profiles, self._settings, aside=self.plans)

    def _begin(self) -> None:
        super()._begin()
        clock = _Clock(self)
        self.loop._clock = clock  # type: ignore[assignment]
        self.loop.start()

    def _turn(self, commands: Sequence[cmd.Command]) -> None:
        for command, answer in [(command, self.loop.send(command)) for command in commands]:
            ids = answer.result(60)
            if isinstance(command, cmd.Submit):
                self._took(command, ids)
        while not self.loop.call(_settled).result(60):
            time.sleep(0.002)
        requests, self.requests[:] = [*self.requests], []
        if (wake_at := self._controller.wake_at) is not None and wake_at not in (self._wake_at, self._woken):
            self._wake_at = wake_at
            self.at(max(wake_at, self.now + 1e-3), partial(self._wake, wake_at))
        for request in requests:
            self._agents.take(request)
        if self.counted.counts.solves >= self.counted.most:
            raise Enough


def _settled(controller: Controller) -> bool:
    """Whether no plan is being made, nor to be asked for."""
    thinking = controller._deliberation
    return not controller.undecided and thinking is not None and thinking._thought is None


class _Clock:
    """The daemon's time is the simulation's."""

    def __init__(self, simulation: Live) -> None:
        self._simulation = simulation

    def now(self) -> float:
        return self._simulation.now


def submit_until(ended: threading.Event, loop: ControllerLoop, took: list[float]) -> None:
    """A submit each PAUSE_S."""
    while not ended.wait(PAUSE_S):
        began = time.perf_counter()
        loop.send(cmd.Submit((UNFIT,), f"waits {len(took)}")).result(60)
        took.append(time.perf_counter() - began)


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solver", choices=[each for each in MILP_SOLVERS if each != "exact"], default="highs")
    parser.add_argument("--trainers", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--decisions", type=int, default=200)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    load = workload(given.nodes, given.trainers, given.decisions + 10, given.seed)
    prepare()
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder, SqliteJournal(Path(folder) / "ledger.sqlite") as journal:
        plans = PlanThread(lambda command: live.loop.send(command))
        counted = Counted(given.solver, given.limit, plans, given.decisions)
        live = Live(load, journal, counted, plans)
        live.conditions = Conditions(until_s=(given.decisions + 10) * GAP_S, objective="throughput")
        ended = threading.Event()
        submits = threading.Thread(target=submit_until, args=(ended, live.loop, took))
        submits.start()
        try:
            live.run()
        except Enough:
            pass
        finally:
            ended.set()
            submits.join()
            plans.stop()
            live.loop.stop()
    counts = counted.counts
    print(
        json.dumps(
            {
                "solver": given.solver,
                "trainers": given.trainers,
                "nodes": given.nodes,
                "limit_s": given.limit,
                "decisions": counts.solves,
                "proven": counts.solves - counts.exact,
                "exact_instead": counts.exact,
                "troubles": list(counts.troubles),
                "furthest_from_exact": counted.apart,
                "solve_s": {f"p{part}": round(quantile(counted.seconds, part / 100), 3) for part in (50, 95, 99)},
                "submit_ms": {
                    "submits": len(took),
                    **{f"p{part}": round(1e3 * quantile(took, part / 100), 2) for part in (50, 99)},
                    "longest": round(1e3 * max(took, default=0.0), 2),
                },
                **setting(),
            },
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
