"""Two trainings in one process of a real job."""

import sys
from pathlib import Path

from hpcdl.trainer.session import ONE_TRAINING
from tests.system.cluster import Cluster

FOLDS = """
import hpcdl.trainer as hpcdl

hpcdl.attach()
for fold in range(2):
    def load(folder):
        assert (folder / "fold").read_text() == str(fold), "it was given the other's"
    for step in hpcdl.steps(5, save=lambda folder: (folder / "fold").write_text(str(fold)), load=load):
        pass
    print("done", fold, flush=True)
"""


def test_the_second_fold_is_refused_in_a_line_that_says_what_to_do(kept_cluster: Cluster, tmp_path: Path) -> None:
    cluster = kept_cluster
    (tmp_path / "folds.py").write_text(FOLDS)
    words = ("--retries", "0", "--", sys.executable, str(tmp_path / "folds.py"))
    job = int(cluster.cli("submit", "--json", *words)["jobs"][0]["id"])
    cluster.until_state(job, "FAILED", "DONE")
    row, log = cluster.job(job), cluster.cli("logs", str(job))
    assert (row["state"], row["cause"]) == ("FAILED", "user error"), log
    assert log.startswith("done 0")
    assert ONE_TRAINING in log
    assert ONE_TRAINING in cluster.cli("why", str(job)).replace("\n", " ")
