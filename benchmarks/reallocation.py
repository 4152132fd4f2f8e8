"""The daemon's whole step on a machine as large as Summit: from an event to the requests that follow, on disk.

    python benchmarks/reallocation.py [--nodes 4608] [--trainers 100] [--events 300] [--seed 1] [--profile]

The simulator's agents and trainers round the Controller with policy bftrainer, but with the daemon's ledger: each step
commits to SQLite with fsync, as the daemon does. Nodes leave and come, a few at a time; every step in which something
was decided is timed, from the commands to the second commit. One JSON value on standard output.
"""

import argparse
import cProfile
import json
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.profile import Profile
from hpcdl.ledger import SqliteJournal
from hpcdl.milp import Reallocation
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import Simulation
from hpcdl.sim.workload import NodeSpell, SimJob, Workload
from hpcdl.solver import prepare

POINTS = ((1, 2.8), (2, 5.3), (4, 10.0), (8, 20.4), (16, 38.9), (32, 74.1), (64, 145.1))
"""BFTrainer's Table 2, ShuffleNet: nodes, thousand samples/s. Each trainer scales a little otherwise."""
GAP_S = 60.0


class OnDisk(Simulation):
    """A simulation whose Controller writes to a ledger, and whose steps are timed."""

    def __init__(self, workload: Workload, policies: Any, journal: SqliteJournal) -> None:
        self.ledger = journal
        self.took: list[tuple[float, float]] = []
        super().__init__(workload, "bftrainer", policies, Conditions(objective="throughput", progress_s=1e9), None)

    def _new_controller(self) -> Controller:
        return Controller(self.ledger, self._policies, self._profiles, self._settings)

    def _turn(self, commands: Sequence[cmd.Command]) -> None:
        decided, began = len(self._decide_s), time.perf_counter()
        super()._turn(commands)
        if len(self._decide_s) > decided:
            self.took.append((self.now, time.perf_counter() - began))


def workload(nodes: int, trainers: int, events: int, seed: int) -> Workload:
    """All nodes from the start; then, at each event, up to ten of them leave, and come back after some events."""
    drawn = random.Random(seed)
    gone: dict[str, float] = {f"n{number:05d}": 0.0 for number in range(nodes)}
    spells: list[NodeSpell] = []
    for event in range(1, events + 1):
        now = event * GAP_S
        there = [name for name, since in gone.items() if since < now]
        for name in drawn.sample(there, min(len(there), drawn.randint(1, 10))):
            spells.append(NodeSpell(name, 1, from_s=gone[name], until_s=now))
            gone[name] = now + GAP_S * drawn.randint(1, 5)
    end = (events + 1) * GAP_S
    spells += [NodeSpell(name, 1, from_s=since, until_s=end * 2) for name, since in gone.items() if since < end]
    spells.sort(key=lambda spell: spell.from_s)
    jobs = []
    for number in range(trainers):
        bend = drawn.uniform(0.85, 1.0)
        points = tuple((count, 1, 1000.0 * rate * bend ** (at / 2)) for at, (count, rate) in enumerate(POINTS))
        profile = Profile(f"t{number}", points, 20.0, 2.0, 20.0, grow_s=20.0, shrink_s=5.0, join_s=0.0)
        steps = 10**12
        jobs.append(SimJob(0.0, f"t{number}", profile, steps, gpus_max=1, nodes_max=64, rescale="in-process"))
    return Workload("summit", tuple(jobs), tuple(spells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4608)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="where the time goes, on standard error")
    given = parser.parse_args()
    load = workload(given.nodes, given.trainers, given.events, given.seed)
    policies = all_policies(Reallocation(t_fwd_s=120.0))
    prepare()  # as the daemon does
    with tempfile.TemporaryDirectory() as folder, SqliteJournal(Path(folder) / "ledger.sqlite") as journal:
        simulation = OnDisk(load, policies, journal)
        simulation.conditions = Conditions(until_s=(given.events + 0.5) * GAP_S, objective="throughput")
        profile = cProfile.Profile()
        if given.profile:
            profile.enable()
        simulation.run()
        profile.disable()
        if given.profile:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
        troubles = [type(each.event) is ev.TroubleSeen for each in journal.read(0, 10**7)].count(True)
    # An event is a moment of the trace: what follows from it at the same moment are steps of their own.
    took = sorted(seconds * 1000 for at, seconds in simulation.took if at > 0 and at % GAP_S == 0)
    first = sorted(seconds * 1000 for at, seconds in simulation.took if at == 0)
    print(
        json.dumps(
            {
                "nodes": given.nodes,
                "trainers": given.trainers,
                "events": given.events,
                "steps": len(took),
                "p50_ms": round(took[len(took) // 2], 2),
                "p99_ms": round(took[min(len(took) - 1, int(len(took) * 0.99))], 2),
                "most_ms": round(took[-1], 2),
                "first_step_ms": round(first[-1], 2),
                "troubles": troubles,
            },
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
