"""The streams and sets of jobs of `peers`, and what comes of one under a policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hpcdl.core.model.profile import Profile
from hpcdl.policies import all_policies
from hpcdl.sim import NodeSpell, SimJob, Workload, cluster, simulate, summarise
from hpcdl.sim.beliefs import believe, learner_of, parse_beliefs
from hpcdl.sim.generators import chance, exponential_gaps
from hpcdl.sim.jct_bound import mean_jct_bound_s
from hpcdl.sim.papers.data import sidecar
from hpcdl.sim.papers.table import conditions_for
from hpcdl.sim.readers import Costs, read_throughputs, read_workload
from hpcdl.sim.results import percentile
from hpcdl.sim.sweep import at_load

NODES, GPUS = 4, 8
TYPES = ("v100", "p100", "k80")
COSTS = Costs(30.0, 30.0, 7.5)
LOADS = (0.8, 1.0, 1.3)
JOBS, MOST_S = 120, 86400.0  # of a Poisson stream, and the longest of them


class Stream(NamedTuple):
    """A draw. `kind`: trace, poisson, pollux, sidecar; `name`: its file, or its set. `jobs`: elastic, rigid, or ""."""

    kind: str
    name: str
    jobs: str = ""
    load: float = 1.0
    mixed: bool = False
    seed: int = 0


class Case(NamedTuple):
    """A stream under a policy that is told so much of it."""

    stream: Stream
    policy: str
    unknown: str = ""
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case. `slowdowns`: of its jobs, finish-time fairness; `bound_s`: of the mean JCT."""

    mean_jct_s: float
    p99_jct_s: float
    makespan_s: float
    suspends: int
    slowdowns: tuple[float, ...]
    bound_s: float | None


@cache
def throughputs(path: Path, costs: bool) -> dict[str, Profile]:
    """Gavel's table, with or without costs."""
    found = read_throughputs(path, "v100", GPUS)
    return {name: COSTS.on(profile) or profile if costs else profile for name, profile in found.items()}


def nodes_of(mixed: bool) -> tuple[NodeSpell, ...]:
    """4 nodes of V100, or 2 of each type, with 8 GPUs each."""
    if not mixed:
        return cluster(NODES, GPUS, "v100")
    return tuple(spell for place, kind in enumerate(TYPES) for spell in cluster(2, GPUS, kind, first=1 + 2 * place))


def workload_of(stream: Stream, table: Path | None) -> Workload:
    """The jobs of a stream and their nodes."""
    if stream.kind == "pollux":
        return read_workload(Path(stream.name), {})
    if stream.kind == "sidecar":
        return sidecar(stream.name, stream.seed)
    if table is None:
        raise ValueError("it needs --throughputs")
    profiles = throughputs(table, costs=not stream.mixed)
    if stream.kind == "poisson":
        return poisson(stream, profiles)
    found = read_workload(Path(stream.name), profiles, nodes_of(stream.mixed), "v100")
    work = replace(found, jobs=tuple(_sized(job, job.draw or 1, stream.jobs) for job in found.jobs))
    return at_load(work, stream.load)


def _sized(job: SimJob, gpus: int, how: str) -> SimJob:
    """Elastic: on 1, 2, 4 or 8 GPUs; rigid: on as many as it asks for."""
    counts = (1, 2, 4, 8) if how == "elastic" else (gpus,)
    return replace(job, gpus_min=counts[0], gpus_max=counts[-1], gpus_counts=counts, draw=gpus)


def poisson(stream: Stream, profiles: Mapping[str, Profile]) -> Workload:
    """As Gavel's generator: 10^U(1.5, 3) minutes, every fifth 10^U(3, 4), on 1, 2, 4, 8 GPUs (70, 10, 15, 5 %); here at
    most 6 h, with exponential gaps that give the load on 32 V100 when every job has exactly its GPUs."""
    draws = chance("peers", "poisson", stream.seed)
    models = [each for _, each in sorted(profiles.items()) if len(dict(each.kinds).get("v100", ())) >= 4]
    drawn = []
    for _ in range(JOBS):
        long = draws.random() >= 0.8
        seconds = min(MOST_S, 60 * 10 ** draws.uniform(*((3.0, 4.0) if long else (1.5, 3.0))))
        drawn.append((seconds, draws.choices((1, 2, 4, 8), (70, 10, 15, 5))[0], draws.choice(models)))
    span_s = math.fsum(seconds * gpus for seconds, gpus, _ in drawn) / (NODES * GPUS * stream.load)
    jobs: list[SimJob] = []
    for at, (seconds, gpus, model) in zip(exponential_gaps(draws, JOBS, span_s), drawn, strict=True):
        steps = max(1, round(seconds * model.on("v100").rate(gpus)))
        jobs.append(_sized(SimJob(at, f"{len(jobs) + 1} {model.name}", model, steps), gpus, stream.jobs))
    return Workload(f"poisson {stream.seed}", tuple(jobs), nodes_of(stream.mixed))


def run(case: Case, table: Path | None) -> Outcome:
    """Simulates a case. ValueError where something went wrong in it."""
    beliefs = parse_beliefs(case.unknown, [case.wrong])
    work = believe(workload_of(case.stream, table), beliefs, case.stream.seed)
    learn = learner_of(work, beliefs.unknown) if "curves" in beliefs.unknown else None
    conditions = replace(conditions_for(case.policy), seed=case.stream.seed)
    if case.stream.kind != "sidecar":
        conditions = replace(conditions, exempt_starts=conditions_for("adaptive").exempt_starts)
    done = summarise(simulate(work, case.policy, all_policies(), conditions, learn))
    if done.problems or done.mean_jct_s is None:
        raise ValueError("; ".join(done.problems) or "no job ended")
    jcts = [job.jct_s for job in done.jobs if job.jct_s is not None]
    return Outcome(
        mean_jct_s=done.mean_jct_s,
        p99_jct_s=percentile(jcts, 0.99) or 0.0,
        makespan_s=done.makespan_s,
        suspends=done.suspends,
        slowdowns=tuple(job.fairness for job in done.jobs if job.fairness is not None),
        bound_s=mean_jct_bound_s(work, conditions),
    )
