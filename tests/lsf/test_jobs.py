"""bjobs in all its forms and bhist: what their recorded output means."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.core.model.pilot import BatchJob, BatchState
from hpcdl.lsf import jobs as lsf_jobs
from hpcdl.lsf.jobs import (
    FEW,
    FIELDS,
    BjobsTimes,
    Form,
    Steady,
    bhist_argv,
    bjobs_argv,
    parse_bhist,
    parse_long,
    unwrapped,
)
from hpcdl.lsf.text import limit_of, moment, run_limit, run_time, time_left, window_length

RECORDINGS = Path(__file__).parents[1] / "recordings" / "lsf"


def recording(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


def parse_bjobs(form: Form, text: str, now: float) -> dict[str, BatchJob] | None:
    told = lsf_jobs.parse_bjobs(form, text, now)
    return None if told is None else {job: each.job for job, each in told.items()}


NOW = at("2026-01-21 22:20:00")


@pytest.mark.parametrize(
    "text, now, found",
    [
        ("Feb  2 00:46", "2026-03-01 00:00:00", "2026-02-02 00:46:00"),
        ("Feb  2 07:48 L", "2026-02-02 07:00:00", "2026-02-02 07:48:00"),
        ("Dec 28 19:56 L", "2026-01-02 00:00:00", "2025-12-28 19:56:00"),
        ("Jan  3 00:10 E", "2025-12-31 23:00:00", "2026-01-03 00:10:00"),
        ("Tue May 6 15:45:10", "2026-05-07 00:00:00", "2026-05-06 15:45:10"),
        ("Mon Aug  4 12:28:51 2014", "2026-05-07 00:00:00", "2014-08-04 12:28:51"),
        ("Feb 29 10:00", "2025-05-07 00:00:00", "2024-02-29 10:00:00"),
        ("Feb  2 00:46:12 X", "2026-02-02 07:00:00", "2026-02-02 00:46:12"),
    ],
)
def test_moments_without_a_year(text: str, now: str, found: str) -> None:
    assert moment(text, at(now)) == at(found)


@pytest.mark.parametrize(
    "text", ["-", "", "         -          ", "Feb 31 00:00", "Foo  1 00:00", "00:46", "Feb  2 25:00"]
)
def test_what_is_no_moment(text: str) -> None:
    assert moment(text, NOW) is None


def test_lengths_of_time() -> None:
    assert window_length("1 hour 1 minute 1 second") == 3661
    assert window_length("50 seconds") == 50
    assert time_left("0:1 L") == 60
    assert time_left("12:30") == 45000
    assert time_left("-") is None
    assert run_limit("1440.0") == 86400
    assert run_limit("10.0/hostA") == 600
    assert run_limit("00:10:00") == 600
    assert run_limit("-") is None
    assert run_time("79 second(s)") == 79
    assert run_time("00:10:00") == 600
    assert run_time("-") is None
    assert limit_of(" CPULIMIT                 RUNLIMIT                \n 1.0 min of a   2.0 min of a\n") == 120
    assert limit_of(" PROCLIMIT\n 48\n") is None


def test_never_a_bare_bjobs() -> None:
    assert bjobs_argv(Form.JSON, ["1", "2"])[-2:] == ["1", "2"]
    assert "-noheader" not in bjobs_argv(Form.JSON)
    assert bjobs_argv(Form.FIELDS) == ["bjobs", "-noheader", "-o", " ".join(FIELDS) + " delimiter='^'", "-a"]
    assert bjobs_argv(Form.FEW)[3] == " ".join(FEW) + " delimiter='^'"
    assert bjobs_argv(Form.UF, ["7"]) == ["bjobs", "-UF", "7"]
    assert bjobs_argv(Form.LONG) == ["bjobs", "-l", "-a"]
    assert bjobs_argv(Form.WIDE, ["7"]) == ["bjobs", "-w", "7"]


def test_json() -> None:
    jobs = parse_bjobs(Form.JSON, recording("bjobs-json-running"), NOW)
    assert jobs is not None
    job = jobs["806290"]
    assert (job.state, job.queue, job.nodes, job.until) == (BatchState.RUNNING, "batch", (), NOW + 70362)
    jobs = parse_bjobs(Form.JSON, recording("bjobs-json-no-year-and-escapes"), NOW)
    assert jobs is not None
    job = jobs["22005"]
    assert (job.state, job.code, job.nodes) == (BatchState.ENDED, 0, ("tbi-cn019",))
    assert job.started_at == at("2025-12-28 19:56:00")


def test_json_where_it_is_not_what_was_asked_for() -> None:
    assert parse_bjobs(Form.JSON, recording("bjobs-json-refused-without-o"), NOW) is None
    assert parse_bjobs(Form.JSON, recording("bjobs-json-not-found"), NOW) == {}
    with pytest.raises(ValueError, match="is of no job"):
        parse_bjobs(Form.JSON, recording("bjobs-json-held"), NOW)  # it has no JOBID
    with pytest.raises(ValueError, match="is of no job"):
        parse_bjobs(Form.JSON, recording("bjobs-json-behind-please-wait"), NOW)
    assert parse_bjobs(Form.JSON, '{"RECORDS": [', NOW) is None
    assert parse_bjobs(Form.JSON, "", NOW) is None
    told = recording("bjobs-json-behind-please-wait").replace('"USER"', '"JOBID":"5", "USER"') + "You have new mail\n"
    jobs = parse_bjobs(Form.JSON, told, NOW)
    assert jobs is not None
    assert (jobs["5"].state, jobs["5"].reason) == (BatchState.ENDED, "TERM_OWNER: job killed by owner")
    assert jobs["5"].by_hand


def fields(**values: str) -> str:
    return "^".join(values.get(name, "-") for name in FIELDS)


def test_fields() -> None:
    text = "\n".join([
        "Cannot connect to LSF. Please wait ...",
        fields(jobid="173", stat="RUN", queue="normal", exec_host="40*r13n44.x.y:40*r13n45.x.y",
               start_time="Jan 21 22:13", finish_time="Jan 21 23:13 L", job_description="hpcdl:ab:p7", job_name="a^b"),
        fields(jobid="174", stat="PEND", queue="normal", exec_host="         -          ", time_left="02",
               pend_reason=" Job slot limit reached: 4 hosts;"),
        fields(jobid="175", stat="RUN", time_left="0:1 L", exec_host="batch2:42*h22n07:42*h22n08",
               job_name="hpcdl:ab:p8"),
        fields(jobid="176", stat="RUN", start_time="Jan 21 22:10", runtimelimit="60.0/h1",
               finish_time="Jan 23 10:00 E"),
        fields(jobid="177", stat="EXIT", exit_reason="TERM_PREEMPT: job killed after preemption", exit_code="143"),
        fields(jobid="178", stat="EXIT", exit_reason="TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
        "You have new mail in /var/spool/mail/test",
    ])  # fmt: skip
    jobs = parse_bjobs(Form.FIELDS, text, NOW)
    assert jobs is not None
    assert sorted(jobs) == ["173", "174", "175", "176", "177", "178"]
    running = jobs["173"]
    assert running.nodes == ("r13n44", "r13n45")
    assert (running.started_at, running.until) == (at("2026-01-21 22:13:00"), at("2026-01-21 23:13:00"))
    assert running.mark == "hpcdl:ab:p7"
    assert (jobs["174"].state, jobs["174"].nodes, jobs["174"].reason) == (
        BatchState.PENDING,
        (),
        "Job slot limit reached: 4 hosts",
    )
    assert (jobs["175"].until, jobs["175"].nodes, jobs["175"].mark) == (NOW + 60, ("h22n07", "h22n08"), "hpcdl:ab:p8")
    assert jobs["176"].until == at("2026-01-21 23:10:00")
    assert (jobs["177"].preempted, jobs["177"].code, jobs["177"].until) == (True, 143, None)
    assert (jobs["178"].preempted, jobs["178"].code) == (False, None)
    assert parse_bjobs(Form.FIELDS, "JOBID USER STAT\n1 a RUN\n", NOW) is None


@pytest.mark.parametrize(
    "stat, state, reason",
    [
        ("PSUSP", BatchState.PENDING, "held while it waits"),
        ("WAIT", BatchState.PENDING, ""),
        ("USUSP", BatchState.SUSPENDED, "suspended by its owner or an administrator"),
        ("SSUSP", BatchState.SUSPENDED, "suspended by LSF"),
        ("UNKWN", BatchState.UNKNOWN, "its host cannot be reached"),
        ("ZOMBI", BatchState.ENDING, "it will be killed once its host is reachable"),
        ("ATTEND", BatchState.UNKNOWN, "LSF calls its state ATTEND"),
    ],
)
def test_states(stat: str, state: BatchState, reason: str) -> None:
    jobs = parse_bjobs(Form.FIELDS, fields(jobid="1", stat=stat), NOW)
    assert jobs is not None
    assert (jobs["1"].state, jobs["1"].reason) == (state, reason)


def test_wide() -> None:
    jobs = parse_bjobs(Form.WIDE, recording("bjobs-wide-joined-hosts"), NOW)
    assert jobs is not None
    assert sorted(jobs) == ["5182934", "5183028", "9025068", "960417"]
    assert jobs["5183028"].nodes == ("it-c01b11",)
    assert jobs["9025068"].state is BatchState.UNKNOWN
    text = (
        "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
        "113     ann     PEND  killable   login1         -        hpcdl:ab:p7 Jan 21 22:00\n"
        "114     ann     PEND  killable   login1                  hpcdl:ab:p8 Jan 21 22:00\n"
        "115     ann     RUN   killable   login1      n1:n1:n2:n2 hpcdl:ab:p9 Jan 21 22:00\n"
    )
    jobs = parse_bjobs(Form.WIDE, text, NOW)
    assert jobs is not None
    assert [jobs[job].mark for job in ("113", "114", "115")] == ["hpcdl:ab:p7", "hpcdl:ab:p8", "hpcdl:ab:p9"]
    assert jobs["115"].nodes == ("n1", "n2")
    assert jobs["115"].started_at is None
    assert parse_bjobs(Form.WIDE, "No unfinished job found\n", NOW) is None


@pytest.mark.parametrize(
    "name, job, state, queue, nodes, code",
    [
        ("bjobs-long-done", "131851", BatchState.ENDED, "pub.8h", ("a6122",), 0),
        ("bjobs-long-broken-status", "726659", BatchState.ENDED, "pub.8h", ("a3168",), 0),
        ("bjobs-long-indent-26-exit-127", "2073", BatchState.ENDED, "normal", ("pa54",), 127),
        ("bjobs-long-exit-42", "132286", BatchState.ENDED, "pub.1h", ("a3010",), 42),
        ("bjobs-long-broken-keywords", "2924748", BatchState.RUNNING, "research-rh74", (), None),
        ("bjobs-long-gpu-done", "54086", BatchState.ENDED, "normal", ("kilenc",), 0),
        ("bjobs-long-gpu-running", "51662", BatchState.RUNNING, "normal", ("kilenc",), None),
        ("bjobs-uf-running", "1", BatchState.RUNNING, "normal", ("hostB",), None),
    ],
)
def test_long(name: str, job: str, state: BatchState, queue: str, nodes: tuple[str, ...], code: int | None) -> None:
    jobs = parse_bjobs(Form.LONG, recording(name), NOW)
    assert jobs is not None
    found = jobs[job]
    assert (found.state, found.queue, found.nodes, found.code) == (state, queue, nodes, code)


def test_long_where_the_break_is_inside_words() -> None:
    assert "Status <RUN>, Queue <research-rh74>" in unwrapped(recording("bjobs-long-broken-keywords"))
    assert "Status <EXIT>" in unwrapped(recording("bjobs-long-indent-26-exit-127"))
    assert " on Host(s) <kilenc>, Execution Home" in unwrapped(recording("bjobs-long-gpu-done"))
    assert unwrapped("no line is broken\n") == "no line is broken\n"


OPENLAVA = """
Job Id <107>, Job Name <hpcdl:ab:p7>, User <ann>, Project <default>, Status <RU
                     N>, Queue <killable>, Command <sleep 600>
Wed Jan 21 22:10:00: Submitted from host <login1>, CWD <$HOME>, 4 Processors Re
                     quested, Requested Resources <span[ptile=2]>;

 RUNLIMIT
 30.0 min of login1
Wed Jan 21 22:12:00: Started on 4 Hosts/Processors <n1> <n1> <n2> <n2>, Executio
                     n Home </home/ann>, Execution CWD </home/ann>;
Wed Jan 21 22:12:30: Resource usage collected.
                     MEM: 4 Mbytes;  SWAP: 10 Mbytes
                     PGID: 95;  PIDs: 95 96

 SCHEDULING PARAMETERS:
           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem
 loadSched   -     -     -     -       -     -    -     -     -      -      -
------------------------------------------------------------------------------

Job Id <108>, Job Name <hpcdl:ab:p8>, User <ann>, Project <default>, Status <PE
                     ND>, Queue <killable>, Command <sleep 600>
Wed Jan 21 22:10:00: Submitted from host <login1>, CWD <$HOME>;
 PENDING REASONS:
 The job was preempted and is waiting for its slots;

 SCHEDULING PARAMETERS:
------------------------------------------------------------------------------

Job <109>, User <ann>, Project <default>, Status <SSUSP>, Queue <killable>, Command <x>
Wed Jan 21 22:10:00: Submitted from host <login1>, CWD <$HOME>;
Wed Jan 21 22:12:00: [1] started on <3*n3>;
 SUSPENDING REASONS:
 Preempted by a job of a queue with a higher priority;
"""


HISTORY = """
Job <205>, Job Name <hpcdl>, User <ann>, Project <default>, Command <run>
Wed Jan 21 22:10:00: Submitted from host <login1>, to Queue <normal>, CWD <$HOME>;
Wed Jan 21 22:12:00: Dispatched to <n1>;
Wed Jan 21 22:12:01: Starting (Pid 95);
{}
 RUNLIMIT
 60.0 min of n1

Summary of time in seconds spent in various states by  Wed Jan 21 22:20:00
"""


CHANGED = "Wed Jan 21 22:13:00: Parameters of Job are changed:\n"
ON = " " * 21
"""Of a line that LSF has broken."""
LIMIT = "Run limit changes to : "


@pytest.mark.parametrize(
    "lines, minutes",
    [
        ("", 60),
        (f"{CHANGED}\t\t\t run limit changes to : 20 (minutes);\n", 20),
        (f"{CHANGED}{ON}{LIMIT}2 (mi\n{ON}nutes);\n{CHANGED}{ON}{LIMIT}9 (minutes);\n", 9),
        (f"{CHANGED}{ON}bmod -Wn used. Run limit set to\n{ON} queue run limit;\n", None),
    ],
)
def test_a_run_limit_that_bmod_changed(lines: str, minutes: int | None) -> None:
    now = moment("Wed Jan 21 22:20:00", NOW)
    assert now is not None
    job = parse_bhist(HISTORY.format(lines), now)["205"]
    assert job.state is BatchState.RUNNING
    assert job.started_at is not None
    assert (None if job.until is None else round((job.until - job.started_at) / 60)) == minutes


def test_the_long_form_of_a_relative() -> None:
    jobs = parse_bjobs(Form.LONG, OPENLAVA, NOW)
    assert jobs is not None
    running, waiting, suspended = jobs["107"], jobs["108"], jobs["109"]
    assert (running.state, running.nodes, running.mark) == (BatchState.RUNNING, ("n1", "n2"), "hpcdl:ab:p7")
    assert (running.started_at, running.until) == (at("2026-01-21 22:12:00"), at("2026-01-21 22:42:00"))
    assert (waiting.state, waiting.preempted, waiting.nodes) == (BatchState.PENDING, True, ())
    assert (suspended.state, suspended.nodes, suspended.preempted) == (BatchState.SUSPENDED, ("n3",), True)
    assert len(parse_long(OPENLAVA)) == 3


def test_history() -> None:
    assert bhist_argv(["1", "2"]) == ["bhist", "-l", "1", "2"]
    job = parse_bhist(recording("bhist-run-limit"), NOW)["2211"]
    assert (job.state, job.code, job.nodes, job.preempted) == (BatchState.ENDED, 140, ("ip-11-21-111-198",), False)
    assert job.reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"
    assert (job.queue, job.started_at) == ("normal", at("2026-01-21 22:12:59"))
    job = parse_bhist(recording("bhist-array-element-done"), NOW)["2226[1]"]
    assert (job.state, job.code, job.queue) == (BatchState.ENDED, 0, "normal")
    job = parse_bhist(recording("bhist-gpu-done"), NOW)["51662"]
    assert (job.state, job.code, job.nodes) == (BatchState.ENDED, 0, ("kilenc",))


def test_history_of_a_requeued_job_is_its_last_run() -> None:
    job = parse_bhist(recording("bhist-requeued"), NOW)["5583"]
    assert (job.state, job.nodes) == (BatchState.RUNNING, ("intel4",))
    assert job.started_at == at("2026-02-01 10:52:23")
    waiting = recording("bhist-requeued").rsplit("\nFri Feb  1 10:52:23: Dispatched", 1)[0]
    job = parse_bhist(waiting, NOW)["5583"]
    assert (job.state, job.nodes, job.started_at) == (BatchState.PENDING, (), None)
    assert "Requeued job is waiting" in job.reason


@pytest.mark.parametrize(
    "line, state, code",
    [
        ("Suspended by the user;", BatchState.SUSPENDED, None),
        ("Unknown; unable to reach the execution host;", BatchState.UNKNOWN, None),
        ("Termination request issued; the job will be killed once the host is ok;", BatchState.ENDING, None),
        ("Exited by signal 9. The CPU time used is 0.1 seconds;", BatchState.ENDED, 137),
        ("Running;", BatchState.RUNNING, None),
        ("Signal <REQUEUE_PEND> requested by user or administrator <ann>;", BatchState.PENDING, None),
        ("Job is being requeued;", BatchState.PENDING, None),
        ("Signal <INT> requested by user or administrator <ann>;", BatchState.PENDING, None),
    ],
)
def test_what_the_last_event_means(line: str, state: BatchState, code: int | None) -> None:
    head = "\nJob <7>, User <ann>, Command <x>\nWed Jan 21 22:10:00: Submitted from host <a>;\n"
    text = f"{head}Wed Jan 21 22:12:00: {line}\n"
    job = parse_bhist(text, NOW)["7"]
    assert (job.state, job.code) == (state, code)


def test_no_history() -> None:
    assert parse_bhist("No matching job found\n", NOW) == {}


def running(now: float, **values: str) -> BjobsTimes:
    told = lsf_jobs.parse_bjobs(Form.FIELDS, fields(jobid="5", stat="RUN", **values), now)
    assert told is not None
    return told["5"]


START = {"start_time": "Jan 21 22:19", "runtimelimit": "20.0"}


def test_starts_and_ends_to_the_second_that_stay_from_poll_to_poll() -> None:
    steady = Steady()
    finish = {**START, "finish_time": "Jan 21 22:39 L"}
    first = steady.job(running(NOW, run_time="45 second(s)", **finish))
    assert (first.started_at, first.until) == (NOW - 45, NOW + 1155)
    assert steady.job(running(NOW + 30.6, run_time="75 second(s)", **finish)) == first
    assert steady.job(running(NOW + 500, run_time="75 second(s)", **START)).started_at == first.started_at
    moved = steady.job(running(NOW + 560, run_time="76 second(s)", **{**START, "finish_time": "Jan 21 22:48 L"}))
    assert (moved.started_at, moved.until) == (first.started_at, NOW + 560 + 1200 - 76)
    stopped = replace(running(NOW + 900, **START), job=replace(moved, state=BatchState.SUSPENDED, until=NOW + 9000))
    assert steady.job(stopped).until == moved.until


def test_a_requeued_job_is_another_run_even_within_a_minute() -> None:
    steady = Steady()
    first = steady.job(running(NOW - 20, run_time="30 second(s)", **START))
    second = steady.job(running(NOW - 5, run_time="1 second(s)", **START))
    assert (first.started_at, second.started_at) == (NOW - 50, NOW - 6)
    steady.job(BjobsTimes(BatchJob("5", BatchState.PENDING)))
    third = steady.job(running(NOW - 1, run_time="2 second(s)", **START))
    assert third.started_at == NOW - 3


def test_a_start_that_the_time_run_does_not_fit_to_is_left_to_the_minute() -> None:
    told = running(NOW, run_time="3 second(s)", start_time="Jan 21 21:19")
    assert told.job.started_at == at("2026-01-21 21:19:00")
    assert running(NOW, run_time="60 second(s)", runtimelimit="10.0").job.until == NOW + 540


BHIST = """
Job <7>, Job Name <hpcdl>, User <jo>, Project <default>, Command <x>
Sun Nov 22 06:00:00 2026: Submitted from host <login1>, to Queue <normal>;
Sun Nov 22 06:10:00 2026: Dispatched 4 Task(s) on Host(s) <4*h1>, Allocated 4 Slot(s) on Host(s) <4*h1>;
Sun Nov 22 06:10:01 2026: Starting (Pid 71);
Sun Nov 22 06:20:00 2026: Suspended by the user or administrator;
Sun Nov 22 06:25:00 2026: Running;

 RUNLIMIT
 60.0 min of h1
"""


def test_bhist_says_when_the_run_limit_is_reached() -> None:
    job = parse_bhist(BHIST, 0.0)["7"]
    assert job.started_at is not None
    assert job.until == job.started_at + 3600 + 300  # it was suspended for five minutes
    assert parse_bhist(BHIST.replace(" RUNLIMIT\n 60.0 min of h1\n", ""), 0.0)["7"].until is None
    stopped = BHIST.replace("Sun Nov 22 06:25:00 2026: Running;\n", "")
    assert parse_bhist(stopped, 0.0)["7"].until is None
