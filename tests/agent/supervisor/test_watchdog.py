"""How long nothing of a trainer has moved: steps, output, CPU time."""

import os
import subprocess
import sys
from pathlib import Path

from hpcdl.agent.supervisor.processes import cpu_s
from hpcdl.agent.supervisor.watchdog import Watchdog


def test_steps_count_once_they_are_shown() -> None:
    still = Watchdog("", 0.0)
    assert still.measured(5.0) == (None, 5.0, 5.0)
    still.began(6.0)
    still.stepped(None, 7.0)
    assert still.measured(8.0) == (None, 2.0, 2.0)
    still.stepped(3, 10.0)
    assert still.measured(11.0) == (1.0, None, 5.0)
    still.stepped(3, 12.0)
    assert still.measured(13.0)[0] == 3.0, "the same step is no progress"
    still.stepped(4, 14.0)
    still.moved(15.0)
    assert still.measured(16.0)[0] == 1.0
    still.stepped(2, 20.0)
    assert still.measured(20.0)[0] == 0.0, "it resumed from a checkpoint"


def test_time_in_which_nobody_looked_is_nobody_s_stall() -> None:
    still = Watchdog("", 0.0)
    still.stepped(3, 0.0)
    still.stood(3600.0)
    assert still.measured(3601.0) == (1.0, None, 1.0)


def test_output_is_a_sign_of_life(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    still = Watchdog(str(log), 0.0)
    nobody = os.getpid()  # of whom no child does anything
    still.look(nobody, 1.0)
    still.look(nobody, 10.0)
    assert still.measured(20.0)[1] == 19.0
    log.write_text("x")
    still.look(nobody, 30.0)
    assert still.measured(31.0)[1] == 1.0
    still.look(0, 50.0)
    assert still.measured(50.0)[1] == 20.0, "without a supervisor nothing is known"


def test_cpu_time_is_a_sign_of_life() -> None:
    text = "import os\nwhile sum(os.times()[:2]) < 0.5: pass\nprint(1, flush=True)\ninput()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {text!r}])"
    still = Watchdog("", 0.0)
    still.look(os.getpid(), 1.0)
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_s(os.getpid()) >= 0.5, "of what is below a child, too"
        still.look(os.getpid(), 2.0)
        assert still.measured(2.0)[1] == 0.0
        still.look(os.getpid(), 1e6)
        assert still.measured(1e6)[1] == 1e6 - 2.0, "next to nothing in all that time"
        process.communicate(b"\n")
