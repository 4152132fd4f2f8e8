"""Every command: its three outputs, its errors, its exit code."""

import json
import os
import socket
import time
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.cli.root import COMMANDS
from hpcdl.daemon.launch import LaunchError
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row

AWAY = ["ls", "show 1", "why 1", "nodes", "cancel 1", "suspend 1", "resume 1", "wait 1", "events", "config",
        "submit -- true", "daemon status", "logs 1", "logs -f 1"]  # fmt: skip


@pytest.fixture
def jobs(fake: FakeDaemon) -> FakeDaemon:
    fake.world.jobs = {
        1: row(1, name="resnet", state="RUNNING", gpus=4, gpus_max=6, placement={"n1": [0, 1], "n2": [0, 1]}, nodes=2,
               step=120, total=900, eta_s=200.0, reason="primary"),
        2: row(2, name="vgg\x1b[31m\nx", gpus_max=None),
        3: row(3, state="DONE", exit_code=0),
    }  # fmt: skip
    return fake


@pytest.mark.parametrize("line", AWAY)
def test_without_a_daemon_every_command_says_so_in_one_line(hpcdl: Run, line: str) -> None:
    begun = time.monotonic()
    done = hpcdl(*line.split())
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("hpcdl: ")
    assert done.err.count("\n") == 1
    assert "hpcdl daemon start" in done.err
    assert time.monotonic() - begun < 5


def test_submit(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", "--name", "a", "--", "true").out == "job 1 queued: a\n"
    value = hpcdl(
        "submit", "--json", "--gpus", "1:3", "--steps", 100, "--", "python", "dir/train.py", "--lr", "3"
    ).value
    assert [(job["id"], job["state"], job["name"]) for job in value["jobs"]] == [(2, "QUEUED", "train.py")]
    assert hpcdl("submit", "--quiet", "true").out == "3\n"
    assert (hpcdl("submit", "--request-id", "r", "true").out, hpcdl("submit", "--request-id", "r", "true").out) == (
        "job 4 queued: true\n",
        "job 4 queued: true\n",
    )


def test_submit_sends_everything(fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_KEY", "s3")
    monkeypatch.setenv("CONDA_TOKEN", "s3")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "s3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    options = (
        "--gpus 2: --nodes 3 --profile p --steps 9 --after 1,2 --after 3 --env A=b=c --env WANDB_KEY --retries 4 "
        "--checkpoint-dir ck --grace 7.5 --signal hf --progress-regex step=(\\d+)"
    )
    assert hpcdl("submit", *options.split(), "--", "python", "-m", "hpcdl.trainer.gate", "x.py").code == 0
    spec = dict(fake.requests[-1][2]["jobs"][0])
    env = dict(spec.pop("env"))
    assert (env["A"], env["WANDB_KEY"], env["OMP_NUM_THREADS"], env["PATH"]) == ("b=c", "s3", "3", os.environ["PATH"])
    assert env["DATA"] == "/data"
    assert not env.keys() & {"CONDA_TOKEN", "AWS_ACCESS_KEY_ID", "SLURM_JOB_ID", "HPCDL_HOME", "PWD"}
    assert spec.pop("user")
    assert spec == {
        "command": ["python", "-m", "hpcdl.trainer.gate", "x.py"], "name": "x.py", "cwd": str(tmp_path),
        "gpus_min": 2, "gpus_max": None, "nodes": 3, "profile": "p", "steps": 9, "after": [1, 2, 3], "retries": 4,
        "checkpoint_dir": str(tmp_path / "ck"), "grace_s": 7.5, "signal": "hf", "progress_regex": "step=(\\d+)",
        "gate": True, "gpus_counts": [], "nodes_max": None, "deadline": None, "ect": None, "model": None,
        "accuracy_target": None,
    }  # fmt: skip


def test_submit_says_when_and_on_which_numbers(fake: FakeDaemon, hpcdl: Run) -> None:
    options = "--gpus 1,4,2 --nodes 1:3 --model resnet --accuracy 0.7"
    assert hpcdl("submit", *options.split(), "--deadline", "2030-01-02T03:04:05+00:00", "x.py").code == 0
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["gpus_counts"], spec["gpus_min"], spec["gpus_max"]) == ([1, 2, 4], 1, 4)
    assert (spec["nodes"], spec["nodes_max"]) == (1, 3)
    assert (spec["model"], spec["accuracy_target"], spec["deadline"]) == ("resnet", 0.7, 1893553445.0)
    before = time.time()
    assert hpcdl("submit", "--deadline", "+1h30m", "x.py").code == 0
    assert 5400 <= fake.requests[-1][2]["jobs"][0]["deadline"] - before < 5460
    assert hpcdl("submit", "--deadline", "prior", "--profile", "p", "--steps", 5, "x.py").code == 0
    assert fake.requests[-1][2]["jobs"][0]["ect"] == "prior"
    for option, value in (("--deadline", "soon"), ("--gpus", "1,1"), ("--gpus", "0,2"), ("--nodes", "2:1")):
        done = hpcdl("submit", option, value, "x.py")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done


@pytest.mark.parametrize(
    "options, gpus", [("", (1, 1)), ("--profile p", (1, None)), ("--profile p --gpus 2", (2, 2)), ("-g 1:3", (1, 3))]
)
def test_default_gpus(fake: FakeDaemon, hpcdl: Run, options: str, gpus: tuple[int, int | None]) -> None:
    hpcdl("submit", *options.split(), "true")
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["gpus_min"], spec["gpus_max"]) == gpus


def test_a_command_that_is_not_utf8_arrives(fake: FakeDaemon, hpcdl: Run) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert hpcdl("submit", "--", name).out == "job 1 queued: caf?\n"
    assert os.fsencode(fake.requests[-1][2]["jobs"][0]["command"][0]) == b"caf\xe9"


def test_a_folder_that_is_not_here_is_told(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("submit", "--cwd", "/no/such", "true")
    assert (done.code, done.out) == (0, "job 1 queued: true\n")
    assert done.err == "hpcdl: /no/such is not a folder on this machine; the job needs it where it runs\n"


@pytest.mark.parametrize(
    "line, message",
    [
        ("submit", "Missing argument"),
        ("submit --gpus 3:1 -- true", "the maximum 1 is below the minimum 3"),
        ("submit --gpus 0 -- true", "at least 1"),
        ("submit --gpus many -- true", "not a number or MIN:MAX"),
        ("submit --nodes 0 -- true", "--nodes"),
        ("submit --grace 0 -- true", "grace must be"),
        ("submit --grace nan -- true", "grace must be"),
        ("submit --signal SIGFOO -- true", "--signal"),
        ("submit --progress-regex ( -- true", "--progress-regex"),
        ("submit --after 1,x -- true", "not a job id"),
        ("submit --env NOT_SET_ANYWHERE -- true", "write NOT_SET_ANYWHERE=VALUE"),
        ("submit --env =x -- true", "has no name"),
        ("submit --json --quiet -- true", "exclude each other"),
        ("submit --name \x1b -- true", "printable"),
        ("submit --cpus 3 -- true", "--cpus"),
        ("ls --json --quiet", "exclude each other"),
        ("ls --al", "--al"),
        ("lss", "lss"),
        ("sbumit -- true", "did you mean hpcdl submit?"),
        ("status", "did you mean hpcdl daemon status?"),
        ("nothing-like-it", "No such command 'nothing-like-it' (see"),
        ("why abc", "'abc' is not a job's number: hpcdl ls --all lists them"),
        ("cancel 1 0", "'0' is not a job's number"),
        ("events --job 999999999999999999999", "is not a job's number"),
        ("daemon start --node a/b", "'a/b' is not a node's name"),
        ("config --json policy marble", "write --json after policy"),
        ("show", "JOB"),
        ("show x", "x"),
        ("show 0", "0"),
        ("wait", "JOB"),
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


def test_ls(jobs: FakeDaemon, hpcdl: Run) -> None:
    lines = hpcdl("ls").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATE", "GPUS", "NODES", "STEP", "ETA", "REASON"]
    assert lines[1:] == [
        " 1  resnet          RUNNING  4/2x1:6  n[1-2]  120/900  3 min 20 s  primary",
        " 2  vgg\\x1b[31m\\nx  QUEUED      0/1:  -             -           -  needs 1 GPU, 0 free",
    ]
    assert [job["id"] for job in hpcdl("ls", "--json").value["jobs"]] == [1, 2]
    assert [job["id"] for job in hpcdl("ls", "--all", "--json").value["jobs"]] == [1, 2, 3]
    assert hpcdl("ls", "-aq").out == "1\n2\n3\n"


def test_ls_of_nothing(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("ls")
    assert (done.code, done.out, done.err) == (0, "", "hpcdl: no jobs (finished ones: hpcdl ls --all)\n")
    assert hpcdl("ls", "--json").out == '{"schema": 1, "jobs": []}\n'
    assert hpcdl("ls", "--quiet").out == ""


def test_show(jobs: FakeDaemon, hpcdl: Run) -> None:
    logs = jobs.home / "logs" / "1"
    logs.mkdir(parents=True)
    (logs / "1.n1.log").write_text("x")
    shown = hpcdl("show", 1).out
    for text in ("resnet", "RUNNING", "n1:0,1 n2:0,1", "120/900", "3 min 20 s", "INCARNATION", str(logs / "1.n1.log")):
        assert text in shown
    assert hpcdl("show", 1, "--json").value["job"]["id"] == 1
    assert hpcdl("show", 1, "--quiet").out == "1\n"
    done = hpcdl("show", 9)
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: there is no job 9: hpcdl ls --all lists them\n")


def test_why(jobs: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("why", 2).out.splitlines() == [
        "job 2  QUEUED: needs 1 GPU, 0 free",
        "   job 1 holds n1:0",
    ]
    assert hpcdl("why", 2, "--json").value["details"] == ["job 1 holds n1:0"]
    assert hpcdl("why", 2, "--quiet").out == "2\n"


def test_nodes(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("nodes").out.splitlines() == [
        "NODE  AGENT      GPU  STATE  JOB  NAME  DETAIL",
        "n1    connected    0  ok     1.2  V100",
        "n1    connected    1  lost     -  V100  Xid 79",
    ]
    assert hpcdl("nodes", "--json").value["nodes"][0]["gpus"][1]["state"] == "lost"
    assert hpcdl("nodes", "--quiet").out == "n1\n"
    assert hpcdl("nodes").err == ""
    away = {"name": "n2", "connected": False, "lost": False, "reason": "the connection ended", "gpus": []}
    fake.answers["/v1/nodes"] = (200, json.dumps({"schema": 1, "nodes": [away]}).encode())
    assert hpcdl("nodes").err.startswith("hpcdl: no agent is connected on n2; trainers there go on for a while")


@pytest.mark.parametrize("verb, state", [("cancel", "CANCELLED"), ("suspend", "SUSPENDED"), ("resume", "QUEUED")])
def test_verbs(jobs: FakeDaemon, hpcdl: Run, verb: str, state: str) -> None:
    said = {"resume": "may run again (QUEUED now)"}.get(verb, state)
    assert hpcdl(verb, 1, 1).out == f"job 1 {said}: resnet\n"
    assert [job["state"] for job in hpcdl(verb, "--json", 1, 2).value["jobs"]] == [state, state]
    assert hpcdl(verb, "--quiet", 2, 1).out == "2\n1\n"


def test_a_verb_does_what_it_can_and_tells_the_rest(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("cancel", "--json", 9, 1)
    assert done.code == 1
    assert done.err == "hpcdl: there is no job 9: hpcdl ls --all lists them\n"
    assert [job["id"] for job in done.value["jobs"]] == [1]
    assert [(each["job"], each["code"]) for each in done.value["errors"]] == [(9, "unknown-job")]


@pytest.mark.parametrize(
    "changes, code, line",
    [
        ({"state": "DONE", "exit_code": 0}, 0, "job 5 DONE: job5"),
        (
            {"state": "FAILED", "exit_code": 3, "detail": "user error"},
            3,
            "job 5 FAILED (exit code 3): job5: user error",
        ),
        ({"state": "FAILED", "exit_code": None}, 1, "job 5 FAILED: job5"),
        ({"state": "FAILED", "exit_code": 0}, 1, "job 5 FAILED (exit code 0): job5"),
        ({"state": "CANCELLED"}, 130, "job 5 CANCELLED: job5"),
    ],
)
def test_wait_exits_with_the_jobs_code(
    fake: FakeDaemon, hpcdl: Run, changes: dict[str, object], code: int, line: str
) -> None:
    fake.world.jobs[5] = row(5, **changes)
    done = hpcdl("wait", 5)
    assert (done.code, done.out) == (code, f"{line}\n")
    assert hpcdl("wait", "--json", 5).value["done"] is True
    done = hpcdl("wait", "--quiet", 5)
    assert (done.code, done.out) == (code, "5\n")


def test_wait_for_several_gives_the_first_that_is_not_zero(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {
        1: row(1, state="DONE"), 2: row(2, state="FAILED", exit_code=7), 3: row(3, state="CANCELLED")
    }  # fmt: skip
    assert hpcdl("wait", 1, 2, 3).code == 7
    assert hpcdl("wait", 3, 2, 1).code == 130
    assert hpcdl("wait", 1, 9).code == 1


def test_wait_times_out(jobs: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("wait", 1, "--timeout", 0.2)
    assert (done.code, done.out) == (124, "job 1 RUNNING: resnet\n")
    assert done.err == "hpcdl: not finished after 0.2 s: hpcdl why 1 says what is missing\n"
    done = hpcdl("wait", 1, "--timeout", 0, "--json")
    assert (done.code, done.value["done"]) == (124, False)


def test_events(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.events = [
        {"seq": n, "at": 1000.0 + n, "stream": f"job/{n % 2}", "version": 1, "kind": "Ticked", "body": {"n": n}}
        for n in range(1, 2501)
    ]
    assert [event["seq"] for event in hpcdl("events", "--json").value["events"]] == list(range(1, 2501))
    assert hpcdl("events", "--quiet", "--after", 2498).out == "2499\n2500\n"
    assert hpcdl("events", "--quiet", "--limit", 2, "--job", 1).out == "1\n3\n"
    assert len(hpcdl("events", "--quiet", "--limit", 1200).out.split()) == 1200
    lines = hpcdl("events", "--limit", 1).out.splitlines()
    assert lines[0].split() == ["SEQ", "AT", "STREAM", "KIND", "BODY"]
    assert lines[1].split()[-2:] == ["Ticked", "n=1"]
    assert hpcdl("events", "--follow", "--limit", 2, "--quiet", "--after", 7).out == "8\n9\n"
    assert hpcdl("events", "--after", 2500, "--json").value == {"schema": 1, "events": [], "last": 2500}
    done = hpcdl("events", "--after", 2500)
    assert (done.code, done.out, done.err) == (0, "", "hpcdl: no events after 2500\n")
    assert hpcdl("events", "--job", 9).err == "hpcdl: no events of job 9: hpcdl ls --all lists the jobs\n"


def test_config(fake: FakeDaemon, hpcdl: Run) -> None:
    shown = hpcdl("config").out
    assert shown.splitlines() == [
        "policy     marble  (of marble, fifo-exclusive)",
        "objective  makespan  (of makespan)",
    ]
    assert hpcdl("config", "show").out == shown
    assert hpcdl("config", "--json").value == hpcdl("config", "show", "--json").value
    assert hpcdl("config", "--quiet").out == "marble\nmakespan\n"
    assert hpcdl("config", "policy", "fifo-exclusive", "--json").value["config"]["policy"] == "fifo-exclusive"
    assert hpcdl("config", "objective", "makespan", "--quiet").out == "fifo-exclusive\nmakespan\n"
    done = hpcdl("config", "policy", "nope")
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: no policy nope: one of marble\n")


def test_daemon_status(fake: FakeDaemon, hpcdl: Run) -> None:
    shown = hpcdl("daemon", "status").out
    for text in ("pid 4711 on h", "fence 2", "1 min 01 s", "marble", "1 RUNNING", "TRAINER", "AGENT"):
        assert text in shown
    value = hpcdl("daemon", "status", "--json").value
    assert (value["daemon"]["pid"], value["agents"][0]["node"], value["trainers"][0]["job"]) == (4711, "n1", 1)
    assert hpcdl("daemon", "status", "--quiet").out == "4711\n"


def test_daemon_status_without_a_daemon_is_json_and_exit_1(hpcdl: Run) -> None:
    done = hpcdl("daemon", "status", "--json")
    assert done.code == 1
    assert done.value["daemon"] is None
    assert done.value["agents"] == done.value["trainers"] == []


def test_logs(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    monkeypatch.setenv("HPCDL_HOME", str(fake.home))
    folder = fake.home / "logs" / "1"
    folder.mkdir(parents=True)
    fake.world.jobs[1] = row(1)
    (folder / "10.n1.log").write_bytes(b"ten\n")
    (folder / "2.n1.log").write_bytes(b"two caf\xe9")
    (folder / "2.n2.x.log").write_bytes(b"other\n")
    (folder / "notes.txt").write_bytes(b"no log")
    assert main(["logs", "1"]) == 0
    assert capfdbinary.readouterr().out == (
        b"==> incarnation 2 on n1 <==\ntwo caf\xe9\n==> incarnation 2 on n2.x <==\nother\n"
        b"==> incarnation 10 on n1 <==\nten\n"
    )
    assert main(["logs", "1", "--incarnation", "2", "--node", "n1"]) == 0
    assert capfdbinary.readouterr().out == b"two caf\xe9"
    assert main(["logs", "1", "--json"]) == 0
    logs = json.loads(capfdbinary.readouterr().out)["logs"]
    assert [(each["incarnation"], each["node"], each["text"]) for each in logs] == [
        (2, "n1", "two caf\\xe9"), (2, "n2.x", "other\n"), (10, "n1", "ten\n")
    ]  # fmt: skip
    assert main(["logs", "1", "--quiet", "--node", "n2.x"]) == 0
    assert capfdbinary.readouterr().out == os.fsencode(folder / "2.n2.x.log") + b"\n"
    assert fake.requests == []  # the files are enough, with or without a daemon


def test_logs_of_a_job_without_any(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs[1] = row(1)
    done = hpcdl("logs", 1)
    assert (done.code, done.out) == (0, "")
    assert done.err == "hpcdl: job 1 is QUEUED and has printed nothing: hpcdl why 1 says why\n"
    done = hpcdl("logs", 9)
    assert (done.code, done.err) == (1, "hpcdl: there is no job 9: hpcdl ls --all lists them\n")
    assert hpcdl("logs", "-f", 9).code == 1


def test_help_lists_every_command_with_the_line_of_its_own_help(hpcdl: Run) -> None:
    shown = hpcdl("--help").out
    for name, (_, _, line) in COMMANDS.items():
        assert f"  {name} " in shown
        assert line in shown
        assert hpcdl(name, "--help").out.startswith(f"Usage: hpcdl {name}")


def test_no_command_is_help_and_exit_2(hpcdl: Run) -> None:
    done = hpcdl()
    assert done.code == 2
    assert "Commands:" in done.err


def test_a_bug_is_one_line_too(fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers["/v1/jobs"] = (200, b'{"schema":1}')
    done = hpcdl("ls")
    assert (done.code, done.out) == (1, "")
    assert done.err == "hpcdl: unexpected KeyError: 'jobs' (HPCDL_DEBUG=1 shows where)\n"
    monkeypatch.setenv("HPCDL_DEBUG", "1")
    with pytest.raises(KeyError):
        hpcdl("ls")


def test_home_comes_from_option_then_environment_then_default(
    fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert str(tmp_path / "x") in hpcdl("--home", tmp_path / "x", "ls").err
    assert hpcdl("ls").code == 0
    monkeypatch.setenv("HPCDL_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert str(tmp_path / "me" / ".hpcdl") in hpcdl("ls").err


def test_timeline(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    gpus = [{"index": n, "uuid": f"GPU-{n}"} for n in range(2)]
    spec = {"command": ["x"], "name": "<resnet>", "env": ["PATH"]}
    bodies = [
        (
            "node/n1",
            "NodeJoined",
            {"node": "n1", "gpus": gpus, "cpus": 1, "memory_mib": 1, "agent_pid": 1, "boot_id": "b"},
        ),
        ("job/1", "JobSubmitted", {"job": 1, "spec": spec, "request_id": "r"}),
        ("job/2", "JobSubmitted", {"job": 2, "spec": {**spec, "name": "other"}, "request_id": "s"}),
    ]
    fake.world.events = [
        {"seq": n, "at": 1000.0 + n, "stream": stream, "version": 1, "kind": kind, "body": body}
        for n, (stream, kind, body) in enumerate(bodies, 1)
    ]
    target = tmp_path / "t.html"
    done = hpcdl("timeline", "-o", target)
    assert (done.code, done.out, done.err) == (0, f"wrote {target}\n", "")
    page = target.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "&lt;resnet&gt;" in page
    assert "other" in page
    assert hpcdl("timeline", "-o", target, "--job", 1, "--json").value["events"] == 2
    assert "other" not in target.read_text()
    assert hpcdl("timeline", "-o", target, "--quiet").out == f"{target}\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["t.html"]
    done = hpcdl("timeline", "-o", target, "--job", 9)
    assert (done.code, done.err) == (1, "hpcdl: there is no job 9: hpcdl ls --all lists them\n")
    done = hpcdl("timeline", "-o", tmp_path / "no" / "t.html")
    assert done.code == 1
    assert "No such file or directory" in done.err


def test_a_verb_that_takes_time_says_so(jobs: FakeDaemon, hpcdl: Run) -> None:
    still = {"schema": 1, "jobs": [jobs.world.jobs[1]]}
    for verb in ("suspend", "cancel"):
        jobs.answers[f"/v1/jobs/1/{verb}"] = (200, json.dumps(still).encode())
    assert hpcdl("suspend", 1).out == "job 1 is being suspended (RUNNING now): resnet\n"
    assert hpcdl("cancel", 1).out == "job 1 is being cancelled (RUNNING now): resnet\n"


def test_daemon_start_and_stop(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def start(*given: object) -> dict[str, object]:
        asked.append(given)
        return {"exit_code": 3} if given[-1] else {"pid": 12, "home": str(home), "nodes": ["n1"], "fence": 1}

    def stop(*given: object) -> dict[str, object]:
        asked.append(given)
        return {"pid": 12, "stopped": True, "left": left}

    left: list[str] = []
    monkeypatch.setattr("hpcdl.daemon.launch.start", start)
    monkeypatch.setattr("hpcdl.daemon.launch.stop", stop)
    assert hpcdl("daemon", "start", "--emulate-gpus", 6, "--node", "n1").out == f"daemon (pid 12) started on {home}\n"
    assert hpcdl("daemon", "start", "--json").value["daemon"]["nodes"] == ["n1"]
    assert hpcdl("daemon", "start", "--quiet").out == "12\n"
    assert hpcdl("daemon", "start", "--foreground").code == 3
    assert hpcdl("daemon", "stop").out == "daemon (pid 12) stopped\n"
    assert hpcdl("daemon", "stop", "--now", "--json").value["daemon"] == {"pid": 12, "stopped": True, "left": []}
    assert asked == [
        (home, 6, "n1", False), (home, None, None, False), (home, None, None, False), (home, None, None, True),
        (home, False), (home, True),
    ]  # fmt: skip
    left += ["n1", "n2"]
    done = hpcdl("daemon", "stop")
    assert done.code == 0
    assert done.err.startswith("hpcdl: the agents of n[1-2] were away: trainers there checkpoint and end by themselves")


def test_a_start_without_gpus_names_the_next_step(
    fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdl.daemon.launch.start", lambda *given: {"pid": 12, "nodes": ["n1"], "fence": 1})
    assert hpcdl("daemon", "start").err == ""
    here = {"name": "vm", "connected": True, "lost": False, "gpus": []}
    away = {"name": "n1", "connected": False, "lost": False, "gpus": [{"index": 0}]}
    for nodes, known in (([here], ""), ([here, away], " (the node known here is n1: --node n1)")):
        fake.answers["/v1/nodes"] = (200, json.dumps({"schema": 1, "nodes": nodes}).encode())
        done = hpcdl("daemon", "start", "--json")
        assert done.value["daemon"]["pid"] == 12
        assert done.err.startswith(
            f"hpcdl: no GPU was found on vm{known}: daemon stop, then daemon start --emulate-gpus N"
        )


def test_a_daemon_that_does_not_start_is_one_line(hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*given: object) -> None:
        raise LaunchError("pid 7 on h holds it: hpcdl daemon stop")

    monkeypatch.setattr("hpcdl.daemon.launch.start", start)
    done = hpcdl("daemon", "start")
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: pid 7 on h holds it: hpcdl daemon stop\n")


def test_the_agent_takes_this_processs_place(home: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, argv: started.append(argv))
    said = hpcdl("agent", "--node", "n7", "--emulate-gpus", 2).err
    assert said.startswith(f"hpcdl: agent of n7 for {home}, where no daemon was started yet")
    hpcdl("agent", "--home", home / "x")
    assert [argv[1:7] for argv in started] == [
        ["-m", "hpcdl.agent", "--home", str(home), "--node", "n7"],
        ["-m", "hpcdl.agent", "--home", str(home / "x"), "--node", socket.gethostname().split(".")[0]],
    ]
    assert started[0][7:] == ["--emulate-gpus", "2"]


def test_demo_passes_its_options_on(hpcdl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def run(*given: object) -> int:
        asked.append(given)
        return 1

    monkeypatch.setattr("hpcdl.demo.run.main", run)
    assert hpcdl("demo").code == 1
    hpcdl("demo", "--set", 1, "--scale", 20, "--report", tmp_path)
    assert asked == [(3, None, None), (1, 20.0, tmp_path)]


def test_a_step_is_shown_only_where_one_was_reported(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {1: row(1, total=100), 2: row(2, step=0, total=100), 3: row(3, step=7)}
    assert [line.split()[5] for line in hpcdl("ls").out.splitlines()[1:]] == ["-", "0/100", "7"]


def test_show_tells_the_last_ending_from_the_end(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {
        1: row(1, state="RUNNING", cause="suspended", detail="saved at step 4", exit_code=0),
        2: row(2, state="FAILED", cause="user error", detail="exit code 3", exit_code=3, finished_at=9.0),
    }
    running, failed = hpcdl("show", 1).out, hpcdl("show", 2).out
    assert "last ended by  suspended, saved at step 4" in running
    assert "exit code" not in running
    assert "ended by   user error, exit code 3" in failed
    assert "last ended by" not in failed
    assert "1 GPU, grace" in running


def test_a_suspend_that_loses_work_is_told(fake: FakeDaemon, hpcdl: Run) -> None:
    told = {"state": "RUNNING", "gpus": 1}
    fake.world.jobs = {
        1: row(1, **told, can_suspend=False),
        2: row(2, **told, can_suspend=True),
        3: row(3, **told, can_suspend=False, saved_step=4),
        4: row(4, can_suspend=False),
    }
    done = hpcdl("suspend", 1, 2, 3, 4)
    assert done.code == 0
    assert done.err.count("\n") == 1
    assert "job 1 has shown no way to checkpoint" in done.err
    assert "starts over" in done.err
    assert hpcdl("cancel", 1).err == ""


def test_a_home_may_be_a_link(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(fake.home)
    fake.world.jobs[1] = row(1)
    assert hpcdl("--home", link, "ls", "--quiet").out == "1\n"


def test_a_folder_that_cannot_be_a_home_is_told_in_words(hpcdl: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = hpcdl("--home", tmp_path / "file", "daemon", "start")
    assert (done.code, done.out) == (1, "")
    assert "is not a folder" in done.err
    done = hpcdl("--home", tmp_path / ("n" * 300), "daemon", "start")
    assert done.code == 1
    assert "File name too long: name another folder" in done.err
    assert "Errno" not in done.err


def test_the_gist_of_events(fake: FakeDaemon, hpcdl: Run) -> None:
    placement = {"shares": [{"node": "n1", "gpus": [0, 1]}], "role": "primary", "layout": None}
    told: list[tuple[str, str, dict[str, object]]] = [
        ("job/1", "JobSubmitted", {"job": 1, "spec": {"command": ["python", "a b.py"]}, "request_id": "r"}),
        ("job/1", "StartRequested", {"job": 1, "incarnation": 1, "nodes": ["n1", "n2"], "placement": placement}),
        ("job/1", "Progressed", {"job": 1, "incarnation": 1, "node": "n1", "step": 0, "total": None, "age_s": 0.00123}),
        ("node/n1", "NodeJoined", {"node": "n1", "gpus": [{"index": 0}, {"index": 1}], "emulated": False, "cpus": 2}),
        ("daemon", "PlanAdopted", {
            "policy": "marble", "bound": 0.1234567891, "targets": [
                {"job": 1, "placement": placement, "reason": "primary"}, {"job": 2, "placement": None, "reason": "held"}
            ],
        }),
        ("daemon", "TroubleSeen", {"where": "tick", "detail": "it\x1b[31m \"failed\""}),
    ]  # fmt: skip
    fake.world.events = [
        {"seq": number, "at": 1000.0, "stream": stream, "version": 1, "kind": kind, "body": body}
        for number, (stream, kind, body) in enumerate(told, 1)
    ]
    assert [line.split(maxsplit=5)[-1] for line in hpcdl("events").out.splitlines()[1:]] == [
        "spec=\"python 'a b.py'\"",
        "incarnation=1 nodes=n1,n2 placement=n1:0,1 (primary)",
        "incarnation=1 node=n1 step=0",
        "gpus=2 emulated=false cpus=2",
        "policy=marble bound=0.123457 targets=job 1 n1:0,1 (primary): primary; job 2 no GPUs: held",
        'where=tick detail="it\\u001b[31m \\"failed\\""',
    ]
