"""A suspendable training loop in plain Python: a straight line is fitted to points by stochastic gradient descent.

    hpcdl submit --steps 2000 --checkpoint-dir ckpt -- python plain_python.py

Without hpcdl it just trains (give `--checkpoint-dir` to have checkpoints there, too).
"""

import argparse
import json
import random
import time
from pathlib import Path

import hpcdl.trainer as hpcdl

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
parser.add_argument("--checkpoint-dir")
parser.add_argument("--out", help="write the result here")
given = parser.parse_args()

hpcdl.attach(checkpoint_dir=given.checkpoint_dir)
model = {"slope": 0.0, "offset": 0.0}
random.seed(1)


def save(folder: Path) -> None:
    (folder / "model.json").write_text(json.dumps([model, random.getstate()]))


def load(folder: Path) -> None:
    weights, (version, internal, gauss) = json.loads((folder / "model.json").read_text())
    model.update(weights)
    random.setstate((version, tuple(internal), gauss))


for _ in hpcdl.steps(given.steps, save=save, load=load, every=given.every):
    x = random.uniform(-1, 1)
    error = model["slope"] * x + model["offset"] - (3 * x + 1 + random.gauss(0, 0.1))
    model["slope"] -= 0.05 * error * x
    model["offset"] -= 0.05 * error
    time.sleep(given.pace)

print(model)
if given.out:
    Path(given.out).write_text(json.dumps(model))
