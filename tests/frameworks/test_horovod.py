"""Ranks of the real Horovod: suspended, resumed, killed, they train what they train when nothing happens to them."""

import contextlib
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hpcdl.trainer.horovod_rendezvous import HOST, INTERFACE, NODE, Rendezvous, sizes, slot
from tests.frameworks.trained import ENDED, HERE, PATIENCE_S, PYTHON, ROOT, Trained
from tests.support.waiting import until
from tests.system.cluster import Cluster, kill
from tests.trainer.supervisor import supervisor

BIN = Path(PYTHON).parent
NOT_BUILT = BIN.parent / "horovod-not-built"
STEPS = "20"
RANKS = ("-m", "hpcdl.trainer.ranks", "2", "--horovod", "--")
LAUNCHERS = {
    "horovodrun": (str(BIN / "horovodrun"), "-np", "2"),
    "ranks": (PYTHON, *RANKS),
    "mpirun": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"),
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


DOCS = ROOT / "docs"


def argv(framework: str) -> Sequence[str]:
    return (str(HERE / f"horovod_{framework}.py"), STEPS)


def rank_of(cluster: Cluster, number: int) -> int:
    """The process that was started as this rank and that trains."""
    names = {f"HOROVOD_RANK={number}", f"OMPI_COMM_WORLD_RANK={number}"}
    (found,) = (pid for pid in cluster.tagged() if trains(pid) and names.intersection(environment(pid)))
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
    job = two._submit(here, argv(framework), (*stops, 17), ("--gpus", "2"), {}, (*LAUNCHERS[launcher], PYTHON))
    for step in stops:
        two.suspend(job, here, step)
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


@pytest.fixture(scope="module")
def whole(two: Trained) -> str:
    """What ranks with PyTorch write to which nothing happens."""
    found, began = two.run((*RANKS, PYTHON, *argv("torch")), (), "--gpus", "2")
    assert found.startswith("2 "), "ranks"
    assert began == [0]
    return found


@pytest.mark.holds("Horovod with torch", "horovodrun", *HELD)
def test_torch_by_horovodrun(two: Trained, whole: str) -> None:
    assert suspended_and_killed(two, "horovodrun", "torch", (3, 12)) == whole


@pytest.mark.smoke
@pytest.mark.holds("Horovod with torch", "ranks of hpcdl's own", *HELD)
def test_torch_by_ranks_of_our_own(two: Trained, whole: str) -> None:
    assert suspended_and_killed(two, "ranks", "torch", (7,)) == whole


@pytest.mark.holds("Horovod with TensorFlow", "horovodrun", "ranks of hpcdl's own", *HELD)
def test_tensorflow(two: Trained) -> None:
    whole, _ = two.run((*RANKS, PYTHON, *argv("tensorflow")), (), "--gpus", "2")
    assert whole.startswith("2 "), "ranks"
    assert suspended_and_killed(two, "horovodrun", "tensorflow", (7,)) == whole


@pytest.mark.holds("Horovod with torch", "mpirun", *HELD)
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun: apt-get install openmpi-bin")
def test_mpirun(two: Trained, whole: str) -> None:
    assert suspended_and_killed(two, "mpirun", "torch", (3, 12)) == whole


def shown(guide: str, name: str, folder: Path) -> str:
    """The path of a file that a document shows."""
    found = re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", (DOCS / guide).read_text(), re.DOTALL)
    assert found is not None, f"{guide} shows no {name}"
    (folder / name).write_text(found[1])
    return str(folder / name)


def runs(cluster: Cluster, *argv: str) -> str:
    """The log of a job that ends well."""
    argv = ("--env", f"PYTHONPATH={ROOT}", "--env", "OMP_NUM_THREADS=1", *argv)
    job = int(cluster.cli("submit", "--json", *argv)["jobs"][0]["id"])
    cluster.until_state(job, *ENDED, seconds=PATIENCE_S)
    log = str(cluster.cli("logs", str(job)))
    assert cluster.job(job)["state"] == "DONE", log
    return log


@pytest.mark.holds("Horovod with torch", "the guides' scripts")
def test_the_guides(two: Trained, tmp_path: Path) -> None:
    script = shown("trainer-guide.md", "horovod_train.py", tmp_path)
    log = runs(two.cluster, "--gpus", "2", "--", *LAUNCHERS["ranks"], PYTHON, script)
    assert "rank 1 of 2 has trained" in log
    script = shown("elastic.md", "horovod_elastic_train.py", tmp_path)
    log = runs(two.cluster, "--nodes", "1:2", "--gpus", "2", "--rescale", "horovod", "--", PYTHON, script)
    assert log.count("120 steps") == 2, "ranks"
    script = shown("elastic.md", "horovod_elastic_tensorflow.py", tmp_path)
    log = runs(two.cluster, "--nodes", "1:2", "--gpus", "2", "--rescale", "horovod", "--", PYTHON, script)
    assert log.count("120 steps") == 2, "ranks"


LINE = re.compile(r"^step (\d+) loss (\S+) ranks (\d+) (\d+)$", re.MULTILINE)


def printed(cluster: Cluster, job: int) -> list[tuple[int, float, int, int]]:
    """(step, loss, ranks, process) as rank 0 printed them, in order of steps."""
    text = "".join(cluster.cli("logs", str(job)))
    return sorted((int(step), float(loss), int(ranks), int(pid)) for step, loss, ranks, pid in LINE.findall(text))


def trains_on(cluster: Cluster, job: int, nodes: Sequence[str]) -> bool:
    """Whether the newest membership has these nodes, and has formed."""
    orders = [event for event in cluster.events(job) if event["kind"] in ("RescaleRequested", "Reformed")]
    asked = [event["body"]["members"] for event in orders if event["kind"] == "RescaleRequested"]
    return bool(asked) and sorted(asked[-1]) == sorted(nodes) and orders[-1]["kind"] == "Reformed"


def ranks_on(cluster: Cluster, node: str) -> list[int]:
    """The processes there that train, or are about to."""
    return [pid for pid in cluster.tagged() if trains(pid) and f"HPCDL_NODE={node}" in environment(pid)]


def memberships(cluster: Cluster, job: int) -> int:
    """How many of them have trained."""
    return sum(event["kind"] == "Reformed" for event in cluster.events(job))


def trained_by_one(framework: str, steps: int) -> dict[int, float]:
    """The loss of each step of the elastic script, as one rank has it to which nothing happens."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    if framework == "tensorflow":
        for each in model.parameters():
            torch.nn.init.zeros_(each)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.5)
    losses = {}
    for step in range(steps):
        if framework == "tensorflow":
            x = torch.tensor(np.random.default_rng(step).normal(size=(16, 8)), dtype=torch.float32)
        else:
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses[step + 1] = loss.item()
    return losses


ELASTIC = "elastic: grows, loses a rank, shrinks, suspends, resumes"


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("torch", marks=pytest.mark.holds("Horovod with torch", ELASTIC)),
        pytest.param("tensorflow", marks=pytest.mark.holds("Horovod with TensorFlow", ELASTIC)),
    ],
)
def test_elastic(make_cluster: Callable[..., Cluster], tmp_path: Path, framework: str) -> None:
    cluster = make_cluster(gpus=1, policy="bftrainer")
    # Nodes of one machine are no faster than one, and a policy that learns this would give the job one.
    points = [{"nodes": nodes, "gpus": 1, "rate": 10.0 * nodes} for nodes in (1, 3)]
    cluster.add_profile("scales", points=points, startup_s=5, save_s=1, resume_s=5, grow_s=1, shrink_s=1)
    cluster.start()
    cluster.add_agent("n2", 1)
    options = ["--profile", "scales", "--nodes", "1:3", "--rescale", "horovod", "--steps", "100000", "--grace", "60"]
    options += ["--env", f"PYTHONPATH={ROOT}", "--env", "OMP_NUM_THREADS=1", "--cwd", str(tmp_path)]
    options += ["--env", "TF_CPP_MIN_LOG_LEVEL=2"]
    command = (PYTHON, str(HERE / f"horovod_elastic_{framework}.py"), "100000", "0.05")
    job = int(cluster.cli("submit", "--json", *options, "--", *command)["jobs"][0]["id"])
    cluster.until(lambda: trains_on(cluster, job, ["n1", "n2"]), PATIENCE_S)
    cluster.add_agent("n3", 1)
    cluster.until(lambda: trains_on(cluster, job, ["n1", "n2", "n3"]), PATIENCE_S)
    cluster.until_step(job, cluster.job(job)["step"] + 3)
    formed = memberships(cluster, job)
    cluster.until(lambda: bool(ranks_on(cluster, "n3")), PATIENCE_S)
    kill(ranks_on(cluster, "n3")[0])
    cluster.until(lambda: memberships(cluster, job) > formed, PATIENCE_S)
    cluster.until_step(job, cluster.job(job)["step"] + 3)
    for node in ("n2", "n3"):
        cluster.cli("drain", node)
    cluster.until(lambda: trains_on(cluster, job, ["n1"]), PATIENCE_S)
    cluster.until_step(job, cluster.job(job)["step"] + 3)
    lines = printed(cluster, job)
    assert {ranks for _, _, ranks, _ in lines} >= {1, 3}
    assert {step for step, *_ in lines} == set(range(1, lines[-1][0] + 1)), "no step is lost"
    whole = trained_by_one(framework, lines[-1][0])
    assert [loss for _, loss, *_ in lines] == pytest.approx([whole[step] for step, *_ in lines], rel=1e-2)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED", *ENDED, seconds=PATIENCE_S)
    saved = cluster.job(job)["saved_step"]
    assert saved >= lines[-1][0], cluster.cli("logs", str(job))
    cluster.cli("resume", str(job))
    cluster.until(lambda: printed(cluster, job)[-1][0] >= saved + 3, PATIENCE_S)
    lines = printed(cluster, job)
    assert saved + 1 in {step for step, *_ in lines}, "it goes on from what was saved"
    whole = trained_by_one(framework, lines[-1][0])
    assert [loss for _, loss, *_ in lines] == pytest.approx([whole[step] for step, *_ in lines], rel=1e-2)
    cluster.cli("cancel", str(job))
    cluster.until_state(job, *ENDED, seconds=PATIENCE_S)


@pytest.mark.holds("Horovod with torch", "two nodes agree without a collective")
@pytest.mark.holds("Horovod with TensorFlow", "two nodes agree without a collective")
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_ranks_of_two_nodes_agree_without_a_collective(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two run folders: their ranks share no memory. One of them is asked to suspend."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    with contextlib.ExitStack() as stack:
        parents = [stack.enter_context(supervisor(tmp_path / node, tmp_path / "ckpt")) for node in ("n1", "n2")]
        rendezvous = stack.enter_context(Rendezvous(HOST, sizes([NODE], [2])))
        rendezvous.start()
        children = []
        for rank, parent in enumerate(parents):
            environ = slot([2], 0, rank).environment(NODE, HOST, rendezvous.server_address[1], INTERFACE)
            parent.log = tmp_path / f"{rank}.log"
            children.append(parent.start([HERE / "horovod_nodes.py", framework], HPCDL_ADDRESS=HOST, **environ))
        # Both are looked at all the time: each answers the rank that attaches to it.
        until(lambda: min(len(each.of("progress")) for each in parents), "training on both nodes")
        until(lambda: parents[0].of("progress")[-1]["step"] > 20, "20 steps")
        children[1].send_signal(signal.SIGTSTP)
        codes = [parent.end(child) for parent, child in zip(parents, children, strict=True)]
        logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(2)]
        assert codes == [0, 0], logs
        final = parents[0].of("saved")[-1]["step"]
    for log in logs:
        said = re.search(r"trained (\d+) gathered (\d+)", log)
        assert said is not None, log
        assert (int(said[1]), final > 20) == (final, True)
        assert int(said[2]) < 15, "as many as at any other number of steps"
