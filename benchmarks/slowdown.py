"""The slowdown loop: on simulated foregrounds, and on two real processes that share one core in the place of a GPU.

    python benchmarks/slowdown.py [--steps 6000] [--seconds 30] [--limit 0.1] [--simulated]

JSON on stdout. `simulated`: the mean slowdown of a foreground's steps, the share of steps over the limit, and the mean
duty of the background, by how that interferes. `live`: milliseconds of a foreground's step alone, beside a background
without a gate and beside one with a gate, by the gate, page and loop that agents and trainers use; the background's
speed in both as a share of its own; and how long after the death of its controller it still made steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcdl.agent.colocation import TICK_S, Foreground
from hpcdl.agent.slowdown_loop import SlowdownLoop
from hpcdl.trainer.session import Session
from hpcdl.trainer.step_gate import BACKGROUND, COUNT, FOREGROUND, SharePage, StepGate

ROOT = Path(__file__).resolve().parents[1]

STEP_S = 0.004
"""Of a step of either process, alone."""

PAIRS: dict[str, tuple[float, float]] = {
    "both always busy": (1.0, 1.0),
    "foreground waits half of its step": (0.5, 1.0),
    "background waits half of its step": (1.0, 0.5),
}
"""By name: the parts of foreground's and background's step that need the core; the rest is a wait, as for a collective
or for data. Of the first pair, whatever one gets the other loses: a slowdown s leaves the background s / (1 + s)."""

Plant = tuple[Callable[[float], float], Callable[[float], float]]

PLANTS: dict[str, Plant] = {
    "linear, 0.08": (lambda duty: 0.08 * duty, lambda at: 1.0),
    "linear, 0.3": (lambda duty: 0.3 * duty, lambda at: 1.0),
    "linear, 1.0": (lambda duty: duty, lambda at: 1.0),
    "cliff at half": (lambda duty: 0.4 if duty >= 0.5 else 0.0, lambda at: 1.0),
    "hopeless": (lambda duty: 0.6 if duty else 0.0, lambda at: 1.0),
    "15 % drift": (lambda duty: 0.3 * duty, lambda at: 1 + 0.15 * at),
    "phase change": (lambda duty: 0.3 * duty, lambda at: 1.0 if at < 0.5 else 1.4),
}
"""By name: the slowdown of a step at a duty, and its length alone, by how far the run is."""


def simulated(plant: Plant, steps: int, limit: float, seed: int) -> dict[str, float]:
    chance, loop = random.Random(seed), SlowdownLoop(limit)
    slowed = alone = duty = 0.0
    over = 0
    for step in range(steps):
        own, slowdown = plant[1](step / steps) * (1 + chance.gauss(0, 0.03)), plant[0](loop.duty)
        alone, slowed, duty = alone + own, slowed + own * (1 + slowdown), duty + loop.duty
        over += slowdown > limit
        loop.observe(own * (1 + slowdown))
    return {"slowdown": round(slowed / alone - 1, 4), "over": round(over / steps, 4), "duty": round(duty / steps, 3)}


def work(seconds: float) -> None:
    """So much CPU time of this process."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def train(folder: Path, role: str, gated: bool, busy: float) -> None:
    """Steps, for ever. `busy`: the part of a step that needs the core."""
    session = Session({}, 0, None)
    gate = StepGate(session, folder, role if gated else FOREGROUND, 1)
    while True:
        work(busy * STEP_S)
        if busy < 1:
            time.sleep((1 - busy) * STEP_S)
        gate.boundary()


@contextmanager
def trainer(folder: Path, role: str, core: int, busy: float, gated: bool = True) -> Iterator[SharePage]:
    folder.mkdir(exist_ok=True)
    argv = [sys.executable, __file__, "--train", str(folder), role, str(int(gated)), str(busy)]
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        os.sched_setaffinity(process.pid, {core})
        yield SharePage(folder)
    finally:
        process.kill()
        process.wait()


def measured(front: SharePage, seconds: float, each: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Mean and median milliseconds of a step within so many seconds; `each`: called every tick."""
    count, began, times = front.words[COUNT], time.monotonic(), []
    ended = 0
    while time.monotonic() - began < seconds:
        time.sleep(TICK_S)
        each()
        count, ends = front.ends(count)
        times += [after - before for before, after in zip([ended, *ends], ends, strict=False) if before]
        ended = ends[-1] if ends else ended
    return statistics.mean(times) / 1e6, statistics.median(times) / 1e6


def live(pair: tuple[float, float], seconds: float, limit: float, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    core = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        with trainer(folder / "back", BACKGROUND, core, pair[1], gated=False) as back:
            time.sleep(1.0)
            before = back.words[COUNT]
            time.sleep(seconds / 4)
            own = (back.words[COUNT] - before) / (seconds / 4)
        front = stack.enter_context(trainer(folder / "front", FOREGROUND, core, pair[0]))
        time.sleep(1.0)
        alone, _ = measured(front, seconds / 2)
        with trainer(folder / "ungated", BACKGROUND, core, pair[1], gated=False) as back:
            time.sleep(0.5)
            ungated, _ = measured(front, seconds / 2)
        back = stack.enter_context(trainer(folder / "gated", BACKGROUND, core, pair[1]))
        known = Foreground(front, SlowdownLoop(limit))

        def tick() -> None:
            now = time.monotonic()
            known.look(None, now, back.waiting)
            back.control(known.duty(now), (1, 1))

        measured(front, seconds / 4, tick)  # it finds its duty
        before, began = back.words[COUNT], time.monotonic()
        gated, _ = measured(front, seconds, tick)
        speed = (back.words[COUNT] - before) / (time.monotonic() - began)
        back.control(1.0, (1, 1))  # the controller's last word
        died = time.monotonic_ns()
        time.sleep(3.0)
        last = back.ends(back.words[COUNT] - 1)[1][-1]
    return {
        "alone_ms": round(alone, 3),
        "ungated_ms": round(ungated, 3),
        "ungated": round(ungated / alone - 1, 4),
        "gated_ms": round(gated, 3),
        "gated": round(gated / alone - 1, 4),
        "background_share": round(speed / own, 4),
        "duty": round(known.loop.level, 3),
        "dead_controller_s": round(max(0, last - died) / 1e9, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--simulated", action="store_true", help="without the two processes")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(Path(options.train[0]), options.train[1], options.train[2] == "1", float(options.train[3]))
    found: dict[str, Any] = {
        "limit": options.limit,
        "steps": options.steps,
        "simulated": {name: simulated(plant, options.steps, options.limit, 1) for name, plant in PLANTS.items()},
    }
    if not options.simulated:
        with tempfile.TemporaryDirectory(prefix="hpcdl-slowdown-") as folder:
            found["live"] = {
                name: live(pair, options.seconds, options.limit, Path(folder) / name) for name, pair in PAIRS.items()
            }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
