"""The tables of the BFTrainer paper, made of the replays of `bftrainer`: as it prints them, means over seeds.

Notes stand in bftrainer.yaml, and what the text prints in printed.yaml.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from hpcdl.sim.idle.table import IdleTable
from hpcdl.sim.intervals import interval
from hpcdl.sim.papers.table import PaperRow, PaperTable, paper_file
from hpcdl.sim.replay.outcome import WINDOW_H
from hpcdl.sim.replay.studies import BEST_T_FWD_S, PARALLEL, PrintedFigure, StudyRow, printed

OBJECTIVES = ("throughput", "efficiency")
MILP, EQUAL = "bftrainer", "equal-share"

POLICIES = "BFTrainer: U of its policies"
T_FWD = "BFTrainer figures 7 to 9: the forward-looking time"
WINDOWS = "BFTrainer figures 10 and 11: six hours at a time"
DIVERSE = "BFTrainer figures 12 and 13: diverse trainers"
RUNTIMES = {"throughput": "BFTrainer table 3: run time, h", "efficiency": "BFTrainer table 4: run time, h"}
FIGURE_14 = "BFTrainer figure 14: the maximum of parallel trainers"
FIGURE_15 = "BFTrainer figure 15: models that scale differently"
FIGURE_16 = "BFTrainer figure 16: dearer rescales"
TEXT = "BFTrainer: what the text prints"
TRACE = "BFTrainer section 2: the trace"

ON_TIME = ("preempted_share", "rescale_cost_per_event", "return_per_event", "return_on_investment")
LOSSES = ("rescale_loss", "preemption_loss")
SHORT_MIN = 10.0
"""Minutes of a short fragment, in figure 1."""

Rows = Sequence[StudyRow]
"""The rows of one replay, one for each seed."""
Studies = Mapping[str, Sequence[Rows]]
"""The replays of each study that did not fail."""
Figure = Callable[[StudyRow], float | None]


def tables_of(studies: Studies, idle: IdleTable, notes: Mapping[str, Sequence[str]]) -> tuple[PaperTable, ...]:
    """All tables. `studies`: those of `hpcdl replay`, and `equal`: the equal split with diverse trainers; `idle`: of
    the trace; `notes`: `trace` and `seeds`, which bftrainer.yaml has not.
    """
    built = {
        POLICIES: ("policies", _policies(studies)),
        T_FWD: ("t_fwd", _t_fwds(studies)),
        WINDOWS: ("windows", _windows(studies)),
        DIVERSE: ("diverse", _diverse(studies)),
        RUNTIMES["throughput"]: ("runtimes", _runtimes(studies, "throughput")),
        RUNTIMES["efficiency"]: ("runtimes", _runtimes(studies, "efficiency")),
        FIGURE_14: ("figure14", _figure_14(studies)),
        FIGURE_15: ("scale", _single(studies, "scale", "model", "{}")),
        FIGURE_16: ("costs", _single(studies, "costs", "factor", "{} times")),
        TEXT: ("text", _text(studies)),
        TRACE: ("trace", _trace(idle)),
    }
    file = paper_file("bftrainer")
    shared = {**file["shared"], **notes}
    found = []
    for name, (part, rows) in built.items():
        own = file["tables"][part]
        said = (*(text for key in own["shared"] for text in shared[key]), *own["notes"])
        found.append(PaperTable(name, tuple(rows), said))
    return tuple(found)


def place_of(figure: PrintedFigure) -> tuple[str, str, str, str]:
    """Which figure of ours is about a printed one: table, workload, policy and key."""
    at = "" if figure.at is None else f"{figure.at:g}"
    if figure.figure == "runtime_h":
        return RUNTIMES[figure.objective], figure.model, MILP, f"h_at_{at}"
    if figure.figure == "used_share":
        return TEXT, f"node time used by {at} trainers", MILP, "value"
    if figure.study == "scale":
        return FIGURE_15, figure.model, MILP, figure.figure
    return T_FWD, _horizon(figure.policy, figure.at), figure.policy, figure.figure


def _horizon(policy: str, t_fwd_s: float | None) -> str:
    if policy == EQUAL:
        return "equal split"
    return "T_fwd adaptive" if t_fwd_s is None else f"T_fwd {t_fwd_s:g} s"


# --- rows ------------------------------------------------------------------------------------------------------------


def _of(studies: Studies, study: str, **label: Any) -> Rows:
    """The rows of the replay with this label; none where it failed."""
    return next((rows for rows in studies.get(study, ()) if label.items() <= rows[0].label.items()), ())


def _figures(rows: Rows, figures: Mapping[str, Figure]) -> dict[str, float]:
    """Means over the seeds by key, each with half its 95 % interval where there are several."""
    found = {}
    for key, figure in figures.items():
        values = [value for value in map(figure, rows) if value is not None]
        if values:
            found[key], half = interval(values)
            if len(values) > 1:
                found[f"{key}_ci95"] = half
    return found


def _own(*keys: str) -> dict[str, Figure]:
    """Figures of the replay by their names."""
    return {key: partial(_own_figure, key) for key in keys}


def _own_figure(key: str, row: StudyRow) -> float | None:
    value: float | None = row.figures[key] if key in row.figures else row.more[key]
    return value


def _row(workload: str, policy: str, more: Mapping[str, Any], paper: Mapping[str, Any] | None = None) -> PaperRow:
    return PaperRow(workload, policy, math.nan, math.nan, more, paper or {})


def _policies(studies: Studies) -> Iterator[PaperRow]:
    figures = _own("U", "bound_U") | {"of_bound": lambda row: row.figures["U"] / row.figures["bound_U"]}
    for policy in (MILP, EQUAL):
        rows = _t_fwd(studies, policy)
        if rows:
            yield _row("ShuffleNet, throughput", policy, _figures(rows, figures), _printed(rows, "U"))
    for objective in OBJECTIVES:
        for policy, study, label in ((MILP, "diverse", {"t_fwd_s": BEST_T_FWD_S}), (EQUAL, "equal", {})):
            rows = _of(studies, study, objective=objective, **label)
            if rows:
                yield _row(f"diverse, {objective}", policy, _figures(rows, figures))


def _t_fwd(studies: Studies, policy: str, t_fwd_s: float | None = BEST_T_FWD_S) -> Rows:
    return _of(studies, "t-fwd", policy=policy, t_fwd_s=t_fwd_s if policy == MILP else None)


def _printed(rows: Rows, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in rows[0].paper.items() if key in keys}


def _t_fwds(studies: Studies) -> Iterator[PaperRow]:
    for rows in studies.get("t-fwd", ()):
        policy = str(rows[0].label["policy"])
        keys = ("U", "bound_U", *(key for key in ON_TIME if policy == MILP or key != "preempted_share"))
        workload = _horizon(policy, rows[0].label["t_fwd_s"])
        yield _row(workload, policy, _figures(rows, _own(*keys)), _printed(rows, *keys))


def _windows(studies: Studies) -> Iterator[PaperRow]:
    for policy in (MILP, EQUAL):
        rows = _t_fwd(studies, policy)
        for window in rows[0].figures["windows"] if rows else ():
            more = {key: window[key] for key in ("U", "idle_nodes", *LOSSES)}
            yield _row(f"{window['from_h']:g} to {window['until_h']:.4g} h", policy, more)


def _diverse(studies: Studies) -> Iterator[PaperRow]:
    for rows in studies.get("diverse", ()):
        models = rows[0].more["active_h"]
        hours: dict[str, Figure] = {f"{name}_h": _active(name) for name in models}
        label = f"{rows[0].label['objective']}, T_fwd {rows[0].label['t_fwd_s']:g} s"
        yield _row(label, MILP, _figures(rows, _own("U", "bound_U") | hours))


def _active(model: str) -> Figure:
    return lambda row: row.more["active_h"].get(model)


def _runtimes(studies: Studies, objective: str) -> Iterator[PaperRow]:
    by_parallel = {many: _of(studies, "parallel", objective=objective, parallel=many) for many in PARALLEL}
    models = dict.fromkeys(name for rows in by_parallel.values() for row in rows for name in row.more["active_h"])
    for model in models:
        more: dict[str, float] = {}
        paper: dict[str, float] = {}
        for many, rows in by_parallel.items():
            more |= _figures(rows, {f"h_at_{many}": _active(model)})
            theirs = rows[0].paper.get("runtime_h", {}).get(model) if rows else None
            paper |= {} if theirs is None else {f"h_at_{many}": theirs}
        yield _row(model, MILP, more, paper)


def _mean_active(row: StudyRow) -> float | None:
    return fmean(row.more["active_h"].values()) if row.more["active_h"] else None


def _figure_14(studies: Studies) -> Iterator[PaperRow]:
    for rows in studies.get("parallel", ()):
        figures = _own("U", "bound_U", "used_share", "hours", "node_hours") | {"active_h": _mean_active}
        workload = f"{rows[0].label['objective']}, {rows[0].label['parallel']} trainers"
        yield _row(workload, MILP, _figures(rows, figures))


def _single(studies: Studies, study: str, key: str, words: str) -> Iterator[PaperRow]:
    """Studies of which only U is shown."""
    for rows in studies.get(study, ()):
        figures = _figures(rows, _own("U", "bound_U"))
        yield _row(words.format(rows[0].label[key]), MILP, figures, _printed(rows, "U"))


def _trace(idle: IdleTable) -> Iterator[PaperRow]:
    shares = idle.shorter_than(SHORT_MIN) or (None, None)
    more = {
        "hours": idle.hours,
        "idle_nodes": idle.equivalent_nodes,
        "node_hours": idle.idle_node_hours,
        "joins_per_h": idle.inc_per_hour,
        "leaves_per_h": idle.dec_per_hour,
        "short_share": shares[0],
        "short_share_of_node_time": shares[1],
    }
    yield _row("all of it", "any", more)


# --- what the text prints --------------------------------------------------------------------------------------------


def _text(studies: Studies) -> Iterator[PaperRow]:
    groups = [group for group in paper_file("printed")["BFTrainer"] if group.get("table") == TEXT]
    paper = {name: value for group in groups for name, value in group["printed"].items()}
    paper |= {place_of(each)[1]: each.value for each in printed() if each.figure == "used_share"}
    for name, value in (_against_equal(studies) | _of_trainers(studies)).items():
        if value is not None:
            yield _row(name, MILP, {"value": value}, {"value": paper[name]} if name in paper else None)


def _against_equal(studies: Studies) -> dict[str, float | None]:
    """What section 5.1 says of ten ShuffleNets, beside the equal split."""
    ours, equal, shortest = _t_fwd(studies, MILP), _t_fwd(studies, EQUAL), _t_fwd(studies, MILP, 10.0)
    found: dict[str, float | None] = {}
    if ours:
        windows = _six_hours(ours)
        found["U of six hours, the largest"] = max(windows, default=None)
        found["a decision, s"] = max(rows[0].more["decide_s"] for rows in studies["t-fwd"])
    if equal and shortest:
        costs = (rows[0].figures["rescale_cost_per_event"] for rows in (equal, shortest))
        dear, cheap = costs
        found["rescale cost, equal split over T_fwd 10 s"] = dear / cheap if cheap else None
    if ours and equal:
        pairs = zip(windows, _six_hours(equal), strict=True)
        found["U of six hours, largest gain"] = max(
            (one / other - 1 for one, other in pairs if other > 0), default=None
        )
        found |= _by_event(*(np.array(rows[0].more["event_samples"]) for rows in (ours, equal)))
    return found


def _six_hours(rows: Rows) -> list[float]:
    """U of the windows that are whole."""
    windows = rows[0].figures["windows"]
    return [window["U"] for window in windows if window["until_h"] - window["from_h"] > WINDOW_H - 1e-6]


def _by_event(ours: Any, equal: Any) -> dict[str, float | None]:
    """Samples between two events, costs taken off. At least twice as many need some of ours, and more than theirs."""
    better = (ours > 0) & (ours > equal)
    made = equal > 0
    return {
        "events, worse": float(np.mean(ours < equal)),
        "events, twice as good": float(np.mean(better & (ours >= 2 * equal))),
        "events, five times": float(np.mean(better & (ours >= 5 * equal))),
        "events, mean speed-up": float(np.mean(ours[made] / equal[made])) if made.any() else None,
    }


def _of_trainers(studies: Studies) -> dict[str, float | None]:
    """What sections 1 and 5.3 say of diverse trainers: 35 in parallel against 5, and which model is kept waiting."""
    found: dict[str, float | None] = {}
    for many in (5, 10):
        rows = [row for objective in OBJECTIVES for row in _of(studies, "parallel", objective=objective, parallel=many)]
        if rows:
            found[f"node time used by {many} trainers"] = fmean(row.figures["used_share"] for row in rows)
    few, lots = (_of(studies, "parallel", objective="efficiency", parallel=many) for many in (5, 35))
    if few and lots:
        node_hours = [fmean(row.more["node_hours"] for row in rows) for rows in (lots, few)]
        found["35 trainers against 5, node-hours less by"] = 1 - node_hours[0] / node_hours[1]
        found["35 trainers against 5, run time more by"] = _ratio(lots, few, _mean_active, less=1)
        for model in ("AlexNet", "VGG-16"):
            found[f"35 trainers against 5, run time of {model}"] = _ratio(lots, few, _active(model))
    slow = [
        _ratio(rows, rows, _active("DenseNet"), _active("AlexNet"))
        for rows in studies.get("parallel", ())
        if rows[0].label["objective"] == "throughput"
    ]
    found["run time of DenseNet over AlexNet's, the most"] = max(
        (each for each in slow if each is not None), default=None
    )
    every = [rows for study in ("diverse", "parallel") for rows in studies.get(study, ())]
    found["U of a replay, the largest"] = max((_figures(rows, _own("U"))["U"] for rows in every), default=None)
    return found


def _ratio(above: Rows, below: Rows, figure: Figure, other: Figure | None = None, less: float = 0.0) -> float | None:
    """A mean over seeds over another one, less a number."""
    values = (_figures(above, {"": figure}).get(""), _figures(below, {"": other or figure}).get(""))
    return None if values[0] is None or not values[1] else values[0] / values[1] - less
