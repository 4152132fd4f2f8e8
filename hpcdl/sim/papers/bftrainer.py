"""Section 5 of the BFTrainer paper (Liu et al., arXiv 2106.12091): its figures 7 to 16 and Tables 3 and 4, replayed.

The studies are those of `hpcdl replay --study`; here the trainers of sections 5.2 and 5.3 arrive by a Poisson process.
`bftrainer_tables` makes the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.config.layers import conf_folder
from hpcdl.sim.idle.table import IdleTable, table_of
from hpcdl.sim.papers.bftrainer_tables import EQUAL, OBJECTIVES, Rows, tables_of
from hpcdl.sim.papers.table import PaperTable, seeds_note
from hpcdl.sim.parallel import Progress
from hpcdl.sim.readers.idle import read_idle_record
from hpcdl.sim.replay.arrivals import arriving, lasting
from hpcdl.sim.replay.case import ReplayCase, chosen, table2
from hpcdl.sim.replay.idle import HOUR_S, IdleTrace, read_idle
from hpcdl.sim.replay.studies import SCALE_HOURS, STUDIES, StudyReplay, StudyRow, rows_of, words

SEEDS = (0, 1, 2)
"""Of the arrivals. Nothing else is drawn."""
TRAINERS, ALL_TRAINERS = 100, 1_000
"""How many arrive; the paper's number."""
HOURS = SCALE_HOURS
"""Of the trace where trainers never end, unless all of it is asked for."""


@dataclass(frozen=True, slots=True)
class BftrainerReplays:
    """What is to be replayed. `planned`: study, trace and replay by name; `idle`: the table of the trace.

    `notes`: on the trace and on the seeds.
    """

    planned: Mapping[str, tuple[str, IdleTrace, StudyReplay]]
    idle: IdleTable
    notes: Mapping[str, Sequence[str]]


def replays(seeds: Sequence[int] = SEEDS, trace: Path | None = None, full: bool = False) -> BftrainerReplays:
    """The replays on a trace, a file or the folder of a record; None: on the sample that comes with hpcdl.

    `full`: of all its hours, and with as many trainers as in the paper. WorkloadError, RecordError: the trace makes no
    sense, or has too few idle nodes.
    """
    path, models = trace or conf_folder() / "workloads" / "idle_sample.csv.gz", table2()
    whole = read_idle(path, None)
    idle = whole if full else whole.until(HOURS * HOUR_S)
    count = ALL_TRAINERS if full else TRAINERS
    base = ReplayCase(chosen("ShuffleNet", models))
    planned: dict[str, tuple[str, IdleTrace, StudyReplay]] = {}
    for seed in seeds:
        queue = arriving(whole, replace(base, models=models), count, seed)
        long = lasting(whole, queue)
        cases = [(study, each) for study in ("parallel", "diverse") for each in STUDIES[study][1](queue, models)]
        cases += [("equal", each) for each in _equal(queue)]
        planned |= {f"{study}, {words(each.label)}, seed {seed}": (study, long, each) for study, each in cases}
    for study in ("t-fwd", "costs", "scale"):
        for each in STUDIES[study][1](base, models):
            planned[f"{study}, {words(each.label)}"] = study, idle, each
    source = "The trace that was given" if trace else "A trace of our own making, no real machine's"
    about = (
        f"{source}: {whole.mean:.1f} nodes idle on average. Trainers that never end: {idle.end_s / HOUR_S:g} of its "
    )
    about += f"{whole.end_s / HOUR_S:g} h; of those that arrive, {count}."
    return BftrainerReplays(
        planned, table_of(read_idle_record(path)), {"trace": (about,), "seeds": (seeds_note(seeds),)}
    )


def _equal(queue: ReplayCase) -> list[StudyReplay]:
    """Section 5.1's heuristic with diverse trainers, measured by either objective."""
    return [
        StudyReplay({"objective": objective}, replace(queue, policy=EQUAL, objective=objective))
        for objective in OBJECTIVES
    ]


def simulated(asked: BftrainerReplays, progress: Progress) -> tuple[tuple[PaperTable, ...], tuple[str, ...]]:
    """The tables, and what went wrong, one line each: a replay that fails costs the figures that need it."""
    made, problems = rows_of(asked.planned, progress)
    return tables_of(by_study(asked, made), asked.idle, asked.notes), problems


def by_study(asked: BftrainerReplays, made: Mapping[str, StudyRow]) -> dict[str, list[Rows]]:
    """The rows of each replay together, one for each seed, in the order of the studies."""
    found: dict[str, dict[str, list[StudyRow]]] = {}
    for name, (study, _, replay) in asked.planned.items():
        if name in made:
            found.setdefault(study, {}).setdefault(words(replay.label), []).append(made[name])
    return {study: list(rows.values()) for study, rows in found.items()}
