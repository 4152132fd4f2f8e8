"""All papers' tables, made side by side."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module

from hpcdl.sim.papers.figures import figures
from hpcdl.sim.papers.table import PaperTable

PAPERS = ("marble", "sidecar", "genie", "unknown")
"""Modules of this package that have `tables()`: three papers, and what it costs to know no profile."""


PARTS = {"genie": ("densities", "sizes", "priorities", "durations", "prediction", "drawn")}
"""Functions of papers whose tables take so long that each has a process of its own, the longest first."""


def all_tables(
    papers: Sequence[str] = PAPERS, seeds: int | None = None, progress: Callable[[str], None] | None = None
) -> tuple[tuple[PaperTable, ...], tuple[str, ...]]:
    """The tables of these papers, first of all what ours is to reach beside what it reached; and what went wrong.

    `seeds`: no study takes more than so many; None: each its own number. `progress`: is told what is ready. As many
    processes as there are processors. A study that fails is one line of what went wrong, and its tables are missing.
    """
    told = progress or (lambda _: None)
    parts = [(name, part) for name in papers for part in PARTS.get(name, ("",))]
    made: dict[tuple[str, str], tuple[PaperTable, ...]] = {}
    problems: list[str] = []
    with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), len(parts))) as pool:
        making = {
            pool.submit(tables_of, name, part, seeds): (name, part)
            for name, part in sorted(parts, key=lambda each: _LONGEST.index(each[0]))
        }
        told(f"{len(parts)} {'study, which takes' if len(parts) == 1 else 'studies, which take'} some minutes")
        for ready in as_completed(making):
            name = " ".join(making[ready]).strip()
            try:
                made[making[ready]] = ready.result()
            except Exception as error:  # what the others took minutes for is not thrown away
                made[making[ready]] = ()
                problems.append(f"{name}: {error}")
            told(f"{name} is ready, {len(parts) - len(made)} to go")
    tables = tuple(table for part in parts for table in made[part])
    return (figures(tables), *tables), tuple(problems)


_LONGEST = ("genie", "sidecar", "unknown", "marble")


def tables_of(name: str, part: str, seeds: int | None) -> tuple[PaperTable, ...]:
    """The tables of one paper, or of a part of it; see `all_tables`."""
    module = import_module(f"hpcdl.sim.papers.{name}")
    wanted = tuple(module.SEEDS)[:seeds]
    return (getattr(module, part)(wanted),) if part else tuple(module.tables(wanted))
