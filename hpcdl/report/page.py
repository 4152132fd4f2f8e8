"""Self-contained HTML pages of what happened: of one ledger, and of runs below each other on one time scale.

Nothing to load. `live` is the page of what goes on now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from typing import Any

from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import count, seconds_text
from hpcdl.report.account import account, story_of_rows
from hpcdl.report.clock import Local, clock_text, moment_text
from hpcdl.report.history import History
from hpcdl.report.html import HtmlTable, document, html, note, table_cell, table_html, table_of_cells
from hpcdl.report.measures import JobMeasures, RunMeasures, measure
from hpcdl.report.names import breakable, marked
from hpcdl.report.stacked import summary
from hpcdl.report.timeline import Scale, draw, timeline_legend

UTILISATION = (
    "Utilisation is work done over work possible: while a job trains on n GPUs, each of them counts with the share "
    "rate(n) / (n × rate(1)) of the job's profile, so GPUs that it holds without getting faster by them count as idle; "
    "GPUs of a job without a profile count in full while it trains. Held is the plain share of GPU time that jobs "
    "held. Neither is the load that hpcdl top and hpcdl page show: what the GPUs measured a moment ago. "
    "Suspended is the time from a policy's request to suspend until the job trains again."
)


MOST_WAITING = 20
"""Jobs without a GPU that a timeline's table lists."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A history under a name. `factor`: how many seconds are shown for one of its events' (time-scaled runs)."""

    name: str
    history: History
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    factor: float = 1.0


def timeline_page(event_rows: Iterable[Mapping[str, Any]], title: str, local: Local | None = None) -> str:
    """The page of one run from event rows as `GET /v1/events` answers them, oldest first. `local`: the local time of a
    moment; without it times count from the first submit. Its figures are those of `hpcdl report`.
    """
    story = story_of_rows(event_rows)
    history = story.history
    parts = [f"<h1>{escape(title)}</h1>"]
    if history.jobs:
        if local is not None:
            begin, end = (moment_text(at, local) for at in (history.begin, history.end))
            parts.append(note(f"{begin} to {end}"))
        makespan = f"Makespan {long_text(history.end - history.begin)}. "
        found = account(story, until=story.watch.last_at)
        parts.append(note(makespan + summary(found), "figures"))
        length = history.end - history.begin or 1.0
        parts += [draw(history, Scale(history.begin, length, local=local)), timeline_legend(history)]
        measures = measure(history)
        waits = [job.id for job in measures.jobs if job.start_s is None]
        left_out = frozenset(waits[MOST_WAITING:])
        shown = tuple(job for job in measures.jobs if job.id not in left_out)
        lost = {line.key: line.shares.lost for line in found.lines}
        parts.append(_linked(job_table(replace(measures, jobs=shown), 1.0, history.begin, local, lost)))
        if left_out:
            parts.append(note(f"{count(len(left_out), 'more job')} held no GPU yet."))
    else:
        parts.append(note("No job was submitted yet."))
    return document(title, parts, script=True, root=' data-job-href="#job-"')


def _linked(table: HtmlTable) -> str:
    """The table of jobs, each with its colour, and where a click on its bar leads."""
    rows = []
    for number, name, *rest in table.rows:
        inside = (marked(int(number), number), breakable(name), *map(html, rest))
        cells = (
            table_cell(title, text, right=place in table.right)
            for place, (title, text) in enumerate(zip(table.header, inside, strict=True))
        )
        rows.append(f'<tr id="job-{number}">{"".join(cells)}</tr>')
    return table_of_cells(table.header, rows, table.right, kind="table cards", caption="Jobs", hidden=True)


def render(runs: Sequence[ReportedRun], title: str, notes: Sequence[str] = (), tables: Sequence[HtmlTable] = ()) -> str:
    """The page: title, the drawing of every run, then notes, tables and the measures of each run. The same input, the
    same page."""
    longest = max(((run.history.end - run.history.begin) * run.factor for run in runs), default=0.0)
    parts, measured = [f"<h1>{escape(title)}</h1>"], []
    for run in runs:
        history, factor = run.history, run.factor
        measures = measure(history, run.profiles)
        parts.append("<section>")
        if run.name:
            parts.append(f"<h2>{escape(run.name)}</h2>")
        if history.jobs:
            parts.append(note(_figures(measures, factor), "figures"))
            parts += [draw(history, Scale(history.begin, longest or 1.0, factor)), timeline_legend(history)]
            measured.append(table_html(replace(job_table(measures, factor), title=run.name)))
        else:
            parts.append(note("No job was submitted yet."))
        parts.append("</section>")
    parts += [*map(note, notes), *map(table_html, tables), *measured, note(UTILISATION)]
    return document(title, parts, script=True)


def _figures(measures: RunMeasures, factor: float) -> str:
    texts = [f"makespan {long_text(measures.makespan_s * factor)}"]
    if measures.utilisation is not None:
        texts.append(f"GPU utilisation {percent(measures.utilisation)}")
    if measures.held is not None:
        texts.append(f"held {percent(measures.held)}")
    texts.append(f"{count(measures.suspends, 'suspend')}, {measures.lost_s * factor:.0f} s suspended for other jobs")
    return " · ".join(texts)


def long_text(seconds: float) -> str:
    """A time as text: `471 s`, and from 20 minutes on in larger units."""
    return f"{seconds:.0f} s" if seconds < 1200 else seconds_text(seconds)


def percent(share: float) -> str:
    """A share as text: `37.2 %`."""
    return f"{100 * share:.1f} %"


def gpus_text(job: JobMeasures) -> str:
    """`3 → 4`: how many GPUs, in order; the same number again is said once."""
    return " → ".join(str(number) for number, _ in groupby(number for _, number in job.gpus if number))


def job_table(
    measures: RunMeasures,
    factor: float,
    begin: float = 0.0,
    local: Local | None = None,
    lost: Mapping[str, float] | None = None,
) -> HtmlTable:
    """The table of jobs; times are multiplied by `factor`. `local`: starts and ends are times of day of a run that
    began at `begin`. `lost`: the GPU-seconds whose work each job, by its id, did in vain."""

    def text(seconds: float | None) -> str:
        return "–" if seconds is None else f"{seconds * factor:.0f}"

    def moment(seconds: float | None) -> str:
        if local is None or seconds is None:
            return text(seconds)
        return clock_text(begin + seconds, begin + measures.makespan_s, local, seconds=True)

    rows = tuple(
        (
            str(job.id),
            job.name,
            job.state.value if job.state is not None else "not finished",
            moment(job.start_s),
            moment(job.end_s),
            text(job.wait_s),
            text(job.jct_s),
            gpus_text(job) or "–",
            str(job.suspends),
            text(job.lost_s),
            *(() if lost is None else (text(lost.get(str(job.id), 0.0)),)),
        )
        for job in measures.jobs
    )
    start, end = ("Start, s", "End, s") if local is None else ("Start", "End")
    lost_title = () if lost is None else ("Lost, GPU-s",)
    header = ("Job", "Name", "State", start, end, "Wait, s", "JCT, s", "GPUs", "Suspends", "Suspended, s", *lost_title)
    return HtmlTable("", header, rows, frozenset({0, 3, 4, 5, 6, 7, 8, 9, 10}))
