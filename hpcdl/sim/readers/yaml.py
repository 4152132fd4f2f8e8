"""Our own format of a workload, in YAML: cluster, profiles, jobs, arrivals. docs/simulate.md shows it.

Values are looked at one by one, with the line where they stand: nothing in the file is called, imported or evaluated.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hpcdl.config.layers import NOT_YAML, compose_large, constructed, not_yaml
from hpcdl.core.model.job import Sharing
from hpcdl.core.model.profile import MAX_GPUS, MAX_NODES, Profile, ProfileError
from hpcdl.sim.generators import MOST_JOBS, chance, exponential_gaps, poisson
from hpcdl.sim.readers.job_rules import (
    GpuRequest,
    ReaderDefaults,
    WorkloadBuilder,
    WorkloadRow,
    check_order,
    memory_of,
    parse_asked,
    parse_row,
    share_of,
    text_of,
)
from hpcdl.sim.readers.source import Place, read_text, shown
from hpcdl.sim.slowdowns import Slowdown
from hpcdl.sim.workload import NodeSpell, Workload, WorkloadError, cluster

MAX_BYTES = 32 << 20

_MAX_VALUES = 2_000_000

_TOP: Final = ("schema", "name", "source", "cluster", "profiles", "jobs", "arrivals", "slowdowns")

_GROUP: Final = ("nodes", "gpus_per_node", "gpu_type", "from_s", "until_s", "gpu_memory")

_PAIR: Final = ("foreground", "background", "slowdown", "background_share", "apart")

_JOB: Final = (
    "submit_s", "model", "profile", "steps", "duration_s", "gpus", "nodes", "deadline_s", "user", "kind", "name",
    "told", "draw", "share", "gpu_memory",
)  # fmt: skip


def read_yaml(path: Path, given: ReaderDefaults) -> Workload:
    """The workload; its cluster counts where the caller gives no nodes, its profiles before the caller's."""
    place = Place(path)
    data, lines = _load(place, read_text(path, MAX_BYTES))
    _keys(place, data, _TOP)
    if data.get("schema") != 1:
        place.wrong("schema", f"expected 1, got {shown(data.get('schema'))}: the first line is `schema: 1`")
    nodes = given.nodes or _nodes(place, data.get("cluster"))
    profiles = dict(given.profiles) | _profiles(place, data.get("profiles", {}))
    given = replace(given, nodes=nodes, profiles=profiles)
    jobs = WorkloadBuilder(place, given)
    listed = data.get("jobs", [])
    if not isinstance(listed, list):
        place.wrong("jobs", f"expected a list of jobs, got {shown(listed)}")
    rows: list[tuple[int, WorkloadRow]] = []
    for place.line, entry in zip(lines or [0] * len(listed), listed, strict=True):
        row = parse_row(place, _keys(place, entry, _JOB), given)
        if rows:
            check_order(place, row, rows[-1][1].submit_s, "job")
        rows.append((place.line, row))
    place.line = 0
    if "arrivals" in data:
        rows += [(0, row) for row in draw_rows(place, data["arrivals"], given)]
        rows.sort(key=lambda each: each[1].submit_s)
    for place.line, row in rows:
        jobs.add(row)
    place.line = 0
    name, source = (text_of(place, data, key, default) for key, default in (("name", path.stem), ("source", "")))
    none = "none: list jobs, or describe arrivals"
    workload = jobs.workload(source or f"workload {path.name}", none, name=name or path.stem, column="jobs")
    return replace(workload, slowdowns=_slowdowns(place, data.get("slowdowns", [])))


def _load(place: Place, text: str) -> tuple[Mapping[str, Any], list[int]]:
    """The file as plain values, and the line of every job."""
    import yaml

    try:
        root = compose_large(text)
        if root is None:
            place.wrong("", "is empty: the first line is `schema: 1`")
        _check_nodes(place, root)
        data = constructed(root)
    except WorkloadError:
        raise
    except (yaml.YAMLError, ValueError, *NOT_YAML) as error:
        place.line, why = not_yaml(error)
        place.wrong("", why)
    if not isinstance(data, dict):
        place.wrong("", f"expected keys and values, got {shown(data)}")
    jobs = next((value for key, value in root.value if key.value == "jobs"), None)
    listed = jobs.value if jobs is not None and isinstance(jobs, yaml.SequenceNode) else []
    return data, [node.start_mark.line + 1 for node in listed]


def _check_nodes(place: Place, root: Any) -> None:
    """No key twice, and no more values than a workload needs: an alias counts each time, so that none can explode."""
    waiting, seen = [root], 0
    while waiting:
        node = waiting.pop()
        seen += 1
        if seen > _MAX_VALUES:
            place.wrong("", f"holds more than {_MAX_VALUES} values: split it, or use CSV")
        if not isinstance(node.value, list):
            continue
        keys: set[str] = set()
        for child in node.value:
            if isinstance(child, tuple):
                key = str(child[0].value) if isinstance(child[0].value, str) else ""
                if key and key in keys:
                    place.line = child[0].start_mark.line + 1
                    place.wrong(shown(key), "a key that is there twice")
                keys.add(key)
            waiting.extend(child if isinstance(child, tuple) else (child,))


def _keys(place: Place, value: object, known: tuple[str, ...], where: str = "") -> Mapping[str, Any]:
    if not isinstance(value, dict):
        place.wrong(where, f"expected keys and values, got {shown(value)}")
    for key in value:
        if key not in known:
            place.wrong(
                f"{where}: {shown(key)}" if where else shown(key), f"an unknown key; known are {', '.join(known)}"
            )
    return value


def _nodes(place: Place, value: object) -> tuple[NodeSpell, ...]:
    if value is None:
        return ()
    found: list[NodeSpell] = []
    for entry in value if isinstance(value, list) else [value]:
        group = _keys(place, entry, _GROUP)
        missing = [key for key in ("nodes", "gpus_per_node") if key not in group]
        if missing:
            place.wrong("cluster", f"{' and '.join(missing)} missing")
        many = place.whole("cluster: nodes", group["nodes"], 1, MAX_NODES)
        gpus = place.whole("cluster: gpus_per_node", group["gpus_per_node"], 1, MAX_GPUS)
        begin = place.number("cluster: from_s", group.get("from_s", 0))
        kind = text_of(place, group, "gpu_type").lower()
        try:
            spells = cluster(many, gpus, kind, first=len(found) + 1)
            if "until_s" in group:
                end = place.number("cluster: until_s", group["until_s"])
                spells = tuple(replace(spell, from_s=begin, until_s=end) for spell in spells)
            memory_mib = memory_of(place, group) or 0
            found += [replace(spell, from_s=begin, memory_mib=memory_mib) for spell in spells]
        except WorkloadError as error:
            place.wrong("cluster", str(error))
    return tuple(found)


def _slowdowns(place: Place, value: object) -> tuple[Slowdown, ...]:
    if not isinstance(value, list):
        place.wrong("slowdowns", f"expected a list of pairs of jobs, got {shown(value)}")
    found = []
    for entry in value:
        cell = _keys(place, entry, _PAIR, "slowdowns")
        names = [text_of(place, cell, key) for key in _PAIR[:2]]
        slowdown = place.number("slowdowns: slowdown", cell.get("slowdown", Slowdown().slowdown))
        share = place.number("slowdowns: background_share", cell.get("background_share", Slowdown().share))
        apart = cell.get("apart", False)
        if not isinstance(apart, bool):
            place.wrong("slowdowns: apart", f"expected true or false, got {shown(apart)}")
        if apart and not ("slowdown" in cell and "background_share" not in cell):
            place.wrong("slowdowns: apart", "expected a slowdown and no background_share: the two share no GPU")
        try:
            found.append(Slowdown(names[0], names[1], slowdown, share, apart))
        except ValueError as error:
            place.wrong("slowdowns", str(error))
    return tuple(found)


def _profiles(place: Place, value: object) -> dict[str, Profile]:
    if not isinstance(value, dict):
        place.wrong("profiles", f"expected names and their profiles, got {shown(value)}")
    found: dict[str, Profile] = {}
    for name, mapping in value.items():
        if not isinstance(name, str):
            place.wrong("profiles", f"a name must be text, got {shown(name)}: put it in quotes")
        try:
            found[name.casefold()] = Profile.from_mapping(name, mapping)
        except ProfileError as error:
            place.wrong("profiles", str(error)[:300])
    return found


# --- jobs that a workload describes instead of listing them: when they arrive, and what may arrive -------------------

_KEYS: Final = ("process", "seed", "jobs", "span_s", "per_hour", "hours", "mix")

_MIX: Final = (
    "weight", "model", "steps", "duration_s", "gpus", "nodes", "deadline_after_s", "user", "kind", "share",
    "gpu_memory",
)  # fmt: skip

_PROCESSES: Final = {"exponential": ("jobs", "span_s"), "poisson": ("per_hour", "hours")}

_Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Sort:
    """A sort of job in the mix; ranges are drawn from uniformly."""

    weight: float
    model: str
    asked: GpuRequest
    steps: _Range | None
    duration_s: _Range | None
    deadline_after_s: _Range | None
    user: str
    kind: str
    share: Sharing | None
    gpu_memory_mib: int | None


def draw_rows(place: Place, value: object, given: ReaderDefaults) -> list[WorkloadRow]:
    """The rows that the description gives with its seed, or the caller's."""
    found = _keys(place, value, _KEYS, "arrivals")
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


def _draw(draws: random.Random, sort: _Sort, at: float) -> WorkloadRow:
    steps = None if sort.steps is None else max(1, round(draws.uniform(*sort.steps)))
    duration = None if sort.duration_s is None else draws.uniform(*sort.duration_s)
    deadline = None if sort.deadline_after_s is None else at + draws.uniform(*sort.deadline_after_s)
    row = WorkloadRow(at, sort.model, sort.asked, steps, duration, deadline, sort.user, sort.kind)
    return replace(row, share=sort.share, gpu_memory_mib=sort.gpu_memory_mib)


def _sort(place: Place, where: str, entry: object, given: ReaderDefaults) -> _Sort:
    values = _keys(place, entry, _MIX, where)
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
        share=share_of(place, values),
        gpu_memory_mib=memory_of(place, values),
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
