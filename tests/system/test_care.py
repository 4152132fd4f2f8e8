"""GPUs with faults, jobs that stand still, and who is told: with real daemons, agents, trainers and commands."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.system.cluster import Cluster

MakeCluster = Callable[..., Cluster]

TELL = """
import json, os, sys
body = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    for notice in body["notices"]:
        print(json.dumps([notice["id"], notice["kind"], notice["job"], notice["detail"]]), file=file)
if os.path.exists(sys.argv[1] + ".broken"):
    sys.exit(1)
"""


def say(cluster: Cluster, index: int, **health: Any) -> None:
    """What the driver of an emulated GPU says from now on."""
    lock = next(cluster.home.glob(f"run/n1/emulated/*-{index}.lock"))
    path = lock.with_suffix(".health")
    path.with_suffix(".new").write_text(json.dumps(health))
    os.replace(path.with_suffix(".new"), path)


def gpus(cluster: Cluster) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = cluster.client.get("/v1/nodes")["nodes"][0]["gpus"]
    return rows


def test_an_xid_moves_the_job_and_the_gpu_is_used_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=2).start()
    cluster.hold()
    job = cluster.submit("--save-every", 10, steps=60)
    cluster.until_step(job, 15)
    assert cluster.job(job)["placement"] == {"n1": [0]}
    say(cluster, 0, xids=[13, 79], ecc_uncorrected=2)
    cluster.until(lambda: cluster.job(job)["placement"] == {"n1": [1]})
    kinds = [event["kind"] for event in cluster.events()]
    assert kinds.count("GpuFaulted") == kinds.count("GpuAvoided") == 1, "13 is a program's own doing"
    row = gpus(cluster)[0]
    assert row["avoid_reason"] == "Xid 79: the GPU has fallen off the bus"
    assert row["avoided_until"] > 0
    cluster.until(lambda: (gpus(cluster)[0]["health"] or {}).get("xids") == [13, 79])
    assert gpus(cluster)[0]["health"]["ecc_uncorrected"] == 2
    assert [(row["gpu"], row["times"]) for row in cluster.cli("avoid", "--json")["avoided"]] == [(0, 1)]
    # All is avoided: a job says so, until a time is over, and until its user says so.
    cluster.cli("avoid", "n1:1", "--for", "600", "--reason", "loud")
    waits = cluster.submit(steps=20)
    cluster.until(lambda: "n1:1 is excluded until" in cluster.job(waits)["reason"])
    assert "n1:0 is excluded until" in cluster.cli("why", str(waits))
    cluster.cli("avoid", "n1:0", "--for", "1")
    cluster.until(lambda: [row["gpu"] for row in cluster.cli("avoid", "--json")["avoided"]] == [1])
    cluster.until_done(waits)
    assert cluster.cli("avoid", "--lift", "n1:1") == "n1:1 may be granted again\n"
    assert cluster.cli("avoid") == ""
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    ended = [event["body"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded"]
    assert [body["cause"] for body in ended] == ["suspended", "done"]


def test_a_job_that_stands_still_is_told_and_started_again(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The notices survive that their command fails, and that the daemon is killed."""
    said, broken = tmp_path / "said", tmp_path / "said.broken"
    program = tmp_path / "tell.py"
    program.write_text(TELL)
    broken.touch()
    tell = f"{sys.executable} {program} {said}"
    cluster = make_cluster(gpus=1, notify=tell).start()
    cluster.hold()
    job = cluster.submit("--save-every", 10, steps=60, options=("--stall", "8:restart"))
    cluster.until(lambda: "IncarnationEnded" in cluster.kinds(job))  # released before, it may be done sooner
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 60)
    row = cluster.job(job)
    assert row["retries_used"] == 0
    ended = [event["body"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded"]
    assert ended[0]["cause"] == "stalled"
    assert ended[0]["detail"].startswith("no step for ")
    assert ended[-1]["cause"] == "done"
    seen = [(event["kind"], event["body"]) for event in cluster.events(job)]
    first = next(at for at, (kind, _) in enumerate(seen) if kind == "IncarnationEnded")
    saved = [body["step"] for kind, body in seen[:first] if kind == "Saved"]
    resumed = [body["step"] for kind, body in seen if kind == "TrainerReady"]
    assert resumed[1] >= max(saved) >= 10, "it resumed from its last checkpoint"  # of which it may not have told
    cluster.until(lambda: any(event["kind"] == "NoticesFailed" for event in cluster.events()))
    rows = cluster.cli("notices", "--json")["notices"]
    assert {each["kind"] for each in rows} == {"stall", "preemption", "end"}
    assert rows[0]["destinations"][0]["destination"] == f"{sys.executable} …"
    cluster.kill_daemon()
    broken.unlink()
    said.unlink()
    cluster.start()
    cluster.cli("notices", "--retry")
    cluster.until(lambda: cluster.cli("notices", "--json")["notices"] == [])
    told = [json.loads(line) for line in said.read_text().splitlines()]
    assert sorted({kind for _, kind, _, _ in told}) == ["end", "preemption", "stall"]
    assert len({number for number, _, _, _ in told}) == len(rows)
    assert all(about == job for _, _, about, _ in told)
