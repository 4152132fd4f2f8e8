"""Emulated GPUs and the real processes that hold them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcdl.agent.gpu.device import GpuSample
from hpcdl.agent.gpu.emulated import FLOCK, EmulatedSource
from hpcdl.trainer.emulated import GpuBusy, hold
from tests.support import waiting

ROOT = Path(__file__).parents[3]
DEADLINE_S = 180.0

HOLDER = """
import json, os, sys
from hpcdl.trainer.emulated import GpuBusy, hold
folder, uuids = sys.argv[1], sys.argv[2].split(",")
try:
    held = hold(folder, uuids, util=90, memory_mib=12000)
except GpuBusy as busy:
    print(json.dumps({"busy": busy.pid, "why": str(busy)}), flush=True)
    sys.exit(3)
print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    if line == "release\\n":
        held.release()
    elif line == "fork\\n":
        child = os.fork()
        if child == 0:
            held.release()
            os._exit(0)
        os.waitpid(child, 0)
    print(json.dumps({"done": line.strip()}), flush=True)
"""


class Holder:
    """A process that holds GPUs, told what to do on its standard input."""

    def __init__(self, folder: Path, *uuids: str, share: str = "") -> None:
        argv = [sys.executable, "-W", "error", "-c", HOLDER, str(folder), ",".join(uuids)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HPCDL_SHARE": share}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.said = self._answer()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _answer(self) -> dict[str, object]:
        assert self.process.stdout is not None
        answer: dict[str, object] = json.loads(self.process.stdout.readline())
        return answer

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self._answer() == {"done": what}

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(DEADLINE_S)


Start = Callable[..., Holder]


@pytest.fixture
def source(tmp_path: Path) -> EmulatedSource:
    return EmulatedSource(tmp_path / "emulated", 3)


@pytest.fixture
def start(source: EmulatedSource) -> Iterator[Start]:
    started: list[Holder] = []

    def begin(*uuids: str, share: str = "") -> Holder:
        started.append(Holder(source.folder, *uuids, share=share))
        return started[-1]

    yield begin
    for holder in started:
        holder.end()


def until(source: EmulatedSource, true: Callable[[tuple[GpuSample, ...]], bool]) -> tuple[GpuSample, ...]:
    seen: list[tuple[GpuSample, ...]] = []

    def holds() -> bool:
        seen.append(source.sample())
        return true(seen[-1])

    waiting.until(holds, "such samples", story=lambda: str(seen[-1]))
    return seen[-1]


def pids(source: EmulatedSource) -> list[tuple[int, ...] | None]:
    return [sample.pids for sample in source.sample()]


def uuids(source: EmulatedSource) -> list[str]:
    return [gpu.uuid for gpu in source.list()]


def test_free_gpus(source: EmulatedSource) -> None:
    assert [(gpu.index, gpu.name, gpu.memory_mib) for gpu in source.list()] == [
        (index, "Emulated V100", 16384) for index in range(3)
    ]
    assert source.sample() == tuple(GpuSample(uuid, 0, 0, 16384, pids=()) for uuid in uuids(source))
    assert stat.S_IMODE(source.folder.stat().st_mode) == 0o700
    files = sorted(source.folder.iterdir())
    assert [file.name for file in files] == [f"{uuid}.lock" for uuid in uuids(source)]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_uuids_are_the_same_after_a_restart_and_others_elsewhere(source: EmulatedSource, tmp_path: Path) -> None:
    assert uuids(EmulatedSource(tmp_path / "x" / ".." / "emulated", 3)) == uuids(source)
    assert not set(uuids(EmulatedSource(tmp_path / "other", 3))) & set(uuids(source))
    assert EmulatedSource(tmp_path / "none", 0).sample() == ()
    with pytest.raises(ValueError, match="-1"):
        EmulatedSource(tmp_path / "none", -1)


def test_a_held_gpu_is_seen_with_its_holder_and_is_not_disturbed(source: EmulatedSource, start: Start) -> None:
    zero, one, two = uuids(source)
    holder = start(zero, two)
    assert holder.said == {"pid": holder.pid}
    for _ in range(3):  # asking must not free it
        held, free, _ = source.sample()
        assert held == GpuSample(zero, 90, 12000, 16384, pids=(holder.pid,))
        assert free == GpuSample(one, 0, 0, 16384, pids=())
    assert pids(source) == [(holder.pid,), (), (holder.pid,)]
    holder.tell("release")
    assert pids(source) == [(), (), ()]
    assert source.sample()[0].memory_used_mib == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_process_frees_its_gpus(source: EmulatedSource, start: Start, number: int) -> None:
    holder = start(*uuids(source))
    assert pids(source) == [(holder.pid,)] * 3
    os.kill(holder.pid, number)
    samples = until(source, lambda samples: all(sample.pids == () for sample in samples))
    assert [(sample.util, sample.memory_used_mib) for sample in samples] == [(0, 0)] * 3
    after = start(*uuids(source))  # over the note that the dead one left
    assert pids(source) == [(after.pid,)] * 3


def test_a_stopped_process_keeps_its_gpus(source: EmulatedSource, start: Start) -> None:
    holder = start(uuids(source)[0])
    os.kill(holder.pid, signal.SIGSTOP)
    assert pids(source)[0] == (holder.pid,)
    os.kill(holder.pid, signal.SIGCONT)


def test_a_second_trainer_is_refused_and_takes_nothing(source: EmulatedSource, start: Start) -> None:
    zero, one, two = uuids(source)
    first = start(one)
    second = start(zero, one, two)
    assert second.said["busy"] == first.pid
    assert f"held by process {first.pid}" in str(second.said["why"])
    assert second.process.wait(DEADLINE_S) == 3
    assert pids(source) == [(), (first.pid,), ()]
    assert source.sample()[1].util == 90


def test_a_forked_child_neither_holds_nor_frees(source: EmulatedSource, start: Start) -> None:
    holder = start(uuids(source)[0])
    holder.tell("fork")
    assert source.sample()[0] == GpuSample(uuids(source)[0], 90, 12000, 16384, pids=(holder.pid,))


def test_a_process_cannot_hold_a_gpu_twice(source: EmulatedSource) -> None:
    zero, one, _ = uuids(source)
    folder = str(source.folder)
    with hold(folder, [zero], 50, 100) as held:
        assert held.held
        with pytest.raises(GpuBusy) as error:
            hold(folder, [one, zero], 50, 100)
        assert (error.value.uuid, error.value.pid) == (zero, os.getpid())
    assert not held.held
    held.release()
    assert pids(source) == [(), (), ()]
    with hold(folder, [zero], 50, 100), pytest.raises(GpuBusy):
        hold(folder, [zero], 50, 100)


def test_a_foreground_and_a_background_hold_a_gpu_together(source: EmulatedSource, start: Start) -> None:
    zero = uuids(source)[0]
    first = start(zero, share="foreground")
    second = start(zero, share="background")
    assert source.sample()[0] == GpuSample(zero, 100, 24000, 16384, pids=(first.pid, second.pid))
    for share in ("foreground", "background", ""):
        assert "busy" in start(zero, share=share).said
    first.end()
    assert source.sample()[0] == GpuSample(zero, 90, 12000, 16384, pids=(second.pid,))
    again = start(zero, share="foreground")
    second.tell("release")
    assert source.sample()[0] == GpuSample(zero, 90, 12000, 16384, pids=(again.pid,))
    assert "busy" in start(zero).said
    again.end()
    assert source.sample()[0].pids == ()


def test_gpus_that_there_are_not(source: EmulatedSource) -> None:
    with pytest.raises(FileNotFoundError):
        hold(str(source.folder), [uuids(source)[0], "EMU-00000000-9"], 50, 100)
    with pytest.raises(ValueError, match="GPU-1"):
        hold(str(source.folder), ["GPU-1"], 50, 100)
    with pytest.raises(ValueError, match="not the UUID"):
        hold(str(source.folder), ["EMU-/../x"], 50, 100)
    assert pids(source) == [(), (), ()]


def test_a_note_that_is_not_the_holders_is_not_believed(source: EmulatedSource, start: Start) -> None:
    zero = uuids(source)[0]
    holder = start(zero)
    for note in (b"", b"{", b"[]", b'{"pid": 1, "util": 5}', b"\xff", b"[" * 4000):
        # Written by another process: closing the file is no matter, for the lock is the holder's.
        (source.folder / f"{zero}.lock").write_bytes(note)
        assert source.sample()[0] == GpuSample(zero, None, None, 16384, pids=(holder.pid,))
    (source.folder / f"{zero}.lock").write_text(json.dumps({"pid": holder.pid, "util": "x", "memory_mib": 7}))
    assert source.sample()[0] == GpuSample(zero, None, 7, 16384, pids=(holder.pid,))


def test_a_holder_that_cannot_be_seen_is_a_holder(source: EmulatedSource) -> None:
    # The lock of an open file has no process; the kernel answers as for one of another pid namespace.
    with (source.folder / f"{uuids(source)[0]}.lock").open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack(FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
        sample = source.sample()[0]
        assert (sample.state, sample.pids, sample.util) == ("ok", None, None)
        with pytest.raises(GpuBusy, match="cannot be seen"):
            hold(str(source.folder), uuids(source)[:1], 50, 100)
    assert pids(source)[0] == ()


def test_a_deleted_file_is_a_lost_gpu(source: EmulatedSource) -> None:
    (source.folder / f"{uuids(source)[1]}.lock").unlink()
    assert [sample.state for sample in source.sample()] == ["ok", "lost", "ok"]
    (source.folder / f"{uuids(source)[2]}.lock").unlink()
    (source.folder / f"{uuids(source)[2]}.lock").symlink_to("/dev/null")
    assert [sample.state for sample in source.sample()] == ["ok", "lost", "unknown"]
    (source.folder / f"{uuids(source)[2]}.lock").unlink()
    restarted = EmulatedSource(source.folder, 3)
    assert [sample.state for sample in restarted.sample()] == ["ok"] * 3
