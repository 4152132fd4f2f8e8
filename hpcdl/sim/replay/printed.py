"""What the BFTrainer paper prints about its replays: conf/workloads/bftrainer_printed.csv."""

from dataclasses import dataclass
from functools import lru_cache

from hpcdl.profiles import conf_folder
from hpcdl.sim.readers.table import read_table

_STUDY = {"7": "t-fwd", "9": "t-fwd", "10": "t-fwd", "15": "scale"}


@dataclass(frozen=True, slots=True)
class Printed:
    """A figure: `where` in the paper, for which `study` of ours. Blank: not said, or of all."""

    where: str
    study: str
    policy: str
    objective: str
    model: str
    at: float | None
    figure: str
    value: float


@lru_cache(maxsize=1)
def printed() -> tuple[Printed, ...]:
    """All of them."""
    path = conf_folder() / "workloads" / "bftrainer_printed.csv"
    columns = ("where", "policy", "objective", "model", "at", "figure", "value")
    found = []
    for place, cells in read_table(path, columns, ()):
        where = cells["where"]
        kind, _, number = where.partition(" ")
        study = _STUDY.get(number.rstrip("abc"), "parallel") if kind == "Figure" else "parallel"
        at = place.number("at", cells["at"]) if cells["at"] else None
        value = place.number("value", cells["value"])
        policy, objective, model = (cells[key] for key in ("policy", "objective", "model"))
        found.append(Printed(where, study, policy, objective, model, at, cells["figure"], value))
    return tuple(found)
