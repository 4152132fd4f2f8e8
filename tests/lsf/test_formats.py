"""What the emulated LSF prints has the form of what real LSFs print, as it was recorded."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lsf.cluster import LsfCluster

RECORDINGS = Path(__file__).parents[1] / "recordings" / "lsf"
MakeLsf = Callable[..., LsfCluster]


def recorded(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


def header(text: str, word: str) -> str:
    """The first line that has a word, without blanks at its end."""
    return next(line.rstrip() for line in text.splitlines() if word in line)


Said = dict[tuple[str, ...], str]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What each command printed: 101 runs on two hosts, 102 waits for all four, 103 has failed, 104 waits for 101."""
    lsf = LsfCluster(tmp_path_factory.mktemp("lsf") / "home").start()
    try:
        lsf.submit("sleep 1000\n", "-n", "8", "-W", "30", "-x", "-J", "a_name_longer_than_ten", LSFEMU_USER="test-user")
        lsf.reaches("101", "RUN")
        lsf.submit("true\n", "-n", "16", "-W", "1:00", LSFEMU_USER="test-user")
        lsf.submit("exit 42\n", "-W", "1", LSFEMU_USER="test-user")
        lsf.submit("true\n", "-w", "done(101)", LSFEMU_USER="test-user")
        lsf.reaches("103", "EXIT")
        lsf.until(lambda: "dependency" in lsf.job("104").pend_reason, "104 to wait for 101")
        lsf.until(lambda: lsf.job("101").pid, "101 to be told as started")
        return {argv: lsf.run(*argv, LSFEMU_USER="test-user").stdout for argv in ASKED}
    finally:
        lsf.stop()


ASKED = (
    ("bjobs",),
    ("bjobs", "-w"),
    ("bjobs", "-l"),
    ("bjobs", "-UF", "101"),
    ("bjobs", "-l", "103"),
    ("bhist",),
    ("bhist", "-l", "101"),
    ("bhosts",),
    ("bhosts", "-gpu"),
    ("bhosts", "-o", "HOST_NAME STATUS JL_U MAX NJOBS RUN SSUSP USUSP RSV delimiter='|'"),
    ("bqueues",),
    ("bqueues", "-l"),
    ("bslots",),
    ("bslots", "-l"),
    ("lshosts", "-gpu"),
    ("lsid",),
    ("jobstat",),
    ("bjobs", "-o", "jobid stat queue nreq_slot runtimelimit run_time", "-json", "101"),
)


def test_headers_of_tables_are_those_of_the_recordings(said: Said) -> None:
    exact = {
        ("bjobs",): ("bjobs-default-two-hosts", "JOBID"),
        ("bjobs", "-w"): ("bjobs-wide-joined-hosts", "JOBID"),
        ("bhosts",): ("bhosts-one-host", "HOST_NAME"),
        ("bhosts", "-gpu"): ("bhosts-gpu", "HOST_NAME"),
        ASKED[9]: ("bhosts-delimiter", "HOST_NAME"),
        ("bslots",): ("bslots-two-windows", "SLOTS"),
        ("bqueues", "-l"): ("bqueues-long-backfill-and-killable", "PRIO"),
    }
    for argv, (name, word) in exact.items():
        assert header(said[argv], word) == header(recorded(name), word), argv
    for argv, name in ((("bqueues",), "bqueues-table"), (("lshosts", "-gpu"), "lshosts-gpu-vendor")):
        found, real = said[argv], recorded(name)
        assert header(found, "NAME").split() == header(real, "NAME").split()


def test_rows_have_the_columns_of_the_recordings(said: Said) -> None:
    first, second, *_ = said["bjobs",].splitlines()[1:]
    real_first, real_second, *_ = recorded("bjobs-default-two-hosts").splitlines()[1:]
    for column in ("USER", "STAT", "QUEUE", "FROM_HOST", "EXEC_HOST", "JOB_NAME", "SUBMIT_TIME"):
        at = said["bjobs",].splitlines()[0].index(column)
        assert first[at - 1] == real_first[at - 1] == " "
        assert first[at] != " "
    assert re.fullmatch(r" {48}40\*r13n45 +", real_second)
    assert re.fullmatch(r" {48}4\*h2 +", second)
    assert "*_than_ten " in first
    assert said["bjobs", "-w"].splitlines()[1].split()[5] == "4*h1:4*h2"


def test_long_forms_are_broken_where_real_ones_are(said: Said) -> None:
    for argv, name in ((("bjobs", "-l"), "bjobs-long-gpu-running"), (("bhist", "-l", "101"), "bhist-gpu-done")):
        text, real = said[argv], recorded(name)
        for each in (text, real):
            lines = [
                line for line in each.splitlines() if re.match(r"Job <| {21}\S|[A-Z][a-z]{2} [A-Z][a-z]{2} ", line)
            ]
            assert any(line.startswith(" " * 21) for line in lines)
            assert max(len(line) for line in lines) == 79
    assert header(said["bjobs", "-UF", "101"], "Started").endswith(f"Execution CWD <{Path.cwd()}>;")
    real = recorded("bjobs-long-exit-42")
    failed = said["bjobs", "-l", "103"].replace("\n" + " " * 21, "")
    for line in ("Exited with exit code 42. The CPU time used is 0.0 seconds", "Completed <exit>"):
        assert line in failed
        assert line in real.replace("\n" + " " * 21, "")


def test_summaries_of_bhist(said: Said) -> None:
    columns = "PEND PSUSP RUN USUSP SSUSP UNKWN TOTAL"
    assert columns in " ".join(said["bhist",].split())
    text = said["bhist", "-l", "101"]
    real = recorded("bhist-run-limit")
    for line in ("Submitted from host <", "Dispatched ", "Starting (Pid ", "Running with execution home <"):
        assert f": {line}" in text
        assert f": {line}" in real
    for line in (" RUNLIMIT", "Summary of time in seconds spent in various states by"):
        assert line in text
        assert line in real


def test_windows(said: Said) -> None:
    row = re.compile(r"\d+ {9,}(?:\d+ hours )?\d+ minutes \d+ seconds")
    for text in (said["bslots",], recorded("bslots-two-windows"), recorded("bslots-one-window")):
        for line in text.splitlines()[1:]:
            assert row.fullmatch(line), line
    assert said["bslots",].splitlines()[1].startswith("8              29 minutes")
    block = re.compile(r"SLOTS: +\d+\nRUNTIME: +\S.*\nHOSTS: +(?:\d+\*\S+ ?)+\n")
    for text in (said["bslots", "-l"], recorded("bslots-long-two-windows")):
        assert block.match(text)


def test_queues_in_the_long_form(said: Said) -> None:
    text, real = said["bqueues", "-l"], recorded("bqueues-long-backfill-and-killable")
    for line in real.splitlines():
        name, sign, _ = line.partition(":")
        if sign and name in ("SCHEDULING POLICIES", "INTERRUPTIBLE_BACKFILL", "REQUEUE_EXIT_VALUES", "USERS", "HOSTS"):
            assert line in text
    for line in ("RERUNNABLE : yes", "TERMINATE_WHEN:  PREEMPT", "PREEMPTION = PREEMPTABLE["):
        assert line in text
        assert line in real


def test_lsid_and_json(said: Said) -> None:
    text, real = said["lsid",].splitlines(), recorded("lsid").splitlines()
    assert text[:4] == real[:4]
    assert [line.split(" is ")[0] for line in text[4:]] == [line.split(" is ")[0] for line in real[4:]]

    def shape(json: str) -> list[str]:
        return [re.sub(r":.*", ":", line) for line in json.splitlines() if not line.startswith("      ")]

    ours = said[ASKED[-1]]
    assert shape(ours) == shape(recorded("bjobs-json-running"))
    for name in ('"JOBID":"101"', '"STAT":"RUN"', '"RUNTIMELIMIT":"30.0"'):
        assert f"      {name},\n" in ours
    assert re.search(r'      "RUN_TIME":"\d+ second\(s\)"\n', ours)


def rulers(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("---")]


def test_jobstat_in_both_layouts(said: Said, make_lsf: MakeLsf) -> None:
    text, real = said["jobstat",], recorded("jobstat-with-usernames")
    assert [len(line) for line in rulers(text)] == [len(line) for line in rulers(real)] == [100] * 3
    for line in real.splitlines():
        if line.startswith("JobId"):
            assert line in text.splitlines()
    assert "Running Jobs: 1 (2 of 4 nodes, 50.00%)" in text
    assert "Job dependency condition not satisfied" in text
    other = make_lsf(jobstat="ascent")
    other.reaches(other.submit("sleep 100\n", "-J", "one"), "RUN")
    done = other.run("jobstat")
    real = recorded("jobstat-with-queues")
    assert (done.stderr.rstrip(), header(done.stdout, "JobID")) == (real.splitlines()[0], header(real, "JobID"))
    assert [len(line) for line in rulers(done.stdout)] == [len(line) for line in rulers(real)] == [130] * 3


def test_words_of_refusals(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(hosts=1)
    assert lsf.run("bjobs", "-json").stderr == recorded("bjobs-json-refused-without-o")
    assert lsf.run("bslots", "-n", "99").stderr == recorded("bslots-none-meets")
    unknown = lsf.run("bjobs", "-o", "jobid", "-json", "4242").stdout
    assert unknown == recorded("bjobs-json-not-found")
    lsf.close_hosts("h1")
    assert lsf.run("bslots").stdout == recorded("bslots-none-exists")
    lsf.close_hosts()
    waited = lsf.run("bsub", "-K", "true").stdout
    real = recorded("bsub-waiting").replace("869676", "101").replace("<batch>", "<normal>").replace("batch1", "h1")
    assert waited == real
