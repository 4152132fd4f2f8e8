"""The agent's end of a side channel: a connection to one supervisor, and the reports that its records amount to.

Nothing here changes what is known of a part (part.py), or waits for a trainer. A supervisor may be of an earlier
version, and its file may be damaged: what is not understood is left out, or a ValueError, and its part goes on.
"""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.agent import strict_json
from hpcdl.agent.supervisor.node_faults import MOUNT
from hpcdl.agent.supervisor.packets import LIMIT, VERSION, ProgressPacket, encode
from hpcdl.agent.supervisor.side_channel import NAME
from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import from_json
from hpcdl.core.model.incarnation import Cause

_PEER = struct.Struct("3i")  # pid, uid, gid


class SupervisorLink:
    """A connection to a supervisor: a SOCK_SEQPACKET socket. Nothing here waits for the supervisor except `send` and
    `packets`."""

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


Record = Mapping[str, Any]
"""A line of record.jsonl (docs/protocols.md)."""

Names = dict[str, Any]
"""Job, incarnation, membership and node: the fields with which every report of a part begins."""

OTHER_GPUS_EXIT = 78
"""A trainer that saw other GPUs than it was granted exits with this code (EX_CONFIG)."""

SPOILED = errno.EBADMSG
"""Of a save: somebody has spoiled the claim in the checkpoint folder; see `hpcdl.trainer.checkpoints.check_claim`."""
DISK_TROUBLES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, SPOILED}) | MOUNT
"""Why a checkpoint cannot be written that is no fault of its trainer's."""

TEXT_MOST = 1000
"""Characters of a text in a report."""

_EVENTS: Mapping[str, tuple[type[ev.Report], tuple[str, ...]]] = {
    "started": (ev.Started, ("pid",)),
    "attached": (ev.Attached, ("pid", "rank")),
    "gate": (ev.AtGate, ("warm_s",)),
    "join": (ev.AtGate, ("address",)),
    "reformed": (ev.Reformed, ("membership", "step", "seconds")),
    "broken": (ev.Broken, ("membership", "step", "why")),
    "ready": (ev.TrainerReady, ("step",)),
    "model": (ev.ModelReported, ("layers", "parameters", "activation_bytes")),
    "saved": (ev.Saved, ("step", "path", "seconds", "final")),
    "damaged": (ev.CheckpointDamaged, ("step", "path", "why")),
    "done": (ev.TrainingDone, ("step",)),
    "note": (ev.Noted, ("text",)),
}
"""Records that are reported as they are: as which event, with which of their keys."""


_ADDED = ("attempt",)
"""Keys that the records of earlier supervisors lack."""


@dataclass(slots=True)
class LatestProgress:
    """The newest progress of a trainer; `reported`: the step that was reported last.

    `metric`: the newest one, which was true at `metric_step`; `metric_reported`: the step of the one reported last.
    """

    step: int | None = None
    total: int | None = None
    samples: int | None = None
    reported: int | None = None
    metric: float | None = None
    metric_step: int | None = None
    metric_reported: int | None = None

    def take(self, packet: Record) -> None:
        """A progress packet. Raises ValueError where it has no step."""
        newest = from_json(ProgressPacket, dict(packet))
        self.step, self.total, self.samples = newest.step, newest.total, newest.samples
        if newest.metric is not None and type(packet.get("metric_step")) is int:
            self.metric, self.metric_step = newest.metric, packet["metric_step"]

    def reached(self, step: int) -> None:
        """Another report has this step: earlier progress is no news any more."""
        self.reported = step
        if self.step is not None and self.step <= step:
            self.step = None

    def report(self, names: Names) -> ev.Progressed | None:
        """What is newer than the last report, if anything is; it counts as reported from here on."""
        step = self.reported if self.step is None else self.step
        measured = self.metric_step is not None and self.metric_step != self.metric_reported
        if step is None or (step == self.reported and not measured):
            return None
        self.reported, self.metric_reported = step, self.metric_step
        metric = self.metric if measured else None
        return ev.Progressed(**names, step=step, total=self.total, samples=self.samples, metric=metric)


def event_of(record: Record, names: Names) -> ev.Report | None:
    """The report that a record other than `exit` amounts to, if any. Raises ValueError where it lacks something."""
    match record["type"]:
        case "opened" if record.get("ok") is False:
            return ev.Noted(**names, text=f"the trainer sees other GPUs than granted: {record.get('gpus')}"[:500])
        case "suspending" if record.get("by") == "absence":
            return ev.Noted(**names, text="suspending: no agent has been there for too long")
        case "save_failed":
            text = f"the checkpoint of step {record.get('step')} failed: {record.get('why')}"
            return ev.Noted(**names, text=text[:TEXT_MOST])
        case kind if kind in _EVENTS:
            event, keys = _EVENTS[kind]
            if missing := [key for key in keys if key not in record]:
                raise ValueError(f"{kind} has no {missing[0]}")
            body = {key: record[key] for key in (*keys, *_ADDED) if key in record}
            body |= {key: str(body[key])[:TEXT_MOST] for key in ("why", "text") if key in body}
            return from_json(event, names | body)
    return None


def exit_of(record: Record, names: Names, verdict: tuple[Cause, str] | None, at_gate: bool) -> ev.Exited:
    """The report of an `exit` record. Raises ValueError.

    `verdict`: why the agent itself ended the part, which overrules what the exit looks like. `at_gate`: it had come to
    the gate, which was never opened.
    """
    code, ended_by, save_errno = record.get("code"), record.get("ended_by"), record.get("save_errno")
    hint, detail = None, str(record.get("detail") or "")[:TEXT_MOST]
    node_fault = record.get("node_fault") is True
    if record.get("drill") is True:
        hint, detail = Cause.PREEMPTED, "killed by a preemption test"
    elif record.get("oom") is True:
        hint = Cause.OUT_OF_MEMORY
    elif record.get("missing") is not None or record.get("stale") is True:
        hint = Cause.INFRASTRUCTURE
    elif record.get("still") is True:
        hint = Cause.STALLED
    elif record.get("killed") and ended_by is None:
        hint, detail = Cause.INFRASTRUCTURE, f"killed from outside, {detail}"
    elif code == OTHER_GPUS_EXIT and record.get("attached") is True:
        hint, detail = Cause.INFRASTRUCTURE, detail or "the trainer saw other GPUs than granted"
    elif code != 0 and type(save_errno) is int and save_errno in DISK_TROUBLES:
        trouble = "the claim there cannot be read" if save_errno == SPOILED else os.strerror(save_errno)
        why = f"its checkpoint could not be written: {trouble}"
        hint, detail = Cause.INFRASTRUCTURE, why if record.get("save_failed") is True else detail
        node_fault = node_fault or save_errno in MOUNT
    elif node_fault:
        hint = Cause.INFRASTRUCTURE
    elif code == 0 and at_gate and ended_by is None:
        hint, detail = Cause.INFRASTRUCTURE, "it left the gate before that was opened"
    if verdict is not None:
        hint, detail = verdict
    return from_json(ev.Exited, {**record, **names, "hint": hint, "detail": detail, "node_fault": node_fault})
