"""An emulated LSF cluster of one test: its folder, its scheduler, its commands; ended with all that it runs."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lsf.emulator.main import COMMANDS
from tests.lsf.emulator.records import Config, Host, Job, Queue, State
from tests.lsf.emulator.store import Store
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(__file__).parent / "emulator" / "lsf-command"
PATIENCE_S = 180.0
OPENLAVA_LACKS = ("bslots", "jsrun", "jobstat")


def queues() -> tuple[Queue, ...]:
    """Queues as sites have them: one that preempts, the default, two that are preempted, and backfill's."""
    return (
        Queue(name="urgent", priority=90, preempts=("killable", "low"), description="Preempts killable and low"),
        Queue(name="normal", priority=30, backfill=True, description="For normal low priority jobs"),
        Queue(name="low", priority=20, action="suspend", description="Suspended by urgent"),
        Queue(name="killable", priority=10, action="requeue", rerunnable=True, description="Preemptable by urgent"),
        Queue(name="background", priority=1, backfill=True, interruptible_s=1.0, limit_s=36000.0,
              requeue_values=(143,), description="Interruptible Backfill queue"),
    )  # fmt: skip


class LsfCluster:
    """One LSFEMU_HOME. `gpus` and `slots` are of each host h1 to h4; `settings`: of Config, over short periods."""

    def __init__(self, home: Path, hosts: int = 4, slots: int = 4, gpus: int = 4, **settings: Any) -> None:
        self.home = home
        self.store = Store(str(home))
        self._scheduler: subprocess.Popen[bytes] | None = None
        short = {"terminate_s": 0.5, "limit_kill_s": 1.0}
        compute = tuple(Host(name=f"h{number}", slots=slots, gpus=gpus) for number in range(1, hosts + 1))
        if name := settings.get("launch_node", ""):
            compute = (Host(name=name, slots=slots, gpus=0, resources=()), *compute)
        self.config = Config(**{"hosts": compute, "queues": queues(), **short, **settings})
        for folder in (home, home / "jobs", home / "mail", home / "bin"):
            folder.mkdir(mode=0o700, exist_ok=True)
        lacks = OPENLAVA_LACKS if self.config.openlava else ()
        for command in COMMANDS:
            if command not in lacks:
                (home / "bin" / command).symlink_to(COMMAND)
        os.mkfifo(home / "wake")
        self.store.write_config(self.config)

    # --- its life

    def start(self) -> "LsfCluster":
        """Returns when the scheduler is ready. It ends by itself when this process does, however that ends."""
        with (self.home / "scheduler.log").open("ab") as log:
            self._scheduler = subprocess.Popen(
                [sys.executable, "-S", "-E", "-m", "tests.lsf.emulator.scheduler", str(self.home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        assert self._scheduler.stdout is not None
        assert self._scheduler.stdout.readline() == b"ready\n", self.log()
        return self

    @property
    def scheduler_pid(self) -> int:
        assert self._scheduler is not None
        return self._scheduler.pid

    def stop(self) -> None:
        """Ends the scheduler and all jobs; an error of the scheduler is one of the test."""
        if self._scheduler is None:
            return
        with self._scheduler as process:
            assert process.stdin is not None
            process.stdin.close()
            code = process.wait(PATIENCE_S)
        self._scheduler = None
        assert code == 0, self.log()

    def log(self) -> str:
        return (self.home / "scheduler.log").read_text()

    # --- what a user does

    def environment(self, **more: str) -> dict[str, str]:
        """Of a user's shell on a login node."""
        dropped = ("LSB_", "LSF_", "SLURM_", "LSFEMU_", "CUDA_VISIBLE_DEVICES")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        # This Python's folder comes second: what `python3` is otherwise may be a slow shell script.
        kept["PATH"] = f"{self.home / 'bin'}:{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}"
        return {**kept, "LSFEMU_HOME": str(self.home), **more}

    def run(self, *argv: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, env=self.environment(**env), timeout=PATIENCE_S
        )

    def submit(self, script: str, *options: str, **env: str) -> str:
        """`bsub < script`; the id."""
        done = self.run("bsub", *options, stdin=script, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("Job <")[2].partition(">")[0]

    def job(self, key: str) -> Job:
        return next(job for job in self.state().jobs if job.key == key)

    def state(self) -> State:
        return self.store.read()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
        """Its value; a failure has the table of jobs, too."""
        return until(condition, what, seconds, story=lambda: self.run("bjobs", "-a").stdout, folders=[self.home])

    def reaches(self, key: str, *statuses: str) -> Job:
        """Waits until a job has one of these statuses."""
        self.until(lambda: self.job(key).status in statuses, f"job {key} to be {' or '.join(statuses)}")
        return self.job(key)

    def output(self, key: str) -> str:
        """What a job without -o has printed so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.home / "mail" / key).read_text()
        return ""

    # --- what an administrator does, and trouble

    def shorten(self, key: str, left_s: float) -> None:
        """`bmod -W`: the run limit of a job that runs comes in so many seconds."""
        with self.store.change() as state:
            job = next(job for job in state.jobs if job.key == key)
            now = time.time()
            job.limit_s = job.run_s(now) + left_s
            job.note(now, f"Parameters of Job are changed: run limit changes to : {int(job.limit_s // 60)} (minutes)")

    def configure(self, **settings: Any) -> None:
        """Other settings from now on."""
        for name, value in settings.items():
            setattr(self.config, name, value)
        self.store.write_config(self.config)
        self.store.wake()

    def close_hosts(self, *names: str) -> None:
        """`badmin hclose`: no more jobs there; () opens all."""
        with self.store.change() as state:
            state.closed = names

    def faults(self, *lines: str) -> None:
        """See emulator/faults.py; () ends them."""
        (self.home / "faults").write_text("".join(line + "\n" for line in lines))


def hosts_of(job: Job) -> Sequence[str]:
    return [name for name, _ in job.hosts]
