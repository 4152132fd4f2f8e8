"""A daemon that ends: told to while its agent is dead, and when its lease is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.wire.readable import readable
from tests.support.extent import one_of
from tests.system.cluster import PATIENCE_S, Cluster, kill


def test_a_stop_suspends_what_an_agent_left_that_just_died(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "home", gpus=1).start()
    try:
        job = cluster.submit(steps=100_000)
        cluster.until_step(job, 5)
        kill(cluster.agent_pid())
        cluster.cli("daemon", "stop")
        assert cluster.tagged() == []
        cluster.until(lambda: cluster.ours() == [])
        cluster.start()
        assert "IncarnationEnded" in cluster.kinds(job)
        assert cluster.job(job)["cause"] == "suspended"
    finally:
        cluster.stop()


def test_an_idle_daemon_ends_when_its_lease_is_gone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "home", gpus=1).start()
    try:
        for lease in cluster.home.glob("lease.*"):
            lease.unlink()
        descriptor = os.pidfd_open(cluster.daemon_pid)
        try:
            assert readable([descriptor], PATIENCE_S), "it goes on without a lease"
        finally:
            os.close(descriptor)
        assert "lease lost" in (cluster.home / "daemon.log").read_text()
        cluster.start()
    finally:
        cluster.stop()


@pytest.mark.parametrize("damage", one_of(None, b"{"))
def test_a_daemon_whose_access_file_is_lost_is_found_again(tmp_path: Path, damage: bytes | None) -> None:
    """Without that file no command would find it, nor could end it, and no other daemon may start."""
    cluster = Cluster(tmp_path / "home", gpus=1).start()
    try:
        file = cluster.home / "access.json"
        before = file.read_bytes()
        file.unlink() if damage is None else file.write_bytes(damage)
        cluster.until(lambda: file.exists() and file.read_bytes() == before)
        assert file.stat().st_mode & 0o777 == 0o600
        assert "it is written anew" in (cluster.home / "daemon.log").read_text()
        assert str(cluster.daemon_pid) in cluster.cli("daemon", "stop")
    finally:
        cluster.stop()


COMPILES = """
import sys, threading, time
from hpcdl.wire.readable import readable
from hpcdl.daemon import __main__, daemon

class Busy(daemon.Ahead):
    def look(self, policy):  # as a solver that compiles for minutes on a loaded machine
        threading.Thread(target=time.sleep, args=(3600,)).start()

daemon.Ahead = Busy
sys.exit(__main__.main())
"""


ESTIMATES = """
import asyncio, sys, time
from hpcdl.daemon import __main__, ready

class Busy(ready.ReadyPipe):
    def tell(self, body):  # as requests for estimates: more of them than the event loop has threads
        for _ in range(40):
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
        super().tell(body)

__main__.ReadyPipe = Busy
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("busy", one_of(COMPILES, ESTIMATES))
def test_a_stop_waits_for_no_thread_that_only_computes(tmp_path: Path, busy: str) -> None:
    home = tmp_path / "home"
    argv = [sys.executable, "-c", busy, "--home", str(home), "--no-agent"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert b'"pid"' in process.stdout.readline(), "it is ready"
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not list(home.glob("lease.*")), "the lease is given back"
    finally:
        process.kill()
        process.communicate()
