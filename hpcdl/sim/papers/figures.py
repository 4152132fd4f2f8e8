"""The figures that our own policy is to reach, beside what it reached in the same run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from hpcdl.sim.papers.table import PaperRow, PaperTable

OURS = "adaptive"
EQUAL = 1e-3
"""Totals this close, relatively, are equal: seconds are not that exact."""

_SIDECAR = "SideCar W1 to W4"
_GENIE = "GENIE figures 13 and 14 (a, b): arrivals an hour"
_SETS = "MARBLE sets 1 to 3"
_UNKNOWN = "Jobs without profiles"


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure. `of`: it from the rows of a table by (workload, policy); `least`, `most`: what it is to be."""

    table: str
    workload: str
    what: str
    of: Callable[[Mapping[tuple[str, str], PaperRow]], float]
    least: float | None = None
    most: float | None = None
    policy: str = OURS


Rows = Mapping[tuple[str, str], PaperRow]


def _more(workload: str, key: str, policy: str = OURS) -> Callable[[Rows], float]:
    return lambda rows: float(rows[workload, policy].more[key])


def _less_makespan(workload: str, than: str) -> Callable[[Rows], float]:
    return lambda rows: 1 - rows[workload, OURS].makespan_s / rows[workload, than].makespan_s


def _above_marble(workload: str) -> Callable[[Rows], float]:
    ours, theirs = _more(workload, "reduction"), _more(workload, "reduction", "marble")
    return lambda rows: ours(rows) - theirs(rows)


def _less_in_sum(rows: Rows) -> float:
    sets = ("set 1", "set 2", "set 3")
    total = {name: fsum(rows[each, name].makespan_s for each in sets) for name in (OURS, "marble")}
    return 1 - total[OURS] / total["marble"]


def _goals() -> Iterable[Goal]:
    for name in ("set 1", "set 2", "set 3"):
        yield Goal(_SETS, name, "makespan below MARBLE's", _less_makespan(name, "marble"), least=-EQUAL)
        yield Goal(_SETS, name, "makespan above the offline optimum", _more(name, "over_optimum"), most=0.05)
    yield Goal(_SETS, "set 1", "sum of sets 1 to 3 below MARBLE's", _less_in_sum, least=0.08)
    for name in ("set 4", "set 5", "set 6"):
        what = "reduction against LSF above MARBLE's"
        yield Goal("MARBLE sets 4 to 6", name, what, _above_marble(name), least=EQUAL)
    noise = f"{_SETS}, noise in the curves"
    for name in ("set 1", "set 2", "set 3"):
        for told in ("told", "not told"):
            row, what = f"{name}, noise, error {told}", "mean makespan below MARBLE's on the same draws"
            yield Goal(noise, row, what, _more(row, "vs_marble"), least=-0.02)
    tenth = {"W1": 0.12, "W2": 0.07, "W3": 0.16, "W4": 0.16}
    full = {"W1": 0.05, "W2": 0.0, "W3": 0.10, "W4": 0.10}
    for table in (_SIDECAR, f"{_SIDECAR}, unseen seeds"):
        for name, least in full.items():
            yield Goal(table, name, "mean JCT below elastic's", _more(name, "jct_vs_elastic"), least=least)
            yield Goal(table, name, "makespan below elastic's", _more(name, "makespan_vs_elastic"), least=-0.01)
    for name, least in tenth.items():
        table = f"{_SIDECAR}, costs at a tenth"
        yield Goal(table, name, "mean JCT below elastic's", _more(name, "jct_vs_elastic"), least=least)
    for name, least in {"5/h": 0.90, "10/h": 0.90, "20/h": 0.75}.items():
        yield Goal(_GENIE, name, "QoS guaranteed", _more(name, "qos"), least=least)
    for name in ("10/h", "20/h"):
        yield Goal(_GENIE, name, "makespan below GENIE's", _less_makespan(name, "genie"), least=0.12)
    for name in ("W1", "W2", "W3", "W4", "MARBLE models"):
        for case in ("adaptive, learnt", "adaptive, learnt before"):
            what = "mean JCT above that with true profiles"
            yield Goal(_UNKNOWN, name, what, _more(name, "jct_vs_told", case), most=0.10, policy=case)


GOALS = tuple(_goals())


def figures(tables: Iterable[PaperTable]) -> PaperTable:
    """A row for every figure whose table is there: target, reached, and whether it is met."""
    by_name = {table.name: {(row.workload, row.policy): row for row in table.rows} for table in tables}
    rows = []
    for goal in GOALS:
        there = by_name.get(goal.table)
        if there is None or (goal.workload, goal.policy) not in there:
            continue
        try:
            reached = goal.of(there)
        except KeyError:  # of the rows that it compares, not all were made
            continue
        met = (goal.least is None or reached >= goal.least) and (goal.most is None or reached <= goal.most)
        row = there[goal.workload, goal.policy]
        bound = f"at least {goal.least:g}" if goal.least is not None else f"at most {goal.most:g}"
        more = {"figure": f"{goal.table}: {goal.what}", "target": bound, "reached": reached, "met": met}
        rows.append(PaperRow(goal.workload, goal.policy, row.makespan_s, row.mean_jct_s, more))
    missed = sum(not row.more["met"] for row in rows)
    return PaperTable("Figures to reach", tuple(rows), (f"{len(rows) - missed} of {len(rows)} are met in this run.",))
