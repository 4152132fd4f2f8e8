"""The nodes of one view after another, as policies see them, at the cost of those that changed."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl.core.health import Avoided
from hpcdl.core.model import GpuInfo, Node, World
from hpcdl.core.units import gpu_kind
from hpcdl.core.view import NodeView

_MadeOf = tuple[tuple[GpuInfo, ...], bool, float | None, float, tuple[Avoided, ...]]


@dataclass(frozen=True, slots=True)
class There:
    """The nodes of a view, by name. `largest`: GPUs of the largest node that there ever was; `memo`: as `View.memo`."""

    nodes: tuple[NodeView, ...]
    bare: frozenset[str]
    largest: int
    memo: dict[str, Any]


class StandingNodes:
    """The nodes as they are now. What is handed out does not change any more."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[_MadeOf, NodeView]] = {}
        self._names: list[str] = []
        self._views: dict[str, NodeView] = {}
        self._kinds: dict[str, str] = {}
        self._gpus: dict[str, frozenset[int]] = {}
        self._free: dict[str, tuple[int, ...]] = {}
        self._bare: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._by_size: Counter[int] = Counter()
        self._fresh: set[str] = set()

    def look(self, world: World, changed: Iterable[str] | None) -> There:
        """The nodes of a world. `changed`: all that changed since the last look; None: it may have been any."""
        for name in world.nodes if changed is None else changed:
            node = world.nodes.get(name)
            if node is not None:
                self._put(node)
        largest = max((size for size, many in self._by_size.items() if many), default=0)
        nodes = tuple(map(self._views.__getitem__, self._names))
        memo = {"kinds": self._kinds.copy(), "gpus": self._gpus.copy()}
        return There(nodes, frozenset(self._bare), largest, memo)

    def free(self, changed: Iterable[str], held: Mapping[str, frozenset[int]]) -> dict[str, tuple[int, ...]]:
        """GPUs that nobody holds, by node. `changed`: nodes of which other GPUs are held than before."""
        none = frozenset[int]()
        for name in self._fresh.union(changed):
            gpus = self._gpus.get(name)
            if gpus is not None:
                taken = held.get(name, none)
                self._free[name] = tuple(sorted(gpus - taken)) if taken else self._views[name].gpus
        self._fresh.clear()
        return self._free.copy()

    def _put(self, node: Node) -> None:
        name, size = node.name, len(node.gpus)
        before = self._sizes.get(name)
        if size != before:
            if before is not None:
                self._by_size[before] -= 1
            self._by_size[size] += 1
            self._sizes[name] = size
        there = node.connected and not node.lost
        view = self._view(node) if there else None
        self._bare.discard(name)
        if view is not None and view.gpus:
            if name not in self._views:
                self._names.insert(bisect_left(self._names, name), name)
            self._views[name], self._kinds[name], self._gpus[name] = view, view.kind, frozenset(view.gpus)
            self._fresh.add(name)
            return
        if there and node.gpus:
            self._bare.add(name)
        if self._views.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)], self._kinds[name], self._gpus[name]
            self._free.pop(name, None)
            self._fresh.discard(name)

    def _view(self, node: Node) -> NodeView:
        made_of = (node.gpus, node.leaving, node.until, node.joined_at, node.avoided)
        known = self._made.get(node.name)
        if known is not None and known[0] == made_of:
            return known[1]
        names = {gpu.name for gpu in node.gpus}
        kind = gpu_kind(names.pop()) if len(names) == 1 else ""
        view = NodeView(node.name, node.usable(), kind, node.joined_at, node.until, node.place)
        self._made[node.name] = (made_of, view)
        return view
