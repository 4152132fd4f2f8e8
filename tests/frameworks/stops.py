"""For scripts of these tests: training that comes to an agreed step waits there until it is asked to suspend."""

import os
import time
from pathlib import Path

from hpcdl.trainer.session import attach

PATIENCE_S = 300.0


def stop(step: int) -> None:
    """At the end of each step, before it is told. `TEST_STOPS_AT`: a folder, and the steps, as FOLDER:3,12."""
    folder, _, steps = os.environ.get("TEST_STOPS_AT", "").partition(":")
    here = Path(folder, f"at-{step}")
    if str(step) not in steps.split(",") or here.exists():
        return
    here.touch()
    session = attach()
    if not session.inside:
        session._asked = True
        return
    until = time.monotonic() + PATIENCE_S
    while not session.should_suspend():
        assert time.monotonic() < until, f"nobody asked for a suspend at step {step}"
        time.sleep(0.01)
