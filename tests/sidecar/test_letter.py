"""`elastic-letter` against the two algorithms written down a second time, and where `elastic` decides otherwise."""

import math
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.core.model.plan import JobView
from hpcdl.core.model.profile import Profile
from hpcdl.sidecar import SideCar, SideCarLetter
from tests.adaptive.views import decide, gpus, node
from tests.sidecar.views import RESNET, job, running, view
from tests.support.seeds import seeds

LATE = 500.0  # submitted so long before the view's time that it is initialised
SIZE = 8


def test_line_11_any_addition_is_better_than_none() -> None:
    seen = view(running(1, 0, 1, step=850))
    assert gpus(decide(SideCar(), seen)) == ["n1:0,1"]
    assert gpus(decide(SideCarLetter(), seen)) == ["n1:0,1,2,3"]


def test_line_9_no_job_gives_fewer_than_its_least_optional_number() -> None:
    slow = replace(RESNET, points=((1, 1, 1.0), (1, 4, 1.0)), gate_s=0.0)
    giver = running(1, 0, 1, 2, 3, counts=(2, 3, 4), gpus_min=2, profile=slow)
    seen = view(giver, job(2, total=10, counts=(1,), gpus_max=1, submitted_at=LATE))
    assert gpus(decide(SideCar(), seen)) == ["n1:0,1,2", "n1:3"]
    assert gpus(decide(SideCarLetter(), seen)) == ["n1:0,1,2,3", "-"], "1 is less than N_min = 2"


def test_the_makespan_has_the_end_terms() -> None:
    """Checkpoint, and the end of process and job: 4,000 s of job 2."""
    slow_end = replace(RESNET, name="slow end", move_save_s=4000.0)
    first = running(1, 0, total=2000, profile=replace(RESNET, points=((1, 1, 1.0),)), counts=(1,))
    seen = view(first, running(2, 1, total=1000, profile=slow_end, counts=(1, 2)))
    for policy, last in ((SideCar(), "33 min 20 s as before"), (SideCarLetter(), "1 h 17 min")):
        plan = decide(policy, seen)
        assert gpus(plan) == ["n1:0", "n1:1,2"]
        assert plan.targets[1].reason.endswith(f"the last of all jobs in {last}")


@dataclass(frozen=True)
class Running:
    """A job of the oracle: GPUs that it has, 0 for the new one."""

    job: JobView
    n: int


def profile_of(job: JobView) -> Profile:
    assert job.profile is not None
    return job.profile


def train_s(job: JobView, n: int) -> float:
    assert job.total is not None
    return (job.total - job.step) / profile_of(job).rate(n) + profile_of(job).save_for(moved=True)


def remaining_s(of: Running, n: int) -> float:
    stall = 0.0 if n == of.n else profile_of(of.job).restart_s(of.n, n, moved=False, running=True)
    return stall + train_s(of.job, n)


def literal(jobs: list[Running], new: JobView | None) -> dict[int, int]:
    """GPUs by job after Algorithm 1 for `new`, and Algorithm 2 as long as there are idle GPUs."""
    has = {each.job.id: each.n for each in jobs}
    ends = {each.job.id: remaining_s(each, each.n) for each in jobs}
    settled = set[int]()
    if new is not None:
        idle = SIZE - sum(has.values())
        best: tuple[int, Running | None, int, float, float] = (0, None, 0, 0.0, 0.0)
        least = math.inf
        started = profile_of(new).startup_s - profile_of(new).gate_s
        for n_opt in new.counts:
            if idle >= n_opt:
                done = started + train_s(new, n_opt)
                predicted = max([*ends.values(), done])
                if predicted < least:
                    least, best = predicted, (n_opt, None, 0, done, 0.0)
                continue
            n_remove = n_opt - idle
            for giver in jobs:
                in_range = min(giver.job.counts) <= n_remove <= max(giver.job.counts)
                if not in_range or giver.n - n_remove not in giver.job.counts:
                    continue
                left = remaining_s(giver, giver.n - n_remove)
                done = profile_of(giver.job).save_s + started + train_s(new, n_opt)
                others = [end for number, end in ends.items() if number != giver.job.id]
                predicted = max([*others, left, done])
                if predicted < least:
                    least, best = predicted, (n_opt, giver, n_remove, done, left)
        n_opt, chosen, n_remove, done, left = best
        if not n_opt:
            return has | {new.id: 0}
        has[new.id], ends[new.id] = n_opt, done
        settled.add(new.id)
        if chosen is not None:
            has[chosen.job.id] -= n_remove
            ends[chosen.job.id] = left
            settled.add(chosen.job.id)
    while True:
        idle, least = SIZE - sum(has.values()), math.inf
        add: tuple[Running, int, float] | None = None
        for n_add in range(1, idle + 1):
            for each in jobs:
                number = each.job.id
                if number in settled or has[number] + n_add not in each.job.counts:
                    continue
                left = remaining_s(each, has[number] + n_add)
                predicted = max([left, *(end for other, end in ends.items() if other != number)])
                if predicted < least:
                    least, add = predicted, (each, n_add, left)
        if add is None:
            return has
        has[add[0].job.id] += add[1]
        ends[add[0].job.id] = add[2]
        settled.add(add[0].job.id)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    seconds = st.floats(0.0, 400.0)
    rates = draw(st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4))
    startup_s = draw(seconds)
    return Profile(
        "p",
        tuple((1, n, rate) for n, rate in zip((1, 2, 4, 8), rates, strict=True)),
        startup_s=startup_s,
        gate_s=min(startup_s, draw(st.floats(0.0, 100.0))),
        save_s=draw(seconds),
        resume_s=draw(seconds),
        resume_up_s=draw(st.none() | seconds),
        move_save_s=draw(st.none() | seconds),
    )


@given(data=st.data())
@settings(max_examples=seeds(150), deadline=None)
def test_it_decides_as_the_literal_algorithms(data: st.DataObject) -> None:
    numbers = st.sets(st.integers(1, SIZE), min_size=1, max_size=4).map(lambda found: tuple(sorted(found)))
    jobs, free = list[Running](), list(range(SIZE))
    for number in range(1, data.draw(st.integers(0, 5)) + 1):
        counts = data.draw(numbers)
        n = data.draw(st.sampled_from(counts))
        if n > len(free):
            continue
        held, free = free[:n], free[n:]
        more: dict[str, Any] = {
            "profile": data.draw(profiles()),
            "counts": counts,
            "gpus_min": counts[0],
            "gpus_max": counts[-1],
        }
        jobs.append(Running(running(number, *held, total=data.draw(st.integers(10, 9_000)), **more), n))
    counts = data.draw(numbers)
    new = None
    if data.draw(st.booleans()):
        more = {"profile": data.draw(profiles()), "counts": counts, "gpus_min": counts[0], "gpus_max": counts[-1]}
        new = job(9, total=data.draw(st.integers(10, 9_000)), submitted_at=LATE, **more)
    views = [*(each.job for each in jobs), *([] if new is None else [new])]
    plan = decide(SideCarLetter(), view(*views, nodes=(node("n1", SIZE),)))
    given = {each.job: 0 if each.placement is None else len(each.placement.gpus) for each in plan.targets}
    assert given == literal(jobs, new)
