"""How fast the command line is: whole processes, against a Python that only imports click, in turns in one run.

    python benchmarks/cli.py [--rounds N] [--jobs N] > result.json

`ls` asks daemons with so many jobs in their ledgers: in one most of them are finished, in the other one all of them
wait, so that as many lines are printed. Prints JSON: medians in milliseconds, the ratio of each to the import of
click, and the CPU time that a daemon spends meanwhile on one more `ls`.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.ledger import SqliteJournal
from hpcdl.policies import all_policies
from hpcdl.wire.private_files import make_private_folder

ROOT = Path(__file__).parents[1]
HPCDL = [sys.executable, "-m", "hpcdl"]
LIVE = 20
"""Unfinished jobs beside those that are finished."""


def median_ms(commands: dict[str, list[str]], rounds: int, env: dict[str, str]) -> dict[str, float]:
    """Median wall time of each command, run one after another, round by round; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            begun = time.perf_counter()
            subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True)
            if number:
                times[name].append((time.perf_counter() - begun) * 1000)
    return {name: round(statistics.median(each), 1) for name, each in times.items()}


def daemon_cpu_ms(home: str, command: list[str], times: int, env: dict[str, str]) -> float:
    """Median CPU time of the daemon, all its threads, for each of so many calls of a command."""
    status = subprocess.run(
        [*HPCDL, "--home", home, "daemon", "status", "--json"], env=env, capture_output=True, check=True
    )
    pid = json.loads(status.stdout)["daemon"]["pid"]

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1000

    each = []
    for _ in range(times):
        before = spent()
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
        each.append(spent() - before)
    return round(statistics.median(each), 1)


def write_ledger(home: Path, jobs: int, finished: int) -> None:
    """A ledger with so many jobs, of which the first `finished` are over."""
    make_private_folder(home)
    now = time.time()
    with SqliteJournal(home / "ledger.sqlite") as journal:
        controller = Controller(journal, all_policies(), Profiles())
        controller.step([cmd.ChoosePolicy("adaptive"), cmd.ChooseObjective("jct")], now)
        for first in range(0, jobs, 1000):
            specs = [
                JobSpec(("python", "train.py"), f"train-{number}", "ada", gpus_min=2, gpus_max=2, steps=1000)
                for number in range(first, min(jobs, first + 1000))
            ]
            controller.step([cmd.Submit(tuple(specs), f"request-{first}")], now)
        for first in range(0, finished, 1000):
            controller.step([cmd.Cancel(each + 1) for each in range(first, min(finished, first + 1000))], now)


@contextlib.contextmanager
def daemon(folder: Path, jobs: int, finished: int, env: dict[str, str]) -> Iterator[str]:
    """The HPCDL_HOME of a daemon with such a ledger, and a node whose one GPU is too few for any of the jobs."""
    home = folder / "home"
    write_ledger(home, jobs, finished)
    env = {**env, "HPCDL_HOME": str(home)}
    start = [*HPCDL, "daemon", "start", "--emulate-gpus", "1", "--node", "n1"]
    subprocess.run(start, env=env, stdout=subprocess.DEVNULL, check=True, timeout=300)
    try:
        yield str(home)
    finally:
        subprocess.run([*HPCDL, "daemon", "stop"], env=env, stdout=subprocess.DEVNULL, check=True, timeout=300)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of the command line.")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs in each ledger")
    options = parser.parse_args()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as stack:
        homes = {}
        for name, finished in (("most finished", max(0, options.jobs - LIVE)), ("all waiting", 0)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            homes[name] = stack.enter_context(daemon(folder, options.jobs, finished, env))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "python -c 'import click'": [sys.executable, "-c", "import click"],
            "hpcdl --version": [*HPCDL, "--version"],
        }
        for name, home in homes.items():
            commands[f"hpcdl ls ({name})"] = [*HPCDL, "--home", home, "ls"]
        medians = median_ms(commands, options.rounds, env)
        cpu = {
            name: daemon_cpu_ms(home, commands[f"hpcdl ls ({name})"], options.rounds, env)
            for name, home in homes.items()
        }
    base = medians["python -c 'import click'"]
    report = {
        "schema": 1,
        "rounds": options.rounds,
        "jobs": options.jobs,
        "median_ms": medians,
        "daemon_cpu_ms_of_ls": cpu,
        "of_import_click": {name: round(each / base, 2) for name, each in medians.items()},
    }
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
