"""Every command: its errors, its exit code, and where it finds its daemon."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from hpcdl.cli.first_screen import FIELDS
from hpcdl.cli.output import width_of
from hpcdl.cli.root import COMMANDS, SECTIONS
from hpcdl.cli.submit import options
from hpcdl.cli.submit.command import submit
from hpcdl.client import path_with
from hpcdl.core.model.objectives import OBJECTIVES
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row

AWAY = ["ls", "show 1", "why 1", "nodes", "cancel 1", "suspend 1", "resume 1", "wait 1", "events", "config",
        "submit --no-spool -- true", "ls nodes", "daemon status", "logs 1", "logs -f 1"]  # fmt: skip


@pytest.mark.parametrize("line", AWAY)
def test_without_a_daemon_every_command_says_so_in_one_line(hpcdl: Run, line: str) -> None:
    done = hpcdl(*line.split())
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("hpcdl: ")
    assert done.err.count("\n") == 1
    assert "hpcdl daemon start" in done.err


@pytest.mark.parametrize(
    "line, message",
    [
        ("submit", "say what to run: hpcdl submit -- COMMAND, --file FILE or --like JOB"),
        ("submit --gpus 3:1 -- true", "the maximum 1 is below the minimum 3"),
        ("submit --gpus 0 -- true", "at least 1"),
        ("submit --gpus many -- true", "not a number or MIN:MAX"),
        ("submit --nodes 0 -- true", "--nodes"),
        ("submit --grace 0 -- true", "0 is not in the range 0<x<=86400"),
        ("submit --grace nan -- true", "nan is not a number"),
        ("submit --signal SIGFOO -- true", "--signal"),
        ("submit --progress-regex ( -- true", "--progress-regex"),
        ("submit --after 1,x -- true", "not a job's number"),
        ("submit --env 1A=3 -- true", "'1A' is no name of a variable: letters, digits and _, and no digit first"),
        ("submit --sweep lr= -- true", "'lr=' has no values: write NAME=VALUE,VALUE"),
        ("submit --sweep lr=1,2 --sweep lr=3 -- true", "the sweep lr is given twice: write all its values after one, "),
        ("submit --sweep 1r=1 -- true", "'1r' is no name of a sweep: a letter or _ first, then letters, digits"),
        ("submit --env NOT_SET_ANYWHERE -- true", "write NOT_SET_ANYWHERE=VALUE"),
        ("submit --env =x -- true", "has no name"),
        ("submit --json --quiet -- true", "exclude each other"),
        ("submit --name \x1b -- true", "printable"),
        ("submit --cores 3 -- true", "--cores"),
        ("ls --json --quiet", "exclude each other"),
        ("ls --al", "--al"),
        ("ls --state runing", "jobs have no state 'RUNING': did you mean RUNNING? (see"),
        ("cancel --state suspend", "jobs have no state 'SUSPEND': did you mean SUSPENDED or SUSPENDING? (see"),
        ("ls --state ,", "jobs have no state '': QUEUED, STARTING, "),
        ("submit --signal hpdcl -- true", "'--signal': 'hpdcl': did you mean hpcdl? (see"),
        ("submit --signal sigterm -- true", "'sigterm': did you mean SIGTERM? (see"),
        ("submit --rescale tochrun -- true", "'tochrun': did you mean torchrun? (see"),
        ("submit --progress keas -- true", "'keas': did you mean keras? (see"),
        ("submit --progress mine -- true", "'mine' is not one of 'tqdm', 'hf', "),
        ("submit --deadline urgnt -- true", "'urgnt' is no deadline: did you mean urgent? (see"),
        ("submit --as sbtach x", "'sbtach': did you mean sbatch? (see"),
        ("report --by jbo", "'jbo': did you mean job? (see"),
        ("page --readers ownr", "'ownr': did you mean owner? (see"),
        ("metrics --readers al", "'al': did you mean all? (see"),
        ("init pytroch", "'pytroch': did you mean pytorch? (see"),
        ("allocate --solver exat -", "'exat': did you mean exact? (see"),
        ("submit --gres gpu:1 -- true", "No such option '--gres': did you mean --gpus? (see"),
        ("submit --walltime 1h -- true", "No such option '--walltime': did you mean --time? (see"),
        ("submit --dependency 3 -- true", "No such option '--dependency': did you mean --after? (see"),
        ("submit --gpu 1 -- true", "did you mean --gpus? (see"),
        ("submit --partition x -- true", "No such option '--partition' (see"),
        ("logs --tail 2", "No such option '--tail': did you mean --lines? (see"),
        ("ls --watchh", "No such option '--watchh': did you mean --watch? (see"),
        ("simulate nosuch.yaml", "a workload stands behind --workload: hpcdl simulate --workload nosuch.yaml (see"),
        ("simulate papers --only marble,genei", "'--only': 'genei': did you mean genie? (see"),
        ("ls job", "'job' is nothing to list: did you mean hpcdl ls jobs? (see"),
        ("ls nodse", "'nodse' is nothing to list: did you mean hpcdl ls nodes? (see"),
        ("ls cpus", "'cpus' is nothing to list: jobs, nodes, gpus are; jobs called so: hpcdl ls --name cpus (see"),
        ("ls 7", "'7' is nothing to list: hpcdl show 7 shows a job (see"),
        ("ls 3-7,9", "'3-7,9' is nothing to list: hpcdl show 3-7,9 shows jobs (see"),
        ("ls --all nodes", "--all is for jobs"),
        ("lss", "lss"),
        ("sbumit -- true", "did you mean hpcdl submit?"),
        ("status", "did you mean hpcdl daemon status?"),
        ("nothing-like-it", "No such command 'nothing-like-it' (see"),
        ("squeue", "No such command 'squeue': did you mean hpcdl ls? (see hpcdl --help)"),
        ("renice 3 5", "No such command 'renice': did you mean hpcdl priority? (see hpcdl --help)"),
        ("modify 3", "did you mean hpcdl priority?"),
        ("prioriti 3 5", "did you mean hpcdl priority?"),
        ("help submit", "did you mean hpcdl --help?"),
        ("daemon strat", "No such command 'strat': did you mean start or status? (see hpcdl daemon --help)"),
        ("suspend --array", "Option '--array' requires an argument (see hpcdl suspend --help)"),
        ("config set policy x", "No such command 'set': there are objective, policy, show (see hpcdl config --help)"),
        ("ls --home /x", "--home stands before the command: hpcdl --home DIR ls, for example (see"),
        ("ls --foo", "No such option '--foo' (see"),
        ("submit --gpus 1-4 -- true", "'1-4' is not a number or MIN:MAX: write 1:4 (see"),
        ("submit --array 1-9%2 -- true", "--max-parallel 2 in place of %2 (see"),
        ("submit --notify me@example.org -- true", "'me@example.org' is an address: write mailto:me@example.org (see"),
        ("submit --name * -- true", "'*' means all jobs to other commands: give a name with a letter in it (see"),
        ("submit --name ?* -- true", "'?*' means all jobs to other commands"),
        ("submit --stall 10x -- true", "'10x': give seconds, 600 or 10m, or SECONDS:restart"),
        ("cancel 1 0", "'0' is not a job's number"),
        ("events 36", "'36': one job is named by --job: hpcdl events --job 36 (see"),
        ("timeline -o x.html train", "'train': one job is named by --job: hpcdl timeline --job train (see"),
        ("submit --like 5 --like 6", "a new job is like one job, and several are named"),
        ("events --job 999999999999999999999", "is not a job's number"),
        ("daemon start --node a/b", "'a/b' is not a node's name"),
        ("config --json policy marble", "write --json after policy"),
        ("show", "say which jobs: hpcdl show 3-7 12, a NAME, --array ID, --tag TAG, --state STATE or --all"),
        ("show 0", "0"),
        ("wait", "say which jobs: hpcdl wait 3-7 12, a NAME, --array ID, --tag TAG, --state STATE or --all"),
        ("daemon start --emulate-gpus x", "'x' is not a whole number"),
        ("wait 1 --timeout x", "'x' is not a number of seconds, nor a time like 90s, 5m or 1h30m"),
        ("submit --array 1-1000000000 -- true", "'1-1000000000': an index has 9 digits at most"),
        ("wait 1 --timeout -3", "--timeout"),
        ("wait 1 --timeout nan", "--timeout"),
        ("logs 1 -f --json", "--follow"),
        ("events -f --json", "--follow"),
        ("timeline", "--output"),
        ("config policy", "NAME"),
        ("daemon start --emulate-gpus 0", "--emulate-gpus"),
        ("demo --set 4", "--set"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(fake: FakeDaemon, hpcdl: Run, line: str, message: str) -> None:
    done = hpcdl(*line.split())
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.err.startswith("hpcdl: ")
    assert "--help)" in done.err
    assert done.out == ""
    assert fake.requests == []


def test_help_lists_every_command_with_the_line_of_its_own_help(hpcdl: Run) -> None:
    shown = hpcdl("--help").out
    for name, (_, _, line) in COMMANDS.items():
        assert f"  {name} " in shown
        assert line in shown
        assert hpcdl(name, "--help").out.startswith(f"Usage: hpcdl {name}")


def test_no_command_says_what_to_do_first_where_nothing_is_there(hpcdl: Run, home: Path) -> None:
    done = hpcdl()
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("no daemon runs for ")
    assert [line.split("   ")[0].strip() for line in lines[2:5]] == [
        "hpcdl doctor", "hpcdl daemon start", "hpcdl submit -- python train.py",
    ]  # fmt: skip
    home.mkdir(mode=0o700)
    (home / "ledger.sqlite").touch()
    assert hpcdl().out.splitlines()[2].startswith("  hpcdl daemon start ")


def test_no_command_says_what_runs_and_waits_and_what_next(jobs: FakeDaemon, hpcdl: Run) -> None:
    daemon = {"host": "h", "since_s": 61.0}
    states = {"RUNNING": 1, "QUEUED": 5, "FAILED": 1, "DONE": 1}
    waiting = [row(5, name="y" * 100), jobs.world.jobs[2] | {"queue_position": 1}]
    answers: dict[str, dict[str, Any]] = {
        "/v1/status": {"daemon": daemon, "jobs": states},
        path_with("/v1/jobs", state="STARTING,RUNNING,RESCALING,SUSPENDING", last=3, fields=FIELDS): {
            "jobs": [jobs.world.jobs[1], row(9, state="STARTING", gpus=1, eta_s=None)]
        },
        path_with("/v1/jobs", state="QUEUED,SUSPENDED", last=200, fields=FIELDS): {"jobs": waiting},
        path_with("/v1/jobs", state="FAILED", last=1, fields=FIELDS): {"jobs": [row(4, state="FAILED")]},
    }
    jobs.answers = {path: (200, json.dumps({"schema": 1, **value}).encode()) for path, value in answers.items()}
    for _ in range(2):
        done = hpcdl()
        assert (done.code, done.err) == (0, "")
        lines = done.out.splitlines()
        assert max(map(width_of, lines)) <= 80
        assert "      1 resnet: RUNNING on 4 GPUs, 13 % done, 3m20s left" in lines
        assert lines[0] == "1 job running, 5 waiting (daemon on h, up 1 min 01 s)"
        assert [line for line in lines if " 9 " in line and "left" not in line and "STARTING" in line]
        assert "        and 3 more waiting" in lines
        assert [line.split("   ")[0].strip() for line in lines[-5:-2]] == ["hpcdl top", "hpcdl why 2", "hpcdl logs 4"]
    jobs.answers["/v1/status"] = (500, b'{"schema":1,"error":"disk full","code":"internal"}')
    assert hpcdl().code == 0


def test_a_bug_is_one_line_too(fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers["/v1/jobs?fields=id"] = (200, b'{"schema":1}')
    done = hpcdl("ls", "--quiet")
    assert (done.code, done.out) == (1, "")
    assert done.err == "hpcdl: unexpected KeyError: 'jobs' (HPCDL_DEBUG=1 shows where)\n"
    monkeypatch.setenv("HPCDL_DEBUG", "1")
    with pytest.raises(KeyError):
        hpcdl("ls", "--quiet")


def test_home_comes_from_option_then_environment_then_default(
    fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert str(tmp_path / "x") in hpcdl("--home", tmp_path / "x", "ls").err
    assert hpcdl("ls").code == 0
    monkeypatch.setenv("HPCDL_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert str(tmp_path / "me" / ".hpcdl") in hpcdl("ls").err


def test_the_agent_takes_this_processs_place(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, argv: started.append(argv))
    said = hpcdl("agent", "--node", "n7", "--emulate-gpus", 2).err
    assert said.startswith(f"hpcdl: agent of n7 for {home}, where no daemon was started yet")
    hpcdl("agent", "--home", home / "x")
    assert [argv[1:8] for argv in started] == [
        ["-P", "-m", "hpcdl.agent", "--home", str(home), "--node", "n7"],
        ["-P", "-m", "hpcdl.agent", "--home", str(home / "x"), "--node", socket.gethostname().split(".")[0]],
    ]
    assert started[0][8:] == ["--emulate-gpus", "2"]


def test_demo_passes_its_options_on(hpcdl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def run(*given: object) -> int:
        asked.append(given)
        return 1

    monkeypatch.setattr("hpcdl.demo.run.main", run)
    assert hpcdl("demo").code == 1
    hpcdl("demo", "--set", 1, "--scale", 20, "--report", tmp_path)
    assert asked == [(3, None, None), (1, 20.0, tmp_path)]


def test_a_home_may_be_a_link(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(fake.home)
    fake.world.jobs[1] = row(1)
    assert hpcdl("--home", link, "ls", "--quiet").out == "1\n"


def test_help_lists_every_command_once() -> None:
    listed = [name for commands in SECTIONS.values() for name in commands]
    assert sorted(listed) == sorted(COMMANDS)


def test_a_home_that_is_a_file_is_told_as_that(hpcdl: Run, tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.touch()
    for argv in (("ls",), ("submit", "--", "true"), ("daemon", "start"), ("ledger", "rebuild"), ("config", "show")):
        done = hpcdl("--home", home, *argv)
        assert (done.code, done.out) == (1, "")
        assert done.err == f"hpcdl: {home} is not a folder: name the daemon's folder with --home or HPCDL_HOME\n"
    assert f"FAIL  home          {home} is not a folder" in hpcdl("--home", home, "doctor").out


def test_seconds_may_be_written_with_units(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", "--grace", "1h30m", "--stall", "10m:restart", "--", "true").code == 0
    assert hpcdl("submit", "--grace", "1e3", "--stall", "2.5", "--", "true").code == 0
    specs = [fake.world.jobs[number]["spec"] for number in (1, 2)]
    assert [(spec["grace_s"], spec["stall_s"]) for spec in specs] == [(5400.0, 600.0), (1000.0, 2.5)]


def test_the_help_of_submit_has_each_option_once_under_a_title(hpcdl: Run) -> None:
    told = hpcdl("submit", "--help").out
    names = [name for each in submit.params if isinstance(each, click.Option) for name in each.opts if name[:2] == "--"]
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", told, re.MULTILINE)
    assert sorted(listed) == sorted([*names, "--help"])
    assert [title for title in (*options.SECTIONS, "This submit") if f"\n{title}:\n" not in told] == []
    assert {name for names in options.SECTIONS.values() for name in names.split()} <= {
        each.name for each in submit.params
    }
    assert "Usage: hpcdl submit [OPTIONS] [--] COMMAND..." in told


@pytest.mark.parametrize("command", ["config objective", "simulate", "replay"])
def test_the_help_names_every_objective(hpcdl: Run, command: str) -> None:
    told = " ".join(hpcdl(*command.split(), "--help").out.split())
    assert ", ".join(OBJECTIVES) in told


def test_why_is_broken_between_words_on_a_terminal(
    fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "waiting for 1 GPU: all 4 busy; " * 4 + "of train.py"
    fake.world.jobs = {1: row(1, reason=reason)}
    whole = hpcdl("why", 1).out
    assert whole == f"job 1  QUEUED: {reason}\n   job 1 holds n1:0\n", "in a pipe a line each"
    monkeypatch.setattr("hpcdl.cli.show.stdout_takes", lambda: (60, False))
    lines = hpcdl("why", 1).out.splitlines()
    assert max(map(width_of, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
    assert lines[1].startswith("     ")
