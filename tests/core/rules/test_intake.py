"""Commands: what is refused and how it is said, what is recorded once, and which reports are dropped."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.commands import CommandRefused, Entry
from hpcdl.core.model.job import MOST_GPUS, JobSpec
from hpcdl.core.model.profile import MAX_GPUS
from hpcdl.core.model.world import GpuInfo, JobState
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", gpus_max=2, steps=50, profile="plain")


def cluster(**nodes: int) -> Cluster:
    model = Cluster(nodes or {"n1": 2})
    model.run(1.0)
    return model


def kinds(model: Cluster, after: int) -> list[str]:
    return [record.event.kind for record in model.journal.records[after:]]


@pytest.mark.parametrize(
    ("command", "message", "code"),
    [
        (cmd.Submit((), "x"), "a submit takes 1 to 10000 jobs, got 0", "refused"),
        (
            cmd.Submit((JobSpec(("t",), "j", after=(9,)),), "x"),
            "there is no job 9 to wait for: hpcdl ls",
            "unknown-job",
        ),
        (cmd.Submit((JobSpec(("t",), "j", profile="no"),), "x"), "no profile 'no'; there are plain", "unknown-profile"),
        (cmd.Submit((JobSpec(("t",), "j", gpus_max=1025),), "x"), "1025 GPUs on a node are more than", "too-many"),
        (cmd.Submit((JobSpec(("t",), "j", retries=1_000_001),), "x"), "1000001 retries are more than", "too-many"),
        (cmd.Submit((JobSpec(("t",), "j", steps=10**12 + 1),), "x"), "1000000000001 steps are more than", "too-many"),
        (cmd.Hold(9), "there is no job 9: hpcdl ls --all", "unknown-job"),
        (cmd.Release(9), "there is no job 9", "unknown-job"),
        (cmd.Cancel(9), "there is no job 9", "unknown-job"),
        (cmd.Hold(1), "job 1 is DONE already: hpcdl show 1", "finished"),
        (cmd.Release(1), "job 1 is DONE already", "finished"),
        (cmd.Cancel(1), "job 1 is DONE already", "finished"),
        (cmd.ChoosePolicy("best"), "no policy 'best'; there are fifo-exclusive, marble, marble-warm", "unknown-policy"),
        (cmd.ChooseObjective("joy"), "no objective 'joy'; there are jct, makespan", "unknown-objective"),
        (cmd.AgentReport("n9", "x", 1, ev.TroubleSeen("a", "b")), "a report came before the inventory", "protocol"),
        (cmd.AgentReport("n1", "x", 1, ev.TroubleSeen("a", "b")), "a report came before the inventory", "protocol"),
    ],
)
def test_refusals_say_why_and_change_nothing(command: Any, message: str, code: str) -> None:
    model = cluster()
    model.submit(SPEC)
    model.run_to_end()
    seq = model.world.seq
    (answer,) = model.send(command)
    assert isinstance(answer, CommandRefused)
    assert message in str(answer)
    assert "\n" not in str(answer)
    assert answer.code == code
    assert model.world.seq == seq


def test_a_ledger_may_hold_jobs_that_ask_for_more_than_is_taken_now() -> None:
    model = cluster()
    draft = Draft(model.world)
    draft.add(ev.JobSubmitted(1, JobSpec(("t",), "j", gpus_max=10**12, retries=10**12, steps=1 << 53), "x"), model.now)
    assert draft.world.jobs[1].spec.gpus_max == 10**12
    assert MOST_GPUS == MAX_GPUS, "what a profile may have is what a job may ask for"


def test_a_submit_repeated_is_the_same_jobs() -> None:
    model = cluster()
    twice = cmd.Submit((SPEC, SPEC), "r")
    assert model.send(twice, twice) == [(1, 2), (1, 2)]
    model.restart_daemon()
    assert model.send(twice) == [(1, 2)]
    assert len(model.world.jobs) == 2


def test_a_stopping_daemon_takes_no_jobs_but_knows_its_old_ones() -> None:
    model = cluster()
    assert model.send(cmd.Submit((SPEC,), "r")) == [(1,)]
    model.send(cmd.Stop(now=False))
    again, other = model.send(cmd.Submit((SPEC,), "r"), cmd.Submit((SPEC,), "s"))
    assert again == (1,)
    assert isinstance(other, CommandRefused)
    assert other.code == "stopping"


def test_commands_that_change_nothing_are_not_recorded() -> None:
    model = cluster()
    model.submit(SPEC)
    model.send(cmd.Hold(1), cmd.Stop(now=False), cmd.ChooseObjective("jct"))
    model.run(60.0)
    seq = model.world.seq
    model.send(cmd.Hold(1), cmd.Stop(now=False), cmd.ChooseObjective("jct"), cmd.ChoosePolicy("marble"), cmd.Tick())
    assert kinds(model, seq) == []
    model.send(cmd.Stop(now=True), cmd.Release(1), cmd.Release(1), cmd.Cancel(1), cmd.Cancel(1))
    assert kinds(model, seq)[:4] == ["DaemonStopping", "JobReleased", "CancelRequested", "JobEnded"]
    assert model.send(cmd.Cancel(1)) == [None]  # it is what was wanted


def report(model: Cluster, number: int, event: ev.Event, log_id: str = "n1/1") -> list[Any]:
    return model.send(cmd.AgentReport("n1", log_id, number, event))


def test_reports_are_taken_once_and_stale_ones_dropped() -> None:
    model = cluster()
    first = cmd.AgentReport("n1", "n1/1", 1, ev.TroubleSeen("disk", "full"))
    seq = model.world.seq
    assert model.send(first, first) == [None, None]
    assert model.send(first) == [None]
    assert kinds(model, seq) == ["TroubleSeen", "ReportsSeen"]
    seq = model.world.seq
    report(model, 2, ev.Started(7, 1, 1, "n1"))  # of a job that never was
    report(model, 3, ev.GpuChanged("n2", 0, "lost"))  # of another node
    report(model, 4, ev.JobHeld(1))  # nothing that an agent may say
    assert kinds(model, seq) == ["ReportsSeen"] * 3
    assert model.world.nodes["n1"].reports_seen == 4


def test_a_new_log_in_the_same_batch_is_counted_from_its_start() -> None:
    model = cluster()
    inventory = cmd.Inventory("n1", (GpuInfo(0, "u"),), 1, 1, 1, "b", "n1/2", False)
    trouble = ev.TroubleSeen("a", "b")
    model.send(cmd.AgentReport("n1", "n1/1", 5, trouble), inventory, cmd.AgentReport("n1", "n1/2", 1, trouble))
    assert (model.world.nodes["n1"].log_id, model.world.nodes["n1"].reports_seen) == ("n1/2", 1)
    model.send(cmd.AgentReport("n1", "n1/2", 2, trouble), cmd.Inventory("n1", (), 1, 1, 1, "b", "n1/3", False))
    assert model.world.nodes["n1"].reports_seen == 0


def test_reports_are_dated_by_their_age() -> None:
    model = cluster()
    model.submit(SPEC)
    model.run(1.0)
    model.agents["n1"].connected = False
    number = model.world.nodes["n1"].reports_seen + 1
    report(model, number, ev.Progressed(1, 1, 1, "n1", age_s=5.0, step=3))
    assert model.journal.records[-2].at == model.now - 5.0
    assert model.world.at == model.now


def test_welcome_says_what_is_expected() -> None:
    model = cluster()
    model.submit(SPEC)
    (first,) = model.send(cmd.Hello("n1", "n1/1"))
    assert [(e.job, e.incarnation, e.taken) for e in first.expected] == [(1, 1, False)]
    model.run(1.0)
    (then, other) = model.send(cmd.Hello("n1", "n1/1"), cmd.Hello("n1", "n1/2"))
    assert [(e.job, e.incarnation, e.taken) for e in then.expected] == [(1, 1, True)]
    assert then.fence == model.world.fence
    assert (then.reports_seen > 0, other.reports_seen) == (True, 0)


def test_silence_concludes_nothing_before_the_lease_and_the_graces() -> None:
    model = cluster()
    model.submit(JobSpec(("t",), "j", grace_s=100.0, steps=10_000))
    model.run(10.0)
    model.disconnect("n1")
    model.run(459.0)
    model.send(cmd.Tick())
    assert not model.world.nodes["n1"].lost
    model.run(2.0)
    model.send(cmd.Tick())
    assert model.world.nodes["n1"].lost
    assert model.world.jobs[1].live == ()
    assert model.world.jobs[1].last.cause == "node lost"


def test_a_daemon_that_was_away_waits_for_its_agents_anew() -> None:
    model = cluster()
    model.now += 10_000.0
    model.restart_daemon()
    model.send(cmd.Tick())
    assert not model.world.nodes["n1"].lost


def test_a_commit_that_fails_acknowledges_nothing() -> None:
    model = cluster()
    before = model.world
    model.journal.failing = 1
    with pytest.raises(JournalError):
        model.controller.step([cmd.Submit((SPEC,), "r")], model.now)
    assert model.world is before
    model.controller.step([cmd.Submit((SPEC,), "r")], model.now)
    before = model.world
    model.journal.failing = 1
    with pytest.raises(JournalError):
        model.controller.decide(model.now)
    assert model.world is before
    assert model.controller.undecided
    assert model.controller.pending("n1") == []
    model.send(cmd.Tick())
    model.run_to_end()
    assert model.world.jobs[1].outcome is JobState.DONE


def test_a_checkpoint_folder_has_one_job_at_a_time() -> None:
    model = cluster()
    shared = replace(SPEC, checkpoint_dir="/c")
    model.submit(shared)
    for number in (2, 3):
        (answer,) = model.send(cmd.Submit((shared,), "again"))
        assert isinstance(answer, CommandRefused)
        assert answer.code == "checkpoint-dir"
        assert "job 1 checkpoints into /c and is not finished" in str(answer)
        after = replace(shared, after=(number - 1,))  # also after one that comes after it
        (answer,) = model.send(cmd.Submit((after,), "unsaid"))
        assert isinstance(answer, CommandRefused)
        assert f"add --continue-from {number - 1} to go on from there" in str(answer)
        assert model.submit(replace(after, continue_from=str(number - 1) if number == 2 else "any")) == (number,)
    (answer,) = model.send(cmd.Submit((replace(SPEC, checkpoint_dir="/d"),) * 2, "twice"))
    assert "two jobs of one submit" in str(answer)
    assert model.world.next_job == 4


def test_a_folder_that_was_used_before_is_claimed_anew() -> None:
    model = cluster()
    shared = replace(SPEC, checkpoint_dir="/c")
    model.submit(shared)
    model.run(10.0)
    model.send(cmd.Hold(1))
    model.run(10.0)
    model.send(cmd.Release(1))
    model.run_to_end()
    assert model.job(1).last_incarnation == 2
    model.submit(shared, SPEC)
    model.run_to_end()
    assert (model.job(2).last_incarnation, model.job(3).last_incarnation) == (3, 1)
    model.check_replay()


def test_each_job_has_an_identity_of_its_own() -> None:
    model = cluster()
    array = Entry(SPEC, Array(((1, 3, 1),)))
    command = cmd.Submit((SPEC, array, SPEC), "one", nonce="ab" * 16)
    (ids,) = model.send(command)
    (again,) = model.send(structs.replace(command, nonce="cd" * 16))
    assert again == ids, "a repeated submit is the same jobs"
    found = [model.world.jobs[number].identity for number in ids]
    assert all(len(each) == 32 for each in found)
    assert len(set(found)) == len(ids) == 5
    (others,) = cluster().send(structs.replace(command, nonce="ef" * 16))
    assert others == ids
    (old,) = model.send(cmd.Submit((SPEC,), "of an earlier version"))
    assert model.world.jobs[old[0]].identity == ""
