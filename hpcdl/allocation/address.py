"""The address at which this machine is reached by the nodes of its allocation, and by login nodes."""

import ipaddress
import socket
import threading
from collections.abc import Iterable

from hpcdl.config import Config

LOOKUP_S = 3.0
"""A name that nobody knows may take the resolver so long; then it is given up."""
LOOPBACK = "127.0.0.1"
OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses that are nobody's; nothing is sent there, only the way is asked for."""


def own_address(nodes: Iterable[str]) -> str:
    """The one by which the first of `nodes` that has another address than this machine is reached from here.

    Where no name leads anywhere: this machine's by its name, or on the way to anywhere; at last the loopback.
    """
    for name in (*list(nodes)[:3], socket.gethostname()):
        for found in _looked_up(name):
            mine = _towards(found)
            if mine is not None and not ipaddress.ip_address(mine).is_loopback:
                return mine
    ways = (mine for mine in map(_towards, OUTSIDE) if mine is not None)
    return next((mine for mine in ways if not ipaddress.ip_address(mine).is_loopback), LOOPBACK)


def listen_address(config: Config, pilots: bool) -> str:
    """Where a daemon listens: as its settings say; without a word of theirs for this machine alone.

    `pilots`: it may have some. Their agents are on other machines, and have to reach it.
    """
    if pilots and config.origin("listen_host") == "default":
        return own_address(())
    return config.listen_host


def _looked_up(name: str) -> list[str]:
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM))
        except OSError:
            return

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(LOOKUP_S)
    return list(found)


def _towards(address: str) -> str | None:
    """This machine's address on the way to another one; None where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return None
