"""One run of a job set: a daemon of its own in a fresh home, the jobs, their end, the check of their weights."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.agent.processes import Process
from hpcdl.client import ApiError, Client, ClientError, DaemonAway
from hpcdl.core.model import JobState
from hpcdl.core.profile import Profile
from hpcdl.daemon import launch
from hpcdl.demo import sweep, trainer
from hpcdl.demo.jobset import JobSet
from hpcdl.demo.watch import Watch
from hpcdl.profiles import conf_folder
from hpcdl.report import History, RunMeasures, measure, read_history
from hpcdl.wire.access import AccessError, read_access

PROFILE_FILE = "summit-v100.yaml"
CONFIG = "monitor_interval_s: 1.0\nnode_name: n1\n"
SEED = 20
_HOLD_S = 1.0  # how long a question for events may be held back
_PATIENCE_S = 5.0  # nobody starts the demo's daemon again
_ENDING_S = 10.0


class DemoError(Exception):
    """The run could not be carried to its end; the message says why and where to look."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What a run came to. `factor`: emulated seconds in one of the events'. `verified`: by job, whether it is DONE and
    its final weights are those of an uninterrupted training, bit for bit."""

    policy: str
    factor: float
    rows: tuple[Mapping[str, Any], ...]
    history: History
    measures: RunMeasures
    verified: Mapping[int, bool]

    @property
    def good(self) -> bool:
        """Every job is DONE and verified."""
        return bool(self.verified) and all(self.verified.values())


def play(home: Path, policy: str, jobset: JobSet, scale: float, profiles: Mapping[str, Profile]) -> Episode:
    """Runs the set in `home`, a folder that is not there yet, shows it, and stops everything.

    Raises DemoError, and the errors of starting (launch.LaunchError, ClientError).
    """
    watch = Watch(scale, live=sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
    with _daemon(home, jobset.gpus), Client(home, patience_s=_PATIENCE_S) as client:
        client.request("PUT", "/v1/config", {"policy": policy})
        _submit(client, home, jobset, scale)
        try:
            _follow(client, watch, home, 120.0 + 4 * jobset.lsf_s / scale)
        finally:
            watch.close()
    history = read_history(watch.rows)
    verified = {}
    for number, (job, entry) in enumerate(zip(watch.world.jobs.values(), jobset.jobs, strict=True)):
        if job.outcome is not JobState.DONE:
            where = home / "logs" / str(job.id)
            _say(f"{job.spec.name} is {job.outcome}: {job.final_detail or job.last_detail}; its output is in {where}")
        found = trainer.trained(home / "checkpoints" / str(job.id), entry.model, entry.steps, SEED + number)
        same = found == trainer.reference(entry.model, entry.steps, SEED + number)
        verified[job.id] = same and job.outcome is JobState.DONE
        if not same and job.outcome is JobState.DONE:
            _say(f"{job.spec.name}: its weights are NOT those of an uninterrupted training")
    return Episode(policy, scale, tuple(watch.rows), history, measure(history, profiles), verified)


def _submit(client: Client, home: Path, jobset: JobSet, scale: float) -> None:
    profile_file = conf_folder() / "profiles" / PROFILE_FILE
    specs = []
    for number, job in enumerate(jobset.jobs):
        command = [sys.executable, "-P", "-m", "hpcdl.demo.trainer", "--model", job.model, "--steps", str(job.steps)]
        command += ["--profile-file", str(profile_file), "--scale", f"{scale:g}", "--seed", str(SEED + number)]
        specs.append(
            {
                "command": command,
                "name": job.name,
                "cwd": str(home),
                "gpus_min": 1,
                "gpus_max": jobset.gpus,
                "profile": job.model.lower(),
                "steps": job.steps,
                "env": [["OPENBLAS_NUM_THREADS", "1"], ["OMP_NUM_THREADS", "1"]],
            }
        )
    client.request("POST", "/v1/jobs", {"request_id": uuid.uuid4().hex, "jobs": specs})


def _follow(client: Client, watch: Watch, home: Path, limit_s: float) -> None:
    """Shows the events until all jobs are finished."""
    end = time.monotonic() + limit_s
    logs = f"see {home / 'daemon.log'} and {home / 'logs'}"
    try:
        for rows in client.follow_events(0, wait_s=lambda: _HOLD_S):
            watch.take(rows)
            if watch.finished:
                return
            if time.monotonic() > end:
                left = ", ".join(watch.world.jobs[number].spec.name for number in watch.world.active)
                raise DemoError(f"not finished after {limit_s:.0f} s: {left}: {logs}")
    except ApiError:
        raise
    except ClientError as error:
        raise DemoError(f"the daemon is gone ({error}): {logs}") from None


@contextmanager
def _daemon(home: Path, gpus: int) -> Iterator[None]:
    """A daemon with its agent for as long as the block; nothing of it is left afterwards, whatever happens."""
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(CONFIG)
    (home / "config.yaml").chmod(0o600)
    instance = ""
    try:
        launch.start(home, emulate_gpus=gpus)
        instance = read_access(home).instance
        yield
    finally:
        with _undisturbed():
            left = _stop(home, instance or _instance(home))
    if left:
        raise DemoError(f"processes {', '.join(str(each.pid) for each in left)} had to be killed: see {home}")


def _instance(home: Path) -> str:
    try:
        return read_access(home).instance
    except AccessError:
        return ""


def _stop(home: Path, instance: str) -> list[Process]:
    """Stops the daemon and sees that no process of it is left; what had to be killed."""
    wait_s = _ENDING_S
    try:
        launch.stop(home, now=True)
    except DaemonAway:
        wait_s = 0.0  # it did not start, or died, which was told already: what it left has nobody to end it
    except (ClientError, launch.LaunchError) as error:
        _say(f"stopping: {error}")
    left = sweep.await_none(home, instance, wait_s)
    if left:
        sweep.end(home, instance, _say, _ENDING_S)
    return left


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of it running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(f"hpcdl demo: {text}", flush=True)
