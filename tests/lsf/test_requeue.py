"""Allocations on the emulated LSF that run again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.lsf.cluster import LsfCluster
from tests.lsf.home import LsfHome


def test_a_requeue_does_not_fork_the_chain(make_lsf: Callable[..., LsfCluster], tmp_path: Path) -> None:
    """LSF says nothing of it to the batch job: LSB_RESTART is for lost hosts."""
    lsf = make_lsf()
    home = LsfHome(lsf, tmp_path / "home")
    try:
        home.environment["HPCDL_OPTIONS"] = "--chain 3"
        first = home.allocate("-W", "30", nodes=1)
        home.submit("--step-s", 0.05, steps=1_000_000)
        lsf.until(lambda: "is to go on after this one (2 more" in home.told(first), "the next one")

        def told(times: int) -> bool:
            return home.told(first).count("is to go on after this one already (2 more may follow)") == times

        record = home.home / "chain.json"
        for runs in (2, 3):
            if runs == 2:
                record.write_text(f'{{"lsf:{first}:": ""}}')  # as killed before it was known
            lsf.run("brequeue", first)
            lsf.until(partial(told, runs - 1), f"run {runs}")
        assert [(job.key, job.status) for job in lsf.state().jobs] == [(first, "RUN"), (str(int(first) + 1), "PEND")]
    finally:
        home.stop()
