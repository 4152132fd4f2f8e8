"""A second training in one process is refused before the first one's checkpoint is loaded into it."""

import os
import subprocess
from pathlib import Path

import pytest

from hpcdl.trainer.session import ONE_TRAINING
from tests.frameworks.trained import HERE, PATIENCE_S, PYTHON, ROOT

NAMES = {
    "hf": "Hugging Face Trainer",
    "hf_callbacks": "Hugging Face Trainer",
    "hf_again": "Hugging Face Trainer",
    "lightning_fit": "Lightning",
    "lightning_callbacks": "Lightning",
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.holds(of, "a second training is refused")) for name, of in NAMES.items()],
)
def test_a_second_training_is_refused(tmp_path: Path, name: str) -> None:
    """Also where the first was completed by an earlier attempt, so that there is a checkpoint as the process begins."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HPCDL_")}
    environ.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", HPCDL_CHECKPOINT_DIR=str(tmp_path))
    for _ in range(2):
        argv = [PYTHON, str(HERE / "second_fit.py"), name]
        done = subprocess.run(argv, env=environ, timeout=PATIENCE_S, capture_output=True, text=True, check=False)
        begun = [line for line in done.stdout.splitlines() if line.startswith("begins")]
        assert (done.returncode, begun) == (1, ["begins 2", "begins 3"]), done.stderr
        last = [line.replace("[rank0]: ", "") for line in done.stderr.splitlines()[-5:]]
        assert f"RuntimeError: {ONE_TRAINING}" in last, done.stderr
