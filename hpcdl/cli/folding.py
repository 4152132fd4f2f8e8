"""Members of one array that stand alike, on one line of `hpcdl ls`."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hpcdl.cli.output import Row
from hpcdl.core.units import runs

_APART = ("RUNNING", "STARTING", "RESCALING", "SUSPENDING")
"""Whoever holds GPUs has a line of its own."""
_PLACE = re.compile(r"; ((\d+)[a-z]{2} in the queue[^;]*|more than \d+ jobs are before it)$")
"""The place in the queue at the end of a reason: each member has its own."""
_ALIKE = ("state", "gpus_min", "gpus_max", "nodes", "nodes_max", "user")


def folded(rows: Iterable[Row]) -> list[Row]:
    """The rows, with one for all members of an array in the same state that hold no GPUs, where the first one stands.

    In the place of its id are theirs, `14-111`, as every command takes them. The name has their indices, and says how
    many they are where a sweep has several members of an index.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("array") and row.get("array_index") is not None and row.get("state") not in _APART:
            key: tuple[Any, ...] = (row["array"], *(row.get(each) for each in _ALIKE))
        else:
            key = ("job", row["id"])
        groups.setdefault(key, []).append(row)
    return [rows[0] if len(rows) == 1 else _one(rows) for rows in groups.values()]


def _reason(row: Row) -> str:
    """As it is said of the array: a hint that ends in the member's own id names the array in its place."""
    reason, own = str(row.get("reason") or ""), f" {row['id']}"
    if "hpcdl " in reason and reason.endswith(own):
        return f"{reason.removesuffix(own)} --array {row['array']}"
    return _PLACE.sub("", reason)


def _one(rows: Sequence[Row]) -> Row:
    indices = ranges(int(row["array_index"]) for row in rows)
    several = len({row["array_index"] for row in rows}) < len(rows)
    reasons = list(dict.fromkeys(map(_reason, rows)))
    reason = reasons[0] if len(reasons) == 1 else f"{reasons[0]} (and {len(reasons) - 1} other reasons: --no-fold)"
    places = [found for row in rows if (found := _PLACE.search(str(row.get("reason") or ""))) and found[2]]
    if places:
        reason += f"; the first is {min(places, key=lambda found: int(found[2]))[1]}"
    return {
        **rows[0],
        "id": ranges(row["id"] for row in rows),
        "name": f"{_stem(rows)}[{indices}]" + (f" ({len(rows)} jobs)" if several else ""),
        "reason": reason,
        "step": None,
        "eta_s": None,
    }


def _stem(rows: Sequence[Row]) -> str:
    """What the names begin with alike, without the index that follows."""
    names = [str(row.get("name", "")) for row in rows]
    first, last = min(names), max(names)
    length = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(map(len, names)))
    alike = first[:length].rstrip("0123456789")
    opened = max(alike.rfind(mark) for mark in "[{(")
    if opened > max(alike.rfind(mark) for mark in "]})"):
        alike = alike[:opened]  # `train[lr=0.1]`, `train[lr=0.2]`: what is in the brackets is not alike
    return alike or "member"


def ranges(numbers: Iterable[int]) -> str:
    """`1-3,7`: each once."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(sorted(set(numbers))))
