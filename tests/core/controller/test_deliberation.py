"""A policy that takes its time holds nobody up: its plan is taken when it is there, if it still fits."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.deliberation import NEW, STALE, carried_over
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import JobView, Plan, Policies, Profiles, Targets, View
from hpcdl.core.model.world import GpuInfo, Target
from hpcdl.marble import Marble
from tests.milp.trainer_views import nodes, on, training, waiting

SPEC = JobSpec(("true",), "job")


@dataclass
class Aside:
    """Plans that are made when the test says so."""

    asked: list[tuple[Callable[[], Plan], "Future[Plan]"]] = field(default_factory=list)

    def __call__(self, make: Callable[[], Plan]) -> "Future[Plan]":
        future: Future[Plan] = Future()
        self.asked.append((make, future))
        return future

    def finish(self) -> None:
        make, future = self.asked.pop()
        try:
            future.set_result(make())
        except Exception as error:
            future.set_exception(error)


class Slow:
    """As `marble`, but it deliberates."""

    name = "slow"
    fails = False

    def decide(self, view: View) -> Plan:
        return replace(Marble().decide(view), solver="at once")

    def deliberate(self, view: View) -> Plan:
        if self.fails:
            raise RuntimeError("no idea")
        return replace(Marble().decide(view), solver="thought over", trouble="the solver is slow")


class Model:
    """A Controller with one node of two GPUs under `slow`."""

    def __init__(self) -> None:
        self.aside, self.policy, self.now = Aside(), Slow(), 100.0
        policies = Policies()
        policies.register("slow", lambda: self.policy)
        policies.register("marble", Marble)
        self.controller = Controller(MemoryJournal(), policies, Profiles({}), aside=self.aside)
        infos = tuple(GpuInfo(index, f"n1-{index}") for index in range(2))
        self.do(cmd.ChoosePolicy("slow"), cmd.Inventory("n1", infos, 8, 1000, 1, "boot", "log", True))

    def do(self, *commands: cmd.Command) -> list[object]:
        self.now += 1
        return self.controller.step(commands, self.now)

    def decide(self) -> list[tuple[str, int]]:
        return [(request.kind, request.job) for request in self.controller.decide(self.now)]

    def made(self) -> list[tuple[str, int]]:
        """The plan that is being made is there."""
        self.aside.finish()
        self.do(cmd.PlanMade())
        assert self.controller.undecided
        return self.decide()

    def wakes_now(self) -> bool:
        at = self.controller.wake_at
        return at is not None and at <= self.now

    def troubles(self) -> list[str]:
        journal = self.controller.journal
        assert isinstance(journal, MemoryJournal)
        return [each.event.detail for each in journal.records if isinstance(each.event, ev.TroubleSeen)]


@pytest.fixture
def model() -> Model:
    model = Model()
    model.decide()
    model.made()
    return model


def test_submits_go_on_while_a_plan_is_made_and_it_starts_jobs_when_it_is_there(model: Model) -> None:
    model.do(cmd.Submit((SPEC,), "a"))
    assert model.decide() == []
    assert model.do(cmd.Submit((SPEC,), "b")) == [(2,)]
    assert model.decide() == []
    assert len(model.aside.asked) == 1  # the view with job 2 waits for its turn
    assert model.made() == [("start", 1)]
    assert model.controller.reasons[2] == NEW
    assert model.controller.solver == "thought over"
    assert model.wakes_now()  # job 2 is still to be asked about
    assert model.decide() == []
    assert model.made() == [("start", 2)]
    assert not model.wakes_now()


def test_a_trouble_on_the_way_is_recorded(model: Model) -> None:
    assert set(model.troubles()) == {"the solver is slow"}


def test_a_policy_that_fails_aside_fails_as_others_do(model: Model) -> None:
    model.policy.fails = True
    model.do(cmd.Submit((SPEC,), "a"))
    model.decide()
    assert model.made() == []
    assert model.troubles()[-1] == "failed (RuntimeError): no idea"
    model.policy.fails = False
    model.do(cmd.Tick())
    assert model.decide() == []
    assert model.made() == [("start", 1)]


def test_a_daemon_that_stops_does_not_deliberate(model: Model) -> None:
    model.do(cmd.Submit((SPEC,), "a"))
    model.decide()
    model.do(cmd.Stop(False))
    assert model.decide() == []
    assert model.controller.reasons[1] != NEW
    assert model.made() == []
    assert model.aside.asked == []


def test_a_plan_of_another_policy_is_dropped(model: Model) -> None:
    model.do(cmd.Submit((SPEC,), "a"))
    model.decide()
    model.do(cmd.ChoosePolicy("marble"))
    assert model.decide() == [("start", 1)]
    assert model.made() == []


def test_a_world_that_changes_faster_than_plans_are_made_is_decided_at_once(model: Model) -> None:
    number = model.do(cmd.Submit((SPEC,), "first"))[0][0]  # type: ignore[index]
    assert model.decide() == []
    for turn in range(1, STALE + 1):
        model.do(cmd.Cancel(number))
        number = model.do(cmd.Submit((SPEC,), f"r{turn}"))[0][0]  # type: ignore[index]
        assert model.made() == ([("start", number)] if turn == STALE else [])
    assert model.controller.solver.startswith("at once; 3 plans in a row did not fit")


def test_nodes_that_leave_in_every_solve_leave_no_job_without_a_decision(model: Model) -> None:
    # Each plan gives the only node that is there, which goes and comes back as another one before the plan is made.
    name = "n1"
    model.do(cmd.Submit((SPEC,), "a"))
    assert model.decide() == []
    waited = longest = decided = 0
    for event in range(2, 400):
        model.do(cmd.NodeGone(name, "left"))
        name = f"n{event}"
        infos = tuple(GpuInfo(index, f"{name}-{index}") for index in range(2))
        model.do(cmd.Inventory(name, infos, 8, 1000, 1, "boot", f"log {event}", True))
        started = model.made() if model.aside.asked else model.decide()
        assert len(model.aside.asked) <= 1
        if ("start", 1) in started:
            decided, waited = decided + 1, 0
        else:
            waited += 1
        longest = max(longest, waited)
    assert decided > 50
    assert longest <= STALE


# --- what fits -------------------------------------------------------------------------------------------------------


def seen() -> View:
    jobs = (training(1, ["n001", "n002"]), training(2, ["n003"]), waiting(3))
    return View(1000.0, nodes(5), jobs)


def planned(view: View, *targets: Target) -> Plan:
    return Plan(Targets(view, {each.job: each for each in targets}, lambda job: f"as before: {job.id}"), solver="highs")


GROWS = Target(2, on(["n003", "n004"]), "grows")
STARTS = Target(3, on(["n005"]), "starts")


def with_job(view: View, *jobs: JobView) -> View:
    known = {job.id: job for job in (*view.jobs, *jobs)}
    return View(view.now + 5.0, view.nodes, tuple(known[number] for number in sorted(known)))


def test_a_plan_fits_where_only_progress_was_made() -> None:
    view = seen()
    now = with_job(view, replace(view.jobs[0], step=50), replace(view.jobs[1], step=70))
    carried = carried_over(planned(view, GROWS, STARTS), view, now)
    assert carried is not None
    assert [(each.job, each.reason) for each in carried.targets] == [(1, "as before: 1"), (2, "grows"), (3, "starts")]
    assert carried.solver == "highs"


def test_a_job_that_has_come_waits_for_the_next_plan() -> None:
    view = seen()
    carried = carried_over(planned(view, GROWS), view, with_job(view, waiting(4)))
    assert carried is not None
    assert (carried.by_job()[4].placement, carried.by_job()[4].reason) == (None, NEW)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda view: View(view.now, view.nodes[:4], view.jobs), id="a node that it gives is gone"),
        pytest.param(lambda view: View(view.now, view.nodes, view.jobs[:2]), id="who was to start is gone"),
        pytest.param(lambda view: with_job(view, replace(view.jobs[1], leaving=True)), id="who was to grow leaves"),
        pytest.param(lambda view: with_job(view, waiting(3, blocked="held")), id="who was to start is held"),
        pytest.param(lambda view: with_job(view, training(3, ["n004"])), id="who was to start runs elsewhere"),
        pytest.param(lambda view: with_job(view, training(9, ["n005"])), id="another one has its node"),
    ],
)
def test_a_plan_does_not_fit_where_what_it_relies_on_has_changed(change: Callable[[View], View]) -> None:
    view = seen()
    assert carried_over(planned(view, GROWS, STARTS), view, change(view)) is None


def test_a_job_that_ended_frees_its_nodes_and_the_rest_of_the_plan_fits() -> None:
    view = seen()
    suspended = Target(1, None, "others gain more")
    carried = carried_over(planned(view, suspended, STARTS), view, View(view.now, view.nodes, view.jobs[1:]))
    assert carried is None  # it was to make way, and need not any more
    kept = Target(1, view.jobs[0].placement, "keeps")
    carried = carried_over(planned(view, kept, STARTS), view, View(view.now, view.nodes, view.jobs[1:]))
    assert carried is not None
    assert carried.by_job()[3].placement == STARTS.placement
