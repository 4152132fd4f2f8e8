"""Ranks of the real Horovod: suspended, resumed, killed, they train what they train when nothing happens to them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.frameworks.trained import ENDED, HERE, PATIENCE_S, PYTHON, Trained
from tests.guides.session import File, steps
from tests.system.cluster import Cluster, kill

BIN = Path(PYTHON).parent
NOT_BUILT = BIN.parent / "horovod-not-built"
STEPS = "20"
LAUNCHERS = {
    "horovodrun": (str(BIN / "horovodrun"), "-np", "2"),
    "ranks": ("-m", "hpcdl.trainer.ranks", "2", "--horovod", "--"),
}
pytestmark = pytest.mark.skipif(
    not (BIN / "horovodrun").exists(),
    reason=f"Horovod is not built: {NOT_BUILT.read_text().strip() if NOT_BUILT.exists() else '.ci/horovod does it'}",
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A daemon with two emulated GPUs, and what runs scripts on it."""
    folder = tmp_path_factory.mktemp("horovod")
    cluster = Cluster(folder / "home", gpus=2)
    cluster.start()
    try:
        yield Trained(cluster, folder)
    finally:
        cluster.stop()


GUIDE = Path(__file__).parents[2] / "docs" / "trainer-guide.md"


def argv(launcher: str, framework: str) -> Sequence[str]:
    return (*LAUNCHERS[launcher], PYTHON, str(HERE / f"horovod_{framework}.py"), STEPS)


def rank_of(cluster: Cluster, number: int) -> int:
    """The process that Horovod calls by this rank and that trains."""
    (found,) = (pid for pid in cluster.tagged() if trains(pid) and f"HOROVOD_RANK={number}" in environment(pid))
    return found


def environment(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return []


def trains(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return len(words) > 1 and Path(words[1]).name.startswith("horovod_")
    return False


def suspended_and_killed(two: Trained, launcher: str, framework: str, stops: Sequence[int]) -> str:
    """What a job wrote that is suspended and resumed at `stops`, and one of whose ranks is killed later on."""
    here = two._folder()
    job = two._submit(here, argv(launcher, framework), (*stops, 17), ("--gpus", "2"), {})
    for step in stops:
        two._suspend(job, here, step)
        two.cluster.cli("resume", str(job))
    two._until(job, here / "at-17")
    kill(rank_of(two.cluster, 1))
    two.cluster.until_state(job, *ENDED, seconds=PATIENCE_S)
    assert two.cluster.job(job)["state"] == "DONE", two.log(job)
    began = two.began(job)
    assert began[0] == 0
    assert began[-1] >= 15, "from its last checkpoint"
    assert len(set(began)) == len(stops) + 2, "each attempt went on from where the one before was"
    assert two.cluster.job(job)["spec"]["retries"] == 0, "none was spent"
    return (here / "out").read_text()


HELD = ("suspend, resume bit-exact", "kill -9")


@pytest.mark.holds("Horovod with torch", "horovodrun", "ranks of hpcdl's own", *HELD)
def test_torch(two: Trained) -> None:
    whole, began = two.run(argv("ranks", "torch"), (), "--gpus", "2")
    assert whole.startswith("2 "), "ranks"
    assert began == [0]
    assert suspended_and_killed(two, "horovodrun", "torch", (3, 12)) == whole
    assert suspended_and_killed(two, "ranks", "torch", (7,)) == whole


@pytest.mark.holds("Horovod with TensorFlow", "horovodrun", "ranks of hpcdl's own", *HELD)
def test_tensorflow(two: Trained) -> None:
    whole, _ = two.run(argv("ranks", "tensorflow"), (), "--gpus", "2")
    assert whole.startswith("2 "), "ranks"
    assert suspended_and_killed(two, "horovodrun", "tensorflow", (7,)) == whole


@pytest.mark.holds("Horovod with torch", "the guide's script")
def test_the_guide(two: Trained, tmp_path: Path) -> None:
    (shown,) = (each for each in steps(GUIDE.read_text()) if isinstance(each, File) and each.name == "horovod_train.py")
    script = tmp_path / shown.name
    script.write_text(shown.text)
    job = two.cluster.cli("submit", "--json", "--gpus", "2", "--", PYTHON, *LAUNCHERS["ranks"], PYTHON, str(script))
    number = int(job["jobs"][0]["id"])
    two.cluster.until_state(number, *ENDED, seconds=PATIENCE_S)
    assert two.cluster.job(number)["state"] == "DONE", two.log(number)
    assert "rank 1 of 2 has trained" in two.log(number)
