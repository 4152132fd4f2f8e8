"""What a daemon with a thousand agents takes: CPU, memory, and how long all need to come back after its death.

    python benchmarks/agents.py [--agents 1000] [--seconds 60] [--quick]

The agents are light: their connections, pings and messages are those of a real one (`hpcdl.agent.daemon_link`), over
TLS
with the daemon's certificate and token; what they report of their 8 GPUs is made up. All are in one other process.
`steady`: CPU of the daemon in percent of a core while heartbeats come every 10 s, by /proc. `storm`: the daemon is
killed and started again, and all call at once. `ls_ms`: a whole `hpcdl ls` meanwhile, in wall time. One JSON value.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import cpu_s, memory_mib, say, setting
from hpcdl.agent.daemon_link import DaemonConnection
from hpcdl.agent.orphans import Orphans
from hpcdl.agent.shell import Shells
from hpcdl.core.model.world import GpuInfo
from hpcdl.wire import messages as msg
from hpcdl.wire.access import read_access
from tests.system.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent
GPUS = 8
INTERVAL_S = 10.0
PATIENCE_S = 400.0
LS_TIMES = 5
RAMP_S = 20.0
"""At first the agents come one after another in this time; after the daemon's death all at once."""


class NoReports:
    """A `ReportLog` with nothing in it, on no disk."""

    def __init__(self) -> None:
        self.fence = 0
        self.fresh = asyncio.Event()

    def pending(self, after: int) -> list[msg.ReportMessage]:
        return []

    def recorded(self, number: int) -> None:
        pass

    async def take(self, message: msg.RequestMessage) -> None:
        pass


class LightAgent:
    """The agent of a connection, with a node that does not exist behind it."""

    def __init__(self, home: Path, node: str, instance: str) -> None:
        self.node, self.instance = node, instance
        self.log_id = uuid.uuid4().hex
        self.reports = NoReports()
        self.shells = Shells(Orphans(), home)
        self.changed = asyncio.Event()
        self.interval_s = INTERVAL_S
        self._connection = DaemonConnection(home, cast(Any, self))

    async def run(self) -> None:
        await self._connection.run()

    def dialled(self, address: str) -> None:
        pass

    def hello(self) -> msg.HelloMessage:
        return msg.HelloMessage(self.node, self.log_id, self.instance, self.reports.fence)

    async def welcomed(self, welcome: msg.WelcomeMessage) -> msg.InventoryMessage:
        self.reports.fence = welcome.fence
        self.interval_s = welcome.interval_s
        gpus = tuple(GpuInfo(index, f"{self.node}-{index}", "V100", 16384) for index in range(GPUS))
        return msg.InventoryMessage(gpus, 48, 196_608, os.getpid(), "boot", False)

    def joined(self) -> None:
        pass

    def parted(self) -> None:
        pass

    def heard(self) -> None:
        pass

    async def heartbeat(self) -> msg.HeartbeatMessage:
        return msg.HeartbeatMessage(tuple(msg.GpuLine(index, 93, 15_000, 240.5) for index in range(GPUS)), ())

    def carry_out(self, message: msg.RequestMessage) -> None:
        pass

    def forget(self, message: msg.ForgetMessage) -> None:
        pass

    def bye(self, message: msg.ByeMessage) -> None:
        pass

    async def goes(self) -> msg.LeavingMessage:
        await asyncio.Event().wait()
        raise AssertionError("no light agent leaves")


def be_agents(home: Path, number: int) -> int:
    """The other process: until it is ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    instance = read_access(home).instance

    async def come(agent: LightAgent, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await agent.run()

    async def run() -> None:
        agents = [LightAgent(home, f"n{index:04d}", instance) for index in range(number)]
        await asyncio.gather(*(come(agent, RAMP_S * index / number) for index, agent in enumerate(agents)))

    asyncio.run(run())
    return 0


class Bench:
    """One daemon and its agents' process."""

    def __init__(self, home: Path, number: int, seconds: float) -> None:
        self.number, self.seconds = number, seconds
        self.cluster = Cluster(home / "home", 1, monitor_interval_s=INTERVAL_S, policy="adaptive")
        self.ls_ms: list[float] = []

    def run(self) -> dict[str, Any]:
        self.cluster.start()
        alone = memory_mib(self.cluster.daemon_pid)
        argv = [sys.executable, str(Path(__file__).resolve()), "--be-agents", "--agents", str(self.number)]
        agents = subprocess.Popen([*argv, "--home", str(self.cluster.home)], stderr=subprocess.DEVNULL)
        try:
            first = self._until_all(agents, time.monotonic(), cpu_s(self.cluster.daemon_pid))
            steady = self._steady()
            say("the daemon is killed, and started again")
            killed = time.monotonic()
            self.cluster.kill_daemon()
            self.cluster.start()  # which waits for agents, too
            again = self._until_all(agents, killed, 0.0)
            time.sleep(INTERVAL_S)
            again |= {"memory_mib_after": memory_mib(self.cluster.daemon_pid)}
        finally:
            agents.terminate()
            agents.wait()
            self.cluster.stop()
        return {"memory_mib_alone": alone, "first": first, "steady": steady, "storm": again}

    def _until_all(self, agents: "subprocess.Popen[bytes]", began: float, cpu_before: float) -> dict[str, Any]:
        """What it took since the daemon had used `cpu_before` seconds, at `began`."""
        pid, end = self.cluster.daemon_pid, began + PATIENCE_S
        ls_ms: list[float] = []
        over = threading.Event()
        asking = threading.Thread(target=self._ask, args=(ls_ms, over))
        asking.start()
        try:
            while (there := self._connected()) < self.number:
                assert agents.poll() is None, "the agents' process ended"
                assert time.monotonic() < end, f"{there} of {self.number} agents are connected"
                time.sleep(0.5)
            took_s, used_s = time.monotonic() - began, cpu_s(pid) - cpu_before
        finally:
            over.set()
            asking.join()
        say(f"{there} agents after {took_s:.1f} s")
        return {"all_after_s": round(took_s, 1), "daemon_cpu_s": round(used_s, 1), "ls_ms": median_of(ls_ms)}

    def _connected(self) -> int:
        agents = self.cluster.status()["agents"]
        return sum(bool(agent["connected"]) for agent in agents) - 1  # the daemon's own

    def _ask(self, found: list[float], over: threading.Event) -> None:
        while not over.is_set():
            began = time.monotonic()
            self.cluster.cli("ls", "--json")
            found.append((time.monotonic() - began) * 1e3)

    def _steady(self) -> dict[str, Any]:
        time.sleep(INTERVAL_S)
        pid = self.cluster.daemon_pid
        began, before = time.monotonic(), cpu_s(pid)
        time.sleep(self.seconds)
        used_s, took_s = cpu_s(pid) - before, time.monotonic() - began
        ls_ms: list[float] = []
        for _ in range(LS_TIMES):
            asked = time.monotonic()
            self.cluster.cli("ls", "--json")
            ls_ms.append((time.monotonic() - asked) * 1e3)
        assert self._connected() == self.number
        return {
            "seconds": round(took_s, 1),
            "cpu_percent_of_a_core": round(100 * used_s / took_s, 2),
            "memory_mib": memory_mib(pid),
            "ls_ms": median_of(ls_ms),
        }


def median_of(values: Sequence[float]) -> float | None:
    return round(statistics.median(values)) if values else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A daemon with many agents.")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the steady state that are measured")
    parser.add_argument("--quick", action="store_true", help="200 agents, 20 s")
    parser.add_argument("--be-agents", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    number, seconds = (200, 20.0) if options.quick else (options.agents, options.seconds)
    if options.be_agents:
        return be_agents(options.home, options.agents)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    home = Path(tempfile.mkdtemp(prefix="hpcdl-agents-"))
    try:
        figures = {"schema": 1, "setting": setting(), "agents": number, "interval_s": INTERVAL_S}
        print(json.dumps(figures | Bench(home, number, seconds).run(), indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
