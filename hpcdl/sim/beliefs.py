"""What policies are told of jobs where that is not the truth: what is hidden from them, and what is told wrong.

Only what a job says of itself on submit changes. Trainers train as the truth has it, and report the steps that they
did.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdl.core.model.job import LARGEST
from hpcdl.core.model.plan import Learn
from hpcdl.core.model.profile import Observations, Point, Profile
from hpcdl.core.model.units import one_of
from hpcdl.estimators.scaling import SAVE_S, STARTUP_S, learner
from hpcdl.sim.generators import chance
from hpcdl.sim.workload import SimJob, Workload, WorkloadError

PIECES = ("curves", "steps", "startup", "save")
PROFILE = ("curves", "startup", "save")
"""The pieces that make a profile."""

MOST_WRONG = 5.0
"""Of the sigma of a curve's points: one is then 150 times as fast as it says."""

_STARTS: dict[str, float | None] = {
    "startup_s": 0.0, "gate_s": 0.0, "resume_s": 0.0, "resume_up_s": None, "move_s": None, "join_s": None,
    "grow_s": None, "shrink_s": None,
}  # fmt: skip
_SAVES: dict[str, float | None] = {"save_s": 0.0, "move_save_s": None}
MOST_NODES_LEARNT = 64
"""A curve that is learnt has points up to so many nodes."""


@dataclass(frozen=True, slots=True)
class Beliefs:
    """How what policies are told differs from the truth. Raises WorkloadError.

    `unknown`: of PIECES, those that no job tells. `wrong_curves`: sigma of the normal logarithm of the factor on each
    point of a profile, drawn once for each profile. `wrong_steps`: (A, B): the steps that a job tells are the true ones
    times a factor of its own from A to B, log-uniform.
    """

    unknown: frozenset[str] = frozenset()
    wrong_curves: float = 0.0
    wrong_steps: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 <= self.wrong_curves <= MOST_WRONG:
            raise WorkloadError(f"the sigma of wrong curves must be from 0 to {MOST_WRONG:g}, got {self.wrong_curves}")
        low, high = self.wrong_steps
        if not 0 < low <= high < math.inf:
            raise WorkloadError(f"wrong steps need 0 < A <= B, got {low:g}..{high:g}")
        for piece, wrong in (("curves", self.wrong_curves > 0), ("steps", self.wrong_steps != (1.0, 1.0))):
            if wrong and piece in self.unknown:
                raise WorkloadError(f"{piece} are told wrong or not at all: leave one of the two out")

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `hpcdl simulate --json` prints them."""
        wrong: dict[str, Any] = {}
        if self.wrong_curves:
            wrong["curves"] = self.wrong_curves
        if self.wrong_steps != (1.0, 1.0):
            wrong["steps"] = list(self.wrong_steps)
        return {"unknown": sorted(self.unknown), "wrong": wrong}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of results must know, in words."""
        found = []
        if self.unknown:
            hidden = ", ".join(piece for piece in PIECES if piece in self.unknown)
            found.append(f"hidden from policies: {hidden}; they learn what trainers show")
        if self.wrong_curves:
            found.append(
                f"policies see each point of a profile wrong, by a lognormal factor (sigma {self.wrong_curves:g})"
            )
        if self.wrong_steps != (1.0, 1.0):
            low, high = self.wrong_steps
            found.append(f"policies see each job's steps wrong, by a factor from {low:g} to {high:g}")
        return tuple(found)


def parse_beliefs(unknown: str, wrong: Sequence[str]) -> Beliefs:
    """Of `curves,steps` and of `curves:0.3`, `steps:0.5..2`, several with commas between them. Raises WorkloadError."""
    hidden = _parts([unknown])
    for piece in hidden:
        if piece not in PIECES:
            raise WorkloadError(f"nothing is called {piece!r} that could be unknown; {one_of(piece, PIECES)}")
    sigma, factors, said = 0.0, (1.0, 1.0), set[str]()
    for part in _parts(wrong):
        piece, _, text = part.partition(":")
        if piece in said:
            raise WorkloadError(f"wrong {piece} are there twice: leave one of them out")
        said.add(piece)
        try:
            if piece == "curves":
                sigma = float(text)
            elif piece == "steps":
                low, _, high = text.partition("..")
                factors = float(low), float(high)
            else:
                raise ValueError
        except ValueError:
            raise WorkloadError(f"expected curves:SIGMA or steps:A..B, got {part!r}") from None
    return Beliefs(frozenset(hidden), sigma, factors)


def _parts(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def believe(workload: Workload, beliefs: Beliefs, seed: int) -> Workload:
    """The workload with what its jobs tell policies. The same seed draws the same.

    A start or save that is hidden is one that the profile does not say, as one from a table of throughputs. Without a
    curve a job names no profile: `learner_of` makes one of what its trainers show.
    """
    told: dict[int, Profile] = {}  # by the id of the profile, which `engine` tells apart by it
    jobs = []
    for number, job in enumerate(workload.jobs, 1):
        profile = job.believed or job.profile
        if id(profile) not in told:
            told[id(profile)] = _told(profile, beliefs, seed)
        believed, steps = told[id(profile)], _steps(job, number, beliefs, seed)
        named = job.told and "curves" not in beliefs.unknown
        other = None if believed is job.profile else believed
        jobs.append(replace(job, believed=other, told=named, believed_steps=steps))
    return replace(workload, jobs=tuple(jobs), notes=(*workload.notes, *beliefs.notes))


def _told(profile: Profile, beliefs: Beliefs, seed: int) -> Profile:
    hidden: dict[str, float | None] = {}
    if "startup" in beliefs.unknown:
        hidden |= _STARTS
    if "save" in beliefs.unknown:
        hidden |= _SAVES
    found = replace(profile, **hidden) if hidden else profile  # type: ignore[arg-type]  # seconds only
    if not beliefs.wrong_curves:
        return found
    draws = chance("wrong curves", profile.name, seed)
    points = _wrong(profile.points, beliefs.wrong_curves, draws)
    kinds = tuple((kind, _wrong(listed, beliefs.wrong_curves, draws)) for kind, listed in profile.kinds)
    return replace(found, points=points, kinds=kinds, latency=None)


def _wrong(points: tuple[Point, ...], sigma: float, draws: random.Random) -> tuple[Point, ...]:
    return tuple((nodes, gpus, rate * math.exp(draws.gauss(0.0, sigma))) for nodes, gpus, rate in points)


def _steps(job: SimJob, number: int, beliefs: Beliefs, seed: int) -> int | None:
    if "steps" in beliefs.unknown:
        return 0
    low, high = beliefs.wrong_steps
    if (low, high) == (1.0, 1.0):
        return job.believed_steps
    factor = math.exp(chance("wrong steps", number, seed).uniform(math.log(low), math.log(high)))
    return min(LARGEST, max(1, round(job.steps * factor)))


def learner_of(workload: Workload, unknown: Collection[str] = PROFILE) -> Learn:
    """What makes profiles of what was seen, on the nodes of the workload, for jobs that name none.

    `unknown`: what such jobs do not tell. A start or save that is not among it is what they believe it is, until it is
    seen.
    """
    kinds = sorted({spell.kind for spell in workload.nodes} - {""})
    sizes = workload.nodes_named
    limits = max(sizes.values(), default=1), min(MOST_NODES_LEARNT, max(1, len(sizes)))
    if {"startup", "save"} <= set(unknown):
        return learner(*limits, kinds)
    bases = {job.profile.name.lower(): job.believed or job.profile for job in workload.jobs}
    learners = {model: learner(*limits, kinds, _assumed(base, unknown)) for model, base in bases.items()}

    def learn(name: str, seen: Observations) -> Profile | None:
        return learners[name.rpartition(" @ ")[0]](name, seen)  # a model and its script: `JobSpec.learns_as`

    return learn


def _assumed(base: Profile, unknown: Collection[str]) -> Profile:
    """The profile with the times that a learner assumes in the place of those that it is not told."""
    if "startup" in unknown:
        return replace(base, startup_s=STARTUP_S, resume_s=STARTUP_S)
    return replace(base, save_s=SAVE_S) if "save" in unknown else base
