"""Modelled nodes with their agents and trainers: what is outside of the Controller, and how long it takes.

An agent takes a request at once and says so; the agents of a job's nodes report what happens to its trainer, in
numbered reports as real ones send them. `engine` has the clock and the Controller, `trainers` the delays.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Request
from hpcdl.core.model.incarnation import Purpose
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo, World
from hpcdl.sim.conditions import Conditions
from hpcdl.sim.slowdowns import Slowdown, interference, slowdown_of
from hpcdl.sim.trainers import Delays, PastIncarnations, SimulatedTrainer, drawn, predicted_total
from hpcdl.sim.workload import NodeSpell, SimJob


class Outside(Protocol):
    """The simulation, as agents and trainers see it. `now`: on the clock of the workload; `world`: the Controller's."""

    now: float

    @property
    def world(self) -> World:
        """The Controller's world, as the daemon knows it."""

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedules a call at that time, at once if it is past."""

    def send(self, command: cmd.Command) -> None:
        """Puts a command into the daemon's inbox."""


@lru_cache(maxsize=4096)
def _gpus_of(node: str, gpus: int, kind: str, memory_mib: int) -> tuple[GpuInfo, ...]:
    return tuple(GpuInfo(index, f"{node}-{index}", kind, memory_mib) for index in range(gpus))


def _gpus_held(trainer: SimulatedTrainer) -> tuple[GpuRef, ...]:
    return () if trainer.placement is None else tuple(trainer.placement.gpus)


class SimulatedAgents:
    """All nodes. `jobs`: the truth about each job that was submitted, by its id.

    `slowdowns`: what jobs on one GPU, or on one node, cost each other; None: nothing.
    """

    def __init__(self, conditions: Conditions, outside: Outside, slowdowns: Sequence[Slowdown] | None = None) -> None:
        self._slowdowns = slowdowns
        self._apart = any(cell.apart for cell in slowdowns or ())
        self.jobs: dict[int, SimJob] = {}
        self._conditions = conditions
        self._outside = outside
        self._delays = Delays(conditions)
        self._past: dict[int, PastIncarnations] = {}
        self._trainers: dict[tuple[int, int], SimulatedTrainer] = {}
        self._nodes: dict[str, NodeSpell] = {}
        self._on: dict[str, dict[tuple[int, int], SimulatedTrainer]] = {}
        self._spells: dict[str, int] = {}
        self._reported: dict[str, int] = {}

    def submitted(self, number: int, job: SimJob) -> None:
        """The daemon has taken a job."""
        self.jobs[number] = drawn(job, number, self._conditions)
        self._past[number] = PastIncarnations()

    # --- nodes -----------------------------------------------------------------------------------------------------

    def join(self, spell: NodeSpell) -> None:
        """A node joins: its agent sends its inventory."""
        self._nodes[spell.name] = spell
        self._on[spell.name] = {}
        self._spells[spell.name] = self._spells.get(spell.name, 0) + 1
        self._reported[spell.name] = 0
        self._outside.send(self._inventory(spell))

    def call(self) -> None:
        """All agents call the daemon, which has just started."""
        for spell in self._nodes.values():
            self._outside.send(self._inventory(spell))

    def leave(self, spell: NodeSpell) -> None:
        """The node is gone, with all that ran there."""
        del self._nodes[spell.name]
        for key, trainer in self._on.pop(spell.name).items():
            trainer.parts.discard(spell.name)
            trainer.arrived.discard(spell.name)
            if trainer.stopping and (trainer.in_place or spell.name != trainer.nodes[0]):
                self._save_once_asked(trainer)  # what is left of it may have waited for this node alone
            elif trainer.in_place:
                self._lose_member(trainer, spell.name)
            else:
                self._lose_progress(trainer)
            if not trainer.parts:
                del self._trainers[key]
        self._outside.send(cmd.NodeGone(spell.name, "its time is over"))

    def _inventory(self, spell: NodeSpell) -> cmd.Inventory:
        gpus, log_id = _gpus_of(spell.name, spell.gpus, spell.kind, spell.memory_mib), self._log_id(spell.name)
        return cmd.Inventory(spell.name, gpus, 0, 0, 1, log_id, log_id, True)

    def _log_id(self, node: str) -> str:
        return f"{node}/{self._spells[node]}"

    def _report(self, node: str, kind: type[ev.Report], trainer: SimulatedTrainer, **more: Any) -> None:
        number = None
        if self._conditions.restarts:  # else no report is sent twice
            number = self._reported[node] = self._reported[node] + 1
        membership = max(trainer.membership, trainer.since_of.get(node, 1))
        event = kind(trainer.job, trainer.number, membership, node, **more)
        self._outside.send(cmd.AgentReport(node, self._log_id(node), number, event))

    # --- requests --------------------------------------------------------------------------------------------------

    def take(self, request: Request) -> None:
        """An agent takes a request; one for a node that has just gone is lost with it."""
        if request.node not in self._nodes:
            return
        self._outside.send(cmd.Taken(request.id))
        if request.kind == "start":
            self._start(request)
            return
        trainer = self._trainers.get((request.job, request.incarnation))
        if trainer is None or request.node not in trainer.parts:
            return
        match request.kind:
            case "open":
                self._open(trainer, request)
            case "suspend":
                self._suspend(trainer, request)
            case "rescale":
                self._rescale(trainer, request)
            case "role":
                pass  # nothing is asked of its trainer
            case "leave":
                self._exit(trainer, request.node, code=0, ended_by="leave", attached=True)
            case _:
                self._exit(trainer, request.node, signal="SIGTERM", ended_by="end", attached=True)

    def _later(self, trainer: SimulatedTrainer, seconds: float, what: Callable[[SimulatedTrainer], None]) -> None:
        """Has something happen to a trainer, unless something else happens to it before."""
        turn = trainer.turn

        def happen() -> None:
            if trainer.turn == turn:
                what(trainer)

        self._outside.at(self._outside.now + seconds, happen)

    def _all_arrived(self, trainer: SimulatedTrainer, node: str) -> bool:
        trainer.arrived.add(node)
        if len(trainer.arrived) < len(trainer.parts if trainer.in_place and trainer.membership else trainer.nodes):
            return False
        trainer.arrived.clear()
        return True

    # --- starts ----------------------------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        key = (request.job, request.incarnation)
        trainer = self._trainers.get(key)
        if trainer is None:
            in_place = self.jobs[request.job].rescale != "restart"
            trainer = self._trainers[key] = SimulatedTrainer(*key, request.nodes, request.placement, in_place)
        trainer.parts.add(request.node)
        trainer.since_of[request.node] = request.membership
        self._on[request.node][key] = trainer
        if trainer.in_place and not trainer.formed:
            trainer.up_at = max(trainer.up_at, self._outside.now + self._startup_s(trainer))
        if request.node not in trainer.nodes or trainer.membership:
            self._start_joiner(trainer, request)
            return
        past = self._past[trainer.job]
        if not trainer.in_place:  # else the gate reports that it runs
            self._report(request.node, ev.Started, trainer, pid=1)
        if not (trainer.in_place and past.attached):
            past.attached = True
            self._report(request.node, ev.Attached, trainer, pid=1)
        if not self._all_arrived(trainer, request.node):
            return
        if trainer.placement is None:
            self._later(trainer, self._delays.gate_s(self.jobs[trainer.job], trainer), self._reach_gate)
        elif trainer.in_place:
            # Whatever is formed meanwhile: who was not there in time joins later.
            self._outside.at(self._outside.now + self._startup_s(trainer), partial(self._reach_gate, trainer))
        else:
            self._start_up(trainer, ahead_s=0.0)

    def _start_joiner(self, trainer: SimulatedTrainer, request: Request) -> None:
        """A node that is to be taken in: the others train on, so nothing that happens to them concerns it."""
        node, spell = request.node, self._spells[request.node]

        def reach_gate() -> None:
            if node in trainer.parts and self._spells[node] == spell:
                self._report(node, ev.AtGate, trainer, address=node)

        seconds = self._delays.join_s(self.jobs[trainer.job], trainer)
        if not trainer.formed:  # it comes to the gate with those that it is to start with
            seconds = max(seconds, trainer.up_at - self._outside.now)
        if seconds:
            self._outside.at(self._outside.now + seconds, reach_gate)
        else:
            reach_gate()

    def _reach_gate(self, trainer: SimulatedTrainer) -> None:
        for node in trainer.nodes:
            if node in trainer.parts:
                self._report(node, ev.AtGate, trainer, address=node if trainer.in_place else "")

    def _open(self, trainer: SimulatedTrainer, request: Request) -> None:
        trainer.placement = request.placement
        if self._all_arrived(trainer, request.node):
            self._start_up(trainer, ahead_s=self._delays.gate_s(self.jobs[trainer.job], trainer))

    def _start_up(self, trainer: SimulatedTrainer, ahead_s: float) -> None:
        """`ahead_s`: what of the start-up was done at the gate."""
        self._later(trainer, max(0.0, self._startup_s(trainer, ahead_s) - ahead_s), self._train)

    def _startup_s(self, trainer: SimulatedTrainer, ahead_s: float = 0.0) -> float:
        job, past = self.jobs[trainer.job], self._past[trainer.job]
        waited_s = self._outside.now - job.submit_s if not ahead_s else 0.0
        return self._delays.startup_s(job, past, trainer, waited_s)

    # --- training --------------------------------------------------------------------------------------------------

    def _train(self, trainer: SimulatedTrainer) -> None:
        past, placement = self._past[trainer.job], trainer.placement
        if placement is None:
            raise AssertionError(f"job {trainer.job} trains without GPUs")
        past.started, past.nodes, past.gpus = True, placement.nodes, len(placement.gpus)
        trainer.step = past.step
        self._report(trainer.nodes[0], ev.TrainerReady, trainer, step=int(trainer.step))
        self._go_on(trainer)
        if self.jobs[trainer.job].predicted is not None:
            self._tell_progress(trainer)

    def _go_on(self, trainer: SimulatedTrainer) -> None:
        """It trains from now on, at the rate of its placement."""
        job, placement, conditions = self.jobs[trainer.job], trainer.placement, self._conditions
        if placement is None:
            raise AssertionError(f"job {trainer.job} trains without GPUs")
        kind = self._nodes[placement.nodes[0]].kind
        trainer.since = self._outside.now
        trainer.alone_rate = job.profile.on(kind).rate(placement.per_node, len(placement.shares))
        trainer.rate = trainer.alone_rate * self._speed(trainer)
        fails_s = self._delays.fails_after_s(trainer)
        first_s = conditions.progress_s if conditions.first_progress_s is None else conditions.first_progress_s
        trainer.fails_at, trainer.progress_at = trainer.since + fails_s, trainer.since + first_s
        self._schedule(trainer, fails_s, first_s)
        self._pace_beside(trainer)

    def _schedule(self, trainer: SimulatedTrainer, fails_s: float, progress_s: float) -> None:
        """What is to happen to it at its rate. It fails, and tells its progress, in so many seconds."""
        left_s = (self.jobs[trainer.job].steps - trainer.step) / trainer.rate
        if fails_s < left_s:
            self._later(trainer, fails_s, self._fail)
        else:
            self._later(trainer, left_s, self._finish)
        if left_s > progress_s:
            self._later(trainer, progress_s, self._progress)

    def _settle(self, trainer: SimulatedTrainer) -> None:
        """It trains no longer, at the step that it came to."""
        trainer.settle(self._outside.now)
        self._pace_beside(trainer)

    # --- two on a GPU ----------------------------------------------------------------------------------------------

    def _beside(self, trainer: SimulatedTrainer) -> tuple[list[SimulatedTrainer], list[SimulatedTrainer]]:
        """Who trains on GPUs of it, too, and who on other GPUs of its nodes, where that counts."""
        shared: list[SimulatedTrainer] = []
        apart: list[SimulatedTrainer] = []
        if self._slowdowns is None or trainer.placement is None:
            return shared, apart
        gpus = frozenset(trainer.placement.gpus)
        there = {key: other for node in trainer.placement.nodes for key, other in self._on.get(node, {}).items()}
        for other in there.values():
            if other is not trainer and other.since is not None:
                (apart if gpus.isdisjoint(_gpus_held(other)) else shared).append(other)
        return shared, apart if self._apart else []

    def _speed(self, trainer: SimulatedTrainer) -> float:
        """The part of its speed that it has beside others: its ranks wait for the slowest one."""
        own, speeds, slower = self.jobs[trainer.job], [1.0], [1.0]
        matrix = self._slowdowns or ()
        shared, apart = self._beside(trainer)
        for other in shared:
            pair = (own, self.jobs[other.job])
            behind = own.share is not None and own.share.as_background
            front, back = pair[::-1] if behind else pair
            cell = slowdown_of(matrix, (front.profile.name, front.kind), (back.profile.name, back.kind))
            speeds.append(cell.speeds(None if front.share is None else front.share.slowdown)[behind])
        for other in apart:
            near = self.jobs[other.job]
            found = interference(matrix, (own.profile.name, own.kind), (near.profile.name, near.kind))
            slower.append(1.0 if found is None else found.speeds(None)[0])
        return min(speeds) * min(slower)

    def _pace_beside(self, trainer: SimulatedTrainer) -> None:
        """Those on its GPUs and nodes go on at another speed where it has begun or ceased to train."""
        now = self._outside.now
        for other in itertools.chain(*self._beside(trainer)):
            rate = other.alone_rate * self._speed(other)
            if rate != other.rate:
                self._count_checkpoints(other)
                other.settle(now)
                other.since, other.rate = now, rate
                self._schedule(other, max(0.0, other.fails_at - now), max(0.0, other.progress_at - now))

    # ---------------------------------------------------------------------------------------------------------------

    def _progress(self, trainer: SimulatedTrainer) -> None:
        self._tell_progress(trainer)
        trainer.progress_at = self._outside.now + self._conditions.progress_s
        self._later(trainer, self._conditions.progress_s, self._progress)

    def _tell_progress(self, trainer: SimulatedTrainer) -> None:
        job, step = self.jobs[trainer.job], trainer.step_at(self._outside.now)
        tells = not self._conditions.spread and job.believed_steps is None
        total = predicted_total(job, step) if tells else None
        self._report(trainer.nodes[0], ev.Progressed, trainer, step=min(int(step), job.steps), total=total)

    # --- memberships -----------------------------------------------------------------------------------------------

    def _rescale(self, trainer: SimulatedTrainer, request: Request) -> None:
        """Its ranks on this node are notified of a membership; they form it once those of all its nodes are."""
        if request.membership > trainer.membership:
            trainer.membership = request.membership
            trainer.arrived.clear()
        elif request.membership < trainer.membership:
            return
        trainer.arrived.add(request.node)
        if trainer.arrived.issuperset(request.nodes):
            trainer.arrived.clear()
            self._form(trainer, request)

    def _form(self, trainer: SimulatedTrainer, request: Request) -> None:
        now = self._outside.now
        if trainer.formed:
            self._count_checkpoints(trainer)
            self._settle(trainer)
            job = self.jobs[trainer.job]
            stall_s = self._delays.rescale_s(job, trainer, len(trainer.nodes), len(request.nodes))
        else:
            trainer.step, trainer.formed = self._past[trainer.job].step, True
            stall_s = trainer.up_at - now  # of those that came last; to meet costs nothing more
        trainer.turn += 1
        trainer.lost.clear()
        trainer.nodes, trainer.placement = request.nodes, request.placement
        if stall_s > 0:
            self._later(trainer, stall_s, partial(self._formed, stall_s))
        else:
            self._formed(0.0, trainer)

    def _formed(self, stall_s: float, trainer: SimulatedTrainer) -> None:
        past, placement = self._past[trainer.job], trainer.placement
        if placement is None:
            raise AssertionError(f"job {trainer.job} trains without GPUs")
        past.started, past.nodes, past.gpus = True, placement.nodes, len(placement.gpus)
        self._report(trainer.nodes[0], ev.Reformed, trainer, step=int(trainer.step), seconds=stall_s)
        self._go_on(trainer)

    def _lose_member(self, trainer: SimulatedTrainer, node: str) -> None:
        """The others keep their state, and wait for a membership without it; unless nobody is left."""
        if not trainer.formed or node not in trainer.nodes:
            return
        trainer.lost.add(node)
        if trainer.lost.issuperset(trainer.nodes):
            self._lose_progress(trainer)
        else:
            self._count_checkpoints(trainer)
            self._settle(trainer)  # also where it was about to form one with that node

    # --- ends ------------------------------------------------------------------------------------------------------

    def _finish(self, trainer: SimulatedTrainer) -> None:
        job = self.jobs[trainer.job]
        trainer.step, trainer.since = float(job.steps), None
        self._tell_progress(trainer)
        for node in sorted(trainer.parts):
            self._exit(trainer, node, code=0, step=job.steps, attached=True, done=True)
        self._pace_beside(trainer)

    def _fail(self, trainer: SimulatedTrainer) -> None:
        """It is killed from outside, as by a broken node: nothing that its user did."""
        node = trainer.nodes[0]
        if trainer.in_place:
            self._lose_member(trainer, node)
        else:
            self._lose_progress(trainer)
        self._exit(trainer, node, signal="SIGKILL", step=int(trainer.step), attached=True)

    def _lose_progress(self, trainer: SimulatedTrainer) -> None:
        """Its processes die now: what is left are the checkpoints that it wrote at every interval."""
        self._count_checkpoints(trainer)
        self._settle(trainer)

    def _count_checkpoints(self, trainer: SimulatedTrainer) -> None:
        """What it wrote while it trained until now, in one report: nothing needs it before."""
        if trainer.since is None:
            return
        now, interval_s = self._outside.now, self._conditions.checkpoint_s
        trained_s = trainer.unsaved_s + now - trainer.since
        trainer.unsaved_s = trained_s % interval_s
        if trained_s >= interval_s:
            past = self._past[trainer.job]
            past.step = max(past.step, trainer.step_at(now) - trainer.unsaved_s * trainer.rate)
            writer = next((node for node in trainer.nodes if node in self._nodes), None)
            if writer is not None:
                self._report(writer, ev.Saved, trainer, step=int(past.step))

    def _exit(self, trainer: SimulatedTrainer, node: str, **how: Any) -> None:
        key = (trainer.job, trainer.number)
        if node in trainer.parts:
            trainer.parts.discard(node)
            trainer.arrived.discard(node)
            self._on[node].pop(key, None)
            if how.get("ended_by") != "leave":
                trainer.turn += 1
            self._report(node, ev.Exited, trainer, **how)
            self._report(node, ev.GpusFreed, trainer)
        if not trainer.parts:
            self._trainers.pop(key, None)

    def _suspend(self, trainer: SimulatedTrainer, request: Request) -> None:
        """Each node's part gets a request of its own."""
        if trainer.since is None and not trainer.stopping and not trainer.formed:  # nothing to save yet
            trainer.turn += 1
            self._exit(trainer, request.node, code=143, ended_by="suspend")
            return
        if not trainer.stopping:
            self._count_checkpoints(trainer)
            self._settle(trainer)
            trainer.stopping = True
            trainer.arrived.clear()
        trainer.arrived.add(request.node)
        self._save_once_asked(trainer)

    def _save_once_asked(self, trainer: SimulatedTrainer) -> None:
        """The checkpoint is written once all parts that are left have the request, and only then."""
        if trainer.parts and trainer.arrived >= trainer.parts:
            trainer.arrived.clear()
            seconds = self._delays.save_s(self.jobs[trainer.job], trainer, self._moves(trainer))
            self._later(trainer, seconds, partial(self._save, seconds))

    def _moves(self, trainer: SimulatedTrainer) -> bool:
        """Whether the plan wants it on other nodes."""
        world = self._outside.world
        running, target = world.jobs[trainer.job].running, world.targets.get(trainer.job)
        rescaled = running is not None and running.purpose is Purpose.RESCALE
        return rescaled and target is not None and target.placement is not None and (
            target.placement.nodes != trainer.nodes
        )  # fmt: skip

    def _save(self, seconds: float, trainer: SimulatedTrainer) -> None:
        writer = trainer.nodes[0]
        if writer not in trainer.parts:  # it was lost: nobody saves
            for node in sorted(trainer.parts):
                self._exit(trainer, node, code=143, ended_by="suspend", attached=True)
            return
        self._past[trainer.job].step = trainer.step
        step = int(trainer.step)
        self._tell_progress(trainer)
        took = {"seconds": seconds} if self._conditions.spread else {}  # else journals are those of earlier versions
        self._report(writer, ev.Saved, trainer, step=step, final=True, **took)
        for node in sorted(trainer.parts):
            self._exit(trainer, node, code=0, ended_by="suspend", attached=True)
