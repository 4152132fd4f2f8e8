"""All papers' tables: which studies there are, run side by side in processes.

A study is a module of this package with `tables(seeds)`; `figures` compares its rows with the goals.
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from hpcdl.sim.papers import bftrainer
from hpcdl.sim.papers.figures import figures
from hpcdl.sim.papers.table import PaperTable
from hpcdl.sim.parallel import Progress, in_processes

PAPERS = ("marble", "sidecar", "genie", "unknown", "deeppool", "malletrain", "bftrainer")
"""Modules of this package: papers, and what it costs to know no profile (`unknown`).

All but `bftrainer` have `tables()`; each of its replays is a process of its own.
"""


PARTS = {"genie": ("densities", "sizes", "priorities", "durations", "prediction", "drawn")}
"""Functions of papers whose tables take so long that each has a process of its own, the longest first."""


def all_tables(
    papers: Sequence[str] = PAPERS,
    seeds: int | None = None,
    progress: Progress | None = None,
    trace: Path | None = None,
    full: bool = False,
) -> tuple[tuple[PaperTable, ...], tuple[str, ...]]:
    """The tables of these papers, first what ours is to reach, if anything, beside what it did; and what went wrong.

    `seeds`: no study takes more than so many; None: each its own number. `progress`: see
    `in_processes`. A study that fails is one line of what went wrong, and its tables are missing. `trace`, `full`: see
    `bftrainer.replays`; WorkloadError, RecordError: the trace makes no sense.
    """
    say = progress or (lambda _: None)
    replays = bftrainer.replays(bftrainer.SEEDS[:seeds], trace, full) if "bftrainer" in papers else None
    tables, problems = _all_but_replays([name for name in papers if name != "bftrainer"], seeds, say)
    if replays is not None:
        more, failed = bftrainer.simulated(replays, say)
        tables, problems = (*tables, *more), (*problems, *failed)
    goals = figures(tables)
    return ((goals, *tables) if goals.rows else tables), problems


def _all_but_replays(
    papers: Sequence[str], seeds: int | None, say: Progress
) -> tuple[tuple[PaperTable, ...], tuple[str, ...]]:
    if not papers:
        return (), ()
    parts = {f"{name} {part}".strip(): (name, part) for name in papers for part in PARTS.get(name, ("",))}
    ordered = sorted(parts, key=lambda each: _LONGEST.index(parts[each][0]))
    say(f"{len(parts)} {'study, which takes' if len(parts) == 1 else 'studies, which take'} some minutes")
    made, problems = in_processes({each: partial(tables_of, *parts[each], seeds) for each in ordered}, say)
    return tuple(table for each in parts for table in made.get(each, ())), tuple(problems)


_LONGEST = ("genie", "sidecar", "malletrain", "unknown", "marble", "deeppool")


def tables_of(name: str, part: str, seeds: int | None) -> tuple[PaperTable, ...]:
    """The tables of one paper, or of a part of it; see `all_tables`."""
    module = import_module(f"hpcdl.sim.papers.{name}")
    wanted = tuple(module.SEEDS)[:seeds]
    return (getattr(module, part)(wanted),) if part else tuple(module.tables(wanted))
