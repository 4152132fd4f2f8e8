"""A job of the daemon's as an object, and how it ended as an exception.

Each question makes a connection of its own, so a job may be used from any thread and after a fork.
"""

import asyncio
import json
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpcdl.cli.logs import log_files
from hpcdl.client import FOLLOW_S, Client, DaemonAway, path_with
from hpcdl.python.call import RUNNER
from hpcdl.python.connection import ReadingClient, ThreadClient, warn
from hpcdl.trainer.call import LARGEST
from hpcdl.wire.last_start import start_step
from hpcdl.wire.private_files import NotPrivate, read_private

T_co = TypeVar("T_co", covariant=True)

PIECE_S = 30.0
"""The daemon holds one answer back for at most a minute."""


class JobError(Exception):
    """A job that brought no result. `job` is that one."""

    def __init__(self, job: "Job[Any]", message: str) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobError):
    """The job FAILED. `exit_code`: of its program, None where it has none."""

    def __init__(self, job: "Job[Any]", message: str, exit_code: int | None = None) -> None:
        super().__init__(job, message)
        self.exit_code = exit_code


class FunctionRaised(JobFailed):
    """The job's function raised an exception: its `type` as it is written (`ValueError`), `message` and `traceback`."""

    def __init__(self, job: "Job[Any]", raised: dict[str, str], exit_code: int | None) -> None:
        self.type, self.message, self.traceback = raised["type"], raised["message"], raised["traceback"]
        super().__init__(job, f"job {job.id} raised {self.type}: {self.message}", exit_code)
        self.add_note(f"In the job:\n{self.traceback}")


class JobCancelled(JobError):
    """The job was CANCELLED."""


class ResultError(JobError):
    """The job is DONE, and what its function returned cannot be had."""


class SpooledSubmit:
    """A submit in the spool, repeated to learn the ids of its jobs: by its request id no job is a second one."""

    def __init__(self, home: Path, body: dict[str, Any]) -> None:
        """`body`: of `POST /v1/jobs`."""
        self._home = home
        self._body = body
        self._ids: list[int] = []

    def ids(self) -> list[int]:
        """Of its jobs, in order. Raises DaemonAway while no daemon runs, ApiError where one refuses it."""
        if not self._ids:
            with ThreadClient(self._home, patience_s=FOLLOW_S) as client:
                try:
                    answer = client.request("POST", "/v1/jobs", self._body)
                except DaemonAway:
                    step = start_step(self._home)
                    raise DaemonAway(f"the job is in the spool, and has an id once a daemon runs: {step}") from None
            self._ids = [row["id"] for row in answer["jobs"]]
        return self._ids


@dataclass(frozen=True, slots=True)
class SpooledJob:
    """A job of a spooled submit, by its place in it."""

    submit: SpooledSubmit
    place: int


class Job(Generic[T_co]):
    """A job of the daemon whose folder is `home`. `await job` is its result.

    Of a submit that was spooled the id is known once a daemon runs: before, what asks for it raises DaemonAway.
    """

    def __init__(self, number: int | SpooledJob, home: Path) -> None:
        self._number = number
        self.home = home

    @property
    def id(self) -> int:
        """Its number."""
        return self._number if isinstance(self._number, int) else self._number.submit.ids()[self._number.place]

    def __repr__(self) -> str:
        return f"<hpcdl.Job {self._number if isinstance(self._number, int) else 'in the spool'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (other._number, other.home) == (self._number, self.home)

    def __hash__(self) -> int:
        return hash((self._number, self.home))

    @property
    def info(self) -> dict[str, Any]:
        """All that `hpcdl show --json` has of it, as of now. Raises ClientError, as everything here."""
        with self._client() as client:
            found: dict[str, Any] = client.get(f"/v1/jobs/{self.id}")["job"]
        return found

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.info["name"])

    @property
    def state(self) -> str:
        """`QUEUED`, `RUNNING`, `DONE` and the others of docs/vocabulary.md, as of now."""
        return str(self.info["state"])

    @property
    def metric(self) -> float | None:
        """The number that its script reported last by `hpcdl.progress(metric=)`; None: none yet."""
        found: float | None = self.info.get("metric")
        return found

    @property
    def why(self) -> str:
        """Why it is in its state, in one line."""
        with self._client() as client:
            return str(client.get(f"/v1/jobs/{self.id}/why")["reason"])

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it is finished; its state then. Raises TimeoutError after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        held = False
        with self._client() as client:
            while True:
                left = PIECE_S if end is None else min(PIECE_S, max(0.0, end - time.monotonic()))
                answer = client.get(path_with("/v1/wait", ids=self.id, timeout=round(left, 3)), wait_s=left)
                row = answer["jobs"][0]
                state = str(row["state"])
                if row.get("held_after") and not held:
                    held = True
                    warn(f"job {self.id} is {row['reason']}")
                if answer["done"]:
                    return state
                if client.as_of is not None:
                    step = start_step(client.home)
                    raise DaemonAway(f"job {self.id} is {state}, and goes on once a daemon runs: {step}")
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(f"job {self.id} is {state} after {timeout:g} s")

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for it; what its function returned, None of a command.

        Raises FunctionRaised, JobFailed, JobCancelled, ResultError, TimeoutError.
        """
        self.wait(timeout)
        return self._outcome(self.info)

    def _outcome(self, info: dict[str, Any]) -> T_co:
        """Of a finished job; `info`: as of then."""
        state, kept = info["state"], self._kept(info)
        if state == "CANCELLED":
            raise JobCancelled(self, f"job {self.id} was cancelled")
        if state == "FAILED":
            if "raised" in kept:
                raise FunctionRaised(self, kept["raised"], info["exit_code"])
            why = info["detail"] or f"exit code {info['exit_code']}"
            raise JobFailed(self, f"job {self.id} failed: {why}: its output is in job.logs()", info["exit_code"])
        if "value" not in kept and _call_of(info["spec"]["command"]) is not None:
            raise ResultError(self, f"job {self.id} is done without a result: {kept.get('unkept', 'it left none')}")
        value: T_co = kept.get("value")  # type: ignore[assignment]
        return value

    def _kept(self, info: dict[str, Any]) -> dict[str, Any]:
        """What `hpcdl.trainer.call` kept of the last attempt; {} for nothing."""
        folder = _call_of(info["spec"]["command"])
        if folder is None:
            return {}
        path = folder / f"{self.id}.{info['incarnation']}.json"
        try:
            found = json.loads(read_private(path, 2 * LARGEST))
        except FileNotFoundError:
            return {}
        except (OSError, NotPrivate, ValueError) as error:
            return {"unkept": f"{path} cannot be read: {error}"}
        return found if isinstance(found, dict) else {}

    def logs(self) -> str:
        """What it printed so far, attempt after attempt."""
        texts = [each.path.read_bytes().decode("utf-8", "replace") for each in log_files(self.home, self.id)]
        return "".join(texts)

    def cancel(self) -> None:
        """End it for good. Raises ApiError with `code` "finished" where it is over."""
        self._verb("cancel")

    def suspend(self) -> None:
        """Have it checkpoint, free its GPUs and wait for `resume`."""
        self._verb("suspend")

    def resume(self) -> None:
        """Let it go on."""
        self._verb("resume")

    def _verb(self, verb: str) -> None:
        with self._client() as client:
            client.request("POST", f"/v1/jobs/{self.id}/{verb}", {})

    def __await__(self) -> Generator[Any, None, T_co]:
        from hpcdl.python.executor import follow

        found: Future[T_co] = Future()
        follow(self, found)
        return asyncio.wrap_future(found).__await__()

    def _client(self) -> Client:
        return ReadingClient(self.home, patience_s=FOLLOW_S)


def _call_of(command: Sequence[str]) -> Path | None:
    """The folder of the call that the words run; None: they run something else."""
    words = list(command)
    for place in range(len(words) - 2):
        if tuple(words[place : place + 2]) == RUNNER:
            return Path(words[place + 2])
    return None
