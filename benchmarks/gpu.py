"""Every claim of hpcdl that needs a GPU, measured on this machine, as a table for the documents.

    python benchmarks/gpu.py [--rounds 3] [--memory-mib 2048] [--share-s 10] [--emulate N] [--json]

A real daemon and agent with the GPUs that NVML sees, and PyTorch trainers on CUDA. What cannot be measured here is in
the table with the reason: one GPU, a driver before 570, no CUDA in PyTorch. `--emulate N` takes N emulated GPUs and
trains on the processor: it tries this program out, and its figures say nothing of a GPU. Progress is on standard error.

    nvml and nvidia-smi     both list the same GPUs, and say the same memory and processes while a trainer runs
    suspend                 SuspendRequested .. GpusFreed; the memory that NVML counts before and after
    bit-exact               mixed precision, dropout, BatchNorm: suspended and killed, the same weights as left alone
    others, hidden          no job beside a stranger's process; no process of a job outlives it
    sharing                 a foreground with its background, as `hpcdl submit --share` and the slowdown loop run them
    cold start, warm start  GPUs granted .. the training loop begins: a new process; one that waited at the gate
    NCCL                    two ranks leave their process group and form another one
    CUDA checkpoint         a process gives its GPU memory to the host's, and takes it back (the driver's calls)
"""

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import say, setting
from hpcdl.agent.gpu.device import GpuSourceError
from hpcdl.agent.gpu.nvml import NvmlSource
from hpcdl.agent.gpu.smi import SmiSource
from tests.system.cluster import Cluster, kill

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

SLOW_SAVE_S = 25.0
"""Of the job that the other one waits for at the gate: longer than imports take."""

EXACT = """
import hpcdl.trainer as hpcdl
hpcdl.attach()
import hashlib, os, sys, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
import hpcdl.trainer.torch as suspendable

out, pace_s, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.float16 if device == "cuda" else torch.bfloat16
torch.use_deterministic_algorithms(True)
torch.manual_seed(3)
nn = torch.nn
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
    nn.Linear(16 * 256, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
scaler = torch.amp.GradScaler(device, growth_interval=20)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
for step in suspendable.steps(steps, every=50, **state):
    x, y = torch.randn(64, 3, 16, 16, device=device), torch.randint(0, 10, (64,), device=device)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=half):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    time.sleep(pace_s)
digest = hashlib.sha256()
moments = [each for values in optimizer.state_dict()["state"].values() for each in values.values()]
for tensor in (*model.state_dict().values(), *moments):
    digest.update(tensor.cpu().numpy().tobytes())
with open(out, "w") as file:
    file.write(f"{digest.hexdigest()} {scaler.get_scale()}")
"""

EXACT_STEPS = 300

SHARED = """
import hpcdl.trainer as hpcdl
hpcdl.attach()
import sys
import torch
from benchmarks.colocate import vgg16
import hpcdl.trainer.torch as suspendable

batch, on_gpu = int(sys.argv[1]), torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, 8))
model = (vgg16(torch) if on_gpu else small).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(batch, 3, 224, 224, device=device), torch.zeros(batch, dtype=torch.long, device=device)
for step in suspendable.steps(10**9, model=model, optimizer=optimizer):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    loss.item()
"""

FRONT_BATCH, BACK_BATCH = 32, 8
"""Of the two that share a GPU: the background's steps are the shorter ones."""

SHARED_MIB = 7680

SETTLE_STEPS = 400
"""Of a foreground, until the slowdown loop has found the duty of the background beside it."""

LOCK_MS = 10_000

HIDES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {})
    os._exit(0)
os.wait()
time.sleep(3600)
"""

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

    def __init__(self, folder: Path, emulate: int | None, rounds: int, memory_mib: int, share_s: float) -> None:
        self._folder = folder
        self._emulate = emulate
        self._rounds = rounds
        self._memory_mib = memory_mib
        self._share_s = share_s
        self._cluster = Cluster(folder / "home", emulate or 0)

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
            rows += self._measured("bit-exact", self.bit_exact)
            rows += self._measured("others' processes", self.others)
            rows += self._measured("hidden processes", self.hidden)
            rows += self._measured("sharing", self.sharing)
            rows += self._measured("warm start", self.warm_starts)
        finally:
            self._cluster.stop()
        rows += self._measured("NCCL", self.nccl)
        return rows + self._measured("CUDA checkpoint", self.cuda_checkpoint)

    def _measured(self, claim: str, measure: Callable[[], list[Row]]) -> list[Row]:
        say(f"{claim} ...")
        try:
            rows = measure()
        except NotMeasured as why:
            rows = [Row(claim, None, str(why))]
        for row in rows:  # at once: a run that is cut short was not for nothing
            say(f"  {row.claim}: {row.value or 'not measured'}; {row.detail}")
        return rows

    def _submit(self, *options: str, save_s: float = 0.0, gate: bool = False) -> int:
        more = ("--gate",) if gate else ()
        return self._submit_script(TRAINER, str(self._memory_mib), str(save_s), options=(*options, *more))

    def _submit_script(self, text: str, *arguments: str, options: Sequence[str] = ()) -> int:
        argv = (sys.executable, str(self._script(text)), *arguments)
        answer = self._cluster.cli("submit", "--json", "--gpus", "1", *options, "--cwd", str(self._folder), "--", *argv)
        return int(answer["jobs"][0]["id"])

    def _script(self, text: str) -> Path:
        """The text in a file."""
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
        path.write_text(text)
        return path

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

    def bit_exact(self) -> list[Row]:
        """A training that is suspended, resumed and killed, beside one that nothing happens to."""
        whole, parts = self._folder / "whole", self._folder / "parts"
        alone = [sys.executable, str(self._script(EXACT)), str(whole), "0", str(EXACT_STEPS)]
        if subprocess.run(alone, stdout=sys.stderr).returncode:
            raise NotMeasured("the training failed by itself")
        job = self._submit_script(EXACT, str(parts), "0.02", str(EXACT_STEPS), options=("--steps", str(EXACT_STEPS)))
        self._cluster.until_step(job, 60)
        self._cluster.cli("suspend", str(job))
        self._cluster.until_state(job, "SUSPENDED")
        self._cluster.cli("resume", str(job))
        self._cluster.until_step(job, 160)
        kill(self._cluster.trainer_pid(job))
        self._cluster.until_done(job)
        same = whole.read_text() == parts.read_text()
        detail = "AdamW, mixed precision, dropout, BatchNorm: one suspend and one kill -9 in 300 steps"
        return [Row("the weights are those of a run left alone", "bit for bit" if same else "NO", detail)]

    def others(self) -> list[Row]:
        """A job beside a process that is not of hpcdl."""
        with self._holder() as holder:
            job = self._submit()
            self._cluster.until(lambda: "held by process" in self._cluster.cli("why", str(job)))
            state = self._cluster.job(job)["state"]
            holder.kill()
            holder.wait()
            self._until_ready(job, 1)
            self._cancel(job)
        return [Row("a stranger's process on the GPU", "the job waits", f"{state}; it began once that had gone")]

    def hidden(self) -> list[Row]:
        """A job whose process hides (double fork, session of its own, empty environment), cancelled."""
        self._on_gpu()  # it is asked before there is a job
        job = self._submit_script(HIDES, "-c", HOLDER, str(self._memory_mib))
        self._cluster.until(lambda: bool(self._on_gpu()))
        began = time.monotonic()
        self._cancel(job)
        took, left = time.monotonic() - began, self._on_gpu()
        return [Row("a process that hides, once its job is cancelled", f"{len(left)} left", f"after {took:.1f} s")]

    def sharing(self) -> list[Row]:
        """A foreground alone, the two together, the background alone."""
        if len(self._gpus()) != 1:
            raise NotMeasured("it is measured on a node of one GPU: CUDA_VISIBLE_DEVICES=0, or --emulate 1")
        self._cluster.cli("config", "policy", "deeppool")
        memory = ("--gpu-memory", str(SHARED_MIB))
        front = self._submit_script(SHARED, str(FRONT_BATCH), options=("--share", "foreground", *memory))
        self._until_ready(front, 1)
        (alone, _), back = self._rates(front), 0
        back = self._submit_script(SHARED, str(BACK_BATCH), options=("--share", "background", *memory))
        self._cluster.until(lambda: self._cluster.job(back)["state"] == "RUNNING")
        settled = self._cluster.job(front)["step"] + SETTLE_STEPS
        self._cluster.until_step(front, settled)
        beside, background = self._rates(front, back)
        self._cluster.cli("suspend", str(front))
        self._cluster.until_state(front, "SUSPENDED")
        own, _ = self._rates(back)
        self._cancel(front, back)
        speed = f"{alone * FRONT_BATCH:.0f} samples/s alone, {beside * FRONT_BATCH:.0f} with a background"
        second = f"{background * BACK_BATCH:.0f} samples/s; {own * BACK_BATCH:.0f} alone"
        return [
            Row("VGG-16 with a background, limit 10 %: slowdown", f"{alone / beside - 1:+.1%}", speed),
            Row("its background, of its own speed", f"{background / own:.1%}", second),
            Row("both together, of one alone", f"{beside / alone + background / own:.2f} x", "time slices, no MPS"),
        ]

    def _rates(self, *jobs: int) -> tuple[float, float]:
        """Steps a second of one job, or two, measured between two of its reports."""

        def steps() -> list[int]:
            return [self._cluster.job(job)["step"] or 0 for job in jobs]

        before, began = steps(), time.monotonic()
        self._cluster.until(lambda: steps()[0] != before[0])
        before, began = steps(), time.monotonic()
        time.sleep(self._share_s)
        now = steps()
        self._cluster.until(lambda: steps()[0] != now[0])
        found = [(after - first) / (time.monotonic() - began) for first, after in zip(before, steps(), strict=True)]
        return found[0], found[-1]

    @contextmanager
    def _holder(self) -> Iterator[subprocess.Popen[str]]:
        """A process that holds memory of the GPU, and is not of hpcdl."""
        if self._emulate is not None:
            raise NotMeasured("the GPUs are emulated")
        argv = [sys.executable, str(self._script(HOLDER)), str(self._memory_mib)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                if process.stdout is None or process.stdout.readline() != "holds\n":
                    raise NotMeasured("PyTorch could not take memory of the GPU")
                yield process
            finally:
                process.kill()

    def _on_gpu(self) -> tuple[int, ...]:
        """The processes that NVML sees on the first GPU."""
        if self._emulate is not None:
            raise NotMeasured("the GPUs are emulated")
        with closing(NvmlSource()) as source:
            return source.sample()[0].pids or ()

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
        """A process that holds memory is checkpointed, stopped and restored, by the driver's own calls."""
        with self._holder() as process:
            driver, held = CheckpointCalls(process.pid), self._memory()
            out = timed(driver.lock, driver.checkpoint)
            os.kill(process.pid, signal.SIGSTOP)
            without = self._memory()
            os.kill(process.pid, signal.SIGCONT)  # of a stopped process the restore waits for ever
            back = timed(driver.restore, driver.unlock)
            memory = f"NVML: {held} MiB before, {without} meanwhile, {self._memory()} after"
        detail = f"{memory}; {self._memory_mib} MiB of tensors; the process itself is stopped"
        return [
            Row("CUDA checkpoint, to host memory", f"{out:.2f} s", detail),
            Row("CUDA checkpoint, back to the GPU", f"{back:.2f} s"),
        ]


class CheckpointCalls:
    """What CUDA's driver has for one process since version 570, by its pid. Raises NotMeasured."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
            self._cuda.cuInit(0)
            self._cuda.cuCheckpointProcessLock  # noqa: B018
        except (OSError, AttributeError) as error:
            raise NotMeasured(f"the driver has no such calls: {error}") from None

    def lock(self) -> None:
        arguments = (ctypes.c_uint64 * 8)(LOCK_MS)  # timeoutMs, and reserved words
        self._call("cuCheckpointProcessLock", ctypes.byref(arguments))

    def checkpoint(self) -> None:
        self._call("cuCheckpointProcessCheckpoint", None)

    def restore(self) -> None:
        self._call("cuCheckpointProcessRestore", None)

    def unlock(self) -> None:
        self._call("cuCheckpointProcessUnlock", None)

    def _call(self, name: str, arguments: Any) -> None:
        status = getattr(self._cuda, name)(self._pid, arguments)
        if status:
            raise NotMeasured(f"{name} returned {status}")


def timed(*calls: Callable[[], None]) -> float:
    """The seconds that these take, one after another."""
    began = time.monotonic()
    for call in calls:
        call()
    return time.monotonic() - began


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
    parser.add_argument("--share-s", type=float, default=10.0, help="that each part of sharing a GPU is measured for")
    parser.add_argument("--emulate", type=int, metavar="N", help="N emulated GPUs: it tries this program out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folder = Path(tempfile.mkdtemp(prefix="hpcdl-gpu-"))
    try:
        rows = Bench(folder, options.emulate, options.rounds, options.memory_mib, options.share_s).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {"schema": 1, "setting": setting(), "emulated": options.emulate is not None}
    print(json.dumps(figures | {"rows": [asdict(row) for row in rows]}, indent=2) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
