"""The simulation: an event heap with modelled agents and trainers round the daemon's own Controller and policies.

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
from typing import Any

from hpcdl.controller import Controller
from hpcdl.core import commands as cmd
from hpcdl.core import events as ev
from hpcdl.core.intake import Settings
from hpcdl.core.journal import MemoryJournal, Request
from hpcdl.core.model import GpuInfo, JobSpec, JobState, Purpose
from hpcdl.core.plan import Learn, Profiles
from hpcdl.core.policy import Policies
from hpcdl.core.profile import Profile
from hpcdl.report.spans import history_of
from hpcdl.sim.conditions import Conditions, Simulated
from hpcdl.sim.trainers import Delays, Past, Trainer, predicted_total
from hpcdl.sim.workload import NodeSpell, SimJob, Workload, check_fits

GRACE_S = 3600.0
DECISIONS, DECISIONS_PER_JOB = 10_000, 2_000
"""A policy that is asked more often than this, in all and for each job, turns in circles."""


def simulate(
    workload: Workload,
    policy: str,
    policies: Policies,
    conditions: Conditions | None = None,
    learn: Learn | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """What `policy` would have done with the workload. The same arguments give the same result, decision times aside.

    `learn`: makes profiles of what was observed (see `Profiles`). `progress`: is told now and then how many of all jobs
    are finished. Raises WorkloadError for a workload that can never end, UnknownPolicy.
    """
    check_fits(workload)
    policies.make(policy)
    simulation = Simulation(workload, policy, policies, conditions or Conditions(), learn)
    simulation.run(progress)
    return simulation.result()


class Simulation:
    """One run. `simulate` is what others call."""

    def __init__(
        self, workload: Workload, policy: str, policies: Policies, conditions: Conditions, learn: Learn | None
    ) -> None:
        self.workload, self.policy, self.conditions = workload, policy, conditions
        self.now = 0.0
        self._delays = Delays(conditions)
        self._policies = policies
        self._journal = MemoryJournal()
        self._settings = Settings(agent_lease_s=GRACE_S, max_jobs_a_submit=max(10_000, len(workload.jobs)))
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
        self._truth: dict[int, SimJob] = {}
        self._past: dict[int, Past] = {}
        self._trainers: dict[tuple[int, int], Trainer] = {}
        self._nodes: dict[str, NodeSpell] = {}
        self._spells: dict[str, int] = {}
        self._reported: dict[str, int] = {}
        self._inbox: list[cmd.Command] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0
        self._wake_at: float | None = None
        self._woken: float | None = None
        self._decide_s: list[float] = []
        self._problems: list[str] = []

    def _new_controller(self) -> Controller:
        return Controller(self._journal, self._policies, self._profiles, self._settings)

    # --- time ------------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Until every job is finished, nothing more can happen, or the conditions' end."""
        with _rare_collections():
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
            finished = len(self._truth) - len(self._controller.world.active)
            if progress is not None and finished >= told + max(1, len(self.workload.jobs) // 100):
                told = finished
                progress(finished, len(self.workload.jobs))

    def _begin(self) -> None:
        self._controller.begin(ev.DaemonStarted(1, "", 0, ""), self.now)
        self._controller.step([cmd.ChoosePolicy(self.policy), cmd.ChooseObjective(self.conditions.objective)], self.now)
        for spell in self.workload.nodes:
            self._at(spell.from_s, partial(self._join, spell))
            if math.isfinite(spell.until_s):
                self._at(spell.until_s, partial(self._leave, spell))
        first = 0
        jobs = self.workload.jobs
        while first < len(jobs):  # what is submitted at the same moment is one submit, as with an array
            last = first
            while last < len(jobs) and jobs[last].submit_s == jobs[first].submit_s:
                last += 1
            self._at(jobs[first].submit_s, partial(self._submit, first, last))
            first = last
        for when in self.conditions.restarts:
            self._at(when, self._restart)

    def _done(self) -> bool:
        return len(self._truth) == len(self.workload.jobs) and not self._controller.world.active and not self._inbox

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._entries += 1
        heapq.heappush(self._heap, (max(when, self.now), self._entries, what))

    def _later(self, trainer: Trainer, seconds: float, what: Callable[[Trainer], None]) -> None:
        """Has something happen to a trainer, unless something else happens to it before."""
        turn = trainer.turn

        def happen() -> None:
            if trainer.turn == turn:
                what(trainer)

        self._at(self.now + seconds, happen)

    # --- the daemon ------------------------------------------------------------------------------------------------

    def _turn(self, commands: Sequence[cmd.Command]) -> None:
        controller = self._controller
        answers = controller.step(commands, self.now)
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, cmd.Refused):
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
            # A policy that wants to be asked again at once would never let time pass.
            self._at(max(wake_at, self.now + 1e-3), partial(self._wake, wake_at))
        for request in requests:
            self._take(request)

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
            self._truth[number] = self.workload.jobs[first + offset]
            self._past[number] = Past()

    def _restart(self) -> None:
        """The daemon is killed and started again: all it knows is in its journal; agents and trainers go on."""
        self._controller = self._new_controller()
        self._wake_at = self._woken = None
        self._controller.begin(ev.DaemonStarted(self._controller.world.fence + 1, "", 0, ""), self.now)
        self._inbox += [self._inventory(spell) for spell in self._nodes.values()]

    # --- nodes and agents ------------------------------------------------------------------------------------------

    def _join(self, spell: NodeSpell) -> None:
        self._nodes[spell.name] = spell
        self._spells[spell.name] = self._spells.get(spell.name, 0) + 1
        self._reported[spell.name] = 0
        self._inbox.append(self._inventory(spell))

    def _inventory(self, spell: NodeSpell) -> cmd.Inventory:
        gpus = tuple(GpuInfo(index, f"{spell.name}-{index}", spell.kind) for index in range(spell.gpus))
        log_id = self._log_id(spell.name)
        return cmd.Inventory(spell.name, gpus, 0, 0, 1, log_id, log_id, True)

    def _log_id(self, node: str) -> str:
        return f"{node}/{self._spells[node]}"

    def _leave(self, spell: NodeSpell) -> None:
        """The node is gone, with all that ran there."""
        del self._nodes[spell.name]
        for trainer in [each for each in self._trainers.values() if spell.name in each.parts]:
            trainer.parts.discard(spell.name)
            if not trainer.stopping or spell.name == trainer.nodes[0]:  # else the writer still saves
                self._lose_progress(trainer)
            if not trainer.parts:
                del self._trainers[trainer.job, trainer.number]
        self._inbox.append(cmd.NodeGone(spell.name, "its time is over"))

    def _report(self, node: str, kind: type[ev.Report], trainer: Trainer, **more: Any) -> None:
        number = self._reported[node] = self._reported[node] + 1
        event = kind(trainer.job, trainer.number, 1, node, **more)
        self._inbox.append(cmd.AgentReport(node, self._log_id(node), number, event))

    def _take(self, request: Request) -> None:
        """An agent takes a request; one for a node that has just gone is lost with it."""
        if request.node not in self._nodes:
            return
        self._inbox.append(cmd.Taken(request.id))
        if request.kind == "start":
            self._start(request)
            return
        trainer = self._trainers.get((request.job, request.incarnation))
        if trainer is None or request.node not in trainer.parts:
            return
        if request.kind == "open":
            self._open(trainer, request)
        elif request.kind == "suspend":
            self._suspend(trainer, request)
        else:
            self._exit(trainer, request.node, signal="SIGTERM", ended_by="end", attached=True)

    # --- trainers --------------------------------------------------------------------------------------------------

    def _all_arrived(self, trainer: Trainer, node: str) -> bool:
        trainer.arrived.add(node)
        if len(trainer.arrived) < len(trainer.nodes):
            return False
        trainer.arrived.clear()
        return True

    def _start(self, request: Request) -> None:
        key = (request.job, request.incarnation)
        trainer = self._trainers.get(key)
        if trainer is None:
            trainer = self._trainers[key] = Trainer(*key, request.nodes, request.placement)
        trainer.parts.add(request.node)
        self._report(request.node, ev.Started, trainer, pid=1)
        self._report(request.node, ev.Attached, trainer, pid=1)
        if not self._all_arrived(trainer, request.node):
            return
        if trainer.placement is None:
            self._later(trainer, self._delays.gate_s(self._truth[trainer.job], trainer), self._reach_gate)
        else:
            self._start_up(trainer, ahead_s=0.0)

    def _reach_gate(self, trainer: Trainer) -> None:
        for node in trainer.nodes:
            self._report(node, ev.AtGate, trainer)

    def _open(self, trainer: Trainer, request: Request) -> None:
        trainer.placement = request.placement
        if self._all_arrived(trainer, request.node):
            self._start_up(trainer, ahead_s=self._delays.gate_s(self._truth[trainer.job], trainer))

    def _start_up(self, trainer: Trainer, ahead_s: float) -> None:
        """`ahead_s`: what of the start-up was done at the gate."""
        job, past = self._truth[trainer.job], self._past[trainer.job]
        waited_s = self.now - job.submit_s if not ahead_s else 0.0
        seconds = self._delays.startup_s(job, past, trainer, waited_s)
        self._later(trainer, max(0.0, seconds - ahead_s), self._train)

    def _train(self, trainer: Trainer) -> None:
        job, past, placement = self._truth[trainer.job], self._past[trainer.job], trainer.placement
        if placement is None:
            raise AssertionError(f"job {trainer.job} trains without GPUs")
        kind = self._nodes[placement.nodes[0]].kind
        past.started, past.nodes, past.gpus = True, placement.nodes, len(placement.gpus)
        trainer.step, trainer.since = past.step, self.now
        trainer.rate = job.profile.on(kind).rate(placement.per_node, len(placement.nodes))
        self._report(placement.nodes[0], ev.TrainerReady, trainer, step=int(trainer.step))
        if job.predicted is not None:
            self._tell_progress(trainer)
        left_s = (job.steps - trainer.step) / trainer.rate
        fails_s = self._delays.fails_after_s(trainer)
        if fails_s < left_s:
            self._later(trainer, fails_s, self._fail)
        else:
            self._later(trainer, left_s, self._finish)
        if left_s > self.conditions.progress_s:
            self._later(trainer, self.conditions.progress_s, self._progress)

    def _progress(self, trainer: Trainer) -> None:
        self._tell_progress(trainer)
        self._later(trainer, self.conditions.progress_s, self._progress)

    def _tell_progress(self, trainer: Trainer) -> None:
        job, step = self._truth[trainer.job], trainer.step_at(self.now)
        total = predicted_total(job, step)
        self._report(trainer.nodes[0], ev.Progressed, trainer, step=min(int(step), job.steps), total=total)

    def _finish(self, trainer: Trainer) -> None:
        job = self._truth[trainer.job]
        trainer.step, trainer.since = float(job.steps), None
        self._tell_progress(trainer)
        for node in trainer.nodes:
            self._exit(trainer, node, code=0, step=job.steps, attached=True, done=True)

    def _fail(self, trainer: Trainer) -> None:
        """It is killed from outside, as by a broken node: nothing that its user did."""
        node = trainer.nodes[0]
        self._lose_progress(trainer)
        self._exit(trainer, node, signal="SIGKILL", step=int(trainer.step), attached=True)

    def _lose_progress(self, trainer: Trainer) -> None:
        """Its processes die now: what is left are the checkpoints that it wrote at every interval."""
        self._count_checkpoints(trainer)
        trainer.settle(self.now)

    def _count_checkpoints(self, trainer: Trainer) -> None:
        """What it wrote while it trained until now is told in one report: nobody asks for it before."""
        if trainer.since is None:
            return
        whole = (self.now - trainer.since) // self.conditions.checkpoint_s
        if whole:
            past = self._past[trainer.job]
            past.step = max(past.step, trainer.step + whole * self.conditions.checkpoint_s * trainer.rate)
            self._report(trainer.nodes[0], ev.Saved, trainer, step=int(past.step))

    def _exit(self, trainer: Trainer, node: str, **how: Any) -> None:
        if node in trainer.parts:
            trainer.parts.discard(node)
            trainer.turn += 1
            self._report(node, ev.Exited, trainer, **how)
            self._report(node, ev.GpusFreed, trainer)
        if not trainer.parts:
            self._trainers.pop((trainer.job, trainer.number), None)

    def _suspend(self, trainer: Trainer, request: Request) -> None:
        """Each part is asked by itself; the checkpoint is written when all of them were asked."""
        if trainer.since is None and not trainer.stopping:  # not training yet: there is nothing to save
            trainer.turn += 1
            self._exit(trainer, request.node, code=143, ended_by="suspend")
            return
        if not trainer.stopping:
            self._count_checkpoints(trainer)
            trainer.settle(self.now)
            trainer.stopping = True
        if self._all_arrived(trainer, request.node):
            job = self._truth[trainer.job]
            self._later(trainer, self._delays.save_s(job, trainer, self._moves(trainer)), self._save)

    def _moves(self, trainer: Trainer) -> bool:
        """Whether the plan wants it on other nodes."""
        world = self._controller.world
        running, target = world.jobs[trainer.job].running, world.targets.get(trainer.job)
        rescaled = running is not None and running.purpose is Purpose.RESCALE
        return rescaled and target is not None and target.placement is not None and (
            target.placement.nodes != trainer.nodes
        )  # fmt: skip

    def _save(self, trainer: Trainer) -> None:
        writer = trainer.nodes[0]
        self._past[trainer.job].step = trainer.step
        step = int(trainer.step)
        self._tell_progress(trainer)
        self._report(writer, ev.Saved, trainer, step=step, final=True)
        for node in trainer.nodes:
            self._exit(trainer, node, code=0, ended_by="suspend", attached=True)

    # --- what came of it -------------------------------------------------------------------------------------------

    def result(self) -> Simulated:
        """See `simulate`."""
        records = self._journal.records
        broken: dict[str, int] = {}
        for record in records:
            if isinstance(record.event, ev.TroubleSeen):
                line = f"{record.event.where} {record.event.detail} (at {record.at:.0f} s)"
                broken.setdefault(line, 1)
        unfinished = [*self._controller.world.active]
        problems = [*broken, *self._problems]
        if unfinished:
            shown = ", ".join(self._controller.world.jobs[number].spec.name for number in unfinished[:5])
            more = f" and {len(unfinished) - 5} more" if len(unfinished) > 5 else ""
            reason = self._controller.reasons.get(unfinished[0], "")
            told = f"; the first: {reason}" if reason else ""
            problems.append(f"{len(unfinished)} of {len(self.workload.jobs)} jobs never ended: {shown}{more}{told}")
        failed = [job for job in self._controller.world.jobs.values() if job.outcome is JobState.FAILED]
        if failed:
            first = failed[0]
            told = f"{first.spec.name}: {first.final_detail}"
            problems.append(f"{len(failed)} of {len(self.workload.jobs)} jobs FAILED; the first: {told}")
        return Simulated(
            workload=self.workload,
            policy=self.policy,
            conditions=self.conditions,
            history=history_of(records),
            world=self._controller.world,
            records=tuple(records),
            jobs=dict(self._truth),
            believed=self._believed,
            decide_s=tuple(self._decide_s),
            problems=tuple(problems),
        )


@contextmanager
def _rare_collections() -> Iterator[None]:
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
        steps=predicted_total(job, 0.0),
        grace_s=GRACE_S,
        gate=conditions.warm,
        deadline=job.deadline_s,
        model=job.profile.name,
    )
