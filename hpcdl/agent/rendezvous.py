"""Where the ranks of a job on several nodes meet: ports of this node, and the variables that name the place to them.

A fixed number of nodes meets at the first one's address, on a port that follows from the attempt, so that every agent
knows it without asking; the first node's checks that it is free. Elastic ones meet where the daemon says.
"""

import errno
import hashlib
import ipaddress
import random
import socket
from contextlib import suppress
from pathlib import Path

from hpcdl.agent.context import AgentContext
from hpcdl.wire.messages import RequestMessage


def endpoint(host: str, port: int) -> str:
    """host:port, of an IPv6 address [host]:port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def meeting_point(site: AgentContext, order: RequestMessage) -> tuple[str, int] | None:
    """Address and port at which the ranks of a fixed number of nodes meet; None on one node, for elastic trainers, and
    where an agent does not say its address. Another attempt of the job has another port."""
    request, spec = order.request, order.spec
    addresses = request.address.split(",")
    if spec is None or spec.rescale != "restart" or not len(request.nodes) == len(addresses) > 1 or not all(addresses):
        return None
    attempt = f"{site.instance}:{request.job}:{request.incarnation}".encode()
    return addresses[0], FROM + int.from_bytes(hashlib.sha256(attempt).digest()[:8]) % (TO - FROM)


def check_meeting_point(site: AgentContext, order: RequestMessage) -> None:
    """Raises OSError where this is the first node, and the port is somebody else's: the next attempt has another."""
    place = meeting_point(site, order)
    if place is not None and order.request.nodes[0] == site.node:
        Port(*place).release()


def group_environment(site: AgentContext, order: RequestMessage) -> dict[str, str]:
    """What makes one group of the job's processes, one on each node, for torch.distributed and its like; and of a
    torchrun of the job's own, whose options take PET_* for defaults. {} where `meeting_point` is None. How many ranks
    there are on a node is for the command to say (hpcdl/trainer/ranks.py). Rank 0 is on the first node, and writes."""
    place = meeting_point(site, order)
    if place is None:
        return {}
    host, port = place
    nodes = order.request.nodes
    rank, size = str(nodes.index(site.node)), str(len(nodes))
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": rank,
        "HPCDL_RDZV_ENDPOINT": endpoint(host, port),
        "HPCDL_NODE_ADDRESSES": order.request.address,
        "PET_NNODES": size,
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_ENDPOINT": endpoint(host, port),
        "PET_RDZV_ID": f"{site.instance}-{order.request.job}-{order.request.incarnation}",
    }


FROM, TO = 10_240, 32_768  # of the ports that `Port` tries

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

ATTEMPTS = 200


class Port:
    """A port of this address, bound as long as this is not released, so that nobody else gets it.

    It lies below those that the kernel gives to whoever asks for any: in the moments between the release and the use
    only somebody who wants this very number could take it.
    """

    def __init__(self, host: str, number: int | None = None) -> None:
        """`number`: None is any. Raises OSError where it is not free, or the address is not this machine's."""
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        top = TO
        with suppress(OSError, ValueError, IndexError):
            top = min(TO, int(RANGE.read_text().split()[0]))
        for _ in range(ATTEMPTS):
            # Above what the kernel gives out where there is nothing below it: then the kernel chooses.
            any_other = random.randrange(FROM, top) if top > FROM else 0
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._socket.bind((host, any_other if number is None else number))
                break
            except OSError as error:
                self._socket.close()
                if number is not None:
                    raise OSError(error.errno, f"{host}:{number}: {error.strerror}") from None
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
        else:
            raise OSError(errno.EADDRINUSE, f"no free port on {host} in {ATTEMPTS} attempts")
        port = self._socket.getsockname()[1]
        self.address = endpoint(host, port)

    def release(self) -> None:
        """Lets go of the port: whoever it is for listens on it now."""
        self._socket.close()
