"""A modelled batch system round the modelled cluster: its nodes are ours only while a pilot of ours runs on them.

Somebody else's batch jobs come, announced or not; pilots wait, run, are preempted with and without a grace, requeued
under the same id, refused, and forgotten by polls. The machine itself sees to it that no node is given twice. `rough`:
agents come late, twice, or at once on nodes that were another pilot's, polls are told late, the batch system's clock is
another one, and the daemon is away for minutes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.pilots import pilot_policy
from hpcdl.core.controller.controller import Controller
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, Pilot, PilotSpec
from hpcdl.core.rules.intake import Settings
from hpcdl.policies import all_policies
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Agent

GPUS = 4
POLL_S = 10.0


@dataclass(slots=True)
class Run:
    """A batch job of ours as the machine knows it."""

    id: str
    pilot: int
    spec: PilotSpec
    state: BatchState = BatchState.PENDING
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    turn: int = 0
    preempted: bool = False
    reason: str = ""
    missed: int = 0


@dataclass(slots=True)
class Claim:
    """Somebody else's batch job: nodes from `start` to `end`."""

    nodes: frozenset[str]
    start: float
    end: float
    shown: bool = True
    begun: bool = field(default=False)


class BatchCluster(Cluster):
    """The Controller, agents that come with pilots, and a machine that is mostly somebody else's."""

    def __init__(
        self, nodes: int, site: PilotLimits, *, policy: str, seed: int, grace_s: float = 30.0, rough: bool = False
    ) -> None:
        self.site = site
        self.rough = rough
        self.skew_s = random.Random(seed).choice([0.0, -20.0, 20.0]) if rough else 0.0
        self.down = False
        self.up_since = 0.0
        self.too_late: list[str] = []
        """Trainers that a walltime's end found still running, though the daemon was there to have them leave."""
        self.grace_s = grace_s
        self.runs: dict[str, Run] = {}
        self.claims: list[Claim] = []
        self.most_pilots = self.restarts = 0
        super().__init__({f"m{n}": GPUS for n in range(1, nodes + 1)}, seed=seed, settings=Settings(300.0))
        self.policies = all_policies()
        self.start_daemon()
        self.send(cmd.ChoosePolicy(policy))
        self.at(self.now + POLL_S, self._poll)

    def _new_controller(self) -> Controller:
        return Controller(self.journal, self.policies, self.profiles, self.settings, pilot_policy(self.site))

    def send(self, *commands: cmd.Command) -> list[Any]:
        """See `Cluster`; while the daemon is down nothing reaches it."""
        return [] if self.down else super().send(*commands)

    def stay_away(self, seconds: float) -> None:
        """The daemon is down for so long; the agents hear nothing, and whatever happens meanwhile it sees later."""
        for node, agent in self.agents.items():
            if agent.connected:
                self.disconnect(node)
        self.down = True
        self.run(seconds)
        self.down = False
        self.up_since = self.now
        self.restart_daemon()

    def connect(self, node: str) -> None:
        """Only nodes that a pilot holds have an agent."""
        if self._holder(node) is not None:
            super().connect(node)

    def _call(self, node: str, turn: int | None = None) -> list[cmd.Command]:
        """`turn`: of the batch job that this agent came with."""
        run = self._holder(node)
        if self.down or run is None or (turn is not None and run.turn != turn):
            return []
        return super()._call(node)

    def _come_again(self, node: str, turn: int) -> list[cmd.Command]:
        """The agent dies with all that it knows, and another one comes in its place, in the same batch job."""
        run = self._holder(node)
        if run is None or run.turn != turn:
            return []
        self.crash_node(node)
        return self._call(node, turn)

    def _inventory(self, agent: Agent, log_id: str) -> cmd.Inventory:
        run = self._holder(agent.node)
        assert run is not None
        assert run.started_at is not None
        until = run.started_at + run.spec.walltime_s
        gpus = tuple(agent.gpus)
        return cmd.Inventory(agent.node, gpus, 8, 1000, 1, f"boot{agent.boot}", log_id, True, until, (), run.id)

    # --- the machine -----------------------------------------------------------------------------------------------

    def _holder(self, node: str) -> Run | None:
        return next((run for run in self.runs.values() if node in run.nodes), None)

    def claim(self, nodes: Sequence[str], in_s: float, for_s: float, shown: bool) -> None:
        """Somebody else's batch job will take these nodes; `shown`: the batch system plans it openly."""
        claim = Claim(frozenset(nodes), self.now + in_s, self.now + in_s + for_s, shown)
        self.claims.append(claim)
        self.at(claim.start, lambda: self._take_back(claim))

    def _take_back(self, claim: Claim) -> list[cmd.Command]:
        commands: list[cmd.Command] = []
        claim.begun = True
        for run in list(self.runs.values()):
            if run.nodes and claim.nodes.intersection(run.nodes) and run.state is BatchState.RUNNING:
                commands += self._preempt(run)
        return commands

    def _busy(self, node: str, until: float) -> bool:
        """Whether somebody else has the node, or is known to get it before `until`."""
        return any(
            node in claim.nodes and claim.end > self.now and (claim.begun or (claim.shown and claim.start < until))
            for claim in self.claims
        )

    def _preempt(self, run: Run) -> list[cmd.Command]:
        run.preempted, run.state, run.reason = True, BatchState.ENDING, "Preempted"
        grace_s = self.random.choice([self.grace_s, self.grace_s, 0.0])
        turn = run.turn
        requeued = self.random.random() < 0.3
        self.at(self.now + grace_s, lambda: self._stop_run(run, turn, requeued))
        told = self.random.random() < 0.8 and grace_s
        return [
            cmd.Drain(node, self.now + grace_s, True, "preempted") for node in run.nodes if told and self._is_up(node)
        ]

    def _is_up(self, node: str) -> bool:
        return self.agents[node].connected

    def _stop_run(self, run: Run, turn: int, requeued: bool = False) -> list[cmd.Command]:
        if run.turn != turn or run.state is BatchState.ENDED:
            return []
        nodes, run.nodes = run.nodes, ()
        run.turn += 1
        run.state = BatchState.PENDING if requeued else BatchState.ENDED
        run.started_at = None
        for node in nodes:
            self.crash_node(node)
        if requeued:
            run.preempted, run.reason = False, "BeginTime"
            after_s = self.random.choice([0.0, 2.0, 60.0]) if self.rough else 60.0
            self.at(self.now + after_s, lambda: self._try_start(run))
        return []

    def _try_start(self, run: Run) -> list[cmd.Command]:
        if run.state is not BatchState.PENDING:
            return []
        end = self.now + run.spec.walltime_s
        free = [node for node in self.agents if self._holder(node) is None and not self._busy(node, end)]
        wanted = run.spec.on or tuple(free[: run.spec.nodes])
        if len(wanted) < run.spec.nodes or not set(wanted) <= set(free):
            self.at(self.now + 15.0, lambda: self._try_start(run))
            return []
        assert all(self._holder(node) is None for node in wanted)
        run.state, run.nodes, run.started_at, run.reason = BatchState.RUNNING, wanted, self.now, ""
        turn = run.turn
        self.at(end, lambda: self._end_of_walltime(run, turn))
        for node in wanted:
            if self.random.random() > 0.03:  # else its agent never comes
                after_s = self.random.uniform(2.0, 20.0)
                if self.rough:
                    after_s = self.random.choice([0.0, 0.1, after_s, 100.0])
                    if self.random.random() < 0.1:
                        again_s = after_s + self.random.uniform(0.0, 60.0)
                        self.at(self.now + again_s, partial(self._come_again, node, turn))
                self.at(self.now + after_s, partial(self._call, node, turn))
        return []

    def _end_of_walltime(self, run: Run, turn: int) -> list[cmd.Command]:
        if run.turn == turn and run.state is BatchState.RUNNING and self.now > self.up_since + 120.0:
            for node in run.nodes:
                known = self.world.nodes.get(node)
                if known is not None and known.connected and self.now > known.since + 120.0:
                    users = {user for gpu, user in self.users.items() if gpu.node == node}
                    self.too_late += [f"{self.now}: {user} on {node}" for user in users]
        return self._stop_run(run, turn)

    # --- what the daemon's thread does -----------------------------------------------------------------------------

    def holes(self) -> tuple[Hole, ...]:
        """As an adapter would tell them."""
        found: dict[float | None, list[str]] = {}
        for node in self.agents:
            if self._holder(node) is None and not self._busy(node, self.now):
                ends = [c.start for c in self.claims if node in c.nodes and c.shown and c.start > self.now]
                found.setdefault(min(ends, default=None), []).append(node)
        return tuple(
            Hole("q", len(names), tuple(names), GPUS, "", until, preemptable=True) for until, names in found.items()
        )

    def _poll(self) -> list[cmd.Command]:
        self.at(self.now + POLL_S, self._poll)
        if self.down:
            return []
        living = [pilot for pilot in self.world.pilots.values() if not pilot.over]
        self._look(living)
        for pilot in living:
            if not pilot.batch_id:
                self._submit(pilot)
            elif pilot.cancelled and pilot.batch_id in self.runs:
                run = self.runs[pilot.batch_id]
                self._stop_run(run, run.turn)
        if self.random.random() < 0.1:
            return []  # the batch system did not answer
        ids = {pilot.batch_id for pilot in self.world.pilots.values() if pilot.batch_id and not pilot.over}
        ids |= {node.allocation for node in self.world.nodes.values() if node.allocation and not node.lost}
        seen = cmd.BatchSeen(tuple(self._shown(each) for each in sorted(ids)), self.holes(), self.now)
        late_s = self.random.choice([0.0, 0.5, 5.0, 25.0]) if self.rough else 0.0
        if not late_s:
            return [seen]
        told: Callable[[], Sequence[cmd.Command]] = lambda: [seen]  # noqa: E731
        self.at(self.now + late_s, told)
        return []

    def _look(self, living: list[Pilot]) -> None:
        """What must hold at any time."""
        self.most_pilots = max(self.most_pilots, len(living))
        assert len(living) <= self.site.pilots_max
        wanted = [node for pilot in living for node in (pilot.nodes or pilot.spec.on)]
        assert len(wanted) == len(set(wanted)), wanted

    def _shown(self, batch_id: str) -> BatchJob:
        run = self.runs[batch_id]
        flaw = self.random.random()
        if flaw < 0.06 and run.missed < 2:
            run.missed += 1
            return BatchJob(batch_id, BatchState.MISSING)
        run.missed = 0
        if flaw > 0.96:
            return BatchJob(batch_id, BatchState.UNKNOWN)
        start = None if run.started_at is None else run.started_at + self.skew_s
        until = None if start is None else start + run.spec.walltime_s
        return BatchJob(batch_id, run.state, "", "q", run.nodes, start, until, run.reason, run.preempted)

    def _submit(self, pilot: Pilot) -> None:
        """Looks for the pilot's mark first; an answer may be lost with the daemon."""
        known = next((run for run in self.runs.values() if run.pilot == pilot.id), None)
        if known is None:
            if pilot.cancelled or self.random.random() < 0.1:
                self.send(cmd.PilotNotTaken(pilot.id, "cancelled" if pilot.cancelled else "limit reached"))
                return
            known = Run(str(1000 + len(self.runs)), pilot.id, pilot.spec)
            self.runs[known.id] = known
            run = known
            self.at(self.now + self.random.uniform(1.0, 8.0), lambda: self._try_start(run))
            if self.random.random() < 0.15:
                self.restarts += 1
                self.restart_daemon()
                return
        self.send(cmd.PilotTaken(pilot.id, known.id))
