"""Every claim of hpcdl that needs a GPU, measured on this machine, as a table for the documents.

    python benchmarks/gpu.py [--rounds 3] [--memory-mib 2048] [--emulate N] [--json]

A real daemon and agent with the GPUs that NVML sees, and PyTorch trainers on CUDA. What cannot be measured here is in
the table with the reason: one GPU, no cuda-checkpoint, no CUDA in PyTorch. `--emulate N` takes N emulated GPUs and
trains on the processor: it tries this program out, and its figures say nothing of a GPU. Progress is on standard error.

    nvml and nvidia-smi     both list the same GPUs, and say the same memory and processes while a trainer runs
    suspend                 SuspendRequested .. GpusFreed; the memory that NVML counts before and after
    cold start, warm start  GPUs granted .. the training loop begins: a new process; one that waited at the gate
    NCCL                    two ranks leave their process group and form another one
    cuda-checkpoint         a process gives its GPU memory to the host's, and takes it back
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import say, setting
from hpcdl.agent.gpu.device import GpuSourceError
from hpcdl.agent.gpu.nvml import NvmlSource
from hpcdl.agent.gpu.smi import SmiSource
from tests.system.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent

TRAINER = """
import hpcdl.trainer as hpcdl
hpcdl.attach()
import os, sys, time
from pathlib import Path
import torch
import hpcdl.trainer.torch as suspendable

mib, slow_save_s = int(sys.argv[1]), float(sys.argv[2])
device = "cuda" if torch.cuda.is_available() else "cpu"
held = torch.ones(mib << 18, device=device) if device == "cuda" else None
model = torch.nn.Linear(1024, 1024).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

class Slow:
    def state_dict(self):
        time.sleep(slow_save_s)
        return {}
    def load_state_dict(self, state):
        pass

for step in suspendable.steps(10**9, model=model, optimizer=optimizer, slow=Slow()):
    loss = model(torch.randn(256, 1024, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    time.sleep(0.01)
"""

SLOW_SAVE_S = 60.0
"""Of the job that the other one waits for at the gate: longer than imports take."""

NCCL = """
import os, sys, time
import torch
import torch.distributed as dist
rank = int(os.environ["HPCDL_LOCAL_RANK"])
torch.cuda.set_device(rank)
for turn in range(int(sys.argv[1]) + 1):
    began = time.monotonic()
    store = dist.FileStore(f"{sys.argv[2]}/store-{turn}", 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    if rank == 0 and turn:
        print(time.monotonic() - began, flush=True)
    dist.destroy_process_group()
"""

HOLDER = """
import sys, time
import torch
held = torch.ones(int(sys.argv[1]) << 18, device="cuda")
torch.cuda.synchronize()
print("holds", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `value`: None where it was not measured, and `detail` says why."""

    claim: str
    value: str | None
    detail: str = ""


class NotMeasured(Exception):
    """This machine cannot show it; the message says why."""


class Bench:
    """A daemon, and what is measured with it."""

    def __init__(self, folder: Path, emulate: int | None, rounds: int, memory_mib: int) -> None:
        self._folder = folder
        self._emulate = emulate
        self._rounds = rounds
        self._memory_mib = memory_mib
        self._cluster = Cluster(folder / "home", emulate or 0)
        self._script = folder / "train.py"
        self._script.write_text(TRAINER)

    def run(self) -> list[Row]:
        """All rows."""
        if self._emulate is None:
            require_gpu()
            self._cluster.cli("daemon", "start", "--json")
        else:
            self._cluster.start()
        try:
            self._cluster.until(lambda: bool(self._cluster.status()["agents"]))
            rows = self._measured("NVML and nvidia-smi agree", self.sources)
            rows += self._measured("suspend", self.suspends)
            rows += self._measured("warm start", self.warm_starts)
        finally:
            self._cluster.stop()
        rows += self._measured("NCCL", self.nccl)
        return rows + self._measured("cuda-checkpoint", self.cuda_checkpoint)

    def _measured(self, claim: str, measure: Callable[[], list[Row]]) -> list[Row]:
        say(f"{claim} ...")
        try:
            return measure()
        except NotMeasured as why:
            return [Row(claim, None, str(why))]

    def _submit(self, *options: str, save_s: float = 0.0, gate: bool = False) -> int:
        command = [sys.executable, *(["-m", "hpcdl.trainer.gate"] if gate else []), str(self._script)]
        argv = (*command, str(self._memory_mib), str(save_s))
        answer = self._cluster.cli("submit", "--json", "--gpus", "1", *options, "--cwd", str(self._folder), "--", *argv)
        return int(answer["jobs"][0]["id"])

    def _until_ready(self, job: int, times: int) -> None:
        """Its training loop has begun so often."""
        self._cluster.until(lambda: len(self._at(job, "TrainerReady")) >= times)

    def _cancel(self, *jobs: int) -> None:
        for job in jobs:
            self._cluster.cli("cancel", str(job))
            self._cluster.until_state(job, "CANCELLED")

    def _at(self, job: int, kind: str) -> list[float]:
        return [event["at"] for event in self._cluster.events(job) if event["kind"] == kind]

    def _memory(self) -> int | None:
        """MiB that NVML counts on the first GPU."""
        if self._emulate is not None:
            return None
        with closing(NvmlSource()) as source:
            return source.sample()[0].memory_used_mib

    # --- the claims

    def sources(self) -> list[Row]:
        """NVML beside nvidia-smi, while a trainer runs."""
        if self._emulate is not None:
            raise NotMeasured("the GPUs are emulated")
        job = self._submit()
        self._cluster.until_step(job, 5)
        try:
            with closing(NvmlSource()) as nvml, closing(SmiSource()) as smi:
                one, other = nvml.list(), smi.list()
                samples = list(zip(nvml.sample(), smi.sample(), strict=False))
        except GpuSourceError as error:
            raise NotMeasured(str(error)) from None
        finally:
            self._cancel(job)
        same = [gpu.uuid for gpu in one] == [gpu.uuid for gpu in other]
        apart = max(abs((a.memory_used_mib or 0) - (b.memory_used_mib or 0)) for a, b in samples)
        pids = all(a.pids == b.pids for a, b in samples)
        detail = f"{len(one)} GPUs; memory at most {apart} MiB apart; processes {'the same' if pids else 'differ'}"
        return [Row("NVML and nvidia-smi agree", "yes" if same and pids else "no", detail)]

    def suspends(self) -> list[Row]:
        """Suspends and cold starts of one job."""
        before = self._memory()
        job = self._submit()
        during: int | None = None
        for turn in range(1, self._rounds + 1):
            self._until_ready(job, turn)
            self._cluster.until_step(job, (self._cluster.job(job)["saved_step"] or 0) + 5)
            during = self._memory()
            self._cluster.cli("suspend", str(job))
            self._cluster.until_state(job, "SUSPENDED")
            after = self._memory()
            self._cluster.cli("resume", str(job))
        self._until_ready(job, self._rounds + 1)
        freed = spans(self._at(job, "SuspendRequested"), self._at(job, "GpusFreed"))
        ready = spans(self._at(job, "StartRequested"), self._at(job, "TrainerReady"))
        self._cancel(job)
        memory = (
            "" if before is None else f"NVML: {before} MiB before, {during} while it trained, {after} once suspended"
        )
        return [
            Row("suspend, to the GPU seen free", seconds(freed), memory),
            Row("cold start, to the training loop", seconds(ready), "a new process: Python, PyTorch, the checkpoint"),
        ]

    def warm_starts(self) -> list[Row]:
        """A job that waits at the gate while another one saves, and then has its GPU."""
        if len(self._gpus()) != 1:
            raise NotMeasured("it is measured on a node of one GPU: CUDA_VISIBLE_DEVICES=0, or --emulate 1")
        self._cluster.cli("config", "policy", "adaptive")
        job = self._submit("--priority", "1", gate=True)
        other = self._submit("--grace", "300", save_s=SLOW_SAVE_S)
        found: list[float] = []
        try:
            for turn in range(1, self._rounds + 1):
                self._until_ready(job, turn)
                self._cluster.cli("suspend", str(job))
                self._until_ready(other, turn)
                self._cluster.cli(
                    "resume", str(job)
                )  # it preempts the other one, and comes to the gate while that saves
                self._until_ready(job, turn + 1)
                opened, ready = self._at(job, "OpenRequested"), self._at(job, "TrainerReady")[-1]
                found += [ready - opened[-1]] if len(opened) == len(found) + 1 else []
        finally:
            self._cancel(job, other)
        if not found:
            raise NotMeasured("no start came to the gate before its GPU was free")
        return [Row("warm start, from the open gate to the loop", seconds(found), "imports done, CUDA still to begin")]

    def _gpus(self) -> list[Any]:
        return [gpu for node in self._cluster.client.request("GET", "/v1/nodes")["nodes"] for gpu in node["gpus"]]

    def nccl(self) -> list[Row]:
        """Two ranks on two GPUs."""
        if self._emulate is not None or gpus_of_torch() < 2:
            raise NotMeasured("two GPUs are needed")
        script = self._folder / "nccl.py"
        script.write_text(NCCL)
        argv = [sys.executable, "-m", "hpcdl.trainer.ranks", "2", "--", sys.executable, str(script), str(self._rounds)]
        done = subprocess.run([*argv, str(self._folder)], capture_output=True, text=True, timeout=300, cwd=ROOT)
        if done.returncode:
            raise NotMeasured(f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}")
        found = [float(line) for line in done.stdout.split()]
        return [Row("NCCL: a group of 2 formed anew", seconds(found), "to its first all-reduce")]

    def cuda_checkpoint(self) -> list[Row]:
        """A process that holds memory is toggled twice."""
        program = shutil.which("cuda-checkpoint")
        if self._emulate is not None or program is None:
            raise NotMeasured("the program cuda-checkpoint (driver 570 or newer) is not on PATH")
        holder = self._folder / "holder.py"
        holder.write_text(HOLDER)
        argv = [sys.executable, str(holder), str(self._memory_mib)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                if process.stdout is None or process.stdout.readline() != "holds\n":
                    raise NotMeasured("PyTorch could not take memory of the GPU")
                rows, held = [], self._memory()
                for what in ("to host memory", "back to the GPU"):
                    began = time.monotonic()
                    done = subprocess.run(
                        [program, "--toggle", "--pid", str(process.pid)], capture_output=True, text=True
                    )
                    took = time.monotonic() - began
                    if done.returncode:
                        raise NotMeasured(f"cuda-checkpoint: {done.stderr.strip()[:200]}")
                    detail = f"NVML: {held} MiB before, {self._memory()} after; {self._memory_mib} MiB of tensors"
                    rows.append(Row(f"cuda-checkpoint, {what}", seconds([took]), detail))
                return rows
            finally:
                process.kill()


def spans(begins: Sequence[float], ends: Sequence[float]) -> list[float]:
    """From each begin to the first end after it."""
    return [min(later) - begin for begin in begins if (later := [end for end in ends if end >= begin])]


def seconds(values: Sequence[float]) -> str:
    """The median, and how many there are."""
    return f"{statistics.median(values):.2f} s (n={len(values)})"


def gpus_of_torch() -> int:
    """How many GPUs PyTorch can use, asked in a process of its own: this one must not hold any."""
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return int(done.stdout or 0) if done.returncode == 0 else 0


def require_gpu() -> None:
    """Raises SystemExit where there is nothing to measure."""
    try:
        with closing(NvmlSource()) as source:
            found = source.list()
    except GpuSourceError as error:
        sys.exit(f"gpu: there is no GPU here ({error}); --emulate 1 tries this program out without one")
    if not gpus_of_torch():
        sys.exit(
            f"gpu: NVML sees {len(found)} GPUs and PyTorch none: install a PyTorch with CUDA into this environment"
        )


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = ["| claim | measured | |", "|---|---|---|"]
    lines += [f"| {row.claim} | {'not measured' if row.value is None else row.value} | {row.detail} |" for row in rows]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What needs a GPU, measured on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-mib", type=int, default=2048, help="that a trainer takes of its GPU")
    parser.add_argument("--emulate", type=int, metavar="N", help="N emulated GPUs: it tries this program out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folder = Path(tempfile.mkdtemp(prefix="hpcdl-gpu-"))
    try:
        rows = Bench(folder, options.emulate, options.rounds, options.memory_mib).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {"schema": 1, "setting": setting(), "emulated": options.emulate is not None}
    print(json.dumps(figures | {"rows": [asdict(row) for row in rows]}, indent=2) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
