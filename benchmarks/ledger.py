"""How fast the ledger is, as one JSON value: `python benchmarks/ledger.py [--folder DIR] [--events N] [--rounds N]`.

Single appends and one batch, durable each (the figure is the disk's), and what a restart pays, to be under 2 s for
100,000 events: read, decode and fold all of them, as without any snapshot; and as a daemon does it, whose snapshot is
5,000 events old at most. Medians; `cpu_s` is the processor's time, which hardly depends on what else the machine does.
With `--jobs N`, instead: a ledger of so many finished jobs, of one shell with 30 variables, and what a snapshot of it
takes, a commit, and a restart from that; with `--keep K`, after all but so many have left the world, and what that
took.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hpcdl.core.controller.journal import Stamped
from hpcdl.core.fold.fold import Draft, fold
from hpcdl.core.model import events as ev
from hpcdl.core.model.events import JobsRetired
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import GpuInfo, JobState, World
from hpcdl.core.rules.retention import jobs_to_retire
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.snapshots import body_of

STEPS = 40
SNAPSHOT_EVERY = 5_000
"""The setting's default."""


def history(nodes: int = 8) -> Iterator[Stamped]:
    """Jobs that come, train and finish, endlessly: mostly progress, as in a live ledger."""
    at = 1_700_000_000.0
    yield at, ev.DaemonStarted(fence=1, version="0", pid=1, host="bench")
    for number in range(nodes):
        gpus = tuple(GpuInfo(index, f"GPU-{number}-{index}") for index in range(6))
        yield at, ev.NodeJoined(f"n{number}", gpus, cpus=16, memory_mib=1 << 17, agent_pid=1, log_id="a")
    job = 0
    while True:
        at += 1
        first = job + 1
        for node in range(nodes):
            job += 1
            spec = JobSpec(("python", "train.py"), f"job {job}", "user", "/home/user", steps=STEPS, gpus_max=3)
            yield at, ev.JobSubmitted(job, spec, f"request-{job}")
            placement = Placement((Share(f"n{node}", (0, 1, 2)),))
            yield at, ev.StartRequested(job, 1, (f"n{node}",), placement)
            yield at, ev.Started(job, 1, 1, f"n{node}", 0.1, 4711)
        for step in range(STEPS):
            at += 10
            yield from ((at, ev.Progressed(first + n, 1, 1, f"n{n}", 0.1, step, STEPS)) for n in range(nodes))
        for node in range(nodes):
            here = first + node
            yield at, ev.Exited(here, 1, 1, f"n{node}", code=0, step=STEPS)
            yield at, ev.GpusFreed(here, 1, 1, f"n{node}")
            yield at, ev.IncarnationEnded(here, 1, Cause.DONE, STEPS, STEPS, 0, final=JobState.DONE)
            yield at, ev.JobEnded(here, JobState.DONE)


def restart(path: Path, total: int, rounds: int) -> dict[str, float]:
    """Seconds until the ledger is open and its world is there: medians."""
    walls, processors = [], []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        with SqliteJournal(path) as journal:
            walls.append(time.perf_counter() - wall)
            processors.append(time.process_time() - processor)
            if journal.last_seq != total:
                raise AssertionError(f"{journal.last_seq} of {total} events came back")
    return {"median_s": statistics.median(walls), "worst_s": max(walls), "cpu_s": statistics.median(processors)}


def measure(folder: Path, total: int, rounds: int) -> dict[str, Any]:
    """Seconds and rates, on the disk of `folder`."""
    path = folder / "ledger.sqlite"
    events = history()
    figures: dict[str, Any] = {"events": total, "rounds": rounds}
    with SqliteJournal(path) as journal:
        singles = min(2_000, total // 4)
        begun = time.perf_counter()
        for stamped in islice(events, singles):
            journal.append([stamped])
        figures["single_appends_per_s"] = singles / (time.perf_counter() - begun)
        batches = []
        left = total - singles
        while left > 0:
            batch = list(islice(events, min(1_000, left)))
            begun = time.perf_counter()
            journal.append(batch)
            batches.append(time.perf_counter() - begun)
            left -= len(batch)
        figures["batch_of_1000_median_s"] = sorted(batches)[len(batches) // 2]
        figures["batch_of_1000_worst_s"] = max(batches)
    figures["restart_without_snapshot"] = restart(path, total, rounds)
    with SqliteJournal(path) as journal:
        world = fold(World(), journal.read(0, max(1, total - SNAPSHOT_EVERY + 1)))
        begun = time.perf_counter()
        journal.snapshot(world)
        figures["snapshot_s"] = time.perf_counter() - begun
    figures["restart_from_snapshot"] = restart(path, total, rounds)
    with SqliteJournal(path) as journal:
        begun = time.perf_counter()
        journal.archive(world.seq)
        figures["archive_s"] = time.perf_counter() - begun
        begun = time.perf_counter()
        journal.verify()
        figures["verify_s"] = time.perf_counter() - begun
    return figures


def measure_jobs(folder: Path, number: int, keep: int | None, rounds: int) -> dict[str, Any]:
    """Bytes and seconds of a ledger with so many jobs that are done, of which `keep` stay in the world."""
    path = folder / "ledger.sqlite"
    env = tuple((f"VARIABLE_{place}", f"/opt/some/where/{place}/lib") for place in range(30))
    with SqliteJournal(path) as journal:
        for first in range(1, number + 1, 1000):
            events: list[Stamped] = []
            for job in range(first, min(first + 1000, number + 1)):
                spec = JobSpec(("python", "train.py"), f"job {job}", "user", "/home/user", env=env)
                events.append((1_700_000_000.0 + job, ev.JobSubmitted(job, spec, f"request-{job}")))
                events.append((1_700_000_001.0 + job, ev.JobEnded(job, JobState.DONE)))
            journal.append(events)
        figures: dict[str, Any] = {"jobs": number}
        if keep is not None:
            figures["keep"] = keep
            figures["retire"] = retire(journal, keep)
        world = journal.load()
        begun = time.process_time()
        journal.snapshot(world)
        taken = time.process_time() - begun
        commits = []
        for place in range(101):
            spent = time.process_time()
            draft = Draft(world)  # as the controller does it, which has a world of its own
            draft.add(ev.JobSubmitted(number + place + 1, spec, f"later-{place}"), 1_800_000_000.0)
            journal.append(draft.events)
            commits.append(time.process_time() - spent)
            world = draft.world
        total = journal.last_seq
    figures["snapshot"] = {"bytes": len(body_of(world).encode()), "cpu_s": taken}
    figures["commit_cpu_s"] = statistics.median(commits)
    figures["ledger_bytes"] = path.stat().st_size
    figures["restart"] = restart(path, total, rounds)
    return figures


def retire(journal: SqliteJournal, keep: int) -> dict[str, Any]:
    """Seconds of the processor for each event of jobs that leave the world, until `keep` stay."""
    world, spent = journal.load(), list[float]()
    while True:
        begun = time.process_time()
        jobs = jobs_to_retire(world, 1_800_000_000.0, keep)
        if not jobs:
            return {"events": len(spent), "median_cpu_s": statistics.median(spent), "worst_cpu_s": max(spent)}
        draft = Draft(world)
        draft.add(JobsRetired.of(jobs), 1_800_000_000.0)
        journal.append(draft.events)
        spent.append(time.process_time() - begun)
        world = draft.world


def rounded(value: Any) -> Any:
    """With five digits behind the point."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return round(value, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to be measured (default: the temporary one)")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, help="measure a ledger of so many finished jobs")
    parser.add_argument("--keep", type=int, help="with --jobs: so many of them stay in the world (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="restarts of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        home = Path(folder) / "home"
        if options.jobs is None:
            figures = rounded(measure(home, options.events, options.rounds))
        else:
            figures = rounded(measure_jobs(home, options.jobs, options.keep, options.rounds))
    json.dump({"schema": 1, "ledger": figures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
