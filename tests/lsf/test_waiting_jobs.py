"""Others' jobs that wait, by bjobs -p: which of them wait for hosts, and which hosts those are."""

import pytest

from hpcdl.batch.adapter import Completed
from hpcdl.batch.system import BatchError
from hpcdl.lsf.jobs import PendingJob, parse_waiting, waiting_argv
from tests.lsf.scripted import NOTHING, NOW, Fake, json_of, relative

LINES = (
    "41^PEND^fill^8^-^Not enough job slot(s): 4 hosts;^big\n"
    "42^PEND^fill^4^-^Job dependency condition not satisfied;^later\n"
    "43^PSUSP^fill^4^-^The job was suspended by the user while pending;^held\n"
    "44^PEND^killable^4^hpcdl:other:p1^Not enough job slot(s): 4 hosts;^hpcdl-p1\n"
    "45^PEND^killable^-^-^The user has reached his/her job slot limit;^many\n"
    "46^PEND^killable^1^-^Job slot limit reached: 3 hosts;^a^b\n"
)
NONE = "No backfill window exists at this time\n"


def test_which_jobs_wait_for_hosts() -> None:
    found = parse_waiting(True, "You have new mail\n" + LINES)
    assert [each.id for each in found if each.for_hosts] == ["41", "44", "46"]
    assert found[0] == PendingJob("41", "fill", 8, True, False)
    assert [each.id for each in found if each.is_pilot] == ["44"]
    assert parse_waiting(True, "") == ()
    for wrong in (LINES + "aGVsbG8gd29ybGQ=\n", LINES[:-30]):
        with pytest.raises(ValueError, match="nobody understands"):
            parse_waiting(True, wrong)


def test_without_fields_each_is_reckoned_to_wait_for_a_host() -> None:
    text = (
        "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
        "52      eve     PEND  normal     login1      -           big        Nov 22 06:33\n"
        "53      eve     PSUSP normal     login1      -           held       Nov 22 06:33\n"
        "54      eve     PEND  low        login1      -           hpcdl:a:p1 Nov 22 06:33\n"
    )
    assert waiting_argv(False) == ["bjobs", "-u", "all", "-p", "-w"]
    assert parse_waiting(False, text) == (
        PendingJob("52", "normal", 1, True, False),
        PendingJob("53", "normal", 1, False, False),
        PendingJob("54", "low", 1, True, True),
    )


def test_who_waits_for_which_hosts_and_what_it_preempts() -> None:
    lsf = Fake(bjobs=[json_of(jobid="5", stat="RUN"), LINES], bslots=NONE).lsf()
    lsf.poll(["5"])
    lsf.holes(NOW, ())
    found = {each.id: each for each in lsf.waiting(["46"])}
    assert set(found) == {"41"}
    assert (found["41"].count, found["41"].nodes) == (2, ("n1", "n2", "n3"))
    assert found["41"].preempts == {"killable"}, "fill is more urgent, and killable is PREEMPTABLE"


def test_nobody_who_waits_is_an_answer_and_nothing_is_none() -> None:
    for answer in (NOTHING, "aGVsbG8gd29ybGQ=\n"):
        lsf = Fake(bjobs=[json_of(jobid="5", stat="RUN"), answer], bslots=NONE).lsf()
        lsf.poll(["5"])
        lsf.holes(NOW, ())
        with pytest.raises(BatchError):
            lsf.waiting(())
    lsf = Fake(bjobs=[json_of(jobid="5", stat="RUN"), Completed("", "No pending job found\n", 255)], bslots=NONE).lsf()
    lsf.poll(["5"])
    lsf.holes(NOW, ())
    assert lsf.waiting(()) == ()


def test_an_lsf_like_system_is_asked_in_its_way() -> None:
    fake = relative()
    lsf = fake.lsf(without=("bslots", "jsrun", "jobstat"))
    lsf.poll(["113"])
    lsf.holes(NOW, ())
    with pytest.raises(BatchError):
        lsf.waiting(())  # it prints a block of bjobs -UF here, which is no table
    assert fake.of("bjobs")[-1] == ["bjobs", "-u", "all", "-p", "-w"]
