"""SIGKILL of whatever there is, at the worst instants: nothing is lost, nothing runs twice, nothing is left.

The cluster fixture checks at the end of each test that no GPU was held twice (a trainer that finds its GPU held says
so in its log), that no process is left, and that the ledger does not contradict itself.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.agent.supervisor.processes import process_of
from hpcdl.client import Client
from hpcdl.wire.access import read_access
from tests.support.waiting import until
from tests.system.cluster import ANOTHER_MODEL, PATIENCE_S, TRAINER, Cluster, kill
from tests.system.proxy import Proxy

MakeCluster = Callable[..., Cluster]
LEASE: dict[str, float] = {"agent_lease_s": 4, "lease_margin_s": 1}
"""Soon over, and not because an agent or the daemon waits for a processor or the disk."""


@pytest.fixture
def cluster(kept_cluster: Cluster) -> Cluster:
    return kept_cluster


def test_daemon_killed_while_training(cluster: Cluster) -> None:
    cluster.hold()
    jobs = [cluster.submit(steps=400), cluster.submit(steps=400)]
    for job in jobs:
        cluster.until_step(job, 10)
    pids = {job: cluster.trainer_pid(job) for job in jobs}
    cluster.kill_daemon()
    assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
    cluster.start()
    cluster.release()
    cluster.until_done(*jobs)
    for job in jobs:
        cluster.check_weights(job, 400)
        assert cluster.job(job)["incarnation"] == 1  # it was never started again


def test_daemon_killed_while_a_job_saves(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit("--save-s", 0.6, "--save-every", 10000, steps=200)
    cluster.until_step(job, 10)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDING", "SUSPENDED")
    cluster.kill_daemon()
    cluster.start()
    cluster.until_state(job, "SUSPENDED")
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 200)
    assert cluster.job(job)["suspends"] == 1


@pytest.mark.long
def test_daemon_killed_between_record_and_act(make_cluster: MakeCluster) -> None:
    """The start is in the ledger and was never sent: HPCDL_TEST has no say in the daemon, so the agent is away."""
    cluster = make_cluster(gpus=2).start()
    agent = cluster.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    try:
        job = cluster.submit(steps=50)
        cluster.until(lambda: "StartRequested" in cluster.kinds(job))
        cluster.kill_daemon()
    finally:
        os.kill(agent, signal.SIGCONT)
    cluster.start()
    cluster.until_done(job)
    cluster.check_weights(job, 50)
    assert cluster.job(job)["incarnation"] == 1


def test_daemon_killed_during_500_submits(make_cluster: MakeCluster) -> None:
    """Every acknowledged job is there after the restart, and none twice."""
    cluster = make_cluster(gpus=1).start()
    acknowledged: dict[str, list[int]] = {}
    failed: list[str] = []

    def submit(first: int) -> None:
        client = Client(cluster.home, patience_s=PATIENCE_S)
        for number in range(first, first + 125):
            body = {"request_id": f"r{number}", "jobs": [{"command": ["true"], "name": f"j{number}"}]}
            try:
                answer = client.request("POST", "/v1/jobs", body)
            except Exception as error:  # looked at below
                failed.append(repr(error))
                continue
            acknowledged[f"r{number}"] = [row["id"] for row in answer["jobs"]]
        client.close()

    cluster.submit(steps=100_000)  # keeps the GPU, so that the others wait
    threads = [threading.Thread(target=submit, args=(first,)) for first in range(0, 500, 125)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        until(lambda: len(acknowledged) >= 60 or not any(thread.is_alive() for thread in threads), "60 answers")
        cluster.kill_daemon()
        cluster.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(acknowledged) == 500
    rows = {row["id"]: row["name"] for row in cluster.cli("ls", "--all", "--json")["jobs"]}
    assert {f"j{name[1:]}" for name in acknowledged} <= set(rows.values())
    assert sorted(rows) == list(range(1, 502))
    for request, ids in acknowledged.items():
        assert [rows[number] for number in ids] == [f"j{request[1:]}"]


def test_agent_killed_while_training(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit(steps=400)
    cluster.until_step(job, 10)
    trainer = cluster.trainer_pid(job)
    kill(cluster.agent_pid())
    assert Path(f"/proc/{trainer}").exists()
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 400)
    assert cluster.job(job)["incarnation"] == 1


def test_agent_killed_while_a_job_saves(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit("--save-s", 0.6, "--save-every", 10000, steps=200)
    cluster.until_step(job, 10)
    agent = cluster.agent_pid()
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDING", "SUSPENDED")
    kill(agent)
    cluster.until_state(job, "SUSPENDED")
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 200)


def test_trainer_killed_while_training(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit("--save-every", 20, steps=200)
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 20)
    kill(cluster.trainer_pid(job))
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 200)
    row = cluster.job(job)
    assert (row["incarnation"], row["retries_used"]) == (2, 0)
    resumed = [e["body"]["step"] for e in cluster.events(job) if e["kind"] == "TrainerReady"][1]
    ended = next(event["body"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded")
    assert ended["reached"] - resumed <= 20


def test_trainer_killed_in_the_middle_of_a_save(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit("--save-s", 1, "--save-every", 25, steps=40)
    folder = cluster.home / "checkpoints" / str(job)
    trainer = cluster.trainer_pid(job)
    cluster.until(lambda: any(folder.glob(".tmp-*")) or any(folder.glob("step-*")))
    kill(trainer)
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 40)
    assert not list(folder.glob(".tmp-*"))


def test_trainer_killed_at_the_gate(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=4).start()
    cluster.cli("config", "policy", "marble-warm")
    cluster.hold()
    first = cluster.submit("--step-s", 0.02, steps=100, gpus="1:3", options=ANOTHER_MODEL)
    stand = cluster.home.parent / "stand"  # whichever of its attempts trains does not end before the kill
    stand.touch()
    script = [sys.executable, "-m", "hpcdl.trainer.gate", str(Path(__file__).with_name("trainer.py"))]
    options = ["200", "--step-s", "0.02", "--save-s", "3", "--save-every", "10000", "--pause", str(stand)]
    answer = cluster.cli("submit", "--json", "--gpus", "1:3", "--steps", "200", "--", *script, *options)
    second = answer["jobs"][0]["id"]
    cluster.until_state(second, "RUNNING")
    cluster.release()
    cluster.until(lambda: "AtGate" in cluster.kinds(second))

    def gated() -> list[int]:
        return [line["pid"] for line in cluster.status()["trainers"] if line["incarnation"] == 2]

    cluster.until(lambda: gated() != [])
    kill(gated()[0])
    stand.unlink()
    cluster.until_done(first, second)
    cluster.check_weights(second, 200)
    assert cluster.job(second)["retries_used"] == 0


def test_a_stopped_trainer_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(stopped_s=1).start()
    cluster.hold()
    job = cluster.submit(steps=200)
    cluster.until_step(job, 10)
    os.kill(cluster.trainer_pid(job), signal.SIGSTOP)
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 200)


def test_a_stopped_trainer_is_suspended(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit(steps=200)
    cluster.until_step(job, 10)
    os.kill(cluster.trainer_pid(job), signal.SIGSTOP)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDED")
    assert cluster.job(job)["suspends"] == 1
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 200)


def test_a_supervisor_killed_takes_its_trainer_along(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit("--save-every", 20, steps=200)
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 20)
    trainer = cluster.trainer_pid(job)
    kill(next(line["supervisor"] for line in cluster.status()["trainers"] if line["job"] == job))
    cluster.until(lambda: not Path(f"/proc/{trainer}").exists())
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 200)
    assert cluster.job(job)["retries_used"] == 0


def test_daemon_and_agent_killed_together(cluster: Cluster) -> None:
    cluster.hold()
    job = cluster.submit(steps=400)
    cluster.until_step(job, 10)
    agent = cluster.agent_pid()
    cluster.kill_daemon()
    kill(agent)
    cluster.start()
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 400)
    assert cluster.job(job)["incarnation"] == 1


@pytest.mark.long
def test_daemon_and_agent_gone_for_long(make_cluster: MakeCluster) -> None:
    """Supervisors that no agent adopts have their trainers checkpoint and end."""
    cluster = make_cluster(agent_absence_s=3).start()
    cluster.hold()
    job = cluster.submit("--save-every", 10000, steps=400)
    cluster.until_step(job, 10)
    agent = cluster.agent_pid()
    cluster.kill_daemon()
    kill(agent)
    cluster.until(lambda: cluster.tagged() == [])
    cluster.start()
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 400)
    assert cluster.job(job)["suspends"] == 1


@pytest.mark.long
def test_one_of_two_nodes_loses_its_agent_in_the_middle_of_a_save(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(gpus=2).start()
    agent = cluster.add_agent("n2", 2)
    cluster.hold()
    job = cluster.submit("--save-s", 0.8, "--save-every", 10000, steps=200, gpus="2", options=("--nodes", "2"))
    cluster.until_step(job, 10)
    cluster.cli("suspend", str(job))
    cluster.until_state(job, "SUSPENDING", "SUSPENDED")
    kill(agent.pid)
    agent.wait()
    cluster.add_agent("n2", 2)
    cluster.until_state(job, "SUSPENDED")
    cluster.release()
    cluster.cli("resume", str(job))
    cluster.until_done(job)
    cluster.check_weights(job, 200)


@pytest.mark.long
def test_the_writer_is_killed_after_the_other_node_was_done(make_cluster: MakeCluster) -> None:
    """Their ranks do not wait for each other: that one was done is no end of the training."""
    cluster = make_cluster(gpus=2).start()
    cluster.add_agent("n2", 2)
    pace = 'if [ "$HPCDL_NODE_RANK" = 0 ]; then pace=0.4; else pace=0.001; fi; exec "$@" --step-s "$pace"'
    argv = ["sh", "-c", pace, "sh", sys.executable, str(TRAINER), "25", "--save-every", "5"]
    answer = cluster.cli("submit", "--json", "--nodes", "2", "--gpus", "2", "--steps", "25", "--", *argv)
    job = int(answer["jobs"][0]["id"])

    def ended() -> list[str]:
        return [event["body"]["node"] for event in cluster.events(job) if event["kind"] == "Exited"]

    cluster.until(lambda: ended() != [])
    assert ended() == ["n2"]
    cluster.until(lambda: cluster.job(job)["saved_step"] is not None)
    kill(cluster.trainer_pid(job))
    cluster.until_done(job)
    cluster.check_weights(job, 25)
    assert cluster.job(job)["incarnation"] == 2


def test_a_partition_longer_than_the_lease(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The agent ends its trainers past its lease; the daemon starts the job elsewhere, and takes the node back."""
    cluster = make_cluster(gpus=1, **LEASE).start()
    proxy = Proxy(read_access(cluster.home).port)
    try:
        far = _home_through(cluster, proxy, tmp_path)
        holder = cluster.submit(steps=100_000)  # keeps n1 busy
        cluster.until_state(holder, "RUNNING")
        agent = _agent(far, "n2")
        cluster.agents.append(agent)
        job = cluster.submit("--save-every", 10000, steps=400, options=("--grace", "3"))
        cluster.until(lambda: list(cluster.job(job)["placement"] or {}) == ["n2"])
        cluster.until_step(job, 5)
        proxy.cut()
        cluster.until(lambda: "IncarnationEnded" in cluster.kinds(job))
        assert cluster.job(job)["cause"] == "node lost"
        cluster.cli("cancel", str(holder))
        cluster.until_state(job, "RUNNING", "DONE")
        proxy.heal()
        cluster.until(lambda: any(a["node"] == "n2" and a["connected"] for a in cluster.status()["agents"]))
        cluster.until_done(job)
        cluster.check_weights(job, 400)
    finally:
        proxy.close()


def test_a_partitioned_trainer_that_runs_on_overwrites_nothing(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """The agent is stopped, so nobody ends the old trainer: it finds the newer claim, and ends by itself."""
    cluster = make_cluster(gpus=1, **LEASE).start()
    proxy = Proxy(read_access(cluster.home).port)
    try:
        far = _home_through(cluster, proxy, tmp_path)
        holder = cluster.submit(steps=100_000)
        cluster.until_state(holder, "RUNNING")
        agent = _agent(far, "n2")
        cluster.agents.append(agent)
        cluster.hold()
        job = cluster.submit("--save-every", 25, steps=300, options=("--grace", "2"))
        cluster.until(lambda: list(cluster.job(job)["placement"] or {}) == ["n2"])
        old = cluster.trainer_pid(job)
        cluster.until_step(job, 5)
        os.kill(agent.pid, signal.SIGSTOP)
        proxy.cut()
        try:
            cluster.cli("cancel", str(holder))
            cluster.until(lambda: cluster.kinds(job).count("TrainerReady") == 2)
            assert list(cluster.job(job)["placement"]) == ["n1"]
            cluster.release()  # both train on, and both come to a save
            cluster.until(lambda: process_of(old) is None)
            log = cluster.home / "logs" / str(job) / "1.n2.log"  # which its supervisor writes
            cluster.until(lambda: any(word in log.read_text() for word in ("newer", "stale")))
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        proxy.heal()
        cluster.until_done(job)
        cluster.check_weights(job, 300)
    finally:
        proxy.close()


@pytest.mark.long
def test_a_network_that_swallows_everything(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """No end hears that the other is gone: both find out by their own pings, and the trainer goes on meanwhile."""
    cluster = make_cluster(gpus=1).start()
    proxy = Proxy(read_access(cluster.home).port)

    def connected() -> bool:
        return any(agent["node"] == "n2" and agent["connected"] for agent in cluster.status()["agents"])

    def said() -> str:
        return (far / "agent.out").read_text() + "".join(path.read_text() for path in far.rglob("agent.log"))

    try:
        far = _home_through(cluster, proxy, tmp_path)
        holder = cluster.submit(steps=100_000)
        cluster.until_state(holder, "RUNNING")
        cluster.agents.append(_agent(far, "n2"))
        job = cluster.submit(steps=100_000)
        cluster.until(lambda: list(cluster.job(job)["placement"] or {}) == ["n2"])
        cluster.until_step(job, 5)
        pid = cluster.trainer_pid(job)
        proxy.swallow()
        cluster.until(lambda: not connected())
        cluster.until(lambda: "the daemon has not answered for" in said())  # by a ping, no closed connection
        assert Path(f"/proc/{pid}").exists()
        step = cluster.job(job)["step"]
        proxy.heal()
        cluster.until(connected)
        cluster.until_step(job, step + 100)
        assert (cluster.trainer_pid(job), cluster.job(job)["incarnation"]) == (pid, 1), "it was never started again"
        cluster.cli("cancel", str(job))
        cluster.until_state(job, "CANCELLED")
    finally:
        proxy.close()


def _home_through(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> Path:
    """A home whose access file leads through the proxy: what an agent on another node sees."""
    far = tmp_path / "far"
    far.mkdir(mode=0o700)
    access = json.loads((cluster.home / "access.json").read_text())
    access |= {"port": proxy.port, "home": str(far), "inode": far.stat().st_ino}
    (far / "access.json").write_text(json.dumps(access))
    (far / "access.json").chmod(0o600)
    (far / "config.yaml").write_text((cluster.home / "config.yaml").read_text())
    (far / "config.yaml").chmod(0o600)
    return far


def _agent(home: Path, node: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "hpcdl.agent", "--home", str(home), "--node", node, "--emulate-gpus", "1"]
    with (home / "agent.out").open("ab") as out:
        return subprocess.Popen(argv, stdout=out, stderr=out)


def test_an_agent_whose_daemon_was_killed_before_it_began_does_not_stay(cluster: Cluster) -> None:
    """No other daemon knows of it, so none would end it."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    argv = [sys.executable, "-m", "hpcdl.agent", "--home", str(cluster.home), "--node", "n2", "--daemon", str(dead.pid)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"hpcdl agent: the daemon that started this agent, process {dead.pid}, is gone\n"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_over_a_queue(make_cluster: MakeCluster, seed: int) -> None:
    """A few of what benchmarks/torture.py does in the hundreds."""
    import random

    rng = random.Random(seed)
    cluster = make_cluster(gpus=4).start()
    jobs = [cluster.submit("--save-every", 15, steps=150, gpus=rng.choice(["1", "1:2", "2:4"])) for _ in range(6)]
    for _ in range(6):
        time.sleep(rng.uniform(0.1, 1.0))
        status = cluster.status()
        victims = [("daemon", status["daemon"]["pid"])]
        victims += [("agent", agent["pid"]) for agent in status["agents"]]
        victims += [("trainer", trainer["pid"]) for trainer in status["trainers"]]
        kind, pid = rng.choice(victims)
        kill(pid)
        if kind == "daemon":
            cluster.start()
    cluster.until_done(*jobs, seconds=240)
    for job in jobs:
        cluster.check_weights(job, 150)
