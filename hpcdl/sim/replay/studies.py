"""The studies of BFTrainer's section 5: replays that differ in one value, beside what the paper prints.

The printed figures are in conf/workloads/bftrainer_printed.csv.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from hpcdl.config.layers import conf_folder
from hpcdl.sim.parallel import Progress, in_processes
from hpcdl.sim.readers.source import number, read_values, word
from hpcdl.sim.replay.case import ReplayCase, ScalingModel
from hpcdl.sim.replay.idle import HOUR_S, IdleTrace, idle_of
from hpcdl.sim.replay.outcome import replayed
from hpcdl.solver import prepare

_COLUMNS = dict.fromkeys(("where", "policy", "objective", "model", "at", "figure"), word()) | {"value": number()}
_STUDY = {"7": "t-fwd", "9": "t-fwd", "10": "t-fwd", "15": "scale"}


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """A figure of conf/workloads/bftrainer_printed.csv: `where` in the paper, for which `study` of ours.

    Blank: not said, or of all.
    """

    where: str
    study: str
    policy: str
    objective: str
    model: str
    at: float | None
    figure: str
    value: float


@lru_cache(maxsize=1)
def printed() -> tuple[PrintedFigure, ...]:
    """All figures that the paper prints."""
    path = conf_folder() / "workloads" / "bftrainer_printed.csv"
    found = []
    for place, (where, policy, objective, model, at, figure, value) in read_values(path, _COLUMNS):
        kind, _, label = where.partition(" ")
        study = _STUDY.get(label.rstrip("abc"), "parallel") if kind == "Figure" else "parallel"
        where_at = place.number("at", at) if at else None
        found.append(PrintedFigure(where, study, policy, objective, model, where_at, figure, value))
    return tuple(found)


T_FWDS = (10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 170.0, 200.0, 240.0, 300.0)

FEW_T_FWDS = (20.0, 60.0, 120.0, 300.0)

PARALLEL = (5, 10, 15, 20, 25, 30, 35)

FACTORS = (1, 2, 3, 4, 6, 8, 10)

SCALE_HOURS = 60.0
"""As in section 5.4.1: the first hours of the trace."""

BEST_T_FWD_S = 120.0

_KEPT = (
    "U", "bound_U", "by_efficiency", "rescale_cost_per_event", "return_per_event", "return_on_investment",
    "preempted_share", "rescale_loss", "preemption_loss", "used_share", "node_hours_per_trainer", "completed",
    "rescales", "preemptions", "samples", "runtime_h",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StudyReplay:
    """A replay of a study. `label`: what is special about it; `hours`: only so many, None: all of the trace."""

    label: Mapping[str, Any]
    case: ReplayCase
    hours: float | None = None
    windows: bool = False


@dataclass(frozen=True, slots=True)
class StudyRow:
    """`label`: what the replay is of; `figures`: ours, named as in Outcome.to_json; `paper`: what it prints of them.

    `more`: what only the tables of the paper show, by the names of Outcome: `active_h`, `event_samples`, `hours` and
    `node_hours` of the replay, and `decide_s`, seconds that 99 of 100 decisions did not exceed.
    """

    label: Mapping[str, Any]
    figures: Mapping[str, Any]
    paper: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.label, **self.figures, "paper": dict(self.paper)}


@dataclass(frozen=True, slots=True)
class Study:
    """A study: its rows, and notes on what is compared."""

    name: str
    title: str
    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rows = [row.to_json() for row in self.rows]
        return {"study": self.name, "title": self.title, "rows": rows, "notes": list(self.notes)}


def t_fwds(base: ReplayCase, models: Sequence[ScalingModel]) -> list[StudyReplay]:
    """Figures 7 to 11: horizons of the optimisation, and the equal split, which has none."""
    cases = [
        StudyReplay({"policy": "bftrainer", "t_fwd_s": seconds}, replace(base, policy="bftrainer", t_fwd_s=seconds))
        for seconds in (*T_FWDS, None)
    ]
    cases = [replace(each, windows=each.case.t_fwd_s == BEST_T_FWD_S) for each in cases]
    equal = replace(base, policy="equal-share", t_fwd_s=BEST_T_FWD_S)
    return [*cases, StudyReplay({"policy": "equal-share", "t_fwd_s": None}, equal, windows=True)]


def diverse(base: ReplayCase, models: Sequence[ScalingModel]) -> list[StudyReplay]:
    """Figures 12 and 13: all models in turn, under both objectives."""
    return [
        StudyReplay(
            {"objective": objective, "t_fwd_s": seconds},
            replace(base, models=tuple(models), objective=objective, t_fwd_s=seconds),
        )
        for objective in ("throughput", "efficiency")
        for seconds in FEW_T_FWDS
    ]


def parallel(base: ReplayCase, models: Sequence[ScalingModel]) -> list[StudyReplay]:
    """Tables 3 and 4, figure 14: how many trainers are active."""
    return [
        StudyReplay(
            {"objective": objective, "parallel": many},
            replace(base, models=tuple(models), objective=objective, parallel=many),
        )
        for objective in ("throughput", "efficiency")
        for many in PARALLEL
    ]


def scale(base: ReplayCase, models: Sequence[ScalingModel]) -> list[StudyReplay]:
    """Figure 15: each model by itself."""
    return [StudyReplay({"model": model.name}, replace(base, models=(model,)), SCALE_HOURS) for model in models]


def costs(base: ReplayCase, models: Sequence[ScalingModel]) -> list[StudyReplay]:
    """Figure 16: dearer rescales."""
    up_s, down_s = base.scale_up_s, base.scale_down_s
    return [
        StudyReplay({"factor": factor}, replace(base, scale_up_s=factor * up_s, scale_down_s=factor * down_s))
        for factor in FACTORS
    ]


_Plan = Callable[[ReplayCase, Sequence[ScalingModel]], list[StudyReplay]]

_T_FWD = (
    "preempted_share: events of the trace that are followed by a preemption within T_fwd (figure 7a). "
    "rescale_cost_per_event: samples of R x f(C) for the rescales that the policy chose (figure 7b). "
    "return_on_investment: samples for one of them (figure 8)."
)

_DIVERSE = (
    "U counts samples, whatever they are of; U by efficiency counts each as the time that one node needs for it, "
    "which is what the objective efficiency aims for."
)

_PARALLEL = (
    "Mean hours from the first start of a trainer to its end, of those that ended. The paper's 1,000 trainers arrive "
    "by a Poisson process; here the queue never ends."
)

_SCALE = f"The first {SCALE_HOURS:g} hours, as in the paper."

STUDIES: dict[str, tuple[str, _Plan, str]] = {
    "t-fwd": ("The forward-looking time (figures 7 to 11)", t_fwds, _T_FWD),
    "diverse": ("Diverse trainers under both objectives (figures 12 and 13)", diverse, _DIVERSE),
    "parallel": ("The maximum of parallel trainers (Tables 3 and 4, figure 14)", parallel, _PARALLEL),
    "scale": ("Models that scale differently (figure 15)", scale, _SCALE),
    "costs": ("Dearer rescales (figure 16)", costs, "Both costs are multiplied."),
}
"""Study -> title, its replays, what is to be known about them."""


def studied(
    names: Sequence[str],
    idle: IdleTrace,
    base: ReplayCase,
    models: Sequence[ScalingModel],
    progress: Progress | None = None,
) -> tuple[tuple[Study, ...], tuple[str, ...]]:
    """These studies, and what went wrong, one line each. `base`: what does not differ; `models`: of the diverse ones.

    `progress`: see `in_processes`.
    """
    planned = {
        f"{name}, {words(each.label)}": (name, idle, each) for name in names for each in STUDIES[name][1](base, models)
    }
    made, problems = rows_of(planned, progress)
    found = []
    for name in names:
        title, _, note = STUDIES[name]
        rows = [made[key] for key, (of, _, _) in planned.items() if of == name and key in made]
        found.append(Study(name, title, tuple(rows), (note,)))
    return tuple(found), problems


def rows_of(
    planned: Mapping[str, tuple[str, IdleTrace, StudyReplay]], progress: Progress | None = None
) -> tuple[dict[str, StudyRow], tuple[str, ...]]:
    """The rows of replays by name, each (study, trace, replay), beside what the paper prints; and what went wrong."""
    say = progress or (lambda _: None)
    say(f"{len(planned)} replays")
    made, problems = in_processes({key: partial(_row, *each) for key, each in planned.items()}, say)
    problems += [f"{key}: {text}" for key, row in made.items() for text in row.figures["problems"]]
    return made, tuple(problems)


def _row(study: str, idle: IdleTrace, planned: StudyReplay) -> StudyRow:
    if planned.hours is not None and planned.hours * HOUR_S < idle.end_s:
        idle = idle_of(idle.spells, planned.hours)
    prepare()
    outcome = replayed(idle, planned.case)
    values = outcome.to_json()
    figures = {key: values[key] for key in (*_KEPT, "problems")}
    if planned.windows:
        figures["windows"] = values["windows"]
    more = {
        "active_h": dict(outcome.active_h),
        "hours": values["hours"],
        "node_hours": values["node_hours"],
        "decide_s": values["decisions"]["p99_ms"] / 1e3,
        "event_samples": outcome.event_samples if planned.windows else (),
    }
    return StudyRow(planned.label, figures, _paper(study, planned, printed()), more)


def words(label: Mapping[str, Any]) -> str:
    """A label of a replay on one line."""
    return ", ".join(f"{key} {'adaptive' if value is None else value}" for key, value in label.items())


def _paper(name: str, planned: StudyReplay, known: Sequence[PrintedFigure]) -> dict[str, Any]:
    """What the paper prints for a replay, by the keys of the figures."""
    case, found = planned.case, dict[str, Any]()
    at = case.parallel if name == "parallel" else case.t_fwd_s
    for each in known:
        if each.policy != case.policy or each.study != name:
            continue
        # Trainers that are all alike do the same under both objectives.
        other = len(case.models) > 1 and each.objective not in ("", case.objective)
        if other or (each.at is not None and each.at != at):
            continue
        if each.figure == "runtime_h":
            found.setdefault("runtime_h", {})[each.model] = each.value
        elif len(case.models) > 1 or each.model == case.models[0].name:
            found[each.figure] = each.value
    return found
