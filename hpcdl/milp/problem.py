"""The problem of `hpcdl allocate`: nodes in groups, and trainers that may run on some of them (BFTrainer, section 3).

`read` makes one of PROBLEM.json; whatever is wrong in that file is refused in one line that names the field. solve.py
answers it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from hpcdl.core.model.units import count
from hpcdl.solver import Allotment, ElasticTrainer, ThroughputCurve
from hpcdl.solver.nodes import allotment
from hpcdl.solver.trainers import MOST_NODES


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike. `names`: None where only their number is known; `name`: "" where there are no groups."""

    name: str
    size: int
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a group of {self.size} nodes")
        if self.names is not None and len(self.names) != self.size:
            raise ValueError(f"{len(self.names)} names of {self.size} nodes")


@dataclass(frozen=True, slots=True)
class Problem:
    """Who gets how many nodes. `ids`, `held`: of each trainer its id, and the nodes that it has, in rank order, as far
    as they are there and have names; `grouped`: the groups have names."""

    horizon_s: float
    groups: tuple[NodeGroup, ...]
    ids: tuple[str, ...]
    trainers: tuple[ElasticTrainer, ...]
    held: tuple[tuple[str, ...], ...]
    grouped: bool = False

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.trainers) == len(self.held):
            raise ValueError(f"{len(self.ids)} ids, {len(self.held)} maps of {len(self.trainers)} trainers")
        for name, trainer in zip(self.ids, self.trainers, strict=True):
            if len(trainer.curves) != len(self.groups):
                raise ValueError(f"{name}: {len(trainer.curves)} curves for {len(self.groups)} groups")

    @property
    def capacities(self) -> list[int]:
        """The number of nodes of each group."""
        return [group.size for group in self.groups]

    def places(self) -> Iterator[tuple[int, int]]:
        """(trainer, group) wherever a trainer may run."""
        for number, trainer in enumerate(self.trainers):
            for group, its in enumerate(self.groups):
                if trainer.reach(group, its.size) is not None:
                    yield number, group

    def stay(self, solver: str) -> Allotment:
        """The answer that changes nothing: the current map, without a bound; who has a number that it may not have is
        shrunk to the next one it may.

        Where trainers have more nodes than there are, those further down the list get what is left.
        """
        left = self.capacities
        chosen = []
        for trainer in self.trainers:
            nodes = 0
            if trainer.now:
                nodes = shrunk(trainer, min(trainer.now, left[trainer.group]))
                left[trainer.group] -= nodes
            chosen.append((nodes, trainer.group))
        return allotment(self.trainers, chosen, float("inf"), solver)


def allowed(trainer: ElasticTrainer, most: int) -> Sequence[int]:
    """The numbers of nodes on which a trainer may run, up to `most`, ascending; 0 is not among them."""
    if trainer.sizes:
        return [size for size in trainer.sizes if trainer.fewest <= size <= min(trainer.most, most)]
    return range(trainer.fewest, min(trainer.most, most) + 1)


def shrunk(trainer: ElasticTrainer, nodes: int) -> int:
    """The largest number of nodes that a trainer may have, up to `nodes`."""
    return next(reversed(allowed(trainer, nodes)), 0)


_PROBLEM_KEYS = ("horizon_s", "nodes", "groups", "trainers")

_TRAINER_KEYS = (
    "id", "current", "group", "min", "max", "sizes", "scale_up_s", "scale_down_s", "weight", "curve",
)  # fmt: skip

_LARGEST = 10**9  # that anybody may write for "as many as there are"

_MOST = 1e100  # of anything else: three of them multiplied are a number still

_NEAR = 0.8  # so alike is a name that is not known to one that is: it was meant


class ProblemError(ValueError):
    """A problem that makes no sense; the message is one line that names the field."""


def read(text: str) -> Problem:
    """The problem that a JSON text states; ProblemError names the field that is wrong.

    Names that are not known are ignored, unless they are nearly one that is.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ProblemError("the problem is nested too deeply") from None
    except ProblemError:
        raise
    except ValueError as error:
        raise ProblemError(f"the problem is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProblemError(f"the problem is {_kind(value)}: it must be an object with horizon_s, nodes and trainers")
    _known(value, _PROBLEM_KEYS, "")
    horizon = _number(_needed(value, "horizon_s", ""), "horizon_s")
    groups, grouped = _groups(value)
    owner = {name: at for at, group in enumerate(groups) for name in group.names or ()}
    rows = _needed(value, "trainers", "")
    if not isinstance(rows, list):
        raise ProblemError(f"trainers is {_kind(rows)}: it must be a list")
    found = [_trainer(row, f"trainers[{at}]", horizon, groups, grouped, owner) for at, row in enumerate(rows)]
    ids = tuple(name for name, _, _ in found)
    trainers = tuple(trainer for _, trainer, _ in found)
    held = [names for _, _, names in found]
    _once(((name, f"trainers[{at}].id") for at, name in enumerate(ids)), "is another trainer's id")
    _once(
        ((name, f"trainers[{at}].current") for at, names in enumerate(held) for name in names),
        "is another trainer's node",
    )
    return Problem(horizon, groups, ids, trainers, _named(trainers, held, groups), grouped)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ProblemError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice in one object")
    return found


def _constant(text: str) -> NoReturn:
    raise ProblemError(f"{text} is no JSON number: all numbers must be finite")


def _groups(value: Mapping[str, Any]) -> tuple[tuple[NodeGroup, ...], bool]:
    if ("nodes" in value) == ("groups" in value):
        both = "both are there" if "nodes" in value else "neither is there"
        raise ProblemError(f"nodes: it or groups is needed, and {both}")
    if "nodes" in value:
        groups = [_group("", value["nodes"], "nodes")]
    else:
        named = value["groups"]
        if not isinstance(named, dict) or not named:
            raise ProblemError(f"groups is {_kind(named)}: it must be an object with a group at least")
        if "" in named:
            raise ProblemError("groups: a group without a name")
        groups = [_group(name, nodes, f"groups.{name}") for name, nodes in named.items()]
        _once(
            ((each, f"groups.{group.name}[{at}]") for group in groups for at, each in enumerate(group.names or ())),
            "is a node of another group",
        )
    if sum(group.size for group in groups) > MOST_NODES:
        raise ProblemError(f"{'groups' if 'groups' in value else 'nodes'}: more than {MOST_NODES} nodes")
    return tuple(groups), "groups" in value


def _group(name: str, value: Any, where: str) -> NodeGroup:
    if isinstance(value, list):
        names = tuple(_text(each, f"{where}[{at}]") for at, each in enumerate(value))
        _once(((each, f"{where}[{at}]") for at, each in enumerate(names)), "is there twice")
        return NodeGroup(name, len(names), names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProblemError(f"{where} is {_kind(value)}: it must be a list of names or a number of nodes")
    return NodeGroup(name, _whole(value, where, 0, MOST_NODES))


def _trainer(
    row: Any, where: str, horizon: float, groups: tuple[NodeGroup, ...], grouped: bool, owner: Mapping[str, int]
) -> tuple[str, ElasticTrainer, tuple[str, ...]]:
    """A trainer's id, its numbers, and the nodes with names that it has."""
    if not isinstance(row, dict):
        raise ProblemError(f"{where} is {_kind(row)}: it must be an object with id, min, max and curve")
    _known(row, _TRAINER_KEYS, where)
    name = _text(_needed(row, "id", where), f"{where}.id")
    fewest = _whole(row.get("min", 1), f"{where}.min", 1, MOST_NODES, "; no node at all is allowed in any case")
    most = _whole(row.get("max", MOST_NODES), f"{where}.max", 1, _LARGEST)
    if most < fewest:
        raise ProblemError(f"{where}.max is {most}, less than min, {fewest}")
    group = _own_group(row, where, groups, grouped)
    now, held, group = _current(row.get("current", 0), f"{where}.current", group, groups, owner)
    curves = _curves(_needed(row, "curve", where), f"{where}.curve", groups, grouped)
    if now and group is None:
        raise ProblemError(f"{where}.group: in which group are the {count(now, 'node')} that it has?")
    if group is not None and now and curves[group] is None:
        raise ProblemError(f"{where}.curve: there is none for {groups[group].name!r}, where it runs")
    trainer = ElasticTrainer(
        curves,
        fewest,
        min(most, MOST_NODES),
        _sizes(row["sizes"], f"{where}.sizes", fewest, most) if row.get("sizes") is not None else (),
        now,
        group or 0,
        _number(row.get("scale_up_s", 0.0), f"{where}.scale_up_s"),
        _number(row.get("scale_down_s", 0.0), f"{where}.scale_down_s"),
        _number(row.get("weight", 1.0), f"{where}.weight"),
        horizon,
    )
    return name, trainer, held


def _own_group(row: Mapping[str, Any], where: str, groups: tuple[NodeGroup, ...], grouped: bool) -> int | None:
    value = row.get("group")
    if value is None:
        return 0 if len(groups) == 1 else None
    name = _text(value, f"{where}.group")
    if not grouped:
        raise ProblemError(f"{where}.group is {name!r}, and there are no groups, only nodes")
    for at, group in enumerate(groups):
        if group.name == name:
            return at
    raise ProblemError(f"{where}.group is {name!r}: the groups are {', '.join(group.name for group in groups)}")


def _current(
    value: Any, where: str, group: int | None, groups: tuple[NodeGroup, ...], owner: Mapping[str, int]
) -> tuple[int, tuple[str, ...], int | None]:
    """How many nodes a trainer has, those with names that are still there, and the group that they are of."""
    if value is None:
        return 0, (), group
    if not isinstance(value, list):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ProblemError(f"{where} is {_kind(value)}: it must be a list of names or a number of nodes")
        return _whole(value, where, 0, MOST_NODES), (), group
    names = [_text(each, f"{where}[{at}]") for at, each in enumerate(value)]
    _once(((name, f"{where}[{at}]") for at, name in enumerate(names)), "is there twice")
    if names and all(each.names is None for each in groups):
        raise ProblemError(f"{where} has names, and the nodes have none: give a number")
    held = []
    for at, name in enumerate(names):
        its = owner.get(name)
        if its is None:
            continue  # it has left
        if group is None:
            group = its
        if its != group:
            raise ProblemError(
                f"{where}[{at}] is {name!r}, of group {groups[its].name!r}: not of {groups[group].name!r}"
            )
        held.append(name)
    return len(held), tuple(held), group


def _named(
    trainers: Sequence[ElasticTrainer], held: Sequence[tuple[str, ...]], groups: tuple[NodeGroup, ...]
) -> tuple[tuple[str, ...], ...]:
    """The nodes with names that trainers have; who said only how many it has, has the next that nobody named."""
    taken = {name for names in held for name in names}
    left = [iter([name for name in group.names or () if name not in taken]) for group in groups]
    return tuple(
        names or tuple(islice(left[trainer.group], trainer.now)) for trainer, names in zip(trainers, held, strict=True)
    )


def _curves(value: Any, where: str, groups: tuple[NodeGroup, ...], grouped: bool) -> tuple[ThroughputCurve | None, ...]:
    if isinstance(value, dict):
        if not grouped:
            raise ProblemError(
                f"{where} is by group, and there are no groups: it must be a list of [nodes, throughput]"
            )
        names = [group.name for group in groups]
        for name in value:
            if name not in names:
                raise ProblemError(f"{where}.{name}: there is no such group; the groups are {', '.join(names)}")
        if not value:
            raise ProblemError(f"{where} has no group")
        return tuple(_curve(value[name], f"{where}.{name}") if name in value else None for name in names)
    return (_curve(value, where),) * len(groups)


def _curve(value: Any, where: str) -> ThroughputCurve:
    if not isinstance(value, list) or not value:
        what = "empty" if value == [] else _kind(value)
        raise ProblemError(f"{where} is {what}: it must be a list of [nodes, throughput]")
    points: list[tuple[int, float]] = []
    before = -1
    for at, point in enumerate(value):
        here = f"{where}[{at}]"
        if not isinstance(point, list) or len(point) != 2:
            raise ProblemError(f"{here} is {_kind(point)}: it must be [nodes, throughput]")
        nodes, rate = _whole(point[0], f"{here}[0]", 0, MOST_NODES), _number(point[1], f"{here}[1]")
        if nodes <= before:
            raise ProblemError(f"{here}: {nodes} nodes after {before}; the points must rise")
        if nodes == 0 and rate:
            raise ProblemError(f"{here}: a throughput of {rate:g} on no node at all")
        before = nodes
        if nodes:
            points.append((nodes, rate))
    if not points:
        raise ProblemError(f"{where} has no point beyond 0 nodes")
    return ThroughputCurve(tuple(points))


def _sizes(value: Any, where: str, fewest: int, most: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        what = "empty" if value == [] else _kind(value)
        raise ProblemError(f"{where} is {what}: it must be a list of numbers of nodes")
    sizes = [_whole(each, f"{where}[{at}]", 1, MOST_NODES) for at, each in enumerate(value)]
    for at, size in enumerate(sizes):
        if not fewest <= size <= most:
            raise ProblemError(f"{where}[{at}] is {size}: outside of min to max, {fewest} to {most}")
    _once(((size, f"{where}[{at}]") for at, size in enumerate(sizes)), "is there twice")
    return tuple(sorted(sizes))


def _known(row: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    from difflib import get_close_matches

    for name in row:
        near = [] if name in keys else get_close_matches(name.lower(), keys, 1, _NEAR)
        if near:
            raise ProblemError(f"{where}{'.' if where else ''}{name} is not known: is {near[0]} meant?")


def _needed(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in row:
        raise ProblemError(f"{where}{'.' if where else ''}{name} is missing")
    return row[name]


def _once(values: Iterable[tuple[Any, str]], what: str) -> None:
    seen = set()
    for value, where in values:
        if value in seen:
            raise ProblemError(f"{where}: {value!r} {what}")
        seen.add(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ProblemError(f"{where} is {'empty' if value == '' else _kind(value)}: it must be a text")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProblemError(f"{where} is {_kind(value)}: it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number <= _MOST:
        raise ProblemError(f"{where} is {_shown(value)}: it must be from 0 to {_MOST:g}")
    return number


def _whole(value: Any, where: str, low: int, high: int, more: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProblemError(f"{where} is {_kind(value)}: it must be a whole number")
    if not low <= value <= high or value != int(value):
        raise ProblemError(f"{where} is {_shown(value)}: it must be a whole number from {low} to {high}{more}")
    return int(value)


def _shown(value: float) -> str:
    if isinstance(value, int) and abs(value) >= 10**15:
        return "too large" if value > 0 else "too small"
    return str(value) if isinstance(value, int) else f"{value:g}"


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "true or false", str: "a text", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")
