"""A modelled cluster for the Controller: virtual time, agents with numbered logs, trainers paced by their profiles.

Everything that happens is an entry of a heap; what happens at the same time reaches the Controller in one batch. The
cluster itself sees to it that no GPU is ever used by two trainers, whatever the Controller believes.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError
from hpcdl.core.controller.reconcile import reconcile
from hpcdl.core.fold.fold import fold
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import GpuFaulted
from hpcdl.core.model.incarnation import Cause, Role
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Policies, Profiles
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import GpuInfo, JobState, World, validate
from hpcdl.core.rules.intake import Settings
from hpcdl.marble import POLICIES
from tests.support.model_elastic import Elastic
from tests.support.model_parts import PLAIN, Agent, Conduct, FlakyJournal, Trainer


class Cluster:
    """The Controller and what it thinks it controls."""

    def __init__(
        self,
        nodes: dict[str, int],
        *,
        policy: str = "marble",
        profiles: dict[str, Profile] | None = None,
        seed: int = 0,
        delay_s: float = 0.0,
        settings: Settings | None = None,
        watched: bool = False,
        gpu_memory_mib: int = 0,
    ) -> None:
        """`delay_s`: the longest time that a request or a report takes. `watched`: each decision is looked at twice."""
        self.now = self.decided_at = 1_000.0
        self.journal = FlakyJournal()
        self.policies = Policies()
        self.policies.add(*POLICIES)
        self.profiles = Profiles({"plain": PLAIN, **(profiles or {})})
        self.settings = settings or Settings(agent_lease_s=300.0)
        self.random = random.Random(seed)
        self.delay_s = delay_s
        self.conduct: dict[int, Conduct] = {}
        self.trainers: dict[tuple[int, int], Trainer] = {}
        self.elastic = Elastic(self)
        self.watched = watched
        self.durable: dict[int, float] = {}
        self.users: dict[GpuRef, tuple[int, int]] = {}
        self.behind: dict[GpuRef, tuple[int, int]] = {}  # the same of backgrounds
        self.shared: set[tuple[int, int]] = set()  # (foreground, background): the jobs that have shared a GPU
        self.agents = {
            name: Agent(name, [GpuInfo(i, f"{name}-{i}", memory_mib=gpu_memory_mib) for i in range(n)])
            for name, n in nodes.items()
        }
        self._heap: list[tuple[float, int, Callable[[], Sequence[cmd.Command]]]] = []
        self._count = 0
        self.controller = self._new_controller()
        self.start_daemon()
        self.send(cmd.ChoosePolicy(policy))

    # --- the daemon ------------------------------------------------------------------------------------------------

    def _new_controller(self) -> Controller:
        return Controller(self.journal, self.policies, self.profiles, self.settings)

    @property
    def world(self) -> World:
        return self.controller.world

    def start_daemon(self) -> None:
        """A daemon starts (again): a new Controller on the same journal, and the agents call."""
        self.controller = self._new_controller()
        fence = self.world.fence + 1
        self.controller.begin(ev.DaemonStarted(fence, "0", 1, "host", f"{fence:032x}"), self.now)
        for agent in self.agents.values():
            agent.connected = False
            self.connect(agent.node)

    def restart_daemon(self) -> None:
        """The daemon dies and starts again: from its journal it knows what it knew."""
        self.journal.failing = 0  # else it would not start
        before, pending = self.world, {r.id: r for node in self.agents for r in self.controller.pending(node)}
        again = self._new_controller()
        assert again.world == before
        assert list(again.world.active) == list(before.active)
        assert {r.id: r for node in self.agents for r in again.pending(node)} == pending
        twin = Controller(self.journal.copy(), self.policies, self.profiles, self.settings)
        copy = Controller(self.journal.copy(), self.policies, self.profiles, self.settings)
        copy.world = before
        assert twin.decide(self.now) == copy.decide(self.now)
        assert twin.world == copy.world
        self.start_daemon()

    def send(self, *commands: cmd.Command) -> list[Any]:
        """One step with these, and a decision; a commit that fails is tried again, as clients would."""
        while True:
            before = (self.world, replace(self.world), list(self.world.active))
            try:
                answers = self.controller.step(commands, self.now)
                if self.controller.undecided:
                    self.controller.decide(self.now)
                    self.decided_at = self.now
                    if self.watched:
                        again = reconcile(self.world, self.now)
                        assert (again.events, again.requests) == ([], [])
                break
            except JournalError:
                if self.world is before[0]:
                    assert (self.world, list(self.world.active)) == before[1:]
        wake = self.controller.wake_at
        if wake is not None:
            self.at(wake, lambda: [cmd.Tick()])
        validate(self.world)
        self._deliver()
        return answers

    def submit(self, *specs: JobSpec) -> tuple[int, ...]:
        """Submits jobs; their ids."""
        (ids,) = self.send(cmd.Submit(specs, f"r{self.world.seq}"))
        assert isinstance(ids, tuple), ids
        return ids

    def job(self, number: int) -> Any:
        return self.world.jobs[number]

    # --- time ------------------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], Sequence[cmd.Command]]) -> None:
        """Has something happen; what it returns goes to the Controller."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, what))

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        self._run_until(self.now + seconds, lambda: False)

    def run_until(self, condition: Callable[[], bool], within_s: float = 1e6) -> None:
        """Lets time pass until the condition holds; AssertionError where it does not within that time."""
        self._run_until(self.now + within_s, condition)
        assert condition(), {n: (str(j.outcome), j.last.detail, j.live) for n, j in self.world.jobs.items()}

    def run_to_end(self) -> float:
        """Until every job is finished; the time."""
        self.run_until(lambda: not self.world.active)
        return self.now

    def _run_until(self, end: float, condition: Callable[[], bool]) -> None:
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return
            self.now = self._heap[0][0]
            commands: list[cmd.Command] = []
            while self._heap and self._heap[0][0] <= self.now:
                commands += heapq.heappop(self._heap)[2]()
            if commands:
                self.send(*commands)

    def tick_every(self, seconds: float) -> None:
        """Has the monitoring interval pass, again and again."""

        def tick() -> list[cmd.Command]:
            self.at(self.now + seconds, tick)
            return [cmd.Tick()]

        self.at(self.now + seconds, tick)

    def _soon(self) -> float:
        return self.now + self.random.random() * self.delay_s

    # --- agents ----------------------------------------------------------------------------------------------------

    def connect(self, node: str) -> None:
        """The agent calls; it ends what the daemon does not expect, and says what of the expected it does not have."""
        self.at(self._soon(), lambda: self._call(node))

    def _call(self, node: str) -> list[cmd.Command]:
        agent = self.agents[node]
        if agent.connected:
            return []
        log_id = f"{node}/{agent.boot}"
        (welcome,) = self.send(cmd.Hello(node, log_id))
        agent.sent = welcome.reports_seen
        expected = {(entry.job, entry.incarnation): entry.taken for entry in welcome.expected}
        newest = {(entry.job, entry.incarnation): entry.membership for entry in welcome.expected}
        for key, trainer in self.trainers.items():
            if trainer.parts.get(node) and key not in expected:
                self._vanish(trainer, node)
        self.elastic.keep_only(node, expected)
        self.send(self._inventory(agent, log_id))
        agent.connected = True
        agent.calls += 1
        agent.under_way.clear()
        for (job, number), taken in expected.items():
            known = self.trainers.get((job, number))
            there = (known is not None and known.parts.get(node)) or (job, number, node) in self.elastic.bodies
            if taken and not there and not self._exit_logged(agent, job, number):
                self._report(agent, ev.Exited(job, number, newest[job, number], node, detail="the node was restarted"))
                self._report(agent, ev.GpusFreed(job, number, newest[job, number], node))
        self._deliver()
        return self._reports(agent)

    def _inventory(self, agent: Agent, log_id: str) -> cmd.Inventory:
        """What the agent says of its node when it calls."""
        return cmd.Inventory(agent.node, tuple(agent.gpus), 8, 1000, 1, f"boot{agent.boot}", log_id, True)

    @staticmethod
    def _exit_logged(agent: Agent, job: int, number: int) -> bool:
        of = [e for e in agent.log if isinstance(e, ev.Started | ev.Exited) and (e.job, e.incarnation) == (job, number)]
        return bool(of) and isinstance(of[-1], ev.Exited)

    def disconnect(self, node: str) -> None:
        """The daemon does not hear the agent any more; its trainers go on."""
        if self.agents[node].connected:
            agent = self.agents[node]
            agent.connected, calls = False, agent.calls
            self.send(cmd.AgentGone(node, "connection reset"))

            def lease_ends() -> list[cmd.Command]:
                if not agent.connected and agent.calls == calls:
                    self.elastic.absent(node)
                return []

            self.at(self.now + self.settings.agent_lease_s, lease_ends)

    def crash_node(self, node: str) -> None:
        """Everything on the node is gone, its agent's log too."""
        agent = self.agents[node]
        self.disconnect(node)
        for trainer in self.trainers.values():
            if trainer.parts.get(node):
                self._vanish(trainer, node)
        self.elastic.vanish(node)
        self.users = {gpu: user for gpu, user in self.users.items() if gpu.node != node}
        self.behind = {gpu: user for gpu, user in self.behind.items() if gpu.node != node}
        agent.boot += 1
        agent.log, agent.sent, agent.taken = [], 0, set()

    def set_gpu(self, node: str, index: int, state: str) -> None:
        """A GPU becomes ok, lost or dirty."""
        agent = self.agents[node]
        agent.gpus[index] = replace(agent.gpus[index], state=state)
        self._report(agent, ev.GpuChanged(node, index, state))

    def report_fault(self, node: str, index: int, fault: str) -> None:
        """The agent sees a fault of a GPU."""
        self._report(self.agents[node], GpuFaulted(node, index, fault))

    def _vanish(self, trainer: Trainer, node: str) -> None:
        trainer.parts[node] = False
        self._settle(trainer)
        trainer.turn += 1
        self._free(trainer, node)

    def _report(self, agent: Agent, event: ev.Event) -> None:
        agent.log.append(event)
        self.at(self._soon(), lambda: self._reports(agent))

    def _reports(self, agent: Agent) -> list[cmd.Command]:
        if not agent.connected:
            return []
        log_id = f"{agent.node}/{agent.boot}"
        first = agent.sent
        if self.delay_s and first and self.random.random() < 0.2:
            first -= 1  # sent twice
        agent.sent = len(agent.log)
        return [
            cmd.AgentReport(agent.node, log_id, number, agent.log[number - 1])
            for number in range(first + 1, len(agent.log) + 1)
        ]

    def _deliver(self) -> None:
        for name, agent in self.agents.items():
            if agent.connected:
                for request in self.controller.pending(name):
                    if request.id not in agent.under_way:
                        agent.under_way.add(request.id)
                        agent.last_request_at = max(self._soon(), agent.last_request_at)  # they keep their order
                        self.at(agent.last_request_at, partial(self._take, request, agent.calls))

    def _take(self, request: Request, call: int) -> list[cmd.Command]:
        agent = self.agents[request.node]
        if not agent.connected or agent.calls != call:
            return []  # lost with the connection
        elastic = self.world.jobs[request.job].spec.rescale != "restart"
        key = (request.job, request.incarnation, request.kind, request.membership if elastic else 1)
        if key not in agent.taken:
            agent.taken.add(key)
            if elastic:
                self.elastic.take(request)
            elif request.kind == "start":
                self._start(agent, request)
            trainer = self.trainers.get((request.job, request.incarnation))
            if request.kind != "start" and trainer is not None and trainer.parts.get(request.node):
                {"open": self._open, "suspend": self._suspend, "end": self._end, "role": self._promote}[request.kind](
                    trainer, request
                )
        if self.delay_s and self.random.random() < 0.1:
            agent.under_way.discard(request.id)  # the acknowledgement is lost, so it comes again
            return []
        return [cmd.Taken(request.id)]

    # --- trainers --------------------------------------------------------------------------------------------------

    def _spec(self, trainer: Trainer) -> JobSpec:
        spec: JobSpec = self.world.jobs[trainer.job].spec
        return spec

    def _profile(self, trainer: Trainer) -> Profile:
        return self.profiles.by_name[self._spec(trainer).profile or "plain"]

    def _conduct(self, trainer: Trainer) -> Conduct:
        return self.conduct_of(trainer.job)

    def conduct_of(self, job: int) -> Conduct:
        return self.conduct.setdefault(job, Conduct())

    def _use(self, trainer: Trainer, node: str) -> None:
        for gpu in trainer.placement.gpus if trainer.placement else ():
            if gpu.node == node:
                background = trainer.placement is not None and trainer.placement.role is Role.BACKGROUND
                user = (self.behind if background else self.users).setdefault(gpu, (trainer.job, trainer.number))
                assert user == (trainer.job, trainer.number), f"{gpu} is used by {user}, given to {trainer}"
                self._shares(gpu)

    def _shares(self, gpu: GpuRef) -> None:
        """Of two trainers on a GPU both agreed to that, and their memory fits, as measured or as their users said."""
        if gpu in self.users and gpu in self.behind:
            first, second = (self.world.jobs[there[gpu][0]] for there in (self.users, self.behind))
            assert first.spec.share is not None
            assert second.spec.share is not None
            assert (first.spec.share.role, second.spec.share.role) == ("foreground", "background")
            mib = [each.gpu_memory_mib or each.spec.gpu_memory_mib or 1e9 for each in (first, second)]
            assert sum(mib) <= 0.95 * self.agents[gpu.node].gpus[gpu.number].memory_mib
            self.shared.add((self.users[gpu][0], self.behind[gpu][0]))

    def _promote(self, trainer: Trainer, request: Request) -> None:
        """It is the foreground of the node's GPUs now."""
        for gpu in [g for g, user in self.behind.items() if user == (trainer.job, trainer.number)]:
            if gpu.node == request.node:
                assert gpu not in self.users, f"{gpu} is used by {self.users[gpu]}, and {trainer} is promoted"
                self.users[gpu] = self.behind.pop(gpu)

    def _free(self, trainer: Trainer, node: str) -> None:
        for there in (self.users, self.behind):
            for gpu in [g for g, user in there.items() if user == (trainer.job, trainer.number) and g.node == node]:
                del there[gpu]

    def _says(self, trainer: Trainer, node: str, kind: type[ev.Report], **more: Any) -> None:
        self._report(self.agents[node], kind(trainer.job, trainer.number, 1, node, **more))

    def _start(self, agent: Agent, request: Request) -> None:
        key = (request.job, request.incarnation)
        trainer = self.trainers.get(key)
        if trainer is None:
            nodes = self.world.jobs[request.job].incarnation(request.incarnation)
            names = nodes.nodes if nodes is not None else (agent.node,)
            trainer = self.trainers[key] = Trainer(*key, dict.fromkeys(names, False), request.placement)
        trainer.parts[agent.node] = True
        self._use(trainer, agent.node)
        if agent.fault is not None:
            self._exit(trainer, agent.node, hint=Cause.INFRASTRUCTURE, **agent.fault)
            return
        self._says(trainer, agent.node, ev.Started, pid=1)
        trainer.arrived.add(agent.node)
        if len(trainer.arrived) < len(trainer.parts):
            return
        profile = self._profile(trainer)
        if trainer.placement is None:
            self._later(trainer, profile.startup_s, self._reach_gate)
        else:
            self._begin(trainer, cold=True)

    def _later(self, trainer: Trainer, seconds: float, what: Callable[[Trainer], None]) -> None:
        turn = trainer.turn

        def happen() -> list[cmd.Command]:
            if trainer.turn == turn and all(trainer.parts.values()):
                what(trainer)
            return []

        self.at(self.now + seconds, happen)

    def _reach_gate(self, trainer: Trainer) -> None:
        if self._conduct(trainer).gate_fails:
            for node in trainer.parts:
                self._exit(trainer, node, code=1)
            return
        for node in trainer.parts:
            self._says(trainer, node, ev.AtGate)
        trainer.arrived.clear()

    def _open(self, trainer: Trainer, request: Request) -> None:
        trainer.placement = request.placement
        self._use(trainer, request.node)
        trainer.arrived.add(request.node)
        if len(trainer.arrived) == len(trainer.parts):
            self._begin(trainer, cold=False)

    def _begin(self, trainer: Trainer, cold: bool) -> None:
        profile = self._profile(trainer)
        trainer.step = self.durable.get(trainer.job, 0.0)
        wait = profile.resume_s if trainer.job in self.durable else profile.startup_s
        self._later(trainer, wait if cold else max(0.0, wait - profile.startup_s), self._train)

    def _rate(self, trainer: Trainer) -> float:
        assert trainer.placement is not None
        return self._profile(trainer).rate(trainer.placement.per_node, len(trainer.parts))

    def _train(self, trainer: Trainer) -> None:
        writer = min(trainer.parts)
        for node in trainer.parts:
            self._says(trainer, node, ev.Attached)
        self._says(trainer, writer, ev.TrainerReady, step=int(trainer.step))
        trainer.since = self.now
        conduct = self._conduct(trainer)
        left = (self._spec(trainer).steps or 100) - trainer.step
        if conduct.fails and left > 5:
            self._later(trainer, 5 / self._rate(trainer), self._fail)
        else:
            self._later(trainer, left / self._rate(trainer), self._finish)

    def _settle(self, trainer: Trainer) -> None:
        if trainer.since is not None:
            trainer.step += (self.now - trainer.since) * self._rate(trainer)
            trainer.since = None

    def _fail(self, trainer: Trainer) -> None:
        self._settle(trainer)
        fails = self._conduct(trainer).fails
        code = fails.pop(0) if fails else 1
        self._exit(trainer, self.random.choice(sorted(trainer.parts)), code=code, step=int(trainer.step), attached=True)

    def _finish(self, trainer: Trainer) -> None:
        trainer.step, trainer.since = float(self._spec(trainer).steps or 100), None
        for node in trainer.parts:
            self._says(trainer, node, ev.Progressed, step=int(trainer.step))
            self._exit(trainer, node, code=0, step=int(trainer.step), attached=True)

    def _exit(self, trainer: Trainer, node: str, **how: Any) -> None:
        if not trainer.parts.get(node):
            return
        trainer.parts[node] = False
        trainer.turn += 1
        self._says(trainer, node, ev.Exited, **how)

        def freed() -> list[cmd.Command]:
            self._free(trainer, node)
            self._says(trainer, node, ev.GpusFreed)
            return []

        boot = self.agents[node].boot
        self.at(self._soon(), lambda: freed() if self.agents[node].boot == boot else [])

    def _suspend(self, trainer: Trainer, request: Request) -> None:
        """Each part is asked by itself; the checkpoint is written when all of them were asked."""
        conduct, node = self._conduct(trainer), request.node
        end = self.now + request.grace_s
        killed = {"signal": "SIGKILL", "ended_by": "suspend", "attached": True}

        def kill() -> list[cmd.Command]:
            self._exit(trainer, node, **killed)
            return []

        self.at(end, kill)
        if trainer.since is None and not trainer.stopping:
            self._exit(trainer, node, code=143, ended_by="suspend")
            return
        if conduct.never_answers:
            return
        if not trainer.stopping:
            self._settle(trainer)
            trainer.turn += 1
            trainer.stopping = True
            trainer.arrived.clear()
        trainer.arrived.add(node)
        if trainer.arrived >= set(trainer.parts):
            seconds = self._profile(trainer).save_s * (3 if conduct.saves_slowly else 1)
            self._later(trainer, seconds, self._save)

    def _save(self, trainer: Trainer) -> None:
        self.durable[trainer.job] = trainer.step
        self._says(trainer, min(trainer.parts), ev.Saved, step=int(trainer.step), seconds=1.0, final=True)
        for node in trainer.parts:
            self._exit(trainer, node, code=0, ended_by="suspend", attached=True)

    def _end(self, trainer: Trainer, request: Request) -> None:
        self._exit(trainer, request.node, signal="SIGTERM", ended_by="end", attached=trainer.since is not None)

    def kill(self, job: int, signal: str = "SIGKILL") -> None:
        """Somebody kills the job's trainer on one of its nodes."""
        if self.elastic.kill(job, signal=signal):
            return
        for trainer in self.trainers.values():
            alive = sorted(node for node, there in trainer.parts.items() if there)
            if trainer.job == job and alive:
                self._settle(trainer)
                self._exit(trainer, self.random.choice(alive), signal=signal, step=int(trainer.step))
                return

    # --- what must hold --------------------------------------------------------------------------------------------

    def check_replay(self, cuts: Sequence[float] = (0.0, 0.3, 0.8)) -> None:
        """The journal gives this world, from any prefix."""
        records = self.journal.records
        for cut in cuts:
            middle = int(len(records) * cut)
            whole = fold(fold(World(), records[:middle]), records[middle:])
            assert whole == self.world
            assert list(whole.active) == list(self.world.active)

    def states(self) -> dict[int, JobState | None]:
        return {number: job.outcome for number, job in self.world.jobs.items()}
