"""`check`: each promise broken once."""

import pytest

from hpcdl.core.controller.view_builder import build_view
from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import BadPlan, JobView, NodeView, Plan, Profiles, View, check
from hpcdl.core.model.world import GpuInfo, JobState, Node, Target, World


def job(number: int, **more: object) -> JobView:
    known: dict[str, object] = {
        "name": "j",
        "state": JobState.QUEUED,
        "gpus_min": 1,
        "gpus_max": 2,
        "nodes": 1,
        "step": 0,
        "total": None,
        "profile": None,
        "placement": None,
        "target": None,
        "leaving": False,
        "can_suspend": True,
        "blocked": "",
        "submitted_at": 0.0,
    }
    return JobView(id=number, **(known | more))  # type: ignore[arg-type]


def at(*gpus: int, node: str = "n1", role: Role = Role.PRIMARY) -> Placement:
    return Placement((Share(node, gpus),), role)


def view(*jobs: JobView) -> View:
    return View(0.0, (NodeView("n1", (0, 1, 2)), NodeView("n2", (0, 1))), jobs)


def plan(*placements: Placement | None, reason: str = "because", warm: tuple[int, ...] = ()) -> Plan:
    return Plan(tuple(Target(number, place, reason) for number, place in enumerate(placements, 1)), warm)


HELD = {"placement": at(0, 1), "state": JobState.RUNNING}


@pytest.mark.parametrize(
    ("jobs", "broken", "message"),
    [
        ((job(1), job(2)), plan(None), "name each unfinished job once"),
        ((job(1),), plan(None, None), "name each unfinished job once"),
        ((job(1),), Plan((Target(1, None, "x"), Target(1, None, "y"))), "name each unfinished job once"),
        ((job(1),), plan(None, reason=""), "job 1 has no reason"),
        ((job(1), job(2)), plan(at(0), at(0)), "GPU n1:0 is given to jobs 1 and 2"),
        ((job(1), job(2)), plan(at(0), at(0), warm=(1, 2)), "GPU n1:0 is given to jobs 1 and 2"),
        ((job(1), job(2)), plan(at(0), at(0), warm=(2,)), "GPU n1:0 is given to jobs 1 and 2"),
        ((job(1, **HELD), job(2)), plan(at(0, 1), at(0)), "GPU n1:0 is given to jobs 1 and 2"),
        ((job(1, **HELD), job(2)), plan(at(1, 2), at(2), warm=(2,)), "GPU n1:2 is given to jobs 1 and 2"),
        ((job(1, **HELD), job(2), job(3)), plan(at(0, 1), at(0), at(0), warm=(2, 3)), "given to jobs 1 and 3"),
        ((job(1, leaving=True, **HELD), job(2)), plan(at(0, 1), at(0), warm=(2,)), "given to jobs 1 and 2"),
        ((job(1, blocked="held"),), plan(at(0)), "job 1 is placed, but held"),
        ((job(1),), plan(at(0, role=Role.BACKGROUND)), "no agreement to be a background"),
        ((job(1, can_suspend=False, **HELD),), plan(None), "cannot be suspended, and the plan takes its GPUs"),
        ((job(1, can_suspend=False, **HELD),), plan(at(1, 2)), "cannot be suspended, and the plan moves it"),
        ((job(1, nodes=2),), plan(at(0)), "job 1 needs 2 nodes, got n1"),
        ((job(1, gpus_min=2),), plan(at(0)), "takes 2 to 2 GPUs, gets 1 on n1"),
        ((job(1),), plan(at(0, 1, 2)), "takes 1 to 2 GPUs, gets 3 on n1"),
        ((job(1),), plan(at(3)), "node n1 cannot grant GPUs"),
        ((job(1),), plan(at(0, node="n9")), "node n9 cannot grant GPUs"),
        ((job(1),), plan(None, warm=(7,)), r"warm starts of unknown jobs \[7\]"),
    ],
)
def test_a_broken_promise(jobs: tuple[JobView, ...], broken: Plan, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        check(broken, view(*jobs))


@pytest.mark.parametrize(
    ("only", "good"),
    [
        (job(1), at(0, 2)),
        (job(1, can_suspend=False, leaving=True, **HELD), None),
        (job(1, can_suspend=False, blocked="held", **HELD), None),
        (job(1, **HELD), at(1, 2)),
        # What it holds it may keep: on a node that is away, or one that has become smaller than what it took.
        (job(1, placement=at(0, 1, node="n7")), at(0, 1, node="n7")),
        (job(1, placement=at(0, 1, 2, 3), gpus_max=3), at(0, 1, 2, 3)),
    ],
)
def test_promises_kept(only: JobView, good: Placement | None) -> None:
    check(plan(good), view(only))
    assert plan(good).by_job()[1].placement is good


def test_a_job_waits_at_the_gate_for_gpus_that_another_goes_on_holding() -> None:
    check(plan(at(0, 1), at(1, 2), warm=(2,)), view(job(1, **HELD), job(2)))
    check(plan(at(0), at(1, 2), warm=(2,)), view(job(1, **HELD), job(2)))


def test_nodes_without_a_gpu_to_grant() -> None:
    def node(name: str, *states: str, connected: bool = True) -> Node:
        infos = tuple(GpuInfo(index, f"{name}-{index}", state=state) for index, state in enumerate(states))
        return Node(name, infos, connected=connected)

    nodes = [node("a", "lost", "dirty"), node("b", "lost", "ok"), node("c", "lost", connected=False), node("d")]
    found = build_view(World(nodes={each.name: each for each in nodes}), Profiles(), 0.0)
    assert found.nodes == (NodeView("b", (1,)),)
    assert found.bare == {"a"}
