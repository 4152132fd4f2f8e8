"""Without hpcdl: nothing is done, save that checkpoints work on a folder that was given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.trainer import Session, StaleIncarnation, checkpoints
from hpcdl.trainer.session import ONE_TRAINING
from tests.trainer.supervisor import EXAMPLES, ROOT


def outside(rank: int | None = None, checkpoint_dir: Path | None = None, **env: str) -> Session:
    session = Session(env, rank, checkpoint_dir)
    before = signal.getsignal(signal.SIGTSTP)
    session.connect()
    assert signal.getsignal(signal.SIGTSTP) == before
    return session


def test_no_op() -> None:
    session = outside()
    session.ready(0)
    session.progress(1, 2, 3)
    session.done(1)
    assert session.should_suspend() is False
    assert session.resume() is None
    with pytest.raises(ValueError, match="--checkpoint-dir"), session.checkpoint(1):
        pass
    with pytest.raises(SystemExit) as caught:
        session.exit_suspended()
    assert caught.value.code == 0


def test_checkpoints_on_a_folder(tmp_path: Path) -> None:
    session = outside(checkpoint_dir=tmp_path)
    for step, text in [(1, "a"), (2, "b"), (3, "c"), (3, "again")]:
        with session.checkpoint(step) as temporary:
            (temporary / "w").write_text(text)
    best = session.resume()
    assert best is not None
    assert (best.step, (best.path / "w").read_text()) == (3, "again")
    second = session.resume(before=best)
    assert second is not None
    assert second.step == 2
    assert session.resume(before=second) is None


def test_the_folder_of_a_job_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "claim.json").write_text(json.dumps({"v": 1, "job": 1, "incarnation": 1, "tag": "x:1:1"}))
    with pytest.raises(StaleIncarnation), outside(checkpoint_dir=tmp_path).checkpoint(1):
        pass
    assert os.listdir(tmp_path) == ["claim.json"]


def test_ranks(tmp_path: Path) -> None:
    assert outside().writer
    assert outside(RANK="2", HPCDL_NODE_RANK="1").rank == 2
    assert outside(RANK="", HPCDL_NODE_RANK="1").rank == 1
    assert outside(rank=0, RANK="2").rank == 0
    with outside(rank=1, checkpoint_dir=tmp_path).checkpoint(1) as scratch:
        (scratch / "w").write_text("w")
    assert not scratch.exists()
    assert checkpoints.complete(tmp_path) == []


def test_example_resumes_by_itself(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    environ["PYTHONPATH"] = str(ROOT)
    argv = [sys.executable, str(EXAMPLES / "plain_python.py"), "--checkpoint-dir", str(tmp_path / "ckpt")]

    def train(*more: str) -> str:
        out = tmp_path / "out"
        subprocess.run([*argv, "--out", str(out), *more], env=environ, check=True, timeout=180, capture_output=True)
        return out.read_text()

    half = train("--steps", "30")
    whole = train("--steps", "60")
    assert half != whole
    assert train("--steps", "60", "--checkpoint-dir", str(tmp_path / "other")) == whole


HEAD = """
import sys
import hpcdl.trainer as hpcdl

hpcdl.attach()

"""
OF_TORCH = """
import torch

def parts(width):
    model = torch.nn.Linear(width, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

"""
OF_KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
from hpcdl.trainer.keras import suspendable

def compiled(width):
    model = keras.Sequential([keras.layers.Input((width,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def fit(model, resume, width):
    x = numpy.ones((4, width), "float32")
    model.fit(x, x[:, :1], batch_size=2, epochs=1, verbose=0, callbacks=[resume], initial_epoch=resume.initial_epoch)

"""
SECOND = {
    "steps": """
def train(width):
    def load(folder):
        assert (folder / "width").read_text() == str(width), "it was given the other's"
    for step in hpcdl.steps(3, save=lambda folder: (folder / "width").write_text(str(width)), load=load):
        pass
""",
    "a loop of its own": """
def train(width):
    found = hpcdl.resume()
    assert found is None or (found.path / "width").read_text() == str(width), "it was given the other's"
    hpcdl.ready(found.step if found else 0)
    with hpcdl.checkpoint(3) as folder:
        (folder / "width").write_text(str(width))
    hpcdl.done(3)
""",
    "torch": OF_TORCH
    + """
from hpcdl.trainer.torch import steps
def train(width):
    model, optimizer = parts(width)
    for step in steps(3, model=model, optimizer=optimizer):
        pass
""",
    "torch, epochs": OF_TORCH
    + """
from hpcdl.trainer.torch import epochs
def train(width):
    model, optimizer = parts(width)
    for epoch, batches in epochs(torch.utils.data.DataLoader(torch.ones(4, width)), 1, every=1, model=model):
        list(batches)
""",
    "elastic": OF_TORCH
    + """
from hpcdl.trainer import elastic
def train(width):
    model, optimizer = parts(width)
    elastic.run(lambda world: list(world.steps()), total=3, model=model, optimizer=optimizer)
""",
    "keras": OF_KERAS
    + """
def train(width):
    model = compiled(width)
    fit(model, suspendable(model), width)
""",
    "keras, callbacks that were made before": OF_KERAS
    + """
made = {width: compiled(width) for width in (2, 3)}
resumes = {width: suspendable(model) for width, model in made.items()}
def train(width):
    fit(made[width], resumes[width], width)
""",
}
TAIL = """
for width in (2, 3):
    print("begins", width, flush=True)
    train(width)
"""


@pytest.mark.parametrize("helper", SECOND)
def test_a_second_training_of_a_process_is_refused(tmp_path: Path, helper: str) -> None:
    """Before anything of the first's checkpoint is loaded into it, from which it would go on, and so train nothing."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    environ.update(PYTHONPATH=str(ROOT), KERAS_HOME=str(tmp_path))

    def train(**more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", HEAD + SECOND[helper] + TAIL]
        return subprocess.run(argv, env={**environ, **more}, timeout=180, capture_output=True, text=True, check=False)

    if helper == "steps":
        assert (train().returncode, train().stdout) == (0, "begins 2\nbegins 3\n")
    for _ in range(2):  # started again, the first has nothing left to do
        done = train(HPCDL_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
        assert (done.returncode, done.stdout) == (1, "begins 2\nbegins 3\n"), done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.replace("[rank0]: ", "") == f"RuntimeError: {ONE_TRAINING}"
