"""The agent's write-ahead log: what it reports, which requests it took, the highest fence. It survives kill -9.

One file of JSON lines. The first names the log; a report is sent, and a request acknowledged, only once its line is on
the disk. Lines that are no longer needed go when the file is rewritten. A full disk holds things up and loses nothing.
"""

import asyncio
import errno
import json
import logging
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.agent import strict_json
from hpcdl.agent.supervisor.processes import boot_id
from hpcdl.core.model.events import Event, Exited, GpusFreed, TroubleSeen, encode
from hpcdl.wire.messages import BadMessage, ReportMessage, RequestMessage, decode_message, encode_message
from hpcdl.wire.private_files import NotPrivate, atomic_write, open_private, write_all

log = logging.getLogger("hpcdl.agent")

Key = tuple[int, int]
"""(job, incarnation)"""

RETRY_S = 1.0
SLACK = 256 * 1024
"""Bytes of lines no longer needed before the file is rewritten."""


def boottime() -> float:
    """Seconds since this machine started, suspended time included; never stepped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LoggedReport:
    """A report. `at`: CLOCK_BOOTTIME of what it is about, within boot `boot`."""

    number: int
    kind: str
    body: dict[str, Any]
    at: float
    boot: str


@dataclass(frozen=True, slots=True)
class Marks:
    """How far an incarnation's records have been reported."""

    record: int = 0
    exited: bool = False
    freed: bool = False


class ReportLog:
    """The log in one file. All methods belong to the event loop's thread; `run` is its writer and must be running."""

    def __init__(self, path: Path) -> None:
        """Loads the log, or begins a new one. Raises OSError and NotPrivate where the file cannot be used at all."""
        self.path = path
        self.boot = boot_id()
        self.log_id = ""
        self.last = 0
        self.fence = 0
        self.lease_s: float | None = None
        self.entries: dict[int, LoggedReport] = {}
        self.requests: dict[Key, dict[str, RequestMessage]] = {}
        self.marks: dict[Key, Marks] = {}
        self.durable = 0
        self.fresh = asyncio.Event()
        self._queue: list[tuple[bytes, asyncio.Future[None] | None]] = []
        self._wake = asyncio.Event()
        self._failing_since: float | None = None
        self._rewrite = False
        self._size = self._live = 0
        self._load()
        self._fd = open_private(self.path, os.O_RDWR | os.O_APPEND)

    # --- reading what is there -------------------------------------------------------------------------------------

    def _load(self) -> None:
        try:
            fd = open_private(self.path)
        except FileNotFoundError:
            self._begin()
            return
        with os.fdopen(fd, "rb") as file:
            lines = file.read().split(b"\n")
        torn = lines.pop()  # what follows the last line's end: empty, or torn by a crash
        try:
            self.log_id = str(strict_json.loads(lines[0])["log_id"])
        except (ValueError, KeyError, TypeError, IndexError):
            log.warning("%s is damaged at its start: it is kept as .damaged, and a new log begins", self.path)
            os.replace(self.path, self.path.with_name(f"{self.path.name}.damaged"))
            self._begin()
            return
        for line in lines[1:]:
            try:
                self._replay(strict_json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, BadMessage) as error:
                log.warning("a line of %s is damaged and was left out: %s", self.path, error)
        self.durable = self.last
        if torn:
            os.truncate(self.path, sum(len(line) + 1 for line in lines))
        self._size = self._live = sum(len(line) + 1 for line in lines)

    def _begin(self) -> None:
        self.log_id = uuid.uuid4().hex
        content = self._content()
        atomic_write(self.path, content)
        self._size = self._live = len(content)

    def _replay(self, line: dict[str, Any]) -> None:
        if "n" in line:
            entry = LoggedReport(
                int(line["n"]), str(line["kind"]), dict(line["body"]), float(line["at"]), str(line["boot"])
            )
            self.entries[entry.number] = entry
            self.last = max(self.last, entry.number)
            if "of" in line:
                self._note(_key(line["of"]), int(line["rec"]), entry.kind)
        elif "request" in line:
            message = decode_message(line["request"])
            if isinstance(message, RequestMessage):
                self._keep(message)
        elif "mark" in line:
            marks = Marks(int(line["rec"]), bool(line["exited"]), bool(line["freed"]))
            self.marks[_key(line["mark"])] = marks
        elif "forget" in line:
            self._drop(_key(line["forget"]))
        else:
            self.last = max(self.last, int(line.get("last", 0)))
            self.fence = max(self.fence, int(line.get("fence", 0)))
            self.lease_s = float(line["lease_s"]) if line.get("lease_s") is not None else self.lease_s

    def _note(self, key: Key, record: int, kind: str) -> None:
        old = self.marks.get(key, Marks())
        self.marks[key] = Marks(
            max(old.record, record), old.exited or kind == Exited.__name__, old.freed or kind == GpusFreed.__name__
        )

    def _keep(self, message: RequestMessage) -> None:
        request = message.request  # in the place of an earlier one of its kind
        self.requests.setdefault((request.job, request.incarnation), {})[request.kind] = message

    def _drop(self, key: Key) -> None:
        self.requests.pop(key, None)
        self.marks.pop(key, None)

    # --- adding ----------------------------------------------------------------------------------------------------

    def report(self, event: Event, key: Key | None = None, record: int = 0, at: float | None = None) -> int:
        """Adds a report; it is sent once it is durable. `record`: the supervisor's record that it is of, if any.

        `at`: CLOCK_BOOTTIME of what it is about, now if None, negative if it cannot be known.
        """
        self.last += 1
        boot = self.boot if at is None or at >= 0 else ""
        entry = LoggedReport(self.last, event.kind, encode(event), boottime() if at is None else at, boot)
        self.entries[entry.number] = entry
        line = _line_of(entry)
        if key is not None:
            self._note(key, record, entry.kind)
            line |= {"of": list(key), "rec": record}
        self._add(line)
        return entry.number

    def passed(self, key: Key, record: int) -> None:
        """A record was handled that nothing is reported of. Not made durable: to handle it again does no harm."""
        self._note(key, record, "")

    async def take(self, message: RequestMessage) -> None:
        """Keeps a request; returns once it is on the disk. The same request again changes nothing.

        Of rescales the newest membership is kept. Another start, when nothing is left of what the one before began, is
        that of a node that left the incarnation, and joins it again: nothing of before counts any more.
        """
        request = message.request
        key = (request.job, request.incarnation)
        known = self.requests.get(key, {}).get(request.kind)
        if request.kind == "start" and self.unreported(key).freed and (known is None or known.request.id != request.id):
            self.forget(key)
            known = None
        elif known is not None and request.kind == "rescale" and request.membership > known.request.membership:
            known = None
        if known is None:
            self._keep(message)
            await self._added({"request": encode_message(message)})
        else:
            await self._added({})  # whatever came before it is on the disk then, the request too

    async def see(self, fence: int, lease_s: float) -> None:
        """Keeps the highest fence and the lease; returns once they are on the disk."""
        if fence > self.fence or lease_s != self.lease_s:
            self.fence, self.lease_s = max(self.fence, fence), lease_s
            await self._added({"fence": self.fence, "lease_s": lease_s})

    def forget(self, key: Key) -> None:
        """The incarnation is over and recorded: its requests and marks may go."""
        if key in self.requests or key in self.marks:
            self._drop(key)
            self._add({"forget": list(key)})

    def recorded(self, number: int) -> None:
        """The daemon has reports up to `number`."""
        for known in [n for n in self.entries if n <= number]:
            self._live -= len(_packed(_line_of(self.entries.pop(known))))
        # A daemon that has seen more than we know would drop what we number so again.
        self.last = max(self.last, number)
        self.durable = max(self.durable, number)
        self._wake.set()

    def pending(self, after: int) -> list[ReportMessage]:
        """Durable reports with a number above `after`, oldest first, each with its age as it is now."""
        now = boottime()
        found = []
        for entry in self.entries.values():
            if after < entry.number <= self.durable:
                body = entry.body
                if "age_s" in body:
                    body = body | {"age_s": max(0.0, now - entry.at) if entry.boot == self.boot else 0.0}
                found.append(ReportMessage(entry.number, entry.kind, body))
        return found

    @property
    def settled(self) -> bool:
        """Nothing is left to write or to be recorded by the daemon."""
        return not self.entries and not self._queue

    def _add(self, line: dict[str, Any], future: "asyncio.Future[None] | None" = None) -> None:
        self._queue.append((_packed(line), future))
        self._wake.set()

    async def _added(self, line: dict[str, Any]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(line, future)
        await future

    # --- writing ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes what is added, as long as the agent lives. What came together is written together."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue or self._size - self._live > SLACK:
                if not await self._write_some():
                    await asyncio.sleep(RETRY_S)

    async def _write_some(self) -> bool:
        batch, last = list(self._queue), self.last
        rewrite = self._rewrite or self._size - self._live > SLACK
        content = self._content() if rewrite else b"".join(line for line, _ in batch)
        try:
            await asyncio.to_thread(self._replace if rewrite else self._append, content)
        except (OSError, NotPrivate) as error:
            self._failed(error)
            return False
        self._size = self._live = len(content) if rewrite else self._size + len(content)
        if not rewrite:
            self._live = self._live_bytes()
        del self._queue[: len(batch)]
        self._rewrite = False
        self.durable = max(self.durable, last)
        self.fresh.set()
        for _, future in batch:
            if future is not None and not future.done():
                future.set_result(None)
        self._recovered()
        return True

    def _live_bytes(self) -> int:
        # Only whether a rewrite is worth it depends on this: reports are what the file grows by.
        return len(self._content()) if self._size > SLACK else self._size

    def _failed(self, error: Exception) -> None:
        if self._failing_since is None:
            self._failing_since = boottime()
            log.error("%s cannot be written, reports wait in memory: %s", self.path, error)
        # After a failed write of any other kind nobody knows what is on the disk: then all of it is written again.
        self._rewrite = not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))

    def _recovered(self) -> None:
        if self._failing_since is not None:
            text = f"its log could not be written for {boottime() - self._failing_since:.0f} s (disk full?)"
            self._failing_since = None
            log.warning("%s can be written again", self.path)
            self.report(TroubleSeen("agent", text))

    def _append(self, content: bytes) -> None:
        try:
            write_all(self._fd, content)
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)  # no half line may stay before what is written next
            raise

    def _replace(self, content: bytes) -> None:
        atomic_write(self.path, content)
        fresh = open_private(self.path, os.O_RDWR | os.O_APPEND)
        os.close(self._fd)
        self._fd = fresh

    def _content(self) -> bytes:
        lines: list[dict[str, Any]] = [{"log_id": self.log_id, "v": 1}]
        lines.append({"last": self.last, "fence": self.fence, "lease_s": self.lease_s})
        for key, marks in self.marks.items():
            lines.append({"mark": list(key), "rec": marks.record, "exited": marks.exited, "freed": marks.freed})
        for kinds in self.requests.values():
            lines += [{"request": encode_message(message)} for message in kinds.values()]
        lines += [_line_of(entry) for entry in self.entries.values()]
        return b"".join(_packed(line) for line in lines)

    def unreported(self, key: Key) -> Marks:
        """The incarnation's marks; all zero where nothing was reported of it."""
        return self.marks.get(key, Marks())


def _line_of(entry: LoggedReport) -> dict[str, Any]:
    return {"n": entry.number, "kind": entry.kind, "body": entry.body, "at": entry.at, "boot": entry.boot}


def _packed(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _key(value: Any) -> Key:
    job, incarnation = value
    return int(job), int(incarnation)
