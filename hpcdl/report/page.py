"""One self-contained HTML page: timelines of runs below each other on one time scale, and tables.

No script, nothing to load. `live` is the page of what goes on now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import count, seconds_text
from hpcdl.report.history import History
from hpcdl.report.html import HtmlTable, document, note, table_html
from hpcdl.report.measures import JobMeasures, RunMeasures, measure
from hpcdl.report.spans import read_history
from hpcdl.report.timeline import Scale, draw, timeline_legend

UTILISATION = (
    "Utilisation is work done over work possible: while a job trains on n GPUs, each of them counts with the share "
    "rate(n) / (n × rate(1)) of the job's profile, so GPUs that it holds without getting faster by them count as idle; "
    "GPUs of a job without a profile count in full while it trains. Held is the plain share of GPU time that jobs "
    "held. Neither is the load that hpcdl top and hpcdl page show: what the GPUs measured a moment ago. "
    "Lost is the time from a policy's request to suspend until the job trains again."
)


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A history under a name. `factor`: how many seconds are shown for one of its events' (time-scaled runs)."""

    name: str
    history: History
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    factor: float = 1.0


def timeline_page(
    event_rows: Iterable[Mapping[str, Any]], title: str, profiles: Mapping[str, Profile] | None = None
) -> str:
    """The page of one run from event rows as `GET /v1/events` answers them, oldest first. See `render`."""
    return render([ReportedRun("", read_history(event_rows), profiles or {})], title)


def render(runs: Sequence[ReportedRun], title: str, notes: Sequence[str] = (), tables: Sequence[HtmlTable] = ()) -> str:
    """The page: title, notes, tables, then every run with its drawing and measures. The same input, the same page."""
    longest = max(((run.history.end - run.history.begin) * run.factor for run in runs), default=0.0)
    parts = [f"<h1>{escape(title)}</h1>", *map(note, notes)]
    parts += [table_html(table) for table in tables]
    for run in runs:
        history, factor = run.history, run.factor
        measures = measure(history, run.profiles)
        parts.append("<section>")
        if run.name:
            parts.append(f"<h2>{escape(run.name)}</h2>")
        if history.jobs:
            parts.append(note(_figures(measures, factor), "figures"))
            parts += [draw(history, Scale(history.begin, longest or 1.0, factor)), timeline_legend(history)]
            parts.append(table_html(job_table(measures, factor)))
        else:
            parts.append(note("No job was submitted yet."))
        parts.append("</section>")
    parts.append(note(UTILISATION))
    return document(title, parts)


def _figures(measures: RunMeasures, factor: float) -> str:
    texts = [f"makespan {long_text(measures.makespan_s * factor)}"]
    if measures.utilisation is not None:
        texts.append(f"GPU utilisation {percent(measures.utilisation)}")
    if measures.held is not None:
        texts.append(f"held {percent(measures.held)}")
    texts.append(f"{count(measures.suspends, 'suspend')}, {measures.lost_s * factor:.0f} s lost by suspending")
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


def job_table(measures: RunMeasures, factor: float) -> HtmlTable:
    """The table of jobs; times are multiplied by `factor`."""

    def text(seconds: float | None) -> str:
        return "–" if seconds is None else f"{seconds * factor:.0f}"

    rows = tuple(
        (
            str(job.id),
            job.name,
            job.state.value if job.state is not None else "not finished",
            text(job.start_s),
            text(job.end_s),
            text(job.wait_s),
            text(job.jct_s),
            gpus_text(job) or "–",
            str(job.suspends),
            text(job.lost_s),
        )
        for job in measures.jobs
    )
    header = ("Id", "Job", "State", "Start, s", "End, s", "Wait, s", "JCT, s", "GPUs", "Suspends", "Lost, s")
    return HtmlTable("", header, rows, frozenset({0, 3, 4, 5, 6, 8, 9}))
