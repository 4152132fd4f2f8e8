"""The figures that our own policy is to reach (goals.yaml), beside what it reached in the same run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from hpcdl.sim.papers.table import PaperRow, PaperTable, paper_file

OURS = "adaptive"
SETS = ("set 1", "set 2", "set 3")
"""The job sets that are added up for `sum_below`."""

Rows = Mapping[tuple[str, str], PaperRow]
"""The rows of a table by workload and policy."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of a row, and the least or the most that it is to be. `of`: a key of the row's further figures, or
    `makespan_below POLICY`, `sum_below POLICY`, `reduction_above POLICY`.
    """

    table: str
    workload: str
    what: str
    of: str
    least: float | None = None
    most: float | None = None
    policy: str = OURS

    def reached(self, rows: Rows) -> float:
        """The figure in the rows of the table. KeyError: a row that it needs is missing."""
        own = rows[self.workload, self.policy]
        key, _, other = self.of.partition(" ")
        match key:
            case "makespan_below":
                return 1 - own.makespan_s / rows[self.workload, other].makespan_s
            case "sum_below":
                ours, theirs = (fsum(rows[each, name].makespan_s for each in SETS) for name in (self.policy, other))
                return 1 - ours / theirs
            case "reduction_above":
                return float(own.more["reduction"]) - float(rows[self.workload, other].more["reduction"])
            case _:
                return float(own.more[key])

    def met(self, reached: float) -> bool:
        """Whether the figure lies within the bounds."""
        return (self.least is None or reached >= self.least) and (self.most is None or reached <= self.most)


def _goals() -> Iterator[Goal]:
    for group in paper_file("goals"):
        for workload in group["workloads"]:
            for figure in group["figures"]:
                values: dict[str, Any] = {
                    key: value[workload] if isinstance(value, dict) else value for key, value in figure.items()
                }
                yield Goal(group["table"], workload, **values)


GOALS = tuple(_goals())


def figures(tables: Iterable[PaperTable]) -> PaperTable:
    """A row for every figure whose table is there: target, reached, and whether it is met."""
    by_name = {table.name: {(row.workload, row.policy): row for row in table.rows} for table in tables}
    rows = []
    for goal in GOALS:
        there = by_name.get(goal.table, {})
        try:
            reached, row = goal.reached(there), there[goal.workload, goal.policy]
        except KeyError:  # of the rows that it compares, not all were made
            continue
        bound = f"at least {goal.least:g}" if goal.least is not None else f"at most {goal.most:g}"
        target = {"figure": f"{goal.table}: {goal.what}", "target": bound}
        more = {**target, "reached": reached, "met": goal.met(reached)}
        rows.append(PaperRow(goal.workload, goal.policy, row.makespan_s, row.mean_jct_s, more))
    missed = sum(not row.more["met"] for row in rows)
    return PaperTable("Figures to reach", tuple(rows), (f"{len(rows) - missed} of {len(rows)} are met in this run.",))
