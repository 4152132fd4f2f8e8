"""The report of simulated runs, and that of the papers' tables."""

import random
from dataclasses import replace

import pytest

from hpcdl.core.model.incarnation import Cause, Placement, Role, Share
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import JobState, World
from hpcdl.policies import all_policies
from hpcdl.report.history import History, JobAttempt, JobHistory, Phase, Piece, Span
from hpcdl.sim import Conditions, NodeSpell, SimJob, SimulatedRun, Workload, cluster, simulate, summarise
from hpcdl.sim.page import MOST_JOBS, Run, draws_every_bar, page_of
from hpcdl.sim.papers.page import papers_page
from hpcdl.sim.papers.table import PaperRow, PaperTable
from tests.report.test_page import Checker
from tests.support.extent import one_of

EVIL = "<b>bold</b> & \"'"
PROFILE = Profile("m", ((1, 1, 1.0), (1, 2, 1.8), (1, 4, 3.0)), startup_s=10, save_s=5, resume_s=10, power_w=300)


def small(name: str = EVIL) -> Workload:
    jobs = tuple(
        SimJob(30.0 * number, name, PROFILE, 600, gpus_max=4, user=name, deadline_s=4000.0 if number % 2 else None)
        for number in range(8)
    )
    return Workload(name, jobs, cluster(2, 4), name, (name,))


def ran(workload: Workload, conditions: Conditions, *policies: str) -> list[Run]:
    runs = [simulate(workload, policy, all_policies(), conditions) for policy in policies]
    return [(run, summarise(run)) for run in runs]


def made(jobs: int, nodes: int, policy: str, seed: int) -> Run:
    """A run as it could be, without the simulator's time: each job has the GPU that is free first."""
    chance = random.Random(seed)
    gpus = [GpuRef(f"n{number // 4 + 1}", number % 4) for number in range(4 * nodes)]
    free = dict.fromkeys(gpus, 0.0)
    now, told, spans, simulated = 0.0, [], [], []
    for number in range(1, jobs + 1):
        now += chance.expovariate(nodes / 900)
        gpu = gpus[number % len(gpus)]
        begin = max(now, free[gpu])
        end = free[gpu] = begin + 40 + chance.expovariate(1 / 3600)
        pieces = (
            Piece(Phase.STARTING, Role.PRIMARY, begin, begin + 30),
            Piece(Phase.TRAINING, Role.PRIMARY, begin + 30, end),
        )
        stay = JobAttempt(
            1, Placement((Share(gpu.node, (gpu.number,)),)), begin, begin + 30, end_at=end, cause=Cause.DONE
        )
        told.append(JobHistory(number, f"job-{number}", None, now, end, JobState.DONE, (stay,)))
        spans.append(Span(number, f"job-{number}", 1, *gpu, 1, begin, begin + 30, end, pieces, Cause.DONE))
        simulated.append(SimJob(now, f"job-{number}", PROFILE, 1000))
    ends = max(job.finished_at or 0.0 for job in told)
    history = History(told[0].submitted_at, ends, tuple(gpus), tuple(told), tuple(spans), ())
    workload = Workload("many", tuple(simulated), cluster(nodes, 4))
    run = SimulatedRun(workload, policy, Conditions(), history, World(), (), dict(enumerate(simulated, 1)), {})
    return run, summarise(run)


def test_everything_is_on_the_page_and_escaped() -> None:
    conditions = Conditions(seed=3, jitter=0.1, mtbf_s=9000.0, restarts=(100.0,), warm=True, until_s=1e6)
    workload = small()
    page = page_of(workload, conditions, ran(workload, conditions, "marble", "fifo"))
    checked = Checker(page)
    assert not {"link", "img", "iframe", "b<"} & set(checked.tags)
    assert checked.tags.count("script") == page.count("<script") == 1, "the page's own"
    assert not [value for name, value in checked.attributes if name in ("src", "href", "xlink:href")]
    assert "://" not in page
    assert "<b>bold" not in page
    text = " ".join(checked.text)
    for expected in (
        "Everything on this page is simulated", EVIL, "8 jobs on 2 nodes with 8 GPUs", "seed 3", "sigma 0.1",
        "2 h 30 min on average", "killed 1 time", "at the gate", "Makespan", "JCT, median", "JCT, 95th percentile",
        "Wait, mean", "GPU utilisation", "Lost to rescaling", "Suspends", "Resumes", "Rescales", "Deadlines met",
        "Fairness, mean", "Energy", "kWh", "★", "Queue length", "GPUs held", "GPUs training", "GPUs by job",
        "8 jobs under marble", "8 jobs under fifo", "Utilisation is work done",
    ):  # fmt: skip
        assert expected in text, expected
    assert checked.tags.count("details") == 2
    assert "Problem" not in text


def test_the_same_runs_give_the_same_page() -> None:
    workload, conditions = small("w"), Conditions()
    pages = {page_of(workload, conditions, ran(workload, conditions, "marble", "adaptive")) for _ in range(2)}
    assert len(pages) == 1
    (page,) = pages
    ((run, results),) = ran(workload, conditions, "fifo")
    slower = replace(run, decide_s=tuple(10 * second for second in run.decide_s))
    assert page_of(workload, conditions, [(run, results)]) == page_of(workload, conditions, [(slower, results)])
    assert "Problem" not in page


def test_what_went_wrong_stands_at_the_top_and_is_never_the_best() -> None:
    workload, conditions = small("w"), Conditions()
    (run, results), other = ran(workload, conditions, "fifo", "marble")
    problems = tuple(f"policy fifo: {EVIL} {number}" for number in range(14))
    broken = (replace(run, problems=problems), replace(results, problems=problems, finished=5, makespan_s=1.0))
    page = page_of(workload, conditions, [broken, other])
    text = "".join(Checker(page).text)
    assert "Problem under fifo" in text
    assert f"policy fifo: {EVIL} 9" in text
    assert "and 5 more" in text
    assert page.index("Problem under fifo") < page.index("Policies side by side")
    assert "★" not in page.partition("<tbody>")[2].partition("</tbody>")[0]
    some = page_of(workload, conditions, [(run, replace(results, finished=5))])
    assert "3 jobs of 8 did not finish" in some


def test_a_run_without_jobs_and_no_run() -> None:
    workload = Workload("none", (), cluster(1, 1))
    assert "There is no run" in page_of(workload, Conditions(), [])
    assert "There is no run" in page_of(workload, Conditions(), ran(workload, Conditions(), "fifo"))


def test_nodes_that_come_and_go_and_profiles_that_are_not_told() -> None:
    workload = replace(
        small("w"),
        jobs=tuple(
            replace(job, told=number > 2, believed=None if number < 6 else replace(PROFILE, startup_s=1.0))
            for number, job in enumerate(small("w").jobs)
        ),
        nodes=(NodeSpell("n1", 4, "v100"), NodeSpell("n2", 4, "k80", 100.0, 400.0), NodeSpell("n2", 4, "k80", 900.0)),
    )
    page = page_of(workload, Conditions(), ran(workload, Conditions(), "fifo"))
    text = "".join(Checker(page).text)
    assert "8 jobs on 2 nodes that come and go (k80, v100)" in text
    assert "no profile of 3 jobs" in text
    assert "Of 2 jobs, policies got another profile" in text


@pytest.mark.parametrize(
    ("jobs", "nodes", "listed"), [(MOST_JOBS, 16, True), *one_of((1_000, 25, False), (10_000, 250, False))]
)
def test_size(jobs: int, nodes: int, listed: bool) -> None:
    runs = [made(jobs, nodes, policy, seed) for seed, policy in enumerate(("marble", "adaptive", "fifo"))]
    assert draws_every_bar([run.history for run, _ in runs]) == listed
    page = page_of(runs[0][0].workload, Conditions(), runs)
    Checker(page)
    assert len(page.encode()) < 1_000_000
    assert ("<details>" in page) == listed
    assert ("The share of each node" in page) != listed


def test_the_papers_page() -> None:
    tables = [
        PaperTable(
            f"Sets {EVIL}",
            (
                PaperRow(
                    "set 1", EVIL, 500.0, 400.0, {"qos": 0.5, "qos_ci95": 0.04, "suspends": 2}, {"makespan_s": 496}
                ),
                PaperRow(
                    "set 1", "b", 496.0, float("nan"), {"qos": 0.25, "why": EVIL}, {"makespan_s": 496, "qos": 0.3}
                ),
                PaperRow("set 2", "b", 496.0, 1.0, {"qos": None}, {"qos_gain_up_to": 0.674}),
            ),
            (EVIL,),
        ),
        PaperTable("Nothing printed", (PaperRow("w", "p", 1.0, 1.0),)),
    ]
    page = papers_page(tables)
    assert page == papers_page(tables)
    checked = Checker(page)
    assert "<b>bold" not in page
    assert "script" not in checked.tags
    text = "|".join(checked.text)
    for expected in (
        "paper 496, +0.8 %", "paper 496, the same", "50.0 % ± 4.0 %", "paper 30.0 %, -5.0 points", "paper 67.4 %",
        "Mean JCT, s", "QoS gain up to", "set 1 · b", "simulated",
    ):  # fmt: skip
        assert expected in text, expected
    assert checked.tags.count("figure") == 2  # makespan and QoS have both
    assert "There is no table" in papers_page([])
