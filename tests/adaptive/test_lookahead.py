"""In the forecast pools that are alike are one to a job: it takes the GPUs that nobody holds, wherever they are."""

from dataclasses import replace

import pytest

from hpcdl.adaptive.forecast import estimate_deadline, roll
from hpcdl.adaptive.lookahead import LookAhead, Rollout
from hpcdl.adaptive.options import candidates
from hpcdl.core.model.plan import JobView, NodeView, View
from hpcdl.core.model.profile import Profile
from tests.adaptive.views import job, node, running, view

SLOW = Profile("slow", ((1, 1, 1.0), (1, 2, 1.6), (1, 4, 2.5)), 30.0, 20.0, 30.0)
TWO_KINDS = replace(SLOW, kinds=(("fast", ((1, 1, 2.0), (1, 4, 5.0))),))
PAIR = (node("n1", 2), node("n2", 2))


def cluster(*jobs: JobView, nodes: tuple[NodeView, ...] = PAIR) -> View:
    return view(*jobs, nodes=nodes, now=0.0, objective="deadline")


def due(number: int, total: int, deadline: float | None, **more: object) -> JobView:
    known: dict[str, object] = {"profile": SLOW, "deadline": deadline, "submitted_at": 0.0, "gpus_max": 1}
    return job(number, total, **(known | more))


def on(name: str, number: int, *gpus: int, total: int = 5000, deadline: float | None = None) -> JobView:
    known: dict[str, object] = {"profile": SLOW, "deadline": deadline, "step": 0, "step_at": 0.0, "gpus_max": 1}
    return running(number, *gpus, on=name, total=total, **known)


def rolled(seen: View) -> dict[int, Rollout]:
    return LookAhead(seen.now, candidates(seen)).run([each.id for each in seen.jobs])


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("deadline", [2000.0, 500.0, None])
def test_as_many_start_at_once_as_there_are_gpus_on_all_nodes(nodes: int, deadline: float | None) -> None:
    """Of those with a deadline, of those that miss it anyhow, and of those that have none."""
    jobs = [due(number, 1000, deadline) for number in range(1, 2 * nodes + 2)]
    found = rolled(cluster(*jobs, nodes=tuple(node(f"n{number}", 2) for number in range(nodes))))
    assert [each.waits_s for each in found.values()].count(0.0) == 2 * nodes
    assert sorted(each.ends_s for each in found.values()) == [1030.0] * (2 * nodes) + [2060.0]


def test_a_deadline_is_likely_where_only_the_second_node_is_free() -> None:
    held = [on("n1", 1, 0, deadline=5100.0), on("n1", 2, 1, deadline=5100.0)]
    mine = due(3, 1000, 2000.0)
    second, alone = estimate_deadline(cluster(*held), mine), estimate_deadline(cluster(), mine)
    assert second is not None
    assert alone is not None
    assert second.ends_at == alone.ends_at == 1030.0
    assert min(second.probability, alone.probability) > 0.97


def test_nobody_is_sent_away_for_a_node_that_is_as_good() -> None:
    """The new job is worth more, and comes first; the old ones keep what they have, and lose no time."""
    held = [on("n1", 1, 0, total=5000), on("n1", 2, 1, total=5000)]
    found = rolled(cluster(*held, due(3, 600, 700.0)))
    assert found[3].ends_s == 630.0
    assert [found[number].ends_s for number in (1, 2)] == [5000.0, 5000.0]


def test_who_has_to_go_takes_what_is_free_elsewhere() -> None:
    """A job of two GPUs takes a whole node; one whose GPU it takes goes on beside the other, after a restart."""
    seen = cluster(on("n1", 1, 0, deadline=9000.0), on("n2", 2, 0, deadline=9000.0))
    found = rolled(replace(seen, jobs=(*seen.jobs, due(3, 900, 650.0, gpus_min=2, gpus_max=2))))
    assert found[3].waits_s == 0.0
    assert sorted(found[number].ends_s for number in (1, 2)) == [5000.0, 5000.0 + SLOW.suspend_resume_s]


def test_a_kind_that_a_job_did_not_ask_for_is_taken_when_it_cannot_be_on_time() -> None:
    """The least of every pool, not of the first alone."""
    nodes = (node("n1", 1), node("n2", 1, "fast"))
    mine, other = (due(number, 9000, 100.0, profile=TWO_KINDS) for number in (1, 2))
    found = rolled(cluster(mine, other, nodes=nodes))
    assert [found[number].waits_s for number in (1, 2)] == [0.0, 0.0]
    assert min(found[number].ends_s for number in (1, 2)) == 30.0 + 9000 / 2.0


def test_one_pool_and_many_answer_alike() -> None:
    """Jobs of one GPU: four nodes of one GPU are to them what a node of four is."""
    jobs = [due(number, 500 + 100 * number, 3000.0 + 10 * number) for number in range(1, 10)]
    many = rolled(cluster(*jobs, nodes=tuple(node(f"n{number}", 1) for number in range(4))))
    one = rolled(cluster(*jobs, nodes=(node("n1", 4),)))
    assert {number: each.ends_s for number, each in many.items()} == {
        number: each.ends_s for number, each in one.items()
    }


def test_a_full_cluster_starts_nobody() -> None:
    held = [on(name, number, gpu) for number, (name, gpu) in enumerate([("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)], 1)]
    found = roll(cluster(*(replace(each, can_suspend=False) for each in held)), due(5, 100, 1000.0))
    assert found is not None
    assert found.waits_s == 5000.0
