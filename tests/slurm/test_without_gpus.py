"""The job script as it is, on a real Slurm whose nodes have no GPUs that it knows of."""

from collections.abc import Callable
from pathlib import Path

from tests.slurm.cluster import SlurmCluster
from tests.slurm.home import Home


def test_nodes_without_gpus_are_told_and_may_emulate_some(
    make_slurm: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    slurm = make_slurm(gpus=0)
    home = Home(slurm, tmp_path / "home")
    try:
        first = home.allocate("--time=30")
        said = "no GPU was granted to this batch job, so no job will start"
        slurm.wait_for(lambda: said in slurm.output(first), what="a word about GPUs")
        job = home.submit(steps=10)
        home.until(lambda: "ask the batch system for some" in home.job(job)["reason"])
        home.stop_daemon()
        slurm.until_state(first, "COMPLETED")
        home.environment["HPCDL_EMULATE_GPUS"] = "2"
        second = home.allocate("--time=30", "--nodes=1")
        assert "no GPU was granted" not in slurm.output(second)
        home.until_state(job, "DONE")
        assert [len(row["gpus"]) for row in home.cli("ls", "nodes", "--json")["nodes"] if row["connected"]] == [2]
    finally:
        home.stop()
