"""The LSF adapter over a run that answers from a script: submissions, signals and ends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.adapter import TIMEOUT_S, Completed, PilotScript
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import PilotSpec
from hpcdl.lsf.adapter import Lsf, LsfSettings
from hpcdl.lsf.environment import outside
from tests.lsf.scripted import NOTHING, NOW, SCRIPT, TAKEN, WAIT, Fake, json_of, relative


def test_a_submission_by_stdin() -> None:
    fake = Fake(bsub=TAKEN)
    assert fake.lsf().submit(PilotSpec(2, 600.0, "fill", 2, ("n1", "n3")), SCRIPT) == "113"
    (argv,) = fake.of("bsub")
    assert argv[-1] != "hpcdl"
    assert fake.stdin[-1] == "#!/bin/sh\nexec hpcdl allocation\n"
    assert argv[argv.index("-n") + 1] == "8"
    assert argv[argv.index("-m") + 1] == "n1.x n3.x"
    assert argv[argv.index("-Jd") + 1] == "hpcdl:ab:p7"


def test_a_submission_to_a_relative_never_has_options_that_it_reads_differently() -> None:
    fake = relative(bsub=TAKEN)
    assert fake.lsf().submit(PilotSpec(1, 600.0), SCRIPT) == "113"
    (argv,) = fake.of("bsub")
    assert not {"-Jd", "-wa", "-wt", "-rn", "-gpu"} & set(argv)
    assert argv[argv.index("-J") + 1] == "hpcdl:ab:p7"


def test_a_submission_by_file(tmp_path: Path) -> None:
    fake = Fake(bsub=TAKEN)
    script = PilotScript(("hpcdl", "x"), "hpcdl:ab:p7", "hpcdl p/7", str(tmp_path / "p7.log"))
    lsf = fake.lsf(ways=LsfSettings(submit_by="file", nodes_by="nodes"))
    assert lsf.submit(PilotSpec(3, 600.0), script) == "113"
    (argv,) = fake.of("bsub")
    path = tmp_path / "hpcdl-p-7.bsub"
    assert argv[-1] == str(path)
    assert path.read_text() == "#!/bin/sh\nexec hpcdl x\n"
    assert path.stat().st_mode & 0o777 == 0o700
    assert argv[argv.index("-nnodes") + 1] == "3"
    assert fake.of("bhosts") == []
    elsewhere = PilotScript(("x",), "m", "n", str(tmp_path / "no" / "p.log"))
    with pytest.raises(BatchError, match="cannot write the batch script"):
        lsf.submit(PilotSpec(3, 600.0), elsewhere)


def test_where_stdin_is_not_read_it_is_a_file(tmp_path: Path) -> None:
    fake = Fake(bsub=[Completed("", "No command is specified. Job not submitted.\n", 255), TAKEN])
    script = PilotScript(("x",), "hpcdl:ab:p7", "p7", str(tmp_path / "p7.log"))
    assert fake.lsf().submit(PilotSpec(1, 600.0), script) == "113"
    assert [argv[-1] == str(tmp_path / "p7.bsub") for argv in fake.of("bsub")] == [False, True]


def test_transient_errors_of_bsub_are_tried_again() -> None:
    fake = Fake(bsub=[Completed("", "Request from non-LSF host rejected\n", 255), WAIT, TAKEN])
    assert fake.lsf().submit(PilotSpec(1, 600.0), SCRIPT) == "113"
    assert fake.pauses == [0.5, 1.0]
    fake = Fake(bsub=WAIT)
    with pytest.raises(BatchError, match="Please wait") as error:
        fake.lsf().submit(PilotSpec(1, 600.0), SCRIPT)
    assert error.value.away
    assert len(fake.of("bsub")) == 4


@pytest.mark.parametrize(
    "text, again",
    [
        ("nosuch: No such queue. Job not submitted.", False),
        ("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", False),
        ("User <ann>: Pending job threshold reached. Job not submitted.", True),
    ],
)
def test_permanent_errors_of_bsub_are_told_in_its_words(text: str, again: bool) -> None:
    fake = Fake(bsub=Completed("", text + "\n", 255))
    with pytest.raises(BatchError) as error:
        fake.lsf().submit(PilotSpec(1, 600.0, "nosuch"), SCRIPT)
    assert str(error.value) == f"bsub: {text}"
    assert (error.value.again, error.value.away) == (again, False)
    assert len(fake.of("bsub")) == 1


def test_an_option_that_is_refused_is_dropped_for_good() -> None:
    fake = Fake(bsub=[Completed("", "bsub: illegal option -- gpu\n", 255), TAKEN])
    lsf = fake.lsf()
    assert lsf.submit(PilotSpec(1, 600.0, gpus=2), SCRIPT) == "113"
    assert lsf.submit(PilotSpec(1, 600.0, gpus=2), SCRIPT) == "113"
    assert ["-gpu" in argv for argv in fake.of("bsub")] == [True, False, False]
    fake = Fake(bsub=Completed("", "bsub: illegal option -- W\n", 255))
    with pytest.raises(BatchError, match="illegal option -- W"):
        fake.lsf().submit(PilotSpec(1, 600.0), SCRIPT)


def test_a_lost_reply_of_bsub_is_no_reason_to_submit_twice() -> None:
    listed = json_of(jobid="113", stat="PEND", job_description="hpcdl:ab:p7")
    fake = Fake(bsub=NOTHING, bjobs=listed)
    assert fake.lsf().submit(PilotSpec(1, 600.0), SCRIPT) == "113"
    assert len(fake.of("bsub")) == 1
    fake = Fake(bsub=NOTHING)
    with pytest.raises(BatchError, match="bsub printed nothing, and bjobs does not list the pilot") as error:
        fake.lsf().submit(PilotSpec(1, 600.0), SCRIPT)
    assert error.value.away
    assert len(fake.of("bsub")) == 1


def test_cancel_and_signals() -> None:
    fake = Fake(bkill=Completed("Job <1> is being terminated\n", "Job <2>: Job has already finished\n", 255))
    lsf = fake.lsf()
    lsf.cancel(["1", "2"])
    lsf.cancel([])
    assert fake.of("bkill") == [["bkill", "1", "2"]]
    with pytest.raises(BatchError, match="job 2 has ended already"):
        lsf.signal("2", "TERM")
    assert fake.of("bkill")[-1] == ["bkill", "-s", "TERM", "2"]
    with pytest.raises(BatchError, match="bkill: Job <9>: User permission denied"):
        Fake(bkill=Completed("", "Job <9>: User permission denied\n", 255)).lsf().cancel(["9"])


def test_a_pilot_gets_nothing_of_the_allocation_that_its_daemon_is_in() -> None:
    inside = {
        "LSB_JOBID": "7",
        "LSB_MCPU_HOSTS": "n1 4",
        "CUDA_VISIBLE_DEVICES": "0",
        "LSB_DEFAULTPROJECT": "a",
        "PATH": "/",
    }
    asked = []

    def answer(argv: Sequence[str], timeout_s: float = TIMEOUT_S, **more: Any) -> Completed:
        asked.append(list(argv))
        return fake(argv, timeout_s, **more)

    fake = Fake(bsub=TAKEN)
    lsf = Lsf(answer, now=lambda: NOW, which=lambda name: name, environ=inside, ways=LsfSettings(nodes_by="slots"))
    assert lsf.submit(PilotSpec(1, 600.0), SCRIPT) == "113"
    assert asked[-1][:8] == ["env", "-u", "CUDA_VISIBLE_DEVICES", "-u", "LSB_JOBID", "-u", "LSB_MCPU_HOSTS", "bsub"]
    assert outside(["bsub"], {"CUDA_VISIBLE_DEVICES": "0"}) == ["bsub"]
    slow = Lsf(lambda argv, *_, **__: late(argv), now=lambda: NOW, which=lambda name: name, environ=inside)
    with pytest.raises(BatchError, match="bsub has not answered") as error:
        slow.submit(PilotSpec(1, 600.0), SCRIPT)
    assert error.value.away


def late(argv: Sequence[str]) -> Completed:
    if argv[0] == "env":
        raise BatchError(f"{argv[0]} has not answered within 30 s", away=True)
    return Fake()(argv)
