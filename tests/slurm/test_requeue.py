"""Allocations on a real Slurm that run again: requeued by hand, or for their first node, which was lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.home import Home
from tests.support.extent import one_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def home(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Home]:
    made = Home(slurm, tmp_path / "home")
    yield made
    made.stop()


def runs_again(home: Home, slurm: SlurmCluster, batch_job: str, times: int = 1) -> None:
    """Until it has begun so often again. Slurm holds a requeued one back for two minutes, which we do not wait for."""
    slurm.wait_for(lambda: slurm.field(batch_job, "Restarts") == str(times), 90, "the requeue")
    slurm.until_state(batch_job, "PENDING")
    slurm.run("scontrol", "update", f"JobId={batch_job}", "StartTime=now")
    slurm.until_state(batch_job, "RUNNING")
    home.until(lambda: set(slurm.nodes(batch_job)) <= set(home.connected()))


def lines(slurm: SlurmCluster, batch_job: str, text: str) -> list[str]:
    return [line for line in slurm.output(batch_job).splitlines() if text in line]


def test_a_requeue_does_not_fork_the_chain(slurm: SlurmCluster, home: Home) -> None:
    home.environment["HPCDL_OPTIONS"] = "--chain 3"
    batch_job = home.allocate("-N1", "-t", "10")
    home.submit("--step-s", 0.05, steps=1_000_000)  # else the next one is cancelled at each end
    slurm.wait_for(lambda: lines(slurm, batch_job, "is to go on after this one (2 more"), what="the next one")
    (home.home / "chain.json").write_text(f'{{"slurm:{batch_job}:hpcdltest": ""}}')  # as killed before it was known
    for already in (1, 2):
        slurm.run("scontrol", "requeue", batch_job)
        runs_again(home, slurm, batch_job, already)
        found = "is to go on after this one already (2 more may follow)"
        slurm.wait_for(lambda: len(lines(slurm, batch_job, found)) == already, 60, "the next one again")  # noqa: B023
    listed = slurm.run("squeue", "-h", "-o", "%A %E").stdout.splitlines()
    assert len(listed) == 2, listed
    assert len([line for line in listed if line.endswith(f"afterany:{batch_job}(unfulfilled)")]) == 1
    assert len(lines(slurm, batch_job, "1 node")) == 3  # nothing of the earlier runs is lost
    assert len(lines(slurm, batch_job, "this batch job was requeued")) == 2


def taken_down(slurm: SlurmCluster, batch_job: str, node: str) -> None:
    """By an administrator, who turns it off once nothing is to be there any more."""
    slurm.down(node)
    slurm.wait_for(lambda: slurm.field(batch_job, "Restarts") == "1", 90, "the requeue")
    power_fails(slurm, batch_job, node)


def power_fails(slurm: SlurmCluster, batch_job: str, node: str) -> None:
    slurm.kill_node(node)
    slurm.down(node, "power")  # or Slurm notices by itself, after SlurmdTimeout


@pytest.mark.parametrize("lose", one_of(taken_down, power_fails))
def test_the_loss_of_the_first_node_does_not_end_the_queue(
    slurm: SlurmCluster, home: Home, lose: Callable[[SlurmCluster, str, str], None]
) -> None:
    batch_job = home.allocate("-N2", "-t", "10")
    job = home.submit("--step-s", 0.05, "--save-every", 20, gpus="4", steps=1_000_000)
    home.until_step(job, 30)
    lose(slurm, batch_job, slurm.nodes(batch_job)[0])
    runs_again(home, slurm, batch_job)
    home.until(lambda: home.job(job)["state"] == "RUNNING")
    home.until_step(job, home.job(job)["step"] + 20)
    assert lines(slurm, batch_job, "this batch job was requeued")
    assert len(lines(slurm, batch_job, "2 nodes")) == 2
    home.cli("cancel", str(job))


def test_the_loss_of_another_node_ends_its_step_only(slurm: SlurmCluster, home: Home) -> None:
    batch_job = home.allocate("-w", "n[1-2]", "-t", "10")
    slurm.kill_node("n2")
    slurm.down("n2", "power")
    home.until(lambda: home.connected() == ["n1"])
    assert slurm.state(batch_job) == "RUNNING"
    assert slurm.field(batch_job, "Restarts") == "0"
