"""`hpcdl submit script.sh`: what the #SBATCH and #BSUB lines become, what is ignored and said, what is an error."""

import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.options import BadLine
from hpcdl.batch.script import command_named
from hpcdl.client import Client
from hpcdl.lsf import bsub as lsflines
from hpcdl.slurm import sbatch as slurmlines
from tests.cli.conftest import Outcome, Run
from tests.cli.fake import FakeDaemon, specs_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(text: str, name: str = "train.sh") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def sbatch(*lines: str, body: str = "python train.py") -> Path:
    return write("\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), body, ""]))


def bsub(*lines: str, body: str = "python train.py") -> Path:
    return write("\n".join(["#!/bin/bash", *(f"#BSUB {line}" for line in lines), body, ""]))


def sent(fake: FakeDaemon, done: Outcome) -> list[dict[str, Any]]:
    """The specs of the last submit, which was taken."""
    assert done.code == 0, done
    return list(specs_of(fake.requests[-1][2]))


def said(done: Outcome) -> list[str]:
    """What was ignored, without the reasons."""
    return [line.removeprefix("hpcdl: ").partition(" is ignored: ")[0] for line in done.err.splitlines()]


SIZES: list[tuple[str, int, int]] = [
    ("--gres=gpu:2", 2, 1),
    ("--gres gpu", 1, 1),
    ("--gres=gpu:a100:3(S:0-1)", 3, 1),
    ("--gres=gpu:2 --nodes=3", 2, 3),
    ("--gpus=4 -N2", 2, 2),
    ("-G 6", 6, 1),
    ("-G v100:6", 6, 1),
    ("--gpus-per-node=v100:2 -N 2-4", 2, 2),
    ("--gpus=8 --gpus-per-node=4", 4, 2),
    ("--gpus-per-task=1 -n 4", 4, 1),
    ("--gpus-per-task=1 --ntasks-per-node=4 -N2", 4, 2),
    ("--gpus-per-task=2", 2, 1),
    ("-n4 --ntasks-per-gpu=2", 2, 1),
    ("-N2 -n8 --ntasks-per-gpu=1", 4, 2),
    ("--gpus-per-n=2", 2, 1),
    ("--gres=gpu:1 --gres=gpu:3", 3, 1),
    ("--gres=none", 1, 1),
    ("-c4", 1, 1),
]


@pytest.mark.parametrize("line, gpus, nodes", SIZES)
def test_gpus_and_nodes_of_sbatch(fake: FakeDaemon, hpcdl: Run, line: str, gpus: int, nodes: int) -> None:
    (spec,) = sent(fake, hpcdl("submit", sbatch(line)))
    assert (spec["gpus_min"], spec["gpus_max"], spec["nodes"], spec["nodes_max"]) == (gpus, gpus, nodes, None)


@pytest.mark.parametrize(
    "line, gpus, nodes",
    [
        ('-gpu "num=2:mode=exclusive_process:mps=no"', 2, 1),
        ("-gpu num=2/host -nnodes 3", 2, 3),
        ("-gpu -", 1, 1),
        ('-gpu num=4 -n 8 -R "span[ptile=4]"', 4, 2),
        ('-gpu num=1 -n 8,16 -R "rusage[mem=4GB]" -R "span[hosts=1]"', 1, 1),
        ('-R "rusage[ngpus_physical=3] span[ptile=2]" -n2', 3, 1),
        ("-n 4", 1, 1),
    ],
)
def test_gpus_and_nodes_of_bsub(fake: FakeDaemon, hpcdl: Run, line: str, gpus: int, nodes: int) -> None:
    (spec,) = sent(fake, hpcdl("submit", bsub(line)))
    assert (spec["gpus_min"], spec["gpus_max"], spec["nodes"]) == (gpus, gpus, nodes)


def test_all_of_sbatchs_lines(fake: FakeDaemon, hpcdl: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "sub").mkdir()
    monkeypatch.setenv("DATA", "/data")
    path = sbatch(
        '-J "my net" --gres=gpu:2  # a comment', "--time=1:00:00", "", "--dependency=afterok:1:2,afterok:3", "-D sub",
        "--export=ALL,LR=0.1,DATA,NOT_SET_ANYWHERE", "-o out-%A_%a.txt --mem=4G", "--frobnicate=3",
        body="python x.py\n#SBATCH --late",
    )  # fmt: skip
    done = hpcdl("submit", path, "a b", "--lr", "3")
    (spec,) = sent(fake, done)
    assert done.out == "job 1 queued: my net\n"
    assert (spec["name"], spec["after"], spec["cwd"]) == ("my net", [1, 2, 3], str(here / "sub"))
    env = dict(spec["env"])
    assert (env["LR"], env["DATA"], env["PATH"]) == ("0.1", "/data", os.environ["PATH"])
    kept = Path(spec["command"][3])
    assert spec["command"] == ["env", f"SLURM_SUBMIT_DIR={here}", "/bin/bash", str(kept), "a b", "--lr", "3"]
    assert said(done) == ["train.sh:9: --frobnicate=3"]
    assert (spec["time_s"], spec["memory_mib"]) == (3600.0, 4096)
    batch = spec["batch"]
    assert (batch["system"], batch["output"], batch["variables"]) == (
        "slurm",
        "out-%A_%a.txt",
        [["SLURM_MEM_PER_NODE", "4096"]],
    )
    assert all(line.count(": ") >= 3 for line in done.err.splitlines())
    # As batch systems do, the script is taken as it is now.
    assert kept.parent == fake.home / "scripts"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (kept, kept.parent)] == [0o700, 0o700]
    before = kept.read_text()
    assert before == path.read_text()
    path.write_text(before.replace("x.py", "y.py"))
    (later,) = sent(fake, hpcdl("submit", path))
    assert Path(later["command"][3]).read_text() == path.read_text()
    assert kept.read_text() == before
    kept.write_text("damaged")
    path.write_text(before)
    hpcdl("submit", path)
    assert kept.read_text() == before


@pytest.mark.parametrize(
    "line, on_each",
    [
        ("--gpus=4 --gpus-per-task=1", 4),
        ("-N2 --gpus-per-node=4 --gpus-per-task=2", 2),
        ("--gpus=2 --ntasks-per-gpu=3", 6),
        ("--gpus=4", None),
    ],
)
def test_tasks_that_only_the_gpus_number(fake: FakeDaemon, hpcdl: Run, line: str, on_each: int | None) -> None:
    (spec,) = sent(fake, hpcdl("submit", sbatch(line)))
    assert (spec["batch"]["tasks"], spec["batch"]["tasks_per_node"]) == (None, on_each)


def test_what_each_task_has_is_a_variable(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    (spec,) = sent(fake, hpcdl("submit", sbatch("-n2 --cpus-per-task=3 --gpus-per-task=a100:1")))
    variables = dict(spec["batch"]["variables"])
    assert variables["SLURM_CPUS_PER_TASK"] == "3"
    assert variables["SLURM_TRES_PER_TASK"] == "cpu=3,gres/gpu:a100=1"


def test_all_of_bsubs_lines(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    path = bsub(
        "-J net", '-gpu "num=2:gmodel=V100"', "-W 1:00 -q normal", '-w "done(1) && done( 2 )"', "-cwd /tmp",
        '-env "all, LR=1, ~PATH"', '-R "select[model==x] span[ptile=2]"', "-o out.%J -P proj",
        body="cd $LS_SUBCWD\n#BSUB -u me@example.org\npython x.py",
    )  # fmt: skip
    done = hpcdl("submit", path)
    (spec,) = sent(fake, done)
    assert (spec["name"], spec["after"], spec["cwd"], spec["gpus_min"]) == ("net", [1, 2], "/tmp", 2)
    env = dict(spec["env"])
    assert env["LR"] == "1"
    assert "PATH" not in env
    assert spec["command"][:3] == ["env", f"LS_SUBCWD={here}", "/bin/bash"]
    assert said(done) == [
        "train.sh:3: gmodel=V100 of -gpu num=2:gmodel=V100", "train.sh:4: -q normal",
        'train.sh:8: "select[model==x]" of -R', "train.sh:9: -P proj",
        "train.sh:11: -u me@example.org",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line, after, conditions, singleton",
    [
        ("#SBATCH -d afterok:3,afterany:4:5", [3], [["ended 4"], ["ended 5"]], False),
        ("#SBATCH -d afternotok:3?afterok:4", [], [["failed 3", "done 4"]], False),
        ("#SBATCH -d singleton,after:6", [], [["started 6"]], True),
        ("#BSUB -w '(done(3) || exit(4)) && ended(5)'", [], [["done 3", "failed 4"], ["ended 5"]], False),
        ("#BSUB -w '( done(3) && (exit(4)) )'", [3], [["failed 4"]], False),
        ("#BSUB -w started(3)", [], [["started 3"]], False),
    ],
)
def test_every_kind_of_dependency(
    fake: FakeDaemon, hpcdl: Run, line: str, after: list[int], conditions: list[list[str]], singleton: bool
) -> None:
    gpus = "#SBATCH --gres=gpu:1" if "SBATCH" in line else "#BSUB -gpu num=1"
    (spec,) = sent(fake, hpcdl("submit", write(f"#!/bin/sh\n{line}\n{gpus}\ntrue\n")))
    found = [[f"{each['kind']} {each['job']}" for each in group] for group in spec["conditions"]]
    assert (spec["after"], found, spec["singleton"]) == (after, conditions, singleton)


def test_options_win_over_the_lines(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    path = sbatch("-J net --gres=gpu:2 -N 2 --dependency=afterok:1 -D /nowhere --export=A=1")
    words = f"--name mine --gpus 1:3 --nodes 1:4 --after 7 --cwd {tmp_path} --env A=2 --grace 5"
    (spec,) = sent(fake, hpcdl("submit", *words.split(), path))
    assert (spec["name"], spec["gpus_min"], spec["gpus_max"]) == ("mine", 1, 3)
    assert (spec["nodes"], spec["nodes_max"], spec["after"], spec["cwd"]) == (1, 4, [7], str(tmp_path))
    assert (dict(spec["env"]), spec["grace_s"]) == ({"A": "2"}, 5.0)


@pytest.mark.parametrize(
    "line, environment",
    [("--export=NONE", {}), ("--export=A=1,DATA", {"A": "1", "DATA": "/data"}), ("--export=NIL", {})],
)
def test_exports(
    fake: FakeDaemon, hpcdl: Run, line: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", "/data")
    (spec,) = sent(fake, hpcdl("submit", sbatch(line, "-G1")))
    assert dict(spec["env"]) == environment


def test_arrays(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    done = hpcdl("submit", sbatch("-J net -G 1", "--array=0-4:2,9%2"))
    specs = sent(fake, done)
    assert [spec["name"] for spec in specs] == ["net[0]", "net[2]", "net[4]", "net[9]"]
    assert {spec["model"] for spec in specs} == {"net"}
    assert specs[1]["command"][:8] == [
        "env", f"SLURM_SUBMIT_DIR={here}", "SLURM_ARRAY_TASK_ID=2", "SLURM_ARRAY_TASK_COUNT=4",
        "SLURM_ARRAY_TASK_MIN=0", "SLURM_ARRAY_TASK_MAX=9", "SLURM_ARRAY_TASK_STEP=1", "/bin/bash",
    ]  # fmt: skip
    assert said(done) == []
    assert fake.requests[-1][2]["jobs"][0]["array"] == {"indices": "0-4:2,9", "max_parallel": 2}
    assert hpcdl("submit", "--quiet", sbatch("-a 1-3 -G1")).out == "5\n6\n7\n"
    specs = sent(fake, hpcdl("submit", bsub('-J "net[2-4:2]%1" -gpu num=1')))
    assert [spec["name"] for spec in specs] == ["net[2]", "net[4]"]
    assert specs[1]["command"][:5] == [
        "env", f"LS_SUBCWD={here}", "LSB_JOBINDEX=4", "LSB_JOBINDEX_STEP=2", "/bin/bash"
    ]  # fmt: skip
    assert fake.requests[-1][2]["jobs"][0]["array"]["max_parallel"] == 1
    literal = sbatch("-a 1-2 -G1")
    specs = sent(fake, hpcdl("submit", literal, "{index}", "{x}", "{{y}}", "${HOME}"))
    assert [spec["command"][-4:] for spec in specs] == [["{index}", "{x}", "{{y}}", "${HOME}"]] * 2
    specs = sent(fake, hpcdl("submit", "--sweep", "lr=1,2", literal, "--lr", "{lr}"))
    assert [(spec["command"][2], spec["command"][-1]) for spec in specs] == [
        ("SLURM_ARRAY_TASK_ID=1", "1"), ("SLURM_ARRAY_TASK_ID=2", "1"),
        ("SLURM_ARRAY_TASK_ID=1", "2"), ("SLURM_ARRAY_TASK_ID=2", "2"),
    ]  # fmt: skip


BAD: list[tuple[str, str, str]] = [
    ("#SBATCH", "--gres=gpu:2x", "'2x' is not a number of GPUs"),
    ("#SBATCH", "--gpus=3 -N2", "3 GPUs cannot be spread evenly over 2 nodes"),
    ("#SBATCH", "--gpus=v100:1,a100:1", "several types"),
    ("#SBATCH", "--gpus=3 --gpus-per-node=2", "does not agree"),
    ("#SBATCH", "-N 4-2", "'2' is not a number of nodes"),
    ("#SBATCH", "-N 0", "'0' is not a number of nodes"),
    ("#SBATCH", "--array=5-1", "must go up"),
    ("#SBATCH", "--array=0-99999999", "at most 10000"),
    ("#SBATCH", "--array=a", "'a' is not an index"),
    ("#SBATCH", "--array=1-3%x", "'x' is not a number of jobs"),
    ("#SBATCH", "--dependency=aftercorr:3", "'aftercorr:3': a job of hpcdl waits by afterok, afterany"),
    ("#SBATCH", "--dependency=afterok:3,afterany:4?after:5", "Slurm takes ',' or '?' in it, not both"),
    ("#SBATCH", "--dependency=afterok:12_3", "'12_3' is not the id of a job of hpcdl"),
    ("#SBATCH", "--export==3", "a variable has no name"),
    ("#SBATCH", "--job-name", "its value is missing"),
    ("#SBATCH", '-J "net', "no closing quotation"),
    ("#SBATCH", "train", "'train' is no option"),
    ("#BSUB", "-gpu num=x", "'x' is not a number of GPUs"),
    ("#BSUB", "-gpu nmu=1", "'nmu=1' is not known"),
    ("#BSUB", "-n many", "'many' is not a number of processors"),
    ("#BSUB", '-n 5 -R "span[ptile=2]"', "cannot be spread evenly"),
    ("#BSUB", '-w "post_done(3)"', "'post_done(3)': a job of hpcdl waits"),
    ("#BSUB", '-w "done(3) && exit(4) || done(5)"', "&& and || together need parentheses"),
    ("#BSUB", '-w "done(3) || (done(4) && done(5))"', "&& within || is not one"),
    ("#BSUB", '-J "x[3-1]"', "must go up"),
    ("#BSUB", "-cwd runs/%J", "'runs/%J': hpcdl makes no folder for each job"),
    ("#BSUB", "-gpu", "its value is missing"),
]


@pytest.mark.parametrize("mark, line, why", BAD)
def test_a_bad_value_is_one_line_with_its_place(fake: FakeDaemon, hpcdl: Run, mark: str, line: str, why: str) -> None:
    write(f"#!/bin/sh\n\n{mark} {line}\ntrue\n")
    done = hpcdl("submit", "train.sh")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
    assert done.err.startswith("hpcdl: train.sh:3: ")
    assert why in done.err
    assert fake.requests == []
    assert not (fake.home / "scripts").exists()


@pytest.mark.parametrize(
    "first, program",
    [
        ("#!/usr/bin/env -S python -u x", ["/usr/bin/env", "-S python -u x"]),
        ("#! /bin/zsh", ["/bin/zsh"]),
        ("# no program", ["/bin/sh"]),
    ],
)
def test_the_first_line_names_the_program(fake: FakeDaemon, hpcdl: Run, first: str, program: list[str]) -> None:
    (spec,) = sent(fake, hpcdl("submit", write(f"{first}\n#SBATCH -G1\n")))
    assert spec["command"][2:-1] == program


def test_odd_scripts(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    write("#!/bin/sh\r\n#SBATCH -G1\r\n")
    assert hpcdl("submit", "train.sh").err == "hpcdl: train.sh:1: its lines end as in DOS: convert it with dos2unix\n"
    Path("train.sh").write_bytes(b"#!/bin/sh\n#SBATCH -G1 -J caf\xe9\n" + b"# x\n" * (5 << 18))
    done = hpcdl("submit", "train.sh")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "a script has 4 MiB at most" in done.err
    Path("train.sh").write_bytes(b"#!/bin/sh\n#SBATCH -G1\necho caf\xe9\n")
    (spec,) = sent(fake, hpcdl("submit", "train.sh"))
    assert Path(spec["command"][-1]).read_bytes() == Path("train.sh").read_bytes()
    both = hpcdl("submit", write("#!/bin/sh\n#BSUB -gpu num=3\n#SBATCH -G2\n"))
    assert sent(fake, both)[0]["gpus_min"] == 2
    assert said(both) == ["train.sh:2: #BSUB"]
    none = hpcdl("submit", sbatch("--time=5"))
    assert sent(fake, none)[0]["gpus_min"] == 1
    assert none.err.splitlines()[-1] == ("hpcdl: train.sh asks for no GPU; a job of hpcdl has at least 1: --gpus N")
    (spec,) = sent(fake, hpcdl("submit", sbatch("-G2 -N2", body="echo\n  srun python x.py")))
    assert (spec["batch"]["first_only"], spec["nodes"]) == (True, 2)
    each = hpcdl("submit", sbatch("-G2 -N2", body="python x.py"))
    assert sent(fake, each)[0]["batch"]["first_only"] is False
    (spec,) = sent(fake, hpcdl("submit", "--nodes", "2", sbatch("-G2", body="python x.py")))
    assert (spec["batch"]["first_only"], spec["nodes"]) == (False, 2)
    assert each.err.partition(": with")[0] == "hpcdl: train.sh:2: -N 2 starts the script on each node"


def test_what_is_no_batch_script_is_a_command(fake: FakeDaemon, hpcdl: Run) -> None:
    path = sbatch("-G 2")
    (spec,) = sent(fake, hpcdl("submit", "--", path))
    assert (spec["command"], spec["gpus_min"]) == (["train.sh"], 1)
    (spec,) = sent(fake, hpcdl("submit", "bash", path))
    assert spec["command"] == ["bash", "train.sh"]
    for text in ("#!/bin/sh\ntrue\n#SBATCH -G 2\n", "#!/bin/sh\n#SBATCHED -G 2\n", "\0\n#SBATCH -G 2\n", ""):
        (spec,) = sent(fake, hpcdl("submit", write(text)))
        assert (spec["command"], spec["gpus_min"]) == (["train.sh"], 1), text
    Path("folder").mkdir()
    assert sent(fake, hpcdl("submit", "folder"))[0]["command"] == ["folder"]


def test_a_script_without_a_daemon_runs_once_there_is_one(home: Path, hpcdl: Run, here: Path) -> None:
    """From the spool to the trainers: an array whose members know their index, by the copy of the script."""
    path = sbatch("-G 1 --array=3-4", body='cd "$SLURM_SUBMIT_DIR"; echo "$0 $1 $SLURM_ARRAY_TASK_ID" > out.$HPCDL_JOB')
    assert hpcdl("submit", path, "word").code == 0
    path.write_text("#!/bin/sh\nexit 9\n")
    argv = [sys.executable, "-m", "hpcdl", "--home", str(home), "daemon"]
    subprocess.run([*argv, "start", "--emulate-gpus", "2"], check=True, capture_output=True)
    try:
        with Client(home) as client:
            answer = client.get("/v1/wait?ids=1,2&timeout=60", wait_s=60)
            assert [job["state"] for job in answer["jobs"]] == ["DONE", "DONE"], answer
            (kept,) = (home / "scripts").iterdir()
            assert [(here / f"out.{n}").read_text() for n in (1, 2)] == [f"{kept} word 3\n", f"{kept} word 4\n"]
    finally:
        subprocess.run([*argv, "stop", "--now"], check=True, capture_output=True)


@pytest.mark.parametrize("command", ["sbatch", "bsub"])
def test_any_line_is_read_or_is_one_error(command: str) -> None:
    chance = random.Random(5)
    parts = ["gpu", "gpu:2", ":", "1", "0", "-", "1-3", "%2", "[1-3]", "a[", "]", "=", "A=1", "ALL", "all", "~X",
             "none", "afterok:1", "afterok", "done(1)", "&&", "num=", "/", "span[ptile=]", "span[ptile=3]", "٣", "²",
             ",", "9" * 30, "(S:1)", "'", '"', "#", "\\"]  # fmt: skip
    names = [*slurmlines.OPTIONS, *slurmlines.SHORT] if command == "sbatch" else [*lsflines.OPTIONS, "zz"]
    refusals = []
    for _ in range(4000):
        words = []
        for _ in range(chance.randint(1, 4)):
            name, value = chance.choice(names), "".join(chance.choices(parts, k=chance.randint(0, 2)))
            dashes = "--" if command == "sbatch" and len(name) > 1 else "-"
            words.append(f"{dashes}{name}{chance.choice(('=', ' ', ''))}{value}")
        text = f"#!/bin/sh\n#{command.upper()} {' '.join(words)}\n"
        try:
            command_named(command).read("t.sh", text.encode(), ())
        except BadLine as error:
            refusals.append(str(error))
    assert 400 < len(refusals) < 3600
    assert [text for text in refusals if not text.startswith("t.sh:2: ") or "\n" in text] == []


def test_who_wants_mail_is_told_how(fake: FakeDaemon, hpcdl: Run) -> None:
    why = "hpcdl submit --notify mailto:ADDRESS sends a mail at its end"
    assert hpcdl("submit", sbatch("--mail-type=END")).err.startswith(
        f"hpcdl: train.sh:2: --mail-type=END is ignored: {why}\n"
    )
    assert hpcdl("submit", bsub("-N")).err.startswith(f"hpcdl: train.sh:2: -N is ignored: {why}\n")
