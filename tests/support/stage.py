"""A modelled cluster whose policy does what a test says."""

from typing import Any

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Plan, View
from hpcdl.core.model.world import Target
from hpcdl.core.rules.intake import Settings
from tests.support.model_cluster import Cluster


class ScriptedPolicy:
    """A policy that gives each job the whole of the nodes that it was told, as far as these are there."""

    name = "wanted"

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}

    def decide(self, view: View) -> Plan:
        targets = []
        for job in view.jobs:
            names = [f"n{digit}" for digit in self.nodes.get(job.id, "") if f"n{digit}" in view.gpus]
            given = None
            if len(names) >= job.nodes and not job.blocked:
                given = Placement(tuple(Share(name, tuple(sorted(view.gpus[name]))) for name in names))
            targets.append(Target(job.id, given, "it is wanted so"))
        return Plan(tuple(targets))


class Stage(Cluster):
    """A cluster of nodes with 2 GPUs, and a policy that does what the test says."""

    def __init__(self, nodes: int) -> None:
        moves = Settings(300.0, exempt_starts=0.0)  # whatever the test wants, at once
        super().__init__({f"n{number}": 2 for number in range(1, nodes + 1)}, settings=moves, watched=True)
        self.wanted = ScriptedPolicy()
        self.policies.register("wanted", lambda: self.wanted)
        self.send(cmd.ChoosePolicy("wanted"))
        self.tick_every(10.0)
        self.run(1.0)

    def start(self, on: str, **more: Any) -> int:
        known = {"gpus_max": 2, "steps": 400, "profile": "plain", "nodes_max": 6, "rescale": "in-process"} | more
        number = self.world.next_job
        self.wanted.nodes[number] = on
        (started,) = self.submit(JobSpec(("train",), "j", **known))  # type: ignore[arg-type]
        return started

    def trains(self, job: int, nodes: str) -> bool:
        group = self.elastic.groups.get(job)
        running = self.job(job).running
        formed = group is not None and [body.node for body in group.bodies] == [f"n{digit}" for digit in nodes]
        return formed and running is not None and running.rescale_at is None

    def until_trains(self, job: int, nodes: str) -> None:
        self.run_until(lambda: self.trains(job, nodes), within_s=100.0)

    def want(self, **nodes: str) -> None:
        for job, names in nodes.items():
            self.wanted.nodes[int(job[1:])] = names
        self.send(cmd.Tick())

    def told(self, *kinds: type[ev.Event]) -> list[Any]:
        return [record.event for record in self.journal.records if isinstance(record.event, kinds)]

    def finish(self) -> None:
        self.run_until(lambda: not self.world.active, within_s=5000.0)
        self.run(5.0)
        self.check_replay()
        assert (self.world.holders, self.users, self.elastic.bodies) == ({}, {}, {})


def running(there: int, on: str, **more: Any) -> Stage:
    stage = Stage(there)
    stage.start(on, **more)
    stage.until_trains(1, on)
    return stage


class Unmoved:
    """A policy that fails, so that the last plan goes on."""

    name = "unmoved"

    def __init__(self, target: Target) -> None:
        self.target = target

    def decide(self, view: View) -> Plan:
        raise ZeroDivisionError(self.target.reason)
