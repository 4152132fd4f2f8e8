"""Nodes of an allocation on which no agent could be started, and why: a file of HPCDL_HOME that the allocation writes,
and that the daemon and `hpcdl doctor` read."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcdl.wire.private_files import NotPrivate, atomic_write, read_private

NAME = "without-agent.json"
LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class NodeWithoutAgent:
    """A node, the batch job that has it, and why it has no agent."""

    name: str
    allocation: str
    reason: str


def write_nodes_without_agent(home: Path, allocation: str, reasons: Mapping[str, str]) -> None:
    """`reasons`: by node; {} for none, which leaves no file. Raises OSError."""
    if reasons:
        atomic_write(home / NAME, json.dumps({"allocation": allocation, "nodes": dict(reasons)}).encode())
    else:
        (home / NAME).unlink(missing_ok=True)


def nodes_without_agent(home: Path) -> tuple[NodeWithoutAgent, ...]:
    """Those of the last allocation, by name; () where nothing, or nothing that can be understood, is written down."""
    with suppress(NotPrivate, OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        known = json.loads(read_private(home / NAME, LARGEST))
        batch_job, nodes = str(known["allocation"]), dict(known["nodes"])
        return tuple(NodeWithoutAgent(name, batch_job, str(nodes[name])) for name in sorted(nodes))
    return ()
