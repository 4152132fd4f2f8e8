"""A trainer for the tests: counts steps slowly, holds its emulated GPUs, and does what the handshake asks.

Arguments: the steps, and the seconds that each takes.
"""

import json
import sys
import time
from pathlib import Path

import hpcdl.trainer as hpcdl


def main() -> None:
    total, pause = int(sys.argv[1]), float(sys.argv[2])
    hpcdl.attach()
    reached = 0

    def save(folder: Path) -> None:
        (folder / "state.json").write_text(json.dumps({"reached": reached}))

    def load(folder: Path) -> None:
        nonlocal reached
        reached = json.loads((folder / "state.json").read_text())["reached"]

    for step in hpcdl.steps(total, save=save, load=load):
        time.sleep(pause)
        reached = step + 1


main()
