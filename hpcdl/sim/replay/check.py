"""A second replay without Controller, policy package or engine: counts of nodes, and a plain dynamic program.

Where its U and that of the real one differ by more than a little, something between them costs throughput. It follows
the paper literally: at every event the counts that are best by eq. 16 (or equal shares), rescaled at once.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcdl.sim.replay.bound import ReplayBound, mixes
from hpcdl.sim.replay.case import Rates, ReplayCase, ScalingModel
from hpcdl.sim.replay.idle import IdleTrace
from hpcdl.sim.replay.run import BestThroughput
from hpcdl.sim.workload import WorkloadError

POLICIES = ("bftrainer", "equal-share")
OBJECTIVES = ("throughput", "efficiency")
_EPSILON = 0.01
"""Samples: times are not exact enough for fewer."""


@dataclass(slots=True)
class _Trainer:
    number: int
    model: ScalingModel
    rates: Rates
    left: float
    nodes: list[str] = field(default_factory=list)
    stalled_until: float = 0.0

    def step(self, since: float, until: float) -> float:
        """Samples of a time in which nothing happens."""
        seconds = max(0.0, until - max(since, self.stalled_until))
        done = min(self.left, seconds * float(self.rates[len(self.nodes)]))
        self.left -= done
        return done

    def ends_at(self, now: float) -> float:
        rate = float(self.rates[len(self.nodes)])
        return max(now, self.stalled_until) + self.left / rate if rate else math.inf


@dataclass(frozen=True, slots=True)
class CountedReplay:
    """The figures of a replay by counts alone; named as in `Outcome`."""

    U: float
    bound_U: float
    samples: float
    rescale_loss: float
    preemption_loss: float
    decisions: int
    completed: int


def counted(idle: IdleTrace, case: ReplayCase) -> CountedReplay:
    """The replay of a case. WorkloadError: a policy, objective or T_fwd that this does not know."""
    if case.policy not in POLICIES or case.objective not in OBJECTIVES:
        raise WorkloadError(
            f"the check knows the policies {' and '.join(POLICIES)}, and the objectives {' and '.join(OBJECTIVES)}"
        )
    if case.t_fwd_s is None:
        raise WorkloadError("the check needs a number of seconds as T_fwd")
    return _Counting(idle, case, case.t_fwd_s).run()


class _Counting:
    def __init__(self, idle: IdleTrace, case: ReplayCase, t_fwd_s: float) -> None:
        self.idle, self.case, self.t_fwd_s = idle, case, t_fwd_s
        self.now = 0.0
        self.free: dict[str, None] = {}
        self.holder: dict[str, _Trainer] = {}
        self.models: dict[int, ScalingModel] = {}
        self.active: list[_Trainer] = []
        self.admitted: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.samples = self.rescale_loss = self.preemption_loss = 0.0
        self.worth = 0.0  # of the samples, costs taken off, in the unit that the policy aims for
        self.decisions = 0

    def _admit(self) -> None:
        """As many as may be active, of those that have come."""
        case, arrivals = self.case, self.case.arrivals
        while len(self.active) < case.parallel:
            number = len(self.models)
            if arrivals is not None and (number == len(arrivals) or arrivals[number] > self.now):
                return
            model = self.models[number] = case.model_of(number)
            self.admitted[number] = self.now
            self.active.append(_Trainer(number, model, model.rates(case.most), float(case.samples)))

    def run(self) -> CountedReplay:
        idle, case = self.idle, self.case
        joins: dict[float, list[str]] = {}
        leaves: dict[float, list[str]] = {}
        for spell in idle.spells:
            joins.setdefault(spell.from_s, []).append(spell.name)
            leaves.setdefault(spell.until_s, []).append(spell.name)
        due = [0.0, *idle.changes, math.inf]
        come = [*(case.arrivals or ()), math.inf]
        place = coming = 0
        while True:
            ends = (each.ends_at(self.now) for each in self.active)
            until = min(due[place], come[coming], idle.end_s, *ends)
            for each in self.active:
                done = each.step(self.now, until)
                self.samples += done
                self.worth += done / self._unit(each)
            self.now = until
            if until >= idle.end_s:
                break
            while due[place] <= until:
                self._change(joins.get(due[place], []), leaves.get(due[place], []))
                place += 1
            while come[coming] <= until:
                coming += 1
            self._complete()
            self._admit()
            if not self.active and coming == len(come) - 1 and case.arrivals is not None:
                idle = idle.until(until)
                break
            self._decide()
        best = BestThroughput(idle.most, case.fewest, case.most)
        efficient = case.objective == "efficiency"
        models = {number: model.per_node if efficient else model for number, model in self.models.items()}
        yardstick = ReplayBound(idle, best, mixes(models, self.admitted, self.ends))
        total = self.samples - (self.rescale_loss + self.preemption_loss if case.in_paper else 0.0)
        return CountedReplay(
            U=self.worth / yardstick.static,
            bound_U=yardstick.free / yardstick.static,
            samples=total,
            rescale_loss=self.rescale_loss,
            preemption_loss=self.preemption_loss,
            decisions=self.decisions,
            completed=len(self.ends),
        )

    def _change(self, joining: list[str], leaving: list[str]) -> None:
        before = {each.number: len(each.nodes) for each in self.active}
        for node in leaving:
            holder = self.holder.pop(node, None)
            if holder is None:
                del self.free[node]
            else:
                holder.nodes.remove(node)
        self.free.update(dict.fromkeys(joining))
        for each in self.active:
            if len(each.nodes) < before[each.number]:
                self.preemption_loss += self._stall(each, before[each.number], self.case.scale_down_s)
                if not self.case.in_paper:
                    each.stalled_until = max(each.stalled_until, self.now + self.case.scale_down_s)

    def _stall(self, trainer: _Trainer, nodes: int, seconds: float) -> float:
        """What a rescale costs by eq. 16."""
        lost = seconds * float(trainer.rates[nodes])
        if self.case.in_paper:
            self.worth -= lost / self._unit(trainer)
        return lost

    def _unit(self, trainer: _Trainer) -> float:
        return float(trainer.rates[1]) if self.case.objective == "efficiency" else 1.0

    def _complete(self) -> None:
        for each in [each for each in self.active if each.left <= _EPSILON]:
            self._give_up(each, 0)
            self.ends[each.number] = self.now
            self.active.remove(each)

    def _give_up(self, trainer: _Trainer, nodes: int) -> None:
        for node in trainer.nodes[nodes:]:
            del self.holder[node]
            self.free[node] = None
        del trainer.nodes[nodes:]

    def _decide(self) -> None:
        self.decisions += 1
        wanted = self._best() if self.case.policy == "bftrainer" else self._equal()
        before = [len(each.nodes) for each in self.active]
        for each, count, nodes in zip(self.active, before, wanted, strict=True):
            if nodes < count:
                self._give_up(each, nodes)
        for each, count, nodes in zip(self.active, before, wanted, strict=True):
            for _ in range(nodes - count):
                node, _ = self.free.popitem()
                each.nodes.append(node)
                self.holder[node] = each
            if nodes != count:
                seconds = self.case.scale_up_s if nodes > count else self.case.scale_down_s
                self.rescale_loss += self._stall(each, count, seconds)
                if not self.case.in_paper:
                    each.stalled_until = max(each.stalled_until, self.now + seconds)

    def _values(self, trainer: _Trainer) -> NDArray[np.float64]:
        """Eq. 16 for 0 to `most` nodes; -inf where it may not have so many."""
        case, now = self.case, len(trainer.nodes)
        counts = np.arange(case.most + 1)
        seconds = np.where(counts > now, case.scale_up_s, np.where(counts < now, case.scale_down_s, 0.0))
        values: NDArray[np.float64] = self.t_fwd_s * trainer.rates - seconds * trainer.rates[now]
        if case.objective == "efficiency":
            values /= trainer.rates[1]
        values[1 : case.fewest] = -np.inf
        return values

    def _best(self) -> list[int]:
        there = len(self.free) + len(self.holder)
        best, choices = np.zeros(there + 1), []
        for each in self.active:
            values = self._values(each)[: there + 1]
            most = len(values) - 1
            padded = np.concatenate([np.full(most, -np.inf), best])
            sums = np.lib.stride_tricks.sliding_window_view(padded, most + 1)[:, ::-1] + values
            choice = sums.argmax(axis=1)
            best = sums[np.arange(there + 1), choice]
            choices.append(choice)
        left, counts = int(best.argmax()), []
        for choice in reversed(choices):
            counts.append(int(choice[left]))
            left -= counts[-1]
        return counts[::-1]

    def _equal(self) -> list[int]:
        """The first ones get what an equal split leaves over, and the fewest where there is not enough for all."""
        case, there = self.case, len(self.free) + len(self.holder)
        sharers = min(len(self.active), there // case.fewest)
        if not sharers:
            return [0] * len(self.active)
        each, over = divmod(min(there, sharers * case.most), sharers)
        return [each + (place < over) for place in range(sharers)] + [0] * (len(self.active) - sharers)
