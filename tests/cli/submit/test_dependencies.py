"""A job that waits for others, through jobscripts/sbatch and bsub: an id of hpcdl's never reaches the batch system."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.script import command_named
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.high_water_mark import Ids, Mark, MarkFile
from hpcdl.ledger.offline import jobs_at_rest
from hpcdl.lsf.bsub import BSUB, dependency_jobs
from hpcdl.slurm.sbatch import SBATCH, dependency_ids
from tests.cli.fake import FakeDaemon, row
from tests.support.wrapping import LSF, SLURM, Place, specs

SQUEUE = """#!/bin/sh
# A Slurm that knows the jobs of $NOTES/slurm.
for id; do :; done
[ -e "$NOTES/silent" ] && exit 0
grep -qx "$id" "$NOTES/slurm" && { echo "JobId=$id JobName=x UserId=u(1)"; exit 0; }
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""
BJOBS = """#!/bin/sh
for id; do :; done
grep -qx "$id" "$NOTES/lsf" && { echo "JOBID   USER    STAT"; echo "$id   u   RUN"; exit 0; }
echo "Job <$id> is not found" >&2
exit 255
"""


@pytest.fixture
def here(fake: FakeDaemon, place: Place) -> Place:
    """hpcdl has the jobs 12 (RUNNING, `prep`), 21 (DONE) and the array 30 to 32; Slurm and LSF have 21 and 5000."""
    fake.world.jobs |= {12: row(12, name="prep", state="RUNNING"), 21: row(21, name="old", state="DONE")}
    fake.world.jobs |= {n: row(n, name=f"sweep[{n - 30}]", array=30, array_index=n - 30) for n in (30, 31, 32)}
    place.executable(place.real / "scontrol", SQUEUE)
    place.executable(place.real / "bjobs", BJOBS)
    for name in ("slurm", "lsf"):
        (place.notes / name).write_text("21\n5000\n")
    place.script(SLURM)
    place.script("#!/bin/sh\ntrue\n", "cpu.sh")
    return place


@pytest.mark.parametrize(
    "value, ids, single",
    [
        ("afterok:12", (12,), False),
        ("afterok:12:13_4,afterany:14?after:15+30:16+5", (12, 13, 14, 15, 16), False),
        ("AfterCorr:7_[1-3]", (7,), False),
        ("singleton", (), True),
        ("afterok:3,singleton", (3,), True),
        ("expand:8,afterburstbuffer:9", (8, 9), False),
        ("12", (12,), False),
        ("afterok: 0012:+13", (12, 13), False),
        ("", (), False),
        ("afterok:x", (), False),
    ],
)
def test_ids_in_what_slurm_takes(value: str, ids: tuple[int, ...], single: bool) -> None:
    assert dependency_ids(value) == (ids, single)


@pytest.mark.parametrize(
    "value, ids, names",
    [
        ("done(12)", (12,), ()),
        ("ended(12) && (exit(13, > 0) || !started(14))", (12, 13, 14), ()),
        ("done(12[3]) || post_done( 13[*] )", (12, 13), ()),
        ("12 && 13[2]", (12, 13), ()),
        ('done("prep one") && ended(net*)', (), ("prep one", "net*")),
        ("prep", (), ("prep",)),
        ('numdone(12, >= 4) && external(prep, "ok")', (12,), ("prep",)),
        ("done('prep[2]')&&exit(9)", (9,), ("prep",)),
        ("", (), ()),
    ],
)
def test_jobs_in_what_lsf_takes(value: str, ids: tuple[int, ...], names: tuple[str, ...]) -> None:
    assert sorted(dependency_jobs(value)[0]) == sorted(ids)
    assert dependency_jobs(value)[1] == names


@pytest.mark.parametrize(
    "name, words, script",
    [
        ("sbatch", ("--dependency=afterany:12", "x.sh"), ""),
        ("sbatch", ("--depend", "afterany:12", "x.sh"), ""),
        ("sbatch", ("-d", "afterany:12", "x.sh"), ""),
        ("sbatch", ("-dafterany:12", "x.sh"), ""),
        ("sbatch", ("-Hdafterany:12", "x.sh"), ""),
        ("sbatch", ("x.sh",), "#!/bin/sh\n#SBATCH -d afterany:12\n"),
        ("sbatch", ("x.sh",), "#!/bin/sh\n#SBATCH --mem=1 --dependency=afterany:12 # so\ntrue\n#SBATCH -d singleton\n"),
        ("sbatch", ("x.sh",), "#!/bin/sh\n#SBATCH --comment 'x --dependency=afterany:12\n"),
        ("sbatch", ("x.sh", "-d", "afterany:9"), "#!/bin/sh\n#SBATCH -d afterany:12\n"),
        ("sbatch", ("-d", "afterany:12", "--gpus"), ""),
        ("sbatch", ("-N1", ":", "-N2", "-d", "afterany:12", "x.sh", "-d", "afterany:9"), ""),
        ("bsub", ("-w", "ended(12)", "x"), ""),
        ("bsub", (), "#BSUB -n 4\ntrue\n#BSUB -w 'ended(12)'\n"),
        ("bsub", ("-w", "ended(12)", "-q"), ""),
    ],
)
def test_a_dependency_is_found_wherever_it_stands(name: str, words: tuple[str, ...], script: str) -> None:
    found = command_named(name).dependency(words, {}, script)
    assert found is not None
    assert found.ids == (12,)
    assert found.single is None


def test_the_later_dependency_counts_and_others_words_do_not() -> None:
    found = SBATCH.dependency(("-d", "afterok:7", "x.sh"), {}, "#!/bin/sh\n#SBATCH -d afterok:12\n")
    assert found is not None
    assert (found.said, found.ids) == ("-d afterok:7", (7,))
    assert SBATCH.dependency(("x.sh", "-d", "afterok:7"), {}, "#!/bin/sh\n") is None
    assert BSUB.dependency(("prog", "-w", "done(12)"), {}, "") is None
    single = [SBATCH.dependency(("-d", "singleton", *words), around, script) for words, around, script in (
        (("-J", "a", "x.sh"), {"SBATCH_JOB_NAME": ""}, "#!/bin/sh\n#SBATCH -J c\n"),
        (("x.sh",), {"SBATCH_JOB_NAME": ""}, "#!/bin/sh\n#SBATCH -J c\n"),
        (("x.sh",), {}, "#!/bin/sh\n#SBATCH -J c\n"),
        (("d/x.sh",), {}, "#!/bin/sh\n"),
        (("--wrap=true",), {}, ""),
        ((), {}, "#!/bin/sh\n"),
    )]  # fmt: skip
    assert [each and each.single for each in single] == ["a", "", "c", "x.sh", "wrap", "sbatch"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["--dependency=afternotok:12", "cpu.sh"], "job 12 is hpcdl's"),
        (["--dependency=after:12+5", "cpu.sh"], "job 12 is hpcdl's"),
        (["--dependency=aftercorr:30", "train.sh"], "job 30 is hpcdl's"),
        (["--dependency=afterok:31_1", "train.sh"], "job 31 is hpcdl's"),
        (["--dependency=afterok:5000:12", "train.sh"], "job 12 is hpcdl's and job 5000 is not"),
        (["--dependency=afterok:5000,afterany:12", "train.sh"], "job 12 is hpcdl's"),
        (["--dependency=afterok:12?afterok:5000", "train.sh"], "job 12 is hpcdl's"),
        (["--dependency=afterok:12", "cpu.sh"], "job 12 is hpcdl's"),
        (["--dependency=afterok:21", "train.sh"], "hpcdl and Slurm both know job 21"),
        (["--dependency=afterany:21", "cpu.sh"], "hpcdl and Slurm both know job 21"),
        (["--dependency=singleton", "-J", "prep", "cpu.sh"], "job 12 of hpcdl's is called prep"),
        (["--dependency=singleton?afterok:12", "-J", "prep", "train.sh"], "job 12 is hpcdl's"),
        (["--dependency=afterok:12?afterany:30", "train.sh"], "job 30 is an array"),
        (["-dafterany:12", "--nonsense", "cpu.sh"], "job 12 is hpcdl's"),
        (["-dafterany:12", "--gpus=1", "missing.sh"], "job 12 is hpcdl's"),
    ],
)
def test_no_id_of_hpcdls_reaches_slurm(fake: FakeDaemon, here: Place, words: list[str], said: str) -> None:
    done = here.run("sbatch", *words)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert here.got() is None
    assert specs(fake) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--dependency=afterany:5000", "train.sh"],
        ["--dependency=afterok:5000", "train.sh"],
        ["--dependency=afterok:77", "train.sh"],
        ["--dependency=singleton", "-J", "old", "cpu.sh"],
        ["-d", "afterok:123456789012345678901234567890", "cpu.sh"],
    ],
)
def test_ids_of_slurms_stay_slurms(fake: FakeDaemon, here: Place, words: list[str]) -> None:
    assert here.run("sbatch", *words).code == 3
    assert here.got() == (words, "")
    assert specs(fake) == []


def test_ids_that_the_ledger_forgot_are_still_hpcdls(fake: FakeDaemon, here: Place) -> None:
    """Since a restore, say. Below a site's `first_job_id` none was given, and nothing lies there."""
    (here.home / "logs" / "77").mkdir(parents=True)
    for words in (["-d", "afterany:77", "cpu.sh"], ["-d", "afterok:77", "train.sh"]):
        done = here.run("sbatch", *words)
        assert (done.code, done.err.count("\n"), here.got()) == (1, 1, None)
        assert "job 77 is hpcdl's" in done.err
    assert here.run("sbatch", "-d", "afterany:78", "cpu.sh").code == 3


def test_ids_of_hpcdls_alone_are_waited_for(fake: FakeDaemon, here: Place) -> None:
    assert here.run("sbatch", "--dependency=afterok:12", "train.sh").out.startswith("Submitted batch job ")
    assert here.run("sbatch", "--dependency=afterok:30,afterok:12", "train.sh").code == 0
    assert [spec["after"] for spec in specs(fake)] == [[12], [30, 31, 32, 12]]  # of an array all
    assert here.got() is None


def test_other_conditions_on_hpcdls_jobs_are_taken(fake: FakeDaemon, here: Place) -> None:
    words = ["--dependency=afterany:30,afternotok:12", "--dependency=afternotok:12?after:31"]
    assert [here.run("sbatch", each, "train.sh").code for each in words] == [0, 0]
    sent: list[Any] = [spec["conditions"] for spec in specs(fake)]
    shown = [[[(each["kind"], each["job"]) for each in group] for group in groups] for groups in sent]
    assert shown[0] == [[("ended", 30)], [("ended", 31)], [("ended", 32)], [("failed", 12)]]
    assert shown[1] == [[("failed", 12), ("started", 31)]]
    assert here.got() is None


ANSWERS = (
    ("echo JOBID; echo 88", "Slurm knows one, too"),
    *((answer, "Slurm may know one, too") for answer in ("exit 1", "true", "echo rubbish", "echo JOBID; exit 3")),
)


def test_a_singleton_waits_for_hpcdls_job_of_its_name_unless_slurm_may_have_one(fake: FakeDaemon, here: Place) -> None:
    words = ("--dependency=singleton", "-J", "prep", "train.sh")
    for answer, said in ANSWERS:
        here.executable(here.real / "squeue", f"#!/bin/sh\n{answer}\n")
        done = here.run("sbatch", *words)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert said in done.err
    here.executable(here.real / "squeue", "#!/bin/sh\necho 'welcome; JOBID'\n")
    assert here.run("sbatch", *words).code == 0
    assert [(spec["name"], spec["singleton"]) for spec in specs(fake)] == [("prep", True)]
    assert here.got() is None


def test_a_singleton_of_a_new_name_is_hpcdls_unless_slurm_may_have_one(fake: FakeDaemon, here: Place) -> None:
    words = ("--dependency=singleton", "-J", "new", "train.sh")
    for answer, _ in ANSWERS:
        here.executable(here.real / "squeue", f"#!/bin/sh\n{answer}\n")
        assert here.run("sbatch", *words).code == 3
        assert here.got() == (list(words), "")
    here.executable(here.real / "squeue", "#!/bin/sh\necho JOBID\n")
    assert here.run("sbatch", *words).code == 0
    assert [(spec["name"], spec["singleton"]) for spec in specs(fake)] == [("new", True)]
    assert here.got() is None


def test_a_slurm_that_says_nothing_is_not_taken_to_know_nothing(fake: FakeDaemon, here: Place) -> None:
    (here.notes / "silent").touch()
    done = here.run("sbatch", "--dependency=afterok:12", "train.sh")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "Slurm does not say whether it knows one, too: hpcdl submit --after 12" in done.err
    assert (specs(fake), here.got()) == ([], None)
    assert here.run("sbatch", "--dependency=afterok:12", "train.sh", HPCDL_BYPASS="1").code == 3  # its user's own word


@pytest.mark.parametrize(
    "words, stdin, said",
    [
        (["-w", "ended(12) && done(5000)"], LSF, "job 12 is hpcdl's and job 5000 is not"),
        (["-w", "done(12) || ended(30) && exit(12)"], LSF, "job 12 is hpcdl's"),
        (["-w", "done(12[2])"], LSF, "job 12 is hpcdl's"),
        (["-w", "done(12) || done(5000)"], LSF, "job 12 is hpcdl's"),
        (["-w", "done(12) && done(5000)"], LSF, "job 12 is hpcdl's and job 5000 is not"),
        (["-w", "done(21)"], LSF, "hpcdl and LSF both know job 21"),
        (["-w", "done(prep)"], LSF, "job 12 of hpcdl's is called prep"),
        (["-w", "old && done(5000)", "true"], "", "job 21 of hpcdl's is called old"),
        (["-w", "done(12)", "true"], "", "job 12 is hpcdl's"),
        ([], LSF + "#BSUB -w 'post_done(12)'\n", "job 12 is hpcdl's"),
    ],
)
def test_no_id_of_hpcdls_reaches_lsf(fake: FakeDaemon, here: Place, words: list[str], stdin: str, said: str) -> None:
    done = here.run("bsub", *words, stdin=stdin)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert (specs(fake), here.got()) == ([], None)


def test_lsf_gets_what_is_its_own(fake: FakeDaemon, here: Place) -> None:
    for value in ("done(5000)", "ended(77)", "done(other)"):
        assert here.run("bsub", "-w", value, stdin=LSF).code == 3
        assert here.got() == (["-w", value], LSF)
    assert here.run("bsub", "-w", "done(12)", stdin=LSF).out.startswith("Job <")
    assert [spec["after"] for spec in specs(fake)] == [[12]]


@pytest.fixture
def ledger_of_three(tmp_path: Path, home: Path) -> Path:
    """As a daemon leaves it that is killed: the last commits are in the write-ahead log. Jobs 1 to 3, called `net`."""
    spec = JobSpec(("true",), "net", "u")
    with SqliteJournal(tmp_path / "elsewhere" / "ledger.sqlite") as journal:
        journal.append([(1000.0, ev.JobSubmitted(number, spec, f"r{number}")) for number in (1, 2, 3)])
        for file in (tmp_path / "elsewhere").iterdir():
            if file.is_file():
                shutil.copy(file, home / file.name)
    found = jobs_at_rest(home)
    assert (sorted(found.ids), sorted(found.names), sorted(found.live)) == ([1, 2, 3], ["net"], ["net"])
    return home / "ledger.sqlite"


def test_without_a_daemon_its_ledger_says_which_ids_may_be_hpcdls(
    fake: FakeDaemon, here: Place, ledger_of_three: Path
) -> None:
    fake.kill()
    for words in (["-d", "afterany:3", "cpu.sh"], ["-d", "afterok:5000:2", "train.sh"]):
        done = here.run("sbatch", *words)
        assert (done.code, done.err.count("\n"), here.got()) == (1, 1, None)
        assert "may be hpcdl's, whose daemon does not answer (no daemon is running for " in done.err
        assert "hpcdl daemon start" in done.err
    assert here.run("sbatch", "-d", "singleton", "-J", "net", "cpu.sh").code == 1
    assert here.run("sbatch", "-d", "singleton", "-J", "other", "cpu.sh").code == 3
    assert here.run("sbatch", "-d", "afterany:4", "cpu.sh").code == 3  # hpcdl never gave a 4
    assert here.got() == (["-d", "afterany:4", "cpu.sh"], "")
    assert here.run("bsub", "-w", "done(net)", "true").code == 1
    (here.home / "access.json").unlink()
    assert here.run("sbatch", "-d", "afterany:3", "cpu.sh").code == 1
    (here.home / "ledger.sqlite-wal").unlink()
    ledger_of_three.write_bytes(b"damaged" * 1000)
    assert here.run("sbatch", "-d", "afterany:4", "cpu.sh").code == 1
    ledger_of_three.unlink()
    MarkFile(here.home, Mark(seq=3, given=Ids(job=4))).close(ours=True)  # it says that there was one
    assert here.run("sbatch", "-d", "afterany:4", "cpu.sh").code == 1
    (here.home / "mark.json").unlink()
    assert here.run("sbatch", "-d", "afterany:4", "cpu.sh").code == 3
    assert here.got() is not None


def test_where_hpcdl_cannot_even_be_asked_no_job_waits_for_others(fake: FakeDaemon, here: Place) -> None:
    here.script("#!/bin/sh\n#SBATCH --mem=1 -d afterany:12\n", "waits.sh")
    here.script("#!/bin/sh\n#SBATCH --mem=1\n", "plain.sh")
    here.path = [path for path in here.path if not path.endswith("tools")]  # no hpcdl in PATH
    for words in (["-dafterok:1", "x.sh"], ["--depend", "afterok:1", "x.sh"], ["waits.sh"]):
        done = here.run("sbatch", *words)
        assert (done.code, done.err.count("\n"), here.got()) == (1, 1, None)
        assert "put it there, or HPCDL_BYPASS=1" in done.err
    assert here.run("bsub", "-w", "done(1)", "true").code == 1
    assert here.run("sbatch", "plain.sh").code == 3
    other = str(here.folder / "other")
    assert here.run("sbatch", "waits.sh", HPCDL_HOME=other).code == 3
    done = here.run("sbatch", "waits.sh", HPCDL_HOME=other, HPCDL_JOB="7")  # in a job of hpcdl
    assert (done.code, "set HPCDL_HOME" in done.err) == (1, True)


def test_slurms_commands_without_a_cluster_know_no_job(fake: FakeDaemon, here: Place) -> None:
    text = "slurm_load_jobs error: x\\nfatal: Could not establish a configuration source"
    here.executable(here.real / "scontrol", f"#!/bin/sh\nprintf '{text}' >&2\nexit 1\n")
    assert here.run("sbatch", "--dependency=afterok:12", "train.sh").code == 0
    assert specs(fake)[0]["after"] == [12]
