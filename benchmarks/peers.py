"""`adaptive` beside its peers on streams of jobs: gains over draws with their intervals, the goals, met or missed.

    python benchmarks/peers.py --traces DIR --throughputs FILE.csv [--published FILE.csv ..] [--draws 10] [--workers N]
        [--only ROW ..] [--json]

DIR holds `*_loadX.csv` (submit_s, model, gpus, steps; submits such that the load on 32 V100 is X) and `pollux*.yaml`,
in the formats of docs/simulate.md; the throughputs are Gavel's table (OSDI'20). What is not in DIR is drawn by seed:
Poisson streams as Gavel's generator has them, SideCar's W1 to W4. `--published`: what others print of these traces: CSV
of trace,policy,mean_jct_s, with v100:p100:k80 and p99_jct_s where it is of mixed clusters.

A row is a comparison; a draw is a stream, or a set with its seed, under all of its policies. What is printed is the
gain over the peer (of several the best one on that draw) in mean JCT: its mean over draws, half of its 95 % interval
and its worst draw. Peers are told the truth. `adaptive` runs by the daemon's rule, SideCar's `elastic` by its paper's
on the paper's sets. Peers that this version does not have are passed over with a word. On standard error: what is
ready. Rows and goals are in `peer_rows`, streams in `peer_streams`.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import setting
from benchmarks.peer_rows import RIGID_PEERS, ROWS, Line, Rows
from benchmarks.peer_streams import Case, run
from hpcdl.policies import all_policies
from hpcdl.sim.parallel import in_processes


def compared(
    rows: Rows, only: Sequence[str], table: Path | None, workers: int | None, say: Callable[[str], None]
) -> tuple[list[Line], list[str]]:
    """The lines of these rows, and a line of words for each case that failed, or row that has none to show."""
    made = {name: ROWS[name](rows) for name in only}
    cases = list(dict.fromkeys(case for wanted, _ in made.values() for case in wanted))
    calls = {_name(case): partial(run, case, table) for case in cases}
    found, problems = in_processes(calls, say, workers) if calls else ({}, [])
    done = {case: found[_name(case)] for case in cases if _name(case) in found}
    lines: list[Line] = []
    for name, (wanted, lines_of) in made.items():
        if not wanted or any(case not in done for case in wanted):
            why = "not all of it ran" if wanted else "no traces for it in the folder, or nothing published of them"
            problems.append(f"{name}: {why}")
        else:
            lines += lines_of(done)
    return lines, problems


def _name(case: Case) -> str:
    stream = case.stream
    where = "on three types" if stream.mixed else ""
    words = [Path(stream.name).stem, stream.jobs, where, f"load x {stream.load:g}", f"seed {stream.seed}"]
    told = [f"without {case.unknown}" if case.unknown else "", case.wrong]
    return " ".join(filter(None, [case.policy, "on", *words, *told]))


def text(line: Line) -> str:
    """A row of the table for people."""
    verdict = "" if line.met is None else "met" if line.met else "MISSED"
    figures = f"{line.mean:10.2f} ± {line.half:8.2f}{line.worst:10.2f}"
    return f"{line.row:24}{line.what:62}{line.draws:5}{figures}  {line.goal:48}{verdict}".rstrip()


def published_rows(paths: Sequence[Path]) -> list[dict[str, str]]:
    """What others print of the traces, a row a figure."""
    found: list[dict[str, str]] = []
    for path in paths:
        with path.open(newline="", encoding="utf-8") as lines:
            found += csv.DictReader(lines)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 1 where a case failed."""
    parser = argparse.ArgumentParser(description="adaptive beside its peers, on streams and sets of jobs.")
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR", help="*_loadX.csv and pollux*.yaml")
    parser.add_argument(
        "--throughputs", type=Path, metavar="FILE", help="Gavel's table, for all but Pollux and W1 to W4"
    )
    parser.add_argument("--published", type=Path, nargs="+", default=[], metavar="FILE", help="what others print, CSV")
    parser.add_argument("--draws", type=int, default=10, help="Poisson streams, and seeds of W1 to W4")
    parser.add_argument("--workers", type=int, help="processes at once; default: one for each processor")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="these rows")
    parser.add_argument("--json", action="store_true", help="one JSON value")
    options = parser.parse_args(argv)
    if not options.traces.is_dir():
        parser.error(f"there is no folder {options.traces}: name that of the traces")
    if options.draws < 1:
        parser.error(f"--draws must be 1 or more, got {options.draws}")
    for path in filter(None, (options.throughputs, *options.published)):
        if not path.is_file():
            parser.error(f"there is no file {path}: correct its name")

    def say(told: str) -> None:
        print(f"peers: {told}", file=sys.stderr, flush=True)

    names = all_policies().names()
    for peer in (*RIGID_PEERS, "pollux"):
        if peer not in names:
            say(f"passed over: this version has no policy {peer}")
    rows = Rows(options.traces, options.draws, published_rows(options.published), names)
    lines, problems = compared(rows, options.only, options.throughputs, options.workers, say)
    value: dict[str, Any] = {"schema": 1, "setting": setting(), "rows": [asdict(line) for line in lines]}
    if options.json:
        print(json.dumps(value | {"problems": problems}, indent=2))
    else:
        print(f"{'ROW':24}{'WHAT':62}{'DRAWS':>5}{'MEAN %':>10} ± {'95 %':>8}{'WORST':>10}  GOAL")
        for line in lines:
            print(text(line))
    for problem in problems:
        say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
