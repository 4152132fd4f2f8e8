"""A trainer whose "weights" are a chain of hashes: a lost or repeated step changes the end, wherever it resumes.

    python trainer.py STEPS [--step-s 0.01] [--save-every 20] [--start-s 0] [--save-s 0] [--fail-at N] [--record DIR]
        [--pause PATH]

It holds its emulated GPUs as a real one holds GPU memory: a second process on one of them ends with code 86.
With --record it keeps one file a process there: when it had its GPUs, and how far it came, by CLOCK_MONOTONIC.
At step 30 it stands still, and says so, as long as there is a file at --pause, unless it is to suspend.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import hpcdl.trainer as hpcdl
from hpcdl.trainer.emulated import GpuBusy, hold
from hpcdl.trainer.session import PROGRESS_INTERVAL_S

GPU_BUSY_EXIT = 86
STAND_AT = 30


def chain(step: int, weights: str) -> str:
    return hashlib.sha256(f"{weights}:{step}".encode()).hexdigest()


def final(steps: int) -> str:
    """What the weights must be in the end."""
    weights = "seed"
    for step in range(steps):
        weights = chain(step, weights)
    return weights


class Record:
    """What a process did, in one file that each step writes over: it is right whenever the process is killed."""

    def __init__(self, folder: Path | None) -> None:
        self._file = -1
        if folder is None:
            return
        job, incarnation, rank = (int(os.environ[f"HPCDL_{name}"]) for name in ("JOB", "INCARNATION", "NODE_RANK"))
        gpus = os.environ["HPCDL_GPUS"].split(",")
        self._known = {"job": job, "incarnation": incarnation, "rank": rank, "gpus": gpus, "from": time.monotonic()}
        name = f"{job}.{incarnation}.{rank}.{os.getpid()}.{time.monotonic_ns()}"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.write(None, None)

    def write(self, resumed: int | None, step: int | None, busy: str = "") -> None:
        """How far it is now."""
        if self._file >= 0:
            body = {**self._known, "to": time.monotonic(), "resumed": resumed, "step": step, "busy": busy}
            os.pwrite(self._file, json.dumps(body).ljust(700).encode(), 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--save-s", type=float, default=0.0)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--fail-code", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--pause", type=Path)
    options = parser.parse_args()

    session = hpcdl.attach()
    try:
        hold(os.environ["HPCDL_EMULATED"], os.environ["HPCDL_GPUS"].split(","), util=50, memory_mib=1000)
    except GpuBusy as busy:
        print(f"GPU HELD TWICE: {busy}", flush=True)
        Record(options.record).write(None, None, str(busy))
        sys.exit(GPU_BUSY_EXIT)
    record = Record(options.record)
    time.sleep(options.start_s)
    step, weights = 0, "seed"
    found = hpcdl.resume()
    if found is not None:
        state = json.loads((found.path / "state.json").read_text())
        step, weights = state["step"], state["weights"]
        assert step == found.step
    if session.rank == 0:  # another, which starts later, may find what this one has saved meanwhile
        print(f"resumed at {step} on {os.environ['HPCDL_GPU_COUNT']} GPUs", flush=True)
    resumed = step
    record.write(resumed, step)
    hpcdl.ready(step)

    def save() -> None:
        with hpcdl.checkpoint(step) as folder:
            (folder / "state.json").write_text(json.dumps({"step": step, "weights": weights}))
            time.sleep(options.save_s)

    while step < options.steps:
        if step == options.fail_at:
            print("failing as told", flush=True)
            sys.exit(options.fail_code)
        time.sleep(options.step_s)
        stood = False
        while step >= STAND_AT and options.pause and options.pause.exists() and not hpcdl.should_suspend():
            if not stood:  # reports are far between, and there is none to come
                time.sleep(PROGRESS_INTERVAL_S)
                hpcdl.progress(step, options.steps)
                stood = True
            time.sleep(0.01)
        weights = chain(step, weights)
        step += 1
        record.write(resumed, step)
        hpcdl.progress(step, options.steps)
        if hpcdl.should_suspend():
            save()
            hpcdl.exit_suspended()
        if step % options.save_every == 0:
            save()
    if session.writer:
        folder = Path(os.environ["HPCDL_CHECKPOINT_DIR"])
        temporary = folder / ".final.tmp"
        temporary.write_text(weights)
        temporary.replace(folder / "final")
    hpcdl.done(step)


if __name__ == "__main__":
    main()
