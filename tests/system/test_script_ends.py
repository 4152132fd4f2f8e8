"""What follows the last step is a part of the job: scripts that evaluate and export, ended there in many ways."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.extent import ALL
from tests.system.cluster import Cluster

STEPS = 30

TRAINS = """
import atexit, os, pathlib, signal, subprocess, sys, threading, time
import hpcdl.trainer as hpcdl

def say(name):
    with open(name, "a") as file:
        file.write(f"{os.getpid()}\\n")

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def save(folder):
    (folder / "weights").write_text("w")

def train():
    for step in hpcdl.steps(30, save=save, load=lambda folder: None, every=10):
        say("trained")

"""

EVALUATES = """
say("evaluates")
wait_for("go")
pathlib.Path("final.json").write_text("{}")
"""

SAVES_ALL = """
def train():  # as `steps` does, but it never says that it is done
    session = hpcdl.attach()
    found = session.resume()
    session.ready(0 if found is None else found.step)
    for step in range(0 if found is None else found.step, 30):
        session.progress(step + 1, 30)
        say("trained")
    if found is None:
        with session.checkpoint(30) as folder:
            save(folder)

"""


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """It is ended in any case."""
    try:
        yield
    finally:
        process.kill()


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


class Script:
    """A job of a script in a folder of its own, in which it says where it is."""

    def __init__(
        self, cluster: Cluster, folder: Path, code: str | None, *options: str, command: tuple[str, ...] = ()
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        if code is not None:
            (folder / "train.py").write_text(textwrap.dedent(code))
        run = command or (sys.executable, "train.py")
        argv = ("submit", "--json", "--gpus", "1", "--steps", str(STEPS), "--cwd", str(folder), *options, "--", *run)
        self.id = int(cluster.cli(*argv)["jobs"][0]["id"])

    def said(self, name: str) -> list[int]:
        """The processes that said it, one after the other."""
        path = self.folder / name
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until_said(self, name: str, times: int) -> int:
        """Until it was said so often; the last process that did."""
        self.cluster.until(lambda: len(self.said(name)) >= times, what=f"{name} of job {self.id}, {times} times")
        return self.said(name)[-1]

    def go(self) -> None:
        (self.folder / "go").touch()

    @property
    def exported(self) -> bool:
        return (self.folder / "final.json").exists()

    @property
    def row(self) -> dict[str, object]:
        return self.cluster.job(self.id)

    def until_left(self) -> None:
        """Until its supervisor has heard that its script came to its end: it looks at what runs from then on."""
        self.until_said("left", 1)
        time.sleep(1.0)


@pytest.mark.parametrize("says", [True, False])
def test_what_is_killed_in_its_script_s_end_comes_to_it_again(cluster: Cluster, tmp_path: Path, says: bool) -> None:
    script = Script(cluster, tmp_path, TRAINS + ("" if says else SAVES_ALL) + "train()\n" + EVALUATES)
    after = Script(cluster, tmp_path, None, "--after", str(script.id), command=("sh", "-c", "ls final.json > seen"))
    argv = [sys.executable, "-m", "hpcdl", "wait", str(script.id)]
    with subprocess.Popen(argv, env=cluster.environment, stdout=subprocess.DEVNULL) as waits, ended(waits):
        os.kill(script.until_said("evaluates", 1), signal.SIGKILL)
        script.until_said("evaluates", 2)
        row = script.row
        assert (row["state"], row["retries_used"], row["cause"]) == ("RUNNING", 0, "infrastructure")
        assert "at its script's end, which starts over" in str(row["detail"])
        assert "its script's end has run for" in cluster.cli("why", str(script.id))
        assert waits.poll() is None
        assert cluster.job(after.id)["state"] == "QUEUED"
        script.go()
        cluster.until_done(script.id, after.id)
        assert waits.wait(60) == 0
    assert script.exported
    assert len(script.said("trained")) == STEPS, "no step was trained again"
    assert (tmp_path / "seen").read_text() == "final.json\n"


def test_it_is_held_after_three_ends_alike(cluster: Cluster, tmp_path: Path) -> None:
    script = Script(cluster, tmp_path, TRAINS + "train()\n" + EVALUATES)
    for times in (1, 2, 3):
        os.kill(script.until_said("evaluates", times), signal.SIGKILL)
    cluster.until(lambda: script.row["held_after"])
    assert "its script's end was cut off 3 times alike" in str(script.row["held_after"])
    script.go()
    cluster.cli("resume", str(script.id))
    cluster.until_done(script.id)
    assert script.exported
    assert len(script.said("trained")) == STEPS


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", 3), ("raise SystemExit(3)", 3), ("raise ValueError('no room')", 1), ("os._exit(3)", 3)],
)
def test_an_exit_code_of_its_own_after_the_last_step_is_its_error(
    cluster: Cluster, tmp_path: Path, end: str, code: int
) -> None:
    script = Script(cluster, tmp_path, f"{TRAINS}train()\n{end}\n")
    cluster.until_state(script.id, "FAILED")
    assert (script.row["exit_code"], script.row["cause"]) == (code, "user error")


LEFT = "train()\nsay('left')\n"


@pytest.mark.parametrize(
    "teardown",
    [
        "atexit.register(time.sleep, 600)",
        "threading.Thread(target=time.sleep, args=(600,)).start()",
        "atexit.register(time.sleep, 600)\nsys.exit()",
        "sys.exit(atexit.register(time.sleep, 600) and 0)",
    ],
)
def test_a_signal_after_its_script_s_end_is_teardown(cluster: Cluster, tmp_path: Path, teardown: str) -> None:
    script = Script(cluster, tmp_path, f"{TRAINS}{LEFT}{teardown}\n")
    script.until_left()
    os.kill(script.said("left")[0], signal.SIGKILL)
    cluster.until_done(script.id)
    assert script.row["detail"] == "its script had come to its end, ended by SIGKILL"


def test_a_crash_of_the_teardown_is_none_of_its_script(cluster: Cluster, tmp_path: Path) -> None:
    script = Script(cluster, tmp_path, f"{TRAINS}atexit.register(os.abort)\n{LEFT}")
    cluster.until_done(script.id)
    assert script.row["detail"] == "its script had come to its end, ended by SIGABRT"


STARTS = "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'])\n"


def test_a_launcher_s_code_after_its_ranks_scripts_is_teardown(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(f"{STARTS}sys.exit(5)\n")
    launched = (sys.executable, "torchrun", "train.py")
    done = Script(cluster, tmp_path, f"{TRAINS}train()\n", command=launched)
    cluster.until_done(done.id)
    assert "exit code 5" in str(done.row["detail"])
    failed = Script(cluster, tmp_path, f"{TRAINS}train()\nraise SystemExit(4)\n", command=launched)
    cluster.until_state(failed.id, "FAILED")


RUN_SH = "#!/bin/sh\n{python} train.py\n{end}\n"


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", "{python} train.py && {python} export.py"),  # which it becomes
        ("bash", "-c", "{python} train.py && {python} export.py; exit $?"),
        ("timeout", "600", "bash", "-c", "{python} train.py && {python} export.py"),
        ("./run.sh",),
        ("{python}", "both.py"),
    ],
)
def test_what_a_shell_or_another_script_does_next_is_a_part_of_the_job(
    cluster: Cluster, tmp_path: Path, command: tuple[str, ...]
) -> None:
    python = sys.executable
    (tmp_path / "export.py").write_text(f"{TRAINS}{EVALUATES}")
    (tmp_path / "both.py").write_text(f"{TRAINS}{STARTS}{EVALUATES}")
    (tmp_path / "run.sh").write_text(RUN_SH.format(python=python, end=f"exec {python} export.py"))
    (tmp_path / "run.sh").chmod(0o755)
    words = tuple(word.format(python=python) for word in command)
    script = Script(cluster, tmp_path, f"{TRAINS}train()\n", command=words)
    os.kill(script.until_said("evaluates", 1), signal.SIGKILL)
    script.until_said("evaluates", 2)
    script.go()
    cluster.until_done(script.id)
    assert script.exported


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("bash", "-c", "{python} train.py; exit 7"), 7),
        (("timeout", "600", "sh", "-c", "{python} train.py; exit 7"), 7),
        (("./run.sh",), 7),
        (("bash", "-c", "{python} train.py; sh -c 'kill -SEGV $$'; exit $?"), 139),
        (("{python}", "both.py"), 1),
    ],
)
def test_its_code_is_the_job_s_own(cluster: Cluster, tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    python = sys.executable
    (tmp_path / "both.py").write_text(f"{STARTS}raise ValueError('export fails')\n")
    (tmp_path / "run.sh").write_text(RUN_SH.format(python=python, end="[ -f nothing ] || exit 7"))
    (tmp_path / "run.sh").chmod(0o755)
    words = tuple(word.format(python=python) for word in command)
    script = Script(cluster, tmp_path, f"{TRAINS}train()\n", command=words)
    cluster.until_state(script.id, "FAILED")
    assert script.row["exit_code"] == code


def test_a_suspend_in_its_script_s_end_waits_for_it(cluster: Cluster, tmp_path: Path) -> None:
    """Over within the grace period it is DONE; else SUSPENDED, and starts over."""
    script = Script(cluster, tmp_path, TRAINS + "train()\n" + EVALUATES)
    script.until_said("evaluates", 1)
    argv = [sys.executable, "-m", "hpcdl", "suspend", str(script.id)]
    told = subprocess.run(argv, env=cluster.environment, capture_output=True, text=True, check=True)
    assert "its end starts over when it is resumed" in told.stderr
    cluster.until_state(script.id, "SUSPENDING")
    assert "DONE if its script's end is over within the grace period" in cluster.cli("why", str(script.id))
    script.go()
    cluster.until_done(script.id)
    assert script.exported
    again = tmp_path / "again"
    again.mkdir()
    cut = Script(cluster, again, TRAINS + "train()\n" + EVALUATES, "--grace", "2")
    cut.until_said("evaluates", 1)
    cluster.cli("suspend", str(cut.id))
    cluster.until_state(cut.id, "SUSPENDED")
    assert "starts over" in cluster.cli("why", str(cut.id))
    cut.go()
    cluster.cli("resume", str(cut.id))
    cluster.until_done(cut.id)
    assert cut.exported
    assert len(cut.said("trained")) == STEPS


RAISES = "def stop(*given):\n    raise InterruptedError\nsignal.signal(signal.SIGTERM, stop)\n"


@pytest.mark.parametrize("catches", [False, True])
def test_a_handler_that_ends_it_has_not_come_to_the_end(cluster: Cluster, tmp_path: Path, catches: bool) -> None:
    handles, end = "signal.signal(signal.SIGTERM, lambda *given: sys.exit(0))\n", EVALUATES
    if catches:
        handles, end = RAISES, f"try:\n{textwrap.indent(EVALUATES, '    ')}except InterruptedError:\n    pass\n"
    script = Script(cluster, tmp_path, f"{TRAINS}{handles}train()\n{end}", "--grace", "2")
    script.until_said("evaluates", 1)
    cluster.cli("suspend", str(script.id))
    cluster.until_state(script.id, "SUSPENDED", "DONE")
    assert script.row["state"] == "SUSPENDED"
    script.go()
    cluster.cli("resume", str(script.id))
    cluster.until_done(script.id)
    assert script.exported


def test_what_ends_by_itself_while_a_suspend_is_pending_is_done(cluster: Cluster, tmp_path: Path) -> None:
    """It stops early, and comes to no boundary any more at which it could answer."""
    code = "for step in hpcdl.steps(30, save=save, load=lambda folder: None):\n    if step == 5:\n"
    script = Script(cluster, tmp_path, f"{TRAINS}{code}        say('pending')\n        wait_for('go')\n        break\n")
    script.until_said("pending", 1)
    cluster.cli("suspend", str(script.id))
    cluster.until_state(script.id, "SUSPENDING")
    script.go()
    cluster.until(lambda: script.row["state"] in ("DONE", "SUSPENDED"))
    assert script.row["state"] == "DONE"
    assert len(script.said("pending")) == 1


@pytest.mark.parametrize("end", [False, True])
def test_an_error_while_a_suspend_is_pending_is_its_own(cluster: Cluster, tmp_path: Path, end: bool) -> None:
    fails = "say('pending')\nwait_for('go')\nraise ValueError('no room')\n"
    loop = "for step in hpcdl.steps(30, save=save, load=lambda folder: None):\n"
    code = f"train()\n{fails}" if end else loop + textwrap.indent(fails, "    ")
    script = Script(cluster, tmp_path, TRAINS + code)
    script.until_said("pending", 1)
    cluster.cli("suspend", str(script.id))
    cluster.until_state(script.id, "SUSPENDING")
    script.go()
    cluster.until_state(script.id, "FAILED")
    assert (script.row["cause"], script.row["detail"]) == ("user error", "exit code 1: ValueError: no room")


EARLY = """
def train():
    for step in hpcdl.steps(30, save=save, load=lambda folder: None):
        say("trained")
        if step == 5 and not os.path.exists("on"):
            break

"""


def test_a_training_that_stopped_early_trains_no_step_again_but_for_another_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = Script(cluster, tmp_path, TRAINS + EARLY + "train()\n" + EVALUATES)
    os.kill(script.until_said("evaluates", 1), signal.SIGKILL)
    script.until_said("evaluates", 2)
    script.go()
    cluster.until_done(script.id)
    assert script.exported
    assert len(script.said("trained")) == 6
    (tmp_path / "on").touch()
    folder = ("--checkpoint-dir", str(cluster.home / "checkpoints" / str(script.id)))
    more = Script(cluster, tmp_path, None, "--continue-from", str(script.id), *folder)
    cluster.until_done(more.id)
    assert len(more.said("trained")) == STEPS


def test_a_higher_priority_takes_the_gpus_of_an_end_and_it_starts_over(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(policy="adaptive").start()
    script = Script(cluster, tmp_path, TRAINS + "train()\n" + EVALUATES, "--grace", "2")
    script.until_said("evaluates", 1)
    folder = tmp_path / "urgent"
    folder.mkdir()
    urgent = Script(cluster, folder, None, "--priority", "5", "--gpus", "4", command=("sleep", "1"))
    cluster.until_done(urgent.id)
    script.until_said("evaluates", 2)
    assert script.row["suspends"] == 1
    script.go()
    cluster.until_done(script.id)
    assert script.exported
    assert len(script.said("trained")) == STEPS


KILLS, STORIES = (20, 5) if ALL else (6, 1)
EXPORTS = """
say("evaluates")
for part in range(20):
    time.sleep(0.02)
    say("parts")
with open("final.tmp", "w") as file:
    file.write("{}")
os.rename("final.tmp", "final.json")
"""


@pytest.mark.parametrize("seed", range(STORIES))
def test_kills_at_any_instant_of_an_end_lose_nothing_of_it(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """DONE is said only where the export is there, and no step is trained twice."""
    moments, kills, number = random.Random(3 + seed), 0, 0
    while kills < KILLS:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        script = Script(cluster, folder, f"{TRAINS}train()\n{EXPORTS}")
        for times in (1, 2):
            pid = script.until_said("evaluates", times)
            time.sleep(moments.random() * 0.6)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
            if script.exported:
                break
        cluster.until_done(script.id)
        assert script.exported
        assert len(script.said("trained")) == STEPS
