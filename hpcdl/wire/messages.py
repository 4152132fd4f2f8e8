"""Messages between daemon and agent over the WebSocket: one JSON object a frame, with `v` and `type`.

The agent calls. hello -> welcome -> inventory -> requests; reports carry the number that they have in the agent's
log and are acknowledged by `recorded` once they are in the ledger; a request is acknowledged by `taken` once it is in
the agent's log. Both may be repeated without harm.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from hpcdl.core.model.commands import ExpectedIncarnation, Request
from hpcdl.core.model.events import Event, decode
from hpcdl.core.model.frozen import CodecError, from_json, to_json
from hpcdl.core.model.health import Health
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import GpuInfo

T = TypeVar("T")

VERSION = 1

MAX_MESSAGE = 1 << 20
"""Bytes; a longer frame closes the connection."""

STROKE_S = 0.5
"""Agents send their heartbeats when the daemon's clock is at a multiple of this: what many have to say comes in bursts
then, and finds the daemon awake."""


class BadMessage(ValueError):
    """The frame is not a message of this version; one line says why. It changes nothing."""


_TYPES: dict[str, type[Any]] = {}
_NAMES: dict[type[Any], str] = {}


def _message(name: str) -> Callable[[type[T]], type[T]]:
    """What frames call a message."""

    def named(kind: type[T]) -> type[T]:
        _TYPES[name], _NAMES[kind] = kind, name
        return kind

    return named


@_message("hello")
class HelloMessage(Struct, frozen=True):
    """Agent: who it is. `fence`: the highest it has seen, so that a daemon that was replaced learns it."""

    node: str
    log_id: str
    instance: str
    fence: int


@_message("welcome")
class WelcomeMessage(Struct, frozen=True):
    """Daemon: what it expects on that node. The agent forgets reports up to `reports_seen`. `stroke_in_s`: seconds to
    the next stroke of the daemon's clock (`STROKE_S`)."""

    instance: str
    fence: int
    reports_seen: int
    expected: tuple[ExpectedIncarnation, ...]
    lease_s: float
    interval_s: float
    stroke_in_s: float = 0.0


@_message("inventory")
class InventoryMessage(Struct, frozen=True):
    """Agent: what it has. GPUs that something stale still holds are `dirty`.

    `allocation`: the id of the batch job that it runs in, "" outside of any; `left_s`: how long until that ends, None
    where that is not known (no clocks are compared). `place`: where the node is in the network.
    """

    gpus: tuple[GpuInfo, ...]
    cpus: int
    memory_mib: int
    pid: int
    boot_id: str
    emulated: bool
    allocation: str = ""
    left_s: float | None = None
    place: tuple[str, ...] = ()
    looks: bool = False
    """Whether it understands a LookMessage."""
    address: str = ""
    """Its own IP, from which it called."""


@_message("look")
class LookMessage(Struct, frozen=True):
    """Daemon: a heartbeat is wanted now."""


@_message("leaving")
class LeavingMessage(Struct, frozen=True):
    """Agent: the batch system takes the node back, in `left_s` (None: nobody knows when); everything is to leave it."""

    left_s: float | None
    reason: str


@_message("request")
class RequestMessage(Struct, frozen=True):
    """Daemon: do this. `spec`, `log`, `checkpoint_dir` and the job's `identity` ("": none) come with a start. Refused
    below the highest fence seen. `between_s`: how long its attempts run on average, `save_s`: what its last checkpoint
    took; None: not known. `nonce`: of the start, "" where it has none; `nonces`: of the job's starts that the ledger
    knows. `saved_step`, with a start or an opening: it was saved, and the attempt is not to begin at step 0; None: it
    may."""

    fence: int
    request: Request
    spec: JobSpec | None = None
    log: str = ""
    checkpoint_dir: str = ""
    identity: str = ""
    between_s: float | None = None
    save_s: float | None = None
    nonce: str = ""
    nonces: tuple[str, ...] = ()
    saved_step: int | None = None


@_message("taken")
class TakenMessage(Struct, frozen=True):
    """Agent: request `id` is in its log and will be carried out, whatever happens to the agent."""

    id: int


@_message("report")
class ReportMessage(Struct, frozen=True):
    """Agent: entry `number` of its log: an event by kind and body. `age_s` is in the body where it matters."""

    number: int
    kind: str
    body: dict[str, Any]

    def event(self) -> Event:
        """The event. Raises CodecError for one that this version does not know."""
        return decode(self.kind, self.body)


@_message("recorded")
class RecordedMessage(Struct, frozen=True):
    """Daemon: reports up to `number` are in the ledger."""

    number: int


@_message("forget")
class ForgetMessage(Struct, frozen=True):
    """Daemon: this incarnation has ended and is recorded; its run folder may go."""

    job: int
    incarnation: int


@_message("drill")
class DrillMessage(Struct, frozen=True):
    """Daemon: kill what trains of this incarnation on your node, `after_s` seconds into its next save (`saving`), or at
    once. Not repeated, and forgotten after `within_s` seconds."""

    job: int
    incarnation: int
    id: str
    saving: bool
    after_s: float
    within_s: float


PIDS_MOST = 500
"""Of one trainer in a heartbeat: a frame has its limit."""


class TrainerLine(Struct, frozen=True):
    """A trainer process for `hpcdl daemon status`, and how long nothing of it has moved: see `stalls.Still`. `pids`:
    all processes below its supervisor, the first PIDS_MOST of them."""

    pid: int
    job: int
    incarnation: int
    supervisor: int
    step_s: float | None = None
    idle_s: float | None = None
    started_s: float = 0.0
    pids: tuple[int, ...] = ()
    cpu: float | None = None
    """What its processes used of the processors since the heartbeat before, in % of one; None where not known."""
    resident_mib: int | None = None
    """Memory that its processes hold now."""


class MetricLine(Struct, frozen=True):
    """Samples of one metric of an attempt since the heartbeat before, as `core.model.series.Point` has them, but for
    the first value: seconds ago in place of a time, for no clocks are compared."""

    job: int
    incarnation: int
    name: str
    points: tuple[tuple[float, int, float | None, float | None, float | None, float | None, int, int], ...]


class GpuLine(Struct, frozen=True):
    """One GPU's sample: utilisation in %, memory in MiB, power in W, health; None where the GPU does not report it.
    `shares`: of each of two attempts that share it, where the driver says it, job, attempt and MiB."""

    index: int
    util: int | None
    memory_mib: int | None
    power_w: float | None
    health: Health | None = None
    shares: tuple[tuple[int, int, int], ...] = ()


@_message("heartbeat")
class HeartbeatMessage(Struct, frozen=True):
    """Agent, every interval: samples and the trainers that it sees. Nothing depends on one of them arriving. `damaged`:
    run folders that could not be read, and were kept. `metrics`: what trainers have reported since the last one."""

    gpus: tuple[GpuLine, ...]
    trainers: tuple[TrainerLine, ...]
    damaged: tuple[str, ...] = ()
    metrics: tuple[MetricLine, ...] = ()


SHELL_CHUNK = 32 << 10
"""Bytes in one ShellDataMessage, at most: under 64 KiB as a frame."""

SHELL_WINDOW = 256 << 10
"""Bytes of one stream that may be under way: sent, and not yet said to be taken."""


@_message("shell-open")
class ShellOpenMessage(Struct, frozen=True):
    """Client to daemon to agent: run `argv` beside a trainer; with `rows` and `columns` above 0 on a terminal of its
    own, of the kind `term`. The client leaves `id`, `job` and `incarnation` open, and may name a `node`, or a `rank`
    (-1: none), which the daemon turns into a node."""

    argv: tuple[str, ...]
    id: str = ""
    job: int = 0
    incarnation: int = 0
    node: str = ""
    rows: int = 0
    columns: int = 0
    term: str = ""
    rank: int = -1

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0] or any("\0" in text for text in (*self.argv, self.term)):
            raise ValueError("argv must name a command, without NUL characters")
        if not (0 <= self.rows < 1 << 16 and 0 <= self.columns < 1 << 16):
            raise ValueError(f"a terminal of {self.rows} rows and {self.columns} columns cannot be")


@_message("shell-data")
class ShellDataMessage(Struct, frozen=True):
    """Either end: bytes of a stream (0 input, 1 output, 2 errors), in base64; none: it ends here."""

    id: str
    stream: int
    data: str


@_message("shell-taken")
class ShellTakenMessage(Struct, frozen=True):
    """Either end: so many bytes of a stream were handed on, and as many more may come."""

    id: str
    stream: int
    size: int


@_message("shell-told")
class ShellToldMessage(Struct, frozen=True):
    """Client: a signal for its processes (INT, TERM, QUIT, HUP; "": none); the terminal's new size (0: as before)."""

    id: str
    signal: str = ""
    rows: int = 0
    columns: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.rows < 1 << 16 and 0 <= self.columns < 1 << 16):
            raise ValueError(f"a terminal of {self.rows} rows and {self.columns} columns cannot be")


@_message("shell-end")
class ShellEndMessage(Struct, frozen=True):
    """To the client: it is over, with the command's exit code (128 and a signal's number), or None and why. To the
    agent: end it."""

    id: str
    code: int | None
    why: str = ""


ShellMessage = ShellOpenMessage | ShellDataMessage | ShellTakenMessage | ShellToldMessage | ShellEndMessage


@_message("bye")
class ByeMessage(Struct, frozen=True):
    """Daemon: it stops. `end`: the agent is to end too once it has nothing left to report."""

    end: bool
    why: str


Message = (
    HelloMessage
    | WelcomeMessage
    | InventoryMessage
    | RequestMessage
    | TakenMessage
    | ReportMessage
    | RecordedMessage
    | ForgetMessage
    | HeartbeatMessage
    | LookMessage
    | LeavingMessage
    | DrillMessage
    | ShellMessage
    | ByeMessage
)


def encode_message(message: Message) -> str:
    """The frame's text."""
    return json.dumps({"v": VERSION, "type": _NAMES[type(message)], **to_json(message)}, separators=(",", ":"))


def decode_message(text: str | bytes) -> Message:
    """The message of a frame. Raises BadMessage for anything else: too long, malformed, another version."""
    if len(text) > MAX_MESSAGE:
        raise BadMessage(f"a frame of {len(text)} bytes is over the limit of {MAX_MESSAGE}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage("a frame is not JSON") from error
    if not isinstance(data, dict):
        raise BadMessage("a frame is not a JSON object")
    if data.get("v") != VERSION:
        raise BadMessage(f"version {data.get('v')!r} is spoken there, {VERSION} here: use the same hpcdl on both sides")
    kind = _TYPES.get(str(data.get("type")))
    if kind is None:
        raise BadMessage(f"unknown message type {str(data.get('type'))[:40]!r}")
    try:
        message: Message = from_json(kind, data)
    except CodecError as error:
        raise BadMessage(str(error)[:300]) from error
    return message


async def until_first(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs the parts of a connection side by side until one ends or fails, and cancels the others.

    Raises what that one raised.
    """
    running = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        for part in running:
            part.cancel()
        await asyncio.gather(*running, return_exceptions=True)
