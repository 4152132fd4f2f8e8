"""Do ranks ever part when they are suspended? Real rank processes with a TCP all-reduce for each step, suspended again
and again by SIGTSTP to some of them, at random times.

    python -m benchmarks.agreement [--suspends 1000] [--ranks 4] [--pace-ms 0.5] [--json]

A suspend is counted as parted when the ranks do not all stop at one step, or do not stop. Each round of processes is
suspended `--each` times: a stand-in for the save and the restart is that all ranks begin to count anew, so that 1,000
suspends need no 1,000 imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 60.0
WAY_S = 0.01  # from the request to all: signals reach ranks within so much of each other


class Ring:
    """An all-reduce of one number by rank 0, over TCP on this machine."""

    def __init__(self, rank: int, ranks: int, port: int) -> None:
        self._peers: list[socket.socket] = []
        if rank == 0:
            listener = socket.create_server(("127.0.0.1", port))
            print("listens", listener.getsockname()[1], flush=True)
            for _ in range(ranks - 1):
                self._peers.append(listener.accept()[0])
        else:
            self._peers.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        self._leads = rank == 0
        for each in self._peers:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.settimeout(PATIENCE_S)

    def reduce(self, mine: int) -> int:
        """The sum over all ranks. Raises OSError where a rank is gone."""
        if self._leads:
            total = mine + sum(_take(each) for each in self._peers)
            for each in self._peers:
                each.sendall(total.to_bytes(8, "big"))
            return total
        self._peers[0].sendall(mine.to_bytes(8, "big"))
        return _take(self._peers[0])


def _take(peer: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        piece = peer.recv(8 - len(data))
        if not piece:
            raise ConnectionError("another rank has stopped at another step")
        data += piece
    return int.from_bytes(data, "big")


def train(rank: int, ranks: int, port: int, pace_s: float, rounds: int) -> None:
    """One rank: prints the step of each suspend, and the median time of its agreement at a step."""
    from hpcdl.trainer import peers
    from hpcdl.trainer.session import attach
    from hpcdl.trainer.step_counters import StepCounters

    session = attach()
    ring = Ring(rank, ranks, port)
    for number in range(1, rounds + 1):
        counters = StepCounters(peers.run_folder(os.environ), number, rank)
        ring.reduce(0)
        session._asked = False
        spent, step = [], 0
        print("trains", flush=True)
        while True:
            began = time.perf_counter()
            stops = counters.arrive(session.should_suspend())
            spent.append(time.perf_counter() - began)
            if stops:
                break
            ring.reduce(step)
            step += 1
            time.sleep(pace_s)
        print(f"stopped {step} {statistics.median(spent):.9f}", flush=True)
        # All have to come here at the same step: this is the collective that would wait for ever.
        if ring.reduce(step) != step * ranks:
            raise ConnectionError("the ranks stop at different steps")


def measure(suspends: int, ranks: int, pace_s: float, each: int, seed: int) -> dict[str, object]:
    """Suspends, how many parted, and what the agreement costs for each step."""
    from tests.trainer.supervisor import supervisor

    drawn = random.Random(seed)
    done = parted = 0
    steps: list[int] = []
    costs: list[float] = []
    while done < suspends:
        rounds = min(each, suspends - done)
        with tempfile.TemporaryDirectory() as folder, supervisor(Path(folder) / "run", None) as parent:
            port = "0"  # any that is free: rank 0 says which
            argv = ["-m", "benchmarks.agreement", "--rank"]
            children: list[subprocess.Popen[str]] = []
            for rank in range(ranks):
                shape = [str(rank), "--ranks", str(ranks), "--port", port, "--suspends", str(rounds)]
                options = [*argv, *shape, "--pace-ms", str(1000 * pace_s)]
                variables = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(ranks)}
                children.append(parent.start(options, **variables))
                if rank == 0:
                    port = _line(children[0]).rpartition(" ")[2]
            for _ in range(rounds):
                if not _suspend(children, drawn, steps, costs):
                    parted += 1
                    done += 1
                    break
                done += 1
    return {
        "suspends": done,
        "ranks": ranks,
        "pace_ms": 1000 * pace_s,
        "parted": parted,
        "median_step": statistics.median(steps) if steps else None,
        "median_cost_us": round(1e6 * statistics.median(costs), 2) if costs else None,
    }


def _suspend(
    children: Sequence[subprocess.Popen[str]], drawn: random.Random, steps: list[int], costs: list[float]
) -> bool:
    """Suspends all ranks once, by way of some of them; whether all stopped at one step."""
    if any(_line(child) != "trains" for child in children):
        return False
    time.sleep(drawn.uniform(0.0, 0.05))
    hears = drawn.sample(list(children), drawn.randint(1, len(children)))
    for child in hears:
        child.send_signal(signal.SIGTSTP)
        time.sleep(drawn.choice((0.0, 0.0, drawn.uniform(0.0, WAY_S))))
    said = [_line(child).split() for child in children]
    if any(len(each) != 3 or each[0] != "stopped" for each in said):
        return False
    steps += [int(each[1]) for each in said]
    costs += [float(each[2]) for each in said]
    return len({each[1] for each in said}) == 1


def _line(child: subprocess.Popen[str]) -> str:
    return child.stdout.readline().strip() if child.stdout else ""


def main() -> int:
    """0 where none parted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suspends", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--pace-ms", type=float, default=0.5)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank is not None:
        train(chosen.rank, chosen.ranks, chosen.port, chosen.pace_ms / 1000, chosen.suspends)
        return 0
    found = measure(chosen.suspends, chosen.ranks, chosen.pace_ms / 1000, chosen.each, chosen.seed)
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:16} {value}")
    return 1 if found["parted"] else 0


if __name__ == "__main__":
    sys.exit(main())
