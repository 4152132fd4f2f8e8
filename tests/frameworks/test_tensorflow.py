"""TensorFlow loops around a `tf.train.Checkpoint`: suspended, killed, resumed, the weights are those of a run that
nothing happened to; on one device, on two replicas, and by two workers whose TF_CONFIG hpcdl makes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.trained import HERE, PYTHON, Trained
from tests.system.cluster import Cluster

SCRIPT = str(HERE / "tensorflow_loop.py")
WORKERS = ["-m", "hpcdl.trainer.ranks"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A daemon with two GPUs that are emulated, for two ranks."""
    folder = tmp_path_factory.mktemp("frameworks")
    os.environ.pop("HPCDL_CHECKPOINT_DIR", None)
    cluster = Cluster(folder / "home", gpus=2)
    cluster.start()
    try:
        yield Trained(cluster, folder)
    finally:
        cluster.stop()


@pytest.mark.parametrize(("kind", "stops"), [("plain", (7,)), ("mirrored", (13,))])
def test_bit_for_bit(trained: Trained, tmp_path: Path, kind: str, stops: tuple[int, ...]) -> None:
    """Suspended, and then killed 5 steps after the checkpoint of step 10 where that comes."""
    whole, _ = trained.run([SCRIPT, kind])
    kills = {"TEST_KILLS_AT": f"{tmp_path}:0:15"} if kind == "plain" else {}
    parts, began = trained.run([SCRIPT, kind], stops, **kills)
    assert began == [0, *stops, *([10] if kills else [])]
    assert parts == whole


def test_two_workers(trained: Trained, tmp_path: Path) -> None:
    """Suspended at a step that they agree on; then one is killed, and the whole job goes on from its checkpoint."""
    command = [*WORKERS, "2", "--tf-config", "--", PYTHON, SCRIPT, "workers"]
    whole, _ = trained.run(command, (), "--gpus", "2")
    other = (trained.newest / "out.1").read_text()
    parts, began = trained.run(command, (7,), "--gpus", "2", TEST_KILLS_AT=f"{tmp_path}:1:15")
    assert began[0] == 0
    assert began[1] in (7, 8), "they stop at the step boundary that comes next for all"
    assert began[2] == 10
    assert (parts, (trained.newest / "out.1").read_text()) == (whole, other)
