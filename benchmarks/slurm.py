"""What a real Slurm does, and what hpcdl costs it: four nodes on this machine, as in the tests. Needs Slurm's packages.

    python benchmarks/slurm.py [--only commands down preemption pilots hole] [--rounds 5] [--json]

`commands`: milliseconds of what hpcdl asks, and seconds from a submission until it runs. `down`: seconds that a command
takes while slurmctld is away. `preemption`: seconds from the submission of a job that preempts until it runs, by what
the steps of the preempted one do. `pilots`: the same, where the preempted one is a pilot of hpcdl with an elastic
trainer that takes 2 s to save; also from the end of that save. `hole`: a job of 4 nodes waits for 2 that are busy;
seconds from the end of those until it runs, with nobody in the 2 idle nodes, and with an elastic trainer of hpcdl on
pilots there. One JSON value on standard output, progress on standard error.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.slurm.cluster import SlurmCluster, missing, version
from tests.slurm.configuration import Options
from tests.slurm.home import Home
from tests.system.batch import site_file

STUBBORN = "trap : TERM CONT; echo up; while :; do sleep 0.1; done"
OBEDIENT = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
PATIENCE_S = 300.0


def say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def taken_s(what: Callable[[], Any]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began


def figures(values: list[float], digits: int = 2) -> dict[str, Any]:
    return {"p50_s": round(statistics.median(values), digits), "all_s": [round(value, digits) for value in values]}


def commands(slurm: SlurmCluster, rounds: int) -> dict[str, Any]:
    """Medians."""
    argvs = {
        "sinfo": ("sinfo", "-h", "-N", "-o", "%N %T"),
        "sinfo --json": ("sinfo", "--json"),
        "squeue": ("squeue", "-h", "-o", "%i %T"),
        "squeue --json": ("squeue", "--json"),
        "scontrol show node": ("scontrol", "show", "node"),
    }
    many = max(20, rounds)
    found: dict[str, Any] = {
        f"{name}, ms": round(1000 * statistics.median(taken_s(partial(slurm.run, *argv)) for _ in range(many)), 1)
        for name, argv in argvs.items()
    }
    waits = []
    for _ in range(rounds):
        began = time.monotonic()
        job = slurm.submit("sleep 100", "-N2", "--exclusive")
        slurm.until_state(job, "RUNNING")
        waits.append(time.monotonic() - began)
        slurm.reset()
    return {**found, "submitted until it runs": figures(waits)}


def down(slurm: SlurmCluster, rounds: int) -> dict[str, Any]:
    """What `squeue` takes to give up."""
    slurm.stop_slurmctld()
    try:
        return {"squeue": figures([taken_s(lambda: slurm.run("squeue", check=False)) for _ in range(min(rounds, 3))])}
    finally:
        slurm.start_slurmctld()
        slurm.reset()


def preemption(slurm: SlurmCluster, rounds: int) -> dict[str, Any]:
    """Until the node is another's: grace of 30 s, and none."""
    result = {}
    for name, partition, step in (
        ("steps end at SIGTERM", "scavenge", OBEDIENT),
        ("steps ignore it, REQUEUE", "scavenge", STUBBORN),
        ("steps ignore it, CANCEL", "cancelp", STUBBORN),
        ("steps ignore it, no grace", "nograce", STUBBORN),
    ):
        waits = []
        for _ in range(rounds if step is OBEDIENT else min(rounds, 2)):
            job = slurm.submit(f'srun bash -c "{step}"', "-w", "n1", "--exclusive", "-p", partition)
            slurm.wait_for(partial(has_begun, slurm, job), what="step")
            began = time.monotonic()
            other = slurm.submit("sleep 1000", "-w", "n1", "--exclusive")
            slurm.until_state(other, "RUNNING", seconds=PATIENCE_S)
            waits.append(time.monotonic() - began)
            slurm.reset()
        result[name] = figures(waits)
        say(f"preemption, {name}: {result[name]}")
    return result


@contextmanager
def hpcdl(slurm: SlurmCluster, queue: str, pilots: int) -> Iterator[Home]:
    """A daemon outside, on a node `login` with 4 emulated GPUs, which may submit pilots to one partition."""
    base = Path(tempfile.mkdtemp(prefix="hpcdl-bench-"))
    site = site_file(base, queues=[queue], walltime_min_s=60, startup_s=5)
    home = Home(slurm, base / "home", policy="bftrainer", pilots=pilots, site=str(site), node_name="login")
    try:
        points = [{"nodes": nodes, "gpus": 4, "rate": 10.0 * nodes} for nodes in (1, 4)]
        home.add_profile("scales", points=points, startup_s=1, save_s=1, resume_s=1, grow_s=1, shrink_s=1)
        home.start_outside(4)
        yield home
    finally:
        home.stop()
        shutil.rmtree(base, ignore_errors=True)


def pilots(slurm: SlurmCluster, rounds: int) -> dict[str, Any]:
    """Until the node of a pilot is another's, and from the end of its trainer's save."""
    result: dict[str, Any] = {}
    for queue, name in (("scavenge", "REQUEUE"), ("cancelp", "CANCEL"), ("nograce", "no grace")):
        waits, since_save, on = [], [], []
        for number in range(rounds):
            with hpcdl(slurm, queue, 1) as home:
                job = home.elastic("1:2", 1_000_000, "--step-s", 0.05, "--save-every", 1_000_000, "--save-s", 2)
                home.until(partial(trains_on_two, home, job))
                (node,) = set(home.placement(job)) - {"login"}
                home.until_step(job, home.job(job)["step"] + 20)
                began = time.time()
                other = slurm.submit("sleep 1000", "-w", node, "--exclusive")
                slurm.until_state(other, "RUNNING", seconds=PATIENCE_S)
                at = time.time()
                home.until(partial(trains_on, home, job, "login"))
                events = home.events(job)
                saved = [each["at"] for each in events if each["kind"] == "Saved" and each["at"] > began]
                ready = [each["at"] for each in events if each["kind"] == "TrainerReady"]
                waits.append(at - began)
                on.append(ready[-1] - began)
                if saved and saved[0] < at:
                    since_save.append(at - saved[0])
            slurm.reset()
            say(f"pilots, {name}, round {number + 1}: {waits[-1]:.1f} s")
        result[name] = {"until another's": figures(waits), "until the trainer goes on": figures(on)}
        if since_save:
            result[name]["from the end of the save"] = figures(since_save)
    return result


def trains(home: Home, job: int) -> bool:
    return bool(home.job(job)["state"] == "RUNNING")


def trains_on_two(home: Home, job: int) -> bool:
    return len(home.placement(job)) == 2 and trains(home, job)


def has_begun(slurm: SlurmCluster, job: str) -> bool:
    return "up" in slurm.output(job)


def trains_on(home: Home, job: int, *nodes: str) -> bool:
    return home.placement(job) == list(nodes) and trains(home, job)


def hole(slurm: SlurmCluster, rounds: int) -> dict[str, Any]:
    """What the job of 4 nodes waits: the control, and with hpcdl in its hole."""
    waits: dict[str, list[float]] = {"without hpcdl": [], "with hpcdl": []}
    for number in range(rounds):
        for name, values in waits.items():
            go = slurm.folder / "go"
            busy = slurm.submit(f"while [ ! -e {go} ]; do sleep 0.05; done", "-w", "n[1-2]", "--exclusive", "-t", "5")
            slurm.until_state(busy, "RUNNING")
            big = slurm.submit("sleep 1000", "-N4", "--exclusive")
            slurm.wait_for(lambda: "planned" in slurm.node_states().values(), what="planned nodes")
            if name == "without hpcdl":
                values.append(_started_after(slurm, go, busy, big))
            else:
                with hpcdl(slurm, "scavenge", 2) as home:
                    job = home.elastic("1:3", 1_000_000, "--step-s", 0.05, "--save-every", 1_000_000, "--save-s", 2)
                    home.until(partial(trains_on, home, job, "login", "n3", "n4"))
                    home.until_step(job, home.job(job)["step"] + 20)
                    values.append(_started_after(slurm, go, busy, big))
                    home.until(partial(trains_on, home, job, "login"))
            slurm.reset()
            say(f"hole, {name}, round {number + 1}: {values[-1]:.1f} s")
    return {name: figures(values) for name, values in waits.items()}


def _started_after(slurm: SlurmCluster, go: Path, busy: str, big: str) -> float:
    """Seconds from the end of the job `busy`, which waits for the file `go`, until `big` runs."""
    go.touch()
    slurm.until_state(busy, "COMPLETED")
    began = time.monotonic()
    slurm.until_state(big, "RUNNING", seconds=PATIENCE_S)
    go.unlink()
    return time.monotonic() - began


PARTS: dict[str, Callable[[SlurmCluster, int], dict[str, Any]]] = {
    "commands": commands,
    "down": down,
    "preemption": preemption,
    "pilots": pilots,
    "hole": hole,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="has no effect: the output always is JSON")
    given = parser.parse_args()
    if said := missing():
        raise SystemExit(f"no real Slurm to measure: {said}")
    slurm = SlurmCluster(Options(grace_s=30))
    result: dict[str, Any] = {"slurm": version(), "rounds": given.rounds}
    try:
        result["start"] = round(taken_s(slurm.start), 2)
        for name in given.only:
            result[name] = PARTS[name](slurm, given.rounds)
            say(f"{name}: {result[name]}")
    finally:
        slurm.stop()
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
