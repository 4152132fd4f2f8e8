"""One run of a job set: a daemon of its own in a fresh home, the jobs, their end, the check of their weights.

Nothing that it starts outlives it, however it ends.
"""

import os
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcdl.agent.supervisor.processes import Process, commands, described, kill_all, tagged
from hpcdl.client import ApiError, Client, ClientError, DaemonAway
from hpcdl.config.layers import conf_folder
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.daemon import launch
from hpcdl.demo import trainer
from hpcdl.demo.watch import EventWatch
from hpcdl.report import History, RunMeasures, measure, read_history
from hpcdl.report.memory import MemoryUse, memory_use
from hpcdl.sim.papers.marble import gpu_mib, memory_of
from hpcdl.wire.access import AccessError, read_access

FILE = "marble.yaml"


@dataclass(frozen=True, slots=True)
class SetJob:
    """A job of a set; `name` differs also between jobs of the same model."""

    model: str
    steps: int
    name: str


@dataclass(frozen=True, slots=True)
class JobSet:
    """A job set and what the paper prints for it: totals in seconds on its machine, MARBLE's reduction, and by how much
    more of the GPUs' memory it uses, relatively."""

    number: int
    gpus: int
    jobs: tuple[SetJob, ...]
    lsf_s: float
    marble_s: float
    reduction: float
    memory_gain: float


def load_set(number: int) -> JobSet:
    """Set 1, 2 or 3, those on one node for which totals are printed. ValueError for another; OSError passes through."""
    import yaml

    path: Path = conf_folder() / "jobsets" / FILE
    found = yaml.safe_load(path.read_text())["sets"].get(number)
    if found is None or "lsf_s" not in found["printed"]:
        raise ValueError(f"there is no job set {number} to show: choose 1, 2 or 3")
    models = Counter(job["model"] for job in found["jobs"])
    jobs = tuple(
        SetJob(
            job["model"], job["steps"], job["model"] if models[job["model"]] == 1 else f"{job['model']}/{job['steps']}"
        )
        for job in found["jobs"]
    )
    printed = found["printed"]
    told = (printed[name] for name in ("lsf_s", "marble_s", "reduction", "memory_gain"))
    return JobSet(number, found["gpus_per_node"], jobs, *told)


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
    its final weights are those of an uninterrupted training, bit for bit. `memory`: by what the models are assumed to
    take."""

    policy: str
    factor: float
    rows: tuple[Mapping[str, Any], ...]
    history: History
    measures: RunMeasures
    verified: Mapping[int, bool]
    memory: MemoryUse

    @property
    def good(self) -> bool:
        """Every job is DONE and verified."""
        return bool(self.verified) and all(self.verified.values())


def play(home: Path, policy: str, jobset: JobSet, scale: float, profiles: Mapping[str, Profile]) -> Episode:
    """Runs the set in `home`, a folder that is not there yet, shows it, and stops everything.

    Raises DemoError, and the errors of starting (launch.LaunchError, ClientError).
    """
    watch = EventWatch(scale, live=sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
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
            _say(f"{job.spec.name} is {job.outcome}: {job.last.detail}; its output is in {where}")
        found = trainer.trained(home / "checkpoints" / str(job.id), entry.model, entry.steps, SEED + number)
        same = found == trainer.reference(entry.model, entry.steps, SEED + number)
        verified[job.id] = same and job.outcome is JobState.DONE
        if not same and job.outcome is JobState.DONE:
            _say(f"{job.spec.name}: its weights are NOT those of an uninterrupted training")
    return Episode(
        policy, scale, tuple(watch.rows), history, measure(history, profiles), verified, memory_in(history, jobset)
    )


def memory_in(history: History, jobset: JobSet) -> MemoryUse:
    """The GPU memory utilisation of a run of the set, by what its models are assumed to take."""
    takes = {job.id: memory_of(entry.model) for job, entry in zip(history.jobs, jobset.jobs, strict=True)}
    there_s = (history.end - history.begin) * jobset.gpus
    return memory_use(history, lambda job, gpus: takes[job].on(gpus), lambda node: gpu_mib(), there_s)


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


def _follow(client: Client, watch: EventWatch, home: Path, limit_s: float) -> None:
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
        with handled((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN):  # a second Ctrl-C leaves nothing running
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
        wait_s = 0.0  # it did not start, or died, which was said already: what it left has nobody to end it
    except (ClientError, launch.LaunchError) as error:
        _say(f"stopping: {error}")
    left = await_no_processes(home, instance, wait_s)
    if left:
        end_processes(home, instance, _say, _ENDING_S)
    return left


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Any) -> Iterator[None]:
    """These signals are handled so for as long as the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _say(text: str) -> None:
    print(f"hpcdl demo: {text}", flush=True)


# --- processes of the demo's own daemons, by their tag or by the folder that they were started for ------------------

_POLL_S = 0.1


def find_processes(home: Path, instance: str) -> list[Process]:
    """This user's processes that bear the tag of `instance`, or are modules of hpcdl that were given `home`."""
    found = {each.pid: each for each in tagged(instance)} if instance else {}
    for process, words in commands():
        # A pager that the user opened on the daemon's log names the folder, too, but runs no module of ours.
        module = any(flag == "-m" and name.startswith("hpcdl.") for flag, name in pairwise(words))
        if module and any(word == str(home) or word.startswith(f"{home}/") for word in words):
            found.setdefault(process.pid, process)
    return list(found.values())


def await_no_processes(home: Path, instance: str, wait_s: float) -> list[Process]:
    """What is left after at most `wait_s` seconds; empty as soon as nothing is."""
    end = time.monotonic() + wait_s
    while (left := find_processes(home, instance)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return left


def end_processes(home: Path, instance: str, say: Callable[[str], None], wait_s: float) -> None:
    """Kills what is left, and what that may have started meanwhile; says what it finds."""
    for process in find_processes(home, instance):
        say(f"ending process {described(process.pid)}, which was left")
    kill_all(lambda: find_processes(home, instance), wait_s)
