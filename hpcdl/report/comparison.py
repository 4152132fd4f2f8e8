"""Runs side by side: a table of measures in which the best is marked, and their curves over each other.

Used by the page of simulated runs (`hpcdl/sim/page.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from hpcdl.report.charts import Axis, StepCurve, axis_for, chart, curve_legend, kind
from hpcdl.report.curves import BINS, COARSE, StepFunction, distribution, gpus_held, gpus_training, queue_length
from hpcdl.report.history import History

BEST = "★"


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table: one number for each run, None where a run has none.

    `better`: -1 where less is better, 1 where more is, 0 where neither. `told`: what the measure is, in
    words (shown where the mouse rests). `relative`: with the difference to the best in per cent.
    """

    title: str
    values: tuple[float | None, ...]
    text: Callable[[float], str]
    better: int = 0
    told: str = ""
    relative: bool = False


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run to be compared. `whole`: all its jobs finished and nothing went wrong; only such a run can be the best."""

    name: str
    history: History
    whole: bool = True


def number(value: float) -> str:
    """A whole number with spaces between thousands: `10 000`."""
    return f"{value:,.0f}".replace(",", " ")


def decimals(value: float) -> str:
    """A number with two decimals: `3.14`."""
    return f"{value:.2f}"


def side_by_side(runs: Sequence[ComparedRun], measures: Sequence[Measure]) -> str:
    """The table: a column for each run, a row for each measure that any run has."""
    heads = "".join(
        f'<th scope="col" class="right"><svg width="22" height="10" aria-hidden="true"><path d="M0 5H22" '
        f'class="curve {kind(place)}"/></svg> {escape(run.name)}</th>'
        for place, run in enumerate(runs)
    )
    rows = []
    for measure in measures:
        if all(value is None for value in measure.values):
            continue
        texts = ["–" if value is None else measure.text(value) for value in measure.values]
        best = best_of(measure, texts, [run.whole for run in runs])
        least = None if best is None else measure.values[best[0]]
        cells = []
        for place, (value, text) in enumerate(zip(measure.values, texts, strict=True)):
            inside = escape(text)
            if best is not None and place in best:
                inside = f'<b>{inside}</b> <span class="star" title="best">{BEST}</span>'
            elif best is not None and measure.relative and value and least:
                inside += f' <span class="soft">{_over(value / least)}</span>'
            cells.append(f'<td class="right">{inside}</td>')
        title = f' title="{escape(measure.told)}"' if measure.told else ""
        rows.append(f'<tr><th scope="row"{title}>{escape(measure.title)}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="table compare"><table><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _over(ratio: float) -> str:
    return f"× {ratio:.0f}" if ratio >= 10 else f"{100 * (ratio - 1):+.0f} %"


def best_of(measure: Measure, texts: Sequence[str], whole: Sequence[bool]) -> tuple[int, ...] | None:
    """Which runs are best: those whose text is that of the best. None where all are equal, or none can be."""
    if not measure.better:
        return None
    could = [
        (measure.better * value, place)
        for place, value in enumerate(measure.values)
        if value is not None and whole[place]
    ]
    if len(could) < 2:
        return None
    text = texts[max(could)[1]]
    found = tuple(place for _, place in could if texts[place] == text)
    return None if len(found) == len(could) else tuple(sorted(found))


def queue_measures(runs: Sequence[ComparedRun]) -> tuple[Measure, Measure]:
    """The mean and the largest length of the queue."""
    lengths = [queue_length(run.history) for run in runs]
    return (
        Measure("Queue length, mean", tuple(each.mean for each in lengths), lambda value: f"{value:.1f}", -1),
        Measure("Queue length, largest", tuple(each.most for each in lengths), number, -1),
    )


def curves(runs: Sequence[ComparedRun], there: StepFunction | None = None) -> str:
    """The four drawings with a legend. `there`: GPUs that are there; None: as many as joined, all the time."""
    longest = max((run.history.end - run.history.begin for run in runs), default=0.0)
    if there is None:
        most = max((len(run.history.gpus) for run in runs), default=0)
        there = StepFunction((0.0,), (float(most),), longest)
    jcts = [
        [job.finished_at - job.submitted_at for job in run.history.jobs if job.finished_at is not None] for run in runs
    ]
    times = axis_for([jct for each in jcts for jct in each])
    axis = Axis(0.0, longest)

    def of(make: Callable[[History], StepFunction], bins: int) -> list[StepCurve]:
        return [StepCurve(run.name, make(run.history).thinned(bins, longest), place) for place, run in enumerate(runs)]

    shares = [
        StepCurve(run.name, distribution(each), place) for place, (run, each) in enumerate(zip(runs, jcts, strict=True))
    ]
    log = ", by their logarithm" if times.log else ""
    drawings = (
        chart("Queue length", "jobs that wait without a GPU, over time", of(queue_length, BINS), axis),
        chart("JCT", f"share of jobs with at most this JCT{log}", shares, times, shares=True),
        chart("GPUs held", "by some job, over time", of(gpus_held, COARSE), axis, there.thinned(COARSE, longest)),
        chart(
            "GPUs training", "neither starting nor saving, over time", of(gpus_training, COARSE), axis, there.thinned()
        ),
    )
    legend = curve_legend([run.name for run in runs], "GPUs there")
    return f'{legend}<div class="charts">{"".join(drawings)}</div>'
