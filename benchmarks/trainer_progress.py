"""What hpcdl.trainer costs a training loop: seconds per call, as JSON on stdout.

    python benchmarks/trainer_progress.py

`inside` is measured against a real side channel whose other end reads, `full` against one whose other end never
does, `outside` without hpcdl. `progress_unthrottled` is a call that does send
(at most one in 0.2 s does). Calls are timed in batches of a thousand; `max` is the slowest batch's mean.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpcdl.trainer.session import Session

BATCH, BATCHES = 1000, 200


def timed(call: Callable[[int], object]) -> dict[str, float]:
    means = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        for step in range(BATCH):
            call(step)
        means.append((time.perf_counter() - began) / BATCH)
    return {"median_us": round(statistics.median(means) * 1e6, 3), "max_us": round(max(means) * 1e6, 3)}


def connected(folder: Path, reads: bool) -> Session:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "s"))
    listener.listen(1)

    def serve() -> None:
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.send(b'{"v":1,"type":"attached"}')
        while reads and peer.recv(65536):
            pass
        threading.Event().wait()

    threading.Thread(target=serve, daemon=True).start()
    session = Session({"HPCDL_SOCKET": str(folder / "s"), "HPCDL_SIGNAL": "none"}, 0, None)
    session.connect()
    return session


def every_time(session: Session, step: int) -> None:
    session._next_progress = 0.0
    session.progress(step, 1000, step)


def costs(session: Session) -> dict[str, dict[str, float]]:
    return {
        "progress": timed(lambda step: session.progress(step, 1000, step)),
        "progress_unthrottled": timed(lambda step: every_time(session, step)),
        "should_suspend": timed(lambda step: session.should_suspend()),
    }


def main() -> None:
    result: dict[str, object] = {"schema": 1, "python": sys.version.split()[0], "cpus": os.cpu_count()}
    outside = Session({}, 0, None)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        inside, full = connected(Path(one), True), connected(Path(two), False)
        for name, session in (("outside", outside), ("inside", inside), ("full", full)):
            result[name] = costs(session)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
