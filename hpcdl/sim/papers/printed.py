"""Printed against ours: the numbers of the papers' text and tables that hpcdl claims, beside what came out here.

printed.yaml holds the numbers and which row of which table is about them; those of BFTrainer's section 5 are in
conf/workloads/bftrainer_printed.csv. BFTrainer's are of a trace: they are compared where ours are of the authors' own.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, TypeAlias

from hpcdl.sim.papers.bftrainer_tables import place_of
from hpcdl.sim.papers.table import PaperTable, paper_file
from hpcdl.sim.replay.studies import printed as bftrainer_printed

TITLE = "Printed against ours"
OF_A_TRACE = "BFTrainer"
TOLERANCE = 0.05
"""Relatively, of every number."""
OF_SPREADS = 0.001
"""Where the paper prints a spread or a bound, that alone counts; seconds are not more exact than this."""

Value: TypeAlias = float | list[float]
"""A number, or the spread [low, high]; "less than" and "more than" are spreads with one natural bound."""

_TAKE: Mapping[str, Callable[[Iterable[float]], float]] = {"most": max, "least": min, "mean": fmean}


@dataclass(frozen=True, slots=True)
class Printed:
    """A number that a paper prints. `figure`: where; `fitted`: what of ours was chosen so that it comes out.

    `table`, `policy`, `key`: the rows of ours that are about it, None where nothing is; `workload`: one of them, None:
    all. `take`: what counts of several rows, "most", "least" or "mean".
    """

    paper: str
    figure: str
    what: str
    value: Value
    table: str | None = None
    workload: str | None = None
    policy: str | None = None
    key: str = ""
    take: str = "most"
    fitted: str | None = None

    def numbers(self, tables: Mapping[str, PaperTable]) -> list[float]:
        """The figures of ours that are about it, in the order of the rows."""
        if self.table is None or self.table not in tables:
            return []
        rows = (row for row in tables[self.table].rows if row.policy == self.policy)
        found = [row.to_json().get(self.key) for row in rows if self.workload in (None, row.workload)]
        return [number for number in found if isinstance(number, int | float) and math.isfinite(number)]

    def to_json(self, tables: Mapping[str, PaperTable], own_trace: bool = False) -> dict[str, Any]:
        """The row: what is printed, what came out in these tables (None: not run), and whether that is as printed.

        `own_trace`: what is of a trace is of the authors' own; else whether it is met is None.
        """
        comparable = own_trace or self.paper != OF_A_TRACE
        numbers = self.numbers(tables)
        here = _TAKE[self.take](numbers) if numbers else None
        return {
            "paper": self.paper,
            "figure": self.figure,
            "what": self.what,
            "printed": self.value,
            "here": here,
            "met": self.met(here) if here is not None and comparable else None,
            "tolerance": self.tolerance,
            "fitted": self.fitted,
        }

    @property
    def tolerance(self) -> float:
        """Relatively, of the printed number or of the ends of the printed spread."""
        return OF_SPREADS if isinstance(self.value, list) else TOLERANCE

    def met(self, here: float) -> bool:
        """Whether a figure of ours is the printed number within the tolerance, or lies in the printed spread."""
        low, high = self.value if isinstance(self.value, list) else (self.value, self.value)
        return low * (1 - self.tolerance) <= here <= high * (1 + self.tolerance)


def printed_rows(
    tables: Iterable[PaperTable], papers: Collection[str] | None = None, own_trace: bool = False
) -> list[dict[str, Any]]:
    """A row for each number of these papers (as in `all.PAPERS`; None: of all), with what the tables have.

    `own_trace`: see `Printed.to_json`.
    """
    by_name = {table.name: table for table in tables}
    return [each.to_json(by_name, own_trace) for each in printed() if papers is None or each.paper.lower() in papers]


def verdict(row: Mapping[str, Any]) -> str:
    """Whether a row is met, missed, was not run, or is of another trace than the paper's, in a word or three."""
    if row["met"] is None:
        return "not run" if row["here"] is None else "not their trace"
    return "met" if row["met"] else "missed"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many of the rows are met, missed, were not run, and are of another trace."""
    count = Counter(map(verdict, rows))
    fitted = sum(row["met"] is True and row["fitted"] is not None for row in rows)
    others = f"; {count['not their trace']} not compared, as ours are of another trace" * ("not their trace" in count)
    return (
        f"{count['met']} of {len(rows)} are met, {fitted} of these with a fit; {count['missed']} missed; "
        f"{count['not run']} not run{others}. Met: within {TOLERANCE:.0%} of what is printed, or within the spread "
        "where one is printed."
    )


@cache
def printed() -> tuple[Printed, ...]:
    """Every number, by paper in the order of printed.yaml."""
    found = [
        each for paper, groups in paper_file("printed").items() for group in groups for each in _each(paper, group)
    ]
    return (*found, *_bftrainer())


def _each(paper: str, group: Mapping[str, Any]) -> Iterator[Printed]:
    """The numbers of a group: one, or a mapping by workload, or by what else `by` says."""
    told = dict(group)
    value, by = told.pop("printed"), told.pop("by", "workload")
    if not isinstance(value, dict):
        yield Printed(paper, value=value, **told)
        return
    for name, each in value.items():
        at = {} if told.get("table") is None else {by: name}
        yield Printed(paper, value=each, **told | at | {"what": f"{told['what']}: {name}"})


def _bftrainer() -> Iterator[Printed]:
    for each in bftrainer_printed():
        words = [each.model or "all models", each.policy, each.objective]
        words += [] if each.at is None else [f"at {each.at:g}"]
        what = f"{each.figure}: {', '.join(filter(None, words))}"
        yield Printed(OF_A_TRACE, each.where, what, each.value, *place_of(each))
