"""What hpcdl takes while nothing happens: CPU, memory and wake-ups of an idle daemon and agent, and one cycle.

    python benchmarks/idle.py [--seconds 60] [--interval 10] [--quick]

`idle`: a real daemon and its agent with 4 emulated GPUs and no job; `training`: the same with 4 trainers of the demo,
their supervisors counted by themselves. CPU is in percent of a core over `--seconds`, all threads, by /proc; memory is
RSS, and PSS, which counts what both share once. `cycle`: one monitoring cycle, again and again in this process with
the daemon's and the agent's own parts and a ledger on disk: the GPUs are polled, the heartbeat is encoded and decoded,
its samples are recorded, and the controller ticks and decides. `cpu_ms` is the CPU time of all threads, `wall_ms` what
it takes on this machine as it is. `paper_ms`: what MARBLE prints for its own. One JSON value.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import cpu_s, memory_mib, parts_of, say, setting, wakes
from hpcdl.agent.gpu.discovery import discover
from hpcdl.agent.gpus import Gpus
from hpcdl.agent.report_log import ReportLog
from hpcdl.config.layers import conf_folder
from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.plan import Profiles
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.samples import GpuTelemetry
from hpcdl.policies import all_policies
from hpcdl.wire import messages as msg
from tests.system.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent
GPUS = 4
PAPER_MS = [11.3, 12.7]
SETTLE_S = 5.0
CYCLES = 500


class Bench:
    """One daemon, one agent."""

    def __init__(self, home: Path, interval_s: float, seconds: float) -> None:
        self.seconds = seconds
        self.home = home
        self.cluster = Cluster(home / "home", GPUS, monitor_interval_s=interval_s, policy="adaptive")

    def run(self) -> dict[str, Any]:
        self.cluster.start()
        try:
            found = {"idle": self._measure()}
            jobs = [self._submit(number) for number in range(GPUS)]
            for job in jobs:
                self.cluster.until_step(job, 1)
            found["training"] = self._measure()
            self.cluster.cli("cancel", *map(str, jobs))
            for job in jobs:
                self.cluster.until_state(job, "CANCELLED")
        finally:
            self.cluster.stop()
        return found

    def _submit(self, number: int) -> int:
        profile_file = conf_folder() / "profiles" / "summit-v100.yaml"
        argv = [sys.executable, "-m", "hpcdl.demo.trainer", "--model", "Inception-v3", "--steps", "1000000"]
        spec = {
            "command": [*argv, "--profile-file", str(profile_file), "--scale", "5", "--seed", str(number)],
            "name": f"idle-{number}",
            "cwd": str(self.home),
            "profile": "inception-v3",
            "steps": 1_000_000,
            "gpus_max": 1,
            "env": [["OPENBLAS_NUM_THREADS", "1"], ["OMP_NUM_THREADS", "1"]],
        }
        request = {"request_id": f"idle-{number}", "jobs": [spec]}
        return int(self.cluster.client.request("POST", "/v1/jobs", request)["jobs"][0]["id"])

    def _measure(self) -> dict[str, Any]:
        time.sleep(SETTLE_S)
        status = self.cluster.status()
        pids = {"daemon": status["daemon"]["pid"], "agent": status["agents"][0]["pid"]}
        pids |= {f"supervisor {each['job']}": each["supervisor"] for each in status["trainers"]}
        self.cluster.client.close()
        began = time.monotonic()
        before = {name: (cpu_s(pid), wakes(pid)) for name, pid in pids.items()}
        time.sleep(self.seconds)
        took_s = time.monotonic() - began
        found: dict[str, Any] = {}
        for name, pid in pids.items():
            used_s, woken = cpu_s(pid) - before[name][0], wakes(pid) - before[name][1]
            found[name] = {
                "cpu_percent_of_a_core": round(100 * used_s / took_s, 3),
                "wakes_per_s": round(woken / took_s, 2),
                **memory_mib(pid),
            }
        both = [found["daemon"], found["agent"]]
        found["daemon_and_agent"] = {key: round(sum(each[key] for each in both), 2) for key in both[0]}
        return found


async def cycles(folder: Path, number: int) -> dict[str, Any]:
    """So many monitoring cycles, one after another."""
    reports = ReportLog(folder / "reports.jsonl")
    gpus = Gpus(discover(GPUS, folder / "emulated"), None, "n1", reports)
    await gpus.refresh()
    journal = SqliteJournal(folder / "ledger.sqlite", lease_check=None)
    controller = Controller(journal, all_policies(), Profiles({}))
    now = time.time()
    controller.begin(ev.DaemonStarted(1, "0", 1, "host"), now)
    controller.step([cmd.ChoosePolicy("adaptive"), cmd.ChooseObjective("jct")], now)
    controller.step([cmd.Hello("n1", "log")], now)
    controller.step([cmd.Inventory("n1", gpus.inventory(), 8, 1024, 1, "b", "log", True)], now)
    controller.decide(now)
    cpu_ms, wall_ms = [], []
    for _ in range(number):
        now += 10.0
        began, began_cpu = time.perf_counter(), time.process_time()
        await gpus.refresh()
        sent = msg.encode_message(msg.HeartbeatMessage(gpus.lines({}, str), ()))
        heard = msg.decode_message(sent)
        assert isinstance(heard, msg.HeartbeatMessage)
        samples = [GpuTelemetry(now, "n1", each.index, each.util, each.memory_mib, each.power_w) for each in heard.gpus]
        journal.add_samples(samples)
        controller.step([cmd.Tick()], now)
        controller.decide(now)
        journal.flush()
        wall_ms.append((time.perf_counter() - began) * 1e3)
        cpu_ms.append((time.process_time() - began_cpu) * 1e3)
    journal.close()
    return {"cpu_ms": parts_of(cpu_ms, 3), "wall_ms": parts_of(wall_ms, 3), "paper_ms": PAPER_MS}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="An idle daemon and agent, and one monitoring cycle.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=10.0, help="monitor_interval_s")
    parser.add_argument("--quick", action="store_true", help="20 s")
    options = parser.parse_args(argv)
    seconds = 20.0 if options.quick else options.seconds
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    home = Path(tempfile.mkdtemp(prefix="hpcdl-idle-"))
    try:
        figures = {"schema": 1, "setting": setting(), "interval_s": options.interval, "seconds": seconds}
        say("the cycle")
        (home / "cycle").mkdir(mode=0o700)
        figures["cycle"] = asyncio.run(cycles(home / "cycle", CYCLES))
        say("daemon and agent")
        print(json.dumps(figures | Bench(home, options.interval, seconds).run(), indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
