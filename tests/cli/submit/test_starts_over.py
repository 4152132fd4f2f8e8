"""The note that a script starts over: said of what can be seen to keep nothing, and of nothing else."""

from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli.submit.starts_over import note, script_of
from hpcdl.core.model.job import BatchTasks, JobSpec
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

PLAIN = (
    "import torch\nfrom transformers import Trainer\nimport os, argparse\n\nfor step in range(9):\n    print(step)\n"
)


def spec(folder: Path, text: str, command: str = "python train.py", **more: Any) -> JobSpec:
    (folder / "train.py").write_text(text)
    return JobSpec(command=tuple(command.split()), name="train.py", user="me", cwd=str(folder), **more)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 0.1", "train.py"),
        ("env A=1 /venv/bin/python3.11 -u src/train.py", "src/train.py"),
        ("torchrun --nproc-per-node 2 train.py", "train.py"),
        ("python -m torch.distributed.run train.py", "train.py"),
        ("accelerate launch --config_file a.yaml train.py", "train.py"),
        ("python -m hpcdl.trainer.gate train.py", "train.py"),
        ("python -c print(1) train.py", ""),
        ("python -m mine.train x.py", ""),
        ("python -m", ""),
        ("env A=1", ""),
        ("bash train.sh", ""),
        ("./wrapper train.py", ""),
        ("singularity exec image.sif python train.py", ""),
    ],
)
def test_whose_text_is_looked_at(command: str, script: str) -> None:
    assert script_of(command.split()) == script


@pytest.mark.parametrize("command", ["python train.py", "torchrun --nproc-per-node 2 train.py"])
def test_a_script_that_keeps_nothing(tmp_path: Path, command: str) -> None:
    said = note(spec(tmp_path, PLAIN, command))
    assert said.startswith("train.py shows no way to checkpoint: after a suspend or a preemption it starts over")
    assert "docs/trainer-guide.md" in said


HF = "from transformers import Trainer, TrainingArguments\ntrainer = Trainer(model, TrainingArguments('out'))\n"


@pytest.mark.parametrize(
    "line",
    [
        "trainer.train(resume_from_checkpoint=True)",
        "trainer.train(resume_from_checkpoint=transformers.trainer_utils.get_last_checkpoint('out'))",
        "args.load_best_model_at_end, checkpoint = True, None",
        "model = AutoModel.from_pretrained('out/checkpoint-500')\nmodel.eval()",
    ],
)
def test_a_script_of_hugging_face_that_names_a_checkpoint(tmp_path: Path, line: str) -> None:
    said = note(spec(tmp_path, f"{HF}{line}\n"))
    assert said.startswith(
        "train.py has only the checkpoints that Hugging Face's Trainer makes by itself: after a suspend"
    )
    assert "hf.train(trainer) for trainer.train()" in said
    for own in ("import signal", "from hpcdl.trainer import hf", "TrainingArguments(enable_jit_checkpoint=True)"):
        assert note(spec(tmp_path, f"{HF}{line}\n{own}\n")) == ""
    assert note(spec(tmp_path, f"{HF}{line}\n", resumes="out/checkpoint-*")) == ""
    assert "starts over" in note(spec(tmp_path, f"{HF}trainer.train()\nmodel.eval()\n"))


def test_modules_beside_it_are_looked_at_too(tmp_path: Path) -> None:
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("from . import loop\nfrom .loop import run\n")
    (package / "loop.py").write_text("import json\n\ndef run():\n    pass\n")
    text = "import parts\nfrom parts.loop import (\n    run,\n)\n"
    assert note(spec(tmp_path, PLAIN + text))
    (package / "loop.py").write_text("import signal\n\ndef run():\n    pass\n")
    assert note(spec(tmp_path, PLAIN + text)) == ""


@pytest.mark.parametrize(
    "line",
    [
        "import hpcdl",
        "from hpcdl.trainer.torch import suspendable",
        "import signal",
        "import submitit",
        "import our_lab",
        "from our_lab.training import main",
        "from .loop import run",
        "state = torch.load('last.pt')",
        "trainer.train(resume_from_checkpoint=True)",
        "callbacks=[keras.callbacks.BackupAndRestore('b')]",
        "manager = tf.train.CheckpointManager(c, 'd', 3)",
        "import subprocess",
        "def broken(:",
    ],
)
def test_whatever_may_keep_its_work_is_not_accused(tmp_path: Path, line: str) -> None:
    assert note(spec(tmp_path, f"{PLAIN}{line}\n")) == ""


@pytest.mark.parametrize(
    "more",
    [
        {"signal": "submitit"},
        {"signal": "SIGUSR1"},
        {"signal": "none"},
        {"resumes": ""},
        {"resumes": "out/*"},
        {"rescale": "in-process", "nodes_max": 2},
        {"batch": BatchTasks("slurm")},
    ],
)
def test_whoever_has_said_how_it_is_suspended_knows(tmp_path: Path, more: dict[str, Any]) -> None:
    assert note(spec(tmp_path, PLAIN, **more)) == ""


def test_what_is_not_here_is_not_judged(tmp_path: Path) -> None:
    assert note(spec(tmp_path, PLAIN, "python there.py")) == ""
    assert note(spec(tmp_path, PLAIN + "#" * (1 << 18))) == ""


def test_submit_says_it_on_a_terminal_and_in_json(
    fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PLAIN)
    words = ("submit", "--", "python3", "train.py")
    piped = hpcdl(*words)
    assert (piped.code, "starts over" in piped.err) == (0, False)
    assert "starts over" in hpcdl("submit", "--json", *words[1:]).value["jobs"][0]["starts_over"]
    monkeypatch.setattr("hpcdl.cli.submit.starts_over.on_terminal", lambda: True)
    said = hpcdl(*words)
    monkeypatch.setenv("HPCDL_VERBOSE", "0")
    silent = hpcdl(*words)
    assert (said.code, said.err.count("starts over")) == (0, 1)
    assert (silent.code, silent.err) == (0, piped.err)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("python fit.py --gpus 2", "--gpus 2"),
        ("python fit.py --lr 1 --gpus=2 --after 3", "--gpus=2"),
        ("python fit.py --lr 1", ""),
        ("--gpus 1 python fit.py --gpus 2", ""),
        ("-- python fit.py --gpus 2", ""),
        ("python fit.py -- --gpus 2", ""),
    ],
)
def test_an_option_behind_the_command_is_doubted_on_a_terminal(
    fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.py").write_text("import hpcdl\n")
    piped = hpcdl("submit", *words.split())
    assert (piped.code, "stand before" in piped.err) == (0, False)
    monkeypatch.setattr("hpcdl.cli.submit.starts_over.on_terminal", lambda: True)
    said = [line for line in hpcdl("submit", *words.split()).err.splitlines() if "stand before" in line]
    line = f"hpcdl: {option} goes to fit.py: options of hpcdl stand before the command, hpcdl submit {option} python …"
    assert [each.partition(" (")[0] for each in said] == ([line] if option else [])
