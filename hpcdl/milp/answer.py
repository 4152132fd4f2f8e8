"""The answer of `hpcdl allocate` in nodes and in words: which nodes each trainer gets, and why so many.

The sentences are for `hpcdl allocate` alone; those of the policies are in reasons.py. Nothing is solved here.
"""

from collections.abc import Sequence

from hpcdl.core.model.units import count, seconds_text
from hpcdl.milp.problem import Problem, allowed, shrunk
from hpcdl.placement.nodes import WholeNode, choose
from hpcdl.solver import Allotment, ElasticTrainer


def nodes_of(problem: Problem, allotment: Allotment) -> list[tuple[str, ...] | int]:
    """The nodes of each trainer, by name where its group's nodes have names, else their number.

    Who gets none has (), or 0 where it has no names to lose: its group, or the first one, has only a number.
    """
    found: list[tuple[str, ...] | int] = []
    for trainer, nodes, group in zip(problem.trainers, allotment.counts, allotment.groups, strict=True):
        its = problem.groups[trainer.group if group is None else group]
        found.append(nodes if its.names is None else ())
    for at, its in enumerate(problem.groups):
        if its.names is None:
            continue
        there = set(its.names)
        held = [tuple(name for name in names if name in there) for names in problem.held]
        counts = [nodes if group == at else 0 for nodes, group in zip(allotment.counts, allotment.groups, strict=True)]
        for number, names in enumerate(choose(held, counts, [WholeNode(name) for name in its.names])):
            if names:
                found[number] = names
    return found


def reasons(problem: Problem, allotment: Allotment) -> list[str]:
    """Why each trainer gets what it gets, a sentence in words and numbers."""
    free = problem.capacities
    for nodes, group in zip(allotment.counts, allotment.groups, strict=True):
        if group is not None:
            free[group] -= nodes
    rows = zip(problem.trainers, allotment.counts, allotment.groups, strict=True)
    return [_reason(problem, trainer, nodes, group, free) for trainer, nodes, group in rows]


def _reason(problem: Problem, trainer: ElasticTrainer, nodes: int, group: int | None, free: Sequence[int]) -> str:
    if group is None:
        return _without(problem, trainer, free)
    curve = trainer.curves[group]
    assert curve is not None
    rate = _number(curve.rate(nodes))
    here = f" of {problem.groups[group].name}" if problem.grouped else ""
    if not trainer.now:
        return f"starts on {count(nodes, 'node')}{here}: throughput {rate}, {_worth(problem, trainer, nodes, group)}"
    before = f"throughput {_number(trainer.held_rate)}"
    if group != trainer.group:
        there = problem.groups[trainer.group].name
        change = f"moves from {count(trainer.now, 'node')} of {there} to {nodes}{here}"
    elif nodes == trainer.now:
        return (
            f"keeps its {count(nodes, 'node')}{here}: throughput {rate}, {_other(problem, trainer, nodes, group, free)}"
        )
    elif nodes > trainer.now:
        change = f"grows from {trainer.now} to {count(nodes, 'node')}{here}"
    else:
        change = f"shrinks from {trainer.now} to {count(nodes, 'node')}{here}"
    illegal = _illegal(trainer)
    return f"{change}{illegal}: {before} to {rate}, {_worth(problem, trainer, nodes, group)}"


def _worth(problem: Problem, trainer: ElasticTrainer, nodes: int, group: int) -> str:
    """What it makes of its nodes within the horizon, and what the rescale costs."""
    curve = trainer.curves[group]
    assert curve is not None
    gain = trainer.weight * problem.horizon_s * curve.rate(nodes)
    lost = gain - trainer.worth(nodes, group)
    cost = f", less {_number(lost)} for the rescale" if lost > 0 else ""
    return f"worth {_number(gain)} in {seconds_text(problem.horizon_s)}{cost}"


def _other(problem: Problem, trainer: ElasticTrainer, nodes: int, group: int, free: Sequence[int]) -> str:
    """Why another number of nodes is no better."""
    more = next(iter(allowed_above(trainer, nodes, problem.groups[group].size)), None)
    if more is None:
        return "the most that it can have"
    gain = trainer.worth(more, group) - trainer.worth(nodes, group)
    if gain <= 0:
        return f"{count(more, 'node')} would be worth {_number(-gain)} less, the rescale included"
    if free[group] >= more - nodes:
        return f"{count(more, 'node')} would be worth {_number(gain)} more"
    return f"{more - nodes} more would be worth {_number(gain)} to it, and no less to others"


def allowed_above(trainer: ElasticTrainer, nodes: int, most: int) -> Sequence[int]:
    """The numbers of nodes on which it may run, from `nodes` + 1 to `most`, ascending."""
    sizes = allowed(trainer, most)
    if isinstance(sizes, range):
        return range(max(sizes.start, nodes + 1), sizes.stop)
    return [size for size in sizes if size > nodes]


def _without(problem: Problem, trainer: ElasticTrainer, free: Sequence[int]) -> str:
    """Why it gets nothing."""
    had = f"gives back its {count(trainer.now, 'node')}{_illegal(trainer)}" if trainer.now else "waits"
    options = []
    for group, curve in enumerate(trainer.curves):
        sizes = allowed(trainer, problem.groups[group].size) if curve is not None else ()
        if sizes:
            options.append((group, sizes[0]))
    if not options:
        least = next(iter(allowed(trainer, trainer.most)), trainer.fewest)
        most = max((g.size for g, c in zip(problem.groups, trainer.curves, strict=True) if c is not None), default=0)
        return f"{had}: it needs {count(least, 'node')}, and there {'is' if most == 1 else 'are'} {most}"
    none = trainer.worth(0)
    gains = []
    for group, least in options:
        gains.append((trainer.worth(least, group) - none, -least, group))
        held = shrunk(trainer, trainer.now) if group == trainer.group else 0
        if held and held <= problem.groups[group].size:
            gains.append((trainer.worth(held, group) - none, -held, group))
    gain, minus, group = max(gains)
    where = f" of {problem.groups[group].name}" if problem.grouped else ""
    if gain <= 0:
        return f"{had}: {count(-minus, 'node')}{where} would be worth {_number(gain)} to it, no more than none"
    if free[group] >= -minus:
        return f"{had}: {count(-minus, 'node')}{where} would be worth {_number(gain)} to it"
    return f"{had}: {count(-minus, 'node')}{where} would be worth {_number(gain)} to it, and no less to others"


def _number(value: float) -> str:
    """A value for people: `1,234,567`, `12.3`, `1.2e+15`."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _illegal(trainer: ElasticTrainer) -> str:
    """Why it cannot keep what it has, or ""."""
    if not trainer.now or trainer.allows(trainer.now, trainer.group):
        return ""
    if trainer.now > trainer.most:
        return f" (at most {trainer.most} are allowed)"
    if trainer.now < trainer.fewest:
        return f" (at least {trainer.fewest} are needed)"
    return " (not one of its sizes)"
