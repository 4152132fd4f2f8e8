"""Where Horovod's ranks meet and learn which ranks they are: the store over HTTP that Horovod's Gloo controller asks.

`python -m hpcdl.trainer.ranks N --horovod` keeps it while its ranks live, as horovodrun would, and of ranks that mpirun
started rank 0 does; it is then bound to the loopback address, and ranks of other nodes never meet here. Of an elastic
job rank 0 keeps one for each membership. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hpcdl.trainer.group.membership import Membership

HOST = "127.0.0.1"
NODE = "localhost"  # the name of the only one
INTERFACE = "lo"
VALUE_LIMIT = 1 << 20  # bytes; an address of Gloo's has some hundred
MPIRUN = "PMIX_NAMESPACE"  # which mpirun started this rank
MPIRUN_SIZE = "OMPI_COMM_WORLD_SIZE"
MPIRUN_WAIT_S = 600.0  # for rank 0, which imports what the others import
COMES_S = 10.0  # for what a rank of a membership writes, all of whose ranks are there
POLL_S = 0.02


@dataclass(frozen=True)
class Slot:
    """A rank's place: among all, among those of its node, and among those of the same number on other nodes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def environment(self, node: str, address: str, port: int, interface: str | None) -> dict[str, str]:
        """What Horovod reads in the environment of the rank; the store is at `address` and `port`."""
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        found = {f"HOROVOD_{name}": str(value) for name, value in zip(names, astuple(self))}
        found.update(HOROVOD_HOSTNAME=node, HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
        found.update(HOROVOD_GLOO_RENDEZVOUS_ADDR=address, HOROVOD_GLOO_RENDEZVOUS_PORT=str(port))
        return found if interface is None else {**found, "HOROVOD_GLOO_IFACE": interface}

    def put(self, node: str, address: str, port: int) -> None:
        """Where Horovod looks for it when it is initialised again. Raises OSError."""
        text = ",".join(map(str, astuple(self)))
        StoreClient(address, port, "rank_and_size").set(f"{node}:{self.local_rank}", text)


def slot(ranks: Sequence[int], index: int, local_rank: int) -> Slot:
    """Of a rank on the node `index`; `ranks` on each node."""
    across = [each for each, here in enumerate(ranks) if here > local_rank]
    before = sum(ranks[:index])
    return Slot(before + local_rank, sum(ranks), local_rank, ranks[index], across.index(index), len(across))


def sizes(nodes: Sequence[str], ranks: Sequence[int]) -> dict[str, int]:
    """How many ranks come to each of the scopes in which Horovod's ranks meet."""
    found = {f"local_{node}": here for node, here in zip(nodes, ranks)}
    found.update((f"cross_{each}", sum(here > each for here in ranks)) for each in range(max(ranks)))
    return {"global": sum(ranks), **found}


class StoreLost(Exception):
    """The store at which ranks meet has no value that must be there, or is gone with the rank that kept it."""


class StoreClient:
    """The values of one scope of a store. Its methods raise OSError where nobody answers."""

    def __init__(self, address: str, port: int, scope: str) -> None:
        self._address, self._port, self._scope = address, port, scope

    def set(self, key: str, value: str) -> None:
        """Keeps a value for all who ask."""
        self._request("PUT", key, value.encode())

    def find(self, key: str) -> str | None:
        """A value, or None where there is none yet."""
        status, body = self._request("GET", key)
        return body.decode() if status == HTTPStatus.OK else None

    def get(self, key: str) -> str:
        """A value that is about to come. Raises StoreLost."""
        until = time.monotonic() + COMES_S
        while time.monotonic() < until:
            try:
                value = self.find(key)
            except OSError as error:
                raise StoreLost(f"{self._address}:{self._port} does not answer: {error}") from error
            if value is not None:
                return value
            time.sleep(POLL_S)
        raise StoreLost(f"{self._address}:{self._port} has no {key} after {COMES_S:.0f} s")

    def _request(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=_Request.timeout)
        try:
            connection.request(method, f"/{self._scope}/{key}", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:  # it ended in the middle of an answer
            raise ConnectionResetError(str(error)) from error
        finally:
            connection.close()


def meet(
    wanted: Membership, rank: int, scope: str, about: dict[str, Any], check: Callable[[], None]
) -> tuple[StoreClient, list[dict[str, Any]]]:
    """As `process_groups.meet`, at a `Rendezvous` of the first node's lead rank: without PyTorch."""
    store = StoreClient(*wanted.store, f"hpcdl.{scope}.{wanted.number}")
    came = False
    values: list[dict[str, Any]] = []
    while len(values) < wanted.size:
        check()
        try:
            if not came:
                store.set(f"here.{rank}", json.dumps(about))
                came = True
            value = store.find(f"here.{len(values)}")
        except OSError:
            value = None
        if value is None:
            time.sleep(POLL_S)
        else:
            values.append(json.loads(value))
    return store, values


def meet_under_mpirun() -> None:
    """Before `hvd.init()`: ranks that Open MPI's mpirun started on this node, in a job of hpcdl, get what horovodrun
    would give them, so that a Horovod built without MPI makes one group of them. Elsewhere it does nothing.

    What chooses between MPI and Gloo (HOROVOD_CONTROLLER, HOROVOD_CPU_OPERATIONS) is not set: a Horovod that has MPI
    goes on to use it, and reads nothing of this. Raises OSError; TimeoutError where rank 0 does not come.
    """
    environ = os.environ
    launch, size = environ.get(MPIRUN), environ.get(MPIRUN_SIZE, "1")
    if not launch or not environ.get("HPCDL_SOCKET") or "HOROVOD_RANK" in environ:
        return
    if size == "1" or size != environ.get("OMPI_COMM_WORLD_LOCAL_SIZE"):
        return  # of other nodes nobody could come to a loopback address
    rank, ranks = int(environ["OMPI_COMM_WORLD_RANK"]), int(size)
    run_folder = Path(environ["HPCDL_SOCKET"]).parent
    path = run_folder / f"horovod.{environ.get('HPCDL_INCARNATION', '0')}.{launch}"
    if rank == 0:
        rendezvous = Rendezvous(HOST, sizes([NODE], [ranks]))
        rendezvous.start()  # for as long as this process lives: Horovod may be initialised again
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(str(rendezvous.server_address[1]))
        os.replace(temporary, path)
    until = time.monotonic() + MPIRUN_WAIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"rank 0 of {ranks} ranks of mpirun has not come for {MPIRUN_WAIT_S:.0f} s")
        time.sleep(POLL_S)
    found = slot([ranks], 0, rank).environment(NODE, HOST, int(path.read_text()), INTERFACE)
    del found["HOROVOD_CONTROLLER"], found["HOROVOD_CPU_OPERATIONS"]
    environ.update(found)


class Rendezvous(ThreadingHTTPServer):
    """The store; bound when it is made, answering once `start` is called. `sizes`: of its scopes, by name."""

    daemon_threads = True

    def __init__(self, address: str, sizes: Mapping[str, int]) -> None:
        super().__init__((address, 0), _Request)
        self.lock = threading.Lock()
        self.values: dict[str, dict[str, bytes]] = {}
        self.address = f"{address}:{self.server_address[1]}"
        self._sizes = sizes
        self._left: dict[str, set[str]] = {}

    def start(self) -> None:
        """Answer from now on, in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="hpcdl rendezvous", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A rank that ended in the middle of a request is none of ours."""

    def leave(self, scope: str, key: str) -> None:
        """A rank has met everybody of a scope. What they wrote goes when the last has, so that they can meet anew."""
        with self.lock:
            if scope not in self._sizes:
                self.values.get(scope, {}).pop(key, None)
                return
            left = self._left.setdefault(scope, set())
            left.add(key)
            if len(left) == self._sizes[scope]:
                self.values.pop(scope, None)
                left.clear()


class _Request(BaseHTTPRequestHandler):
    server: Rendezvous
    timeout = 60.0  # seconds without a byte of a request

    def _key(self) -> tuple[str, str]:
        scope, _, key = self.path.lstrip("/").partition("/")
        return scope, key

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        scope, key = self._key()
        with self.server.lock:
            value = self.server.values.get(scope, {}).get(key)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        scope, key = self._key()
        length = self.headers.get("Content-Length") or ""
        if not length.isdigit() or int(length) > VALUE_LIMIT:
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        value = self.rfile.read(int(length))
        with self.server.lock:
            self.server.values.setdefault(scope, {})[key] = value
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        self.server.leave(*self._key())
        self._answer(HTTPStatus.OK)

    def log_message(self, *args: Any) -> None:
        """Nothing: ranks that wait ask many times a second."""
