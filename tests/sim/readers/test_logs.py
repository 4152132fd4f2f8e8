"""Logs of batch systems and our own ledger as workloads."""

import json
from pathlib import Path

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.sim.readers import read_workload
from hpcdl.sim.workload import Workload, WorkloadError, cluster
from tests.report.story import node, placed, rows, set_three, submitted


def read(folder: Path, text: str, name: str, procs_per_gpu: int = 1, gpus: int = 4) -> Workload:
    path = folder / name
    path.write_text(text)
    return read_workload(path, {}, cluster(4, gpus, "v100"), procs_per_gpu=procs_per_gpu)


def refused(folder: Path, text: str, name: str) -> str:
    with pytest.raises(WorkloadError) as caught:
        read(folder, text, name)
    told = str(caught.value)
    assert "\n" not in told
    return told.removeprefix(f"{folder / name}:")


SWF = """; Version: 2.2
; MaxNodes: 8
1 100 5 600 16 -1 -1 16 900 -1 1 3 1 7 1 -1 -1 -1
2 130 0 0 -1 -1 -1 8 900 -1 5 3 1 7 1 -1 -1 -1
3 130 9 60 -1 -1 -1 4 900 -1 0 -1 1 7 1 -1 -1 -1
4 150 9 60 4 -1 -1 4 900 -1 2 -1 1 7 1 -1 -1 -1
"""


def test_swf_gives_what_ran_for_as_long_as_it_ran(tmp_path: Path) -> None:
    workload = read(tmp_path, SWF, "log.swf", procs_per_gpu=4)
    first, second = workload.jobs
    assert (first.submit_s, first.name, first.steps, first.user, first.draw) == (0, "swf/1", 600, "user 3", 4)
    assert (second.submit_s, second.steps, second.user, second.draw) == (30, 60, "", 1)
    assert first.profile.rate(4) == 1.0
    assert any("never ran" in note for note in workload.notes)
    assert any("interrupted" in note for note in workload.notes)
    assert read(tmp_path, SWF, "noending").jobs[0].nodes == 4  # 16 processors, one a GPU, 4 on each of 4 nodes


def test_swf_of_other_shapes_is_refused(tmp_path: Path) -> None:
    line = "1 100 5 600 16 -1 -1 16 900 -1 1 3 1 7 1 -1 -1 -1\n"
    assert refused(tmp_path, line + line.replace("100", "90"), "log.swf").startswith("2: submit: 90 is before")
    assert refused(tmp_path, line[:-4] + "\n", "log.swf").startswith("1: has 17 fields")
    assert refused(tmp_path, line.replace(" 16", " 0"), "log.swf").startswith("1: processors: must not be 0")
    assert refused(tmp_path, line.replace("600", "nan"), "log.swf").startswith("1: run time: expected a number")
    assert refused(tmp_path, line.replace("100", "-1"), "log.swf").startswith("1: submit: must be 0 or more")
    assert "holds no job that ran" in refused(tmp_path, "; nothing\n", "log.swf")


def test_swf_with_more_fields_at_the_end_of_its_lines(tmp_path: Path) -> None:
    line = "1 100 5 600 16 -1 -1 16 900 -1 1 3 1 7 1 -1 -1 -1"
    plain = read(tmp_path, f"{line}\n", "log.swf", procs_per_gpu=4)
    for more in (" 5", " -1 12.5 word", "\t7 ", " ; a comment", "   "):
        found = read(tmp_path, f"; Version: 2.2\n{line}{more}\r\n", "log.swf", procs_per_gpu=4)
        assert found.jobs == plain.jobs
        assert any("beyond 18 fields (1 job, first in line 2)" in note for note in found.notes) == bool(
            more.partition(";")[0].strip()
        )
        assert read(tmp_path, f"{line}{more}\n", "noending", procs_per_gpu=4).jobs == plain.jobs


SACCT = """JobID|JobName|User|Submit|Start|End|Elapsed|State|NNodes|AllocTRES
12|train|ana|2026-02-10T12:00:00|2026-02-10T12:10:00|2026-02-10T13:10:00|01:00:00|COMPLETED|1|cpu=8,gres/gpu=2,node=1
12.batch|batch||2026-02-10T12:10:00|2026-02-10T12:10:00|2026-02-10T13:10:00|01:00:00|COMPLETED|1|cpu=8,gres/gpu=2,node=1
11|wide|ben|2026-02-10T11:59:00|2026-02-10T12:00:00|x|1-01:00:01|CANCELLED by 1000|2|gres/gpu:v100=8,gres/gpu=8,node=2
13|cpu|ben|2026-02-10T12:01:00|2026-02-10T12:10:00|2026-02-10T13:10:00|01:00:00|COMPLETED|1|cpu=8,mem=64G,node=1
14|waits|ben|2026-02-10T12:02:00|Unknown|Unknown|00:00:00|PENDING|1|
"""


def test_sacct_gives_the_jobs_that_had_gpus(tmp_path: Path) -> None:
    workload = read(tmp_path, SACCT, "acct")
    first, second = workload.jobs  # by their submits, whatever the order of the dump
    assert (first.name, first.submit_s, first.user, first.steps) == ("11 wide", 0, "ben", 90001)
    assert (first.nodes, first.gpus_max, first.draw) == (2, 4, 4)
    assert (second.name, second.submit_s, second.steps, second.nodes, second.draw) == ("12 train", 60, 3600, 1, 2)
    told = " ".join(workload.notes)
    assert "its state is CANCELLED" in told
    assert "left out: a job without GPUs (2 jobs, first in line 5)" in told


@pytest.mark.parametrize(
    "columns, row, steps, gpus",
    [
        ("Submit|JobIDRaw|JobID|ElapsedRaw|ReqTRES", "2026-02-10T12:00:00|5|5|77|cpu=1,gres/gpu=3,node=1", 77, 3),
        ("JobIDRaw|Submit|ElapsedRaw|ReqTRES", "5|2026-02-10T12:00:00|77|gres/gpu=3", 77, 3),
        ("JobID|Submit|Start|End|AllocGRES", "5|1000|1010|1070|gpu:v100:2(S:0-1)", 60, 2),
        ("JobID|Submit|Elapsed|ReqGRES|", "5|2026-02-10T12:00:00|05:30|gpu:2|", 330, 2),
        ("JobID|Submit|Elapsed|AllocTRES", "5|2026-02-10T12:00:00+01:00|05:30|gres/gpu:a100=1,gres/gpu:v100=2", 330, 3),
    ],
)
def test_sacct_of_other_columns(tmp_path: Path, columns: str, row: str, steps: int, gpus: int) -> None:
    job = read(tmp_path, f"{columns}\n{row}\n", "acct").jobs[0]
    assert (job.steps, job.draw, job.submit_s) == (steps, gpus, 0)


def test_delimiters_at_the_ends_of_lines(tmp_path: Path) -> None:
    plain = read(tmp_path, SACCT, "log.txt").jobs
    for header, ending in (("|", "|"), ("", "|"), ("||", "|"), ("|", "")):
        first, *lines = SACCT.splitlines()
        text = "\n".join([first + header, *(line + ending for line in lines)])
        assert read(tmp_path, text, "log.txt").jobs == plain


def test_sacct_without_what_is_needed_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "JobID|Submit|Elapsed\n1|2026-01-01T00:00:00|00:10\n", "a").startswith(
        "2: AllocTRES: missing"
    )
    assert refused(tmp_path, "JobID|Submit|AllocTRES\n1|1|gres/gpu=1\n", "a").startswith("2: Elapsed: missing")
    head = "JobID|Submit|Elapsed|AllocTRES\n"
    assert refused(tmp_path, head.replace("Submit|", "") + "1|1|gres/gpu=1\n", "a").startswith("1: Submit: missing")
    path = tmp_path / "nameless"
    path.write_text(head.replace("JobID|", "") + "1|00:10|gres/gpu=1\n")
    with pytest.raises(WorkloadError, match="nameless:2: JobID: missing"):
        read_workload(path, {}, form="sacct")
    assert refused(tmp_path, head + "1|soon|00:10:00|gres/gpu=1\n", "a").startswith("2: Submit: expected a time")
    assert refused(tmp_path, head + "1|1|ten|gres/gpu=1\n", "a").startswith("2: Elapsed: expected [DAYS-]HOURS")
    assert "holds no job with GPUs" in refused(tmp_path, head + "1|1|00:10:00|cpu=1\n", "a")


BHIST = """
Job <71>, Job Name <one>, User <ana>, Project <default>, Command <python train.p
                     y>
Wed Dec 31 23:50:00: Submitted from host <login1>, to Queue <normal>, Requested
                      GPU <num=2:mode=exclusive_process>;
Wed Dec 31 23:51:00: Dispatched 4 Task(s) on Host(s) <a01> <a01> <a02> <a02>, A
                     llocated 4 Slot(s) on Host(s) <a01> <a02>;
Wed Dec 31 23:51:01: Starting (Pid 95095);
Wed Dec 31 23:51:02: External Message "a01:gpus=0,1;EFFECTIVE GPU REQ: num=2:mo
                     de=shared:mps=no:j_exclusive=no;" was posted from "ana" to
                      message box 0;
Thu Jan  1 00:51:00: Done successfully. The CPU time used is 302.0 seconds;

Summary of time in seconds spent in various states by  Thu Jan  1 00:51:00
  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL
  60       0        3500     100      0        0        3660

Job <72>, User <ben>, Project <default>, Command <./burn>
Thu Jan  1 00:10:00: Submitted from host <login1>, to Queue <normal>, Requested
                      GPU;
Thu Jan  1 00:10:10: Dispatched to <a03>, Effective RES_REQ <select[ngpus>0]>;
Thu Jan  1 00:10:10: Starting (Pid 5);
Thu Jan  1 00:11:10: Pending: Requeued job is waiting for rescheduling;(exit co
                     de 17)
Thu Jan  1 00:12:00: Dispatched to <a03>, Effective RES_REQ <select[ngpus>0]>;
Thu Jan  1 00:12:05: Starting (Pid 6);
Thu Jan  1 00:13:00: Exited with exit code 1. The CPU time used is 0.2 seconds;

Job <73>, User <ben>, Project <default>, Command <make>
Thu Jan  1 00:20:00: Submitted from host <login1>, to Queue <normal>;
Thu Jan  1 00:20:10: Dispatched to <a03>;
Thu Jan  1 00:21:10: Done successfully. The CPU time used is 0.2 seconds;
"""


def test_bhist_gives_what_ran_with_gpus_across_a_new_year(tmp_path: Path) -> None:
    workload = read(tmp_path, BHIST, "history.txt")
    first, second = workload.jobs
    assert (first.name, first.user, first.steps, first.nodes, first.draw) == ("71 one", "ana", 3500, 2, 2)
    assert (second.name, second.submit_s, second.steps, second.draw) == ("72", 20 * 60, 60 + 60, 1)
    assert any("without GPUs" in note for note in workload.notes)


BACCT = """Accounting information about jobs that are:
  - submitted by all users.
------------------------------------------------------------------------------

Job <7>, User <ana>, Project <default>, Status <DONE>, Queue <gpu>, Command <bsu
                     b -gpu "num=4" train>
Mon Oct 10 12:00:00 2022: Submitted from host <hostA>, CWD <$HOME>;
Mon Oct 10 12:00:05 2022: [1] dispatched to <hostA>;
Mon Oct 10 12:01:05 2022: Completed <done>.

Accounting information about this job:
     CPU_T     WAIT     TURNAROUND   STATUS     HOG_FACTOR    MEM    SWAP
      0.05        5             65     done         0.0008     4M    39M
------------------------------------------------------------------------------
"""


def test_bacct_gives_the_same(tmp_path: Path) -> None:
    (job,) = read(tmp_path, BACCT, "acct.txt").jobs
    assert (job.name, job.steps, job.draw) == ("7", 60, 4)


@pytest.mark.parametrize(
    "asked, gpus",
    [
        (" GPU REQUIREMENT DETAILS:\n Combined: num=3:mode=shared\n Effective: num=3:mode=shared\n", 3),
        (" GPU_ALLOCATION:\n HOST             TASK ID\n hostA            0    0\n", 1),
    ],
)
def test_bacct_with_its_table_of_gpus(tmp_path: Path, asked: str, gpus: int) -> None:
    text = BACCT.replace('-gpu "num=4" ', "").replace("\nAccounting information about this", f"\n{asked}\nAccounting")
    assert read(tmp_path, text, "acct.txt").jobs[0].draw == gpus


def test_lsf_without_stories_is_refused(tmp_path: Path) -> None:
    summary = "JOBID USER JOB_NAME PEND PSUSP RUN\n2211 test job 0 0 56\n"
    path = tmp_path / "summary.txt"
    path.write_text(summary)
    with pytest.raises(WorkloadError, match="bhist -l"):
        read_workload(path, {}, form="lsf")
    torn = "Job <7>, User <ana>\nMon Oct 10 12:00:00 2022: Dispatched to <a>;\n"
    assert refused(tmp_path, torn, "l.txt").startswith("1: job 7: no moment of its submit")
    odd = "Job <7>, User <ana>\nMon Feb 30 12:00:00: Submitted from host <a>;\n"
    assert refused(tmp_path, odd, "l.txt").startswith("1: 'Mon Feb 30 12:00:00' is no moment")


PROFILES = {"resnet-50": Profile("resnet-50", ((1, 3, 7.8),))}


def ledger(folder: Path, stamped: list[tuple[float, ev.Event]]) -> Workload:
    path = folder / "events.json"
    path.write_text(json.dumps({"schema": 1, "events": rows(stamped), "last": len(stamped)}))
    return read_workload(path, PROFILES, cluster(1, 6))


def test_a_ledger_gives_the_jobs_as_they_were_asked_for(tmp_path: Path) -> None:
    told = set_three()
    told += [(1600, submitted(4, "cut short", 5000, "resnet-50")), (1600, node("n2", 6))]
    told += [
        (1600, ev.StartRequested(4, 1, ("n2",), placed([0, 1], name="n2"))),
        (1640, ev.TrainerReady(4, 1, 1, "n2")),
    ]
    told += [(1700, ev.Progressed(4, 1, 1, "n2", step=321)), (1701, ev.Exited(4, 1, 1, "n2", code=1))]
    told += [(1702, ev.GpusFreed(4, 1, 1, "n2")), (1702, ev.IncarnationEnded(4, 1, Cause.CANCELLED, reached=321))]
    told += [(1702, ev.JobEnded(4, JobState.CANCELLED)), (1800, submitted(5, "waits", 10, None))]
    workload = ledger(tmp_path, told)
    done, learnt, third, cut = workload.jobs
    assert (done.name, done.submit_s, done.steps, done.gpus_max) == ("ResNet-50", 0, 900, 6)
    assert done.profile is PROFILES["resnet-50"]
    assert (cut.submit_s, cut.steps) == (600, 321)
    # No profile is given for these: 115 s on 3 GPUs and 283 s on 4; 117 s on 2.
    assert (learnt.steps, learnt.profile.rate(4), third.steps, third.profile.rate(2)) == (115 + 283, 1.0, 117, 1.0)
    assert [note.split(":")[0] for note in workload.notes] == [
        "no profile, or no step reported", "was not done", "left out",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[]", '{"events": {}}', '{"events": [3]}', '{"events": [{}]}', '{"events": []}'])
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    assert "hpcdl events --json" in refused(tmp_path, text, "events.json")
