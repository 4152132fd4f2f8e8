"""A table of a paper: simulated figures beside the printed ones, and means with intervals over seeds.

What a paper prints, and the notes on what it leaves open, stand in the YAML file of its name in this folder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

import yaml

from hpcdl.core.model.plan import Policies
from hpcdl.core.rules.exemption import STARTS
from hpcdl.policies import all_policies
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.engine import simulate
from hpcdl.sim.intervals import interval
from hpcdl.sim.workload import Workload, WorkloadError


@cache
def paper_file(name: str) -> Any:
    """The contents of NAME.yaml in this folder, read once: printed figures, notes, goals. Not to be changed."""
    return yaml.safe_load(files("hpcdl.sim.papers").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))


OWN = ("adaptive", "adaptive-fifo")
"""Policies of ours: they run as the daemon runs them, those of the papers by costs and rules of their own."""


def conditions_for(policy: str, objective: str = "jct", warm: bool = False, progress_s: float = 300.0) -> Conditions:
    """What a policy is simulated under, with the rule on preemption (`core.rules.exemption`) if it is ours."""
    exempt_starts = STARTS if policy in OWN else 0.0
    return Conditions(objective=objective, warm=warm, progress_s=progress_s, exempt_starts=exempt_starts)


def run_policy(
    workload: Workload, policy: str, conditions: Conditions, policies: Policies | None = None
) -> SimulatedRun:
    """The workload under a policy, `policies` instead of the usual ones. WorkloadError where the run had a problem."""
    run = simulate(workload, policy, policies or all_policies(), conditions)
    if run.problems:
        raise WorkloadError(f"{workload.name} under {policy}: {run.problems[0]}")
    return run


_FIXED = frozenset({"workload", "policy", "makespan_s", "mean_jct_s", "paper"})


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A workload under a policy. Times are seconds, NaN where a row has none (null in JSON).

    more: further figures of ours by key: numbers, words, or None where there is none.
    paper: what the paper prints for this row, by the same keys; empty where it prints nothing.
    """

    workload: str
    policy: str
    makespan_s: float
    mean_jct_s: float
    more: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twice = _FIXED & self.more.keys()
        if twice:
            raise ValueError(f"{sorted(twice)} are columns of their own, not further figures")

    def to_json(self) -> dict[str, Any]:
        """The row as JSON: the further figures stand beside the times."""
        return {
            "workload": self.workload,
            "policy": self.policy,
            "makespan_s": None if math.isnan(self.makespan_s) else self.makespan_s,
            "mean_jct_s": None if math.isnan(self.mean_jct_s) else self.mean_jct_s,
            **self.more,
            "paper": dict(self.paper),
        }


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Rows, and notes: where the paper leaves an input open, and what was chosen."""

    name: str
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The table as JSON."""
        return {"name": self.name, "rows": [row.to_json() for row in self.rows], "notes": list(self.notes)}


def mean(runs: Sequence[object], name: str) -> float:
    """The mean of a figure over runs."""
    return fmean(getattr(run, name) for run in runs)


def intervals(runs: Sequence[object], *names: str) -> dict[str, float]:
    """Means of figures over runs by name, each with half its 95 % interval as NAME_ci95."""
    found: dict[str, float] = {}
    for name in names:
        found[name], found[f"{name}_ci95"] = interval([getattr(run, name) for run in runs])
    return found


def seeds_note(seeds: Sequence[int]) -> str:
    """Which seeds a table is over."""
    return f"Seeds {seeds[0]} to {seeds[-1]}, {len(seeds)} of them."
