"""start.json: what a supervisor is to start, written by the agent, read once."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals
from typing import Any

from hpcdl.agent import strict_json
from hpcdl.agent.supervisor.progress_bars import PRESETS as PROGRESS

VERSION = 1
LIMIT = 8 << 20  # bytes
LOG_LIMIT_BYTES = 1 << 30
START_FILE = "start.json"

PRESETS: Mapping[str, signal.Signals | None] = {
    "hpcdl": signal.SIGTSTP,
    "lightning": signal.SIGUSR1,
    "submitit": signal.SIGUSR2,
    "hf": signal.SIGTERM,
    "none": None,
}
TORCHRUN, IN_PROCESS = "torchrun", "in-process"
RESCALES = ("restart", TORCHRUN, IN_PROCESS)
NO_GPUS: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": "", "HPCDL_GPUS": "", "HPCDL_GPU_COUNT": "0"}


class BadStart(ValueError):
    """start.json is not what it should be; the message says where."""


@dataclass(frozen=True, slots=True)
class Start:
    """`env`: the trainer's complete environment without GPUs; `gpu_env`: the rest, None for a warm start. Times in
    seconds; an absence or stopped time of None is unlimited; `linger_s`: for who said that it is done and stands still.
    `rescale`: how its ranks go to another membership. `request`: the number of the request that it is the answer to, 0
    where that is not known. `batch`: in a batch job, whose signals come to every process of it: what to do about a
    SIGTERM is the agent's to say while there is one. `identity`: the job's own, "" where it has none. `continue_from`:
    as in a JobSpec."""

    tag: str
    job: int
    incarnation: int
    membership: int
    node: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    log: str
    gpu_env: Mapping[str, str] | None = None
    gate: bool = False
    grace_s: float = 30.0
    signal: str = "hpcdl"
    progress_regex: str | None = None
    progress: str | None = None
    resumes: str | None = None
    steps: int | None = None
    checkpoint_dir: str | None = None
    agent_absence_s: float | None = 120.0
    stopped_s: float | None = 10.0
    linger_s: float = 1800.0
    cgroup: str | None = None
    log_limit_bytes: int = LOG_LIMIT_BYTES
    rescale: str = RESCALES[0]
    request: int = 0
    batch: bool = False
    identity: str = ""
    continue_from: str = ""

    def __post_init__(self) -> None:
        if not self.tag or "\0" in self.tag:
            raise BadStart(f"tag {self.tag!r} must not be empty")
        if not self.argv:
            raise BadStart("argv is empty: there is no command to start")
        if any("\0" in text for text in (*self.argv, self.cwd, self.log, *self.env, *self.env.values())):
            raise BadStart("argv, cwd, log and env must not hold NUL characters")
        if self.signal not in PRESETS:
            raise BadStart(f"signal {self.signal!r} is none of {', '.join(PRESETS)}")
        if self.progress not in (None, *PROGRESS):
            raise BadStart(f"progress {self.progress!r} is none of {', '.join(PROGRESS)}")
        if self.rescale not in RESCALES:
            raise BadStart(f"rescale {self.rescale!r} is none of {', '.join(RESCALES)}")
        if not self.grace_s >= 0:
            raise BadStart(f"grace_s {self.grace_s} must not be negative")

    @property
    def suspend_signal(self) -> Signals | None:
        """The preset's signal; None where the trainer cannot be asked."""
        return PRESETS[self.signal]

    def environment(self, socket_path: str) -> dict[str, str]:
        """What the trainer's process gets: at a gate, or without a grant, no GPU is visible."""
        gpus = NO_GPUS if self.gate or self.gpu_env is None else self.gpu_env
        return {**self.env, **gpus, "HPCDL_TAG": self.tag, "HPCDL_SOCKET": socket_path}

    def encode(self) -> bytes:
        """The content of start.json."""
        body: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        body |= {"v": VERSION, "env": dict(self.env)}
        body["gpu_env"] = None if self.gpu_env is None else dict(self.gpu_env)
        return json.dumps(body).encode()


def decode(content: bytes) -> Start:
    """The order in a start.json. Raises BadStart; keys that are not known are ignored."""
    try:
        body = strict_json.loads(content)
    except ValueError as error:
        raise BadStart(f"{START_FILE} is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("v") != VERSION:
        raise BadStart(f"{START_FILE} is not of version {VERSION}")
    try:
        return Start(**{name: _KINDS[name](name, body[name]) for name in _KINDS if name in body})
    except TypeError as error:
        raise BadStart(f"{START_FILE}: {error}") from None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadStart(f"{name} must be a text, not {value!r:.80}")
    return value


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadStart(f"{name} must be a whole number from 0 on, not {value!r:.80}")
    return value


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise BadStart(f"{name} must be seconds from 0 on, not {value!r:.80}")
    return float(value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadStart(f"{name} must be a list of texts")
    return tuple(value)


def _variables(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise BadStart(f"{name} must map names to texts")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadStart(f"{name} must be true or false, not {value!r:.80}")
    return value


def _or_none(read: Any) -> Any:
    return lambda name, value: None if value is None else read(name, value)


_KINDS: Mapping[str, Any] = {
    "tag": _text,
    "job": _whole,
    "incarnation": _whole,
    "membership": _whole,
    "node": _text,
    "argv": _texts,
    "cwd": _text,
    "env": _variables,
    "log": _text,
    "gpu_env": _or_none(_variables),
    "gate": _flag,
    "grace_s": _seconds,
    "signal": _text,
    "progress_regex": _or_none(_text),
    "progress": _or_none(_text),
    "resumes": _or_none(_text),
    "steps": _or_none(_whole),
    "checkpoint_dir": _or_none(_text),
    "agent_absence_s": _or_none(_seconds),
    "stopped_s": _or_none(_seconds),
    "linger_s": _seconds,
    "cgroup": _or_none(_text),
    "log_limit_bytes": _whole,
    "rescale": _text,
    "request": _whole,
    "batch": _flag,
    "identity": _text,
    "continue_from": _text,
}
