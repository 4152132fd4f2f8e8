"""Traces of idle nodes: CSV of `node,idle_from_s,idle_until_s`, plain or gzip, and records of `hpcdl holes --record`.

Read for workloads on nodes that come and go, for replays (`hpcdl/sim/replay/idle.py`), and for the table of a machine
(`hpcdl/sim/idle/table.py`).
"""

from pathlib import Path

from hpcdl.batch.record.pieces import IdlePiece, IdleRecord, read_record
from hpcdl.sim.readers.source import Place, number, read_values, word
from hpcdl.sim.workload import NodeSpell, WorkloadError

COLUMNS = {"node": word(), "idle_from_s": number(), "idle_until_s": number()}


def read_idle_trace(path: Path, gpus: int, kind: str = "", skip_single: bool = False) -> tuple[NodeSpell, ...]:
    """When which node is idle, each with `gpus` GPUs of type `kind`, by the begin; of a folder the record without its
    gaps, in seconds of observed time.

    In a file rows are sorted by idle_from_s, and those of one node do not overlap; anything else is a WorkloadError
    with line. `skip_single`: see `IdleRecord.without_single`. Raises RecordError.
    """
    path = Path(path)
    if path.is_dir() or skip_single:
        return spells_of(read_idle_record(path, skip_single), gpus, kind)
    return _read_rows(path, gpus, kind)


def spells_of(record: IdleRecord, gpus: int, kind: str = "") -> tuple[NodeSpell, ...]:
    """A record as the nodes of a workload, without its gaps. Raises WorkloadError for a name that is none."""
    kind = kind.strip().lower()
    return tuple(NodeSpell(name, gpus, kind, begin, end) for name, begin, end in record.joined())


def read_idle_record(path: Path, skip_single: bool = False) -> IdleRecord:
    """What a folder records, or what a CSV file holds: one span from 0 to the end of its last row.

    `skip_single`: see `IdleRecord.without_single`. Raises WorkloadError, RecordError.
    """
    path = Path(path)
    record = read_record(path) if path.is_dir() else _record_of(_read_rows(path, 1))
    return record.without_single() if skip_single else record


def _record_of(spells: tuple[NodeSpell, ...]) -> IdleRecord:
    end_s = max(spell.until_s for spell in spells)
    pieces = (
        IdlePiece(each.name, each.from_s, each.until_s, joined=each.from_s > 0, left=each.until_s < end_s)
        for each in spells
    )
    return IdleRecord(tuple(pieces), ((0.0, end_s),))


def _read_rows(path: Path, gpus: int, kind: str = "") -> tuple[NodeSpell, ...]:
    spells: list[NodeSpell] = []
    until: dict[str, tuple[float, int]] = {}
    latest = 0.0
    for place, (node, begin, end) in read_values(path, COLUMNS):
        if begin < latest:
            place.wrong("idle_from_s", f"{begin:g} is before that of an earlier row, {latest:g}: sort the rows by it")
        if begin >= end:
            place.wrong("idle_until_s", f"{end:g} must be after idle_from_s, {begin:g}")
        if node in until and begin < until[node][0]:
            place.wrong(
                "idle_from_s",
                f"node {node} is idle from {begin:g}, but until {until[node][0]:g} already by line {until[node][1]}: "
                "join the two rows, or cut one",
            )
        latest, until[node] = begin, (end, place.line)
        try:
            spells.append(NodeSpell(node, gpus, kind.strip().lower(), begin, end))
        except WorkloadError as error:
            place.wrong("node", str(error))
    if not spells:
        Place(path).wrong("", "names no idle node below its header")
    return tuple(spells)
