"""The figures of a replay: U (eq. 18), its bound, and what rescales and preemptions cost.

`run` carries the replay out, `timeline` reads its records, `bound` has the yardsticks. docs/replay.md defines
the figures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.milp import Reallocation
from hpcdl.milp.counting import CountedNodes, Counting, MilpCounts
from hpcdl.policies import all_policies
from hpcdl.sim.engine import rare_collections
from hpcdl.sim.replay.bound import ReplayBound, yardstick_of
from hpcdl.sim.replay.case import ReplayCase
from hpcdl.sim.replay.idle import HOUR_S, IdleTrace
from hpcdl.sim.replay.run import ReplayRun, Told, run
from hpcdl.sim.replay.timeline import NodeChange, NodeHolding
from hpcdl.solver import ElasticTrainer

MILP_LIMIT_S = 60.0
"""Seconds of a solver's time in a replay. Its nodes of branch and bound end it before, the same on every machine."""

WINDOW_H = 6.0
"""Hours of a window of figure 10."""


_CASE_KEYS = ("parallel", "scale_up_s", "scale_down_s", "t_fwd_s", "accounting", "objective", "milp_solver")
_WINDOW_KEYS = ("from_h", "until_h", "idle_nodes", "U", "rescale_loss", "preemption_loss")
"""What `hpcdl replay --json` says of the case, and of each window, as it is."""


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """A part of the time, in hours. `static`: A_s of it; the others as in Outcome."""

    from_h: float
    until_h: float
    idle_nodes: float
    samples: float
    static: float
    rescale_loss: float
    preemption_loss: float

    @property
    def U(self) -> float:
        """A_e / A_s of the window; 0 where no node was idle."""
        return self.samples / self.static if self.static else 0.0


@dataclass(frozen=True, slots=True)
class MilpTally:
    """How often a solver was asked, and how often the exact counts decided instead, and why."""

    solves: int
    exact: int
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one replay. `samples` is A_e, `static` A_s, `free` what rescaling without cost would give at most.

    `rescale_loss`: samples that rescales cost which the policy chose, starts included; `preemption_loss`: those that it
    was forced to because nodes left. `held`: what the nodes that trainers held would have done without both, so that
    samples = held - rescale_loss - preemption_loss. `invested`: sum of R x f(C) over the policy's rescales (eq. 16), in
    either accounting. `by_efficiency`: U and its bound where a sample counts as the seconds that its model needs for it
    on one node (the paper's scaling efficiency), None if that is the same. `runtime_h`: by model, mean hours from the
    first start to the end of the trainers that finished; `active_h`: from when they became one of the active ones.
    `event_samples`: between two changes of the nodes, in the unit that the policy aimed for, from the begin to the end.
    `used_share`: of idle node-hours, those that some trainer held; `used`: from when on how many nodes were. `milp`: of
    the solver of mixed integer programs, None where none was asked.
    """

    case: ReplayCase
    idle: IdleTrace
    static: float
    free: float
    samples: float
    held: float
    rescale_loss: float
    preemption_loss: float
    invested: float
    rescales: int
    preemptions: int
    completed: int
    runtime_h: Mapping[str, float]
    active_h: Mapping[str, float]
    used_share: float
    used: tuple[tuple[float, ...], tuple[int, ...]]
    windows: tuple[ReplayWindow, ...]
    event_samples: tuple[float, ...]
    preempted_at: tuple[float, ...]
    problems: tuple[str, ...]
    by_efficiency: tuple[float, float] | None = None
    decide_s: tuple[float, ...] = field(compare=False, default=())
    milp: MilpTally | None = None

    @property
    def by_samples(self) -> tuple[float, float]:
        """A_e / A_s and its bound, where a sample is a sample whatever it is of."""
        return self.samples / self.static, self.free / self.static

    @property
    def U(self) -> float:
        """A_e / A_s, in the unit that the policy aimed for: samples, or by efficiency."""
        return self._measured[0]

    @property
    def bound_U(self) -> float:
        """The most that any policy can reach: with all foresight, and rescales that cost nothing."""
        return self._measured[1]

    @property
    def _measured(self) -> tuple[float, float]:
        if self.case.objective == "efficiency" and self.by_efficiency is not None:
            return self.by_efficiency
        return self.by_samples

    @property
    def node_hours_per_trainer(self) -> float | None:
        """Held for as many samples as a trainer has to do (figure 14a shows it for 1,000 of them)."""
        return self.idle.node_hours * self.used_share * self.case.samples / self.samples if self.samples > 0 else None

    def preempted_share(self, seconds: float) -> float:
        """The share of the trace's events that are followed by a preemption within so many seconds (figure 7a)."""
        if not self.idle.changes:
            return 0.0
        events, hits = np.array(self.idle.changes), np.array(self.preempted_at)
        after = np.searchsorted(hits, events, side="right")
        found = after < len(hits)
        return (
            float(np.mean(found & (hits[np.minimum(after, len(hits) - 1)] <= events + seconds))) if len(hits) else 0.0
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values: what `hpcdl replay --json` answers with."""
        case, events = self.case, max(1, len(self.idle.changes))
        p50, p99 = (self.decide_ms(share) for share in (0.5, 0.99))
        return {
            "U": self.U,
            "bound_U": self.bound_U,
            "events": len(self.idle.changes),
            "decisions": {"count": len(self.decide_s), "p50_ms": p50, "p99_ms": p99},
            "samples": self.samples,
            "rescale_loss": self.rescale_loss,
            "preemption_loss": self.preemption_loss,
            "static_samples": self.static,
            "free_samples": self.free,
            "by_efficiency": dict(zip(("U", "bound_U"), self.by_efficiency or self.by_samples, strict=True)),
            "by_samples": dict(zip(("U", "bound_U"), self.by_samples, strict=True)),
            "policy": case.policy,
            "models": [model.name for model in case.models],
            **{key: getattr(case, key) for key in _CASE_KEYS},
            "hours": self.idle.end_s / HOUR_S,
            "idle_nodes": self.idle.mean,
            "node_hours": self.idle.node_hours,
            "used_share": self.used_share,
            "completed": self.completed,
            "rescales": self.rescales,
            "preemptions": self.preemptions,
            "rescale_cost_per_event": self.invested / events,
            "return_per_event": self.samples / events,
            "return_on_investment": self.samples / self.invested if self.invested else None,
            "node_hours_per_trainer": self.node_hours_per_trainer,
            "preempted_share": None if case.t_fwd_s is None else self.preempted_share(case.t_fwd_s),
            "milp": None if self.milp is None else asdict(self.milp),
            "runtime_h": dict(self.runtime_h),
            "problems": list(self.problems),
            "windows": [{key: getattr(each, key) for key in _WINDOW_KEYS} for each in self.windows],
        }

    def decide_ms(self, share: float) -> float:
        """Milliseconds that this share of the decisions did not exceed; 0 of none."""
        return 1e3 * float(np.quantile(self.decide_s, share, method="higher")) if self.decide_s else 0.0


class _Sum:
    """Samples by any time, of rates that come and go."""

    def __init__(self, pieces: Iterable[tuple[float, float, float]]) -> None:
        """`pieces`: (begin, end, samples/s)."""
        listed = np.array([*pieces], dtype=float).reshape(-1, 3)
        times = np.concatenate([listed[:, 0], listed[:, 1]])
        change = np.concatenate([listed[:, 2], -listed[:, 2]])
        order = np.argsort(times, kind="stable")
        self._times = np.concatenate([[0.0], times[order]])
        rates = np.concatenate([[0.0], np.cumsum(change[order])])
        self._sums = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(self._times))])

    def between(self, marks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Samples from each mark to the next one."""
        return np.diff(np.interp(marks, self._times, self._sums))


def outcome_of(idle: IdleTrace, case: ReplayCase, ran: ReplayRun, window_h: float = WINDOW_H) -> Outcome:
    """The figures of a replay. Raises WorkloadError where the trace has no idle node-time to measure by."""
    found = _outcome_of(idle, case, ran, window_h)
    if len({model.name for model in ran.models.values()}) == 1:
        return found
    done = {number: samples / ran.models[number].points[0][1] for number, samples in ran.done.items()}
    models = {number: model.per_node for number, model in ran.models.items()}
    other = _outcome_of(idle, case, replace(ran, models=models, done=done), window_h)
    aimed = other if case.objective == "efficiency" else found  # in the unit that the policy aimed for
    return replace(found, by_efficiency=other.by_samples, windows=aimed.windows, event_samples=aimed.event_samples)


def _outcome_of(idle: IdleTrace, case: ReplayCase, ran: ReplayRun, window_h: float) -> Outcome:
    rates = {number: model.rates(case.most) for number, model in ran.models.items()}
    stays, rescales = ran.timeline.stays, ran.timeline.rescales

    def rate(stay: NodeHolding) -> float:
        return float(rates[stay.job][stay.nodes])

    def cost(rescale: NodeChange) -> tuple[float, float]:
        forced_s, planned_s = rescale.cost_s(case.scale_up_s, case.scale_down_s)
        curve = rates[rescale.job]
        return forced_s * float(curve[rescale.before]), planned_s * float(curve[rescale.kept])

    measured = yardstick_of(idle, case, ran)
    marks = _marks(idle.end_s, window_h)
    held = _Sum((stay.begin, stay.end, rate(stay)) for stay in stays)
    trained = _Sum((stay.begin, stay.end, rate(stay)) for stay in stays if stay.trains)
    costs = [(each.at, *cost(each)) for each in rescales]
    events = np.array([0.0, *idle.changes, idle.end_s])
    event_samples = trained.between(events)
    invested = sum(planned for _, _, planned in costs)
    done, all_held = sum(ran.done.values()), float(held.between(np.array([0.0, idle.end_s]))[0])
    if case.in_paper:
        event_samples = event_samples - sum(_in_windows(events, costs))
        forced, planned = _in_windows(marks, costs)
        samples = trained.between(marks) - forced - planned
        total, rescale_loss = done - sum(forced) - sum(planned), sum(planned)
    else:
        forced = _Sum((each.begin, each.end, rate(each)) for each in stays if each.forced).between(marks)
        planned = held.between(marks) - trained.between(marks) - forced
        samples, total, rescale_loss = trained.between(marks), done, sum(planned)
    return Outcome(
        case=case,
        idle=idle,
        static=measured.static,
        free=measured.free,
        samples=float(total),
        held=all_held,
        rescale_loss=float(rescale_loss),
        preemption_loss=max(0.0, float(all_held - total - rescale_loss)),
        invested=invested,
        rescales=sum(each.after != each.kept for each in rescales),
        preemptions=sum(each.kept < each.before for each in rescales),
        completed=len(ran.timeline.ends),
        runtime_h=_hours(ran, {number: ended - began for number, (began, ended) in ran.timeline.ends.items()}),
        active_h=_hours(ran, {number: at - ran.admitted[number] for number, (_, at) in ran.timeline.ends.items()}),
        used_share=_used_share(stays, idle),
        used=_used(stays),
        windows=_windows(marks, measured, samples, planned, forced),
        event_samples=tuple(event_samples.tolist()),
        preempted_at=tuple(sorted({each.at for each in rescales if each.kept < each.before})),
        problems=ran.problems,
        decide_s=ran.decide_s,
    )


def _marks(end_s: float, window_h: float) -> NDArray[np.float64]:
    """Where windows begin and end."""
    return np.append(np.arange(0.0, end_s * (1 - 1e-9), window_h * HOUR_S), end_s)


def _in_windows(
    marks: NDArray[np.float64], costs: Sequence[tuple[float, float, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Forced and planned costs in each window."""
    listed = np.array(costs, dtype=float).reshape(-1, 3)
    forced, _ = np.histogram(listed[:, 0], marks, weights=listed[:, 1])
    planned, _ = np.histogram(listed[:, 0], marks, weights=listed[:, 2])
    return forced, planned


def _windows(
    marks: NDArray[np.float64],
    measured: ReplayBound,
    samples: NDArray[np.float64],
    planned: NDArray[np.float64],
    forced: NDArray[np.float64],
) -> tuple[ReplayWindow, ...]:
    found = []
    for place, (begin, end) in enumerate(pairwise(marks)):
        idle_nodes, static = measured.of(float(begin), float(end))
        figures = (float(each[place]) for each in (planned, forced))
        window = ReplayWindow(begin / HOUR_S, end / HOUR_S, idle_nodes, float(samples[place]), static, *figures)
        found.append(window)
    return tuple(found)


def _hours(ran: ReplayRun, seconds: Mapping[int, float]) -> dict[str, float]:
    """The mean by model of what these trainers took, in hours."""
    listed: dict[str, list[float]] = {}
    for number, took in seconds.items():
        listed.setdefault(ran.models[number].name, []).append(took / HOUR_S)
    names = dict.fromkeys(model.name for model in ran.models.values())
    return {name: fmean(listed[name]) for name in names if name in listed}


def _used_share(stays: Sequence[NodeHolding], idle: IdleTrace) -> float:
    held_s = sum(stay.nodes * (stay.end - stay.begin) for stay in stays)
    return held_s / (idle.mean * idle.end_s) if idle.mean else 0.0


def _used(stays: Sequence[NodeHolding]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    net: dict[float, int] = {0.0: 0}
    for stay in stays:
        net[stay.begin] = net.get(stay.begin, 0) + stay.nodes
        net[stay.end] = net.get(stay.end, 0) - stay.nodes
    times = sorted(net)
    return tuple(times), tuple(int(count) for count in np.cumsum([net[at] for at in times]))


def replayed(idle: IdleTrace, case: ReplayCase, progress: Told | None = None, window_h: float = WINDOW_H) -> Outcome:
    """What the case comes to on the trace, in windows of so many hours. `progress`: is called with the simulated hours
    now and then.

    With arrivals it is over when the last trainer is done, and the outcome is of the time until then.
    The same arguments give the same outcome, decision times aside. WorkloadError: it cannot run on that trace.
    """
    milp = None if case.milp_solver == "exact" else MilpCounts(case.milp_solver, MILP_LIMIT_S)
    settings = Reallocation(t_fwd_s=case.t_fwd_s, parallel=case.parallel)
    policies = all_policies(settings, counting=None if milp is None else _untold(milp))
    with rare_collections():
        ran = run(idle, case, policies, progress)
        found = outcome_of(idle.until(ran.end_s), case, ran, window_h)
    return found if milp is None else replace(found, milp=MilpTally(milp.solves, milp.exact, milp.troubles))


def _untold(milp: MilpCounts) -> Counting:
    """Its troubles are no problems of the replay: the outcome has them."""

    def counted(trainers: Sequence[ElasticTrainer], capacities: Sequence[int]) -> CountedNodes:
        return replace(milp(trainers, capacities), trouble="")

    return counted
