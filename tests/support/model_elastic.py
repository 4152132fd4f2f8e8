"""Trainers of the modelled cluster whose ranks form memberships: they wait at the gate, re-form, break and leave.

One `Body` is what runs on one node. What trains together is a `Group`; the model sees to it that a job never has two.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Request
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.units import GpuRef

if TYPE_CHECKING:
    from tests.support.model_cluster import Cluster

FORM_PATIENCE_S = 8.0
"""Ranks that do not find the others of a membership say so after so long."""


@dataclass(slots=True, eq=False)
class Body:
    """A job's processes on one node. `told`: the newest membership that it heard of, `members` of it.

    `step`: of the state that it has, None where it has none. `gave_up`: the newest membership of which it said that
    the others do not answer.
    """

    job: int
    number: int
    node: str
    since: int
    gpus: tuple[int, ...]
    told: int = 0
    members: tuple[str, ...] = ()
    at_gate: bool = False
    step: float | None = None
    leaving: bool = False
    asked: bool = False
    gave_up: int = 0
    alive: bool = True


@dataclass(slots=True, eq=False)
class Group:
    """Those of one membership, which train together from `since` on; `since` None: they have stopped."""

    job: int
    number: int
    membership: int
    bodies: tuple[Body, ...]
    step: float
    since: float | None
    rate: float


@dataclass(slots=True)
class Elastic:
    """All elastic trainers of a cluster. `formed`: how many memberships were, by job. `claims`: who may write a job's
    checkpoints. `reached`: the step that an incarnation had come to. `dies_joining`: so many of a job's joiners die.
    """

    cluster: "Cluster"
    bodies: dict[tuple[int, int, str], Body] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    claims: dict[int, tuple[int, int]] = field(default_factory=dict)
    formed: dict[int, int] = field(default_factory=dict)
    dies_joining: dict[int, int] = field(default_factory=dict)
    reached: dict[tuple[int, int], float] = field(default_factory=dict)

    # --- what agents ask -------------------------------------------------------------------------------------------

    def take(self, request: Request) -> None:
        """A request that the agent has not taken before."""
        key = (request.job, request.incarnation, request.node)
        body = self.bodies.get(key)
        if request.kind == "start":
            self._start(request)
        elif body is not None and body.since <= request.membership:
            acts = {"rescale": self._rescale, "leave": self._leave, "suspend": self._suspend, "end": self._end}
            acts[request.kind](body, request)

    def _start(self, request: Request) -> None:
        key = (request.job, request.incarnation, request.node)
        assert key not in self.bodies, f"{key} is there already"
        assert request.placement is not None
        gpus = next(share.gpus for share in request.placement.shares if share.node == request.node)
        for index in gpus:
            user = self.cluster.users.setdefault(GpuRef(request.node, index), (request.job, request.incarnation))
            assert user == (request.job, request.incarnation), f"{request.node}:{index} is used by {user}"
        body = self.bodies[key] = Body(request.job, request.incarnation, request.node, request.membership, gpus)
        self._says(body, ev.Started, pid=1)
        self._says(body, ev.Attached)
        wait = 1.0 + self.cluster.random.random() * 6.0
        if request.membership > 1 and self.dies_joining.get(request.job, 0) > 0:
            self.dies_joining[request.job] -= 1
            self._later(wait / 2, body, lambda: self.exit(body, code=1))
        else:
            self._later(wait, body, lambda: self._reach_gate(body))

    def _reach_gate(self, body: Body) -> None:
        body.at_gate = True
        self._says(body, ev.AtGate, address=f"{body.node}:1")

    def _rescale(self, body: Body, request: Request) -> None:
        if request.membership <= body.told or body.leaving:
            return
        assert body.at_gate, f"{body} was told of a membership before it was there"
        assert request.address, request
        assert body.node in request.nodes
        body.told, body.members = request.membership, request.nodes
        self._boundary(body)
        self._form(body)
        self._later(FORM_PATIENCE_S, body, lambda: self._miss(body, request.membership))

    def _boundary(self, body: Body) -> None:
        """The ranks agree on a step at which they stop, for one of them knows of something newer."""
        group = self.groups.get(body.job)
        if group is not None and body in group.bodies:
            self._stop(group)
            for other in group.bodies:  # those that are never told say so
                self._later(2 * FORM_PATIENCE_S, other, partial(self._miss, other, group.membership))

    def _stop(self, group: Group) -> None:
        if group.since is not None:
            group.step += (self.cluster.now - group.since) * group.rate
            group.since = None
            for body in group.bodies:
                body.step = float(int(group.step))  # the step that failed is lost
            self.reached[group.job, group.number] = float(int(group.step))
        if self.groups.get(group.job) is group:
            del self.groups[group.job]

    def _form(self, body: Body) -> None:
        """Once the last of them has heard of it, and all are there, the new membership trains."""
        others = [self.bodies.get((body.job, body.number, node)) for node in body.members]
        if any(o is None or not o.alive or o.told != body.told or o.gave_up >= o.told or o.asked for o in others):
            return
        there = tuple(o for o in others if o is not None)
        number = body.told
        wait = self.cluster.random.choice((0.1, 0.5, 3.0))

        def happen() -> None:
            if all(o.alive and o.told == number and o.gave_up < number and not (o.asked or o.leaving) for o in there):
                self._train(there, number)

        self._later(wait, body, happen)

    def _train(self, there: tuple[Body, ...], number: int) -> None:
        body = there[0]
        running = self.groups.get(body.job)
        if running is not None and running.membership == number and running.number == body.number:
            return
        assert running is None, f"job {body.job} trains as {running.number}.{running.membership} and as {number}"
        spec, profile = self._spec(body.job), self.cluster.profiles.by_name["plain"]
        claim = self.claims.get(body.job, (0, 0))
        assert (body.number, number) > claim, f"{number} is not above {claim}"
        self.claims[body.job] = (body.number, number)
        known = [o.step for o in there if o.step is not None]
        durable = self.cluster.durable.get(body.job, 0.0)
        step = max(known, default=durable)
        reached = self.reached.get((body.job, body.number), durable)
        assert step >= reached, f"job {body.job} goes on from step {step}: it was at {reached}"
        rate = profile.rate(min(len(o.gpus) for o in there), len(there))
        for each in there:
            each.step = step
        group = Group(body.job, body.number, number, there, step, self.cluster.now, rate)
        self.groups[body.job] = group
        self.formed[body.job] = self.formed.get(body.job, 0) + 1
        self._says(body, ev.Reformed, step=int(step), seconds=0.5)
        left = max(0.0, (spec.steps or 100) - step)
        self.cluster.at(self.cluster.now + left / rate, lambda: self._in(group, self._finish))
        fails = self.cluster.conduct_of(body.job).fails
        if fails and left > 5:
            self.cluster.at(self.cluster.now + 5 / rate, lambda: self._in(group, self._fail))
        self._tell(group)

    def _in(self, group: Group, what: Callable[[Group], None]) -> list[Any]:
        if self.groups.get(group.job) is group:
            what(group)
        return []

    def _tell(self, group: Group) -> None:
        """Progress, and a checkpoint, now and then."""

        def happen(group: Group) -> None:
            assert group.since is not None
            step = group.step + (self.cluster.now - group.since) * group.rate
            writer = group.bodies[0]
            self._says(writer, ev.Progressed, step=int(step))
            if self.cluster.random.random() < 0.3 and self._may_write(writer):
                self.cluster.durable[group.job] = max(self.cluster.durable.get(group.job, 0.0), float(int(step)))
                self._says(writer, ev.Saved, step=int(step), seconds=0.1)
            self._tell(group)

        self.cluster.at(self.cluster.now + 7.0, lambda: self._in(group, happen))

    def _may_write(self, body: Body) -> bool:
        return self.claims.get(body.job) == (body.number, body.told)

    def _finish(self, group: Group) -> None:
        self._stop(group)
        for body in group.bodies:
            self._says(body, ev.Progressed, step=self._spec(body.job).steps or 100)
            self.exit(body, code=0, step=self._spec(body.job).steps or 100, attached=True, done=True)

    def _fail(self, group: Group) -> None:
        fails = self.cluster.conduct_of(group.job).fails
        code = fails.pop(0) if fails else 1
        self._stop(group)
        self.exit(self.cluster.random.choice(group.bodies), code=code, attached=True)

    def _leave(self, body: Body, request: Request) -> None:
        body.leaving = True
        self._boundary(body)
        self._later(0.2, body, lambda: self.exit(body, code=0, ended_by="leave", attached=True))

    def _end(self, body: Body, request: Request) -> None:
        self._boundary(body)
        self.exit(body, signal="SIGTERM", ended_by="end", attached=True)

    def _suspend(self, body: Body, request: Request) -> None:
        body.asked = True
        had = body.step is not None
        self._boundary(body)
        if not had or body.leaving:
            self.exit(body, code=0, ended_by="suspend", attached=True)
            return
        self._later(2.0, body, lambda: self._save(body))
        kill = {"signal": "SIGKILL", "ended_by": "suspend", "attached": True}
        self._later(request.grace_s, body, lambda: self.exit(body, **kill))

    def _save(self, body: Body) -> None:
        """The first rank that was asked saves what they have; the others go when that is done."""
        mine = [o for o in self.bodies.values() if (o.job, o.number) == (body.job, body.number) and o.asked and o.alive]
        mine = [o for o in mine if not o.leaving and o.step is not None and o.told == max(x.told for x in mine)]
        if body not in mine or self.cluster.conduct_of(body.job).never_answers:
            return
        if body.job in self.groups:
            return  # somebody trains on as a newer membership: the daemon never asked for that
        best = max(o.step or 0.0 for o in mine)
        self.claims[body.job] = max(self.claims.get(body.job, (0, 0)), (body.number, body.told))
        if best >= self.cluster.durable.get(body.job, 0.0) and self._may_write(body):
            self.cluster.durable[body.job] = best
            self._says(body, ev.Saved, step=int(best), seconds=1.0, final=True)
        for each in mine:
            self.exit(each, code=0, ended_by="suspend", attached=True)

    # --- what happens ----------------------------------------------------------------------------------------------

    def exit(self, body: Body, **how: Any) -> None:
        """Its processes end; the agent says so, and then that the GPUs are free."""
        if not body.alive:
            return
        self._die(body)
        self._says(body, ev.Exited, **how)
        agent = self.cluster.agents[body.node]
        boot = agent.boot

        def freed() -> list[Any]:
            if agent.boot == boot:
                self._free(body)
                self._says(body, ev.GpusFreed)
            return []

        self.cluster.at(self.cluster._soon(), freed)

    def keep_only(self, node: str, expected: Container[tuple[int, int]]) -> None:
        """The agent ends what the daemon does not expect to be there; nobody is told."""
        for body in [each for each in self.bodies.values() if each.node == node]:
            if (body.job, body.number) not in expected:
                self._die(body)
                self._free(body)

    def vanish(self, node: str) -> None:
        """All that runs on the node is gone, and nobody is told."""
        for body in [each for each in self.bodies.values() if each.node == node]:
            self._die(body)
            self._free(body)

    def _die(self, body: Body) -> None:
        was = body.alive
        body.alive = False
        group = self.groups.get(body.job)
        if was and group is not None and body in group.bodies:
            self._stop(group)
            for other in group.bodies:
                delay = self.cluster.random.choice((0.1, 1.0, 4.0))
                self._later(delay, other, partial(self._miss, other, group.membership))

    def _free(self, body: Body) -> None:
        self.bodies.pop((body.job, body.number, body.node), None)
        users = self.cluster.users
        for gpu in [GpuRef(body.node, index) for index in body.gpus]:
            if users.get(gpu) == (body.job, body.number):
                del users[gpu]

    def _miss(self, body: Body, membership: int) -> None:
        """It finds that the others of this membership do not answer, unless there is a newer one."""
        group = self.groups.get(body.job)
        trains = group is not None and body in group.bodies
        if trains or body.told != membership or body.gave_up >= membership or body.asked or body.leaving:
            return
        body.gave_up = membership
        self._says(body, ev.Broken, step=int(body.step or 0), why="timed out")

    def kill(self, job: int, **how: Any) -> bool:
        """Somebody kills it on one of its nodes; whether there was one."""
        there = sorted((b for b in self.bodies.values() if b.job == job and b.alive), key=lambda b: b.node)
        if there:
            self.exit(self.cluster.random.choice(there), **(how or {"signal": "SIGKILL"}))
        return bool(there)

    def absent(self, node: str) -> None:
        """The agent has heard nothing of the daemon for as long as its lease."""
        for body in [each for each in self.bodies.values() if each.node == node]:
            self._boundary(body)
            self.exit(body, code=0, ended_by="absence", attached=True)

    def hang(self, job: int) -> None:
        """A collective of the job fails, though everybody is there."""
        group = self.groups.get(job)
        if group is not None:
            self._stop(group)
            for body in group.bodies[: self.cluster.random.randint(1, len(group.bodies))]:
                self._miss(body, group.membership)
            for body in group.bodies:
                self._later(FORM_PATIENCE_S, body, partial(self._miss, body, group.membership))

    # --- small things ----------------------------------------------------------------------------------------------

    def _spec(self, job: int) -> JobSpec:
        spec: JobSpec = self.cluster.world.jobs[job].spec
        return spec

    def _later(self, seconds: float, body: Body, what: Callable[[], Any]) -> None:
        def happen() -> list[Any]:
            if body.alive:
                what()
            return []

        self.cluster.at(self.cluster.now + seconds, happen)

    def _says(self, body: Body, kind: type[ev.Report], **more: Any) -> None:
        newest = max(body.told, body.since)
        exact = kind in (ev.Reformed, ev.Broken)
        number = newest if exact or self.cluster.random.random() < 0.5 else body.since
        self.cluster._report(self.cluster.agents[body.node], kind(body.job, body.number, number, body.node, **more))
