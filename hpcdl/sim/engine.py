"""The simulation: an event heap round the daemon's own Controller and policies; `agents` models what is outside.

Everything that happens is an entry of the heap; what happens at the same moment reaches the Controller in one batch, as
it would reach the daemon's inbox. Nothing in the Controller knows that time is not real.
"""

import gc
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Learn, Policies, Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState, World
from hpcdl.core.rules.intake import Settings
from hpcdl.report.spans import history_of
from hpcdl.sim.agents import SimulatedAgents
from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.trainers import told_steps
from hpcdl.sim.workload import SimJob, Workload, check_fits

GRACE_S = 3600.0
DECISIONS, DECISIONS_PER_JOB = 10_000, 2_000
"""A policy that decides more often than this, in all and for each job, turns in circles."""


def simulate(
    workload: Workload,
    policy: str,
    policies: Policies,
    conditions: Conditions | None = None,
    learn: Learn | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulatedRun:
    """What `policy` would have done with the workload. The same arguments give the same result, decision times aside.

    `learn`: makes profiles of what was observed (see `Profiles`). `progress`: is called now and then with how many jobs
    are finished, and how many there are. Raises WorkloadError for a workload that can never end, UnknownPolicy.
    """
    check_fits(workload)
    policies.make(policy)
    simulation = Simulation(workload, policy, policies, conditions or Conditions(), learn)
    simulation.run(progress)
    return simulation.result()


class Simulation:
    """One simulated run: the clock, the event heap, and the Controller. Others call `simulate`."""

    def __init__(
        self, workload: Workload, policy: str, policies: Policies, conditions: Conditions, learn: Learn | None
    ) -> None:
        self.workload, self.policy, self.conditions = workload, policy, conditions
        self.now = 0.0
        self._policies = policies
        self._journal = MemoryJournal()
        self._settings = Settings(
            agent_lease_s=GRACE_S,
            max_jobs_a_submit=max(10_000, len(workload.jobs)),
            exempt_starts=conditions.exempt_starts,
            sharing=conditions.sharing,
            batch_system="simulated",  # later nodes of the workload may have larger GPUs: jobs wait for them
        )
        self._believed: dict[str, Profile] = {}
        names: dict[int, str] = {}
        for job in workload.jobs:
            told = job.believed or job.profile
            if job.told and id(told) not in names:
                names[id(told)] = f"{told.name.lower()} {len(names) + 1}"
                self._believed[names[id(told)]] = told
        self._specs = [_spec(job, names.get(id(job.believed or job.profile)), conditions) for job in workload.jobs]
        self._profiles = Profiles(self._believed, learn)
        self._controller = self._new_controller()
        self._inbox: list[cmd.Command] = []
        counts = workload.shares or any(cell.apart for cell in workload.slowdowns)
        self._agents = SimulatedAgents(conditions, self, workload.slowdowns if counts else None)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0
        self._wake_at: float | None = None
        self._woken: float | None = None
        self._decide_s: list[float] = []
        self._problems: list[str] = []

    def _new_controller(self) -> Controller:
        return Controller(self._journal, self._policies, self._profiles, self._settings)

    # --- what agents and trainers see of it: `agents.Outside` ---------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedules a call at that time, at once if it is past."""
        self._entries += 1
        heapq.heappush(self._heap, (max(when, self.now), self._entries, what))

    def send(self, command: cmd.Command) -> None:
        """Puts a command into the Controller's inbox."""
        self._inbox.append(command)

    @property
    def world(self) -> World:
        """The world as the Controller knows it."""
        return self._controller.world

    # --- time ------------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Until every job is finished, nothing more can happen, or the conditions' end."""
        with rare_collections():
            self._run(progress)

    def _run(self, progress: Callable[[int, int], None] | None) -> None:
        self._begin()
        most = DECISIONS + DECISIONS_PER_JOB * len(self.workload.jobs)
        told = 0
        while self._heap and not self._done():
            if self._heap[0][0] > self.conditions.until_s:
                self._problems.append(f"ended at {self.conditions.until_s:g} s, as asked")
                break
            self.now = self._heap[0][0]
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            while self._inbox and len(self._decide_s) <= most:
                commands, self._inbox = self._inbox, []
                self._turn(commands)
            if len(self._decide_s) > most:
                self._problems.append(
                    f"policy {self.policy} was asked {len(self._decide_s)} times and turns in circles: stopped"
                )
                break
            finished = len(self._agents.jobs) - len(self._controller.world.active)
            if progress is not None and finished >= told + max(1, len(self.workload.jobs) // 100):
                told = finished
                progress(finished, len(self.workload.jobs))

    def _begin(self) -> None:
        self._controller.begin(ev.DaemonStarted(1, "", 0, ""), self.now)
        self._controller.step([cmd.ChoosePolicy(self.policy), cmd.ChooseObjective(self.conditions.objective)], self.now)
        for spell in self.workload.nodes:
            self.at(spell.from_s, partial(self._agents.join, spell))
            if math.isfinite(spell.until_s):
                self.at(spell.until_s, partial(self._agents.leave, spell))
        first = 0
        for submit_s, together in groupby(self.workload.jobs, key=lambda job: job.submit_s):
            last = first + len([*together])  # what is submitted at the same moment is one submit, as with an array
            self.at(submit_s, partial(self._submit, first, last))
            first = last
        for when in self.conditions.restarts:
            self.at(when, self._restart)

    def _done(self) -> bool:
        return (
            len(self._agents.jobs) == len(self.workload.jobs) and not self._controller.world.active and not self._inbox
        )

    # --- the daemon ------------------------------------------------------------------------------------------------

    def _turn(self, commands: Sequence[cmd.Command]) -> None:
        controller = self._controller
        answers = controller.step(commands, self.now)
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, cmd.CommandRefused):
                raise answer
            if isinstance(command, cmd.Submit):
                self._took(command, answer)
        if not controller.undecided:
            return
        began = time.perf_counter()
        requests = controller.decide(self.now)
        self._decide_s.append(time.perf_counter() - began)
        wake_at = controller.wake_at
        if wake_at is None or not math.isfinite(wake_at):
            self._wake_at = None
        elif wake_at not in (self._wake_at, self._woken):
            self._wake_at = wake_at
            # A policy that wants to decide again at once would never let time pass.
            self.at(max(wake_at, self.now + 1e-3), partial(self._wake, wake_at))
        for request in requests:
            self._agents.take(request)

    def _wake(self, wake_at: float) -> None:
        """It is time to ask the policy again, unless it has wanted another time since."""
        if self._wake_at == wake_at:
            self._wake_at, self._woken = None, wake_at
            self._inbox.append(cmd.Tick())

    def _submit(self, first: int, last: int) -> None:
        self._inbox.append(cmd.Submit(tuple(self._specs[first:last]), f"submit {first}"))

    def _took(self, command: cmd.Submit, ids: Sequence[int]) -> None:
        first = int(command.request_id.split()[1])
        for offset, number in enumerate(ids):
            self._agents.submitted(number, self.workload.jobs[first + offset])

    def _restart(self) -> None:
        """The daemon is killed and started again: all it knows is in its journal; agents and trainers go on."""
        self._controller = self._new_controller()
        self._wake_at = self._woken = None
        self._controller.begin(ev.DaemonStarted(self._controller.world.fence + 1, "", 0, ""), self.now)
        self._agents.call()

    # --- what came of it -------------------------------------------------------------------------------------------

    def troubles(self) -> list[str]:
        """What the Controller recorded as going wrong, each once, in the order of time."""
        lines = (
            f"{record.event.where} {record.event.detail} (at {record.at:.0f} s)"
            for record in self._journal.records
            if isinstance(record.event, ev.TroubleSeen)
        )
        return [*dict.fromkeys(lines)]

    def result(self) -> SimulatedRun:
        """What came of the run, with every problem as one line."""
        records = self._journal.records
        unfinished = [*self._controller.world.active]
        problems = [*self.troubles(), *self._problems]
        if unfinished:
            shown = ", ".join(self._controller.world.jobs[number].spec.name for number in unfinished[:5])
            more = f" and {len(unfinished) - 5} more" if len(unfinished) > 5 else ""
            reason = self._controller.reasons.get(unfinished[0], "")
            told = f"; the first: {reason}" if reason else ""
            problems.append(f"{len(unfinished)} of {len(self.workload.jobs)} jobs never ended: {shown}{more}{told}")
        failed = [job for job in self._controller.world.jobs.values() if job.outcome is JobState.FAILED]
        if failed:
            first = failed[0]
            told = f"{first.spec.name}: {first.last.detail}"
            problems.append(f"{len(failed)} of {len(self.workload.jobs)} jobs FAILED; the first: {told}")
        return SimulatedRun(
            workload=self.workload,
            policy=self.policy,
            conditions=self.conditions,
            history=history_of(records),
            world=self._controller.world,
            records=tuple(records),
            jobs=dict(self._agents.jobs),
            believed=self._believed,
            decide_s=tuple(self._decide_s),
            problems=tuple(problems),
        )


@contextmanager
def rare_collections() -> Iterator[None]:
    """Next to nothing here is ever garbage in a circle, and looking for it goes through the whole growing journal."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _spec(job: SimJob, profile: str | None, conditions: Conditions) -> JobSpec:
    """The job as its user would submit it."""
    low, high = job.gpus_min, job.gpus_max
    if job.gpus_counts:
        low, high = job.gpus_counts[0], job.gpus_counts[-1]
    return JobSpec(
        command=("train",),
        name=job.name,
        user=job.user,
        gpus_min=low,
        gpus_max=high,
        gpus_counts=job.gpus_counts,
        nodes=job.nodes,
        nodes_max=job.nodes_max,
        profile=profile if job.told else None,
        steps=None if conditions.spread else told_steps(job),
        grace_s=GRACE_S,
        gate=conditions.warm and job.rescale == "restart",
        deadline=job.deadline_s,
        model=job.profile.name,
        rescale=job.rescale,
        weight=job.weight,
        share=job.share,
        gpu_memory_mib=job.gpu_memory_mib,
    )
