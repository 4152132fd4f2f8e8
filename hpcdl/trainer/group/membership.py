"""A membership: the numbered set of ranks that a trainer which is rescaled in place has from some step on.

Values only. The daemon decides on one, `in_place` forms it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Membership:
    """`nodes` in rank order with as many `ranks` on each; a node's ranks are numbered after those of the nodes before
    it. `address`: host:port of the store that the lead rank of the first node keeps."""

    number: int
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    address: str

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"membership {self.number} must be 1 or more")
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"nodes {self.nodes} must be different ones, and at least one")
        if len(self.ranks) != len(self.nodes) or any(each < 1 for each in self.ranks):
            raise ValueError(f"ranks {self.ranks} must be one number from 1 on for each of {len(self.nodes)} nodes")
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"address {self.address!r} must be host:port")

    @property
    def size(self) -> int:
        """Ranks in all."""
        return sum(self.ranks)

    @property
    def store(self) -> tuple[str, int]:
        """Host and port to meet at."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def rank_of(self, node: str, local_rank: int) -> int | None:
        """The rank of a node's process, or None where it is no member."""
        if node not in self.nodes:
            return None
        index = self.nodes.index(node)
        return sum(self.ranks[:index]) + local_rank if 0 <= local_rank < self.ranks[index] else None


def from_packet(packet: Mapping[str, Any]) -> Membership | None:
    """What a `rescale` packet asks for, or None where it makes no sense."""
    try:
        number, nodes, ranks, address = (packet[name] for name in ("membership", "nodes", "ranks", "address"))
        whole = [number, *ranks]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in whole):
            return None
        if not all(isinstance(each, str) for each in [*nodes, address]):
            return None
        return Membership(number, tuple(nodes), tuple(ranks), address)
    except (KeyError, TypeError, ValueError):
        return None
