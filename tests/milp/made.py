"""Problems at random, strange ones included, and their answers by trying everything."""

import random
from itertools import product
from typing import Any

SHAPES = ("concave", "linear", "any", "steps", "falls", "zero", "equal")


def curve(chance: random.Random, most: int) -> list[list[float]]:
    """Points [nodes, throughput] of one of the shapes."""
    shape = chance.choice(SHAPES)
    at = sorted(chance.sample(range(1, most + 3), chance.randint(1, min(5, most + 2))))
    top = chance.choice([0.01, 1.0, 7.0, 3000.0])
    rates = {
        "concave": [top * n ** chance.uniform(0.3, 0.99) for n in at],
        "linear": [top * n for n in at],
        "any": [top * chance.random() for _ in at],
        "steps": [top * (n // 3) for n in at],
        "falls": sorted((top * chance.random() for _ in at), reverse=True),
        "zero": [0.0 for _ in at],
        "equal": [top for _ in at],
    }[shape]
    return [[n, rate] for n, rate in zip(at, rates, strict=True)]


def problem(seed: int, *, most_trainers: int = 4, most_nodes: int = 9, groups: bool = False) -> dict[str, Any]:
    """A problem as `hpcdl allocate` reads it, with names or numbers; costs may be larger than gains."""
    chance = random.Random(seed)
    named = chance.random() < 0.6
    names = chance.sample(["v100", "a100", "k80"], chance.randint(1, 3)) if groups else [""]
    sizes = {name: chance.choice([0, 1, chance.randint(0, most_nodes)]) for name in names}
    if chance.random() < 0.8:
        sizes[names[0]] = chance.randint(1, most_nodes)
    nodes: dict[str, Any] = {
        name: [f"{name}h{n // 3}n{n % 3}" for n in range(size)] if named else size for name, size in sizes.items()
    }
    left = {name: list(range(size)) for name, size in sizes.items()}
    trainers = []
    for number in range(chance.randint(0 if chance.random() < 0.05 else 1, most_trainers)):
        low = chance.choice([1, 1, 2, chance.randint(1, most_nodes + 2)])
        high = chance.choice([low, chance.randint(low, most_nodes + 4), 64 if low <= 64 else low])
        group = chance.choice(names)
        mine = [left[group].pop(0) for _ in range(chance.randint(0, len(left[group])))] if chance.random() < 0.7 else []
        row: dict[str, Any] = {"id": f"t{number}", "min": low, "max": high}
        if groups:
            usable = {name for name in names if name == group or chance.random() < 0.7}
            row["curve"] = {name: curve(chance, most_nodes) for name in sorted(usable)}
            if chance.random() < 0.2:
                row["curve"] = curve(chance, most_nodes)
            if mine:
                row["group"] = group
        else:
            row["curve"] = curve(chance, most_nodes)
        if mine or chance.random() < 0.5:
            gone = [f"gone{number}"] * chance.randint(0, 1)
            row["current"] = [nodes[group][n] for n in mine] + gone if named else len(mine)
        if chance.random() < 0.3:
            row["sizes"] = sorted(chance.sample(range(low, high + 1), chance.randint(1, min(4, high - low + 1))))
        if chance.random() < 0.8:
            row["scale_up_s"] = chance.choice([0, 20, chance.uniform(0, 300)])
            row["scale_down_s"] = chance.choice([0, 5, chance.uniform(0, 300)])
        if chance.random() < 0.4:
            row["weight"] = chance.choice([0, 0.5, 3])
        trainers.append(row)
    chance.shuffle(trainers)
    horizon = chance.choice([0, 10, 120, 120, 3600])
    return {"horizon_s": horizon, **({"groups": nodes} if groups else {"nodes": nodes[""]}), "trainers": trainers}


def rate(points: list[list[float]], nodes: int) -> float:
    """f(nodes), from its definition."""
    before, height = 0.0, 0.0
    for at, value in points:
        if nodes <= at:
            return height + (value - height) * (nodes - before) / (at - before)
        before, height = at, value
    return height


def sizes_of(group: Any) -> int:
    return len(group) if isinstance(group, list) else int(group)


def groups_of(asked: dict[str, Any]) -> dict[str, Any]:
    return asked["groups"] if "groups" in asked else {"": asked["nodes"]}


def now_of(asked: dict[str, Any], row: dict[str, Any]) -> tuple[int, str]:
    """C, and the group that it is in."""
    groups = groups_of(asked)
    current = row.get("current", 0)
    if isinstance(current, list):
        held = [(name, group) for name in current for group, its in groups.items() if name in its]
        return len(held), held[0][1] if held else ""
    return current, row.get("group", next(iter(groups)))


def worth(asked: dict[str, Any], row: dict[str, Any], nodes: int, group: str) -> float:
    """weight x (horizon x f(n) - f(C) x R), from the contract."""

    def f(at: int, where: str) -> float:
        points = row["curve"]
        return rate(points[where] if isinstance(points, dict) else points, at) if at else 0.0

    now, where = now_of(asked, row)
    if nodes == now and (group == where or not nodes):
        stall = 0.0
    elif nodes > now or (nodes and group != where):
        stall = row.get("scale_up_s", 0.0)
    else:
        stall = row.get("scale_down_s", 0.0)
    return float(row.get("weight", 1.0) * (asked["horizon_s"] * f(nodes, group) - f(now, where) * stall))


def options(asked: dict[str, Any], row: dict[str, Any]) -> list[tuple[int, str]]:
    """All (nodes, group) that a trainer may have, none included."""
    found = [(0, "")]
    for group, its in groups_of(asked).items():
        if isinstance(row["curve"], dict) and group not in row["curve"]:
            continue
        low, high = row.get("min", 1), min(row.get("max", sizes_of(its)), sizes_of(its))
        found += [(nodes, group) for nodes in row.get("sizes", range(low, high + 1)) if low <= nodes <= high]
    return found


def best(asked: dict[str, Any]) -> float:
    """The highest objective, by trying every combination (equations 3 to 16; counts suffice)."""
    sizes = {group: sizes_of(its) for group, its in groups_of(asked).items()}
    front: dict[tuple[int, ...], float] = {(0,) * len(sizes): 0.0}
    order = {group: at for at, group in enumerate(sizes)}
    for row in asked["trainers"]:
        after: dict[tuple[int, ...], float] = {}
        for (used, value), (nodes, group) in product(front.items(), options(asked, row)):
            now = list(used)
            if nodes:
                now[order[group]] += nodes
                if now[order[group]] > sizes[group]:
                    continue
            total = value + worth(asked, row, nodes, group)
            key = tuple(now)
            after[key] = max(after.get(key, -float("inf")), total)
        front = after
    return max(front.values())


def faults(asked: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """What is wrong with an answer of `hpcdl allocate`: rules of the problem, its value, what it says of itself."""
    wrong = []
    groups = groups_of(asked)
    given: list[str] = []
    used = dict.fromkeys(groups, 0)
    value = 0.0
    if set(answer["allocation"]) != {row["id"] for row in asked["trainers"]}:
        wrong.append("other trainers")
    for row in asked["trainers"]:
        got = answer["allocation"][row["id"]]
        nodes = len(got) if isinstance(got, list) else got
        group = answer.get("groups", {}).get(row["id"], "") if "groups" in asked else ""
        if nodes and (nodes, group) not in options(asked, row):
            wrong.append(f"{row['id']} may not have {nodes} of {group!r}")
        if nodes:
            used[group] += nodes
        if isinstance(got, list):
            given += got
            wrong += [f"{name} is not of {group!r}" for name in got if name not in groups[group]]
            current = row.get("current", [])
            now, where = now_of(asked, row)
            if isinstance(current, list) and nodes and where == group:
                kept = [name for name in current if name in got]
                if len(kept) != min(now, nodes):
                    wrong.append(f"{row['id']} moves")
                if got[: len(kept)] != kept:
                    wrong.append(f"{row['id']} has its ranks mixed up")
        value += worth(asked, row, nodes, group)
        if not answer["why"][row["id"]]:
            wrong.append(f"no reason for {row['id']}")
    wrong += [
        f"{used[group]} of the {sizes_of(its)} nodes of {group!r}"
        for group, its in groups.items()
        if used[group] > sizes_of(its)
    ]
    if len(set(given)) < len(given):
        wrong.append("a node is given twice")
    scale = max(
        1.0, *(abs(worth(asked, row, *each)) for row in asked["trainers"] for each in options(asked, row)), abs(value)
    )
    if abs(value - answer["objective"]) > 1e-9 * scale:
        wrong.append(f"its objective is {value}")
    if answer["bound"] < answer["objective"] - 1e-9 * scale:
        wrong.append("more than its bound")
    highest = best(asked)
    tolerance = 1e-6 * scale
    if answer["optimal"] and abs(highest - value) > tolerance:
        wrong.append(f"the best is {highest}, this is {value}")
    if highest > answer["bound"] + tolerance:
        wrong.append(f"the best, {highest}, is above the bound {answer['bound']}")
    return wrong
