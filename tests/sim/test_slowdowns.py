"""Two jobs on one GPU in a simulation: what it costs them, and who may."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.job import Sharing
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.sharing import memory_refusal
from hpcdl.core.model.world import JobState, validate
from hpcdl.policies import all_policies
from hpcdl.sim import SimJob, Workload, cluster, simulate, summarise
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.readers import read_workload
from hpcdl.sim.slowdowns import Slowdown, slowdown_of
from hpcdl.sim.workload import NodeSpell, WorkloadError
from tests.support.seeds import seeds

PLAIN = Profile("plain", ((1, 1, 1.0), (1, 4, 3.0)))
OTHER = Profile("other", ((1, 1, 1.0),))
FREE = Sharing("foreground", 1.0)


def nodes(many: int = 1, gpus: int = 1, memory_mib: int = 16_000) -> tuple[NodeSpell, ...]:
    return tuple(NodeSpell(each.name, gpus, memory_mib=memory_mib) for each in cluster(many, gpus))


def job(name: str, steps: int, role: Sharing | None, submit_s: float = 0.0, **more: Any) -> SimJob:
    values: dict[str, Any] = {"profile": PLAIN, "gpus_max": 1, "gpu_memory_mib": 6_000, "share": role} | more
    return SimJob(submit_s, name, steps=steps, **values)


def ran(*jobs: SimJob, cells: tuple[Slowdown, ...] = (), policy: str = "marble", **conditions: Any) -> SimulatedRun:
    workload = Workload("pairs", jobs, nodes(), slowdowns=cells)
    run = simulate(workload, policy, all_policies(), Conditions(**conditions))
    validate(run.world)
    assert run.problems == ()
    return run


def ends(run: SimulatedRun) -> list[float]:
    return [each.finished_at for each in run.history.jobs if each.finished_at is not None]


def test_both_run_slower_while_they_share_and_at_full_speed_alone() -> None:
    cell = Slowdown("PLAIN", "plain", 0.25, 0.5)
    run = ran(job("front", 800, FREE), job("back", 700, Sharing("background")), cells=(cell,))
    # 1,000 s at 0.8 steps/s and 0.5 steps/s: the background has done 500 of 700, and the rest alone.
    assert ends(run) == pytest.approx([1000.0, 1200.0])
    assert summarise(run).shared_gpu_s == pytest.approx(1000.0)
    assert [each.shared_gpu_s for each in summarise(run).jobs] == pytest.approx([1000.0, 1000.0])
    assert [each.suspends for each in summarise(run).jobs] == [0, 0]


def test_the_foreground_goes_on_at_full_speed_once_the_background_has_ended() -> None:
    run = ran(
        job("front", 800, FREE), job("back", 50, Sharing("background"), 100.0), cells=(Slowdown("", "", 1.0, 0.5),)
    )
    # 100 steps alone, 100 s at half speed each, the other 650 alone again.
    assert ends(run) == pytest.approx([850.0, 200.0])


def test_a_slowdown_is_held_at_the_limit_of_the_foreground() -> None:
    cells = (Slowdown("", "", 0.5, 0.5),)
    run = ran(job("front", 1000, Sharing("foreground", 0.25)), job("back", 250, Sharing("background")), cells=cells)
    assert ends(run) == pytest.approx([1000 + 0.2 * 1000, 1000.0])


def test_the_first_cell_that_is_about_a_pair_counts_and_else_the_papers_loss() -> None:
    cells = (Slowdown("vgg", "", 0.1), Slowdown("", "inference", 0.2), Slowdown("", "vgg", 0.3))
    assert slowdown_of(cells, ("VGG", "training"), ("x", "inference")).slowdown == 0.1
    assert slowdown_of(cells, ("x", "training"), ("vgg", "inference")).slowdown == 0.2
    assert slowdown_of(cells, ("x", "training"), ("vgg", "training")).slowdown == 0.3
    default = slowdown_of(cells, ("x", "training"), ("y", "training"))
    assert default.speeds(None) == pytest.approx((0.82, 0.18))
    assert default.speeds(0.1)[0] == pytest.approx(1 / 1.1)


def test_jobs_on_other_gpus_of_a_node_slow_each_other_down_while_both_train() -> None:
    """GENIE's figure 18: nobody agreed to that, and each has a cell of its own."""
    cells = (Slowdown("plain", "other", 0.25, apart=True), Slowdown("other", "plain", 1.0, apart=True))
    jobs = (job("a", 800, None), job("b", 100, None, 100.0, profile=OTHER))
    for there, expected in ((nodes(1, 2), [840.0, 300.0]), (nodes(2, 1), [800.0, 200.0])):
        run = simulate(Workload("apart", jobs, there, slowdowns=cells), "marble", all_policies(), Conditions())
        validate(run.world)
        # On one node b is there for 200 s, at half its speed: a makes 160 steps meanwhile.
        assert ends(run) == pytest.approx(expected)
        assert not summarise(run).shared_gpu_s


def test_what_jobs_on_a_node_cost_comes_on_top_of_what_those_on_a_gpu_do() -> None:
    cells = (Slowdown("", "", 1.0, 0.5), Slowdown("plain", "other", 0.25, apart=True))
    near = job("near", 1000, None, profile=OTHER)
    jobs = (near, job("front", 100, FREE, 1.0), job("back", 100, Sharing("background"), 2.0))
    run = simulate(Workload("both", jobs, nodes(1, 2), slowdowns=cells), "marble", all_policies(), Conditions())
    # The first 0.8 steps of the foreground took 1 s, the other 99.2 go at 0.5 x 0.8, as the background's do.
    assert ends(run) == pytest.approx([1000.0, 250.0, 251.0]), "no cell is about what the first one loses"


@pytest.mark.parametrize("policy", ["adaptive", "marble", "harvest"])
def test_every_policy_that_shares_makes_a_pair(policy: str) -> None:
    run = ran(job("front", 800, FREE), job("back", 1700, Sharing("background")), policy=policy)
    shared = summarise(run).shared_gpu_s
    assert shared is not None
    assert shared > 700


@pytest.mark.parametrize("wrong", [{"slowdown": -0.1}, {"share": 0.0}, {"share": 1.5}, {"slowdown": float("nan")}])
def test_a_cell_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Slowdown(**wrong)


@pytest.mark.parametrize(
    ("more", "sharing"),
    [({"share": None}, True), ({"gpu_memory_mib": None}, True), ({"gpu_memory_mib": 12_000}, True), ({}, False)],
)
def test_without_agreement_memory_or_the_setting_nobody_shares(more: dict[str, Any], sharing: bool) -> None:
    run = ran(job("front", 100, FREE), job("back", 100, Sharing("background"), **more), sharing=sharing)
    assert ends(run) == pytest.approx([100.0, 200.0])
    assert summarise(run).shared_gpu_s == 0.0


def test_checkpoints_and_failures_count_the_steps_that_were_trained() -> None:
    jobs = (job("front", 5000, FREE), job("back", 2000, Sharing("background")))
    first = ran(*jobs, cells=(Slowdown("", "", 0.5, 0.5),), mtbf_s=1500.0, seed=3, checkpoint_s=100.0)
    again = ran(*jobs, cells=(Slowdown("", "", 0.5, 0.5),), mtbf_s=1500.0, seed=3, checkpoint_s=100.0)
    assert first.records == again.records
    assert [each.state for each in first.history.jobs] == [JobState.DONE] * 2
    assert len(first.history.spans) > 2, "nobody failed"
    assert len({each.job for each in first.history.spans if each.ready_at is not None}) == 2


WORKLOAD = """
schema: 1
cluster: {nodes: 1, gpus_per_node: 1, gpu_memory: 16G}
profiles: {own: {points: [{gpus: 1, rate: 1}]}}
slowdowns: [{foreground: own, background: training, slowdown: 0.05, background_share: 0.5}]
jobs:
  - {model: own, steps: 2100, gpus: 1, share: "foreground:5", gpu_memory: 6G}
  - {model: own, steps: 100, gpus: 1, share: background, gpu_memory: 6G}
"""


def read(folder: Path, text: str) -> Workload:
    path = folder / "work.yaml"
    path.write_text(text)
    return read_workload(path, {}, ())


def test_a_workload_says_who_shares_and_what_it_costs(tmp_path: Path) -> None:
    workload = read(tmp_path, WORKLOAD)
    assert workload.slowdowns == (Slowdown("own", "training", 0.05, 0.5),)
    apart = read(tmp_path, WORKLOAD.replace("background_share: 0.5", "apart: true"))
    assert apart.slowdowns == (Slowdown("own", "training", 0.05, apart=True),)
    assert [each.share for each in workload.jobs] == [Sharing("foreground", 0.05), Sharing("background")]
    assert workload.nodes[0].memory_mib == 16 * 1024
    plain = summarise(simulate(workload, "marble", all_policies())).to_json()
    assert plain["shared_gpu_s"] == pytest.approx(200.0)
    assert plain["jobs"][0]["jct_s"] == pytest.approx(200 + 2100 - 200 / 1.05)
    alone = read(tmp_path, WORKLOAD.replace(', share: "foreground:5"', "").replace(", share: background", ""))
    text = json.dumps(summarise(simulate(alone, "marble", all_policies())).to_json())
    assert "shared" not in text, "results of a workload in which nobody shares are those of earlier versions"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("foreground:5", "both", "share: 'both'"),
        ("foreground:5", "foreground:0", "share: the slowdown must be"),
        ("gpu_memory: 6G}", "gpu_memory: much}", "gpu_memory: 'much'"),
        ("gpu_memory: 16G", "gpu_memory: -1", "gpu_memory: '-1'"),
        ("background_share: 0.5", "background_share: 2", "slowdowns: the background's share"),
        ("slowdown: 0.05", "slowdown: fast", "slowdowns: slowdown"),
        ("slowdown: 0.05", "loss: 0.05", "slowdowns: 'loss'"),
        ("background_share: 0.5", "apart: 2", "slowdowns: apart: expected true or false"),
        ("background_share: 0.5", "background_share: 0.5, apart: true", "slowdowns: apart: expected a slowdown and no"),
        ("slowdown: 0.05, background_share: 0.5", "apart: true", "slowdowns: apart: expected a slowdown"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(tmp_path, WORKLOAD.replace(old, new))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


ROLES = (None, Sharing("foreground"), Sharing("foreground", 0.02), Sharing("background"))


@st.composite
def pairs(draw: st.DrawFn) -> Workload:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    there = tuple(NodeSpell(f"n{at}", gpus, memory_mib=16_000) for at, gpus in enumerate(sizes, 1))
    if draw(st.booleans()):
        there = (*there, NodeSpell("n9", 2, "", 50.0, 400.0, 16_000))
    jobs = []
    for number in range(draw(st.integers(2, 8))):
        submit_s = draw(st.sampled_from([0.0, 0.0, 20.0, 90.0]))
        more: dict[str, Any] = {
            "profile": draw(st.sampled_from([PLAIN, OTHER])),
            "gpus_max": draw(st.integers(1, max(sizes))),
            "gpu_memory_mib": draw(st.sampled_from([4_000, 9_000, None])),
            "told": draw(st.booleans()),
        }
        if draw(st.booleans()):
            more["nodes_max"] = len(sizes)
        jobs.append(job(f"j{number}", draw(st.integers(1, 400)), draw(st.sampled_from(ROLES)), submit_s, **more))
    cell = Slowdown("other", "", draw(st.sampled_from([0.0, 0.3, 2.0])), draw(st.sampled_from([0.1, 1.0])))
    return Workload("drawn", tuple(sorted(jobs, key=lambda each: each.submit_s)), there, slowdowns=(cell,))


@pytest.mark.parametrize("policy", ["adaptive", "marble", "harvest"])
@settings(max_examples=seeds(25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=pairs(), fails=st.booleans(), seed=st.integers(0, 9))
def test_at_most_one_pair_on_a_gpu_which_agreed_and_fits(
    policy: str, workload: Workload, fails: bool, seed: int
) -> None:
    conditions = Conditions(seed, jitter=0.1, mtbf_s=300.0 if fails else 0.0, checkpoint_s=20.0)
    run = simulate(workload, policy, all_policies(), conditions)
    assert run.problems == ()
    validate(run.world)
    assert [each.state for each in run.history.jobs] == [JobState.DONE] * len(workload.jobs)
    held: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for span in run.history.spans:
        for piece in span.pieces:
            if piece.role is Role.BACKGROUND:
                assert run.jobs[span.job].share == Sharing("background")
        held.setdefault((span.node, span.gpu), []).append((span.start_at, span.end_at, span.job))
    for spans in held.values():
        moments = sorted({at for begin, end, _ in spans for at in (begin, end)})
        for begin, end in pairwise(moments):
            there = [number for first, last, number in spans if first <= begin and end <= last]
            assert len(there) <= 2
            if len(there) == 2:
                both = sorted((run.jobs[number] for number in there), key=lambda each: each.share == ROLES[3])
                assert [each.share is not None and each.share.role for each in both] == ["foreground", "background"]
                assert not memory_refusal(16_000, both[0].gpu_memory_mib, both[1].gpu_memory_mib)


def test_a_job_waits_for_a_node_whose_gpus_are_large_enough() -> None:
    small, large = nodes()[0], NodeSpell("n9", 1, memory_mib=40_000, from_s=500.0)
    jobs = (job("large", 100, None, gpu_memory_mib=20_000), job("small", 100, None))
    run = simulate(Workload("two sizes", jobs, (small, large)), "adaptive", all_policies(), Conditions())
    assert not run.problems
    first, second = run.history.jobs
    assert first.attempts[0].placement.nodes == ("n9",)
    assert first.attempts[0].start_at == 500.0
    assert second.attempts[0].start_at == 0.0
    never = simulate(Workload("one size", jobs, (small,)), "adaptive", all_policies(), Conditions())
    assert never.problems[0].endswith(
        "needs 19.5 GiB of each GPU, and the largest has 15.6 GiB (n1): it waits for a larger one"
    )


def test_memory_in_use_is_told_where_the_workload_says_it() -> None:
    alone = summarise(ran(job("a", 100, None), job("b", 100, None, submit_s=500.0)))
    assert alone.memory_utilisation == pytest.approx(200 * 6_000 / 16_000 / alone.makespan_s)
    assert [each.memory_utilisation for each in alone.jobs] == pytest.approx([0.375, 0.375])
    plain = alone.to_json()
    assert plain["memory_utilisation"] == pytest.approx(alone.memory_utilisation, abs=1e-6)
    assert plain["jobs"][0]["memory_utilisation"] == pytest.approx(0.375)
    unknown = summarise(ran(job("a", 100, None), job("b", 100, None, gpu_memory_mib=None)))
    assert [each.memory_utilisation for each in unknown.jobs] == [pytest.approx(0.375), None]
    assert "memory_utilisation" not in unknown.to_json()
