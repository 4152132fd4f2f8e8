"""TensorFlow loops around a `tf.train.Checkpoint`: suspended, killed, resumed, the weights are those of a run that
nothing happened to; on one device, on two replicas, and by two workers whose TF_CONFIG hpcdl makes."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.frameworks.trained import ENDED, HERE, PATIENCE_S, PYTHON, Trained
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


@pytest.mark.holds("TensorFlow", "suspend, resume bit-exact")
@pytest.mark.parametrize(("kind", "stops"), [("plain", (7,)), ("mirrored", (13,))])
def test_bit_for_bit(trained: Trained, tmp_path: Path, kind: str, stops: tuple[int, ...]) -> None:
    """Suspended, and then killed 5 steps after the checkpoint of step 10 where that comes."""
    whole, _ = trained.run([SCRIPT, kind])
    kills = {"TEST_KILLS_AT": f"{tmp_path}:0:15"} if kind == "plain" else {}
    parts, began = trained.run([SCRIPT, kind], stops, **kills)
    assert began == [0, *stops, *([10] if kills else [])]
    assert parts == whole


@pytest.mark.holds("TensorFlow", "two workers", "kill -9")
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


@pytest.mark.holds("TensorFlow", "parameter servers", "kill -9")
def test_parameter_servers(trained: Trained) -> None:
    """The guide's script, asynchronous, so not bit for bit: after a suspend it goes on from the step and the loss where
    it was; then a worker is killed, and all go on from their checkpoint; it ends though its servers never do."""
    command = [*WORKERS, "2", "--parameter-servers", "1", "--", PYTHON, str(HERE / "guide.py"), "ps_train.py"]
    here = trained._folder()
    job = trained._submit(here, command, (12, 25), ("--gpus", "2"), {})
    trained.suspend(job, here, 12)
    trained.cluster.cli("resume", str(job))
    trained._until(job, here / "at-25")
    os.kill(worker(here), signal.SIGKILL)
    trained.cluster.until_state(job, *ENDED, seconds=PATIENCE_S)
    assert trained.cluster.job(job)["state"] == "DONE", trained.log(job)
    assert trained.began(job) == [0, 12, 20]
    first, last = losses(trained, 1), losses(trained, 3)
    assert list(last) == list(range(20, 30))
    assert last[20] < first[0] / 4, "a model that begins anew has a loss like the first"


def losses(trained: Trained, attempt: int) -> dict[int, float]:
    """What an attempt of the newest job has printed, by step."""
    log = str(trained.cluster.cli("logs", str(trained.job), "--attempt", str(attempt)))
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)$", log, re.MULTILINE)}


def worker(here: Path) -> int:
    """The process of the second worker of what runs in that folder."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            environ = path.read_bytes()
            if str(here).encode() in environ and b'"type":"worker","index":1' in environ:
                return int(path.parent.name)
    raise AssertionError(f"no worker in {here}")
