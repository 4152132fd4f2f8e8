"""Processes that have PyTorch imported when they begin: forks of one that imported it, once for a file of tests.

The import takes some seconds of a core in each process. All else is as in a process that was started: its own session,
environment, output and exit, and nothing of hpcdl was imported before its script does so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
ABORT_S, FAILED_S = 60.0, 60.0
PLAIN = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}  # they count when it is imported


class Forked:
    """As much of subprocess.Popen as the tests use."""

    def __init__(self, origin: Preloaded, pid: int, args: Sequence[str], stdout: IO[str] | None) -> None:
        self._origin = origin
        self.pid, self.args, self.stdout = pid, list(args), stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._origin.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float = 180.0) -> int:
        until(lambda: self.poll() is not None, f"the end of {self.args}", timeout)
        assert self.returncode is not None
        return self.returncode

    def abort_all(self) -> None:
        """Ends all processes of the same origin; each writes the stacks of its threads to its standard error."""
        self._origin.abort()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def ended(ranks: Sequence[Forked], timeout: float = 180.0) -> list[int]:
    """Exit codes of one group of processes. Where one fails the others may wait for it for long: they are aborted, as
    all are where it takes too long, and their standard error says where they were."""

    def codes() -> list[int | None]:
        return [each.poll() for each in ranks]

    with contextlib.suppress(AssertionError):
        until(lambda: None not in codes() or any(codes()), "the end of the ranks", timeout)
        until(lambda: None not in codes(), "the end of the other ranks", FAILED_S)
    if None in codes():
        ranks[0].abort_all()
    return [each.wait() for each in ranks]


class Preloaded:
    """The process that imported PyTorch, and whatever else is named in `modules`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._forks: list[Forked] = []
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
        argv = [sys.executable, "-m", "tests.trainer.preloaded", str(theirs.fileno()), *modules]
        with theirs:
            self._process = subprocess.Popen(argv, env=environ | PLAIN, cwd=ROOT, pass_fds=[theirs.fileno()])

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes] | None) -> Forked:
        """Runs `python ARGV`, ARGV[0] being a script. Without `output` what it says is in `stdout`."""
        ours: IO[str] | None = None
        if output is None:
            reads, writes = os.pipe()
            ours = os.fdopen(reads, "r")
        else:
            writes = os.dup(output.fileno())
        try:
            request = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd()}
            socket.send_fds(self._channel, [json.dumps(request).encode()], [writes])
        finally:
            os.close(writes)
        forked = Forked(self, int(self._answer()), argv, ours)
        self._forks.append(forked)
        return forked

    def abort(self) -> None:
        """Ends all that still run; each writes the stacks of its threads to its standard error."""
        for each in self._forks:
            each.send_signal(signal.SIGABRT)
        with contextlib.suppress(AssertionError):
            until(lambda: all(each.poll() is not None for each in self._forks), "the stacks of all forks", ABORT_S)
        for each in self._forks:
            each.kill()
            each.wait()

    def ended(self, pid: int) -> int | None:
        """Its exit code, once it has one; asked again after that, it is an error."""
        self._channel.send(json.dumps({"pid": pid}).encode())
        answer: int | None = json.loads(self._answer())
        return answer

    def _answer(self) -> bytes:
        answer = self._channel.recv(1000)
        assert answer, "the process that imported PyTorch is gone"
        return answer

    def close(self) -> None:
        try:
            until(lambda: all(each.poll() is not None for each in self._forks), "the end of all forks")
        finally:
            self.abort()
            self._channel.close()
            self._process.wait(180)


@contextmanager
def preloaded(*modules: str) -> Iterator[Preloaded]:
    """Its forks must have ended when this does."""
    made = Preloaded(modules)
    try:
        yield made
    finally:
        made.close()


def serve(channel: socket.socket) -> str | None:
    """Forks for each that is asked for. Returns the script, in the fork; None, in the first process, at the end."""
    while True:
        raw, received, _, _ = socket.recv_fds(channel, 1 << 18, 1)
        if not raw:
            return None
        asked = json.loads(raw)
        if "pid" in asked:
            pid, status = os.waitpid(asked["pid"], os.WNOHANG)
            channel.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
            continue
        (output,) = received
        pid = os.fork()
        if pid:
            os.close(output)
            channel.send(str(pid).encode())
            continue
        channel.close()
        os.setsid()
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        faulthandler.enable(2)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv = asked["argv"]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        import numpy

        numpy.random.seed()  # the others' seeds are new in every process, or always the same
        return sys.argv[0]


if __name__ == "__main__":
    for name in ("torch", "torch._dynamo", *sys.argv[2:]):
        __import__(name)
    gc.freeze()  # else every fork would copy all of it, to collect nothing
    if script := serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_path(script, run_name="__main__")
