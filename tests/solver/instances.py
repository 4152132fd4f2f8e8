"""Random problems of counts, the strange ones included, and the best choice by trying every one."""

import itertools
import math
import random
from collections.abc import Sequence

from hpcdl.solver import ElasticTrainer, ThroughputCurve

KINDS = ("concave", "linear", "any", "steps", "alike")


def tiny(draw: random.Random, groups: int = 1) -> tuple[list[ElasticTrainer], list[int]]:
    """Few trainers with small whole numbers, so that ties are common; of every strange sort."""
    capacities = [draw.randint(0, 7) for _ in range(groups)]
    trainers = []
    for _ in range(draw.randint(1, 4)):
        curves = tuple(_whole(draw) if draw.random() < 0.8 else None for _ in range(groups))
        homes = [group for group, curve in enumerate(curves) if curve]
        now = draw.choice([0, draw.randint(1, 8)]) if homes else 0
        fewest = draw.randint(1, 4)
        sizes = tuple(sorted(draw.sample(range(1, 9), draw.randint(1, 4)))) if draw.random() < 0.3 else ()
        trainers.append(
            ElasticTrainer(
                curves,
                fewest,
                fewest + draw.randint(0, 5),
                sizes,
                now,
                draw.choice(homes) if now else 0,
                draw.choice([0.0, 5.0, 30.0, 200.0]),
                draw.choice([0.0, 5.0, 30.0, 200.0]),
                draw.choice([0.0, 0.5, 1.0, 1.0, 2.0]),
                draw.choice([0.0, 10.0, 10.0, 120.0]),
            )
        )
    return trainers, capacities


def _whole(draw: random.Random) -> ThroughputCurve:
    at = sorted(draw.sample(range(1, 9), draw.randint(1, 3)))
    return ThroughputCurve(tuple((nodes, float(draw.randint(0, 6))) for nodes in at))


def curve(draw: random.Random, most: int, kind: str) -> ThroughputCurve:
    """A curve up to `most` nodes: concave with noise, linear, of any shape, in steps, or the same as all others."""
    if kind == "concave":
        power, rate = draw.uniform(0.5, 1.0), draw.uniform(1, 10)
        at = sorted({1, most, *(max(1, round(most ** (step / 9))) for step in range(10))})
        return ThroughputCurve(tuple((nodes, rate * nodes**power * draw.uniform(0.97, 1.03)) for nodes in at))
    if kind == "linear":
        return ThroughputCurve(((most, draw.choice([1.0, 1.0, 2.0]) * most),))
    if kind == "alike":
        at = [nodes for nodes in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 10000) if nodes <= most]
        return ThroughputCurve(tuple((nodes, nodes**0.8) for nodes in at))
    at = sorted(draw.sample(range(1, most + 1), min(most, draw.randint(1, 8))))
    if kind == "any":
        return ThroughputCurve(tuple((nodes, draw.uniform(0, nodes)) for nodes in at))
    points: list[tuple[int, float]] = []
    level = 0.0
    for nodes in at:
        if nodes - 1 > (points[-1][0] if points else 0):
            points.append((nodes - 1, level))
        level += draw.randint(1, 3)
        points.append((nodes, level))
    return ThroughputCurve(tuple(points))


def several(
    draw: random.Random,
    many: int,
    nodes: int,
    most: int,
    groups: int = 1,
    kinds: Sequence[str] = KINDS,
    gaps: bool = True,
) -> list[ElasticTrainer]:
    """Trainers that hold about all of the nodes, or wait; with kinds of curves mixed or all of one kind."""
    kind = draw.choice(kinds) if draw.random() < 0.7 else None
    share = max(1, 2 * nodes // many)
    trainers = []
    for _ in range(many):
        shape = kind or draw.choice(kinds)
        curves = tuple(curve(draw, most, shape) for _ in range(groups))
        now = draw.choice([0, draw.randint(1, min(most, share)), draw.randint(1, share)])
        fewest = draw.choice([1, 1, 1, draw.randint(1, min(most, max(1, share // 2)))])
        highest = draw.choice([most, most, draw.randint(fewest, most)])
        sizes: tuple[int, ...] = ()
        if gaps and draw.random() < 0.15:
            sizes = tuple(sorted(draw.sample(range(1, most + 1), min(most, 6))))
        up, down = draw.choice([(20.0, 5.0), (0.0, 0.0), (18.0, 12.0), (draw.uniform(0, 60), draw.uniform(0, 60))])
        weight, horizon = draw.choice([1.0, 1.0, draw.uniform(0.5, 3)]), draw.choice([120.0, 120.0, 30.0])
        group = draw.randrange(groups)
        trainers.append(ElasticTrainer(curves, fewest, highest, sizes, now, group, up, down, weight, horizon))
    return trainers


def every_choice(trainers: Sequence[ElasticTrainer], capacities: Sequence[int]) -> tuple[float, tuple[int, ...]]:
    """The value and the counts of the best of all choices, by the documented order of ties."""
    options = [
        [(0, 0), *((n, g) for g, room in enumerate(capacities) for n in range(1, room + 1) if trainer.allows(n, g))]
        for trainer in trainers
    ]
    found = []
    for chosen in itertools.product(*options):
        use = [sum(nodes for nodes, where in chosen if where == group) for group in range(len(capacities))]
        if any(used > room for used, room in zip(use, capacities, strict=True)):
            continue
        value = math.fsum(trainer.worth(*each) for trainer, each in zip(trainers, chosen, strict=True))
        far = sum(
            abs(nodes - trainer.now) if group == trainer.group or not nodes else nodes + trainer.now
            for trainer, (nodes, group) in zip(trainers, chosen, strict=True)
        )
        counts = tuple(nodes for nodes, _ in chosen)
        found.append(((round(value, 7), -sum(counts), -far, counts), value))
    (*_, counts), value = max(found)
    return value, counts
