"""A running daemon's settings, ledger, account and profiles, from the command line."""

import json
from pathlib import Path

from hpcdl.ledger import SqliteJournal
from tests.system.cluster import Cluster


def test_beside_a_running_daemon(cluster: Cluster, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in cluster.cli("config", "show", "--origin", "--json")["settings"]}
    assert (rows["monitor_interval_s"]["running"], rows["monitor_interval_s"]["differs"]) == (1, False)
    assert rows["policy"]["origin"].startswith(f"{cluster.home}/config.yaml:")
    # A profile that is added holds at once, for the next submit and in the list.
    cluster.cli("submit", "--profile", "fresh", "--", "true", code=1)
    added = cluster.cli("profile", "add", "--name", "fresh", "--rate", "1=10", "--rate", "2=19", "--json")
    assert (added["added"], added["daemon"]) == (["fresh"], True)
    assert "fresh" in {row["name"] for row in cluster.cli("profile", "ls", "--json")["profiles"]}
    job = cluster.cli("submit", "--profile", "fresh", "--json", "--", "sleep", "2")["jobs"][0]["id"]
    cluster.cli("profile", "add", "--name", "fresh", "--rate", "1=12", "--replace", "--json")
    assert cluster.cli("profile", "plot", "fresh", "--json")["profiles"][0]["points"][0]["rate"] == 12
    (cluster.home / "profiles" / "wrong.yaml").write_text("profiles: 3\n")
    cluster.cli("profile", "add", "--name", "other", "--rate", "1=1", code=1)
    assert not (cluster.home / "profiles" / "other.yaml").exists()
    (cluster.home / "profiles" / "wrong.yaml").unlink()
    cluster.cli("wait", str(job))
    # The ledger is checked, exported and copied while the daemon goes on.
    told = cluster.cli("ledger", "verify", "--json")
    assert (told["ok"], told["running"]) == (True, True)
    cluster.cli("ledger", "backup", str(tmp_path / "backup"), "--json")
    with SqliteJournal(tmp_path / "backup" / "ledger.sqlite") as journal:
        assert journal.last_seq >= told["events"] > 0
    lines = cluster.cli("ledger", "export").splitlines()
    assert json.loads(lines[0])["events"] == len(lines) - 1
    cluster.cli("ledger", "rebuild", code=1)
    cluster.cli("ledger", "vacuum", code=1)
    assert not list(cluster.home.glob("ledger-copy-*"))
    # What became of the GPU-hours.
    total = cluster.cli("report", "--json")["total"]
    parts = [total[f"{name}_gpu_h"] for name in ("useful", "starting", "saving", "rescaling", "lost", "idle")]
    assert total["useful_gpu_h"] > 0
    assert abs(sum(parts) - total["available_gpu_h"]) < 1e-9
