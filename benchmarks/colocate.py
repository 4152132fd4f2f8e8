"""Two trainings on one GPU: what each mechanism brings (DeepPool's figure 11), which kernels hurt which (figure 12).

    python benchmarks/colocate.py [--seconds 10] [--batch 32] [--limit 0.1]

JSON on stdout. `ladder`: by mechanism, each rung with all those before it, samples a second of the foreground, of the
background and of both, and both as shares of the first rung's. `matrix`: by kernel in a stream of high priority, and by
kernel in one of low priority, the first one's speed as a share of its own. Without a GPU one line says so, and it exits
with 1. Two processes share a GPU's time slices unless an MPS server runs: start one first, and compare.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import say
from hpcdl.agent.colocation import TICK_S, Foreground
from hpcdl.agent.slowdown_loop import SlowdownLoop
from hpcdl.trainer.background_steps import Launcher
from hpcdl.trainer.session import Session
from hpcdl.trainer.step_gate import BACKGROUND, COUNT, FOREGROUND, SharePage, StepGate

ROOT = Path(__file__).resolve().parents[1]

NO_GPU = "colocate.py measures on a GPU, and PyTorch finds none here"

WARM_UP_S = 5.0
SMALL = 4
"""What the background's batch is divided by on the last rung."""

OUTSTANDING = 2
"""Launches of a paced background that the GPU has not done."""


@dataclass(frozen=True)
class Rung:
    """What runs. `priority`: of the foreground's stream, -1 is above the background's 0. `paced`: bounded launches."""

    name: str
    graphs: bool = False
    background: bool = False
    priority: int = 0
    paced: bool = False
    gated: bool = False
    small: bool = False


def ladder() -> list[Rung]:
    """Figure 11 from the bottom row up: each rung adds one mechanism to those before it."""
    rungs = [Rung("foreground alone")]
    for name, more in (
        ("CUDA graphs", {"graphs": True}),
        ("a second training", {"background": True}),
        ("stream priorities", {"priority": -1}),
        ("launch pacing", {"paced": True}),
        ("slowdown loop", {"gated": True}),
        ("smaller background batch", {"small": True}),
    ):
        rungs.append(replace(rungs[-1], name=f"+ {name}", **more))
    return rungs


def ladder_rows(rates: Sequence[tuple[str, float, float]]) -> list[dict[str, Any]]:
    """By name, foreground's and background's samples a second; the shares are of the first one's foreground."""
    alone = rates[0][1]
    return [
        {
            "rung": name,
            "foreground": round(front, 1),
            "background": round(back, 1),
            "total": round(front + back, 1),
            "foreground_share": round(front / alone, 4),
            "total_share": round((front + back) / alone, 4),
        }
        for name, front, back in rates
    ]


def matrix_rows(own: Mapping[str, float], beside: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Launches a second of each kernel alone, and of each in high priority beside each in low priority, as shares."""
    return {high: {low: round(beside[high, low] / own[high], 4) for low in own} for high in own}


def vgg16(torch: Any) -> Any:
    """VGG-16 for images of 3 x 224 x 224."""
    layers: list[Any] = []
    channels = 3
    for block in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(block[1]):
            layers += [torch.nn.Conv2d(channels, block[0], 3, padding=1), torch.nn.ReLU()]
            channels = block[0]
        layers.append(torch.nn.MaxPool2d(2))
    layers += [torch.nn.Flatten(), torch.nn.Linear(512 * 49, 4096), torch.nn.ReLU()]
    layers += [torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1000)]
    return torch.nn.Sequential(*layers)


def train(folder: Path, role: str, batch: int, rung: Rung) -> None:
    """Steps, for ever."""
    import torch

    net, loss_of = vgg16(torch).cuda(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    images, labels = torch.randn(batch, 3, 224, 224, device="cuda"), torch.zeros(batch, dtype=torch.long, device="cuda")
    loss: list[Any] = []

    def forward() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss[:] = [loss_of(net(images), labels)]

    background = role == BACKGROUND
    launcher = Launcher(OUTSTANDING if rung.paced and background else 1 << 30)
    if not background:
        launcher.stream = torch.cuda.Stream(priority=rung.priority)
    pieces: list[Callable[[], object]] = [forward, lambda: loss[0].backward(), optimizer.step]
    if rung.graphs:
        pieces = launcher.graphs(pieces)
    gate = StepGate(Session({}, 0, None), folder, role if rung.gated else FOREGROUND, 1)
    while True:
        for piece in pieces:
            launcher.launch(piece)
        launcher.finish()
        gate.boundary()


@contextmanager
def trainer(folder: Path, role: str, batch: int, rung: Rung) -> Iterator[SharePage]:
    folder.mkdir(parents=True)
    argv = [sys.executable, __file__, "--train", str(folder), role, str(batch), json.dumps(asdict(rung))]
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        page = SharePage(folder)
        while not page.words[COUNT]:
            if process.poll() is not None:
                raise SystemExit(f"colocate.py: the {role} ended with {process.returncode}")
            if rung.gated and role == BACKGROUND:
                break  # it waits at its gate, which the loop opens
            time.sleep(TICK_S)
        yield page
    finally:
        process.kill()
        process.wait()


def climb(rung: Rung, batch: int, seconds: float, limit: float, folder: Path) -> tuple[float, float]:
    """Samples a second of foreground and background."""
    small = max(1, batch // SMALL) if rung.small else batch
    with ExitStack() as stack:
        front = stack.enter_context(trainer(folder / "front", FOREGROUND, batch, rung))
        back = stack.enter_context(trainer(folder / "back", BACKGROUND, small, rung)) if rung.background else None
        known = Foreground(front, SlowdownLoop(limit))
        steps: list[tuple[int, int]] = []
        for wait_s in (WARM_UP_S, seconds):
            until = time.monotonic() + wait_s
            while (now := time.monotonic()) < until:
                if back is not None and rung.gated:
                    known.look(None, now, back.waiting)
                    back.control(known.duty(now), (1, 1))
                time.sleep(TICK_S)
            steps.append((front.words[COUNT], 0 if back is None else back.words[COUNT]))
    (front_before, back_before), (front_after, back_after) = steps
    return batch * (front_after - front_before) / seconds, small * (back_after - back_before) / seconds


def kernels(torch: Any) -> dict[str, Callable[[], object]]:
    """Of little and of much arithmetic for each byte, and of some microseconds and of some milliseconds."""

    def multiply(side: int) -> Callable[[], object]:
        one, other = (torch.randn(side, side, device="cuda") for _ in range(2))
        out = torch.empty_like(one)
        return lambda: torch.mm(one, other, out=out)

    def add(megabytes: int) -> Callable[[], object]:
        values = torch.zeros(megabytes << 18, device="cuda")
        return lambda: values.add_(1.0)

    return {
        "compute, short": multiply(256),
        "compute, long": multiply(8192),
        "memory, short": add(1),
        "memory, long": add(4096),
    }


def rate(torch: Any, high: Callable[[], object], low: Callable[[], object] | None, seconds: float) -> float:
    """Launches a second of the kernel in the stream of high priority."""
    ends = threading.Event()

    def run(kernel: Callable[[], object], priority: int) -> int:
        stream, events, count = torch.cuda.Stream(priority=priority), deque[Any](), 0
        with torch.cuda.stream(stream):
            while not ends.is_set():
                kernel()
                event = torch.cuda.Event()
                event.record(stream)
                events.append(event)
                if len(events) > 2 * OUTSTANDING:
                    events.popleft().synchronize()
                    count += 1
        stream.synchronize()
        return count

    other = None if low is None else threading.Thread(target=run, args=(low, 0))
    timer = threading.Timer(seconds, ends.set)
    if other is not None:
        other.start()
    timer.start()
    count = run(high, -1)
    if other is not None:
        other.join()
    return count / seconds


def matrix(seconds: float) -> dict[str, dict[str, float]]:
    import torch

    all_of_them = kernels(torch)
    own = {name: rate(torch, kernel, None, seconds) for name, kernel in all_of_them.items()}
    beside = {
        (high, low): rate(torch, all_of_them[high], kernels(torch)[low], seconds)
        for high in all_of_them
        for low in all_of_them
    }
    return matrix_rows(own, beside)


def has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rung; of each pair of kernels a tenth")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step of either training")
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not has_gpu():
        sys.exit(NO_GPU)
    if options.train:
        folder, role, batch, rung = options.train
        train(Path(folder), role, int(batch), Rung(**json.loads(rung)))
    rates = []
    with tempfile.TemporaryDirectory(prefix="hpcdl-colocate-") as folder:
        for number, rung in enumerate(ladder()):
            say(f"{rung.name} ...")
            front, back = climb(rung, options.batch, options.seconds, options.limit, Path(folder) / str(number))
            rates.append((rung.name, front, back))
    say("the matrix ...")
    found = {"batch": options.batch, "limit": options.limit, "ladder": ladder_rows(rates)}
    print(json.dumps(found | {"matrix": matrix(options.seconds / 10)}, indent=2))


if __name__ == "__main__":
    main()
