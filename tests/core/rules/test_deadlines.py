"""A job that was expected to meet its deadline, and is not any more: told once, also over restarts of the daemon."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as de
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import DeadlineForecast
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeRules
from hpcdl.core.model.world import Expectation
from hpcdl.core.rules.deadlines import MEETS, MISSES
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster

TO = "mailto:me@example.org"
SPEC = JobSpec(("train",), "resnet", steps=4000, profile="plain", notify=(TO,), deadline=5_000.0)


def cluster(*specs: JobSpec, **rules: Any) -> Cluster:
    model = Cluster({"n1": 2}, settings=Settings(300.0, notices=NoticeRules(**rules)))
    model.run(1.0)
    model.submit(*(specs or (SPEC,)))
    return model


def foresee(model: Cluster, probability: float, ends_at: float | None = None, job: int = 1) -> None:
    model.send(cmd.Outlooks((DeadlineForecast(job, probability, ends_at),)))


def told(model: Cluster, *kinds: type) -> list[Any]:
    return [each.event for each in model.journal.records if isinstance(each.event, kinds)]


def due(model: Cluster) -> list[tuple[str, str, str]]:
    return [(str(each.what), each.cause, each.detail) for each in told(model, ev.NoticeDue)]


def test_a_slip_is_told_in_the_commit_that_records_it_and_once() -> None:
    model = cluster()
    before = len(model.journal.commits)
    foresee(model, 0.97, 4_000.0)
    foresee(model, 0.96, 4_100.0)
    assert model.journal.commits[before:] == [["DeadlineForeseen"]], "what is no news is not recorded"
    for probability in (0.31, 0.12, MEETS - 0.01, 0.02):
        foresee(model, probability, 6_200.0)
    assert model.journal.commits[before + 1 :] == [["DeadlineSlipped", "NoticeDue"]]
    detail = "it is met with a probability of 31 %; if nothing else comes, the job is done 20 min 00 s after it"
    assert due(model) == [("deadline", "forecast", detail)]
    (notice,) = model.world.notices.values()
    assert notice.text == f"job 1 (resnet) is likely to miss its deadline: {detail}"
    assert model.job(1).expectation == Expectation(False, model.now, 0.31, 6_200.0, slipped=True)
    model.check_replay()


def test_it_is_not_told_twice_after_a_restart_but_again_once_it_had_recovered() -> None:
    model = cluster()
    foresee(model, 0.9)
    model.restart_daemon()
    model.run(5.0)
    foresee(model, 0.4)
    assert len(due(model)) == 1, "what was expected before the restart is known after it"
    model.restart_daemon()
    model.run(5.0)
    foresee(model, 0.1)
    foresee(model, MISSES + 0.1)
    foresee(model, 0.1)
    assert len(due(model)) == 1, "it has not recovered since"
    foresee(model, MEETS)
    assert model.job(1).expectation.meets
    model.restart_daemon()
    model.run(5.0)
    foresee(model, 0.2)
    assert len(due(model)) == 2
    assert [type(each).__name__[8:] for each in told(model, de.DeadlineForeseen, de.DeadlineSlipped)] == [
        *("Foreseen", "Slipped", "Foreseen", "Slipped"),
    ]
    model.check_replay()


def test_who_was_told_at_the_submit_that_it_will_be_missed_is_not_told_again() -> None:
    model = cluster()
    foresee(model, 0.05)
    foresee(model, 0.01)
    assert due(model) == []
    assert model.job(1).expectation == Expectation(False, model.now, 0.05)
    foresee(model, 0.9)
    foresee(model, 0.3)
    assert len(due(model)) == 1


def test_what_cannot_be_met_is_said_so() -> None:
    model = cluster()
    foresee(model, 0.9)
    foresee(model, 0.0)
    detail = "it cannot be met any more"
    assert due(model) == [("deadline", "forecast", detail)]


def test_a_deadline_that_is_over_is_missed_whatever_is_foreseen() -> None:
    model = cluster()
    foresee(model, 0.9)
    model.run(4_001.0)
    foresee(model, 0.9, 5_301.0)
    assert due(model) == [("deadline", "passed", "if nothing else comes, the job is done 5 min 01 s after it")]
    (notice,) = model.world.notices.values()
    assert notice.text.startswith("job 1 (resnet) has missed its deadline: if")
    foresee(model, 0.9)
    assert len(due(model)) == 1


def test_before_the_agents_have_called_again_nothing_is_concluded() -> None:
    model = cluster()
    foresee(model, 0.9)
    model.start_daemon()
    foresee(model, 0.0)
    assert due(model) == []
    model.run(5.0)
    foresee(model, 0.0)
    assert len(due(model)) == 1


@pytest.mark.parametrize("spec", [replace(SPEC, deadline=None), replace(SPEC, notify=())])
def test_nobody_is_told_of_what_nobody_wants(spec: JobSpec) -> None:
    model = cluster(spec)
    foresee(model, 0.9)
    foresee(model, 0.1)
    assert due(model) == []
    assert (model.job(1).expectation is None) == (spec.deadline is None)
    quiet = cluster(kinds=frozenset({"end"}))
    foresee(quiet, 0.9)
    foresee(quiet, 0.1)
    assert (due(quiet), quiet.job(1).expectation.slipped) == ([], True)


def test_a_job_that_is_over_or_unknown_has_no_outlook_and_a_retry_begins_anew() -> None:
    model = cluster()
    foresee(model, 0.9, job=7)
    foresee(model, 0.9)
    model.send(cmd.Cancel(1))
    model.run(60.0)
    foresee(model, 0.1)
    assert [each[0] for each in due(model)] == ["end"]
    assert model.job(1).expectation.meets, "as it was when the job ended"
    model.send(cmd.Retry(1))
    assert model.job(1).expectation is None
    foresee(model, 0.1)
    assert len(due(model)) == 1
