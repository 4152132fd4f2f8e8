"""The replay itself: the simulator with the daemon's Controller, and a queue that never ends."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpcdl.core import commands as cmd
from hpcdl.core import events as ev
from hpcdl.core.model import JobState
from hpcdl.core.policy import Policies
from hpcdl.core.profile import Profile
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.engine import Simulation
from hpcdl.sim.replay.best import Best
from hpcdl.sim.replay.case import Case
from hpcdl.sim.replay.idle import HOUR_S, Idle
from hpcdl.sim.replay.models import Model
from hpcdl.sim.replay.timeline import Timeline, timeline_of
from hpcdl.sim.workload import SimJob, Workload, check_fits

NOTHING_LOST_S = 1e-6
"""Seconds between two checkpoints of a trainer: what it has trained is not lost with its nodes, as in the paper."""

Told = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Ran:
    """A replay under the Controller. `models`: of the jobs by id, in the order of the queue; `done`: samples of each.

    `decide_s`: wall seconds that each decision took: policy, check, reconcile and record. `problems`: what went wrong.
    """

    models: dict[int, Model]
    done: dict[int, float]
    timeline: Timeline
    problems: tuple[str, ...]
    decide_s: tuple[float, ...] = field(compare=False, default=())


def run(idle: Idle, case: Case, policies: Policies, progress: Told | None = None) -> Ran:
    """The trainers of the case on the trace. `progress`: is told the simulated hours now and then.

    The same arguments give the same result, decision times aside. Raises WorkloadError, UnknownPolicy.
    """
    workload = _workload(idle, case)
    check_fits(workload)
    policies.make(case.policy)
    driven = _Endless(workload, idle, case, policies, progress)
    driven.run()
    return driven.ran()


def _workload(idle: Idle, case: Case) -> Workload:
    """As many trainers as could be finished in the time if rescaling were free, and those that are active then."""
    told, true = _costs(case)
    most_samples = 0.0
    best = Best(idle.most, case.fewest, case.most)
    for model in case.models:
        rates = best.of([model] * case.parallel)
        most_samples = max(most_samples, float(rates[idle.counts] @ idle.lengths))
    jobs = math.ceil(most_samples / case.samples) + case.parallel + 1
    profiles: dict[str, tuple[Profile, Profile]] = {}
    for model in case.models:
        profiles[model.name] = model.profile(case.most, **true), model.profile(case.most, **told)
    queue = []
    for place in range(jobs):
        model = case.model_of(place)
        profile, believed = profiles[model.name]
        queue.append(
            SimJob(
                submit_s=0.0,
                name=f"{model.name} {place // len(case.models) + 1}",
                profile=profile,
                believed=believed,
                steps=case.samples,
                gpus_min=1,
                gpus_max=1,
                nodes=case.fewest,
                nodes_max=case.most,
                rescale="in-process",
            )
        )
    return Workload(f"{case.parallel} trainers", tuple(queue), idle.spells)


def _costs(case: Case) -> tuple[dict[str, float], dict[str, float]]:
    """The times of a profile as the policy is told them, and as they are."""
    up_s, down_s = case.scale_up_s, case.scale_down_s
    told = {"startup_s": up_s, "resume_s": up_s, "grow_s": up_s, "shrink_s": down_s, "save_s": 0.0, "join_s": 0.0}
    return told, dict.fromkeys(told, 0.0) if case.in_paper else told


class _Endless(Simulation):
    """A queue of which `parallel` trainers are active: whenever one is done, the next one is submitted."""

    def __init__(self, workload: Workload, idle: Idle, case: Case, policies: Policies, progress: Told | None) -> None:
        conditions = Conditions(
            progress_s=math.inf,
            checkpoint_s=NOTHING_LOST_S,
            objective=case.objective,
            until_s=idle.end_s,
            exempt_starts=0.0,  # the paper's trainers may be rescaled at every event
        )
        super().__init__(workload, case.policy, policies, conditions, None)
        self._idle, self._case, self._tell = idle, case, progress
        self._next = 0
        self._over: set[int] = set()
        self._told_at = 0.0

    def _submit(self, first: int, last: int) -> None:
        self._next = min(last, first + self._case.parallel)
        super()._submit(first, self._next)

    def send(self, command: cmd.Command) -> None:
        super().send(command)
        if isinstance(command, cmd.AgentReport) and isinstance(command.event, ev.Exited) and command.event.done:
            number = command.event.job
            if number not in self._over and self._next < len(self.workload.jobs):
                self._over.add(number)
                self._submit(self._next, self._next + 1)

    def _turn(self, commands: Sequence[cmd.Command]) -> None:
        super()._turn(commands)
        if self._tell is not None and self.now >= self._told_at:
            self._told_at = self.now + HOUR_S
            self._tell(self.now / HOUR_S)

    def ran(self) -> Ran:
        agents, end_s = self._agents, self._idle.end_s
        done = {number: past.step for number, past in agents._past.items()}
        for (number, _), trainer in agents._trainers.items():
            done[number] = max(done[number], trainer.step_at(end_s))
        problems = dict.fromkeys(
            f"{record.event.where} {record.event.detail} (at {record.at:.0f} s)"
            for record in self._journal.records
            if isinstance(record.event, ev.TroubleSeen)
        )
        for job in self.world.jobs.values():
            if job.outcome is JobState.DONE:
                done[job.id] = float(self._case.samples)
            elif job.outcome is not None:
                problems[f"{job.spec.name} {job.outcome.name}: {job.final_detail}"] = None
        unexpected = [text for text in self._problems if not text.startswith("ended at ")]
        return Ran(
            models={number: self._case.model_of(place) for place, number in enumerate(sorted(agents.jobs))},
            done=done,
            timeline=timeline_of(self._journal.records, end_s),
            problems=(*problems, *unexpected),
            decide_s=tuple(self._decide_s),
        )
