"""Do ranks ever part when they are suspended? Real rank processes with a TCP all-reduce for each step, suspended again
and again by SIGTSTP to some of them, at random times.

    python -m benchmarks.agreement [--suspends 1000] [--ranks 4] [--nodes 2] [--pace-ms 0.5] [--json]

A suspend is counted as parted when the ranks do not all stop at one step, or do not stop. Each round of processes is
suspended `--each` times: a stand-in for the save and the restart is that all ranks begin to count anew, so that 1,000
suspends need no 1,000 imports. Nodes are run folders on this machine: their ranks share no memory with the others'.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path

from hpcdl.trainer.group import peers
from hpcdl.trainer.group.peers import JoinedRanks
from hpcdl.trainer.session import attach

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
            came = [listener.accept()[0] for _ in range(ranks - 1)]
            self._peers += [peer for _, peer in sorted(((_take(peer), peer) for peer in came), key=itemgetter(0))]
        else:
            self._peers.append(_connect(port))
            self._peers[0].sendall(rank.to_bytes(8, "big"))
        self._leads = rank == 0
        for each in self._peers:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.settimeout(PATIENCE_S)

    def gather(self, mine: str) -> list[str]:
        """What each rank says. Raises OSError where one is gone."""
        if self._leads:
            texts = [mine, *(_take_text(each) for each in self._peers)]
            for each in self._peers:
                _send_text(each, json.dumps(texts))
            return texts
        _send_text(self._peers[0], mine)
        return [str(each) for each in json.loads(_take_text(self._peers[0]))]

    def reduce(self, mine: int) -> int:
        """The sum over all ranks. Raises OSError where a rank is gone."""
        if self._leads:
            total = mine + sum(_take(each) for each in self._peers)
            for each in self._peers:
                each.sendall(total.to_bytes(8, "big"))
            return total
        self._peers[0].sendall(mine.to_bytes(8, "big"))
        return _take(self._peers[0])


def _connect(port: int) -> socket.socket:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        except ConnectionRefusedError:  # rank 0 may be on its way
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _take(peer: socket.socket) -> int:
    return int.from_bytes(_take_bytes(peer, 8), "big")


def _take_bytes(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            raise ConnectionError("another rank has stopped at another step")
        data += piece
    return data


def _take_text(peer: socket.socket) -> str:
    return _take_bytes(peer, _take(peer)).decode()


def _send_text(peer: socket.socket, text: str) -> None:
    peer.sendall(len(text.encode()).to_bytes(8, "big") + text.encode())


class RingRanks(JoinedRanks):
    """Ranks as a framework joins them, this one being the ring."""

    def __init__(self, ring: Ring, size: int) -> None:
        super().__init__(size)
        self._ring = ring

    def gather(self, text: str) -> list[str]:
        """Every rank's text."""
        return self._ring.gather(text)

    @property
    def without_collectives(self) -> bool:
        """Whether the ranks agree on the step as they should."""
        return self._arrive != self._ask


def train(rank: int, ranks: int, port: int, pace_s: float, rounds: int) -> None:
    """One rank: prints the step of each suspend, and the median time of its agreement at a step."""
    session = attach()
    ring = Ring(rank, ranks, port)
    for number in range(1, rounds + 1):
        session.incarnation = number  # for a memory of its own
        peers._counters.clear()
        agreement = RingRanks(ring, ranks)
        agreement.agree(False)
        if not agreement.without_collectives:
            raise RuntimeError("the ranks do not reach each other")
        ring.reduce(0)
        session._asked = False
        spent, step = [], 0
        print("trains", flush=True)
        while True:
            began = time.perf_counter()
            stops = agreement.agree(session.should_suspend())
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


def measure(suspends: int, ranks: int, pace_s: float, each: int, seed: int, nodes: int = 1) -> dict[str, object]:
    """Suspends, how many parted, what the agreement costs for each step, and how long a suspend takes to stop all."""
    from tests.trainer.supervisor import supervisor

    drawn = random.Random(seed)
    done = parted = 0
    steps: list[int] = []
    costs: list[float] = []
    waits: list[float] = []
    while done < suspends:
        rounds = min(each, suspends - done)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            parents = [stack.enter_context(supervisor(Path(folder) / f"run{node}", None)) for node in range(nodes)]
            port = "0"  # any that is free: rank 0 says which
            argv = ["-m", "benchmarks.agreement", "--rank"]
            children: list[subprocess.Popen[str]] = []
            for rank in range(ranks):
                shape = [str(rank), "--ranks", str(ranks), "--port", port, "--suspends", str(rounds)]
                options = [*argv, *shape, "--pace-ms", str(1000 * pace_s)]
                variables = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(ranks), "HPCDL_ADDRESS": "127.0.0.1"}
                children.append(parents[rank * nodes // ranks].start(options, **variables))
                if rank == 0:
                    port = _line(children[0]).rpartition(" ")[2]
            for _ in range(rounds):
                if not _suspend(children, drawn, steps, costs, waits):
                    parted += 1
                    done += 1
                    break
                done += 1
    return {
        "suspends": done,
        "ranks": ranks,
        "nodes": nodes,
        "pace_ms": 1000 * pace_s,
        "parted": parted,
        "median_step": statistics.median(steps) if steps else None,
        "median_cost_us": round(1e6 * statistics.median(costs), 2) if costs else None,
        "median_stop_ms": round(1e3 * statistics.median(waits), 2) if waits else None,
    }


def _suspend(
    children: Sequence[subprocess.Popen[str]],
    drawn: random.Random,
    steps: list[int],
    costs: list[float],
    waits: list[float],
) -> bool:
    """Suspends all ranks once, by way of some of them; whether all stopped at one step."""
    if any(_line(child) != "trains" for child in children):
        return False
    time.sleep(drawn.uniform(0.0, 0.05))
    hears = drawn.sample(list(children), drawn.randint(1, len(children)))
    for child in hears:
        child.send_signal(signal.SIGTSTP)
        time.sleep(drawn.choice((0.0, 0.0, drawn.uniform(0.0, WAY_S))))
    began = time.perf_counter()
    # Where some have gone on, or ended, others may wait for ever.
    watchdog = threading.Timer(2 * PATIENCE_S, _kill, (children,))
    watchdog.start()
    said = [_line(child).split() for child in children]
    watchdog.cancel()
    if any(len(each) != 3 or each[0] != "stopped" for each in said):
        return False
    waits.append(time.perf_counter() - began)
    steps += [int(each[1]) for each in said]
    costs += [float(each[2]) for each in said]
    return len({each[1] for each in said}) == 1


def _kill(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()


def _line(child: subprocess.Popen[str]) -> str:
    return child.stdout.readline().strip() if child.stdout else ""


def main() -> int:
    """0 where none parted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suspends", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=1)
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
    found = measure(chosen.suspends, chosen.ranks, chosen.pace_ms / 1000, chosen.each, chosen.seed, chosen.nodes)
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:16} {value}")
    return 1 if found["parted"] else 0


if __name__ == "__main__":
    sys.exit(main())
