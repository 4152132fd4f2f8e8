"""The step at which the ranks of several nodes stop: one for all, whatever is late, lost, said twice or killed."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from hpcdl.trainer.group import step_counters
from hpcdl.trainer.group.step_counters import StepCounters
from hpcdl.trainer.group.stop_exchange import IDLE, KEY, WORD, Endpoint, Seal, StopClient, StopServer, StopTally, seals
from tests.support.extent import one_of
from tests.support.waiting import until
from tests.trainer.group.interleaving import Model

PATIENCE_S = 180.0
RUNS = 200
TURNS = 4000  # many more than any run takes in which nobody is killed
AFTERWARDS = 500  # turns after a kill


class Nodes(Model):
    """Ranks on several nodes, the clients of those and the server, between which messages take any time. Where a
    connection breaks, what is under way comes late or never."""

    def __init__(self, folders: list[Path], ranks: int, drawn: random.Random) -> None:
        where = sorted(drawn.choices(folders, k=ranks - len(folders)) + folders)
        hear = drawn.sample(range(ranks), drawn.randint(1, ranks))
        requests = {rank: drawn.randint(1, 5) for rank in hear}
        super().__init__(where, 7, drawn.random() < 0.7, requests)
        for each in self.counters:
            each.shared = False
        self.drawn, self.number = drawn, len(folders)
        self.first = [where.index(folder) for folder in folders]  # the rank that keeps its node's client
        self.tally = StopTally(self.number)
        self.up: list[list[int]] = [[] for _ in folders]  # on the way to the server
        self.down: list[list[int]] = [[IDLE] for _ in folders]
        self.breaks = drawn.choice((0.0, 0.1, 0.3))
        self.kill_at, self.killed = 0, -1
        self.turn = 0
        for node in range(self.number):
            self.acts.append(partial(self.client, node))
        self.acts.append(self.server)

    def client(self, node: int) -> None:
        client, said = StopClient(self.counters[self.first[node]], node), False
        while True:
            if self.drawn.random() < self.breaks:
                if self.drawn.random() < 0.5:
                    self.up[node].clear()
                self.down[node] = [self.tally.word]
                said = False
            if not said and client.boundary():
                self.up[node].append(client.boundary())
                said = True
            if self.down[node]:
                client.heed(self.down[node].pop(0))
            self.park()

    def server(self) -> None:
        while True:
            for node in self.drawn.sample(range(self.number), self.number):
                if self.up[node]:
                    before = self.tally.word
                    self.tally.take(node, self.up[node].pop(0))
                    if self.tally.word != before:
                        for each in self.down:
                            each.append(self.tally.word)
            self.park()

    def ready(self) -> list[int]:
        """Without the processes that were killed; over once all others stand still."""
        ranks = range(len(self.begun))
        self.turn += 1
        self.over = self.ended.issuperset(ranks) or self.turn > (self.kill_at + AFTERWARDS if self.kill_at else TURNS)
        found = super().ready()
        if not self.kill_at or self.turn < self.kill_at:
            return found
        dead = {self.killed} | {len(ranks) + node for node in range(self.number) if self.first[node] == self.killed}
        if self.killed == 0:
            dead.add(len(self.acts) - 1)
        left = [actor for actor in found if actor not in dead]
        self.over = self.over or not left
        return left or found

    def check(self) -> None:
        stops = set(self.stopped.values())
        assert len(stops) <= 1, f"two different steps: {self.stopped}"
        assert all(begun < stop for begun in self.begun for stop in stops), f"one went past {stops}: {self.begun}"
        if self.kill_at:
            return
        assert self.turn <= TURNS, f"they wait for ever: begun {self.begun}, stopped {self.stopped}"
        assert len(self.stopped) in (0, len(self.begun)), f"one stops, and another trains on: {self.stopped}"
        if self.coupled:
            assert self.stopped, "all of them are at most one step past the request"
            assert stops.pop() >= min(self.requests.values())


@pytest.mark.parametrize("kills", one_of(True, False))
@pytest.mark.timeout(300)
def test_ranks_of_several_nodes_stop_at_one_step_in_any_order(
    kills: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_counters, "RANKS_LIMIT", 3)
    monkeypatch.setattr(step_counters, "SIZE", 8 * (step_counters.FIRST + step_counters.WORDS * 3))
    monkeypatch.setattr(step_counters, "SETTLE_S", 0.0)
    monkeypatch.setattr(step_counters, "WAIT_S", 0.0)
    stops = 0
    for seed in range(RUNS):
        drawn = random.Random(seed)
        folders = [tmp_path / f"{seed}.{node}" for node in range(drawn.randint(2, 3))]
        for folder in folders:
            folder.mkdir()
        nodes = Nodes(folders, drawn.randint(len(folders), 3), drawn)
        if kills:
            nodes.kill_at, nodes.killed = drawn.randint(1, 200), drawn.randrange(len(nodes.begun))
        nodes.run(drawn.choice)
        nodes.check()
        stops += len(nodes.stopped) > 0
    assert stops > RUNS / 4, "else nothing was tried"


class Relay:
    """Between a client and a server: `cut` breaks the connection, as a network does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._to = endpoint
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint: Endpoint = ("127.0.0.1", self._listener.getsockname()[1], endpoint[2])
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self.connections = 0
        self.passed = bytearray()  # what clients said
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self._to[:2])
            with self._lock:
                self._ends += [near, far]
                self.connections += 1
            for one, other, to_server in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass_on, args=(one, other, to_server), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, to_server: bool) -> None:
        try:
            while data := one.recv(4096):
                if to_server:
                    self.passed += data
                other.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        """All that is connected now; not who calls again meanwhile."""
        with self._lock:
            ends, self._ends = self._ends, []
        for each in ends:
            with suppress(OSError):  # whoever it leads to has ended it
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """Nobody comes through any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextmanager
def relay(endpoint: Endpoint) -> Iterator[Relay]:
    made = Relay(endpoint)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[str], StepCounters]]:
    """Makes the memory of a node of one rank."""
    made: list[StepCounters] = []

    def make(name: str) -> StepCounters:
        (tmp_path / name).mkdir()
        counters = StepCounters(tmp_path / name, 1, 0)
        counters.shared = False
        made.append(counters)
        return counters

    yield make
    for counters in made:
        counters.stop(counters._boundary + 1)  # for threads that wait in a test that failed


def stop_of(counters: StepCounters) -> int:
    """The boundary at which a rank stops that knows of the request."""
    return next(number for number in range(counters._boundary + 1, 100) if counters.arrive(True))


def arrivals(counters: StepCounters, number: int) -> None:
    assert not any(counters.arrive(False) for _ in range(number))


def test_nodes_stop_at_one_boundary_over_tcp(node: Callable[[str], StepCounters]) -> None:
    slow, fast = node("n1"), node("n2")
    server = StopServer("127.0.0.1", 2)
    for number, each in enumerate((slow, fast)):
        StopClient(each, number).start(server.endpoint)
    arrivals(slow, 3)
    arrivals(fast, 20)
    with ThreadPoolExecutor(1) as threads:
        answers = threads.submit(lambda: [slow.arrive(True) for _ in range(18)])
        assert answers.result(PATIENCE_S) == [False] * 17 + [True]
    assert fast.arrive(False), "the step that it may have begun was its last"


def test_a_connection_that_breaks_is_made_again(node: Callable[[str], StepCounters]) -> None:
    """Before the request, and between it and the answer; one node more has not come to say anything yet."""
    near, far, late = node("n1"), node("n2"), node("n3")
    server = StopServer("127.0.0.1", 3)
    with relay(server.endpoint) as between, ThreadPoolExecutor(2) as threads:
        StopClient(near, 0).start(server.endpoint)
        StopClient(far, 1).start(between.endpoint)
        arrivals(near, 5)
        arrivals(far, 5)
        between.cut()
        until(lambda: between.connections == 2, "another connection")
        stopped = [threads.submit(stop_of, each) for each in (near, far)]
        until(lambda: far.requested, "the request")
        between.cut()
        until(lambda: between.connections == 3, "another connection")
        assert not any(each.done() for each in stopped), "nobody goes on before all have said"
        StopClient(late, 2).start(server.endpoint)
        stops = {each.result(PATIENCE_S) for each in stopped}
    assert stops in ({6}, {7})
    assert stop_of(late) in stops


def test_who_knows_where_to_stop_calls_no_more(node: Callable[[str], StepCounters]) -> None:
    """Another program may listen there by then."""
    counters, before = node("n1"), set(threading.enumerate())
    with relay(StopServer("127.0.0.1", 1).endpoint) as between:
        StopClient(counters, 0).start(between.endpoint)
    (client,) = (each for each in set(threading.enumerate()) - before if each.name == "hpcdl-stop-client")
    counters.stop(1)
    client.join(PATIENCE_S)
    assert not client.is_alive()


def answer_to(address: tuple[str, int], said: bytes) -> bytes:
    """What the server says to that, after what it draws for each connection."""
    with socket.create_connection(address, PATIENCE_S) as stranger:
        assert len(stranger.recv(KEY, socket.MSG_WAITALL)) == KEY
        stranger.sendall(said)
        try:
            return stranger.recv(1)
        except ConnectionResetError:
            return b""


def test_who_repeats_what_a_node_said_is_not_heard(node: Callable[[str], StepCounters]) -> None:
    server = StopServer("127.0.0.1", 2)
    with relay(server.endpoint) as between:
        StopClient(node("n1"), 0).start(between.endpoint)
        said = bytes(between.passed)
    assert len(said) == KEY + Seal.SIZE
    assert answer_to(server.endpoint[:2], said) == b""


def test_a_message_holds_for_its_place_only() -> None:
    ours, theirs = seals(b"key", b"drawn")
    first, second = ours.put(7), ours.put(8)
    heard = seals(b"key", b"drawn")[0]
    assert heard.get(first) == 7
    with pytest.raises(ConnectionError):
        heard.get(first)
    for other in (seals(b"key", b"other")[0], seals(b"other", b"drawn")[0], theirs):
        with pytest.raises(ConnectionError):
            other.get(first)
    assert first[:WORD] != second[:WORD]


def test_who_does_not_know_the_key_is_not_heard(node: Callable[[str], StepCounters]) -> None:
    server = StopServer("127.0.0.1", 1)
    host, port, key = server.endpoint
    assert answer_to((host, port), bytes(KEY) + Seal(bytes(KEY), b"", b"client").put(0)) == b""
    with pytest.raises(ConnectionError):
        StopClient(node("n1"), 0).start((host, port, bytes(KEY).hex()))
    with socket.create_server((host, 0)) as impostor, ThreadPoolExecutor(1) as threads:
        asks = threads.submit(StopClient(node("n3"), 0).start, (host, impostor.getsockname()[1], key))
        peer = impostor.accept()[0]
        with peer:
            peer.sendall(bytes(KEY) + Seal(bytes(KEY), b"", b"server").put(7))
            with pytest.raises(ConnectionError, match="another program"):
                asks.result(PATIENCE_S)
    counters = node("n2")
    StopClient(counters, 0).start((host, port, key))
    assert (counters.requested, counters.stopped) == (False, False)
