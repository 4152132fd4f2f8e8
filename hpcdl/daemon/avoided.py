"""What is avoided, in words: for `hpcdl why`."""

from datetime import datetime

from hpcdl.core.health import Avoided
from hpcdl.core.model import Node, World

SHOWN = 4
"""So many are named; the others are counted."""


def until_text(at: float, since: float) -> str:
    """`14:20`, with the date where it is more than a day after `since`."""
    return f"{datetime.fromtimestamp(at).astimezone():{'%H:%M' if at - since < 86_400 else '%Y-%m-%d %H:%M'}}"


def avoided_lines(world: World) -> list[str]:
    """`n1:0 is avoided until 14:20: Xid 79: …`, of each."""
    found = [_line(node, each) for node in world.nodes.values() for each in node.avoided if not each.over]
    more = len(found) - SHOWN
    return found if more <= 0 else [*found[:SHOWN], f"{more} more are excluded: hpcdl avoid lists them"]


def _line(node: Node, each: Avoided) -> str:
    name = node.name if each.index is None else f"{node.name}:{each.index}"
    return f"{name} is excluded until {until_text(each.until, each.since)}: {each.reason}"


def all_avoided(world: World) -> str:
    """Where there are GPUs, and each that could be granted is avoided: which, or ""."""
    here = [node for node in world.nodes.values() if node.connected and not node.lost and not node.leaving]
    if any(node.usable() for node in here):
        return ""
    if not any(gpu.state == "ok" and node.avoids(gpu.index) for node in here for gpu in node.gpus):
        return ""
    return "; ".join(avoided_lines(world)) + " (hpcdl avoid --lift)"
