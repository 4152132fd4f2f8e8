"""A month's record of a large machine: its size, what it costs to write and to read, and a kill in its midst.

    python benchmarks/record.py [--nodes 4608] [--days 30] [--every 30] [--load 0.92] [--seed 1] [--polls 200]

What idles is simulated by EASY backfill (`hpcdl.sim.idle.easy`), and rounded to the polls. The answers of sinfo are
texts as long as a real one's; they are parsed by the adapter, and the record is written to a disk, without waiting
between polls. CPU is that of hpcdl, with what it takes to run a command that prints such an answer (the mean of
`--polls`); sinfo's own is not in it. One JSON value on standard output.
"""

import argparse
import json
import resource
import stat
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.batch.adapter import Completed
from hpcdl.batch.command import run
from hpcdl.batch.record.folder import RecordFolder
from hpcdl.batch.record.pieces import read_record
from hpcdl.batch.record.recorder import IdleRecorder
from hpcdl.sim.idle import table_of
from hpcdl.sim.idle.easy import BatchLoad, backfilled
from hpcdl.slurm.adapter import Slurm

GOAL_BYTES = 100_000_000
GOAL_CPU = 0.01


class Answers:
    """A `CommandRunner` that answers sinfo with what idles at a poll, of nodes n1, n2, ..."""

    def __init__(self, nodes: int) -> None:
        self.idle = np.zeros(nodes, dtype=bool)
        self.answer = ""

    def look(self) -> None:
        """Answers from now on as sinfo does: idle nodes, and busy ones by the GPUs that are in use."""
        used = np.where(self.idle, 0, 1 + np.arange(len(self.idle)) // 64 % 6)
        rows = [(used == 0, "idle", 0), *((used == gpus, "allocated", gpus) for gpus in range(1, 7))]
        lines = [f"{_list(which)}|{state}|gpu:v100:{gpus}(IDX:0)|" for which, state, gpus in rows if which.any()]
        self.answer = "\n".join(["NODELIST|STATE|GRES_USED|", *lines, ""])

    def __call__(
        self, argv: Sequence[str], timeout_s: float = 30.0, *, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> Completed:
        return Completed(self.answer, "", 0)


def _list(which: NDArray[np.bool_]) -> str:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], which.astype(int), [0]])))
    ends = [(first + 1, last) for first, last in edges.reshape(-1, 2).tolist()]
    return f"n[{','.join(str(first) if first == last else f'{first}-{last}' for first, last in ends)}]"


def cpu_s() -> float:
    """Seconds of the processor that this process and the ended ones that it started have taken."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4608)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.92)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--polls", type=int, default=200)
    asked = parser.parse_args()
    spells = backfilled(BatchLoad(asked.load), asked.nodes, 24 * asked.days, asked.seed)
    polls = int(86400 * asked.days // asked.every) + 1
    changes: dict[int, list[tuple[int, bool]]] = {}
    for spell in spells:
        first, last = (-int(-at // asked.every) for at in (spell.from_s, spell.until_s))
        if first < last:
            node = int(spell.name[1:]) - 1
            changes.setdefault(last, []).insert(0, (node, False))  # who leaves and joins at once stays
            changes.setdefault(first, []).append((node, True))
    answers = Answers(asked.nodes)
    slurm = Slurm(answers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record"
        files = RecordFolder(path)
        recorder = IdleRecorder(files, asked.every, "slurm")
        lines, spent_s = 0, 0.0
        for poll in range(polls):
            for node, joins in changes.get(poll, ()):
                answers.idle[node] = joins
            if poll == 0 or poll in changes:
                answers.look()
            began = cpu_s()
            lines += recorder.take(1_700_000_000.0 + poll * asked.every, slurm.idle_nodes())
            spent_s += cpu_s() - began
        files.close()
        sizes = [each.stat().st_size for each in path.iterdir()]
        program = Path(folder) / "sinfo"
        program.write_text(f"#!/bin/sh\ncat {folder}/answer\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (Path(folder) / "answer").write_text(answers.answer)
        began = cpu_s()
        for _ in range(asked.polls):
            run([str(program)])
        process_ms = 1000 * (cpu_s() - began) / asked.polls
        began = time.perf_counter()
        record = read_record(path)
        read_s = time.perf_counter() - began
        began = time.perf_counter()
        table = table_of(record)
        table_s = time.perf_counter() - began
    poll_ms = 1000 * spent_s / polls
    share = (poll_ms + process_ms) / 1000 / asked.every
    value = {
        "nodes": asked.nodes,
        "days": asked.days,
        "polls": polls,
        "lines": lines,
        "pieces": table.pieces,
        "bytes": sum(sizes),
        "bytes_goal": GOAL_BYTES,
        "poll_cpu_ms": round(poll_ms, 3),
        "process_cpu_ms": round(process_ms, 3),
        "cpu_share": round(share, 5),
        "cpu_share_goal": GOAL_CPU,
        "read_s": round(read_s, 2),
        "table_s": round(table_s, 2),
        "idle_ratio": table.ratio,
        "met": sum(sizes) < GOAL_BYTES and share < GOAL_CPU,
    }
    print(json.dumps(value, indent=2))


if __name__ == "__main__":
    main()
