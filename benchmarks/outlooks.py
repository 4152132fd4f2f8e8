"""What the daemon's looks at deadlines cost, and what recording the git state costs a submit.

python benchmarks/outlooks.py                                  # one JSON value
python benchmarks/outlooks.py --nodes 100 --jobs 500 --files 5000
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.cli.submit.git import WorkTrees
from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import GpuInfo, World
from hpcdl.daemon.deadline_watch import PAUSE, DeadlineWatch
from hpcdl.policies import all_policies

NOW = 1e6
PROFILES = Profiles({"p": Profile("p", ((1, 1, 1.0), (1, 2, 1.8), (1, 4, 3.0), (1, 8, 5.0)), startup_s=10.0)})


class Shown:
    """A world as the loop shows it; what is sent is counted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent = 0

    def now(self) -> float:
        return NOW

    def send(self, command: cmd.Outlooks) -> None:
        self.sent += len(command.outlooks)


def looks(nodes: int, gpus: int, jobs: int, rounds: int) -> dict[str, Any]:
    """Seconds of CPU of a look, with a deadline for every fourth job."""
    controller = Controller(MemoryJournal(), all_policies(), PROFILES)
    controller.step([cmd.ChoosePolicy("adaptive"), cmd.ChooseObjective("deadline")], NOW)
    for node in range(nodes):
        cards = tuple(GpuInfo(index, f"{node}-{index}") for index in range(gpus))
        controller.step([cmd.Inventory(f"n{node}", cards, 8, 1, 1, "boot", "log", False)], NOW)
    rng = random.Random(1)
    specs = []
    for number in range(jobs):
        due = NOW + rng.randint(3_600, 200_000) if number % 4 == 0 else None
        steps = rng.randint(1_000, 50_000)
        specs.append(JobSpec(("train",), f"j{number}", gpus_max=gpus, profile="p", steps=steps, deadline=due))
    controller.step([cmd.Submit(tuple(specs), "r")], NOW)
    controller.decide(NOW)
    shown, took, clock = Shown(controller.world), [], [0.0]
    watch = DeadlineWatch(shown, PROFILES, monotonic=lambda: clock[0])  # type: ignore[arg-type]
    for _ in range(rounds):
        began = time.process_time()
        watch.look()
        took.append(time.process_time() - began)
        clock[0] += 1e6
    return {"cpu_s_p50": statistics.median(took), "cpu_s_max": max(took), "pause_times": PAUSE, "found": shown.sent}


def _cpu_ms(run: Callable[[], object]) -> float:
    def used() -> float:
        found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return 1e3 * sum(each.ru_utime + each.ru_stime for each in found)

    before = used()
    run()
    return used() - before


def git_states(files: int, rounds: int) -> dict[str, Any]:
    """Milliseconds that it takes to find out what is checked out, in a work tree of so many files."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            path = Path(folder, str(number % 300), str(number))
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(number))
        git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "gc.auto=0"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
            subprocess.run([*git, *words], check=True, stdout=subprocess.DEVNULL)
        wall, cpu, known = [], [], 0
        for _ in range(rounds):
            began = time.perf_counter()
            cpu.append(_cpu_ms(lambda: WorkTrees().of(folder)))
            wall.append(1e3 * (time.perf_counter() - began))
            state = WorkTrees().of(folder)
            known += state is not None and state.dirty is not None
        return {
            "files": files,
            "wall_ms_p50": statistics.median(wall),
            "wall_ms_max": max(wall),
            "cpu_ms_p50": statistics.median(cpu),
            "changes_known": known / rounds,
        }


def main() -> None:
    """Prints one JSON value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, nargs="*", default=[500, 50_000])
    given = parser.parse_args()
    value = {
        "load": os.getloadavg()[0],
        "looks": looks(given.nodes, given.gpus, given.jobs, given.rounds),
        "git": [git_states(files, given.rounds) for files in given.files],
    }
    print(json.dumps(value, indent=1))


if __name__ == "__main__":
    main()
