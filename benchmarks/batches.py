"""How far off is GENIE's latency model at batch sizes that were not profiled?

Trainings of PyTorch on one pinned core, which stands for the GPU: real work, no GPU, none emulated. Each batch size,
the profiled ones and those between them, is run --rounds times in turns, so that what else the machine does hits all
alike; of its rates the median counts. The model is fitted to the profiled ones (eq. 7), as `hpcdl profile fit` does,
and asked for the others. p50 under 5 %, p95 under 11 % (section 7.2.3 of the paper) are to be reached.

Seconds are those of the processor: what other processes have of the core is not the training's.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from hpcdl.core.model.latency import Setting
from hpcdl.estimators.latency import LightRun, fit

PROFILED = (4, 8, 16, 32, 64, 128)
OTHERS = (6, 12, 20, 24, 40, 48, 80, 96, 112)
GOAL_P50, GOAL_P95 = 0.05, 0.11

Rates = dict[int, float]
"""Samples/s by batch size."""


def trainings() -> dict[str, Callable[[int], Callable[[], None]]]:
    """By name, what makes a step of a training at a batch size."""
    import torch
    from torch import nn

    def step_of(
        model: nn.Module, inputs: Any, classes: int, answer: Callable[[Any], Any] | None = None
    ) -> Callable[[], None]:
        optimizer, answers = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), answer or model
        loss_of, labels = nn.CrossEntropyLoss(), torch.randint(0, classes, (len(inputs),))

        def step() -> None:
            optimizer.zero_grad()
            loss_of(answers(inputs), labels).backward()
            optimizer.step()

        return step

    def mlp(batch: int) -> Callable[[], None]:
        layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
        return step_of(nn.Sequential(*layers), torch.randn(batch, 256), 10)

    def cnn(batch: int) -> Callable[[], None]:
        layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU()]
        return step_of(
            nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
            torch.randn(batch, 3, 32, 32),
            10,
        )

    def lstm(batch: int) -> Callable[[], None]:
        cells, head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)
        both = nn.ModuleList([cells, head])
        return step_of(both, torch.randn(batch, 20, 32), 10, lambda inputs: head(cells(inputs)[0][:, -1]))

    return {"mlp": mlp, "cnn": cnn, "lstm": lstm}


def measured(make: Callable[[int], Callable[[], None]], rounds: int, seconds: float) -> Rates:
    steps = {batch: make(batch) for batch in sorted({*PROFILED, *OTHERS})}
    rates: dict[int, list[float]] = {batch: [] for batch in steps}
    for _ in range(rounds):
        for batch, step in steps.items():
            step()
            step()
            began, done = time.process_time(), 0
            while (took := time.process_time() - began) < seconds or done < 3:
                step()
                done += 1
            rates[batch].append(batch * done / took)
    return {batch: statistics.median(values) for batch, values in rates.items()}


def errors_of(rates: Rates, profiled: list[int], others: list[int]) -> dict[int, float]:
    """Relative errors at the batch sizes that were not profiled."""
    model = fit([LightRun(Setting(batch), rates[batch]) for batch in profiled])
    return {batch: abs(model.rate(batch, 1, 1) / rates[batch] - 1) for batch in others}


def summary(errors: dict[str, dict[int, float]]) -> dict[str, Any]:
    every = sorted(error for of in errors.values() for error in of.values())
    p50, p95 = (every[math.ceil(share * len(every)) - 1] for share in (0.5, 0.95))
    return {
        "errors": {name: {str(batch): round(error, 4) for batch, error in of.items()} for name, of in errors.items()},
        "number": len(every),
        "p50": round(p50, 4),
        "p95": round(p95, 4),
        "most": round(every[-1], 4),
        "goal": {"p50": GOAL_P50, "p95": GOAL_P95},
        "met": p50 < GOAL_P50 and p95 < GOAL_P95,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each run")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    os.sched_setaffinity(0, {chosen.core})
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    errors = {
        name: errors_of(measured(make, chosen.rounds, chosen.seconds), list(PROFILED), list(OTHERS))
        for name, make in trainings().items()
    }
    of = f"PyTorch {torch.__version__} on core {chosen.core}, one thread: no GPU, none emulated"
    print(json.dumps({"of": of, "profiled": [*PROFILED], "rounds": chosen.rounds, **summary(errors)}, indent=1))


if __name__ == "__main__":
    main()
