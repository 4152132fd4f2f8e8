"""bsub, bkill and the environment of a job: arguments, replies, refusals."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcdl.agent.departure import end_signals
from hpcdl.batch.adapter import Completed, PilotScript
from hpcdl.batch.system import HalfAnAllocation
from hpcdl.core.model.pilot import PilotSpec
from hpcdl.lsf.environment import LsfAllocation, blaunch_argv, here, jsrun_argv, lsf_allocation
from hpcdl.lsf.text import (
    WARNING,
    Asking,
    answered,
    bkill_argv,
    bsub_argv,
    complaints,
    compute_hosts,
    down,
    hosts_of,
    not_found,
    parse_bsub,
    parse_lsid,
    refused,
    refused_options,
    script_of,
    short,
    taken_later,
    transient,
    words,
)

RECORDINGS = Path(__file__).parents[1] / "recordings" / "lsf"
SPEC = PilotSpec(2, 1234.0, "killable", 4)
SCRIPT = PilotScript(("hpcdl", "allocation", "--pilot"), "hpcdl:ab:p7", "hpcdl-p7", "/h/p7.log", ("-P", "CSC1"))


def recording(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


def said(err: str, out: str = "", code: int = 255) -> Completed:
    return Completed(out, err, code)


def pairs(argv: list[str]) -> dict[str, str]:
    return {argv[at]: argv[at + 1] for at in range(len(argv) - 1) if argv[at].startswith("-")}


def test_a_submission_to_lsf() -> None:
    argv = bsub_argv(SPEC, SCRIPT, Asking(40, False, True, "CN", ("n1.x", "n2.x")))
    assert argv[:3] == ["bsub", "-P", "CSC1"]
    told = pairs(argv)
    assert (told["-J"], told["-Jd"], told["-q"], told["-W"], told["-o"]) == (
        "hpcdl-p7", "hpcdl:ab:p7", "killable", "20", "/h/p7.log"
    )  # fmt: skip
    assert (told["-n"], told["-R"]) == ("80", "select[CN] span[ptile=40]")
    assert (told["-gpu"], told["-m"]) == ("num=4:j_exclusive=yes", "n1.x n2.x")
    assert (told["-wa"], told["-wt"]) == (WARNING, "1")
    assert "-rn" in argv


def test_gpus_that_are_not_asked_for_are_those_that_the_nodes_have() -> None:
    spec = PilotSpec(1, 600.0)
    assert pairs(bsub_argv(spec, SCRIPT, Asking(4, False, True, gpus=6)))["-gpu"] == "num=6:j_exclusive=yes"
    for gpus in (None, 0):
        assert "-gpu" not in bsub_argv(spec, SCRIPT, Asking(4, False, True, gpus=gpus))


def test_a_submission_in_nodes() -> None:
    argv = bsub_argv(SPEC, SCRIPT, Asking(None, True, True))
    assert pairs(argv)["-nnodes"] == "2"
    assert not {"-n", "-R", "-gpu", "-m"} & set(argv)


def test_a_relative_gets_no_option_that_it_would_take_for_another() -> None:
    argv = bsub_argv(SPEC, SCRIPT, Asking(4, True, False))
    assert not {"-Jd", "-wa", "-wt", "-rn", "-gpu", "-nnodes"} & set(argv)
    assert (pairs(argv)["-J"], pairs(argv)["-n"]) == ("hpcdl:ab:p7", "8")


def test_a_short_walltime_has_no_warning_and_a_minute_at_least() -> None:
    argv = bsub_argv(PilotSpec(1, 59.0), SCRIPT, Asking(4, False, True))
    assert pairs(argv)["-W"] == "1"
    assert "-wa" not in argv
    assert "-q" not in argv


def test_options_that_were_refused_are_left_out() -> None:
    done = said("bsub: illegal option -- gpu\nUsage: bsub [-h] ...")
    assert refused(done)
    assert refused_options(done) == {"gpu"}
    argv = bsub_argv(SPEC, SCRIPT, Asking(4, False, True, without=frozenset({"gpu", "Jd"})))
    assert "-gpu" not in argv
    assert pairs(argv)["-J"] == "hpcdl:ab:p7"
    assert refused_options(said("No such queue. Job not submitted")) == frozenset()


def test_the_script_is_one_command_in_the_shells_place() -> None:
    argv = ("/opt/my python", "-m", "hpcdl", "$HOME; rm -rf 'x'")
    script = script_of(argv)
    assert script.startswith("#!/bin/sh\nexec ")
    assert tuple(shlex.split(script.splitlines()[1]))[1:] == argv


@pytest.mark.parametrize(
    "out, job",
    [
        ("Job <26238> is submitted to default queue <batch>.\n", "26238"),
        ("Job <473713> is submitted to queue <pub.1h>.\n", "473713"),
        ("Job <54086> is submitted to default queue <normal>\n", "54086"),
        ("\n*** maintenance on Monday ***\nJob <113> is submitted to queue <q>.\nYou have new mail\n", "113"),
        ("", None),
        ("No such queue. Job not submitted.\n", None),
    ],
)
def test_replies_of_bsub(out: str, job: str | None) -> None:
    assert parse_bsub(Completed(out, "", 0)) == job


def test_a_project_line_comes_first() -> None:
    assert parse_bsub(Completed(recording("bsub-project-line-first"), "", 0)) == "16633929"
    assert parse_bsub(Completed("", recording("bsub-waiting"), 0)) == "869676"


@pytest.mark.parametrize(
    "text",
    ["Request from non-LSF host rejected", "Cannot connect to LSF. Please wait ...", "LSF is down. Please wait ..."],
)
def test_transient_errors(text: str) -> None:
    done = said(text)
    assert transient(done)
    assert not answered(done)
    assert answered(Completed(f"{text}\n{text}\nJob <1> is submitted to queue <q>.", "", 0))


@pytest.mark.parametrize(
    "text",
    [
        "nosuch: No such queue. Job not submitted.",
        "Too many processors requested. Job not submitted.",
        "RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.",
        'Error near "select" : duplicate section. Job not submitted.',
        "Service class does not exist. Job not submitted.",
    ],
)
def test_permanent_errors(text: str) -> None:
    done = said(text)
    assert answered(done)
    assert [about(done) for about in (transient, down, refused, taken_later)] == [False] * 4
    assert words(done) == text


def test_what_may_be_taken_later() -> None:
    assert taken_later(said("User <ann>: Pending job threshold reached. Retrying in 60 seconds..."))
    assert taken_later(said("Job not submitted. The maximum number of unfinished jobs was reached"))


@pytest.mark.parametrize(
    "text, is_down",
    [
        ("lsid: ls_getclustername(): LIM is down; try later", True),
        ("batch system daemon not responding ... still trying", True),
        ("bjobs: illegal option -- o", False),
    ],
)
def test_daemons_that_are_away(text: str, is_down: bool) -> None:
    assert down(said(text)) is is_down


@pytest.mark.parametrize(
    "text, is_refused",
    [
        ("bjobs: invalid option -- 'o'\nUsage: bjobs [-h] [-V] [-w |-l]", True),
        (recording("bjobs-json-refused-without-o"), True),
        ("bjobs: illegal option -- json", True),
        ("Job <5> is not found", False),
        ("Resource usage collected", False),
    ],
)
def test_refused_forms(text: str, is_refused: bool) -> None:
    assert refused(said(text)) is is_refused
    assert not refused(said(text, code=0))


def test_not_found_and_words() -> None:
    assert not_found(said("Job <943186> is not found"))
    assert not_found(Completed("No matching job found\n", "", 255))
    assert not_found(said("No unfinished job found"))
    assert not not_found(said("No such queue"))
    assert words(Completed("a\nb\nb\nYou have new mail in /x\n", "", 1)) == "a; b"
    assert words(Completed("", "", 3)) == "exit code 3 and no word"


def test_bkill() -> None:
    assert bkill_argv(["1", "2"]) == ["bkill", "1", "2"]
    assert bkill_argv(["1"], "SIGTERM") == ["bkill", "-s", "TERM", "1"]
    fine = Completed("Job <473713> is being terminated\nJob <11> is being signaled\n", "", 0)
    assert complaints(fine) == ((), False)
    assert complaints(Completed("Job <120> is being requeued \n", "", 0)) == ((), False)
    gone = said("Job <22>: Job has already finished\nJob <4242>: No matching job found\n")
    assert complaints(gone) == ((), True)
    assert complaints(said("Job <114>: User permission denied\n")) == (("Job <114>: User permission denied",), False)
    assert complaints(said("URG: Illegal signal value")) == (("URG: Illegal signal value",), False)
    assert complaints(said("")) == (("exit code 255 and no word",), False)


def test_hosts_with_their_slots() -> None:
    assert hosts_of("40*h1:40*h2") == (("h1", 40), ("h2", 40))
    assert hosts_of("h1:h1:h2") == (("h1", 2), ("h2", 1))
    assert hosts_of("<1*batch1> <42*h31n10>") == (("batch1", 1), ("h31n10", 42))
    assert hosts_of("   -   ") == ()
    assert short("ip-1-2.ec2.internal") == "ip-1-2"
    assert short("10.0.0.7") == "10.0.0.7"


def test_the_launch_node_does_not_compute() -> None:
    assert compute_hosts((("batch2", 1), ("h22n07", 42))) == ("h22n07",)
    assert compute_hosts((("login1", 1), ("batch1", 1), ("a", 1), ("b", 1))) == ("a", "b")
    assert compute_hosts((("lassen710", 1), ("lassen1", 40), ("lassen2", 40))) == ("lassen1", "lassen2")
    assert compute_hosts((("n1", 1), ("n2", 1))) == ("n1", "n2")
    assert compute_hosts((("n1", 1),)) == ("n1",)
    assert compute_hosts((("gpu1", 4), ("batch-gpu2", 4))) == ("gpu1", "batch-gpu2")
    assert compute_hosts((("batch01", 4), ("batch02", 4))) == ("batch01", "batch02")


def test_versions() -> None:
    version, cluster = parse_lsid(recording("lsid"))
    assert version == "IBM Spectrum LSF Community Edition 10.1.0.15"
    assert cluster == "test-cluster"
    assert parse_lsid("openlava 4.0 project\nMy cluster name is openlava\n") == ("openlava 4.0 project", "openlava")
    assert parse_lsid("") == ("", "")


def nothing(path: str) -> str:
    raise FileNotFoundError(path)


HOSTFILE = "login1\nbatch1\n" + "h1n1\n" * 20 + "h1n2\n" * 20


@pytest.mark.parametrize(
    "environ, found",
    [
        ({"LSB_DJOB_HOSTFILE": "/x", "LSB_MCPU_HOSTS": "a 4"}, (("h1n1", "h1n2"), True)),
        (
            {"LSB_DJOB_HOSTFILE": "/gone", "LSB_MCPU_HOSTS": "batch2 1 h22n07 42 h22n08 42"},
            (("h22n07", "h22n08"), True),
        ),
        ({"LSB_MCPU_HOSTS": "a 4 b", "LSB_HOSTS": "a a b b"}, (("a", "b"), False)),
        ({"LSB_HOSTS": "n1"}, (("n1",), False)),
    ],
)
def test_hosts_of_an_allocation(environ: Mapping[str, str], found: tuple[tuple[str, ...], bool]) -> None:
    read = {"/x": HOSTFILE}
    told = lsf_allocation(
        {"LSB_JOBID": "5", "LSB_JOBINDEX": "0", "LSB_QUEUE": "batch", **environ},
        lambda path: read[path] if path in read else nothing(path),
    )
    assert told == LsfAllocation("5", found[0], found[1], "batch")


def test_no_allocation_and_half_of_one() -> None:
    assert lsf_allocation({"PATH": "/bin"}, nothing) is None
    with pytest.raises(HalfAnAllocation, match=r"LSB_JOBID is 5, but LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS, .* missing"):
        lsf_allocation({"LSB_JOBID": "5"}, nothing)
    with pytest.raises(HalfAnAllocation, match="LSB_DJOB_HOSTFILE cannot be read"):
        lsf_allocation({"LSB_JOBID": "5", "LSB_DJOB_HOSTFILE": "/gone"}, nothing)
    with pytest.raises(HalfAnAllocation, match="LSB_MCPU_HOSTS is set, but LSB_JOBID is missing"):
        lsf_allocation({"LSB_MCPU_HOSTS": "a 4"}, nothing)
    array = lsf_allocation({"LSB_JOBID": "5", "LSB_JOBINDEX": "3", "LSB_HOSTS": "n1"}, nothing)
    assert array is not None
    assert array.id == "5[3]"


def test_where_this_process_is() -> None:
    assert here(("n1.x.y", "n2.x.y"), ("n2.other", "n1")) == "n2"
    assert here(("n1", "n2"), ("batch1", "")) == ""


def test_agents_are_started_by_blaunch_or_jsrun() -> None:
    assert blaunch_argv("n1", ["python", "-m", "x"]) == ["blaunch", "-z", "n1", "python", "-m", "x"]
    assert jsrun_argv(["x"], 6) == [
        "jsrun",
        "-n",
        "1",
        "-r",
        "1",
        "-a",
        "1",
        "-c",
        "ALL_CPUS",
        "-g",
        "6",
        "-b",
        "none",
        "x",
    ]
    assert jsrun_argv(["x"], None)[9:11] == ["-g", "ALL_GPUS"]


def test_all_signals_that_may_mean_an_end_are_understood() -> None:
    names = {each.name.removeprefix("SIG") for each in end_signals()}
    assert {"USR2", "INT", "TERM", "URG", "HUP", "XCPU", "TSTP"} <= names
    assert WARNING in names
    assert "CONT" not in names, "it also follows TERM, so that stopped processes can end"
