"""What people are told of, where it may go, and what is shown of that."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeKind, NoticeRules, check_destinations, redacted, rules_of
from hpcdl.core.model.world import JobState
from hpcdl.core.rules.endings import Rules
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "resnet", steps=50, profile="plain", notify=("mailto:me@example.org",))
TO = "mailto:admin@example.org"


@pytest.mark.parametrize(
    ("destination", "shown"),
    [
        ("mailto:me.too+x@example.org", "mailto:me.too+x@example.org"),
        ("https://hooks.example.com/services/T0/B0/secret", "https://hooks.example.com/…"),
        ("https://me:pass@h.org:8443/x?token=1", "https://h.org:8443/…"),
        ("https://token@h.org", "https://h.org/…"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://h.org/", "http://h.org"),
        ("notify-send", "notify-send"),
        ("curl -H 'X: secret' x", "curl …"),
        ("/opt/my\\ tool a", "/opt/my tool …"),
        ("cat >> log", "cat …"),
        ("TOKEN=secret curl x", "curl …"),
        ("X=secret", "…"),
    ],
)
def test_destinations_and_what_is_shown_of_them(destination: str, shown: str) -> None:
    check_destinations((destination,))
    assert redacted(destination) == shown
    assert "secret" not in redacted(destination)


@pytest.mark.parametrize(
    "destination",
    [
        *("", " ", "mailto:", "mailto:a", "mailto:-f@b.org", "mailto:a@b,c@d", "mailto:a@b?bcc=x@y", "mailto:<a@b>"),
        *("mailto:a@b.org\nBcc: x@y", "mailto:a@b..c", "https://", "https:///x", "http://h:99999/", "http://a b/"),
        *("http://h/\u00e9", "ftp://h/x", "file:///etc/passwd", "MAILTO:a@b.c", "javascript://x", "unbalanced '"),
        *("https:x", "x" * 2001, "a\0b", "a\tb"),
    ],
)
def test_what_is_no_destination_is_refused(destination: str) -> None:
    with pytest.raises(ValueError, match="notifications"):
        JobSpec(("true",), "j", notify=(destination,))


def test_a_job_names_a_few_destinations() -> None:
    with pytest.raises(ValueError, match="8 destinations"):
        JobSpec(("true",), "j", notify=("x",) * 9)


def test_rules_from_settings() -> None:
    assert rules_of(None, "end") == NoticeRules((), frozenset({"end"}))
    rules = rules_of(f"{TO} ; tell me", " end, stall")
    assert (rules.destinations, set(rules.kinds)) == ((TO, "tell me"), {"end", "stall"})
    with pytest.raises(ValueError, match="'ende' is no kind of notification"):
        rules_of(TO, "ende")


def cluster(kinds: frozenset[str] = frozenset(NoticeKind), **settings: Any) -> Cluster:
    model = Cluster({"n1": 2}, settings=Settings(300.0, notices=NoticeRules((TO,), kinds), **settings))
    model.tick_every(10.0)
    model.run(1.0)
    return model


def due(model: Cluster) -> list[tuple[str, int, str, str]]:
    return [
        (str(each.event.what), each.event.about, each.event.destinations[0], each.event.detail)
        for each in model.journal.records
        if isinstance(each.event, ev.NoticeDue)
    ]


def test_the_end_is_told_in_the_commit_that_records_it() -> None:
    model = cluster()
    model.submit(SPEC)
    model.run_to_end()
    (batch,) = [each for each in model.journal.commits if "JobEnded" in each]
    assert batch[batch.index("JobEnded") + 1] == "NoticeDue"
    assert due(model) == [("end", 1, "mailto:me@example.org", "")]
    assert model.world.notices[1].text == "job 1 (resnet) is DONE"
    model.check_replay()


def test_failures_interruptions_and_the_poison_guard() -> None:
    model = cluster()
    model.submit(replace(SPEC, notify=()), replace(SPEC, notify=(), retries=9))
    model.conduct_of(1).fails = [3]
    model.conduct_of(2).fails = [3, 3, 3, 3]
    model.run_to_end()
    assert due(model) == [
        ("failure", 1, TO, "exit code 3"),
        ("poison", 2, TO, "poison guard: 3 times the same at step 5: exit code 3"),
    ]
    model = cluster()
    model.submit(SPEC)
    model.run(20.0)
    model.kill(1)
    model.run(5.0)
    assert due(model) == [
        ("preemption", 1, "mailto:me@example.org", "killed from outside, ended by SIGKILL; it starts over")
    ]
    assert model.world.notices[1].text.startswith("job 1 (resnet) was interrupted (infrastructure): killed from")


def test_a_hold_after_failures_that_were_not_its_programs_is_told() -> None:
    model = cluster(rules=Rules(poison_limit_infrastructure=2))
    model.submit(SPEC)
    for _ in range(2):
        model.run_until(lambda: bool(model.users))
        model.kill(1)
        model.run(15.0)
    why = "held after 2 failures without a checkpoint, at last: killed from outside, ended by SIGKILL"
    assert [(what, detail) for what, _, _, detail in due(model)] == [
        ("preemption", "killed from outside, ended by SIGKILL; it starts over"),
        ("poison", f"{why}: hpcdl resume 1 tries again"),
    ]
    assert model.world.notices[2].text == f"job 1 (resnet) is SUSPENDED: {why}: hpcdl resume 1 tries again"
    assert not model.users, "it holds no GPU while it waits for its user"
    model.send(cmd.Release(1))
    model.run_to_end()
    assert model.job(1).outcome is JobState.DONE
    model.check_replay()


def test_nobody_is_told_of_what_nobody_wants() -> None:
    model = cluster(frozenset({"failure"}))
    model.submit(SPEC)
    model.run_to_end()
    assert due(model) == []
    silent = Cluster({"n1": 1})
    silent.submit(replace(SPEC, notify=()))
    silent.run_to_end()
    assert due(silent) == []


def test_a_bad_gpu_is_told_and_one_that_a_user_avoids_is_not() -> None:
    model = cluster()
    model.send(cmd.Avoid("n1", 1, 60.0))
    assert due(model) == []
    model._report(model.agents["n1"], ev.KINDS["GpuFaulted"]("n1", 0, "xid 79"))
    model.run(1.0)
    assert due(model) == [("gpu", 0, TO, "Xid 79: the GPU has fallen off the bus")]
    assert model.world.notices[1].text == "n1:0 is avoided: Xid 79: the GPU has fallen off the bus"


def test_what_became_of_a_delivery() -> None:
    model = cluster()
    model.submit(*(replace(SPEC, notify=(TO, "tell me")) for _ in range(3)))
    for number in (1, 2, 3):
        model.send(cmd.Cancel(number))
    model.run_to_end()
    assert list(model.world.notices) == [1, 2, 3]
    model.send(cmd.NoticesTaken(TO, (1, 2)))
    assert [each.waiting for each in model.world.notices.values()] == [("tell me",), ("tell me",), (TO, "tell me")]
    model.send(cmd.NoticesNotTaken("tell me", (1, 2, 3), 1, "ended with 1", 15.0))
    route = model.world.routes["tell me"]
    assert (route.failed, route.retry_at - model.now, route.why) == (1, 15.0, "ended with 1")
    model.send(cmd.NoticesNotTaken("tell me", (1, 2, 3), 2, "ended with 1", 30.0, give_up=(1,)))
    assert (model.world.notices[1].waiting, model.world.notices[1].given_up) == ((), ("tell me",))
    model.send(cmd.RetryNotices())
    assert model.world.notices[1].waiting == ("tell me",)
    assert model.world.routes == {}
    (refusal,) = model.send(cmd.DropNotice(9))
    assert isinstance(refusal, CommandRefused)
    model.send(cmd.DropNotice(1), cmd.NoticesTaken("tell me", (1, 2, 3)), cmd.NoticesTaken(TO, (3,)))
    assert (model.world.notices, model.world.routes, model.world.next_notice) == ({}, {}, 4)
    model.restart_daemon()


def test_a_destination_whose_notices_were_dropped_meanwhile_does_not_fail() -> None:
    model = Cluster({"n1": 1}, settings=Settings(notices=NoticeRules((TO,))))
    model.submit(replace(SPEC, notify=()))
    model.run_to_end()
    (number,) = model.world.notices
    model.send(cmd.DropNotice(number))
    before = model.world.seq
    assert model.send(cmd.NoticesNotTaken(TO, (number,), 1, "no route", 15.0, (number,))) == [None]
    assert model.send(cmd.NoticesTaken(TO, ())) == [None]
    assert (model.world.seq, model.world.routes) == (before, {})


def test_whoever_stops_the_daemon_knows() -> None:
    model = cluster()
    model.submit(SPEC)
    model.run(20.0)
    model.send(cmd.Stop(now=True))
    model.run(20.0)
    assert model.job(1).running is None
    assert due(model) == []


def test_a_damaged_checkpoint_is_told() -> None:
    model = cluster()
    (job,) = model.submit(SPEC)
    model.run(5.0)
    report = ev.CheckpointDamaged(job, 1, 1, "n1", step=20, path="/c/damaged-step-20", why="w is not what was written")
    model._report(model.agents["n1"], report)
    model.run(1.0)
    (notice,) = [each for each in model.world.notices.values() if each.what is NoticeKind.DAMAGE]
    wanted = "step 20: w is not what was written; it is kept as /c/damaged-step-20, and the one before is used"
    assert notice.text == f"job {job} (resnet) found a damaged checkpoint: {wanted}"
    assert notice.waiting == SPEC.notify


def test_whoever_retries_from_the_start_knows_that_it_starts_over() -> None:
    model = cluster()
    (job,) = model.submit(SPEC)
    model.run(20.0)
    model.send(cmd.Hold(job))
    model.run(20.0)
    model.send(cmd.Cancel(job))
    model.run(5.0)
    del model.durable[job]
    model.send(cmd.Retry(job, from_start=True))
    model.run(20.0)
    running = model.job(job).running
    assert running is not None
    assert running.progress is not None
    assert [each for each in model.world.notices.values() if each.what is NoticeKind.DAMAGE] == []
