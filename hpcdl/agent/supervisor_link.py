"""The agent's end of a side channel: a connection to one supervisor, for the event loop."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.agent import strict_json
from hpcdl.agent.supervisor.packets import LIMIT, VERSION, encode
from hpcdl.agent.supervisor.side_channel import NAME
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause

_PEER = struct.Struct("3i")  # pid, uid, gid


class SupervisorLink:
    """A connected SOCK_SEQPACKET socket. Nothing here waits for the supervisor except `send` and `packets`."""

    def __init__(self, folder: Path) -> None:
        """Connects to the socket in a run folder. Raises OSError where nobody of ours listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)
            where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Names of sockets end at 107 bytes; this one is short whatever the folder is.
                self._socket.connect(f"/proc/self/fd/{where}/{NAME}")
            finally:
                os.close(where)
            raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            _, uid, _ = _PEER.unpack(raw)
            if uid != os.geteuid():
                raise PermissionError(f"the supervisor's socket belongs to uid {uid}")
        except BaseException:
            self._socket.close()
            raise

    async def send(self, kind: str, **body: object) -> None:
        """Sends one packet. Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self._socket, encode(kind, **body))

    async def packets(self) -> AsyncIterator[dict[str, Any]]:
        """Every packet of a version that we speak, until the supervisor is gone. What is malformed is left out."""
        loop = asyncio.get_running_loop()
        resets = 0
        while True:
            try:
                raw = await loop.sock_recv(self._socket, LIMIT + 1)
            except ConnectionResetError:
                resets += 1  # the packets that were sent before come after it
                if resets > 1:
                    return
                continue
            except OSError:
                return
            if not raw:
                return
            try:
                packet = strict_json.loads(raw)
            except ValueError:
                continue
            if isinstance(packet, dict) and packet.get("v") == VERSION and isinstance(packet.get("type"), str):
                yield packet

    def close(self) -> None:
        """Closes this end; the supervisor goes on."""
        self._socket.close()


# From a supervisor's records to events. Pure: what a record says of this node's part, in the daemon's words.

Record = Mapping[str, Any]

OTHER_GPUS_EXIT = 78
"""A trainer that saw other GPUs than it was granted exits with this code (EX_CONFIG)."""

DISK_TROUBLES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
"""Why a checkpoint cannot be written that is no fault of its trainer's."""


@dataclass(frozen=True, slots=True)
class Names:
    """What every report of one part begins with."""

    job: int
    incarnation: int
    membership: int
    node: str

    @property
    def fields(self) -> dict[str, Any]:
        """As keyword arguments of a Report."""
        return {"job": self.job, "incarnation": self.incarnation, "membership": self.membership, "node": self.node}


@dataclass(slots=True)
class LatestProgress:
    """The newest progress of a trainer; `told`: the step that was reported last.

    `metric`: the newest one, which was true at `metric_step`; `metric_told`: the step of the one reported last.
    """

    step: int | None = None
    total: int | None = None
    samples: int | None = None
    told: int | None = None
    metric: float | None = None
    metric_step: int | None = None
    metric_told: int | None = None

    def take(self, packet: Record) -> None:
        """A progress packet. Raises ValueError where it has no step."""
        self.step = _whole(packet, "step")
        self.total = _whole_or_none(packet, "total")
        self.samples = _whole_or_none(packet, "samples")
        metric, metric_step = packet.get("metric"), _whole_or_none(packet, "metric_step")
        if isinstance(metric, int | float) and not isinstance(metric, bool) and metric_step is not None:
            self.metric, self.metric_step = float(metric), metric_step

    def reached(self, step: int) -> None:
        """Another report has told this step: earlier progress is no news any more."""
        self.told = step
        if self.step is not None and self.step <= step:
            self.step = None

    def untold(self, names: Names) -> ev.Progressed | None:
        """The report of what is newer than the last report, if anything is."""
        step = self.told if self.step is None else self.step
        measured = self.metric_step is not None and self.metric_step != self.metric_told
        if step is None or (step == self.told and not measured):
            return None
        self.told, self.metric_told = step, self.metric_step
        metric = self.metric if measured else None
        return ev.Progressed(**names.fields, step=step, total=self.total, samples=self.samples, metric=metric)


def event_of(record: Record, names: Names) -> ev.Report | None:
    """The report that a record other than `exit` amounts to, if any. Raises ValueError where it lacks something."""
    found = _KINDS.get(str(record.get("type")))
    return None if found is None else found(record, names.fields)


def _started(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.Started(**names, pid=_whole(record, "pid"))


def _attached(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.Attached(**names, pid=_whole(record, "pid"), rank=_whole(record, "rank"))


def _gate(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.AtGate(**names, warm_s=_seconds(record, "warm_s"))


def _join(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.AtGate(**names, address=str(record.get("address") or ""))


def _reformed(record: Record, names: dict[str, Any]) -> ev.Report:
    names = names | {"membership": _whole(record, "membership")}
    return ev.Reformed(**names, step=_whole(record, "step"), seconds=_seconds(record, "seconds"))


def _broken(record: Record, names: dict[str, Any]) -> ev.Report:
    names = names | {"membership": _whole(record, "membership")}
    return ev.Broken(**names, step=_whole(record, "step"), why=str(record.get("why") or "")[:1000])


def _opened(record: Record, names: dict[str, Any]) -> ev.Report | None:
    if record.get("ok") is not False:
        return None
    return ev.Noted(**names, text=f"the trainer sees other GPUs than granted: {record.get('gpus')}"[:500])


def _ready(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.TrainerReady(**names, step=_whole(record, "step"))


def _suspending(record: Record, names: dict[str, Any]) -> ev.Report | None:
    if record.get("by") != "absence":
        return None
    return ev.Noted(**names, text="suspending: no agent has been there for too long")


def _saved(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.Saved(
        **names,
        step=_whole(record, "step"),
        path=str(record.get("path") or ""),
        seconds=_seconds(record, "seconds"),
        final=record.get("final") is True,
    )


def _save_failed(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.Noted(**names, text=f"the checkpoint of step {record.get('step')} failed: {record.get('why')}"[:1000])


def _damaged(record: Record, names: dict[str, Any]) -> ev.Report:
    path, why = str(record.get("path") or ""), str(record.get("why") or "")
    return ev.CheckpointDamaged(**names, step=_whole(record, "step"), path=path[:4096], why=why[:1000])


def _note(record: Record, names: dict[str, Any]) -> ev.Report:
    return ev.Noted(**names, text=str(record.get("text") or "")[:1000])


def exit_of(record: Record, names: Names, verdict: tuple[Cause, str] | None, at_gate: bool) -> ev.Exited:
    """The report of an `exit` record. Raises ValueError.

    `verdict`: why the agent itself ended the part, which overrules what the exit looks like. `at_gate`: it had come to
    the gate, which was never opened.
    """
    code, signal = _whole_or_none(record, "code"), record.get("signal")
    hint, detail = None, str(record.get("detail") or "")[:1000]
    if record.get("drill") is True:
        hint, detail = Cause.PREEMPTED, "killed by a preemption test"
    elif record.get("oom") is True:
        hint = Cause.OUT_OF_MEMORY
    elif record.get("stale") is True:
        hint = Cause.INFRASTRUCTURE
    elif record.get("killed") and record.get("ended_by") is None:
        hint, detail = Cause.INFRASTRUCTURE, f"killed from outside, {detail}"
    elif code == OTHER_GPUS_EXIT and record.get("attached") is True:
        hint, detail = Cause.INFRASTRUCTURE, detail or "the trainer saw other GPUs than granted"
    elif code != 0 and (number := _whole_or_none(record, "save_errno")) in DISK_TROUBLES:
        why = f"its checkpoint could not be written: {os.strerror(number or 0)}"
        hint, detail = Cause.INFRASTRUCTURE, why if record.get("save_failed") is True else detail
    elif code == 0 and at_gate and record.get("ended_by") is None:
        hint, detail = Cause.INFRASTRUCTURE, "it left the gate before that was opened"
    if verdict is not None:
        hint, detail = verdict
    return ev.Exited(
        **names.fields,
        code=code,
        signal=None if signal is None else str(signal),
        attached=record.get("attached") is True,
        done=record.get("done") is True,
        ended_by=None if record.get("ended_by") is None else str(record["ended_by"]),
        hint=hint,
        step=_whole_or_none(record, "step"),
        detail=detail,
        kept=str(record.get("kept") or ""),
        older=str(record.get("older") or ""),
        repeats=max(1, _whole_or_none(record, "repeats") or 1),
    )


_KINDS: dict[str, Callable[[Record, dict[str, Any]], ev.Report | None]] = {
    "started": _started,
    "attached": _attached,
    "gate": _gate,
    "join": _join,
    "reformed": _reformed,
    "broken": _broken,
    "opened": _opened,
    "ready": _ready,
    "suspending": _suspending,
    "saved": _saved,
    "save_failed": _save_failed,
    "damaged": _damaged,
    "note": _note,
}


def _whole(record: Record, name: str) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{record.get('type')}.{name} is no whole number: {value!r:.60}")
    return value


def _whole_or_none(record: Record, name: str) -> int | None:
    return None if record.get(name) is None else _whole(record, name)


def _seconds(record: Record, name: str) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
