"""Batch jobs as squeue and sacct print them, in JSON and text, of several versions."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.core.model.pilot import BatchState
from hpcdl.slurm.jobs import (
    STATES,
    SlurmJob,
    accounted_argv,
    batch_job,
    expected_argv,
    expected_of_text,
    job_of_shown,
    jobs_argv,
    jobs_of_accounting,
    jobs_of_json,
    jobs_of_text,
    no_accounting,
    no_such_jobs,
)

RECORDINGS = Path(__file__).parents[1] / "recordings" / "slurm"


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


@pytest.mark.parametrize("version", ["22.05", "23.02", "23.11", "24.05"])
def test_json_of_all_versions_says_what_text_says(version: str) -> None:
    as_text = {job.id: job for job in jobs_of_text(recorded("22.05-hole-jobs.txt"))}
    as_json = {job.id: job for job in jobs_of_json(recorded(f"{version}-hole-jobs.json")) if job.id in as_text}
    assert sorted(as_text) == ["27", "28", "29"]
    for id_, job in as_text.items():
        # 22.05 does not say in JSON which nodes are planned: that is why plans are read as text.
        planned = () if version == "22.05" else job.planned
        assert as_json[id_] == replace(job, planned=planned)
        assert batch_job(as_json[id_]) == batch_job(job)


@pytest.mark.parametrize("version", ["22.05", "23.02", "23.11"])
def test_states_and_exit_codes_are_the_same_in_json_and_text(version: str) -> None:
    as_text = {job.id: batch_job(job) for job in jobs_of_text(recorded("22.05-states-jobs.txt"))}
    as_json = {job.id: batch_job(job) for job in jobs_of_json(recorded(f"{version}-states-jobs.json"))}
    assert as_json == as_text
    assert {id_: (job.state, job.code) for id_, job in as_json.items()} == {
        "28": (BatchState.ENDED, 0),
        "30": (BatchState.SUSPENDED, None),
        "31": (BatchState.RUNNING, None),
        "32": (BatchState.PENDING, None),
        "33": (BatchState.ENDED, 7),
        "34": (BatchState.ENDED, 128 + 9),
        "35": (BatchState.ENDED, 0),
    }


@pytest.mark.parametrize("scene", ["hole", "states"])
def test_json_of_24_11_says_what_its_text_says(scene: str) -> None:
    as_text = {job.id: batch_job(job) for job in jobs_of_text(recorded(f"24.11-{scene}-jobs.txt"))}
    assert {job.id: batch_job(job) for job in jobs_of_json(recorded(f"24.11-{scene}-jobs.json"))} == as_text


def test_states_of_24_11() -> None:
    """A stopped job runs and has a flag; one that ends well in its grace is PREEMPTED; exit codes are pairs."""
    seen = {job.id: batch_job(job) for job in jobs_of_json(recorded("24.11-states-jobs.json"))}
    assert {id_: (job.state, job.reason, job.code, job.preempted) for id_, job in seen.items()} == {
        "6": (BatchState.ENDED, "CANCELLED", 128 + 15, False),
        "7": (BatchState.ENDED, "CANCELLED (JobHeldUser)", 0, False),
        "8": (BatchState.SUSPENDED, "STOPPED", None, False),
        "9": (BatchState.RUNNING, "", None, True),
        "10": (BatchState.ENDED, "PREEMPTED", 0, True),
        "11": (BatchState.PENDING, "BeginTime", None, False),  # preempted, and requeued
        "12": (BatchState.ENDED, "FAILED (NonZeroExitCode)", 7, False),
        "13": (BatchState.ENDED, "FAILED (RaisedSignal:9(Killed))", 128 + 9, False),
        "14": (BatchState.ENDED, "COMPLETED", 0, False),
        "15": (BatchState.PENDING, "Resources", None, False),
        "16": (BatchState.RUNNING, "", None, False),
        "17": (BatchState.RUNNING, "", None, False),
    }
    assert [id_ for id_, job in seen.items() if job.done] == ["14"]
    for id_, job in seen.items():
        shown = batch_job(job_of_shown(id_, recorded("24.11-states-shown.txt")))
        assert (shown.state, shown.nodes, shown.code, shown.done) == (job.state, job.nodes, job.code, job.done)
        assert (shown.reason, shown.preempted, shown.by_hand) == (job.reason, job.preempted, job.by_hand)


def test_a_pilot_in_its_grace_is_preempted_while_it_runs() -> None:
    pilot = {job.id: batch_job(job) for job in jobs_of_text(recorded("22.05-states-jobs.txt"))}["31"]
    assert pilot.state is BatchState.RUNNING
    assert pilot.preempted
    assert pilot.mark == "hpcdl:rec:p1"
    assert pilot.nodes == ("n3",)
    assert pilot.until == 1795326499.0  # the grace's end, no longer the walltime's
    assert pilot.started_at == 1795326467.0


def test_free_text_with_separators_is_kept_whole() -> None:
    busy = {job.id: job for job in jobs_of_text(recorded("22.05-hole-jobs.txt"))}["27"]
    assert busy.comment == "epochs: 3 | fold 1"
    assert busy.reason == ""


def test_what_waits_has_an_expected_start_and_no_start() -> None:
    big = {job.id: job for job in jobs_of_text(recorded("22.05-hole-jobs.txt"))}["28"]
    assert (big.start, big.planned) == (1795327061.0, ("n1", "n2", "n3", "n4"))
    seen = batch_job(big)
    assert (seen.state, seen.started_at, seen.until, seen.nodes) == (BatchState.PENDING, None, None, ())
    assert seen.reason == "Resources"
    plans = expected_of_text(recorded("22.05-hole-expected.txt"))
    assert [(plan.id, plan.start, plan.nodes) for plan in plans] == [
        ("28", 1795327061.0, ("n1", "n2", "n3", "n4")),
        ("29", None, ()),
    ]
    plans = expected_of_text(recorded("24.11-hole-expected.txt"))
    assert [(plan.id, plan.nodes, plan.count, plan.for_nodes) for plan in plans] == [
        ("2", ("n1", "n2", "n3", "n4"), 4, True),
        ("3", (), 1, False),
    ]


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("CONFIGURING",), BatchState.RUNNING),
        (("RUNNING", "SIGNALING"), BatchState.RUNNING),
        (("CANCELLED", "COMPLETING"), BatchState.ENDING),
        (("RUNNING", "STOPPED"), BatchState.SUSPENDED),
        (("PENDING", "REQUEUED"), BatchState.PENDING),
        (("OUT_OF_MEMORY",), BatchState.ENDED),
        (("SOMETHING_NEW",), BatchState.UNKNOWN),
        (("SOMETHING_NEW", "RUNNING"), BatchState.RUNNING),
        ((), BatchState.UNKNOWN),
    ],
)
def test_states(states: tuple[str, ...], state: BatchState) -> None:
    assert batch_job(SlurmJob("1", states)).state is state


def test_every_state_of_the_manual_is_known() -> None:
    manual = """BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING
        PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT
        STAGE_OUT STOPPED SUSPENDED TIMEOUT"""
    assert set(manual.split()) <= set(STATES)


def test_how_it_ended_is_in_slurms_words() -> None:
    assert batch_job(SlurmJob("1", ("TIMEOUT",), nodes=("n1",))).reason == "TIMEOUT"
    ended = batch_job(SlurmJob("1", ("PREEMPTED",), nodes=("n1",), start=5.0, end=9.0))
    assert (ended.preempted, ended.reason, ended.started_at, ended.until) == (True, "PREEMPTED", 5.0, None)
    assert not batch_job(SlurmJob("1", ("CANCELLED",), preempted_at=7.0)).by_hand
    requeued = batch_job(SlurmJob("1", ("PENDING",), preempted_at=7.0, reason="BeginTime"))
    assert (requeued.preempted, requeued.reason) == (False, "BeginTime")


def test_accounting() -> None:
    jobs = {job.id: batch_job(job) for job in jobs_of_accounting(recorded("accounting.txt"))}
    assert jobs["41"].preempted
    assert (jobs["41"].state, jobs["41"].mark, jobs["41"].code) == (BatchState.ENDED, "hpcdl:x:p1", 128 + 15)
    assert (jobs["42"].state, jobs["42"].reason) == (BatchState.ENDED, "CANCELLED")
    assert [id_ for id_, job in jobs.items() if job.by_hand] == ["42"]
    assert jobs["43"].reason == "TIMEOUT"
    assert (jobs["44"].state, jobs["44"].nodes) == (BatchState.PENDING, ())
    assert (jobs["45"].code, jobs["45"].mark) == (3, "a|b")
    assert jobs["46"].state is BatchState.UNKNOWN
    assert no_accounting(recorded("22.05-error-no-accounting.txt"))


def test_unknown_jobs_are_told_from_other_complaints() -> None:
    assert no_such_jobs(recorded("22.05-error-unknown-job.txt"))
    assert not no_such_jobs(recorded("22.05-error-controller-away.txt"))
    assert not no_such_jobs("")
    both = "scancel: error: Kill job error on job id 1: Invalid job id specified\n"
    assert no_such_jobs(both)
    assert not no_such_jobs(both + "scancel: error: Kill job error on job id 2: Access/permission denied\n")


def test_json_without_what_a_job_needs() -> None:
    for text in ('{"jobs": [{}]}', '{"jobs": [1]}', '{"jobs": 1}'):
        with pytest.raises(ValueError):
            jobs_of_json(text)
    (bare,) = jobs_of_json('{"jobs": [{"job_id": 5}]}')
    assert batch_job(bare).state is BatchState.UNKNOWN


def test_what_is_asked_names_its_fields() -> None:
    argv = jobs_argv(["1", "2"])
    assert argv[:3] == ["squeue", "--all", "--states=all"]
    assert "--jobs=1,2" in argv
    assert argv[-1].startswith("--Format=JobID:|,Partition:|,State:|")
    assert argv[-1].endswith(",Comment:|,JobID:|")
    assert expected_argv()[-1] == (
        "--Format=JobID:|,Partition:|,StartTime:|,SchedNodes:|,NumNodes:|,ReqNodes:|,Feature:|,tres-per-node:|,Reason:|,"
        "Comment:|,JobID:|"
    )
    assert accounted_argv(["1", "2"])[:4] == ["sacct", "--parsable", "--allocations", "--jobs=1,2"]
