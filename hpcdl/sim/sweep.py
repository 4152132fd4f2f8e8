"""Many simulations at once: policies by settings, over draws, with intervals.

A draw is a workload with a seed: the same draws under each policy and setting, so their differences are paired. `cli`
says what the settings are; each simulation is a process of `parallel`. `sweep_page` draws what comes out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

from hpcdl.core.model.units import one_of
from hpcdl.policies import all_policies
from hpcdl.sim.beliefs import Beliefs, believe, learner_of
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.intervals import interval
from hpcdl.sim.jct_bound import mean_jct_bound_s
from hpcdl.sim.parallel import Progress, in_processes
from hpcdl.sim.results import Results, summarise
from hpcdl.sim.workload import Workload, WorkloadError

MEANS = (
    "mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "mean_wait_s", "utilisation", "lost_share", "suspends",
    "deadlines_met", "mean_fairness", "worst_fairness", "bound_mean_jct_s",
)  # fmt: skip
"""Of these measures of `Results` a row has the mean and half its interval."""

MOST_RUNS = 100_000

Setting = tuple[tuple[str, str], ...]
"""A value for each axis but the seed."""


def parse_axes(texts: Iterable[str], known: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of `load=0.8,1`, `seed=0..9`, `unknown=none,curves+steps`: the values by axis, of those known. Raises
    WorkloadError."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        for part in text.split():
            name, equals, listed = part.partition("=")
            if name not in known or not equals:
                hint = "write KEY=VALUE,VALUE,.." if name in known else one_of(name, known)
                raise WorkloadError(f"cannot sweep over {part!r}: {hint}")
            values = tuple(each for each in listed.split(",") if each)
            if name == "seed":
                values = tuple(f"{seed}" for each in values for seed in _seeds(each))
            if not values or len(set(values)) < len(values) or name in found:
                raise WorkloadError(f"cannot sweep over {part!r}: give each axis once, with different values")
            found[name] = values
    return found


def _seeds(text: str) -> Iterable[int]:
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        seeds = range(0)
    if not 0 < len(seeds) <= MOST_RUNS:
        raise WorkloadError(f"cannot sweep over seed={text}: write N or FIRST..LAST")
    return seeds


def settings_of(axes: Mapping[str, Sequence[str]]) -> list[Setting]:
    """Every combination of the values of all axes but the seed."""
    names = [name for name in axes if name != "seed"]
    return [tuple(zip(names, values, strict=True)) for values in product(*(axes[name] for name in names))]


def at_load(workload: Workload, load: float) -> Workload:
    """The workload with its submits `load` times as fast one after the other; deadlines stay as far from them."""
    jobs = []
    for job in workload.jobs:
        at = job.submit_s / load
        due = None if job.deadline_s is None else at + job.deadline_s - job.submit_s
        jobs.append(replace(job, submit_s=at, deadline_s=due))
    return replace(workload, jobs=tuple(jobs))


@dataclass(frozen=True, slots=True)
class SweepInput:
    """A draw under a setting: what each policy is to be simulated with. `draw`: (workload, seed)."""

    setting: Setting
    draw: tuple[str, int]
    workload: Workload
    conditions: Conditions
    beliefs: Beliefs


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A simulation of a sweep."""

    setting: Setting
    draw: tuple[str, int]
    results: Results

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        name, seed = self.draw
        return {"setting": dict(self.setting), "workload": name, "seed": seed, **self.results.to_json(jobs=False)}


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A policy under a setting, over its draws. `figures`: by name, each with half its 95 % interval as NAME_ci95;
    `jct_vs_first`: by how much its mean JCT is above that of the first policy, on the same draws. `unfair`: how many
    jobs were above the maximal slowdown."""

    setting: Setting
    policy: str
    draws: int
    unfair: int
    figures: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return {
            "setting": dict(self.setting),
            "policy": self.policy,
            "draws": self.draws,
            "above_max_slowdown": self.unfair,
            **{name: round(value, 6) for name, value in self.figures.items()},
        }


def simulated(
    inputs: Sequence[SweepInput],
    policies: Sequence[str],
    progress: Progress,
    *,
    home: Path | None = None,
    bound: bool = False,
    workers: int | None = None,
) -> tuple[list[SweepRun], list[str]]:
    """Every input under every policy, in processes; and a line for each that went wrong. `home`: of users' policies."""
    calls = {
        f"{policy} on {each.draw[0]}, {text_of((*each.setting, ('seed', str(each.draw[1]))))}": partial(
            _run, each, policy, home, bound
        )
        for each in inputs
        for policy in policies
    }
    found, problems = in_processes(calls, progress, workers)
    runs = [found[name] for name in calls if name in found]
    problems += [f"{name}: {problem}" for name, run in found.items() for problem in run.results.problems]
    return runs, problems


def _run(given: SweepInput, policy: str, home: Path | None, bound: bool) -> SweepRun:
    workload = believe(given.workload, given.beliefs, given.conditions.seed)
    learn = learner_of(workload, given.beliefs.unknown) if "curves" in given.beliefs.unknown else None
    run = simulate(workload, policy, all_policies(home=home), given.conditions, learn)
    bound_s = mean_jct_bound_s(workload, given.conditions) if bound else None
    return SweepRun(given.setting, given.draw, replace(summarise(run, bound_s), jobs=()))


def rows_of(runs: Sequence[SweepRun]) -> list[SweepRow]:
    """A row for each setting and policy, in the order of the runs.

    Where seeds change nothing (nothing of a workload is left to chance) its runs count once.
    """
    first = next((run.results.policy for run in runs), "")
    by_row: dict[tuple[Setting, str], dict[tuple[str, int], Results]] = {}
    for run in runs:
        by_row.setdefault((run.setting, run.results.policy), {})[run.draw] = run.results
    rows = []
    for (setting, policy), draws in by_row.items():
        kept = _distinct(draws)
        figures: dict[str, float] = {}
        for name in MEANS:
            values = [value for each in kept.values() if (value := getattr(each, name)) is not None]
            if values:
                figures[name], figures[f"{name}_ci95"] = interval(values)
        base = by_row.get((setting, first), {})
        ratios = [
            each.mean_jct_s / other.mean_jct_s - 1
            for draw, each in kept.items()
            if (other := base.get(draw)) and each.mean_jct_s and other.mean_jct_s
        ]
        if ratios and policy != first:
            figures["jct_vs_first"], figures["jct_vs_first_ci95"] = interval(ratios)
        unfair = sum(len(each.above_max_slowdown) for each in kept.values())
        rows.append(SweepRow(setting, policy, len(kept), unfair, figures))
    return rows


def _distinct(draws: Mapping[tuple[str, int], Results]) -> dict[tuple[str, int], Results]:
    found: dict[tuple[str, int], Results] = {}
    for _, same in groupby(sorted(draws), key=lambda draw: draw[0]):
        seeds = [*same]
        if len({replace(draws[draw], problems=()) for draw in seeds}) == 1:
            seeds = seeds[:1]
        found |= {draw: draws[draw] for draw in seeds}
    return found


def text_of(setting: Setting) -> str:
    """`load 0.8, seed 3`; "" of no axis."""
    return ", ".join(f"{name} {value}" for name, value in setting)
