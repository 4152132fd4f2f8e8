"""Is what a submit says of its deadline true, where all that is known is a short trial? Simulated and real submits.

Each case is a trial, a job of the same script with other steps, perhaps on other GPUs, and a deadline. Scripts warm up
in several ways, their steps are noisy, jobs differ from each other, and some do not use further GPUs. The answer is the
daemon's own (`daemon/api/estimates.forecast`), from the reports of the trial; it is compared with what then came.
Simulated cases are drawn from --seed. Real ones are processes under a daemon with emulated GPUs in a new folder of
TMPDIR: some seconds each.

python benchmarks/deadlines_after_trials.py [--simulated 200] [--families 0] [--real 30] [--seed 1]

Prints one JSON value: how many were called impossible and were met, and by what was told the share that was met.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measuring import say, setting  # noqa: E402
from hpcdl.agent.part import FIRST_REPORTS_S  # noqa: E402
from hpcdl.client import Client  # noqa: E402
from hpcdl.core.controller.view_builder import build_view  # noqa: E402
from hpcdl.core.fold.fold import fold  # noqa: E402
from hpcdl.core.model import events as ev  # noqa: E402
from hpcdl.core.model.incarnation import Cause, Placement, Share  # noqa: E402
from hpcdl.core.model.job import JobSpec  # noqa: E402
from hpcdl.core.model.world import GpuInfo, JobState, World  # noqa: E402
from hpcdl.daemon.api.estimates import forecast  # noqa: E402
from hpcdl.daemon.learner import Learner  # noqa: E402
from hpcdl.policies import all_policies  # noqa: E402

NOW = 1_000_000.0
INTERVAL_S = 10.0
"""Of an agent's reports; the first ones follow each other as `FIRST_REPORTS_S` of `agent/part.py` says."""
LATE_S = 0.4
"""A report's step is at most so old."""
BINS = (0.0, 0.15, 0.5, 0.85, 1.001)
ALLOWED = 0.15
"""What is told may differ by so much from what comes."""
GPUS = 4
FAMILIES = ("usual", "long warm-up", "superlinear", "unlike", "noisy", "slow first step", "stalls", "evaluations")
"""Of scripts. usual: several short warm-ups, some noise. long warm-up: of 100 to 2000 steps. superlinear: over GPUs.
unlike: a script's jobs differ by 25 %. noisy: single steps do, by a factor of two to four. slow first step: one of 10 s
to 5 min. stalls: data are late for every 20th to 200th step. evaluations: every 50 to 1000 steps one that takes as long
as 5 to 30 % of these.
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A training script: seconds of a step on one GPU, and how its steps differ from that.

    `start_s`: until its loop begins. `warm`: factors of the first steps' seconds. `noise`: sigma of the logarithm of a
    step's seconds; `jobs`: the same of a whole job's. `exponent`: n GPUs are n to this power times as fast. One of
    `every` steps takes `pause` steps longer (0: none), each of them if that is `regular`, else by chance.
    """

    step_s: float
    start_s: float
    warm: tuple[float, ...]
    noise: float
    jobs: float
    exponent: float
    every: int = 0
    pause: float = 0.0
    regular: bool = False

    def seconds_of(self, steps: int, gpus: int, chance: random.Random) -> Iterator[float]:
        """The seconds of each step of one job."""
        step_s = self.step_s * math.pow(gpus, -self.exponent) * math.exp(chance.gauss(0.0, self.jobs))
        for step in range(steps):
            factor = self.warm[step] if step < len(self.warm) else 1.0
            if self.every and ((step + 1) % self.every == 0 if self.regular else chance.random() * self.every < 1.0):
                factor += self.pause
            yield factor * step_s * math.exp(chance.gauss(-(self.noise**2) / 2, self.noise))

    def expected_s(self, steps: int, gpus: int) -> float:
        """How long a job takes in the mean."""
        slow = sum(each - 1.0 for each in self.warm[:steps]) + (steps / self.every * self.pause if self.every else 0.0)
        return self.start_s + self.step_s * math.pow(gpus, -self.exponent) * (steps + slow)


@dataclass(frozen=True, slots=True)
class TrialCase:
    """A trial and a submit after it; `due_s`: seconds from the submit to its deadline."""

    script: Script
    trial_steps: int
    trial_gpus: int
    steps: int
    gpus: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was told of a deadline, None: that nothing is known; and whether it was met."""

    told: float | None
    met: bool


def script_of(chance: random.Random, step_s: float, start_s: float, longest_s: float) -> Script:
    """A script whose first steps are slow in one of several ways; its warm-up takes `longest_s` at most."""
    way = chance.choice(("none", "compile", "stages", "decay", "caches"))
    steepest = max(2.0, min(300.0, longest_s / step_s))
    top = math.exp(chance.uniform(math.log(1.5), math.log(steepest)))
    warm: tuple[float, ...] = ()
    if way == "compile":
        warm = (top,)
    elif way == "stages":
        warm = (top, *[max(1.5, top / 10)] * chance.randint(1, 6))
    elif way == "decay":
        fall = chance.uniform(0.3, 0.8)
        warm = tuple(1 + (top - 1) * fall**step for step in range(12))
    elif way == "caches":
        warm = (min(top, 1 + 30 / 12),) * chance.randint(2, 12)
    exponent = 0.0 if chance.random() < 0.25 else chance.uniform(0.6, 1.0)
    return Script(step_s, start_s, warm, chance.choice((0.02, 0.1, 0.3, 0.6)), chance.uniform(0.0, 0.1), exponent)


def of_family(script: Script, family: str, chance: random.Random) -> Script:
    """The script as one of that family."""
    between = chance.uniform
    if family == "long warm-up":
        steps = round(math.exp(between(math.log(100), math.log(2000))))
        return replace(script, warm=(math.exp(between(math.log(1.3), math.log(5.0))),) * steps)
    if family == "superlinear":
        return replace(script, exponent=between(1.0, 1.3))
    if family == "unlike":
        return replace(script, jobs=0.25)
    if family == "noisy":
        return replace(script, noise=between(0.8, 1.2))
    if family == "slow first step":
        return replace(script, warm=(max(1.0, math.exp(between(math.log(10.0), math.log(300.0))) / script.step_s),))
    if family == "stalls":
        return replace(script, every=chance.randint(20, 200), pause=math.exp(between(math.log(5), math.log(100))))
    if family == "evaluations":
        every = round(math.exp(between(math.log(50), math.log(1000))))
        return replace(script, every=every, pause=between(0.05, 0.3) * every, regular=True)
    return script


def simulated_case(chance: random.Random, family: str = FAMILIES[0]) -> TrialCase:
    """A case that takes minutes to days."""
    step_s = math.exp(chance.uniform(math.log(0.02), math.log(20.0)))
    script = script_of(chance, step_s, math.exp(chance.uniform(math.log(0.5), math.log(60.0))), 300.0)
    script = of_family(script, family, chance)
    trial_steps = round(math.exp(chance.uniform(math.log(2), math.log(500))))
    trial_gpus = chance.choice((1, 1, 2, 4))
    gpus = trial_gpus if chance.random() < 0.6 else chance.choice((1, 2, 4))
    steps = max(3, round(trial_steps * math.exp(chance.uniform(math.log(0.5), math.log(200)))))
    return _due(TrialCase(script, trial_steps, trial_gpus, steps, gpus, 0.0), chance)


def real_case(chance: random.Random) -> TrialCase:
    """A case that takes some seconds."""
    script = replace(script_of(chance, chance.uniform(0.02, 0.2), 1.0, 4.0), jobs=0.0)
    trial_steps, steps = chance.randint(5, 40), chance.randint(50, 120)
    gpus, trial_gpus = chance.choice((1, 1, 2)), chance.choice((1, 1, 2))
    return _due(TrialCase(script, trial_steps, trial_gpus, steps, gpus, 0.0), chance)


def _due(case: TrialCase, chance: random.Random) -> TrialCase:
    """With a deadline at a fifth to five times of what the job takes in the mean."""
    expected_s = case.script.expected_s(case.steps, case.gpus)
    return replace(case, due_s=expected_s * math.exp(chance.uniform(-math.log(5), math.log(5))))


class TrialWorld:
    """A node with some GPUs in the daemon's world, and jobs of one script on it that have trained."""

    def __init__(self, gpus: int = 1) -> None:
        self.world, self.at = World(objective="deadline", policy="adaptive"), NOW
        infos = tuple(GpuInfo(index, f"n1-{index}", "V100") for index in range(gpus))
        self.then(ev.NodeJoined("n1", infos, log_id="n1"))
        self.profiles = Learner(lambda: self.world).profiles({})

    def then(self, event: ev.Event, after: float = 0.0) -> None:
        """Something happens, so many seconds after what was before."""
        self.at += after
        self.world = fold(self.world, [ev.Recorded(self.world.seq + 1, self.at, 1, event)])

    def submit(self, steps: int, due_s: float | None = None, gpus: int = 1) -> int:
        """Another job of the script; its id."""
        number = self.world.next_job
        due = None if due_s is None else self.at + due_s
        spec = JobSpec(("python", "warm.py"), "warm", gpus_min=gpus, gpus_max=gpus, steps=steps, deadline=due)
        self.then(ev.JobSubmitted(number, spec, f"request {number}"))
        return number

    def trains(
        self, reports: Sequence[tuple[float, int]], gpus: int = 1, start_s: float = 0.7, ends: bool = True
    ) -> int:
        """A job trains; `reports`: seconds since its loop began, and the step."""
        number, last = self.submit(reports[-1][1], gpus=gpus), reports[-1][1]
        self.then(ev.StartRequested(number, 1, ("n1",), Placement((Share("n1", tuple(range(gpus))),))))
        self.then(ev.Started(number, 1, 1, "n1", pid=7))
        self.then(ev.Attached(number, 1, 1, "n1"))
        self.then(ev.TrainerReady(number, 1, 1, "n1", step=0), start_s)
        began = self.at
        for seconds, step in reports:
            self.then(ev.Progressed(number, 1, 1, "n1", step=step), began + seconds - self.at)
        if ends:
            self.then(ev.Exited(number, 1, 1, "n1", code=0), 0.1)
            self.then(ev.GpusFreed(number, 1, 1, "n1"))
            self.then(ev.IncarnationEnded(number, 1, Cause.DONE, step=last))
            self.then(ev.JobEnded(number, JobState.DONE))
        return number

    def told(self, steps: int, due_s: float, gpus: int = 1) -> dict[str, Any]:
        """What a submit is told of its deadline."""
        number = self.submit(steps, due_s, gpus)
        answer = forecast(self.world, self.world.jobs[number], self.profiles, self.at)
        assert answer is not None
        return answer

    def starts(self, number: int) -> bool:
        """Whether the policy gives the job GPUs now."""
        plan = all_policies().make("adaptive").decide(build_view(self.world, self.profiles, self.at))
        return any(target.job == number and target.placement is not None for target in plan.targets)


def reports_of(seconds: Sequence[float], chance: random.Random) -> list[tuple[float, int]]:
    """What an agent reports of steps that take so long: (seconds, step), a little late, the last one in time."""
    ends = list(accumulate(seconds))
    reports, at, step = [(ends[0], 1)], ends[0], 1
    while True:
        at = max(at + min(INTERVAL_S, max(FIRST_REPORTS_S, (at - ends[0]) / 2)), ends[min(step, len(ends) - 1)])
        if at >= ends[-1]:
            return [*reports, (ends[-1], len(ends))] if len(ends) > 1 else reports
        done = max(step, bisect_right(ends, at - chance.uniform(0.0, LATE_S)))
        if done > step:
            reports.append((at, done))
            step = done


def simulated(case: TrialCase, chance: random.Random) -> Verdict:
    """What is told after a simulated trial, and what then comes."""
    script, scene = case.script, TrialWorld(GPUS)
    seconds = list(script.seconds_of(case.trial_steps, case.trial_gpus, chance))
    scene.trains(reports_of(seconds, chance), case.trial_gpus, script.start_s * math.exp(chance.gauss(0.0, 0.1)))
    answer = scene.told(case.steps, case.due_s, case.gpus)
    assert scene.starts(scene.world.next_job - 1), "an uncertain estimate must not keep a job from starting"
    took_s = script.start_s * math.exp(chance.gauss(0.0, 0.1))
    took_s += sum(script.seconds_of(case.steps, case.gpus, chance))
    return Verdict(answer["probability"], took_s <= case.due_s)


TRAINER = """
import json, os, random, sys, time
import hpcdl
case, steps = json.loads(sys.argv[1]), int(sys.argv[2])
gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
time.sleep(case["start_s"])
for step in hpcdl.steps(steps, save=lambda folder: (folder / "state").write_text(""), load=lambda checkpoint: None):
    factor = case["warm"][step] if step < len(case["warm"]) else 1.0
    time.sleep(case["step_s"] * gpus ** -case["exponent"] * factor * random.lognormvariate(0.0, case["noise"]))
"""


class RealCluster:
    """A daemon with emulated GPUs, and real processes."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder
        self.script = folder / "train.py"
        self.script.write_text(TRAINER)

    def daemon(self, *verb: str) -> None:
        """Starts or stops it."""
        command = [str(Path(sys.executable).with_name("hpcdl")), "--home", str(self.home), "daemon", *verb]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def submit(self, case: TrialCase, name: str, steps: int, gpus: int, due_s: float | None) -> dict[str, Any]:
        """A job's row, with its forecast."""
        script = case.script
        values = {key: getattr(script, key) for key in ("step_s", "start_s", "warm", "noise", "exponent")}
        spec = {
            "command": [sys.executable, str(self.script), json.dumps(values), str(steps)],
            "name": name,
            "cwd": str(self.folder),
            "user": "me",
            "env": sorted(map(list, os.environ.items())),
            "steps": steps,
            "gpus_min": gpus,
            "gpus_max": gpus,
            "deadline": None if due_s is None else time.time() + due_s,
        }
        with Client(self.home) as client:
            answer = client.request("POST", "/v1/jobs", {"request_id": f"{name}-{steps}-{due_s}", "jobs": [spec]})
        row: dict[str, Any] = answer["jobs"][0]
        return row

    def finished(self, number: int, within_s: float) -> dict[str, Any]:
        """The row of a job once it is finished. Raises TimeoutError."""
        until = time.monotonic() + within_s
        with Client(self.home) as client:
            while time.monotonic() < until:
                row: dict[str, Any] = client.get(f"/v1/jobs/{number}")["job"]
                if row["finished_at"] is not None:
                    return row
                time.sleep(0.2)
        raise TimeoutError(f"job {number} is not done after {within_s:.0f} s")

    def verdict(self, case: TrialCase, name: str) -> Verdict:
        """What is told after a real trial, and what then comes."""
        trial = self.submit(case, name, case.trial_steps, case.trial_gpus, None)
        self.finished(trial["id"], 300.0)
        asked = self.submit(case, name, case.steps, case.gpus, case.due_s)
        row = self.finished(asked["id"], 300.0)
        met = row["state"] == "DONE" and row["finished_at"] <= row["submitted_at"] + case.due_s
        say(f"{name}: {asked['forecast']['lines'][0]}; {'met' if met else 'missed'}")
        return Verdict(asked["forecast"]["probability"], met)


def real(cases: Sequence[TrialCase], at_once: int = 2) -> list[Verdict]:
    """The verdicts of real cases, so many at a time, each on GPUs of its own."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdl-trials-"))
    cluster = RealCluster(folder)
    cluster.home.mkdir(mode=0o700)
    cluster.daemon("start", "--emulate-gpus", str(2 * at_once))
    try:
        with Client(cluster.home) as client:
            client.request("PUT", "/v1/config", {"objective": "deadline"})
        with ThreadPoolExecutor(at_once) as threads:
            names = [f"case-{number}" for number in range(len(cases))]
            return list(threads.map(cluster.verdict, cases, names))
    finally:
        cluster.daemon("stop")
        shutil.rmtree(folder, ignore_errors=True)


def _interval(met: int, submits: int) -> tuple[float, float]:
    """The shares between which, with 95 %, the true one is (Clopper and Pearson)."""

    def above(share: float, most: int) -> float:
        return sum(math.comb(submits, each) * share**each * (1 - share) ** (submits - each) for each in range(most + 1))

    def root(most: int, wanted: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle, most) > wanted else (low, middle)
        return low

    return (root(met - 1, 0.975) if met else 0.0), (root(met, 0.025) if met < submits else 1.0)


def counts(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What the answers were worth, by what was told.

    `furthest`: the largest difference of told and met; `off`: bins of which that is clearly more than ALLOWED, as what
    is told is further than that from the 95 % interval of what is met.
    """
    told = [(each.told, each.met) for each in verdicts if each.told is not None]
    impossible = [met for chance, met in told if chance == 0.0]
    bins = []
    for low, high in pairwise(BINS):
        within = [(chance, met) for chance, met in told if low <= chance < high and chance > 0.0]
        if within:
            mean = sum(chance for chance, _ in within) / len(within)
            met = sum(met for _, met in within)
            least, most = _interval(met, len(within))
            row = {"from": low, "to": min(1.0, high), "submits": len(within)}
            row |= {"told": round(mean, 3), "met": round(met / len(within), 3)}
            bins.append(row | {"met_low": round(least, 3), "met_high": round(most, 3)})
    return {
        "submits": len(verdicts),
        "not_known": len(verdicts) - len(told),
        "impossible": len(impossible),
        "impossible_met": sum(impossible),
        "bins": bins,
        "furthest": max((round(abs(row["told"] - row["met"]), 3) for row in bins), default=0.0),
        "off": sum(row["told"] > row["met_high"] + ALLOWED or row["told"] < row["met_low"] - ALLOWED for row in bins),
    }


def simulated_verdicts(number: int, seed: int, family: str = FAMILIES[0]) -> list[Verdict]:
    """So many simulated cases of a family."""
    found = []
    for case in range(number):
        chance = random.Random(f"{seed}/{case}")
        found.append(simulated(simulated_case(chance, family), chance))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=int, default=200, help="submits after simulated trials")
    parser.add_argument("--families", type=int, default=0, help="the same, of each other family of scripts")
    parser.add_argument("--real", type=int, default=30, help="submits after trials of real processes")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    chance = random.Random(f"{given.seed}/real")
    answer = {"schema": 1, "setting": setting(), "seed": given.seed}
    answer["simulated"] = counts(simulated_verdicts(given.simulated, given.seed))
    answer["families"] = {
        family: counts(simulated_verdicts(given.families, given.seed, family))
        for family in FAMILIES[1:]
        if given.families
    }
    answer["real"] = counts(real([real_case(chance) for _ in range(given.real)])) if given.real else counts(())
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
