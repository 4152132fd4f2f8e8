"""How often a long job that is slow to start is preempted beside a stream of short ones, and how much of it trains.

    python benchmarks/thrash.py [--policy adaptive] [--start 40] [--every 20] [--seconds 600] [--json]

A real daemon and agent with emulated GPUs, and real processes that use hpcdl.trainer; every job comes by `hpcdl
submit`. The long job (`--gpus 1:4`) needs `--start` seconds before its first step, as heavy imports do, each time that
it is started, and does `--work` seconds of work on one GPU; on n GPUs it is n^SCALES times as fast, of which hpcdl
knows nothing (by default it is a script of one process, which no GPU more makes faster). As soon as it has GPUs, a job
of one GPU comes every `--every` seconds, with a start of 2 s and 10 s of work. After `--seconds` no more come, and what
the events of the ledger say is counted:

    preemptions           requests to suspend or end the long job, whatever for: none comes from its user
    training_share        seconds in which the long job trained, of those in which it held a GPU
    short_jobs_mean_jct_s from submit to end, as the daemon recorded them

At most 1 preemption, a share of 0.85 at least and less than 40 s are to be reached. `incarnations`: of the long job,
when each was started, on how many GPUs, when it trained and when it was over, in seconds since its submit. One JSON
value on standard output, progress on standard error; about eleven minutes.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import say, setting
from tests.system.cluster import Cluster

SHORT_START_S, SHORT_WORK_S = 2.0, 10.0
STEP_S = 0.1
PATIENCE_S = 300.0
OVER = ("DONE", "FAILED", "CANCELLED")

TRAINER = """
import os, sys, time
import hpcdl.trainer as hpcdl

start_s, work_s, scales, step_s = map(float, sys.argv[1:])
hpcdl.attach()
time.sleep(start_s)  # what heavy imports and a compiler would do
gpus = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))

def save(folder):
    (folder / "state").write_text("x")

def load(folder):
    (folder / "state").read_text()

for step in hpcdl.steps(round(work_s / step_s), save=save, load=load):
    time.sleep(step_s / gpus**scales)
"""


class Bench:
    """One daemon, the long job and the short ones."""

    def __init__(self, base: Path, args: argparse.Namespace) -> None:
        self.args = args
        self.script = base / "train.py"
        self.script.write_text(TRAINER)
        self.cluster = Cluster(base / "home", args.gpus, policy=args.policy, objective=args.objective)

    def run(self) -> dict[str, Any]:
        args, cluster = self.args, self.cluster
        cluster.start()
        try:
            long = self._submit("long", f"1:{args.gpus}", args.start, args.work, args.scales)
            cluster.until(lambda: cluster.job(long)["state"] != "QUEUED")
            began = time.monotonic()
            short: list[int] = []
            while (left := began + args.seconds - time.monotonic()) > 0:
                due = began + args.first + len(short) * args.every if args.every > 0 else began + args.seconds
                if due <= time.monotonic():
                    short.append(self._submit("short", "1", SHORT_START_S, SHORT_WORK_S, 0.0))
                    if len(short) % 3 == 0:
                        say(self._standing(time.monotonic() - began, long, short))
                else:
                    time.sleep(min(left, due - time.monotonic()))
            over_at = time.time()
            found = self._long(long, over_at)
            cluster.until(lambda: all(cluster.job(each)["state"] in OVER for each in short), seconds=PATIENCE_S)
            rows = [cluster.job(each) for each in short]
            jcts = [row["finished_at"] - row["submitted_at"] for row in rows]
            found["short_jobs_mean_jct_s"] = round(sum(jcts) / len(jcts), 2) if jcts else None
            found["short_jobs_jct_s"] = [round(each, 1) for each in jcts]
            found["failed"] = sum(row["state"] != "DONE" for row in rows)
            if cluster.job(long)["state"] not in OVER:
                cluster.cli("cancel", str(long))
                cluster.until_state(long, *OVER, seconds=PATIENCE_S)
            return found
        finally:
            cluster.stop()

    def _submit(self, name: str, gpus: str, start_s: float, work_s: float, scales: float) -> int:
        numbers = [str(each) for each in (start_s, work_s, scales, STEP_S)]
        options = ["--name", name, "--model", name, "--gpus", gpus]
        answer = self.cluster.cli("submit", "--json", *options, "--", sys.executable, str(self.script), *numbers)
        return int(answer["jobs"][0]["id"])

    def _standing(self, seconds: float, long: int, short: list[int]) -> str:
        row = self.cluster.job(long)
        waits = sum(self.cluster.job(each)["state"] == "QUEUED" for each in short[-20:])
        return f"{seconds:.0f} s: long job {row['state']} at step {row['step']}, {waits} short ones wait"

    def _long(self, job: int, over_at: float) -> dict[str, Any]:
        """What the ledger says of the long job, up to that time."""
        events = [event for event in self.cluster.events(job) if event["at"] <= over_at]
        began = events[0]["at"]
        rows: dict[int, dict[str, Any]] = {}
        preemptions = 0
        for event in events:
            body, kind, at = event["body"], event["kind"], event["at"]
            row = rows.setdefault(body.get("incarnation", 0), {})
            if kind in ("StartRequested", "OpenRequested") and body["placement"] is not None:
                row["held_at"] = at
                row["gpus"] = sum(len(share["gpus"]) for share in body["placement"]["shares"])
            elif kind in ("TrainerReady", "Reformed"):
                row.setdefault("trained_at", at)
            elif kind in ("SuspendRequested", "EndRequested") and "held_at" in row:
                preemptions += 1
                row.setdefault("until", at)
            elif kind in ("Exited", "IncarnationEnded"):
                row.setdefault("until", at)
                row["over_at"] = at
        rows = {number: row for number, row in rows.items() if "held_at" in row}
        held_s = sum(row.get("over_at", over_at) - row["held_at"] for row in rows.values())
        trains = [row for row in rows.values() if "trained_at" in row]
        trained_s = sum(max(0.0, row.get("until", over_at) - row["trained_at"]) for row in trains)
        listed = [
            {key: value if key == "gpus" else round(value - began, 1) for key, value in row.items()}
            for row in rows.values()
        ]
        return {
            "preemptions": preemptions,
            "training_share": round(trained_s / held_s, 4) if held_s else 0.0,
            "held_s": round(held_s, 1),
            "trained_s": round(trained_s, 1),
            "steps": self.cluster.job(job)["step"],
            "incarnations": listed,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument("--objective", default="jct")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--start", type=float, default=40.0, help="seconds that the long job needs to start")
    parser.add_argument("--work", type=float, default=600.0, help="seconds of work of the long job on one GPU")
    parser.add_argument("--scales", type=float, default=0.0, help="on n GPUs it is n^SCALES times as fast")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two short jobs; 0: there are none")
    parser.add_argument("--first", type=float, default=0.0, help="seconds until the first short job")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", action="store_true", help="has no effect: the output always is JSON")
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="hpcdl-thrash-"))
    try:
        found = Bench(base, args).run()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    given = {key: value for key, value in vars(args).items() if key != "json"}
    print(json.dumps({"setting": setting(), **given, **found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
