"""A BFTrainer paper whose replays are made up, so that its tables can be computed by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcdl.sim.replay import IdleTrace, ReplayCase

TRACE = "node,idle_from_s,idle_until_s\na,0,50000\nb,0,900\nc,100,50000\nd,1800,49000\n"

WHOLE_H, CUT_H = 6.0, 1.5


def small_trace(folder: Path) -> Path:
    """A file with a trace of four nodes."""
    path = folder / "idle.csv"
    path.write_text(TRACE)
    return path


def made_up(idle: IdleTrace, case: ReplayCase, progress: object = None) -> Any:
    """In the place of `studies.replayed`: figures that say which replay they are of."""
    ours = case.policy == "bftrainer"
    seed = 0.0 if case.arrivals is None else case.arrivals[0] % 1
    windows = [
        {"from_h": 0.0, "until_h": WHOLE_H, "U": 0.8 if ours else 0.5, "idle_nodes": 3.0},
        {"from_h": WHOLE_H, "until_h": 2 * WHOLE_H, "U": 0.7, "idle_nodes": 3.0},
        {"from_h": 2 * WHOLE_H, "until_h": 2 * WHOLE_H + CUT_H, "U": 0.99, "idle_nodes": 3.0},
    ]
    values: dict[str, Any] = dict.fromkeys(("samples", "completed", "rescales", "preemptions", "return_per_event"), 1)
    values |= {
        "U": 0.75 if ours else 0.6,
        "bound_U": 0.8,
        "rescale_cost_per_event": 100.0 * (case.t_fwd_s or 1) if ours else 76_000.0,
        "return_on_investment": 2.0,
        "preempted_share": 0.9,
        "used_share": 1 - 1 / case.parallel,
        "node_hours": 100.0 - case.parallel,
        "hours": 13.5,
        "decisions": {"p99_ms": 5.0},
        "windows": [window | {"rescale_loss": 1.0, "preemption_loss": 2.0} for window in windows],
    }
    values |= dict.fromkeys(("rescale_loss", "preemption_loss", "node_hours_per_trainer", "by_efficiency"))
    values |= {"runtime_h": {}, "problems": []}
    hours = {
        model.name: case.parallel * (1.0 + place) + (10 * seed if model.name == "AlexNet" else 0)
        for place, model in enumerate(case.models)
    }
    return SimpleNamespace(
        to_json=lambda: values,
        active_h=hours,
        event_samples=(10.0, 1.0, 5.0, 0.0, 3.0) if ours else (2.0, 2.0, 4.0, 0.0, -1.0),
    )
