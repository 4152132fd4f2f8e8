"""`hpcdl submit --like`: what a new job takes over from another one, what it changes, and what it leaves out."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.model.job import JobSpec
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.support.activation import activate

FIRST = (
    "--singleton",
    "--name", "base", "--gpus", "2:3", "--nodes", "2", "--cpus", "3", "--mem", "2G", "--time", "90m", "--grace", "7",
    "--signal", "hf", "--priority", "4", "--weight", "2", "--profile", "p", "--steps", "9", "--model", "m",
    "--accuracy", "0.9", "--retries", "3", "--stall", "60:restart", "--resumes", "out/*", "--tag", "a,b",
    "--link", "w=https://w/1", "--share", "foreground:5", "--gpu-memory", "1G", "--deadline", "prior",
    "--output", "%j.out", "--error", "%j.err",
    "--batch", "64", "--kind", "inference",
    "--progress-regex", "s=(\\d+)", "--no-trainer-library", "--env", "A=1", "--notify", "true",
)  # fmt: skip
COMMAND = ("--", "python", "train.py", "--lr", "{x}")


def sent(fake: FakeDaemon) -> dict[str, Any]:
    """The last job that was submitted."""
    (entry,) = next(body for method, path, body in reversed(fake.requests) if method == "POST")["jobs"]
    return dict(entry)


def test_everything_is_carried_but_what_is_its_own(
    fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert hpcdl("submit", *FIRST, *COMMAND).code == 0
    first = sent(fake)
    fake.world.jobs[1]["state"] = "DONE"
    monkeypatch.chdir("/")
    monkeypatch.setenv("HPCDL_SUBMIT_PRIORITY", "9")
    done = hpcdl("submit", "--like", 1)
    assert (done.code, done.out, done.err) == (0, "job 2 queued: base\n", "")
    again = sent(fake)
    plain = JobSpec(("true",), "x")
    default = {field.name for field in fields(JobSpec) if first.get(field.name) == getattr(plain, field.name)}
    assert default <= {
        "user", "gpus_counts", "after", "conditions", "checkpoint_dir", "gate", "nodes_max", "deadline", "rescale",
        "continue_from", "progress", "batch", "burst", "git", "batch_sweep", "light_steps",
    } | {"array", "array_index", "array_most", "sweep"}, "the first job chose nearly everything"  # fmt: skip
    assert again.pop("like") == 1
    assert again.pop("env") == []
    assert again == {name: value for name, value in first.items() if name not in ("env", "notify")}


def test_what_is_given_wins(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", *FIRST, *COMMAND).code == 0
    first = sent(fake)
    more = ("--gpus", "4", "--env", "A=2", "--env", "B=3", "--notify", "false", "--mem", "1G", "--hold", "--name", "n")
    assert hpcdl("submit", "--like", "base", *more).out == "job 2 queued: n\n"
    changed = {
        "gpus_min": 4, "gpus_max": 4, "env": [["A", "2"], ["B", "3"]], "notify": ["false"], "memory_mib": 1024,
        "held": True, "name": "n", "like": 1,
    }  # fmt: skip
    assert sent(fake) == first | changed
    assert hpcdl("submit", "--like", 1, "--nodes", "1:4", "--", "python", "other.py").code == 0
    entry = sent(fake)
    assert (entry["command"], entry["name"]) == (["python", "other.py"], "base"), "its name was chosen"
    assert (entry["nodes"], entry["nodes_max"], entry["rescale"]) == (1, 4, "torchrun")
    assert hpcdl("submit", "--", "python", "train.py").code == 0
    number = max(fake.world.jobs)
    assert hpcdl("submit", "--like", number, "--", "python", "other.py").code == 0
    assert sent(fake)["name"] == "other.py"


def test_behind_a_gate_and_in_an_array(
    fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for script in ("train.py", "x.py"):
        (tmp_path / script).touch()
    assert hpcdl("submit", "--gate", "--", "python", "train.py").code == 0
    first = sent(fake)
    for options in ((), ("--gate",)):
        assert hpcdl("submit", "--like", 1, *options).code == 0
        assert (sent(fake)["command"], sent(fake)["gate"]) == (first["command"], True), options
    assert hpcdl("submit", "--like", 1, "--", "python", "x.py").code == 0
    assert (sent(fake)["command"][-1], sent(fake)["gate"]) == ("x.py", True)
    assert hpcdl("submit", "--like", 1, "--sweep", "lr=1,2", "--max-parallel", 1).code == 0
    entry = sent(fake)
    assert entry["command"] == [*first["command"], "--lr", "{lr}"]
    assert entry["array"] == {"sweep": {"lr": ["1", "2"]}, "max_parallel": 1}
    done = hpcdl("submit", "--like", max(fake.world.jobs))
    assert done.err == f"hpcdl: not carried from job {max(fake.world.jobs) - 1}: its place in an array\n"
    entry = sent(fake)
    assert entry["command"][-2:] == ["--lr", "2"]
    assert "array" not in entry


def test_what_is_left_out_is_said(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    options = ("--checkpoint-dir", folder, "--after", "5?6", "--deadline", "+2h")
    assert hpcdl("submit", *options, "--", "true").code == 0
    done = hpcdl("submit", "--like", 1)
    assert done.err == (
        f"hpcdl: not carried from job 1: its checkpoint folder (--checkpoint-dir {folder} --continue-from 1 goes on "
        "from it), the jobs that it waited for (--after), its deadline (--deadline)\n"
    )
    entry = sent(fake)
    assert (entry["checkpoint_dir"], entry["conditions"], entry["deadline"]) == (None, [], None)
    done = hpcdl("submit", "--like", 1, "--checkpoint-dir", folder, "--continue-from", 1, "--after", 1)
    assert "checkpoint folder" not in done.err
    entry = sent(fake)
    assert (entry["checkpoint_dir"], entry["continue_from"], entry["after"]) == (str(folder), "1", [1])


def test_a_dry_run_shows_what_differs(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", *FIRST, *COMMAND).code == 0
    fake.answers["/v1/jobs"] = 200, b'{"schema": 1, "dry_run": true, "jobs": []}'
    argv = ("submit", "--like", 1, "--dry-run", "--retries", 5, "--env", "LR=1")
    lines = [" ".join(line.split()) for line in hpcdl(*argv).out.splitlines()]
    assert lines == [
        "like job 1 python train.py --lr '{x}'", "env that of job 1, with LR", "retries 3 -> 5",
        "nothing was submitted: 0 of 0 jobs would start now",
    ]  # fmt: skip
    value = hpcdl(*argv, "--json").value
    assert (value["like"], value["specs"][0]["retries"]) == (1, 5)


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (("--like", 9), 1, "there is no job 9"),
        (("--like", "1-2"), 2, "are several jobs, and one is meant here"),
        (("--like", "nobody"), 2, "no job's name is 'nobody'"),
        (("--like", 1, "--file", "x.yaml"), 2, "--like is about one job: leave out --file"),
        (("--like", 1, "--as", "sbatch", "x.sh"), 2, "--like is about one job: leave out --as"),
        (("--like", 1, "--max-parallel", 2), 2, "--max-parallel needs --array or --sweep"),
        (("--like", 2), 2, "does not know all of job 2 (novelty): use the daemon's hpcdl"),
    ],
)
def test_wrong_usage(fake: FakeDaemon, hpcdl: Run, argv: tuple[object, ...], code: int, told: str) -> None:
    hpcdl("submit", "--", "true")
    hpcdl("submit", "--", "true")
    fake.world.jobs[2]["spec"]["novelty"] = 1
    done = hpcdl("submit", *argv)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert told in done.err


def test_it_needs_the_daemon(home: Path, hpcdl: Run) -> None:
    done = hpcdl("submit", "--like", 1)
    assert (done.code, done.out) == (1, "")
    assert "no daemon is running" in done.err
    assert not (home / "spool").exists(), "which job that is, only the daemon knows"
