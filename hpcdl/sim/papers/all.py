"""All papers' tables, a paper a process."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from importlib import import_module

from hpcdl.sim.papers.table import Table

PAPERS = ("marble", "sidecar", "genie", "unknown")
"""Modules of this package that have `tables()`: three papers, and what it costs to know no profile."""


def all_tables(
    papers: Sequence[str] = PAPERS, seeds: int | None = None, progress: Callable[[str], None] | None = None
) -> tuple[Table, ...]:
    """The tables of these papers, in this order. `seeds`: no study takes more than so many; None: each its own number.

    `progress`: is told what is ready, or what comes next where there is one processor only.
    """
    told = progress or (lambda _: None)
    found: dict[str, tuple[Table, ...]] = {}
    for name, tables in _made(papers, seeds, told):
        found[name] = tables
    return tuple(table for name in papers for table in found[name])


def _made(
    papers: Sequence[str], seeds: int | None, told: Callable[[str], None]
) -> Iterator[tuple[str, tuple[Table, ...]]]:
    processors = len(os.sched_getaffinity(0))
    if processors == 1 or len(papers) == 1:
        yield from ((name, tables_of(name, seeds, told)) for name in papers)
        return
    with ProcessPoolExecutor(min(processors, len(papers))) as pool:
        # The longest first, so that none is left alone at the end.
        order = sorted(papers, key=lambda name: ("genie", "sidecar").index(name) if name in ("genie", "sidecar") else 2)
        making: dict[Future[tuple[Table, ...]], str] = {pool.submit(tables_of, name, seeds): name for name in order}
        told(f"{', '.join(order)}: a few minutes")
        for ready in as_completed(making):
            told(f"{making[ready]}: ready")
            yield making[ready], ready.result()


def tables_of(name: str, seeds: int | None, progress: Callable[[str], None] | None = None) -> tuple[Table, ...]:
    """The tables of one paper; see `all_tables`."""
    module = import_module(f"hpcdl.sim.papers.{name}")
    arguments = {} if seeds is None else {"seeds": _first(module.SEEDS, seeds)}
    tables: tuple[Table, ...] = tuple(module.tables(**arguments, progress=progress))
    return tables


def _first(seeds: Iterable[int], number: int) -> tuple[int, ...]:
    return tuple(seeds)[:number]
