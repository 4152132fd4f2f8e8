"""TF_CONFIG of TensorFlow's MultiWorkerMirroredStrategy and ParameterServerStrategy: who is where, who a process is.

The launcher of each node chooses free ports for its ranks; those of several nodes tell each other through the one of
the first node, at MASTER_ADDR and MASTER_PORT, which nothing else uses then. Standard library only.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

PATIENCE_S = 600.0  # for the other nodes' launchers: their agents start them at about the same time
RETRY_S = 0.2
ANSWER_S = 20.0  # for what a launcher says once it is connected
LIMIT = 1 << 20  # bytes of what one says


class NoMeeting(OSError):
    """The launchers of a job's nodes did not find each other."""


def workers(environ: Mapping[str, str], ranks: int) -> tuple[list[str], int]:
    """Addresses (host:port) of all workers of the job, in the order of their ranks, and the rank of this node's first
    one; it has `ranks`. Raises NoMeeting."""
    nodes = [name for name in environ.get("HPCDL_NODES", "").split(",") if name]
    ports = free_ports(ranks)
    if len(nodes) <= 1:
        return [f"127.0.0.1:{port}" for port in ports], 0
    try:
        host, port, mine = environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), int(environ["HPCDL_NODE_RANK"])
    except (KeyError, ValueError) as error:
        raise NoMeeting(f"{len(nodes)} nodes, but {error} of MASTER_ADDR, MASTER_PORT, HPCDL_NODE_RANK") from error
    job = ":".join(environ.get("HPCDL_TAG", "").split(":")[:3])  # instance:job:incarnation
    if mine == 0:
        return _lead(port, len(nodes), job, [_address(host, each) for each in ports]), 0
    return _follow(host, port, {"node": mine, "job": job, "ports": ports})


def config(addresses: Sequence[str], rank: int) -> str:
    """TF_CONFIG of that worker."""
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": task}, separators=(",", ":"))


def parameter_servers(workers: int, servers: int) -> list[str]:
    """TF_CONFIG of each task of a ParameterServerStrategy on this node: the coordinator's, workers' and servers'."""
    numbers = {"chief": 1, "worker": workers, "ps": servers}
    tasks = [(kind, index) for kind, number in numbers.items() for index in range(number)]
    cluster: dict[str, list[str]] = {kind: [] for kind in numbers}
    for (kind, _), port in zip(tasks, free_ports(len(tasks))):
        cluster[kind].append(f"127.0.0.1:{port}")
    return [
        json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}, separators=(",", ":"))
        for kind, index in tasks
    ]


def free_ports(number: int) -> list[int]:
    """Ports that nobody uses now, all different."""
    with ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("", 0))) for _ in range(number)]
        return [listener.getsockname()[1] for listener in listeners]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _lead(port: int, nodes: int, job: str, own: list[str]) -> list[str]:
    """The first node's launcher: waits for the others', and tells each the addresses of all."""
    until = time.monotonic() + PATIENCE_S
    addresses = {0: own}
    with ExitStack() as held:
        listener = held.enter_context(socket.create_server(("", port), backlog=nodes))
        others: dict[int, socket.socket] = {}
        while len(addresses) < nodes:
            listener.settimeout(max(0.0, until - time.monotonic()))
            try:
                connection, peer = listener.accept()
            except OSError as error:
                missing = sorted(set(range(nodes)) - addresses.keys())
                raise NoMeeting(f"no launcher of the nodes with rank {missing}: {error}") from error
            held.enter_context(connection)
            said = _read(connection)
            if isinstance(said, dict) and said.get("job") == job and said.get("node") in range(1, nodes):
                # A launcher whose connection broke comes again; the newest one counts.
                addresses[said["node"]] = [_address(peer[0], int(each)) for each in said["ports"]]
                others[said["node"]] = connection
            else:
                connection.close()
        every = [each for number in range(nodes) for each in addresses[number]]
        for number, connection in others.items():
            first = sum(len(addresses[each]) for each in range(number))
            connection.sendall(json.dumps({"workers": every, "first": first}).encode() + b"\n")
    return every


def _follow(host: str, port: int, own: Mapping[str, Any]) -> tuple[list[str], int]:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
                connection.sendall(json.dumps(own).encode() + b"\n")
                said = _read(connection, max(ANSWER_S, until - time.monotonic()))
            if isinstance(said, dict):
                return list(said["workers"]), int(said["first"])
            why: object = "it closed the connection"
        except OSError as error:
            why = error
        if time.monotonic() > until:
            raise NoMeeting(f"the first node's launcher at {host}:{port}: {why}")
        time.sleep(RETRY_S)


def _read(connection: socket.socket, wait_s: float = ANSWER_S) -> Any:
    """One line of JSON, or None where none comes."""
    connection.settimeout(wait_s)
    try:
        with connection.makefile("rb") as file:
            return json.loads(file.readline(LIMIT))
    except (OSError, ValueError):
        return None
