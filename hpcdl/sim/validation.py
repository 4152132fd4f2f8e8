"""Compares a real run with its simulation, decision by decision.

Used by the demo, and by the tests that hold the simulator to what daemons do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from hpcdl.core.model.plan import Policies
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import count
from hpcdl.report.history import History, JobHistory
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import simulate
from hpcdl.sim.workload import NodeSpell, SimJob, Workload

TOLERANCE = 0.05
"""Of the makespan: how far apart the two ends may be, and how close two decisions that may come in either order."""
PAUSE_S = 1.0
"""What is less apart than this is nobody's error: so long may a busy machine keep a process from running."""
_KINDS = ("end", "suspend", "start", "resume")


@dataclass(frozen=True, slots=True)
class TimedDecision:
    """What was decided about a job, or led to decisions. `kind`: start, suspend, resume or end. `at`: seconds after the
    first submit. `gpus`: how many it is given, 0 for the others."""

    at: float
    kind: str
    job: int
    gpus: int = 0

    @property
    def what(self) -> tuple[str, int, int]:
        """The decision without its time."""
        return self.kind, self.job, self.gpus


@dataclass(frozen=True, slots=True)
class Comparison:
    """A real run and its simulation. `differences`: one line each for what the simulation got wrong; empty is good."""

    real: tuple[TimedDecision, ...]
    simulated: tuple[TimedDecision, ...]
    real_s: float
    simulated_s: float
    differences: tuple[str, ...]

    @property
    def error(self) -> float:
        """Of the simulated makespan, relative to the real one."""
        return self.simulated_s / self.real_s - 1 if self.real_s > 0 else 0.0


def decisions(history: History) -> tuple[TimedDecision, ...]:
    """Every job's starts, suspends, resumes and ends, in order of time; at the same time ends come first."""
    found = []
    for job in history.jobs:
        for number, attempt in enumerate(job.attempts):
            kind = "resume" if number else "start"
            found.append(TimedDecision(attempt.start_at - history.begin, kind, job.id, len(attempt.placement.gpus)))
            if attempt.asked_at is not None:
                found.append(TimedDecision(attempt.asked_at - history.begin, "suspend", job.id))
        if job.finished_at is not None:
            found.append(TimedDecision(job.finished_at - history.begin, "end", job.id))
    return tuple(sorted(found, key=lambda each: (each.at, _KINDS.index(each.kind), each.job)))


def with_measured_costs(profile: Profile, jobs: Sequence[JobHistory]) -> Profile:
    """The profile with the start-ups, saves and resumes that these jobs had: medians; its own where none was seen."""
    starts = [
        attempt.ready_at - attempt.start_at
        for job in jobs
        for attempt in job.attempts[:1]
        if attempt.ready_at is not None
    ]
    resumes = [
        attempt.ready_at - attempt.start_at
        for job in jobs
        for attempt in job.attempts[1:]
        if attempt.ready_at is not None
    ]
    saves = [
        attempt.end_at - attempt.asked_at
        for job in jobs
        for attempt in job.attempts
        if attempt.asked_at is not None and attempt.end_at is not None
    ]
    return replace(
        profile,
        startup_s=median(starts) if starts else profile.startup_s,
        gate_s=0.0,
        resume_s=median(resumes) if resumes else profile.resume_s,
        save_s=median(saves) if saves else profile.save_s,
    )


def measured_pace(profile: Profile, jobs: Sequence[tuple[JobHistory, int]]) -> float:
    """How fast these jobs, of so many steps each, trained in relation to the profile: 1 as it says, less where their
    machine was too busy for that."""
    steps, due = 0, 0.0
    for job, total in jobs:
        if job.finished_at is None:
            continue
        steps += total
        for attempt in job.attempts:
            until = attempt.exited_at if attempt.asked_at is None else attempt.asked_at
            if attempt.ready_at is not None and until is not None and until > attempt.ready_at:
                rate = profile.rate(attempt.placement.per_node, len(attempt.placement.shares))
                due += rate * (until - attempt.ready_at)
    return min(1.0, steps / due) if due > 0 else 1.0


def compare(
    real: History,
    jobs: Mapping[int, SimJob],
    nodes: tuple[NodeSpell, ...],
    policy: str,
    policies: Policies,
    objective: str = "makespan",
) -> Comparison:
    """Simulates what was run and compares. `jobs`: by the real job's id; submit times are taken from the real run.

    What differs: the set of decisions, their order (two that lie closer than TOLERANCE of the makespan, or PAUSE_S, may
    be in either order), or a makespan that is off by more than both.
    """
    submitted = {job.id: job.submitted_at - real.begin for job in real.jobs}
    order = sorted(jobs, key=lambda number: (submitted[number], number))
    listed = tuple(replace(jobs[number], submit_s=submitted[number]) for number in order)
    workload = Workload("a real run", listed, nodes)
    run = simulate(workload, policy, policies, Conditions(objective=objective))
    ids = dict(zip(run.jobs, order, strict=True))  # ids count in the order of submission, on both sides
    simulated = tuple(replace(each, job=ids[each.job]) for each in decisions(run.history))
    truth = decisions(real)
    real_s, simulated_s = real.end - real.begin, run.history.end - run.history.begin
    close_s = max(TOLERANCE * real_s, PAUSE_S)
    differences = [*run.problems, *_differences(truth, simulated, close_s)]
    if abs(simulated_s - real_s) > close_s:
        differences.append(f"the makespan is {real_s:.2f} s, simulated {simulated_s:.2f} s")
    return Comparison(truth, simulated, real_s, simulated_s, tuple(differences))


def _differences(real: Sequence[TimedDecision], simulated: Sequence[TimedDecision], close_s: float) -> list[str]:
    missing = _without(real, simulated)
    extra = _without(simulated, real)
    found = [f"not simulated: {_words(each)}" for each in missing]
    found += [f"only simulated: {_words(each)}" for each in extra]
    if found:
        return found
    place = {(each.what, number): index for index, (each, number) in enumerate(_numbered(simulated))}
    places = [place[each.what, number] for each, number in _numbered(real)]
    for first, earlier in enumerate(real):
        for second in range(first + 1, len(real)):
            later = real[second]
            if places[first] > places[second] and later.at - earlier.at > close_s:
                found.append(f"the other way round: {_words(earlier)}, then {_words(later)}")
    return found


def _numbered(listed: Sequence[TimedDecision]) -> list[tuple[TimedDecision, int]]:
    """Each decision with how often the same was taken before."""
    seen: dict[tuple[str, int, int], int] = {}
    result = []
    for each in listed:
        result.append((each, seen.get(each.what, 0)))
        seen[each.what] = seen.get(each.what, 0) + 1
    return result


def _without(these: Sequence[TimedDecision], those: Sequence[TimedDecision]) -> list[TimedDecision]:
    there = {(each.what, number) for each, number in _numbered(those)}
    return [each for each, number in _numbered(these) if (each.what, number) not in there]


def _words(decision: TimedDecision) -> str:
    gpus = f" on {count(decision.gpus, 'GPU')}" if decision.gpus else ""
    return f"{decision.kind} of job {decision.job}{gpus} at {decision.at:.1f} s"
