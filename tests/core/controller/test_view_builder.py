"""Views that are kept up to date are the ones that are made from nothing; drafts leave alone what they do not own."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.view_builder import Views
from hpcdl.core.fold.effect import EFFECTS
from hpcdl.core.fold.fold import copied, fold
from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import BadPlan, JobView, NodeView, Plan, Profiles, Reasons, Standing, Targets, View, check
from hpcdl.core.model.world import JobState, Target, World
from hpcdl.sim import SimJob
from hpcdl.sim.workload import NodeSpell
from tests.sim.runs import COSTS, run

JOBS = tuple(
    SimJob(5.0 * number, f"j{number}", COSTS, 40 + 13 * (number % 7), nodes=1 + (number % 5 == 0), gpus_max=4)
    for number in range(30)
)
NODES = (NodeSpell("n1", 4), NodeSpell("n2", 4, until_s=100.0), NodeSpell("n3", 2, from_s=60.0), NodeSpell("n4", 4))
SORTED = ("steady", "waiting", "between", "by_id", "by_node", "held", "free", "gpus", "kinds")


def lively(policy: str = "marble") -> Any:
    return run(JOBS, NODES, policy, mtbf_s=60.0, checkpoint_s=20.0, restarts=(80.0,), warm=True, seed=2)


@pytest.mark.parametrize("policy", ["marble", "marble-warm", "fifo-exclusive"])
def test_a_view_that_is_kept_up_to_date(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Views.build
    seen = []

    def build(self: Views, world: World, profiles: Profiles, now: float, *touched: Any) -> View:
        view = built(self, world, profiles, now, *touched)
        fresh = built(Views(), world, profiles, now)
        assert view == fresh
        bare = View(now, fresh.nodes, fresh.jobs, fresh.objective, fresh.bare)
        for name in SORTED:
            assert getattr(view, name) == getattr(bare, name) == getattr(fresh, name), name
        seen.append(view)
        return view

    monkeypatch.setattr(Views, "build", build)
    lively(policy)
    assert len(seen) > 100
    assert {job.standing for view in seen for job in view.jobs} == set(Standing)


class Frozen(dict[Any, Any]):
    """A dict that must not be written to."""

    def _refuse(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("written to")

    __setitem__ = __delitem__ = update = pop = setdefault = clear = popitem = _refuse


def test_an_event_writes_only_to_what_is_declared() -> None:
    records = lively().records
    world = World()
    kinds = set()
    for record in records:
        kind = type(record.event)
        kinds.add(kind)
        guarded = copied(world)
        for name in ("jobs", "active", "nodes", "holders", "request_ids", "observed", "live", "awaited", "targets"):
            if name not in EFFECTS[kind].writes:
                setattr(guarded, name, Frozen(getattr(guarded, name)))
        EFFECTS[kind].apply(guarded, record.event, record.at)
        world = fold(world, [record])
    assert len(kinds) > 15


def test_every_recorded_world_stays_as_it_was() -> None:
    """Drafts share dicts with the world before: nothing may show there."""
    kept: list[tuple[World, World]] = []
    commit = Controller._commit

    def spy(self: Controller, *args: Any) -> Any:
        kept.append((self.world, copied(self.world)))
        return commit(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Controller, "_commit", spy)
        lively()
    assert len(kept) > 200
    for world, before in random.Random(1).sample(kept, 100):
        assert world == before


# --- plans that leave things unsaid ----------------------------------------------------------------------------------


def job(number: int, **more: Any) -> JobView:
    base: dict[str, Any] = {"placement": None, "target": None, "leaving": False, "can_suspend": True, "blocked": ""}
    return JobView(number, f"j{number}", JobState.QUEUED, 1, 4, 1, 0, None, None, **(base | more), submitted_at=0.0)


def at(*gpus: int) -> Placement:
    return Placement((Share("n1", gpus),), Role.PRIMARY)


def view_of(*jobs: JobView) -> View:
    return View(0.0, (NodeView("n1", (0, 1, 2, 3)),), jobs)


def lean(view: View, named: Mapping[int, Placement | None], why: str = "as before") -> Plan:
    targets = {number: Target(number, placement, "said") for number, placement in named.items()}
    return Plan(Targets(view, targets, lambda job: why and f"{why}: {job.id}"))


def test_what_a_plan_does_not_say() -> None:
    held = at(0)
    view = view_of(job(1, placement=held, target=held), job(2), job(3), job(4, target=at(1)))
    plan = lean(view, {2: at(2)})
    check(plan, view)
    placed = [held, at(2), None, None]
    assert [target.placement for target in plan.targets] == placed
    assert [target.reason for target in plan.targets] == ["as before: 1", "said", "as before: 3", "as before: 4"]
    assert isinstance(plan.targets, Targets)
    assert len(plan.targets) == 4
    assert plan.targets[1] == Target(2, at(2), "said")
    assert plan.targets[2:] == tuple(plan.targets)[2:]
    assert plan == Plan(tuple(plan.targets))
    assert plan != Plan(())
    assert [target.job for target in plan.targets.new()] == [2, 4]  # what may differ from the last plan
    assert dict(Reasons(plan)) == {target.job: target.reason for target in plan.targets}
    assert dict(Reasons(Plan(tuple(plan.targets)))) == dict(Reasons(plan))
    assert len(Reasons(plan)) == 4
    assert Reasons(plan).get(9, "none") == "none"


def test_what_is_said_is_checked_against_what_is_not() -> None:
    view = view_of(job(1, placement=at(0), target=at(0)), job(2))
    with pytest.raises(BadPlan, match="GPU n1:0 is given to jobs 1 and 2"):
        check(lean(view, {2: at(0, 1)}), view)
    check(lean(view, {1: None, 2: at(0, 1)}), view)
    with pytest.raises(BadPlan, match="unfinished jobs"):
        check(lean(view, {7: None}), view)
    with pytest.raises(BadPlan, match="job 1 has no reason"):
        check(lean(view, {}, why=""), view)
    other = view_of(*view.jobs)
    check(lean(view, {2: at(1)}), other)  # of an equal view: every target is looked at
    with pytest.raises(BadPlan, match="GPU n1:0 is given to jobs"):
        check(lean(view, {2: at(0)}), other)
