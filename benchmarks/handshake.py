"""How long the demo's trainer needs to give its GPUs back and to train again, and what a job set loses by that.

    python benchmarks/handshake.py [--suspends 40] [--rounds 4] [--quick]

A real daemon and agent with emulated GPUs, and hpcdl/demo/trainer.py. First users suspend and resume four jobs in turn;
then job sets of the MARBLE paper run as in `hpcdl demo` (`--scale 20`), under `marble-warm` with warm starts: the
start-up that the profiles have (36.8 s, here 1.84) is taken to need no GPU, and is spent at the gate. All times are the
stamps of supervisors (record.jsonl) and of the agent (grants.jsonl), on one clock of this machine:

    suspend_to_free_ms   SIGTSTP was sent .. the agent saw the GPUs free; parts: to the durable checkpoint, to the exit
                         (nothing of the trainer is left), to the GPUs seen free
    cold_start_ms        GPUs granted .. the training loop begins: a new process, Python, NumPy, the checkpoint
    open_to_step_ms      GPUs granted to a trainer at the gate .. the training loop begins, where it was there before
    lost_percent         of the time from a job's first step to its end: SIGTSTP .. the loop begins again

`paper_percent`: what MARBLE prints for its job sets. One JSON value on standard output, progress on standard error.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import parts_of, say, setting
from hpcdl.config.layers import conf_folder
from hpcdl.demo.episode import JobSet, load_set
from tests.system.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent
SCALE = 20.0
SETS = (3, 2)
PAPER = [13.2, 26.6]
LOOK_S = 0.05
AHEAD_S = 0.05
"""A trainer was at the gate before it was opened if it was there at least so long."""

Key = tuple[int, int]
Record = dict[str, Any]


class Records:
    """Keeps every record.jsonl open from its first moments: the agent removes it once all is reported."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: dict[Key, TextIOWrapper] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for path in self._run.glob("*.*/record.jsonl"):
                job, _, incarnation = path.parent.name.partition(".")
                if job.isdigit() and (key := (int(job), int(incarnation))) not in self._files:
                    try:
                        self._files[key] = path.open()
                    except OSError:
                        continue

    def close(self) -> dict[Key, list[Record]]:
        """All that was recorded, by attempt."""
        self._over.set()
        self._thread.join()
        found = {}
        for key, file in self._files.items():
            with file:
                found[key] = [json.loads(line) for line in file.read().splitlines()]
        return found


def first(records: Sequence[Record], kind: str, **wanted: Any) -> float | None:
    """When, in seconds since the boot, the first such record was made."""
    for record in records:
        if record["type"] == kind and all(record.get(key) == value for key, value in wanted.items()):
            return float(record["boot"])
    return None


def grants_of(run: Path) -> dict[Key, dict[str, float]]:
    """When each attempt was granted its GPUs first, and when the last was reported free."""
    found: dict[Key, dict[str, float]] = {}
    for line in (run / "grants.jsonl").read_text().splitlines():
        entry = json.loads(line)
        times = found.setdefault((entry["job"], entry["incarnation"]), {})
        if entry["what"] == "granted":
            times.setdefault("granted", entry["boot"])
        else:
            times["freed"] = entry["boot"]
    return found


class Bench:
    """One daemon, one agent."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cluster = Cluster(home / "home", 6, policy="marble-warm")
        self.client = self.cluster.client
        self.submitted = 0

    def run(self, suspends: int, rounds: int) -> dict[str, Any]:
        self.cluster.start()
        run = self.cluster.home / "run" / "n1"
        records = Records(run)
        try:
            self._suspend_in_turn(suspends)
            sets = [jobs for each in range(rounds) if (jobs := self._play(load_set(SETS[each % len(SETS)])))]
        finally:
            found = records.close()
            grants = grants_of(run)
            self.cluster.stop()
        return {"handshake": handshake(found, grants), "sets": [lost(found, jobs) for jobs in sets]}

    def _submit(self, model: str, steps: int, gpus: tuple[int, int]) -> int:
        profile_file = conf_folder() / "profiles" / "summit-v100.yaml"
        script = [str(ROOT / "hpcdl" / "demo" / "trainer.py"), "--model", model, "--steps", str(steps)]
        warm = ["--import", "numpy", "--warmup", "hpcdl.demo.trainer:warm_up"]
        options = ["--profile-file", str(profile_file), "--scale", f"{SCALE:g}", "--seed", str(self.submitted)]
        self.submitted += 1
        spec = {
            "command": [sys.executable, "-m", "hpcdl.trainer.gate", *warm, *script, *options],
            "gate": True,
            "name": model,
            "cwd": str(self.home),
            "gpus_min": gpus[0],
            "gpus_max": gpus[1],
            "profile": model.lower(),
            "steps": steps,
            "env": [["OPENBLAS_NUM_THREADS", "1"], ["OMP_NUM_THREADS", "1"]],
        }
        answer = self.client.request("POST", "/v1/jobs", {"request_id": f"r{self.submitted}", "jobs": [spec]})
        return int(answer["jobs"][0]["id"])

    def _suspend_in_turn(self, suspends: int) -> None:
        jobs = [self._submit("Inception-v3", 1_000_000, (1, 1)) for _ in range(4)]
        for job in jobs:
            self.cluster.until_step(job, 1)
        for number in range(suspends):
            job = jobs[number % len(jobs)]
            self.cluster.until_state(job, "RUNNING")
            step = self.cluster.job(job)["step"] or 0
            self.cluster.until_step(job, step + 1)
            self.client.request("POST", f"/v1/jobs/{job}/suspend", {})
            self.cluster.until_state(job, "SUSPENDED")
            self.client.request("POST", f"/v1/jobs/{job}/resume", {})
            if (number + 1) % 10 == 0:
                say(f"{number + 1} suspends")
        for job in jobs:
            self.client.request("POST", f"/v1/jobs/{job}/cancel", {})
            self.cluster.until_state(job, "CANCELLED")

    def _play(self, jobset: JobSet) -> list[int]:
        began = time.monotonic()
        jobs = [self._submit(job.model, job.steps, (1, jobset.gpus)) for job in jobset.jobs]
        self.cluster.until_done(*jobs, seconds=600.0)
        say(f"set {jobset.number}: {time.monotonic() - began:.1f} s")
        return jobs


def handshake(found: dict[Key, list[Record]], grants: dict[Key, dict[str, float]]) -> dict[str, Any]:
    """The parts of every suspend and of every start, in milliseconds."""
    parts: dict[str, list[float]] = {
        name: []
        for name in (
            "suspend_to_free_ms",
            "of_it_to_checkpoint_ms",
            "of_it_to_exit_ms",
            "of_it_to_free_ms",
            "cold_start_ms",
            "open_to_step_ms",
            "of_it_to_opened_ms",
        )
    }

    def add(name: str, begin: float | None, end: float | None) -> None:
        if begin is not None and end is not None:
            parts[name].append((end - begin) * 1e3)

    for key, records in found.items():
        times = grants.get(key, {})
        asked = first(records, "signalled", signal="SIGTSTP")
        saved, ended = first(records, "saved", final=True), first(records, "exit")
        ready, gate, opened = first(records, "ready"), first(records, "gate"), first(records, "opened")
        granted = times.get("granted")
        if asked is not None and saved is not None:
            add("suspend_to_free_ms", asked, times.get("freed"))
            add("of_it_to_checkpoint_ms", asked, saved)
            add("of_it_to_exit_ms", saved, ended)
            add("of_it_to_free_ms", ended, times.get("freed"))
        if granted is not None and gate is not None and gate + AHEAD_S < granted:
            add("open_to_step_ms", granted, ready)
            add("of_it_to_opened_ms", granted, opened)
        elif gate is None:
            add("cold_start_ms", granted, ready)
    return {name: parts_of(values) for name, values in parts.items()}


def lost(found: dict[Key, list[Record]], jobs: Sequence[int]) -> dict[str, Any]:
    """What the jobs of one set lost of their training time."""
    trained_s = lost_s = 0.0
    suspends = 0
    for job in jobs:
        lives = [found[key] for key in sorted(found) if key[0] == job]
        lives = [records for records in lives if first(records, "ready") is not None]
        begin, end = first(lives[0], "ready"), first(lives[-1], "exit")
        assert begin is not None
        assert end is not None
        trained_s += end - begin
        for before, after in pairwise(lives):
            asked, again = first(before, "signalled", signal="SIGTSTP"), first(after, "ready")
            assert asked is not None
            assert again is not None
            lost_s += again - asked
            suspends += 1
    return {
        "suspends": suspends,
        "trained_s": round(trained_s, 2),
        "lost_s": round(lost_s, 3),
        "lost_percent": round(100 * lost_s / trained_s, 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Suspends, resumes and warm starts of the demo's trainer.")
    parser.add_argument("--suspends", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4, help="job sets that are run, one after another")
    parser.add_argument("--quick", action="store_true", help="12 suspends, one job set")
    options = parser.parse_args(argv)
    suspends, rounds = (12, 1) if options.quick else (options.suspends, options.rounds)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    home = Path(tempfile.mkdtemp(prefix="hpcdl-handshake-"))
    try:
        figures = {"schema": 1, "setting": setting(), "scale": SCALE, "paper_percent": PAPER}
        print(json.dumps(figures | Bench(home).run(suspends, rounds), indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
