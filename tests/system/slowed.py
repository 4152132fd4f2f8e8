"""A foreground that a background beside it slows down, by as much as that says that it has used of the GPU.

    python slowed.py FILE

Which of the two it is follows from HPCDL_SHARE. FILE, which both map, has the number of the background's steps: each
holds the foreground up by three of its own steps, whatever the machine does else.
"""

import mmap
import os
import sys
import time

import hpcdl.trainer as hpcdl
from hpcdl.trainer.emulated import hold

STEP_S, HELD_UP_S, BACKGROUND_S = 0.02, 0.06, 0.005


def main() -> None:
    hpcdl.attach()
    hold(os.environ["HPCDL_EMULATED"], os.environ["HPCDL_GPUS"].split(","), util=50, memory_mib=1000)
    with open(sys.argv[1], "r+b") as file:
        steps = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    seen = steps[0]
    for _ in hpcdl.steps(10**9, save=lambda folder: None, load=lambda folder: None):
        if os.environ["HPCDL_SHARE"] == "background":
            time.sleep(BACKGROUND_S)
            steps[0] += 1
        else:
            time.sleep(STEP_S + (HELD_UP_S if steps[0] > seen else 0.0))
            seen = steps[0]


if __name__ == "__main__":
    main()
