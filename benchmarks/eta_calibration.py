"""Does what `hpcdl why` predicts come true? How often a job's true end, and its true start, fell into the band.

Simulates generated job sets under the daemon's own Controller and policies. At random instants, some waiting and some
running jobs are asked about exactly as `why` asks (hpcdl/daemon/api/estimates.py); the runs then show when they did
end.
The sets, by --sets: `mixed` (MARBLE's models, lengths even in their logarithm), `genie` and `sidecar` (those papers'
jobs, drawn anew); each with what may be known of them: `told` (profiles that are true), `off` (wrong by up to some
15 %, and that is known), `learnt` (no profiles: rates are learnt while jobs run). Starts and saves vary.

python benchmarks/eta_calibration.py                            # one JSON value; minutes
python benchmarks/eta_calibration.py --policies marble --seeds 1 2 --sets mixed
python benchmarks/eta_calibration.py --fit --seeds 0 1 2        # the weights of hpcdl/adaptive/eta.py; needs SciPy
"""

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.deadline_calibration import uncertain
from hpcdl.adaptive.eta import CLAIM, LEAST, Band, BandBasis, EtaBasis, log_ratio
from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.world import Job
from hpcdl.daemon.api.estimates import grounds
from hpcdl.estimators.scaling import learner
from hpcdl.policies import all_policies
from hpcdl.sim import Conditions, SimJob, Workload, cluster
from hpcdl.sim.engine import Simulation
from hpcdl.sim.papers.data import genie, sidecar

POLICIES = ("adaptive", "adaptive-fifo", "marble", "fifo-exclusive", "srt")
SETS = ("mixed", "genie", "sidecar")
KNOWN = ("told", "off", "learnt")
MODELS = ("resnet-50", "inception-v3", "resnet-101", "vgg-16")
ALONE_S = (300.0, 6 * 3600.0)
"""Seconds of training on one GPU of the mixed jobs: between these, even in their logarithm."""
TOGETHER = (1, 1, 1, 4, 12)
"""Jobs of one submit."""
SPREAD = 0.12
"""Relative standard error of rates that are `off`."""
JITTER = 0.2
"""Of starts and saves: sigma of their logarithm."""
REPORTED_S = 30.0
"""Between two reports of a trainer's progress."""
INSTANTS = 25
"""In each run, and at each of them so many jobs of each state:"""
ASKED = 3
MOST_SCALED = 8.0
"""Weights that were fitted are made larger by this at most, so that the bands hold."""

Floats = npt.NDArray[np.float64]
Names = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Told:
    """What was predicted of a job, and how it came: seconds from then on. `started_s`: None if it had started."""

    state: str
    policy: str
    of: str
    known: str
    grounds: EtaBasis
    ended_s: float
    started_s: float | None


class Asking(Simulation):
    """A simulation in which `why` is asked of some jobs at random instants."""

    def ask_at(self, moments: Iterable[float], draws: random.Random) -> list[tuple[float, int, str, EtaBasis]]:
        """To be called before it runs; what was predicted is in the list afterwards: when, of which job, its state."""
        answers: list[tuple[float, int, str, EtaBasis]] = []

        def ask() -> None:
            jobs = [self.world.jobs[number] for number in self.world.active]
            for state, alike in _by_state(jobs):
                for job in draws.sample(alike, min(ASKED, len(alike))):
                    found = grounds(self.world, job, self._profiles, self.now)
                    if found is not None:
                        answers.append((self.now, job.id, state, found))

        for moment in moments:
            self.at(moment, ask)
        return answers


def _by_state(jobs: Sequence[Job]) -> Iterator[tuple[str, list[Job]]]:
    for state, runs in (("waiting", False), ("running", True)):
        yield state, [job for job in jobs if (job.running is not None) is runs]


def mixed(seed: int, load: float, hours: float = 12.0, nodes: int = 4, gpus: int = 4) -> Workload:
    """Jobs that arrive at random, some of them many at once, as an array does. `load`: of one GPU for each job."""
    draws = random.Random(f"eta/mixed/{seed}/{load}")
    known = load_profiles([conf_folder() / "profiles"])
    profiles = [known[name] for name in MODELS]
    low, high = ALONE_S
    mean_s = (high - low) / math.log(high / low)
    gap_s = mean_s * sum(TOGETHER) / len(TOGETHER) / (load * nodes * gpus)
    at = draws.expovariate(1 / gap_s)
    jobs: list[SimJob] = []
    while at < hours * 3600.0:
        profile, most = draws.choice(profiles), draws.choice((1, 2, 4))
        least = draws.choice((1, most))
        for _ in range(draws.choice(TOGETHER)):
            alone_s = low * (high / low) ** draws.random()
            steps = max(1, round(profile.rate(1) * alone_s))
            jobs.append(SimJob(at, f"j{len(jobs)}", profile, steps, gpus_min=least, gpus_max=most))
        at += draws.expovariate(1 / gap_s)
    return Workload(f"mixed {load:g} seed {seed}", tuple(jobs), cluster(nodes, gpus, "v100"))


def drawn(of: str, seed: int) -> Workload:
    """A job set of that kind; its load depends on the seed."""
    if of == "mixed":
        return mixed(seed, (0.7, 0.9, 1.1)[seed % 3])
    if of == "genie":
        day = genie((10, 15, 20)[seed % 3], 1000 + seed)
        jobs = tuple(replace(job, deadline_s=None) for job in day.jobs if job.submit_s < 12 * 3600.0)
        return replace(day, jobs=jobs)
    return sidecar(("W1", "W2", "W3")[seed % 3], 1000 + seed)


def told(of: str, seed: int, known: str, policy: str) -> list[Told]:
    """What was predicted in one run, and how it came."""
    workload = drawn(of, seed)
    learn = None
    if known == "off":
        workload = uncertain(workload, SPREAD, seed)
    elif known == "learnt":
        workload = replace(workload, jobs=tuple(replace(job, told=False) for job in workload.jobs))
        sizes = workload.nodes_named
        learn = learner(max(sizes.values()), len(sizes), sorted({spell.kind for spell in workload.nodes}))
    conditions = Conditions(seed=seed, jitter=JITTER, progress_s=REPORTED_S)
    draws = random.Random(f"eta/asked/{of}/{seed}")
    last = workload.jobs[-1].submit_s
    moments = sorted(draws.uniform(0.0, last) for _ in range(INSTANTS))
    simulation = Asking(workload, policy, all_policies(), conditions, learn)
    found = simulation.ask_at(moments, draws)
    simulation.run()
    answers = []
    for at, number, state, each in found:
        job = simulation.world.jobs[number]
        if job.finished_at is not None and job.first_start_at is not None:
            started_s = job.first_start_at - at if job.first_start_at >= at else None
            answers.append(Told(state, policy, of, known, each, job.finished_at - at, started_s))
    return answers


def row(found: Sequence[Told]) -> dict[str, Any]:
    """How many, the share within the band, below and above, the median relative error and the median width."""
    ends, starts = [], []
    for each in found:
        eta = each.grounds.eta()
        ends.append((eta.ends, each.ended_s))
        if eta.starts is not None and each.started_s is not None:
            starts.append((eta.starts, each.started_s))
    return {"asked": len(found), "ends": _of(ends), "starts": _of(starts) if starts else None}


def _of(pairs: Sequence[tuple[Band, float]]) -> dict[str, float]:
    many = max(1, len(pairs))
    within = sum(band.low_s - 1.0 <= true <= band.high_s + 1.0 for band, true in pairs)
    below = sum(true < band.low_s - 1.0 for band, true in pairs)
    errors = [abs(band.expected_s - true) / max(60.0, true) for band, true in pairs]
    widths = [(band.high_s - band.low_s) / max(60.0, band.expected_s) for band, _ in pairs]
    return {
        "within": round(within / many, 3),
        "earlier": round(below / many, 3),
        "later": round((len(pairs) - within - below) / many, 3),
        "median_error": round(median(errors), 3) if errors else 0.0,
        "median_width": round(median(widths), 3) if widths else 0.0,
    }


def table(found: Sequence[Told]) -> dict[str, Any]:
    """Rows for all, by state, and of each state by policy, by set and by what was known."""
    rows: dict[str, Any] = {"all": row(found)}
    for state in ("waiting", "running"):
        mine = [each for each in found if each.state == state]
        rows[state] = {"all": row(mine)}
        for by, names in (("policy", POLICIES), ("of", SETS), ("known", KNOWN)):
            groups = {name: [each for each in mine if getattr(each, by) == name] for name in names}
            rows[state][by] = {name: row(group) for name, group in groups.items() if group}
    return rows


def fitted(found: Sequence[Told]) -> dict[str, Any]:
    """The weights of hpcdl/adaptive/eta.py, as these jobs have them: the bands are to hold under each policy."""
    known = {
        "OURS": [each for each in found if each.grounds.ours],
        "OTHERS": [each for each in found if not each.grounds.ours],
    }
    return {name: _fitted(each) for name, each in known.items() if each}


def _fitted(found: Sequence[Told]) -> dict[str, Any]:
    waits = [each for each in found if each.grounds.starts is not None]
    runs = [(each, each.grounds.ends, each.ended_s) for each in found if each.grounds.starts is None]
    ends = [(each, each.grounds.ends, each.ended_s) for each in waits]
    starts = [(each, each.grounds.starts, each.started_s) for each in waits]
    return {"running": _weights(runs), "ends": _weights(ends), "starts": _weights(starts)}


def _weights(cases: Iterable[tuple[Told, BandBasis | None, float | None]]) -> dict[str, list[float]]:
    known = [(each, ground, true) for each, ground, true in cases if ground is not None and true is not None]
    drawn_of = Counter((each.policy, each.of, each.known) for each, _, _ in known)
    counts = [1.0 / drawn_of[each.policy, each.of, each.known] for each, _, _ in known]
    grounds_of = [ground for _, ground, _ in known]
    off = np.array([log_ratio(true, ground.base_s) for _, ground, true in known])
    alike = np.array([each.policy for each, _, _ in known])
    faster, slower = (np.array(each) for each in zip(*((of.faster, of.slower) for of in grounds_of), strict=True))
    low = _opened(grounds_of, -off, faster, np.array(counts), alike)
    return {"low": low, "high": _opened(grounds_of, off, slower, np.array(counts), alike)}


def _opened(told_by: Sequence[BandBasis], off: Floats, rates: Floats, counts: Floats, alike: Names) -> list[float]:
    """Weights of 0 or more: of those `alike`, (1 - CLAIM) / 2 at most are further off than they open the band, and than
    their own rates may be."""
    share, many = (1 - CLAIM) / 2, len(off)
    signs = np.array([each.signs for each in told_by])
    # A quantile regression as a linear program: off = signs * weights + above - below.
    weight = counts / counts.sum()
    costs = np.concatenate([np.zeros(signs.shape[1]), (1 - share) * weight, share * weight])
    equal = sparse.hstack([sparse.csr_matrix(signs), sparse.identity(many), -sparse.identity(many)]).tocsc()
    solved = linprog(costs, A_eq=equal, b_eq=np.maximum(0.0, off - LEAST), bounds=(0.0, None), method="highs")
    opened = signs @ solved.x[: signs.shape[1]]

    def holds(scale: float) -> bool:
        beyond = off > LEAST + np.hypot(scale * opened, rates)
        return all(
            counts[beyond & of].sum() <= share * counts[of].sum() for of in (alike == each for each in set(alike))
        )

    low, high = 0.0, MOST_SCALED
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return [round(float(high * value), 2) for value in solved.x[: signs.shape[1]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--known", nargs="+", choices=KNOWN, default=list(KNOWN))
    parser.add_argument("--seeds", type=int, nargs="+", default=[31, 32, 33])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fit", action="store_true", help="print weights that these jobs would have")
    asked = parser.parse_args(argv)
    runs = list(product(asked.sets, asked.seeds, asked.known, asked.policies))
    with ProcessPoolExecutor(asked.processes) as pool:
        found = [each for run in pool.map(told, *zip(*runs, strict=True)) for each in run]
    figures = {"weights": fitted(found)} if asked.fit else table(found)
    print(json.dumps({"schema": 1, "claim": CLAIM, "seeds": asked.seeds, **figures}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
