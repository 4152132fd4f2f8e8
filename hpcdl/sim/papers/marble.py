"""The figures of the MARBLE paper (Han et al., CCGrid 2020): job sets 1 to 9, and how our policy does on them.

Job sets and printed totals are in conf/jobsets/marble.yaml, the notes below each table in marble.yaml.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import yaml

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.plan import Policies
from hpcdl.core.model.profile import Profile, find_profile
from hpcdl.report.memory import ModelMemory
from hpcdl.sim.intervals import interval
from hpcdl.sim.papers.optimum import OfflineJob, Optimum, bound, optimum
from hpcdl.sim.papers.optimus import OptimusNodes
from hpcdl.sim.papers.table import PaperRow, PaperTable, conditions_for, mean, paper_file, run_policy
from hpcdl.sim.results import Results, summarise
from hpcdl.sim.workload import SimJob, Workload, cluster

SEEDS = tuple(range(100))
NOISE = 0.1
GPUS = 6
NODES = 8
SINGLE, MULTI, OPTIMUS = (1, 2, 3), (4, 5, 6), (7, 8, 9)
COUNTED_TOGETHER = float(NODES)
"""Steps of eight nodes for one of each: every node's update of the parameters counts (TensorFlow's global step)."""

_SOURCE = "MARBLE (Han et al., CCGrid 2020)"
_PAPER = paper_file("marble")
_NOTES: Mapping[str, Sequence[str]] = _PAPER["notes"]


def marble_set(number: int, speed: float = 1.0, nodes: int | None = None) -> Workload:
    """Job set 1 to 9. `speed`: factor on the rates; `nodes`: of each job and in all, None: as in the paper, else 1."""
    entry = _sets()[number]
    nodes = nodes or entry.get("nodes", 1)
    jobs = []
    for place, job in enumerate(entry["jobs"], 1):
        profile = _profile(job["model"], nodes, speed)
        memory = memory_of(job["model"], nodes)
        jobs.append(SimJob(0.0, f"{job['model']} {place}", profile, job["steps"], nodes=nodes, memory=memory))
    there = cluster(nodes, entry.get("gpus_per_node", GPUS), "v100", memory_mib=gpu_mib())
    return Workload(f"set {number}", tuple(jobs), there, _SOURCE)


def gpu_mib() -> int:
    """Memory of a GPU of Summit."""
    size: int = _jobsets()["memory"]["gpu_mib"]
    return size


def memory_of(model: str, nodes: int = 1) -> ModelMemory:
    """What training the model is assumed to take of each GPU, where each of the nodes has a batch of its own."""
    assumed = _jobsets()["memory"]["models"][model]
    return ModelMemory(assumed["state_mib"], assumed["batch_mib"] * nodes)


def optimus_set(number: int) -> Workload:
    """Job set 7 to 9 where a job may have whole nodes only, from one to all eight."""
    jobs = []
    for place, job in enumerate(_sets()[number]["jobs"], 1):
        on_one = _profile(job["model"], 1, 1.0)
        points = tuple((nodes, gpus, rate * nodes) for nodes in range(1, NODES + 1) for _, gpus, rate in on_one.points)
        profile = replace(on_one, points=points)
        name = f"{job['model']} {place}"
        jobs.append(SimJob(0.0, name, profile, job["steps"], gpus_min=GPUS, nodes=1, nodes_max=NODES))
    return Workload(f"set {number}", tuple(jobs), cluster(NODES, GPUS, "v100"), _SOURCE)


def with_noise(workload: Workload, seed: int, sigma: float = NOISE, told: bool = True) -> Workload:
    """The workload where policies believe rates that are wrong. `told`: and know by how much they are."""
    believed: dict[str, Profile] = {}
    jobs = []
    for job in workload.jobs:
        name = job.profile.name
        if name not in believed:
            chance = random.Random(f"{seed} {name}")
            points = tuple(
                (nodes, gpus, rate * max(0.1, 1 + sigma * chance.gauss(0, 1)))
                for nodes, gpus, rate in job.profile.points
            )
            believed[name] = replace(job.profile, points=points, spread=sigma if told else 0.0)
        jobs.append(replace(job, believed=believed[name]))
    return replace(workload, jobs=tuple(jobs))


def run_one(workload: Workload, policy: str, warm: bool = False, policies: Policies | None = None) -> Results:
    """The set under a policy that aims for the makespan. WorkloadError where the run had a problem."""
    return summarise(run_policy(workload, policy, conditions_for(policy, "makespan", warm), policies))


def tables(seeds: Iterable[int] = SEEDS) -> tuple[PaperTable, ...]:
    """All job sets. `seeds`: of the noise in the curves."""
    return (
        curves(),
        single_node(),
        predicted(),
        warm_starts(),
        noise(tuple(seeds)),
        several_nodes("MARBLE sets 4 to 6", COUNTED_TOGETHER),
        several_nodes("MARBLE sets 4 to 6, steps counted on one node", 1.0),
        against_optimus(),
        gpu_by_gpu(),
    )


def curves() -> PaperTable:
    """What the text says of figure 2, of the curves that are used: the fastest number of GPUs, and what it gains."""
    rows = []
    for model in ("ResNet-50", "Inception-v3", "ResNet-101", "VGG-16"):
        profile = _profile(model, 1, 1.0)
        best = profile.best_gpus(GPUS)
        gain = 1 - profile.rate(GPUS) / profile.rate(best)
        more = {"fastest_gpus": best, "speedup": profile.speedup(best), "gain_over_all_gpus": gain}
        rows.append(PaperRow(model, "profile", math.nan, math.nan, more))
    return PaperTable("MARBLE figure 2: curves", tuple(rows), (_NOTES["fit"][0],))


def single_node() -> PaperTable:
    """Sets 1 to 3 beside the printed totals and the offline optimum."""
    rows: list[PaperRow] = []
    for number in SINGLE:
        rows += _rows(number, marble_set(number), ("fifo-exclusive", "marble", "adaptive"))
    rows += _sums(rows)
    return PaperTable("MARBLE sets 1 to 3", tuple(rows), (*_NOTES["fit"], *_NOTES["memory"]))


def predicted() -> PaperTable:
    """Sets 1 to 3 with curves that set 1's totals and nothing of the others fix, under the paper's two schedulers."""
    curves = {}
    for model, told in _PAPER["from_set_1"].items():
        points = tuple((1, gpus, rate) for gpus, rate in enumerate(told["rates"], 1))
        curves[model] = Profile(model, points, told["startup_s"], told["save_s"], told["resume_s"])
    rows: list[PaperRow] = []
    for number in SINGLE:
        fitted = marble_set(number)
        jobs = tuple(replace(job, profile=curves[job.profile.name]) for job in fitted.jobs)
        rows += _rows(number, replace(fitted, jobs=jobs), ("fifo-exclusive", "marble"))
    return PaperTable("MARBLE sets 1 to 3, predicted from set 1", tuple(rows), tuple(_NOTES["predicted"]))


def warm_starts() -> PaperTable:
    """Sets 1 to 3 with warm starts."""
    rows = []
    for number in SINGLE:
        workload = marble_set(number)
        cold = run_one(workload, "marble")
        for policy in ("marble-warm", "adaptive"):
            result = run_one(workload, policy, warm=True)
            more = _more(result) | {"vs_marble": 1 - result.makespan_s / cold.makespan_s}
            rows.append(_row(workload.name, policy, result, more, {}))
    return PaperTable("MARBLE sets 1 to 3, warm starts", tuple(rows), tuple(_NOTES["warm"]))


def several_nodes(title: str, speed: float) -> PaperTable:
    """Sets 4 to 6 beside the printed reductions."""
    rows = []
    for number in MULTI:
        rows += _rows(number, marble_set(number, speed), ("fifo-exclusive", "marble", "adaptive"))
    return PaperTable(title, tuple(rows), (*_NOTES["several_nodes"], _NOTES["memory"][0]))


def against_optimus() -> PaperTable:
    """Sets 7 to 9 on eight nodes: Optimus with whole nodes, MARBLE and ours with GPUs on each of them."""
    rows = []
    for number in OPTIMUS:
        by_node = optimus_set(number)
        rows += _beside_optimus(marble_set(number, COUNTED_TOGETHER, NODES), by_node)
    return PaperTable("MARBLE sets 7 to 9", tuple(rows), tuple(_NOTES["optimus"]))


def gpu_by_gpu() -> PaperTable:
    """Sets 7 to 9 on one node, where Optimus gives GPUs."""
    rows = []
    for number in OPTIMUS:
        rows += _beside_optimus(marble_set(number), None)
    return PaperTable("MARBLE sets 7 to 9, GPU by GPU", tuple(rows), tuple(_NOTES["gpu_by_gpu"]))


def _beside_optimus(workload: Workload, by_node: Workload | None) -> list[PaperRow]:
    if by_node is None:
        theirs = run_one(workload, "optimus")
    else:
        policies = Policies()
        policies.register(OptimusNodes.name, OptimusNodes)
        theirs = run_one(by_node, OptimusNodes.name, policies=policies)
    rows = []
    for policy in ("fifo-exclusive", "optimus", "marble", "adaptive"):
        result = theirs if policy == "optimus" else run_one(workload, policy)
        more = _more(result) | {"vs_optimus": 1 - result.makespan_s / theirs.makespan_s}
        printed = {"vs_optimus_at_most": 0.47} if policy == "marble" and by_node is not None else {}
        rows.append(_row(workload.name, policy, result, more, printed))
    best, least_s = offline(workload, min(row.makespan_s for row in rows))
    more = {
        "suspends": best.suspends,
        "vs_optimus": 1 - best.makespan_s / theirs.makespan_s,
        "bound_s": least_s,
    }
    rows.append(PaperRow(workload.name, "optimum", best.makespan_s, fmean(best.ends), more))
    return rows


def noise(seeds: Sequence[int]) -> PaperTable:
    """Sets 1 to 3 with errors in the curves that policies believe."""
    rows = []
    for number in SINGLE:
        true = marble_set(number)
        without_noise_s = run_one(true, "marble").makespan_s
        base: list[Results] = []
        for policy, told in (("marble", True), ("adaptive", True), ("adaptive", False)):
            runs = [run_one(with_noise(true, seed, told=told), policy) for seed in seeds]
            base = base or runs
            mean_s, half_s = interval([run.makespan_s for run in runs])
            more = {
                "makespan_s_ci95": half_s,
                "vs_marble": 1 - mean_s / mean(base, "makespan_s"),
                "vs_marble_true": 1 - mean_s / without_noise_s,
                "worst_s": max(run.makespan_s for run in runs),
                "seeds": len(runs),
            }
            words = "" if policy == "marble" else f", error {'told' if told else 'not told'}"
            rows.append(PaperRow(f"set {number}, noise{words}", policy, mean_s, mean(runs, "mean_jct_s"), more))
    return PaperTable("MARBLE sets 1 to 3, noise in the curves", tuple(rows), (_NOTES["fit"][0], *_NOTES["noise"]))


def offline(workload: Workload, known_s: float) -> tuple[Optimum, float]:
    """The best schedule of a set, and the bound for all schedules. `known_s`: a makespan that some schedule has."""
    jobs = [OfflineJob(job.profile, job.steps) for job in workload.jobs]
    nodes = len(workload.nodes)
    best = optimum(jobs, GPUS, nodes, below_s=known_s + 0.01)
    if not best.decisions:  # that schedule decides at other moments, and is shorter
        best = optimum(jobs, GPUS, nodes)
    return best, bound(jobs, GPUS, nodes)


def _rows(number: int, workload: Workload, policies: Sequence[str]) -> list[PaperRow]:
    """A row for each policy, the first of which is LSF's, and one for the offline optimum."""
    printed = _sets()[number]["printed"]
    results = {policy: run_one(workload, policy) for policy in policies}
    lsf, marble_s = results["fifo-exclusive"], results["marble"].makespan_s
    best, least_s = offline(workload, min(result.makespan_s for result in results.values()))
    rows = []
    for policy, result in results.items():
        more = _more(result) | {
            "reduction": 1 - result.makespan_s / lsf.makespan_s,
            "vs_marble": 1 - result.makespan_s / marble_s,
        }
        more["over_optimum"] = round(result.makespan_s / best.makespan_s - 1, 9)
        more |= _gains(result, lsf)
        rows.append(_row(workload.name, policy, result, more, _printed(policy, printed)))
    more = {
        "suspends": best.suspends,
        "reduction": 1 - best.makespan_s / lsf.makespan_s,
        "vs_marble": 1 - best.makespan_s / marble_s,
        "bound_s": least_s,
    }
    rows.append(PaperRow(workload.name, "optimum", best.makespan_s, fmean(best.ends), more))
    return rows


def _gains(result: Results, lsf: Results) -> dict[str, float]:
    """Figures 6b, 6c, 7b and 7c: how much more of the GPUs and of their memory is in use than under LSF, relatively."""
    found = {}
    for key, what in (("utilisation_gain", "utilisation"), ("memory_gain", "memory_utilisation")):
        ours, theirs = getattr(result, what), getattr(lsf, what)
        if ours is not None and theirs:
            found[key] = ours / theirs - 1
    return found


def _printed(policy: str, printed: Mapping[str, Any]) -> dict[str, Any]:
    if policy == "fifo-exclusive" and "lsf_s" in printed:
        return {"makespan_s": printed["lsf_s"]}
    if policy == "marble":
        return {"makespan_s" if key == "marble_s" else key: printed[key] for key in printed if key != "lsf_s"}
    return {}


def _sums(rows: Sequence[PaperRow]) -> list[PaperRow]:
    """One row for each policy: the totals of all sets together."""
    found = []
    for policy in dict.fromkeys(row.policy for row in rows):
        own = [row for row in rows if row.policy == policy]
        theirs = sum(row.makespan_s for row in rows if row.policy == "marble")
        total_s = sum(row.makespan_s for row in own)
        printed = [row.paper["makespan_s"] for row in own if "makespan_s" in row.paper]
        paper = {"makespan_s": sum(printed)} if len(printed) == len(own) else {}
        more = {"vs_marble": 1 - total_s / theirs}
        found.append(PaperRow("all together", policy, total_s, fmean(row.mean_jct_s for row in own), more, paper))
    return found


def _more(result: Results) -> dict[str, Any]:
    return {
        "suspends": result.suspends,
        "utilisation": result.utilisation,
        "memory_utilisation": result.memory_utilisation,
        "suspend_resume_share": result.lost_share,
    }


def _row(workload: str, policy: str, result: Results, more: Mapping[str, Any], printed: Mapping[str, Any]) -> PaperRow:
    return PaperRow(workload, policy, result.makespan_s, result.mean_jct_s or 0.0, more, printed)


@lru_cache(maxsize=1)
def _jobsets() -> dict[str, Any]:
    with (conf_folder() / "jobsets" / "marble.yaml").open() as file:
        found: dict[str, Any] = yaml.safe_load(file)
    return found


def _sets() -> dict[int, dict[str, Any]]:
    sets: dict[int, dict[str, Any]] = _jobsets()["sets"]
    return sets


@lru_cache(maxsize=64)
def _profile(model: str, nodes: int, speed: float) -> Profile:
    """The model's fitted curve, moved to that number of nodes. KeyError names a model without one."""
    found = find_profile(load_profiles([conf_folder() / "profiles"]), model)
    if found is None:
        raise KeyError(model)
    return replace(found, points=tuple((nodes, gpus, rate * speed) for _, gpus, rate in found.points))
