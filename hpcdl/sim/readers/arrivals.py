"""Jobs that a YAML workload describes instead of listing them: when they arrive, and what may arrive."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hpcdl.sim.generators import MOST_JOBS, chance, exponential_gaps, poisson
from hpcdl.sim.readers.asking import Asked, Given, Row, parse_asked
from hpcdl.sim.readers.source import Place, shown
from hpcdl.sim.workload import WorkloadError

_KEYS: Final = ("process", "seed", "jobs", "span_s", "per_hour", "hours", "mix")
_MIX: Final = ("weight", "model", "steps", "duration_s", "gpus", "nodes", "deadline_after_s", "user", "kind")
_PROCESSES: Final = {"exponential": ("jobs", "span_s"), "poisson": ("per_hour", "hours")}
_Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Sort:
    """A sort of job in the mix; ranges are drawn from uniformly."""

    weight: float
    model: str
    asked: Asked
    steps: _Range | None
    duration_s: _Range | None
    deadline_after_s: _Range | None
    user: str
    kind: str


def draw_rows(place: Place, value: object, given: Given) -> list[Row]:
    """The rows that the description gives with its seed, or the caller's."""
    found = _mapping(place, "arrivals", value, _KEYS)
    process = found.get("process", "poisson")
    if process not in _PROCESSES:
        place.wrong("arrivals: process", f"expected {' or '.join(_PROCESSES)}, got {shown(process)}")
    missing = [key for key in _PROCESSES[process] if key not in found]
    other = [key for name, keys in _PROCESSES.items() if name != process for key in keys if key in found]
    if missing or other:
        what = f"{' and '.join(missing)} missing" if missing else f"{' and '.join(other)} not for process {process}"
        place.wrong("arrivals", f"{what}: {process} takes {' and '.join(_PROCESSES[process])}")
    seed = place.whole("arrivals: seed", found.get("seed", 0), 0) if given.seed is None else given.seed
    draws = chance("arrivals", seed)
    try:
        if process == "poisson":
            rate = place.number("arrivals: per_hour", found["per_hour"])
            moments = poisson(draws, rate, place.number("arrivals: hours", found["hours"]))
        else:
            many = place.whole("arrivals: jobs", found["jobs"], 1, MOST_JOBS)
            moments = exponential_gaps(draws, many, place.number("arrivals: span_s", found["span_s"]))
    except WorkloadError as error:
        if str(error).startswith(str(place.path)):
            raise
        place.wrong("arrivals", str(error))
    mix = found.get("mix")
    if not isinstance(mix, list) or not mix:
        place.wrong("arrivals: mix", f"expected a list of what may arrive, got {shown(mix)}")
    sorts = [_sort(place, f"arrivals: mix[{index}]", entry, given) for index, entry in enumerate(mix)]
    weights = [sort.weight for sort in sorts]
    return [_draw(draws, draws.choices(sorts, weights)[0], round(at, 3)) for at in moments]


def _draw(draws: random.Random, sort: _Sort, at: float) -> Row:
    steps = None if sort.steps is None else max(1, round(draws.uniform(*sort.steps)))
    duration = None if sort.duration_s is None else draws.uniform(*sort.duration_s)
    deadline = None if sort.deadline_after_s is None else at + draws.uniform(*sort.deadline_after_s)
    return Row(at, sort.model, sort.asked, steps, duration, deadline, sort.user, sort.kind)


def _sort(place: Place, where: str, entry: object, given: Given) -> _Sort:
    values = _mapping(place, where, entry, _MIX)
    if ("steps" in values) == ("duration_s" in values):
        place.wrong(f"{where}: steps, duration_s", "exactly one of them is needed: N, or [LOW, HIGH] to draw from")
    texts = {key: values.get(key, default) for key, default in (("model", ""), ("user", ""), ("kind", "training"))}
    for key, text in texts.items():
        if not isinstance(text, str):
            place.wrong(f"{where}: {key}", f"expected text, got {shown(text)}")
    weight = place.number(f"{where}: weight", values.get("weight", 1))
    if weight == 0:
        place.wrong(f"{where}: weight", "must be more than 0")
    ranges = {key: _range(place, f"{where}: {key}", values.get(key)) for key in _MIX if key.endswith(("steps", "_s"))}
    return _Sort(
        weight=weight,
        model=texts["model"].strip(),
        asked=parse_asked(place, values.get("gpus", 1), values.get("nodes"), given.per_node),
        steps=ranges["steps"],
        duration_s=ranges["duration_s"],
        deadline_after_s=ranges["deadline_after_s"],
        user=texts["user"],
        kind=texts["kind"].lower(),
    )


def _range(place: Place, where: str, value: object) -> _Range | None:
    if value is None:
        return None
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2:
        place.wrong(where, f"expected N or [LOW, HIGH], got {shown(value)}")
    low, high = (place.number(where, end) for end in ends)
    if not 0 < low <= high:
        place.wrong(where, f"needs 0 < LOW <= HIGH, got {shown(value)}")
    return low, high


def _mapping(place: Place, where: str, value: object, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        place.wrong(where, f"expected keys and values, got {shown(value)}")
    for key in value:
        if key not in known:
            place.wrong(f"{where}: {shown(key)}", f"an unknown key; known are {', '.join(known)}")
    return value
