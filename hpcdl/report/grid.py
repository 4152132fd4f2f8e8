"""The GPUs of every node as a grid: coloured by job, filled as far as they compute.

Up to MOST_TILES GPUs are tiles with text, more are cells. Part of the page of what goes on now (`live`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl.core.model.gpu_use import GpuNow
from hpcdl.core.model.units import count, natural
from hpcdl.report.html import html, legend, note
from hpcdl.report.names import breakable, job_colour, short_names

MOST_TILES = 128
"""GPUs that are drawn as tiles with text in them."""
MOST_NODES = 1024
_WIDE, _HIGH = 132, 48
_ROOM = 12
"""Letters of a name in a tile, beside the id."""
_CELLS = ((10, 16), (6, 10))
"""Pixels of a cell: with the nodes' names, and without."""
_NAMED = 256
"""So many nodes have their name at their cells; more show it where the mouse rests."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hrefs:
    """Where pages of jobs and of nodes are, as `/job/{}`; "": nowhere."""

    job: str = ""
    node: str = ""

    def job_link(self, job: int, text: str) -> str:
        """A fragment of HTML as a link to a job."""
        return f'<a href="{self.job.format(job)}">{text}</a>' if self.job and job else text

    def node_link(self, node: object, text: str) -> str:
        """The same to a node."""
        plain = re.fullmatch(r"[\w.~-]+", str(node), re.ASCII) is not None
        return f'<a href="{self.node.format(node)}">{text}</a>' if self.node and plain else text


def grid(nodes: Sequence[Row], names: Mapping[int, str], hrefs: Hrefs) -> str:
    """The GPUs of all nodes as a fragment of HTML. `nodes`: as in `GET /v1/overview`; `names`: of jobs."""
    ordered = sorted(nodes, key=lambda node: natural(str(node["name"])))
    number = sum(len(node["gpus"]) for node in nodes)
    if not number:
        return note("No GPU has joined yet.")
    if number <= MOST_TILES:
        short = short_names(names.values(), _ROOM)
        cards = "".join(_card(node, names, short, hrefs) for node in ordered)
        return f'<div class="nodes">{cards}</div>'
    shown = ordered[:MOST_NODES]
    kind = "cells" if len(shown) <= _NAMED else "cells packed"
    cells = "".join(_cells(node, names, len(shown) <= _NAMED, hrefs) for node in shown)
    left = len(ordered) - len(shown)
    more = note(f"{count(left, 'more node')}: hpcdl ls nodes") if left else ""
    return f'<div class="{kind}">{cells}</div>{more}'


def grid_legend(dense: bool) -> str:
    """The legend of the grid: what the colours of tiles mean."""
    back = '<rect width="100%" height="100%" class="back"/>'
    items = [
        (
            "gpu c0",
            f'{back}<rect y="40%" width="100%" height="60%" class="full"/>',
            "held, as full as it computes; a colour for each job",
        ),
        ("gpu free", back, "free"),
        ("gpu bad", back, "excluded or unhealthy"),
        ("gpu away", back, "its agent is away, or its node goes"),
    ]
    return legend(items if dense else [*items, ("", "", "the line below: memory in use")])


def gpu_now(node: Row, gpu: Sequence[Any]) -> GpuNow:
    """A GPU of a node, both as in `GET /v1/overview`."""
    there = node["connected"] and not node["lost"] and not node["leaving"]
    return GpuNow(bool(gpu[2]), gpu[1] == "ok", there, gpu[4])


def look_of(node: Row, gpu: Sequence[Any]) -> str:
    """The class of a GPU's tile."""
    kind = gpu_now(node, gpu).kind
    return job_colour(gpu[2]) if kind == "held" else kind


def state_of(node: Row) -> str:
    """A node's state in a word: lost, away or leaving; "" for one that is there."""
    if node["lost"]:
        return "lost"
    if not node["connected"]:
        return "away"
    return "leaving" if node["leaving"] else ""


def _card(node: Row, names: Mapping[int, str], short: Mapping[str, str], hrefs: Hrefs) -> str:
    state = state_of(node)
    told = f' <span class="alarm">{state}</span>' if state else ""
    kind = f' <span class="soft">{html(node["kind"], 40)}</span>' if node["kind"] else ""
    tiles = "".join(hrefs.job_link(gpu[2], _tile(node, gpu, names, short)) for gpu in node["gpus"])
    name = hrefs.node_link(node["name"], breakable(node["name"], 60))
    return f'<div class="node-card"><h3>{name}{told}{kind}</h3><div class="tiles">{tiles}</div></div>'


def _tile(node: Row, gpu: Sequence[Any], names: Mapping[int, str], short: Mapping[str, str]) -> str:
    index, state, job, _, util, used, memory, *_ = gpu
    look = look_of(node, gpu)
    name = names.get(job, f"job {job}")
    beside = f"+{gpu[9]}" if len(gpu) > 9 and gpu[9] else ""
    number = f"{job}{beside} "
    first = f"{number}{short.get(name, name)}" if job else state if state != "ok" else state_of(node) or "free"
    second = "–" if util is None else f"{util:.0f} %"
    full = _share(util, 100.0) * (_HIGH - 6) if job else 0.0
    part = _share(used, memory)
    return (
        f'<svg width="{_WIDE}" height="{_HIGH}" class="gpu {look}" role="img"><title>{_told(node, gpu, names)}</title>'
        f'<rect width="{_WIDE}" height="{_HIGH - 6}" rx="3" class="back"/>'
        f'<rect y="{_HIGH - 6 - full:.1f}" width="{_WIDE}" height="{full:.1f}" rx="3" class="full"/>'
        f'<text x="6" y="17" class="tile-name">{html(first, _ROOM + len(number))}</text>'
        f'<text x="6" y="34" class="tile-load">GPU {index} · {second}</text>'
        f'<rect y="{_HIGH - 4}" width="{_WIDE}" height="3" class="empty"/>'
        f'<rect y="{_HIGH - 4}" width="{_WIDE * part:.1f}" height="3" class="memory"/></svg>'
    )


def _cells(node: Row, names: Mapping[int, str], named: bool, hrefs: Hrefs) -> str:
    """The GPUs of one node in a row: a path for each look, so that a thousand nodes are not too much for a page."""
    backs: dict[str, list[str]] = {}
    fulls: dict[str, list[str]] = {}
    cell, tall = _CELLS[0 if named else 1]
    for place, gpu in enumerate(node["gpus"]):
        _, state, job, _, util, *_ = gpu
        look, x, wide = look_of(node, gpu), place * cell, cell - 1
        backs.setdefault(look, []).append(f"M{x} 0h{wide}v{tall}h-{wide}z")
        if job and (full := round(_share(util, 100.0) * tall)):
            fulls.setdefault(look, []).append(f"M{x} {tall - full}h{wide}v{full}h-{wide}z")
    paths = "".join(
        f'<g class="gpu {look}"><path class="back" d="{"".join(each)}"/>'
        + (f'<path class="full" d="{"".join(fulls[look])}"/>' if look in fulls else "")
        + "</g>"
        for look, each in backs.items()
    )
    wide = max(1, len(node["gpus"])) * cell
    svg = f'<svg width="{wide}" height="{tall}" role="img"><title>{_all_told(node, names)}</title>{paths}</svg>'
    svg = hrefs.node_link(node["name"], svg)
    state = state_of(node)
    if not named:
        return f'<div class="{"cell alarmed" if state else "cell"}">{svg}</div>'
    alarm = f' <span class="alarm">{state}</span>' if state else ""
    return f'<div class="cell"><span>{html(node["name"], 30)}{alarm}</span>{svg}</div>'


def _told(node: Row, gpu: Sequence[Any], names: Mapping[int, str]) -> str:
    index, state, job, incarnation, util, used, memory, detail, _, *behind = gpu
    lines = [f"{html(node['name'], 80)}:{index}"]
    lines.append(f"job {job}.{incarnation} {html(names.get(job, ''), 80)}" if job else "held by no job")
    lines += [f"job {other} {html(names.get(other, ''), 80)} as its background" for other in behind if other]
    if state != "ok":
        lines.append(f"{html(state)} {html(detail)}".strip())
    if util is not None:
        lines.append(f"computes {util:.0f} %")
    if used is not None and memory:
        lines.append(f"{used / 1024:.1f} of {memory / 1024:.0f} GiB in use")
    return "\n".join(lines)


def _all_told(node: Row, names: Mapping[int, str]) -> str:
    jobs = dict.fromkeys(int(job) for gpu in node["gpus"] for job in (gpu[2], *gpu[9:10]) if job)
    loads = [gpu[4] for gpu in node["gpus"] if gpu[4] is not None]
    held = sum(1 for gpu in node["gpus"] if gpu[2])
    lines = [f"{html(node['name'], 80)} {state_of(node)}".strip(), f"{held} of {count(len(node['gpus']), 'GPU')} held"]
    if loads:
        lines.append(f"compute {sum(loads) / len(loads):.0f} %")
    lines += [f"job {job} {html(names.get(job, ''), 40)}".strip() for job in list(jobs)[:4]]
    if len(jobs) > 4:
        lines.append(f"and {count(len(jobs) - 4, 'more job')}")
    bad = [f"GPU {gpu[0]} {html(gpu[1], 40)}" for gpu in node["gpus"] if gpu[1] != "ok"]
    return "\n".join(lines + bad[:4])


def _share(part: float | None, whole: float | None) -> float:
    return 0.0 if part is None or not whole else max(0.0, min(1.0, part / whole))
