"""A small supervisor for tests: a listening side channel and the real child processes that attach to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hpcdl.wire.readable import readable
from tests.support.waiting import until
from tests.trainer.preloaded import PLAIN, Preloaded

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "jobscripts" / "trainers"


class Supervisor:
    """Speaks the supervisor's half; `reads` false: never answers and never reads. `log`: where output goes, for
    children that say more than a pipe holds. `origin`: what children that run a script are forked from."""

    def __init__(
        self,
        run: Path,
        checkpoints: Path | None,
        reads: bool = True,
        log: Path | None = None,
        origin: Preloaded | None = None,
    ) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.log, self.origin = log, origin
        self.run, self.checkpoints, self.reads = run, checkpoints, reads
        self.packets: list[dict[str, Any]] = []
        self.connections: list[socket.socket] = []
        self.children: list[subprocess.Popen[str]] = []
        self.signals: list[int] = []
        self.answers: list[dict[str, Any]] = [{"type": "attached"}]
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        where = os.open(run, os.O_PATH)
        self.listener.bind(f"/proc/self/fd/{where}/s")
        os.close(where)
        self.listener.listen(16)

    def start(self, argv: Sequence[str | Path], incarnation: int = 1, /, **env: str) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
        environ |= {"PYTHONPATH": str(ROOT), "HPCDL_SOCKET": str(self.run / "s"), "HPCDL_JOB": "7"}
        environ |= {"HPCDL_INCARNATION": str(incarnation), "HPCDL_MEMBERSHIP": "1", "HPCDL_SIGNAL": "hpcdl"}
        environ |= PLAIN
        if self.checkpoints is not None:
            environ["HPCDL_CHECKPOINT_DIR"] = str(self.checkpoints)
        with contextlib.nullcontext(subprocess.PIPE) if self.log is None else self.log.open("ab") as output:
            if self.origin is not None and not str(argv[0]).startswith("-"):
                to = None if isinstance(output, int) else output
                forked = self.origin.start([str(each) for each in argv], environ | env, to)
                child = cast("subprocess.Popen[str]", forked)  # as much of it as is used here
            else:
                child = subprocess.Popen(
                    [sys.executable, *map(str, argv)],
                    env=environ | env,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
        self.children.append(child)
        return child

    def poll(self) -> None:
        """Read all that has come."""
        while self.reads:
            open_ends = [self.listener, *self.connections]
            ready = readable([each.fileno() for each in open_ends], 0.0)
            if not ready:
                return
            self._read([each for each in open_ends if each.fileno() in ready])

    def _read(self, ready: list[socket.socket]) -> None:
        for each in ready:
            if each is self.listener:
                self.connections.append(each.accept()[0])
                continue
            try:
                raw = each.recv(65536)
            except OSError:
                raw = b""
            if not raw:
                self.connections.remove(each)
                each.close()
                continue
            packet = json.loads(raw)
            peer = struct.unpack("3i", each.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            self.packets.append({**packet, "peer": peer})
            if packet["type"] == "attach":
                for answer in self.answers:
                    each.send(json.dumps({"v": 1, **answer}).encode())

    def of(self, kind: str) -> list[dict[str, Any]]:
        self.poll()
        return [packet for packet in self.packets if packet["type"] == kind]

    def kinds(self) -> list[str]:
        """The types that came, without repetitions of progress."""
        self.poll()
        return [packet["type"] for packet in self.packets if packet["type"] != "progress"]

    def wait(self, kind: str, count: int = 1, **keys: Any) -> dict[str, Any]:
        """The packet of that kind and keys that came as number `count`."""

        def packet() -> list[dict[str, Any]]:
            same = [each for each in self.of(kind) if all(each[key] == value for key, value in keys.items())]
            return same[count - 1 : count]

        def story() -> str:
            outputs = [child.stdout.read() for child in self.children if child.poll() is not None and child.stdout]
            return f"came: {self.packets}\n" + "\n".join(outputs)

        def come_or_never() -> bool:
            return bool(packet()) or all(child.poll() is not None for child in self.children)

        until(come_or_never, f"{kind} {keys}", story=story)
        came = packet()  # what ended has said all it ever will
        assert came, f"no {kind} {keys}, {story()}"
        return came[0]

    def send(self, kind: str, **body: Any) -> None:
        for each in self.connections:
            each.send(json.dumps({"v": 1, "type": kind, **body}).encode())

    def end(self, child: subprocess.Popen[str]) -> int:
        """Waits for the child, reading all the time; its exit code."""

        def gone() -> bool:
            self.poll()
            return child.poll() is not None

        until(gone, f"the end of {child.pid}: {child.args!r}", story=lambda: f"came: {self.packets}")
        self.poll()
        return child.wait()

    def hang_up(self) -> None:
        self.listener.close()
        for each in self.connections:
            each.close()
        self.connections = []
        self.reads = False

    def close(self) -> None:
        self.hang_up()
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


@contextmanager
def supervisor(
    run: Path,
    checkpoints: Path | None,
    reads: bool = True,
    log: Path | None = None,
    origin: Preloaded | None = None,
) -> Iterator[Supervisor]:
    """Catches SIGUSR1 meanwhile, as a supervisor does, into `signals`."""
    parent = Supervisor(run, checkpoints, reads, log, origin)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: parent.signals.append(number))
    try:
        yield parent
    finally:
        parent.close()
        signal.signal(signal.SIGUSR1, before)
