"""`hpcdl submit --file`, --dry-run, --strict and what is looked at before a job is sent."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Outcome, Run
from tests.cli.fake import FakeDaemon, row, specs_of
from tests.support.activation import activate


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a b \u00e9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    return folder


def submitted(fake: FakeDaemon, done: Outcome) -> list[dict[str, Any]]:
    assert done.code == 0, done
    jobs: list[dict[str, Any]] = fake.requests[-1][2]["jobs"]
    return jobs


GOOD = """\
defaults:
  gpus: 1:2
  env: {A: "b = c", B: 7}
  retries: 3
jobs:
  - name: prepare
    command: python train.py --what 'a b'
    gpus: 1
  - name: train-{lr}
    command: [python, train.py, "{lr}", "{index}"]
    array: 1-3
    sweep: {lr: [0.1, "x,y"]}
    max-parallel: 2
    after: prepare
    hold: true
    priority: -5
    notify: [mailto:me@example.org, "beep --loud"]
    stall: 600:restart
  - command: python train.py
    after: ["train-{lr}", 12]
"""


def test_a_file_of_jobs(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    (here / "jobs.yaml").write_text(GOOD)
    first, second, third = submitted(fake, hpcdl("submit", "--file", "jobs.yaml"))
    assert first["command"] == ["python", "train.py", "--what", "a b"]
    assert (first["gpus_min"], first["gpus_max"], first["retries"], first["cwd"]) == (1, 1, 3, str(here))
    assert {"A": "b = c", "B": "7"}.items() <= dict(first["env"]).items()
    assert second["array"] == {"indices": "1-3", "sweep": {"lr": ["0.1", "x,y"]}, "max_parallel": 2}
    assert (second["held"], second["priority"], second["gpus_max"], second["after_entries"]) == (True, -5, 2, [0])
    assert (second["notify"], second["stall_s"]) == (["mailto:me@example.org", "beep --loud"], 600.0)
    assert second["stall_restart"] is True
    assert (third["after"], third["after_entries"]) == ([12], [1])
    names = [spec["name"] for spec in specs_of(fake.requests[-1][2])]
    assert names == ["prepare", *["train-0.1"] * 3, *["train-x,y"] * 3, "train.py"]


def test_jobs_of_a_file_wait_for_any_end_or_a_failure_by_name(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    (here / "jobs.yaml").write_text(
        "- {name: a, command: true}\n- {name: b, command: true, after-failed: a, singleton: true}\n"
        "- {command: true, after: 7?8, after-any: [a, b, 12], after-start: a}\n"
    )
    _, second, third = submitted(fake, hpcdl("submit", "--file", "jobs.yaml"))
    assert (second["condition_entries"], second["singleton"]) == ([["failed", 0]], True)
    assert third["condition_entries"] == [["ended", 0], ["ended", 1], ["started", 0]]
    kinds = [[(each["kind"], each["job"]) for each in group] for group in third["conditions"]]
    assert kinds == [[("done", 7), ("done", 8)], [("ended", 12)]]
    (here / "jobs.yaml").write_text("- {command: true, after-any: c}\n")
    assert "after-any: no job 'c'" in hpcdl("submit", "--file", "jobs.yaml").err


def test_a_list_alone_and_the_standard_input(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    (here / "list.yaml").write_text("- command: python train.py\n- {command: [python, train.py], hold: no}\n")
    done = hpcdl("submit", "-f", "list.yaml")
    assert [job["command"] for job in submitted(fake, done)] == [["python", "train.py"]] * 2
    assert done.out.splitlines() == ["job 1 queued: train.py", "job 2 queued: train.py"]


BAD = [
    ("", "f.yaml: is empty"),
    ("jobs: 7\n", "f.yaml:1: jobs: must be a list of jobs"),
    ("a: 1\njobs: []\n", "f.yaml:1: a: there is no such key; there are defaults, jobs"),
    ("job:\n- {command: x}\n", "f.yaml:1: job: there is no such key; did you mean jobs?"),
    ("- {command: python x, gpu: 1}\n", "f.yaml:1: gpu: there is no such key; did you mean gpus?"),
    ("- command: python x\n  max_paralel: 2\n", "f.yaml:2: max_paralel: there is no such key; did you mean max-par"),
    ("- command: python x\n  gpus: 3:1\n", "f.yaml:2: gpus: '3:1'"),
    ("- command: python x\n  gpus: [1]\n  steps: many\n", "f.yaml:3: steps: 'many' is not a valid integer"),
    ("- name: x\n", "f.yaml:1: command: is missing"),
    ("- command: 'python \"x'\n", "f.yaml:1: command: cannot be split into words"),
    ("- command: []\n", "f.yaml:1: command: must be a text, or a list of words"),
    ("- {command: x, command: y}\n", "f.yaml:1: command: is there twice"),
    ("- command: x\n  after: trian\n- {command: y, name: train}\n", "f.yaml:2: after: no job 'trian'"),
    ("- {command: y, name: train}\n- command: x\n  after: trian\n", "f.yaml:3: after: no job 'trian': did you mean tr"),
    ("- {command: y, name: a}\n- {command: y,\n   name: a}\n", "f.yaml:3: name: 'a' is the name of another job above"),
    ("- command: x\n  hold: maybe\n", "f.yaml:2: hold: must be true or false"),
    ("- command: x\n  cwd: [a, b]\n", "f.yaml:2: cwd: takes one value"),
    ("- command: x\n  array: 1-3\n  sweep: {index: 1}\n", "f.yaml:3: sweep: 'index' is no name of a sweep"),
    ("- command: x {lr}\n  array: 1-3\n", "f.yaml:1: '{lr}' names {lr}, which is no sweep of this array"),
    ("- command: [x, '{lr}']\n  sweep: {rl: 3}\n", "f.yaml:1: '{lr}' names {lr}"),
    ("- command: x\n  max-parallel: 2\n", "f.yaml:1: --max-parallel needs --array or --sweep"),
    ("- !!python/object/apply:os.system [x]\n", "f.yaml:1: a job: must be keys and values"),
    ("- command: *x\n", "f.yaml:1: not YAML: found undefined alias"),
    ("a: [\n", "f.yaml:2: not YAML"),
    ("defaults: {command: x}\njobs:\n- command: y\n", "f.yaml:1: command: each job has its own"),
    ("- {command: x, request-id: r}\n", "f.yaml:1: request-id: there is no such key"),
]


@pytest.mark.parametrize("text, why", BAD)
def test_what_is_wrong_is_told_with_its_line(fake: FakeDaemon, hpcdl: Run, here: Path, text: str, why: str) -> None:
    (here / "f.yaml").write_text(text)
    done = hpcdl("submit", "--file", "f.yaml")
    assert (done.code in (1, 2), done.out, done.err.count("\n")) == (True, "", 1), done
    assert done.err.startswith(f"hpcdl: {why}"), done.err
    assert fake.requests == []


def test_a_file_that_cannot_be_read(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    (here / "big.yaml").write_text("- " + "x" * (9 << 20))
    (here / "bytes.yaml").write_bytes(b"- command: \xff\n")
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)
    )
    (here / "bomb.yaml").write_text(bomb)
    for name, why in (("none.yaml", "there is no file"), ("big.yaml", "over 8 MiB"), ("bytes.yaml", "not UTF-8"),
                      ("bomb.yaml", "values")):  # fmt: skip
        done = hpcdl("submit", "--file", name)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert why in done.err
    assert hpcdl("submit", "--file", "x", "true").err.startswith("hpcdl: with --file the commands are in the file")
    assert "belongs into the file" in hpcdl("submit", "--file", "x", "--gpus", 2).err
    assert fake.requests == []


def test_arrays_and_sweeps(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    done = hpcdl(
        "submit", "--array", "1-3", "--sweep", "lr=0.1,a\\,b", "--max-parallel", 2, "python", "train.py", "{x}"[:0]
    )
    (job,) = submitted(fake, done)
    assert job["command"] == ["python", "train.py", "", "--lr", "{lr}"]
    assert job["array"] == {"indices": "1-3", "sweep": {"lr": ["0.1", "a,b"]}, "max_parallel": 2}
    assert done.out == (
        "jobs 1-6 queued: array 1 of 6 jobs, at most 2 at a time: train.py[1,lr=0.1] to train.py[3,lr=a,b]\n"
    )
    assert hpcdl("submit", "-q", "--array", "1,5", "--", "true", "{index}").out == "7\n8\n"
    (job,) = submitted(fake, hpcdl("submit", "true", "{index}", "{lr}"))
    assert (job["command"], "array" in job) == (["true", "{index}", "{lr}"], False)
    for words in (["--array", "3-1"], ["--array", "1,1"], ["--sweep", "lr"], ["--sweep", "index=1"],
                  ["--max-parallel", 2], ["--array", "1-2", "--max-parallel", 0], ["--priority", 1001],
                  ["--notify", "ftp://x"], ["--stall", "soon"]):  # fmt: skip
        done = hpcdl("submit", *words, "true")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), (words, done)


def test_words_of_any_bytes(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    words = ["caf\u00e9", "a b", 'it\'s "x"', "line\nbreak", os.fsdecode(b"\xff\xfe"), "\u4f60\u597d", ""]
    (job,) = submitted(fake, hpcdl("submit", "--env", "K=a\n\u00e9 b", "--sweep", "s=\u00e9,x y", "--", "true", *words))
    assert job["command"] == ["true", *words, "--s", "{s}"]
    assert dict(job["env"])["K"] == "a\n\u00e9 b"
    specs = list(specs_of(fake.requests[-1][2]))
    assert [spec["command"][-1] for spec in specs] == ["\u00e9", "x y"]
    assert specs[0]["cwd"].endswith("a b \u00e9")


def test_what_is_not_here_is_said(fake: FakeDaemon, hpcdl: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activate(monkeypatch)
    for command, why in (
        (["nosuchprogram", "x"], "nosuchprogram is not a program on PATH here; the job fails where it is none either"),
        (["train.py"], "train.py is not a program on PATH here; the job fails where it is none either: ./train.py, or"),
        (["./train.py"], "./train.py may not be run: chmod +x, or name its interpreter: python ./train.py"),
        (["./"], "./ is a folder: give the program in it"),
        (["./none.py"], "./none.py is not there: the job fails where it is not there either"),
        (
            ["python", "-u", "trian.py"],
            "trian.py is not there: the job fails where it is not there either (did you mean",
        ),
        (["torchrun", "--nproc-per-node", "2", "none.py"], "none.py is not there: the job"),
        (["bash", "-x", "none"], "none is not there: the job fails where it is not there either"),
        (["--container", "none.sif", "python", "train.py"], f"--container {here}/none.sif is not there: the job fails"),
        (["--container", "docker://x", "python", "none.py"], "none.py is not there: the job fails"),
    ):
        options = command[:2] if command[0] == "--container" else []
        command = command[len(options) :]
        done = hpcdl("submit", *options, "--", *command)
        assert (done.code, done.err.count("\n")) == (0, 1)
        assert done.err.startswith(f"hpcdl: {why}")
        sent = len(fake.requests)
        done = hpcdl("submit", "--strict", *options, "--", *command)
        assert (done.code, done.out, len(fake.requests)) == (1, "", sent)
        assert done.err.startswith(f"hpcdl: refused by --strict: {why}")
    for command in (
        ["{what}"], ["python", "{what}"], ["python", "-m", "none"], ["python", "-c", "none.py"], ["bash", "-c", "none"],
        ["python", "train.py", "none.py"],
    ):  # fmt: skip
        assert hpcdl("submit", "--sweep", "what=a,b", "--", *command).err == ""
    assert hpcdl("submit", "--container", "docker://x", "--", "python", "/opt/none.py").err == "", (
        "the image may have it"
    )


@pytest.mark.parametrize(
    "command, said",
    [
        (
            ["python", "gpu0.py"],
            "gpu0.py:2: os.environ['CUDA_VISIBLE_DEVICES'] = '0' takes GPUs by their numbers: those",
        ),
        (
            ["bash", "gpu0.sh"],
            "gpu0.sh:2: CUDA_VISIBLE_DEVICES=0 takes GPUs by their numbers: those may be another job's",
        ),
        (["env", "CUDA_VISIBLE_DEVICES=0", "python", "train.py"], "CUDA_VISIBLE_DEVICES=0 takes GPUs by their numbers"),
        (["deepspeed", "--num_gpus=2", "train.py"], "deepspeed takes GPUs by their numbers: it counts them from"),
        (["deepspeed", "train.py", "--deepspeed"], "deepspeed fails: hpcdl names GPUs by their UUIDs"),
        (["bash", "-c", "CUDA_VISIBLE_DEVICES=$HPCDL_GPUS python train.py"], ""),
        (["python", "train.py", "--gpu_ids", "0"], ""),
    ],
)
def test_gpus_by_their_numbers(
    fake: FakeDaemon, hpcdl: Run, here: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], said: str
) -> None:
    activate(monkeypatch)
    (here / "gpu0.py").write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n")
    (here / "gpu0.sh").write_text("#!/bin/bash\nCUDA_VISIBLE_DEVICES=0 python train.py\n")
    told = [line for line in hpcdl("submit", "--", *command).err.splitlines() if "is not a program" not in line]
    assert [line.startswith(f"hpcdl: {said}") for line in told] == ([True] if said else [])


def test_where_python_is_python3(fake: FakeDaemon, hpcdl: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Debian without an environment."""
    folder = here / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    absent = "is not a program on PATH here; the job fails where it is none either"
    assert hpcdl("submit", "--", "python", "train.py").err == f"hpcdl: python {absent}\n"
    (folder / "python3").symlink_to(sys.executable)
    hint = "python3, or activate an environment first?"
    for command in (["python", "train.py"], ["env", "A=1", "python", "train.py"]):
        assert hpcdl("submit", "--", *command).err == f"hpcdl: python {absent}: {hint}\n"
    assert hpcdl("submit", "--", "train.py").err == f"hpcdl: train.py {absent}: ./train.py, or python3 train.py?\n"
    assert hpcdl("submit", "--", "./train.py").err.endswith("or name its interpreter: python3 ./train.py\n")


def test_a_notification_that_nobody_may_hear_of_is_said(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    for command, program in (("bla", "bla"), ("A=1 bla -x y | cat", "bla"), ("./none.sh {}", "./none.sh")):
        said = f"--notify {program}: no such program here; where the daemon's node has none either, nobody is notified"
        done = hpcdl("submit", "--notify", command, "--", "true")
        assert (done.code, done.err.count("\n")) == (0, 1)
        assert done.err.startswith(f"hpcdl: {said}")
        done = hpcdl("submit", "--strict", "--notify", command, "--", "true")
        assert (done.code, done.err.startswith(f"hpcdl: refused by --strict: {said}")) == (1, True)
    for command in ("cat > x", "cd x; ./y", "if true; then x; fi", "~/notify", "$N x", "./train.py", "(x)", "> x"):
        assert hpcdl("submit", "--strict", "--notify", command, "--", "true").err == "", command
    assert hpcdl("submit", "--strict", "--notify", "mailto:me@x.org", "--notify", "http://x/y", "--", "true").err == ""


@pytest.mark.parametrize("folder", ["train.py", "train.py/x/{index}"])
def test_checkpoints_that_cannot_be_written(fake: FakeDaemon, hpcdl: Run, here: Path, folder: str) -> None:
    done = hpcdl("submit", "--array", "1-2", "--checkpoint-dir", folder, "true")
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("train.py is no folder: choose another --checkpoint-dir\n")
    assert hpcdl("submit", "--checkpoint-dir", "new/{index}", "true").code == 0
    assert hpcdl("submit", "--checkpoint-dir", "/nosuch/where/x", "true").code == 0


def test_a_dry_run(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    rows = [
        row(1, would_start=True, placement={"n1": [0, 1]}, reason="primary", starts_at=1000.0, ends_at=1060.0),
        *(row(n, would_start=False, array=2, starts_at=1030.0, ends_at=None) for n in range(2, 7)),
    ]
    rows[0]["warnings"] = ["it needs 9 GPUs"]
    fake.answers["/v1/jobs"] = (200, json.dumps({"schema": 1, "dry_run": True, "jobs": rows}).encode())
    done = hpcdl("submit", "--dry-run", "true")
    assert fake.requests[-1][2]["dry_run"] is True
    assert done.err == "hpcdl: it needs 9 GPUs\n"
    assert done.out.splitlines() == [
        "job1: would start now on n1:0,1: primary (ends in about 1 min 00 s)",
        *[f"job{n}: would wait: needs 1 GPU, 0 free (starts in about 30 s)" for n in (2, 3, 4)],
        "and 2 more of that array: 0 would start now, 2 would wait",
        "nothing was submitted: 1 of 6 jobs would start now",
    ]
    assert len(hpcdl("submit", "--dry-run", "--json", "true").value["jobs"]) == 6
    (here / "script.sh").write_text("#!/bin/sh\n#SBATCH --time=5 --mail-type=END\ntrue\n")
    for options in ([], ["--json"]):
        said = hpcdl("submit", "--dry-run", *options, str(here / "script.sh")).err
        assert "--mail-type=END is ignored" in said
        assert "script.sh asks for no GPU" in said
