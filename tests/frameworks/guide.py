"""Runs a script of the trainer guide: `python guide.py NAME OUT`. OUT gets the sha256 of the arrays that it wrote into
final.npz, or its name where it writes none, once it has ended."""

import hashlib
import os
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from hpcdl.trainer import session
from tests.frameworks.stops import PATIENCE_S, stop

name, out = sys.argv[1], Path(sys.argv[2])
guide = (Path(__file__).parents[2] / "docs" / "trainer-guide.md").read_text()
(script,) = re.findall(rf"```python\n(# {re.escape(name)}\n.*?)```", guide, re.DOTALL)
here = out.with_suffix(".guide")
here.mkdir(exist_ok=True)
new = here / f"{name}.{os.getpid()}"
new.write_text(script)
new.replace(here / name)  # of several processes none may run what another is writing
progress = session.Session.progress


def at(self: session.Session, step: int, *rest: Any, **more: Any) -> None:
    stop(step)
    progress(self, step, *rest, **more)


session.Session.progress = at  # type: ignore[method-assign]
sleep = time.sleep
naps = 0


def nap(seconds: float) -> None:
    """A script that knows nothing of hpcdl sleeps once a step: it waits there for the signal that suspends it."""
    global naps
    naps += 1
    folder, _, steps = os.environ["TEST_STOPS_AT"].partition(":")
    mark = Path(folder, f"at-{naps}")
    sleep(seconds)
    if name == "submitit_train.py" and str(naps) in steps.split(",") and not mark.exists():
        mark.touch()
        sleep(PATIENCE_S)


time.sleep = nap  # type: ignore[assignment]
sys.argv = [name]
os.chdir(here)
runpy.run_path(name, run_name="__main__")
answer = name
if os.path.exists("final.npz"):
    import numpy as np

    with np.load("final.npz") as arrays:
        answer = hashlib.sha256(b"".join(arrays[each].tobytes() for each in arrays.files)).hexdigest()
out.write_text(answer)
