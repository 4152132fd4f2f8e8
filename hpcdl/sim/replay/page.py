"""Replays and studies as one HTML page.

`cells_of` also makes the table that `hpcdl replay --study` prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hpcdl.report.charts import HEIGHT, TOP, Axis, StepCurve, chart, curve_legend, framed, kind, rungs_up_to
from hpcdl.report.curves import StepFunction
from hpcdl.report.html import HtmlTable, document, note, table_html
from hpcdl.report.printed import Cell, beside_table
from hpcdl.sim.replay.idle import HOUR_S
from hpcdl.sim.replay.outcome import Outcome
from hpcdl.sim.replay.studies import Study, StudyRow

TITLE = "Idle nodes, replayed"

_SAID = (
    '<p class="simulated"><b>Everything of ours on this page is simulated</b>, with the daemon\'s own Controller and '
    "policies. Figures marked “paper” are printed by the BFTrainer paper (arXiv 2106.12091), section 5.</p>"
)

_COLUMNS = {
    "t-fwd": ("U", "bound_U", "preempted_share", "rescale_cost_per_event", "return_per_event", "return_on_investment"),
    "diverse": ("U", "bound_U", "U by efficiency", "bound_U by efficiency", "runtime_h"),
    "parallel": ("U", "U by efficiency", "used_share", "node_hours_per_trainer", "runtime_h"),
    "scale": ("U", "bound_U", "rescale_cost_per_event"),
    "costs": ("U", "bound_U", "rescale_cost_per_event", "rescales"),
}

_TITLES = {
    "t_fwd_s": "T_fwd, s",
    "bound_U": "bound",
    "bound_U by efficiency": "bound by efficiency",
    "rescale_cost_per_event": "rescale cost per event",
    "return_per_event": "samples per event",
    "return_on_investment": "return on investment",
    "preempted_share": "preempted within T_fwd",
    "used_share": "used",
    "node_hours_per_trainer": "node-hours per trainer",
}

_SHARES = ("U", "bound_U", "preempted_share", "used_share")


def replay_page(outcome: Outcome | None, studies: Sequence[Study]) -> str:
    """One page for a replay, for studies, or both. The same values, the same page (decision times aside)."""
    parts = [f"<h1>{escape(TITLE)}</h1>", _SAID]
    if outcome is not None:
        parts += _replay(outcome)
    for study in studies:
        parts += [f'<section id="{escape(study.name)}">', f"<h2>{escape(study.title)}</h2>"]
        parts += [note(text) for text in study.notes]
        drawn = [*_windows(study), *_curves(study)]
        if drawn:
            parts.append(f'<div class="charts">{"".join(drawn)}</div>')
        parts += [beside_table(*cells_of(study)), "</section>"]
    return document(TITLE, parts)


# --- a replay --------------------------------------------------------------------------------------------------------
def _replay(outcome: Outcome) -> list[str]:
    case, idle = outcome.case, outcome.idle
    names = ", ".join(model.name for model in case.models)
    t_fwd = "adaptive" if case.t_fwd_s is None else f"{case.t_fwd_s:g} s"
    said = (
        f"{case.parallel} trainers ({names}) at a time under {case.policy}, objective {case.objective}; rescales cost "
        f"{case.scale_up_s:g} s up and {case.scale_down_s:g} s down, accounting {case.accounting}, T_fwd {t_fwd}."
    )
    rows = [
        ("U", f"{100 * outcome.U:.2f} %"),
        ("its bound: all foresight, rescales for nothing", f"{100 * outcome.bound_U:.2f} %"),
        ("idle nodes on average", f"{idle.mean:.1f}"),
        ("events", f"{len(idle.changes)} in {idle.end_s / HOUR_S:.4g} h"),
        ("samples", f"{outcome.samples:.4g}"),
        ("trainers done", str(outcome.completed)),
        ("rescales, and the samples that they cost", f"{outcome.rescales}: {outcome.rescale_loss:.4g}"),
        ("preemptions, likewise", f"{outcome.preemptions}: {outcome.preemption_loss:.4g}"),
    ]
    if outcome.by_efficiency is not None:
        u, bound = outcome.by_efficiency
        rows.insert(2, ("U by efficiency, and its bound", f"{100 * u:.2f} %, {100 * bound:.2f} %"))
    axis = Axis(0.0, idle.end_s)
    there = StepFunction(tuple(map(float, idle.times)), tuple(map(float, idle.counts)), idle.end_s)
    used = StepFunction(tuple(map(float, outcome.used[0])), tuple(map(float, outcome.used[1])), idle.end_s)
    parts = [note(said), table_html(HtmlTable("", ("", ""), tuple(rows), frozenset({1})))]
    by_six = "by windows of six hours"
    drawn = [
        chart("U over the time", by_six, [StepCurve("U", _steps(_json(outcome), "U"), 0)], axis, shares=True),
        chart(
            "Nodes", "idle (grey), and held by trainers", [StepCurve("held", used.thinned(), 1)], axis, there.thinned()
        ),
    ]
    legend = curve_legend(["U", "held by trainers"], "idle nodes")
    return [*parts, legend, f'<div class="charts">{"".join(drawn)}</div>']


def _json(outcome: Outcome) -> Sequence[Mapping[str, Any]]:
    windows: Sequence[Mapping[str, Any]] = outcome.to_json()["windows"]
    return windows


def _steps(windows: Sequence[Mapping[str, Any]], key: str, unit: float = 1.0) -> StepFunction:
    times = tuple(HOUR_S * each["from_h"] for each in windows)
    values = tuple(max(0.0, each[key] / unit) for each in windows)
    if key == "U":
        values = tuple(min(1.0, value) for value in values)
    return StepFunction(times, values, HOUR_S * windows[-1]["until_h"])


# --- studies ---------------------------------------------------------------------------------------------------------
def _windows(study: Study) -> list[str]:
    """Figures 10 and 11, where the rows have windows."""
    rows = [row for row in study.rows if row.figures.get("windows")]
    if not rows:
        return []
    end_s = HOUR_S * rows[0].figures["windows"][-1]["until_h"]
    axis, names = Axis(0.0, end_s), [str(row.label["policy"]) for row in rows]
    listed = [(name, row.figures["windows"]) for name, row in zip(names, rows, strict=True)]

    def curves(key: str, unit: float) -> list[StepCurve]:
        return [StepCurve(name, _steps(windows, key, unit), place) for place, (name, windows) in enumerate(listed)]

    samples = "million samples in six hours"
    return [
        curve_legend(names),
        chart("U over the time (figure 10)", "by windows of six hours", curves("U", 1.0), axis, shares=True),
        chart("Preemption cost (figure 11a)", samples, curves("preemption_loss", 1e6), axis),
        chart("Rescale cost (figure 11b)", samples, curves("rescale_loss", 1e6), axis),
    ]


_DRAWN = {
    "t-fwd": ("t_fwd_s", ("U", "preempted_share", "rescale_cost_per_event", "return_on_investment")),
    "diverse": ("t_fwd_s", ("U", "U by efficiency")),
    "parallel": ("parallel", ("U", "U by efficiency", "node_hours_per_trainer")),
    "costs": ("factor", ("U", "rescale_cost_per_event")),
}


def _curves(study: Study) -> list[str]:
    """A drawing for each figure over what is varied; a line for each objective."""
    if study.name not in _DRAWN:
        return []
    across, keys = _DRAWN[study.name]
    drawn = []
    for key in keys:
        found: dict[str, list[tuple[float, float]]] = {}
        level = None
        for row in study.rows:
            at, value = row.label.get(across), flat(row.figures).get(key)
            if value is not None and at is not None:
                found.setdefault(str(row.label.get("objective", key)), []).append((float(at), float(value)))
            elif value is not None and row.label.get("policy") == "equal-share":
                level = ("equal-share", float(value))
        if found:
            listed = [ChartLine(name, tuple(points)) for name, points in found.items()]
            title = _TITLES.get(key, key)
            drawn.append(lines(title, f"by {_TITLES.get(across, across)}", listed, key_is_share(key), level))
    return drawn


def flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row by one name each: run times are named by their model."""
    found = {key: value for key, value in figures.items() if not isinstance(value, dict | list)}
    found |= {f"{key} by efficiency": value for key, value in figures.get("by_efficiency", {}).items()}
    return found | {f"{name}, h": value for name, value in figures.get("runtime_h", {}).items()}


def key_is_share(key: str) -> bool:
    """Whether a figure is shown in per cent."""
    return key.removesuffix(" by efficiency") in _SHARES


def _keys(study: Study) -> list[str]:
    """The figures of a study that are shown."""
    keys: list[str] = []
    for key in _COLUMNS[study.name]:
        if key == "runtime_h":
            keys += dict.fromkeys(f"{name}, h" for row in study.rows for name in row.figures["runtime_h"])
        else:
            keys.append(key)
    return keys


def cells_of(study: Study) -> tuple[list[str], list[tuple[list[str], list[Cell]]]]:
    """The study as a table: titles, and rows of labels and of figures beside the paper's."""
    keys = _keys(study)
    labels = list(study.rows[0].label) if study.rows else []
    rows = []
    for row in study.rows:
        ours, paper = flat(row.figures), flat(row.paper)
        printed = {key: _text(key, paper[key]) for key in keys if key in paper}
        cells = [Cell(_text(key, ours.get(key)), printed.get(key, ""), _difference(key, ours, paper)) for key in keys]
        rows.append(([_label(row, label) for label in labels], cells))
    return [_TITLES.get(key, key) for key in (*labels, *keys)], rows


def _label(row: StudyRow, key: str) -> str:
    value = row.label[key]
    if value is None:
        return "adaptive" if row.label.get("policy", "bftrainer") == "bftrainer" else "-"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _text(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key_is_share(key):
        return f"{100 * value:.1f} %"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.4g}"


def _difference(key: str, ours: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    mine, its = ours.get(key), paper.get(key)
    if mine is None or not its:
        return ""
    return f"{100 * (mine - its):+.1f} points" if key_is_share(key) else f"{100 * (mine / its - 1):+.0f} %"


# --- a figure over a number that was varied ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart. `points`: (x, y), in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


def lines(
    title: str, under: str, drawn: Sequence[ChartLine], shares: bool = False, level: tuple[str, float] | None = None
) -> str:
    """Points joined by lines, as a fragment of HTML.

    `shares`: values from 0 to 1, shown in per cent; `level`: name and value of a grey line across.
    """
    values = [y for line in drawn for _, y in line.points] + ([level[1]] if level else [])
    low, rungs = _rungs(values, shares)
    top = rungs[-1]
    places = sorted({x for line in drawn for x, _ in line.points})
    left, width = (places[0], places[-1] - places[0] or 1.0) if places else (0.0, 1.0)

    def high(value: float) -> float:
        return TOP + HEIGHT * (1 - (value - low) / (top - low))

    def across(value: float) -> float:
        return 2 + 96 * (value - left) / width

    parts = []
    if level is not None:
        parts.append(f'<line x1="0" x2="100%" y1="{high(level[1]):.1f}" y2="{high(level[1]):.1f}" class="reference"/>')
    for x in _ticks(places):
        parts.append(
            f'<text x="{across(x):.2f}%" y="{TOP + HEIGHT + 18}" text-anchor="middle" class="tick">{x:g}</text>'
        )
    for place, line in enumerate(drawn):
        for (x1, y1), (x2, y2) in zip(line.points, line.points[1:], strict=False):
            parts.append(
                f'<line x1="{across(x1):.2f}%" y1="{high(y1):.1f}" x2="{across(x2):.2f}%" y2="{high(y2):.1f}" '
                f'class="curve {kind(place)}"/>'
            )
        colour = kind(place).split()[0]
        for x, y in line.points:
            parts.append(
                f'<circle cx="{across(x):.2f}%" cy="{high(y):.1f}" r="3" fill="currentColor" class="{colour}">'
                f"<title>{escape(line.name)} {x:g}: {_exact(y, shares)}</title></circle>"
            )
    names = curve_legend([line.name for line in drawn], "" if level is None else level[0])
    drawing = framed(title, under, [(high(rung), _short(rung, shares)) for rung in rungs], "".join(parts))
    return f"<div>{names}{drawing}</div>"


def _rungs(values: Sequence[float], shares: bool) -> tuple[float, list[float]]:
    """The lowest value of the drawing, and where its horizontal lines are: shares from the ten per cent below."""
    most = max(values, default=1.0)
    if not shares:
        unit = 1.0
        while most / unit < 5 and unit > 1e-6:  # rungs are whole numbers of the unit
            unit /= 10
        return 0.0, [unit * rung for rung in rungs_up_to(most / unit)]
    low = int(10 * max(0.0, min(values, default=0.0))) / 10
    steps = max(1, -int(-10 * (min(1.0, most) - low) // 1))
    return low, [low + place / 10 for place in range(steps + 1)]


def _ticks(places: Sequence[float]) -> list[float]:
    """At most a dozen of them that are not too near."""
    room = (places[-1] - places[0]) / 16 if places else 0.0
    kept: list[float] = []
    for place in places:
        if not kept or place - kept[-1] >= room:
            kept.append(place)
    return kept


def _short(value: float, shares: bool) -> str:
    if shares:
        return f"{100 * value:.0f} %"
    for unit, text in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g} {text}"
    return f"{value:g}"


def _exact(value: float, shares: bool) -> str:
    return f"{100 * value:.2f} %" if shares else f"{value:.5g}"
