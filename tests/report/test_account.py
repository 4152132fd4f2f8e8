"""The account of GPU-hours: by hand on small stories, and that everything adds up on generated workloads."""

import colorsys
import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Role
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import UNTRAINED
from hpcdl.core.model.world import JobState, World
from hpcdl.report import stacked
from hpcdl.report.account import BY, NAMES, Account, AccountLine, Shares, account, story_of, story_of_rows
from hpcdl.report.attempts import attempts_of
from hpcdl.report.page import timeline_page
from hpcdl.report.stacked import account_page, hours, summary
from hpcdl.report.use import JobUse, use_of
from tests.core.workloads.test_elastic import ACTS, Story
from tests.core.workloads.test_every_verb import NODES, PHASES, Act, acts, perform
from tests.report.story import node, placed, rows, set_three, submitted
from tests.sim.runs import jobs_of, run
from tests.support.model_cluster import Cluster
from tests.support.seeds import seeds


def told(stamped: Iterable[tuple[float, ev.Event]], by: str = "job") -> Account:
    return account(story_of_rows(rows(stamped)), by)


def of(found: Account, key: str) -> Shares:
    return next(line.shares for line in found.lines if line.key == key)


def spec(name: str = "a", user: str = "jo") -> JobSpec:
    return JobSpec(("train",), name, user, steps=100)


def test_set_three_of_the_paper() -> None:
    found = told(set_three())
    assert found.shares == Shares(useful=2056, starting=500, saving=45, idle=405)
    assert found.available == found.shares.available == 6 * 501
    assert of(found, "2") == Shares(useful=3 * 115 + 4 * 283, starting=3 * 37 + 4 * 51, saving=45)
    assert [line.suspends for line in found.lines] == [0, 1, 0, 0]
    assert (dict(found.suspends), dict(found.ends)) == ({"rescale": 1}, {"done": 3, "suspended": 1})
    assert summary(found).startswith("0.835 GPU-hours of 6 GPUs: 68.4 % useful; 16.6 % starting, 1.5 % saving")
    shown = [hours(gpu_h * 3600) for gpu_h in (0, 1e-5, 0.0005, 0.51, 12.34567, 99.9994, 104.25, 12345.6)]
    assert shown == ["0.000", "<0.001", "0.001", "0.510", "12.346", "99.999", "104.2", "12345.6"]


def test_what_was_measured_of_the_gpus_is_a_mean_over_gpu_seconds() -> None:
    story = story_of_rows(rows(set_three()))
    use = {1: JobUse(0.5, 0.25), 2: JobUse(0.8, None)}
    found = account(story, "job", use=use)
    assert {line.key: (line.use.util, line.use.memory) for line in found.lines} == {
        "1": (pytest.approx(0.5), pytest.approx(0.25)),
        "2": (pytest.approx(0.8), None),
        "3": (None, None),
        "": (0.0, 0.0),
    }
    one, two, idle = (of(found, key).available for key in ("1", "2", ""))
    assert found.use.util == pytest.approx((0.5 * one + 0.8 * two) / (one + two + idle))
    assert found.use.memory == pytest.approx(0.25 * one / (one + idle)), "what is not known counts nowhere"
    assert account(story, "job", jobs=[1, 2], use=use).use.util == pytest.approx((0.5 * one + 0.8 * two) / (one + two))
    assert account(story, "job").use == JobUse()
    assert "25.0 %" in account_page("t", "t", [found])


def test_the_memory_of_a_job_is_a_share_of_that_of_its_gpus() -> None:
    story = story_of_rows(rows(set_three()))
    measured: list[dict[str, Any]] = [
        {"job": 1, "gpu_util": 50.0, "gpu_memory": 4_096.0},
        {"job": 9, "gpu_util": None, "gpu_memory": 1.0},
    ]
    assert use_of(measured, story.history, story.watch) == {1: JobUse(0.5, None), 9: JobUse()}
    story.watch.memory_mib.update(dict.fromkeys(story.watch.gpus, 16_384))
    assert use_of(measured, story.history, story.watch) == {1: JobUse(0.5, 0.25), 9: JobUse()}


def test_the_end_of_a_script_that_was_cut_off_is_lost_and_its_training_is_not() -> None:
    done = [
        (0, node("n1", 1)),
        (0, ev.JobSubmitted(1, spec(), "1")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0]))),
        (10, ev.TrainerReady(1, 1, 1, "n1")),
        (60, ev.Saved(1, 1, 1, "n1", step=100)),
        (60, ev.TrainingDone(1, 1, 1, "n1", step=100)),
        (90, ev.Exited(1, 1, 1, "n1", signal="SIGKILL", done=True)),
        (90, ev.GpusFreed(1, 1, 1, "n1")),
    ]
    cut = told([*done, (90, ev.IncarnationEnded(1, 1, Cause.INFRASTRUCTURE, reached=100, step=100))])
    assert cut.shares == Shares(useful=50, starting=10, lost=30)
    whole = told([*done, (90, ev.IncarnationEnded(1, 1, Cause.DONE, reached=100, step=100))])
    assert whole.shares == Shares(useful=80, starting=10)


def test_gpu_hours_by_tag() -> None:
    def job(number: int, *tags: str) -> list[tuple[float, ev.Event]]:
        spec = JobSpec(("train",), "a", "jo", tags=tags)
        return [
            (0, ev.JobSubmitted(number, spec, str(number))),
            (0, ev.StartRequested(number, 1, ("n1",), placed([number]))),
            (0, ev.TrainerReady(number, 1, 1, "n1")),
            (100, ev.Exited(number, 1, 1, "n1", code=0)),
            (100, ev.GpusFreed(number, 1, 1, "n1")),
            (100, ev.IncarnationEnded(number, 1, Cause.DONE, final=JobState.DONE)),
            (100, ev.JobEnded(number, JobState.DONE)),
        ]

    found = told([(0, node("n1", 4)), *job(1, "a", "b"), *job(2, "b"), *job(3)], "tag")
    by_tag = {line.key: line.shares.available for line in found.lines}
    assert by_tag == {"-": 100, "a": 100, "b": 200, "": 100}
    assert found.shares.available == found.available == 400, "a job with two tags counts once in the sum"
    page = account_page("title", "told", [found])
    assert "Tags" in page


def test_of_a_gpu_that_two_jobs_share_each_has_half() -> None:
    def attempt(job: int, gpus: list[int], role: Role, begin: float, end: float) -> list[tuple[float, ev.Event]]:
        return [
            (begin, ev.StartRequested(job, 1, ("n1",), placed(gpus, role))),
            (begin, ev.TrainerReady(job, 1, 1, "n1")),
            (end, ev.Exited(job, 1, 1, "n1", code=0)),
            (end, ev.GpusFreed(job, 1, 1, "n1")),
            (end, ev.IncarnationEnded(job, 1, Cause.DONE, final=JobState.DONE)),
            (end, ev.JobEnded(job, JobState.DONE)),
        ]

    jobs: list[tuple[float, ev.Event]] = [(0, submitted(number, f"{number}")) for number in (1, 2, 3)]
    shared = [
        *attempt(1, [0, 1], Role.PRIMARY, 0, 100),
        *attempt(2, [0], Role.BACKGROUND, 20, 60),
        *attempt(3, [0, 1], Role.BACKGROUND, 80, 130),
    ]
    story = story_of_rows(rows(sorted([(0, node("n1", 2)), *jobs, *shared], key=lambda each: each[0])))
    found = account(story)
    assert {line.key: line.shares.available for line in found.lines} == {"1": 160, "2": 20, "3": 80}
    assert found.shares.available == found.available == 2 * 130
    for jobs_held, gpu_s in (([1], 160), ([2, 3], 100)):
        alone = account(story, jobs=jobs_held)
        assert alone.shares.available == alone.available == gpu_s
    early = account(story, until=40)
    assert early.shares.available == early.available == 2 * 40


def crash(*saves: ev.Saved, cause: Cause = Cause.USER_ERROR, step: int | None = None) -> list[tuple[float, ev.Event]]:
    """Ready at 10, a save reported at 30, dead at 50, seen free at 52; on 2 GPUs."""
    return [
        (0, node("n1", 2)),
        (0, ev.JobSubmitted(1, spec(), "r1")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0, 1]))),
        (10, ev.TrainerReady(1, 1, 1, "n1")),
        *((30.0, save) for save in saves),
        (49, ev.Progressed(1, 1, 1, "n1", step=40, total=100)),
        (50, ev.Exited(1, 1, 1, "n1", code=1)),
        (52, ev.GpusFreed(1, 1, 1, "n1")),
        (52, ev.IncarnationEnded(1, 1, cause, reached=40, step=step, code=1)),
        (60, ev.TroubleSeen("a", "clock")),
    ]


def test_work_after_the_last_checkpoint_is_lost() -> None:
    saved = ev.Saved(1, 1, 1, "n1", age_s=2.0, step=20, seconds=3.0)  # durable at 28, from 25 on
    found = told(crash(saved, step=20))
    assert found.shares == Shares(starting=20, useful=2 * 15, saving=2 * 3 + 2 * 2, lost=2 * 22, idle=16)
    assert found.lines[0].failures == 1


def test_an_end_at_its_time_limit_is_no_failure() -> None:
    assert told(crash(cause=Cause.WALLTIME)).lines[0].failures == 0


@pytest.mark.parametrize(("detail", "failures"), [(UNTRAINED, 0), ("no checkpoint within the grace period", 1)])
def test_a_suspend_during_the_start_is_no_failure(detail: str, failures: int) -> None:
    stamped = crash(cause=Cause.PREEMPTED)
    ended = [(at, structs.replace(e, detail=detail) if isinstance(e, ev.IncarnationEnded) else e) for at, e in stamped]
    assert told(ended).lines[0].failures == failures


def test_without_a_checkpoint_all_of_it_is_lost() -> None:
    assert told(crash()).shares == Shares(starting=20, lost=80, saving=4, idle=16)
    from_earlier = told(crash(step=5))  # a checkpoint of the incarnation before
    assert from_earlier.shares.lost == 80


def test_a_checkpoint_that_cannot_be_read_back_is_none() -> None:
    saves = [ev.Saved(1, 1, 1, "n1", age_s=10.0, step=10), ev.Saved(1, 1, 1, "n1", step=20)]
    assert told(crash(*saves, step=10)).shares.lost == 2 * 30


def test_an_attempt_says_how_far_it_came_and_what_was_lost() -> None:
    saved = ev.Saved(1, 1, 1, "n1", age_s=2.0, step=20, seconds=3.0)
    (found,) = attempts_of(story_of_rows(rows(crash(saved, step=20))))
    assert (found.job, found.number, found.nodes, found.gpus, found.gpu_s) == (1, 1, ("n1",), 2, 2 * 52)
    assert (found.started_at, found.ready_at, found.ended_at) == (0, 10, 52)
    assert (found.cause, found.exit_code) == (Cause.USER_ERROR, 1)
    assert (found.first_step, found.last_step, found.saved_step) == (0, 40, 20)
    assert (found.lost_steps, found.lost_s, found.lost_gpu_s) == (20, 22, 2 * 22)
    (kept,) = attempts_of(story_of_rows(rows(crash(saved, step=20, cause=Cause.CANCELLED))))
    assert (kept.lost_steps, kept.lost_s, kept.lost_gpu_s) == (0, 0, 0)


def test_the_timeline_has_what_the_account_says_was_lost() -> None:
    page = timeline_page(rows(crash(ev.Saved(1, 1, 1, "n1", age_s=2.0, step=20, seconds=3.0), step=20)), "x")
    (row,) = re.findall(r'<tr id="job-1">.*?</tr>', page)
    cells = {each[0]: each[1] for each in re.findall(r'data-label="([^"]*)"[^>]*>([^<]*)<', row)}
    assert (cells["Lost, GPU-s"], cells["Suspended, s"]) == ("44", "0")


def test_steps_of_attempts_before_are_not_lost_twice() -> None:
    """It began at step 30, of which no checkpoint is known."""
    told = [
        (at, structs.replace(event, step=30) if isinstance(event, ev.TrainerReady) else event) for at, event in crash()
    ]
    (found,) = attempts_of(story_of_rows(rows(told)))
    assert (found.first_step, found.last_step, found.lost_steps) == (30, 40, 10)


def test_an_attempt_that_did_not_come_to_train_lost_its_gpus_only() -> None:
    told = [(at, event) for at, event in crash() if not isinstance(event, ev.TrainerReady | ev.Progressed)]
    told = [
        (at, structs.replace(event, reached=None) if isinstance(event, ev.IncarnationEnded) else event)
        for at, event in told
    ]
    (found,) = attempts_of(story_of_rows(rows(told)))
    assert (found.lost_steps, found.lost_s, found.lost_gpu_s) == (0, 0, 2 * 50)
    assert (found.ready_at, found.first_step, found.last_step) == (None, None, None)


def test_an_attempt_that_lives_has_not_ended() -> None:
    (found,) = attempts_of(story_of_rows(rows(crash()[:5])))
    assert (found.ended_at, found.cause, found.exit_code, found.detail) == (None, None, None, "")
    assert (found.first_step, found.last_step, found.lost_gpu_s) == (0, 40, 0)


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.DONE, Cause.SUSPENDED])
def test_what_its_user_ended_or_what_was_saved_is_not_lost(cause: Cause) -> None:
    assert told(crash(cause=cause)).shares == Shares(starting=20, useful=80, saving=4, idle=16)


def test_a_failure_at_the_saved_step_loses_nothing() -> None:
    assert told(crash(step=40, cause=Cause.NODE_LOST)).shares.lost == 0


def dies(cause: Cause, *told: tuple[float, ev.Event], saved: int | None = None) -> Account:
    """Granted 2 GPUs at 0, processes at 4, dead at 50; an attempt before it may have saved at step `saved`."""
    return account(
        story_of_rows(
            rows([
                (0, node("n1", 2)),
                (0, ev.JobSubmitted(1, spec(), "r1")),
                (0, ev.StartRequested(1, 2, ("n1",), placed([0, 1]))),
                (4, ev.Started(1, 2, 1, "n1", pid=7)),
                *told,
                (50, ev.Exited(1, 2, 1, "n1", code=2)),
                (50, ev.GpusFreed(1, 2, 1, "n1")),
                (50, ev.IncarnationEnded(1, 2, cause, reached=saved, step=saved, code=2)),
            ])
        )
    )  # fmt: skip


ATTACHED = (6, ev.Attached(1, 2, 1, "n1", pid=7, rank=0))


@pytest.mark.parametrize("cause", [Cause.USER_ERROR, Cause.OUT_OF_MEMORY, Cause.INFRASTRUCTURE, Cause.STALLED])
@pytest.mark.parametrize("saved", [None, 300])
def test_an_attempt_that_fails_before_it_trains_is_lost(cause: Cause, saved: int | None) -> None:
    """A script that is not there, an import that fails: whether it attached or not, and wherever the job stood."""
    assert dies(cause, saved=saved).shares == Shares(lost=100)
    assert dies(cause, ATTACHED, saved=saved).shares == Shares(lost=100)


def test_who_is_cancelled_before_a_step_has_trained_nothing() -> None:
    ready = (10, ev.TrainerReady(1, 2, 1, "n1", step=300))
    assert dies(Cause.CANCELLED, ATTACHED, ready, saved=300).shares == Shares(starting=20, lost=80)
    step = (40, ev.Progressed(1, 2, 1, "n1", step=301))
    assert dies(Cause.CANCELLED, ATTACHED, ready, step, saved=300).shares == Shares(starting=20, useful=80)
    assert dies(Cause.CANCELLED).shares == Shares(starting=8, useful=92), "a program that tells nothing may train"
    assert dies(Cause.CANCELLED, ATTACHED).shares == Shares(starting=100)


def test_gpus_that_nobody_can_give_are_not_idle() -> None:
    found = told(
        [
            (0, ev.DaemonStarted(1, "0", 1, "h")),
            (0, node("n1", 2)),
            (10, ev.GpuChanged("n1", 1, "lost", "fell off the bus")),
            (30, ev.GpuChanged("n1", 1, "ok")),
            (40, ev.NodeSilent("n1", "connection closed")),
            (50, node("n1", 2)),
            (60, ev.TroubleSeen("a", "the last that this daemon says")),
            (100, ev.DaemonStarted(2, "0", 2, "h")),
            (110, node("n1", 2)),
            (120, ev.NodeLost("n1", "its allocation ended")),
            (200, ev.TroubleSeen("a", "later")),
        ]
    )
    assert found.shares == Shares(idle=(40 + 10 + 10) + (40 - 20 + 10 + 10))
    assert found.gpus == 2


def test_a_trainer_that_goes_on_without_its_agent_counts() -> None:
    stamped = crash()
    stamped[4:4] = [(20, ev.NodeSilent("n1", "gone"))]
    found = told(stamped)
    assert found.shares == Shares(starting=20, lost=80, saving=4)
    assert found.available == 104


def test_lines_by_user_array_day_and_policy() -> None:
    array = ev.ArraySubmitted(1, spec("a", "ada"), "r1", indices=((1, 2, 1),))
    stamped: list[tuple[float, ev.Event]] = [
        (0, ev.PolicyChosen("marble")),
        (0, node("n1", 3)),
        (0, array),
        (0, ev.JobSubmitted(3, spec("b", "bob"), "r3")),
        *((0.0, ev.StartRequested(job, 1, ("n1",), placed([job - 1]))) for job in (1, 2, 3)),
        *((0.0, ev.TrainerReady(job, 1, 1, "n1")) for job in (1, 2, 3)),
        (60, ev.PolicyChosen("fifo")),
        *((100.0, ev.Exited(job, 1, 1, "n1", code=0)) for job in (1, 2, 3)),
        *((100.0, ev.GpusFreed(job, 1, 1, "n1")) for job in (1, 2, 3)),
        *((100.0, ev.IncarnationEnded(job, 1, Cause.DONE, final=JobState.DONE)) for job in (1, 2, 3)),
        *((100.0, ev.JobEnded(job, JobState.DONE)) for job in (1, 2, 3)),
        (110, ev.TroubleSeen("a", "b")),
    ]
    story = story_of_rows(rows(stamped))

    def lines(by: str) -> dict[str, float]:
        found = account(story, by, days=[(-10, "one"), (50, "two")])
        return {line.key: line.shares.available for line in found.lines}

    assert lines("user") == {"ada": 200, "bob": 100, "": 30}
    assert lines("array") == {"1": 200, "3": 100, "": 30}
    assert [line.name for line in account(story, "array").lines] == ["a (2 jobs)", "b", "no job"]
    assert lines("job") == {"1": 100, "2": 100, "3": 100, "": 30}
    assert lines("day") == {"one": 150, "two": 180}
    assert lines("policy") == {"marble": 180, "fifo": 150}
    assert [line.name for line in account(story, "job").lines] == ["a[1]", "a[2]", "b", "no job"]
    mine = account(story, jobs=[3])
    assert mine.shares == Shares(useful=100)
    assert mine.available == 100
    with pytest.raises(ValueError, match="by must be one of job, array"):
        account(story, "week")


def test_a_retried_job_goes_on() -> None:
    stamped = crash()
    stamped[-1:] = [(52, ev.JobEnded(1, JobState.FAILED)), (55, ev.JobRetried(1)), (60, ev.TroubleSeen("a", "b"))]
    story = story_of_rows(rows(stamped))
    assert (story.history.jobs[0].state, story.history.end) == (None, 60)


def test_nothing_at_all() -> None:
    found = told([])
    assert (found.shares, found.lines, found.shares.goodput) == (Shares(), (), None)
    assert summary(found) == "No GPU was there in that time."


def test_the_page_is_one_file_with_every_number() -> None:
    found = told(set_three())
    page = account_page("hpcdl on <home>", "a day", [found, told(set_three(), "user")])
    assert page.startswith("<!DOCTYPE html>")
    assert "hpcdl on &lt;home&gt;" in page
    assert page.count('class="fill p2"') == 3 + 1
    assert page.count("<script") == 1, "the page's own"
    assert "src=" not in page
    drawing = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    assert ElementTree.fromstring(drawing).tag == "main", "no tag is left open"


@pytest.mark.parametrize(
    "page, titles",
    [
        (lambda: account_page("a", "a day", [told(set_three())]), ["job", "GPU-hours", "useful"]),
        (lambda: timeline_page(rows(set_three()), "a"), ["Job", "Name", "State"]),
    ],
)
def test_where_there_is_no_room_for_a_table_each_cell_has_its_title(page: Callable[[], str], titles: list[str]) -> None:
    text = page()
    assert '<div class="table cards">' in text
    found = re.findall(r"<td([^>]*)>", text)
    assert len(found) >= 30
    assert [re.findall(r'data-label="([^"]+)"', each) for each in found[:3]] == [[each] for each in titles]
    assert all("data-label" in each for each in found)


def test_gpus_that_idled_for_a_week_flatten_no_bar() -> None:
    events = set_three()
    page = account_page("a", "a week", [told([*events, (events[-1][0] + 7 * 86_400, ev.TroubleSeen("a", "b"))])])
    jobs = re.findall(r'width="([0-9.]+)%" height="\d+" class="fill p2"', page)
    assert max(map(float, jobs)) > 40
    assert "GPU-h, cut<" in page, "and it says so"


def test_shares_differ_in_hue() -> None:
    css = (Path(stacked.__file__).parent / "page.css").read_text(encoding="utf-8")
    hues = {}
    for share in (each for each in NAMES if each != "idle"):  # idle is grey
        found = re.search(rf"--{stacked.COLOURS[share]}:#(..)(..)(..)", css)
        assert found is not None
        hues[share] = 360 * colorsys.rgb_to_hls(*(int(part, 16) / 255 for part in found.groups()))[0]
    for one, other in itertools.combinations(hues.values(), 2):
        assert min(abs(one - other), 360 - abs(one - other)) > 15, hues


# --- generated workloads --------------------------------------------------------------------------------------------


def held_by_the_world(records: list[ev.Recorded], end: float) -> float:
    """GPU-seconds that the world says were held: another way to the same figure."""
    draft, held, last = Draft(World()), 0.0, records[0].at
    for record in records:
        held += len(draft.world.holders) * (record.at - last)
        last = record.at
        draft.add(record.event, record.at)
    return held + len(draft.world.holders) * (end - last)


def _number(line: AccountLine) -> int:
    return int(line.key or -1)


def check(cluster: Cluster) -> None:
    """All that an account promises."""
    records = cluster.journal.read(0, 1_000_000)
    story = story_of(records)
    whole = account(story)
    begin, end = whole.begin, whole.end
    assert whole.shares.available == pytest.approx(whole.available, abs=1e-6)
    assert whole.shares.held == pytest.approx(held_by_the_world(records, end), abs=1e-6)
    assert whole.shares.available <= sum(cluster_gpus(cluster)) * (end - begin) + 1e-6
    middle = begin + (end - begin) / 3
    parts = [account(story, until=middle), account(story, since=middle)]
    for name in NAMES:
        assert getattr(whole.shares, name) >= 0
        assert sum(getattr(part.shares, name) for part in parts) == pytest.approx(getattr(whole.shares, name), abs=1e-6)
    for by in BY:
        found = account(story, by, days=[(begin - 1, "a"), (middle, "b")])
        for name in NAMES:
            lines = sum(getattr(line.shares, name) for line in found.lines)
            assert lines == pytest.approx(getattr(whole.shares, name), abs=1e-6)
        assert sum(line.suspends for line in found.lines) == sum(whole.suspends.values())
    attempts = list(attempts_of(story))
    assert sum(each.gpu_s for each in attempts) == pytest.approx(whole.shares.held, abs=1e-6)
    for line in account(story).lines:
        alone = attempts_of(story_of(record for record in records if getattr(record.event, "job", 0) == _number(line)))
        assert sum(each.lost_gpu_s for each in alone) == pytest.approx(line.shares.lost, abs=1e-6), line
    jobs = [job.id for job in story.history.jobs]
    assert account(story, jobs=jobs).shares.available == pytest.approx(whole.shares.held, abs=1e-6)


def cluster_gpus(cluster: Cluster) -> list[int]:
    return [len(agent.gpus) for agent in cluster.agents.values()]


@settings(max_examples=seeds(80), deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(script=st.lists(acts(), min_size=4, max_size=30), seed=st.integers(0, 1000), run_on=st.booleans())
def test_every_second_is_in_one_share(script: list[Act], seed: int, run_on: bool) -> None:
    cluster = Cluster(NODES, policy="marble-warm", seed=seed, delay_s=2.0)
    cluster.tick_every(10.0)
    for act in script:
        perform(cluster, act)
        cluster.run(act.after_s)
    if run_on:
        cluster.journal.failing = 0
        cluster.run(300.0)
    check(cluster)


@pytest.mark.parametrize("seed", range(seeds(20)))
def test_elastic_trainers_too(seed: int) -> None:
    story = Story(seed)
    story.run(story.rng.choices(ACTS, k=25))
    check(story.cluster)


@pytest.mark.parametrize("policy", ["marble", "adaptive", "fifo-exclusive"])
def test_a_simulated_run_has_the_same_account(policy: str) -> None:
    ran = run(jobs_of(200, 300, 400, 150, gpus_max=4), policy=policy)
    found = account(story_of(ran.records))
    assert found.shares.available == pytest.approx(found.available)
    assert found.shares.useful > 0
    assert found.shares.starting > 0
    assert found.shares.lost == 0
