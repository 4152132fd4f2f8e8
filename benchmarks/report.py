"""How long `hpcdl report` takes, as one JSON value: `python benchmarks/report.py [--events N] [--rounds N]`.

A ledger without a snapshot, read as without a daemon: opened, decoded, the account by each of its kinds of lines; under
3 s for 100,000 events is to be reached. Medians; `cpu_s` is the processor's time.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ledger import history
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.offline import Reader
from hpcdl.report.account import BY, Story, account, story_of

BATCH = 2_000


def timed(rounds: int, work: Callable[[], Any]) -> dict[str, float]:
    """Medians of seconds, of the clock and of the processor."""
    walls, processors = [], []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return {"median_s": round(statistics.median(walls), 4), "cpu_s": round(statistics.median(processors), 4)}


def measure(path: Path, total: int, rounds: int) -> dict[str, Any]:
    """The figures, on a ledger of so many events at `path`."""
    events = history()
    with SqliteJournal(path) as journal:
        while journal.last_seq < total:
            journal.append(list(islice(events, min(BATCH, total - journal.last_seq))))

    def read() -> Story:
        with Reader(path) as reader:
            return story_of(reader.records())

    story = read()
    whole = account(story)
    if abs(whole.available - whole.shares.available) > 1e-3:
        raise AssertionError(f"{whole.shares.available} GPU-seconds of {whole.available} are accounted for")
    figures: dict[str, Any] = {"events": total, "jobs": len(story.history.jobs), "gpus": whole.gpus}
    figures["read"] = timed(rounds, read)
    return figures | {f"by_{by}": timed(rounds, partial(account, story, by)) for by in BY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "home" / "ledger.sqlite", options.events, options.rounds)
    json.dump({"schema": 1, "report": figures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
