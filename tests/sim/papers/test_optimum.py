"""The exact offline search against plain enumeration, and on the MARBLE paper's job sets."""

import random
from itertools import product

import pytest
import yaml

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.profile import Profile, find_profile
from hpcdl.sim.papers.optimum import OfflineJob, bound, optimum, splits


def some_jobs(seed: int, jobs: int, gpus: int) -> list[OfflineJob]:
    random_ = random.Random(seed)
    made = []
    for number in range(jobs):
        points = tuple((1, count, random_.uniform(1, 1.5) * count**0.6) for count in range(1, gpus + 1))
        startup, save, resume, up = (random_.choice((0.0, 3.0, 20.0)) for _ in range(4))
        made.append(OfflineJob(Profile(f"j{number}", points, startup, save, resume, resume_up_s=up), 40 + 40 * number))
    return made


def plain(jobs: list[OfflineJob], gpus: int) -> float:
    """The same space without leaving anything out: every split at every end."""
    best = float("inf")

    def visit(now: float, left: tuple[float, ...], held: tuple[int, ...], stall: tuple[float, ...], saved: int) -> None:
        nonlocal best
        if not any(left):
            best = min(best, now)
            return
        for split in product(range(gpus + 1), repeat=len(jobs)):
            if (
                sum(split) > gpus
                or not any(split)
                or any(c and not steps for c, steps in zip(split, left, strict=True))
            ):
                continue
            stalls, kept = list(stall), saved
            for number, count in enumerate(split):
                if not left[number] or count == held[number]:
                    continue
                profile, first = jobs[number].profile, not saved >> number & 1
                if held[number] and not stall[number]:
                    kept |= 1 << number
                    stalls[number] = profile.restart_s(held[number], count, False, True)
                else:
                    stalls[number] = profile.startup_s if first else profile.resume_for(held[number], count, False)
            spans = {n: stalls[n] + left[n] / jobs[n].profile.rate(c) for n, c in enumerate(split) if c}
            span = min(spans.values())
            after = []
            for number, count in enumerate(split):
                made = max(0.0, span - stalls[number]) * jobs[number].profile.rate(count) if count else 0.0
                steps = left[number] - made
                after.append(steps if steps > 1e-9 * jobs[number].steps else 0.0)
            now_held = tuple(c if a else 0 for c, a in zip(split, after, strict=True))
            stalls = [max(0.0, s - span) if c else 0.0 for s, c in zip(stalls, now_held, strict=True)]
            visit(now + span, tuple(after), now_held, tuple(stalls), kept)

    none = (0,) * len(jobs)
    visit(0.0, tuple(float(job.steps) for job in jobs), none, (0.0,) * len(jobs), 0)
    return best


@pytest.mark.parametrize(("jobs", "gpus"), [(1, 3), (2, 2), (2, 4), (3, 2), (3, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_the_search_leaves_nothing_better_out(seed: int, jobs: int, gpus: int) -> None:
    made = some_jobs(seed, jobs, gpus)
    found = optimum(made, gpus)
    assert found.makespan_s == pytest.approx(plain(made, gpus), abs=1e-5)
    assert bound(made, gpus) <= found.makespan_s + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_more_moments_to_decide_are_never_worse(seed: int) -> None:
    made = some_jobs(seed, 2, 3)
    ends_only = optimum(made, 3, changes=2)
    finer = optimum(made, 3, every_s=10.0, changes=2)
    assert bound(made, 3) - 1e-6 <= finer.makespan_s <= ends_only.makespan_s + 1e-6
    assert optimum(made, 3).makespan_s <= ends_only.makespan_s + 1e-6


def test_splits() -> None:
    assert sorted(splits(2, 1)) == [(0, 0), (0, 1), (1, 0)]
    assert len(list(splits(3, 6))) == 84


def test_no_jobs() -> None:
    with pytest.raises(ValueError, match="needs jobs"):
        optimum([], 6)


@pytest.mark.parametrize(("number", "seconds", "proven"), [(1, 496.0, True), (2, 556.2, False), (3, 417.0, True)])
def test_sets_of_the_paper(number: int, seconds: float, proven: bool) -> None:
    profiles = load_profiles([conf_folder() / "profiles"])
    with (conf_folder() / "jobsets" / "marble.yaml").open() as file:
        entries = yaml.safe_load(file)["sets"][number]["jobs"]
    jobs = []
    for entry in entries:
        profile = find_profile(profiles, entry["model"])
        assert profile is not None
        jobs.append(OfflineJob(profile, entry["steps"]))
    found = optimum(jobs, 6)
    assert found.makespan_s == pytest.approx(seconds, abs=0.1)
    assert found.suspends == 0  # so it can be done exactly so
    assert (bound(jobs, 6) == pytest.approx(found.makespan_s, abs=0.01)) is proven
