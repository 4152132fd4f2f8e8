"""The replay itself: the simulator with the daemon's own Controller, and a queue of trainers.

Also F(N), the most that trainers can do on N nodes: the measure of `bound`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.plan import Learn, Policies
from hpcdl.core.model.profile import Observations, Profile
from hpcdl.core.model.world import JobState
from hpcdl.estimators.scaling import learner, with_times
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import Simulation
from hpcdl.sim.replay.case import Rates, ReplayCase, ScalingModel
from hpcdl.sim.replay.idle import HOUR_S, IdleTrace
from hpcdl.sim.replay.timeline import Timeline, timeline_of
from hpcdl.sim.workload import SimJob, Workload, check_fits

NOTHING_LOST_S = 1e-6
"""Seconds between two checkpoints of a trainer: what it has trained is not lost with its nodes, as in the paper."""

PROGRESS_S, FIRST_PROGRESS_S = 10.0, 2.0
"""Seconds between two reports of a trainer where the daemon learns from them, and until the first one on other nodes:
as agents report."""

Told = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A replay under the Controller. `models`: of the jobs by id, in the order of the queue; `done`: samples of each.

    `admitted`: since when each is one of the active ones; `end_s`: when the last one was done, else the trace's end.
    `decide_s`: wall seconds that each decision took: policy, check, reconcile and record. `problems`: what went wrong.
    """

    models: dict[int, ScalingModel]
    done: dict[int, float]
    timeline: Timeline
    admitted: dict[int, float]
    end_s: float
    problems: tuple[str, ...]
    decide_s: tuple[float, ...] = field(compare=False, default=())


def run(idle: IdleTrace, case: ReplayCase, policies: Policies, progress: Told | None = None) -> ReplayRun:
    """The trainers of the case on the trace. `progress`: is called with the simulated hours now and then.

    The same arguments give the same result, decision times aside. Raises WorkloadError, UnknownPolicy.
    """
    workload = _workload(idle, case)
    check_fits(workload)
    policies.make(case.policy)
    driven = _Queue(workload, idle, case, policies, progress)
    driven.run()
    return driven.ran()


def _workload(idle: IdleTrace, case: ReplayCase) -> Workload:
    """The trainers that arrive; without arrivals as many as there can be in the time, all there at its begin."""
    told, true = _costs(case)
    arrivals = (0.0,) * _most(idle, case) if case.arrivals is None else case.arrivals
    profiles: dict[str, tuple[Profile, Profile]] = {}
    for model, said in zip(case.models, case.believed or case.models, strict=True):
        profiles[model.name] = model.profile(case.most, **true), said.profile(case.most, **told)
    queue = []
    for place, at in enumerate(arrivals):
        model = case.model_of(place)
        profile, believed = profiles[model.name]
        queue.append(
            SimJob(
                submit_s=at,
                name=f"{model.name} {place // len(case.models) + 1}",
                profile=profile,
                believed=believed,
                told=not case.learns,
                steps=case.samples,
                gpus_min=1,
                gpus_max=1,
                nodes=case.fewest,
                nodes_max=case.most,
                rescale="in-process",
            )
        )
    return Workload(f"{case.parallel} trainers", tuple(queue), idle.spells)


def _most(idle: IdleTrace, case: ReplayCase) -> int:
    """How many could be finished if rescaling were free, and those that are active then."""
    most_samples = 0.0
    best = BestThroughput(idle.most, case.fewest, case.most)
    for model in case.models:
        rates = best.of([model] * case.parallel)
        most_samples = max(most_samples, float(rates[idle.counts] @ idle.lengths))
    return math.ceil(most_samples / case.samples) + case.parallel + 1


def _costs(case: ReplayCase) -> tuple[dict[str, float], dict[str, float]]:
    """The times of a profile as the policy sees them, and as they are."""
    up_s, down_s = case.scale_up_s, case.scale_down_s
    told = {"startup_s": up_s, "resume_s": up_s, "grow_s": up_s, "shrink_s": down_s, "save_s": 0.0, "join_s": 0.0}
    return told, dict.fromkeys(told, 0.0) if case.in_paper else told


def _learner(case: ReplayCase) -> Learn:
    """What the daemon learns with. Costs that take no time cannot be seen, so those of eq. 16 are told."""
    learn = learner(1, case.most)
    if not case.in_paper:
        return learn
    told, _ = _costs(case)

    def curves(name: str, seen: Observations) -> Profile | None:
        found = learn(name, seen)
        return None if found is None else with_times(found, told)

    return lru_cache(maxsize=4096)(curves)


class _Queue(Simulation):
    """A queue of which at most `parallel` are active: whenever one is done, the next that has come is submitted."""

    def __init__(
        self, workload: Workload, idle: IdleTrace, case: ReplayCase, policies: Policies, progress: Told | None
    ) -> None:
        conditions = Conditions(
            progress_s=PROGRESS_S if case.learns else math.inf,
            first_progress_s=FIRST_PROGRESS_S if case.learns else None,
            checkpoint_s=NOTHING_LOST_S,
            objective=case.objective,
            until_s=idle.end_s,
            exempt_starts=0.0,  # the paper's trainers may be rescaled at every event
        )
        learn = _learner(case) if case.learns else None
        super().__init__(workload, case.policy, policies, conditions, learn)
        self._idle, self._case, self._tell = idle, case, progress
        self._come = self._next = 0  # places of the queue: the first that has not come, the first that is not admitted
        self._admitted: dict[int, float] = {}
        self._over: set[int] = set()
        self._told_at = 0.0

    def _submit(self, first: int, last: int) -> None:
        """These have come."""
        self._come = last
        self._admit()

    def _admit(self) -> None:
        first = self._next
        self._next = min(self._come, len(self._over) + self._case.parallel)
        if first < self._next:
            super()._submit(first, self._next)

    def _took(self, command: cmd.Submit, ids: Sequence[int]) -> None:
        super()._took(command, ids)
        self._admitted.update(dict.fromkeys(ids, self.now))

    def send(self, command: cmd.Command) -> None:
        super().send(command)
        if isinstance(command, cmd.AgentReport) and isinstance(command.event, ev.Exited) and command.event.done:
            self._over.add(command.event.job)
            self._admit()

    def _turn(self, commands: Sequence[cmd.Command]) -> None:
        super()._turn(commands)
        if self._tell is not None and self.now >= self._told_at:
            self._told_at = self.now + HOUR_S
            self._tell(self.now / HOUR_S)

    def ran(self) -> ReplayRun:
        agents, end_s = self._agents, self._idle.end_s
        done = {number: past.step for number, past in agents._past.items()}
        for (number, _), trainer in agents._trainers.items():
            done[number] = max(done[number], trainer.step_at(end_s))
        problems, waiting = self.troubles(), len(self.workload.jobs) - len(self._over)
        if self._case.arrivals is not None and waiting:
            problems.append(f"{waiting} of {len(self.workload.jobs)} trainers were not done after {end_s / HOUR_S:g} h")
        for job in self.world.jobs.values():
            if job.outcome is JobState.DONE:
                done[job.id] = float(self._case.samples)
            elif job.outcome is not None:
                problems.append(f"{job.spec.name} {job.outcome.name}: {job.last.detail}")
        unexpected = [text for text in self._problems if not text.startswith("ended at ")]
        return ReplayRun(
            models={number: self._case.model_of(place) for place, number in enumerate(sorted(agents.jobs))},
            done=done,
            timeline=timeline_of(self._journal.records, end_s),
            admitted=self._admitted,
            end_s=end_s if waiting else self.now,
            problems=(*problems, *unexpected),
            decide_s=tuple(self._decide_s),
        )


class BestThroughput:
    """F(N) by mix of models: `of(mix)[n]` is the most samples/s of its trainers on n whole nodes, rescales being free.

    A dynamic program over (max, +): what a mix does best on N nodes is the best split of N between its last trainer and
    the others. It is the yardstick of U (eq. 18), and what no policy can surpass.

    A trainer has no nodes, or `fewest` to `most` of them. Mixes are remembered, and those of a run differ little.
    """

    def __init__(self, nodes: int, fewest: int, most: int) -> None:
        self.nodes = nodes
        self._fewest, self._most = fewest, min(most, nodes)
        self._models: dict[str, ScalingModel] = {}
        self._known: dict[tuple[str, ...], Rates] = {(): np.zeros(nodes + 1)}

    def of(self, mix: Sequence[ScalingModel]) -> Rates:
        """For 0 to `nodes` nodes; never falls. Read only."""
        for model in mix:
            self._models[model.name] = model
        return self._of(tuple(sorted(model.name for model in mix)))

    def at(self, mix: Sequence[ScalingModel], nodes: float) -> float:
        """On a number of nodes that need not be whole: linear between whole ones."""
        return float(np.interp(nodes, np.arange(self.nodes + 1), self.of(mix)))

    def _of(self, names: tuple[str, ...]) -> Rates:
        found = self._known.get(names)
        if found is None:
            found = best_split(self._of(names[:-1]), self._alone(self._models[names[-1]]))
            found.flags.writeable = False
            self._known[names] = found
        return found

    def _alone(self, model: ScalingModel) -> Rates:
        rates = model.rates(self._most).copy()
        rates[1 : self._fewest] = -np.inf
        return rates


def best_split(others: Rates, alone: Rates) -> Rates:
    """max over k of others[n - k] + alone[k], for every n; as long as `others`. Nodes may stay idle: it never falls."""
    most = len(alone) - 1
    before = np.concatenate([np.full(most, -np.inf), others])
    windows = np.lib.stride_tricks.sliding_window_view(before, most + 1)
    together: Rates = np.maximum.accumulate((windows + alone[::-1]).max(axis=1))
    return together
