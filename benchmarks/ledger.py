"""How fast the ledger is, as one JSON value: `python benchmarks/ledger.py [--folder DIR] [--events N]`.

Single appends and one batch, durable each (the figure is the disk's), and what a restart pays: read, decode and fold.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hpcdl.core import events as ev
from hpcdl.core.journal import Stamped
from hpcdl.core.model import Cause, GpuInfo, JobSpec, JobState, Placement, Share
from hpcdl.ledger import SqliteJournal

STEPS = 40


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


def measure(folder: Path, total: int) -> dict[str, float]:
    """Seconds and rates, on the disk of `folder`."""
    path = folder / "ledger.sqlite"
    events = history()
    figures: dict[str, float] = {"events": total}
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
    begun = time.perf_counter()
    with SqliteJournal(path) as journal:
        world = journal.load()
        figures["replay_s"] = time.perf_counter() - begun
        if world.seq != total:
            raise AssertionError(f"{world.seq} of {total} events came back")
        begun = time.perf_counter()
        journal.snapshot(world)
        figures["snapshot_s"] = time.perf_counter() - begun
        begun = time.perf_counter()
        journal.archive(total - 5_000)
        figures["archive_s"] = time.perf_counter() - begun
    begun = time.perf_counter()
    with SqliteJournal(path) as journal:
        journal.load()
        figures["restart_from_snapshot_s"] = time.perf_counter() - begun
        begun = time.perf_counter()
        journal.verify()
        figures["verify_s"] = time.perf_counter() - begun
    return {name: round(value, 5) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to be measured (default: the temporary one)")
    parser.add_argument("--events", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Path(folder) / "home", options.events)
    json.dump({"schema": 1, "ledger": figures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
