"""Plans that alternate at one moment: after some turns one of them is kept."""

import pytest

from hpcdl.core.controller.controller import _is_news
from hpcdl.core.controller.livelock import MOMENT_S, TURNS, LivelockGuard
from hpcdl.core.fold.effect import Decision
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.world import JobState, Target

Places = dict[int, Placement | None]


def on(node: str, *gpus: int) -> Placement:
    return Placement((Share(node, gpus),))


NARROW: Places = {59: on("n1", 0, 1), 82: on("n1", 2, 3)}
WIDE: Places = {59: on("n1", 0, 1, 2, 3), 82: on("n3", 0, 1)}


class Plans:
    """A guard, and the plan that is in force."""

    def __init__(self, places: Places) -> None:
        self.guard, self.places = LivelockGuard(), places

    def adopts(self, places: Places, at: float = 5.0, warm: tuple[int, ...] = ()) -> bool:
        return self.refusal(places, at, warm) is None

    def refusal(self, places: Places, at: float = 5.0, warm: tuple[int, ...] = ()) -> str | None:
        now = {job: Target(job, place, "") for job, place in self.places.items() if place is not None}
        changed = [Target(job, place, "") for job, place in places.items() if place != self.places.get(job)]
        found = self.guard.refusal(now, changed, warm, at)
        if found is None:
            self.places = {**self.places, **places}
        return found


def alternating() -> Plans:
    """Whose two plans have come back so often that the next turn is refused; NARROW is in force."""
    plans = Plans(NARROW)
    for _ in range(TURNS):
        assert plans.adopts(WIDE)
        assert plans.adopts(NARROW)
    return plans


def test_the_first_plan_is_kept_and_both_are_named() -> None:
    plans = alternating()
    line = plans.refusal(WIDE)
    assert line is not None
    assert line.endswith(
        "job 59 on n1 x 2 (GPU 0, 1) with job 82 on n1 x 2 (GPU 2, 3) or "
        "job 59 on n1 x 4 (GPU 0, 1, 2, 3) with job 82 on n3 x 2 (GPU 0, 1)"
    )
    assert plans.refusal(WIDE, at=5_000.0) == line  # time alone changes nothing
    assert plans.places == NARROW


def test_something_else_that_happens_ends_it() -> None:
    plans = alternating()
    assert not plans.adopts(WIDE)
    plans.guard.forget()
    assert plans.adopts(WIDE)


def test_yet_another_plan_is_adopted() -> None:
    plans = alternating()
    assert not plans.adopts(WIDE)
    assert plans.adopts({59: None, 82: on("n1", 2, 3)})
    assert plans.adopts(WIDE)


def test_jobs_may_take_turns_as_long_as_time_passes() -> None:
    plans = Plans(NARROW)
    for turn in range(10 * TURNS):
        assert plans.adopts((WIDE, NARROW)[turn % 2], at=turn * 2 * MOMENT_S)


def test_many_changes_at_one_moment_that_lead_on_are_no_circle() -> None:
    plans = Plans({})
    for job in range(100):
        assert plans.adopts({job: on(f"n{job}", 0)})


def test_starts_ahead_count_too() -> None:
    plans = Plans(NARROW)
    for _ in range(TURNS):
        assert plans.adopts({}, warm=(7,))
        assert plans.adopts({})
    line = plans.refusal({}, warm=(7,))
    assert line is not None
    assert line.endswith("none started ahead or job 7 started ahead")


@pytest.mark.parametrize(("final", "news"), [(JobState.DONE, True), (None, False)])
def test_the_end_of_a_job_is_news_and_that_of_an_attempt_is_none(final: JobState | None, news: bool) -> None:
    """Else a job would wait for GPUs that are free again, because a plan gave it them before."""
    ended = ev.IncarnationEnded(1, 1, Cause.SUSPENDED if final is None else Cause.DONE, final=final)
    assert _is_news(ended, Decision.ASK) is news
    assert not _is_news(ev.StartRequested(1, 1, ("n1",), on("n1", 0)), Decision.ASK)
