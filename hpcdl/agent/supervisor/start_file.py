"""start.json: what a supervisor is to start. The agent writes it once, before the supervisor begins to read it.

The fields of `Start` are the keys of the file. Files of earlier versions stay readable: a new field has a default. The
side channel's packets are in packets.py; docs/protocols.md describes both.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from hpcdl.agent import strict_json
from hpcdl.agent.supervisor.progress_bars import PRESETS as PROGRESS
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.wire.private_files import read_private

VERSION = 1
LIMIT = 8 << 20  # bytes
LOG_LIMIT_BYTES = 1 << 30
START_FILE = "start.json"

PRESETS: Mapping[str, signal.Signals | None] = {
    "hpcdl": signal.SIGTSTP,
    "lightning": signal.SIGUSR1,
    "submitit": signal.SIGUSR2,
    "hf": signal.SIGTERM,
    "SIGTERM": signal.SIGTERM,
    "SIGUSR1": signal.SIGUSR1,
    "SIGUSR2": signal.SIGUSR2,
    "none": None,
}
SAVED_STEP = "HPCDL_SAVED_STEP"
TORCHRUN, IN_PROCESS = "torchrun", "in-process"
RESCALES = ("restart", TORCHRUN, IN_PROCESS)
NO_GPUS: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "HPCDL_GPUS": "",
    "HPCDL_GPU_COUNT": "0",
}


class BadStart(ValueError):
    """start.json is not what it should be; the message says where."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a supervisor starts, and how it treats it. Times are in seconds; a time of None is unlimited."""

    tag: str  # HPCDL_TAG of every process of the trainer
    job: int
    incarnation: int
    membership: int
    node: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]  # the trainer's complete environment, without GPUs
    log: str
    gpu_env: dict[str, str] | None = None  # the variables that name its GPUs; None: a warm start
    gate: bool = False  # it waits for its GPUs, without seeing any
    grace_s: float = 30.0
    signal: str = "hpcdl"  # one of PRESETS
    progress_regex: str | None = None  # searched in its output
    progress: str | None = None  # the framework whose progress bars say the step
    resumes: str | None = None  # a pattern of its program's own checkpoints
    steps: int | None = None
    checkpoint_dir: str | None = None
    agent_absence_s: float | None = 120.0  # without an agent for so long, it is suspended
    stopped_s: float | None = 10.0  # a process that is stopped for so long is continued
    linger_s: float = 1800.0  # one that said that it is done and stands still for so long is ended
    cgroup: str | None = None  # whose memory.events counts; None: those of its processes
    log_limit_bytes: int = LOG_LIMIT_BYTES
    rescale: str = RESCALES[0]  # how its ranks go to another membership
    request: int = 0  # the daemon's request that this answers, 0 where that is not known
    # In a batch job, whose signals come to every process of it: what a SIGTERM means is for the agent to say, if there
    # is one.
    batch: bool = False
    identity: str = ""  # the job's own, "" where it has none
    continue_from: str = ""  # as in a JobSpec
    local_checkpoint_dir: str | None = None  # on this node: what is saved there is drained to `checkpoint_dir`
    memory_mib: int | None = None  # that its processes may take together; None: no limit
    output: str = ""  # the file that has its output, too; "": none
    error: str = ""  # the same of its stderr alone
    mark: int = 0  # the limit by which its processes are known, whatever they hide (processes.py); 0: none
    apart: bool = False  # stdout and stderr come by a pipe each, and the log knows which is which
    nonce: str = ""  # of this start, "" where it has none
    nonces: tuple[str, ...] = ()  # of the job's starts that its home knows

    def __post_init__(self) -> None:
        if not self.tag or "\0" in self.tag:
            raise BadStart(f"tag {self.tag!r} must not be empty")
        if not self.argv:
            raise BadStart("argv is empty: there is no command to start")
        files = (self.log, self.output, self.error)
        if any("\0" in text for text in (*self.argv, self.cwd, *files, *self.env, *self.env.values())):
            raise BadStart("argv, cwd, log and env must not hold NUL characters")
        if self.signal not in PRESETS:
            raise BadStart(f"signal {self.signal!r} is none of {', '.join(PRESETS)}")
        if self.progress not in (None, *PROGRESS):
            raise BadStart(f"progress {self.progress!r} is none of {', '.join(PROGRESS)}")
        if self.rescale not in RESCALES:
            raise BadStart(f"rescale {self.rescale!r} is none of {', '.join(RESCALES)}")
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not value >= 0:
                raise BadStart(f"{name} {value} must not be negative")

    @property
    def suspend_signal(self) -> Signals | None:
        """The preset's signal; None where the trainer cannot be asked."""
        return PRESETS[self.signal]

    def environment(self, socket_path: str) -> dict[str, str]:
        """What the trainer's process gets: at a gate, or without a grant, no GPU is visible."""
        gpus = NO_GPUS if self.gate or self.gpu_env is None else self.gpu_env
        local = {"HPCDL_LOCAL_CHECKPOINT_DIR": self.local_checkpoint_dir} if self.local_checkpoint_dir else {}
        return {**self.env, **gpus, **local, "HPCDL_TAG": self.tag, "HPCDL_SOCKET": socket_path}

    def encode(self) -> bytes:
        """The content of start.json."""
        return json.dumps({"v": VERSION, **to_json(self)}).encode()


def decode(content: bytes) -> Start:
    """The order in a start.json. Raises BadStart; keys that are not known are ignored."""
    try:
        body = strict_json.loads(content)
    except ValueError as error:
        raise BadStart(f"{START_FILE} is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("v") != VERSION:
        raise BadStart(f"{START_FILE} is not of version {VERSION}")
    try:
        return from_json(Start, body)
    except ValueError as error:
        raise BadStart(f"{START_FILE}: {error}") from None


def read_start(folder: int) -> Start:
    """What is to be started in the run folder of this descriptor. Raises BadStart, NotPrivate and OSError."""
    return decode(read_private(Path(START_FILE), LIMIT, dir_fd=folder))
