"""The HTML report of simulated runs: one workload, its policies side by side.

Made of the drawings and tables of `hpcdl/report`. It never shows wall-clock times: the same runs, the same page.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby

from hpcdl.core.model.units import count, seconds_text
from hpcdl.report.comparison import ComparedRun, Measure, curves, decimals, number, queue_measures, side_by_side
from hpcdl.report.curves import BINS, COARSE, Window, gpus_there
from hpcdl.report.heat import heat, heat_legend
from hpcdl.report.history import History
from hpcdl.report.html import HtmlTable, document, note, table_html
from hpcdl.report.page import UTILISATION, long_text, percent
from hpcdl.report.timeline import Scale, draw, timeline_legend
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.results import JobResult, Results
from hpcdl.sim.workload import Workload

MOST_GPUS = 64
MOST_BARS = 400
"""Bars of a run, up to which every one is drawn: more are too narrow for a name."""
MOST_BARS_IN_ALL = 1200
"""Of all runs together: the page then has about a megabyte."""
MOST_JOBS = 200
"""Up to so many jobs are listed one by one."""
MOST_PROBLEMS = 10

Run = tuple[SimulatedRun, Results]

_READING = (
    f"Queues with more than {BINS} steps are drawn as means over 1/{BINS} of the time each, GPUs with more than "
    f"{COARSE} as means over 1/{COARSE} of it: what lasts shorter is not seen. A run in which something went "
    "wrong, or whose jobs did not all finish, is marked best in nothing. Fairness is a job's JCT over the JCT that it "
    "would have had alone on its share of all GPUs (1 is its due, more is worse). Lost to rescaling is of the time "
    "between each job's first start and its end."
)


def page_of(workload: Workload, conditions: Conditions, runs: Sequence[Run]) -> str:
    """The page. The same runs, the same page: how long decisions took on this machine is not in it."""
    compared = [ComparedRun(run.policy, run.history, _whole(run, results)) for run, results in runs]
    parts = [f"<h1>Simulated: {escape(workload.name)}</h1>", *_head(workload, conditions), *_problems(runs)]
    if runs and workload.jobs:
        parts.append("<h2>Policies side by side</h2>")
        parts.append(side_by_side(compared, [*_measures(runs), *queue_measures(compared)]))
        parts.append(
            note("★ best of its row; beside the others, how far they are from it. All times are simulated ones.")
        )
        parts.append("<h2>Over time</h2>")
        windows = [((spell.from_s, spell.until_s), spell.gpus) for spell in workload.nodes]
        longest = max((run.history for run, _ in runs), key=lambda history: history.end - history.begin)
        parts.append(curves(compared, gpus_there(windows, longest) if windows else None))
        parts += _runs(workload, runs)
    else:
        parts.append(note("There is no run to compare."))
    parts += [note(_READING), note(UTILISATION)]
    return document(f"Simulated: {workload.name}", parts, script=True)


def _whole(run: SimulatedRun, results: Results) -> bool:
    return not results.problems and results.finished == len(run.workload.jobs)


def _head(workload: Workload, conditions: Conditions) -> list[str]:
    sizes = workload.nodes_named
    nodes, gpus = len(sizes), sum(sizes.values())
    kinds = sorted({spell.kind for spell in workload.nodes if spell.kind})
    what = f"{count(len(workload.jobs), 'job')} on {count(nodes, 'node')} with {count(gpus, 'GPU')}"
    if len(workload.nodes) > nodes:
        what = f"{count(len(workload.jobs), 'job')} on {count(nodes, 'node')} that come and go"
    if kinds:
        what += f" ({', '.join(kinds)})"
    said = (
        f"<b>Everything on this page is simulated.</b> {escape(what)}. The daemon's own controller and policies ran on "
        "a virtual clock; trainers are modelled by their profiles. No GPU was used."
    )
    notes = [f"Workload: {workload.source}"] if workload.source else []
    untold = sum(not job.told for job in workload.jobs)
    if untold:
        notes.append(f"Policies got no profile of {count(untold, 'job')}: they learn what they can.")
    wrong = sum(job.told and job.believed is not None and job.believed != job.profile for job in workload.jobs)
    if wrong:
        notes.append(f"Of {count(wrong, 'job')}, policies got another profile than the true one.")
    notes += workload.notes
    notes.append(_conditions_text(conditions))
    items = "".join(f"<li>{escape(text)}</li>" for text in notes)
    return [f'<p class="simulated">{said}</p>', f'<ul class="notes">{items}</ul>']


def _conditions_text(conditions: Conditions) -> str:
    texts = [f"objective {conditions.objective}", f"seed {conditions.seed}"]
    texts.append(
        f"delays vary by a lognormal factor (sigma {conditions.jitter:g})"
        if conditions.jitter
        else "delays are those of the profiles, without noise"
    )
    if conditions.spread:
        texts.append(
            f"each job's start-ups, saves and length are drawn (sigma {conditions.spread:g}), and policies learn them"
        )
    if conditions.mtbf_s:
        texts.append(
            f"a trainer fails every {seconds_text(conditions.mtbf_s)} on average and goes back to its last checkpoint, "
            f"one each {seconds_text(conditions.checkpoint_s)}"
        )
    else:
        texts.append("no failures")
    if conditions.restarts:
        texts.append(f"the daemon is killed {count(len(conditions.restarts), 'time')}")
    if conditions.warm:
        texts.append("jobs may start ahead at the gate")
    if math.isfinite(conditions.until_s):
        texts.append(f"the simulation ends at {long_text(conditions.until_s)}")
    return f"Conditions: {'; '.join(texts)}."


def _problems(runs: Sequence[Run]) -> list[str]:
    parts = []
    for run, results in runs:
        lines = list(results.problems)
        left = len(run.workload.jobs) - results.finished
        if left:
            what = "" if lines else f"{count(left, 'job')} of {len(run.workload.jobs)} did not finish; "
            lines.append(f"{what}means are over the {results.finished} that finished")
        if not lines:
            continue
        more = len(lines) - MOST_PROBLEMS
        if more > 0:
            lines = [*lines[:MOST_PROBLEMS], f"and {more} more"]
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(
            f'<div class="problems" role="alert"><b>Problem under {escape(run.policy)}</b><ul>{items}</ul></div>'
        )
    return parts


def _measures(runs: Sequence[Run]) -> list[Measure]:
    return [
        Measure(title, tuple(getattr(result, name) for _, result in runs), text, better, what, text is long_text)
        for title, name, text, better, what in _MEASURES
    ]


_MEASURES: tuple[tuple[str, str, Callable[[float], str], int, str], ...] = (
    ("Makespan", "makespan_s", long_text, -1, ""),
    ("JCT, mean", "mean_jct_s", long_text, -1, ""),
    ("JCT, mean: bound", "bound_mean_jct_s", long_text, 0, "No policy can be below it"),
    ("JCT, median", "median_jct_s", long_text, -1, ""),
    ("JCT, 95th percentile", "p95_jct_s", long_text, -1, ""),
    ("Wait, mean", "mean_wait_s", long_text, -1, ""),
    ("Wait, 95th percentile", "p95_wait_s", long_text, -1, ""),
    ("Wait, longest", "longest_wait_s", long_text, -1, ""),
    ("GPU utilisation", "utilisation", percent, 1, "Work done over work possible: see below"),
    ("GPU memory utilisation", "memory_utilisation", percent, 1, "Share of the GPUs' memory that jobs have in use"),
    ("GPUs held", "held", percent, 0, "Share of GPU time that jobs held"),
    ("Lost to rescaling", "lost_share", percent, -1, ""),
    ("Suspends", "suspends", number, -1, ""),
    ("Resumes", "resumes", number, 0, ""),
    ("Rescales", "rescales", number, 0, ""),
    ("Moves to other nodes", "moves", number, 0, ""),
    ("Deadlines met", "deadlines_met", percent, 1, ""),
    ("Fairness, mean", "mean_fairness", decimals, -1, ""),
    ("Fairness, worst", "worst_fairness", decimals, -1, ""),
    ("Energy", "energy_kwh", lambda value: f"{value:.2f} kWh", -1, ""),
    ("Jobs finished", "finished", number, 0, ""),
)
"""Title, figure of `Results`, its text, whether more (1) or less (-1) of it is better, and what it is."""


def _runs(workload: Workload, runs: Sequence[Run]) -> list[str]:
    longest = max((run.history.end - run.history.begin for run, _ in runs), default=0.0) or 1.0
    fine = draws_every_bar([run.history for run, _ in runs])
    there: dict[str, list[Window]] = {}
    for spell in workload.nodes:
        there.setdefault(spell.name, []).append((spell.from_s, spell.until_s))
    parts = ["<h2>GPUs by job</h2>" if fine else "<h2>Nodes</h2>"]
    if not fine:
        parts += [
            note("The share of each node's GPUs that jobs hold: there is too much to draw a bar for each job."),
            heat_legend(),
        ]
    for run, results in runs:
        parts += ["<section>", f"<h3>{escape(run.policy)}</h3>"]
        if fine:
            parts += [draw(run.history, Scale(run.history.begin, longest)), timeline_legend(run.history)]
        else:
            parts.append(heat(run.history, longest, there))
        parts += _unfair(run, results)
        if len(results.jobs) <= MOST_JOBS:
            table = table_html(_job_table(results))
            summary = f"{count(len(results.jobs), 'job')} under {escape(run.policy)}"
            parts.append(f"<details><summary>{summary}</summary>{table}</details>")
        parts.append("</section>")
    return parts


def _unfair(run: SimulatedRun, results: Results) -> list[str]:
    unfair = results.above_max_slowdown
    if not unfair:
        return []
    lines = [f"job {each.job} {each.name}: {each.fairness:.1f} times: {each.why}" for each in unfair[:MOST_PROBLEMS]]
    if len(unfair) > MOST_PROBLEMS:
        lines.append(f"and {len(unfair) - MOST_PROBLEMS} more")
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    what = f"{count(len(unfair), 'job')} took more than {run.conditions.max_slowdown:g} times their fair share"
    return [note(f"{what}:"), f'<ul class="notes">{items}</ul>']


def draws_every_bar(histories: Sequence[History]) -> bool:
    """Whether the runs are small enough for a bar for each incarnation on a node: in all of them, or in none."""
    bars = [len({(span.job, span.incarnation, span.node) for span in history.spans}) for history in histories]
    small = max(bars, default=0) <= MOST_BARS and sum(bars) <= MOST_BARS_IN_ALL
    return small and all(len(history.gpus) <= MOST_GPUS for history in histories)


def _job_table(results: Results) -> HtmlTable:
    jobs = results.jobs
    columns: list[tuple[str, bool, list[str]]] = [
        ("Id", True, [str(job.id) for job in jobs]),
        ("Job", False, [job.name for job in jobs]),
        ("User", False, [job.user for job in jobs]),
        ("State", False, [job.state or "not finished" for job in jobs]),
        ("Submit, s", True, [_whole_s(job.submit_s) for job in jobs]),
        ("Wait, s", True, [_whole_s(job.wait_s) for job in jobs]),
        ("JCT, s", True, [_whole_s(job.jct_s) for job in jobs]),
        ("GPUs", False, [_gpus(job) for job in jobs]),
        ("Suspends", True, [str(job.suspends) for job in jobs]),
        ("Suspended, s", True, [_whole_s(job.lost_s) for job in jobs]),
        ("Deadline, s", True, [_whole_s(job.deadline_s) for job in jobs]),
        ("Met", False, [{None: "", True: "yes", False: "no"}[job.deadline_met] for job in jobs]),
        ("Fairness", True, ["–" if job.fairness is None else f"{job.fairness:.2f}" for job in jobs]),
    ]
    shown = [column for column in columns if any(text not in ("", "–") for text in column[2])]
    return HtmlTable(
        "",
        tuple(title for title, _, _ in shown),
        tuple(zip(*(texts for _, _, texts in shown), strict=True)),
        frozenset(place for place, column in enumerate(shown) if column[1]),
    )


def _whole_s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f}"


def _gpus(job: JobResult) -> str:
    """`3 → 4`: at most the first and last numbers of many; the same number again is said once."""
    numbers = [str(number) for number, _ in groupby(gpus for _, gpus in job.gpus if gpus)]
    if len(numbers) > 8:
        numbers = [*numbers[:4], "…", *numbers[-3:]]
    return " → ".join(numbers) or "–"
