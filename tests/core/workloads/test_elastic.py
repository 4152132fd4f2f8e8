"""Random rescales in place under random faults: nothing is lost, nothing is held twice, and every job ends."""

import random
from collections.abc import Sequence

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import JobView, Plan, View
from hpcdl.core.model.world import JobState, Target, validate
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct
from tests.support.seeds import seeds

SEEDS = seeds(30)
"""Run more by hand: python -m tests.core.workloads.test_elastic FIRST LAST."""


class Whims:
    """Gives every job other nodes every now and then, for no reason; `calm`: it keeps what it gave."""

    name = "whims"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calm = False

    def decide(self, view: View) -> Plan:
        rng = random.Random(f"{self.seed}/{int(view.now // 17)}")
        free = {node.name: set(node.gpus) for node in view.nodes}
        away = [gpu for job in view.jobs if job.placement for gpu in job.placement.gpus]
        for gpu in away:
            free.setdefault(gpu.node, set())
        held = {job.id: job.placement for job in view.jobs if job.placement is not None}
        kept = {number: given for number, given in held.items() if self._keeps(rng, view.by_id[number], view.now)}
        for given in kept.values():
            for share in given.shares:
                free[share.node] -= set(share.gpus)
        targets = []
        for job in view.jobs:
            placement = kept.get(job.id)
            if placement is None and not job.blocked and (self.calm or rng.random() < 0.85):
                placement = self._pick(rng, job, free)
            targets.append(Target(job.id, placement, "a whim"))
        return Plan(tuple(targets))

    def _keeps(self, rng: random.Random, job: JobView, now: float) -> bool:
        if job.blocked:
            return False
        if job.held_since is not None and int(job.held_since // 17) == int(now // 17):
            return True  # one whim at a time
        return self.calm or not (job.can_suspend or job.in_place) or rng.random() < 0.3

    def _pick(self, rng: random.Random, job: JobView, free: dict[str, set[int]]) -> Placement | None:
        names = sorted(free)
        rng.shuffle(names)
        shares: list[Share] = []
        most = rng.randint(job.nodes, job.nodes_max)
        before = {share.node: share.gpus for share in job.placement.shares} if job.placement else {}
        for name in names:
            gpus = before.get(name, ())
            if not gpus or not free[name].issuperset(gpus) or rng.random() < 0.1:
                gpus = tuple(sorted(free[name])[: job.gpus_max])
            if len(gpus) >= job.gpus_min and len(shares) < most:
                shares.append(Share(name, gpus))
        if len(shares) < job.nodes:
            return None
        for share in shares:
            free[share.node] -= set(share.gpus)
        return Placement(tuple(sorted(shares, key=lambda share: share.node)))


def a_spec(rng: random.Random) -> JobSpec:
    nodes = rng.choice((1, 1, 2, 3))
    rescale = rng.choice(("in-process", "in-process", "in-process", "torchrun", "restart"))
    return JobSpec(
        command=("train",),
        name="j",
        gpus_min=1,
        gpus_max=rng.choice((None, 1, 2)),
        nodes=min(nodes, 2) if rescale == "restart" else nodes,
        nodes_max=rng.randint(nodes, 5),
        profile="plain",
        steps=rng.choice((20, 100, 400, 1500)),
        retries=rng.choice((0, 2)),
        grace_s=rng.choice((30.0, 30.0, 1.0)),
        rescale=rescale,
        weight=1.0,
    )


ACTS = (
    *["submit"] * 3,
    *["wait"] * 6,
    *["hold", "release", "preempt", "cancel", "drain", "drain", "undrain", "stop"],
    *["restart", "silent", "silent", "back", "back", "crash", "gone", "crash", "return"],
    *["kill", "kill", "hang", "dies-joining", "full", "full", "gpu-lost", "gpu-ok"],
)


class Story:
    """One random workload."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.nodes = {f"n{i}": rng.randint(1, 4) for i in range(1, rng.randint(4, 7))}
        self.cluster = Cluster(self.nodes, seed=seed, delay_s=rng.choice((0.0, 0.5, 2.0)), watched=True)
        self.whims = Whims(seed)
        self.cluster.policies.register("whims", lambda: self.whims)
        self.cluster.send(cmd.ChoosePolicy("whims"))
        self.cluster.tick_every(10.0)
        self.submit()

    def submit(self) -> None:
        cluster, rng = self.cluster, self.rng
        number = cluster.world.next_job
        fails = list(rng.choice(((), (), (), (1,), (1, 2))))
        cluster.conduct[number] = Conduct(fails, saves_slowly=rng.random() < 0.2, never_answers=rng.random() < 0.1)
        cluster.send(cmd.Submit((a_spec(rng),), f"r{cluster.world.seq}"))

    def perform(self, verb: str) -> None:
        cluster, rng = self.cluster, self.rng
        known = sorted(cluster.world.jobs)
        job = rng.choice(known) if known else 1
        node = rng.choice(sorted(self.nodes))
        match verb:
            case "submit":
                self.submit()
            case "hold":
                cluster.send(cmd.Hold(job))
            case "release":
                cluster.send(cmd.Release(job))
            case "preempt":
                cluster.send(cmd.Preempt(job))
            case "cancel":
                if rng.random() < 0.4:
                    cluster.send(cmd.Cancel(job))
            case "drain":
                cluster.send(cmd.Drain(node, rng.choice((None, cluster.now + 60.0)), rng.random() < 0.8, "drained"))
            case "undrain":
                cluster.send(cmd.Drain(node, None, False, "stays"))
            case "stop":
                if rng.random() < 0.3:
                    cluster.send(cmd.Stop(rng.random() < 0.3))
                    cluster.run(rng.choice((1.0, 40.0)))
                    cluster.restart_daemon()
            case "restart":
                cluster.restart_daemon()
            case "silent":
                cluster.disconnect(node)
            case "back" | "return":
                cluster.connect(node)
            case "crash":
                cluster.crash_node(node)
            case "gone":
                cluster.crash_node(node)
                cluster.send(cmd.NodeGone(node, "the batch job ended"))
            case "kill":
                cluster.kill(job)
            case "hang":
                cluster.elastic.hang(job)
            case "dies-joining":
                cluster.elastic.dies_joining[job] = rng.randint(1, 4)
            case "full":
                cluster.journal.failing = rng.randint(1, 2)
            case "gpu-lost" | "gpu-ok":
                cluster.set_gpu(node, rng.randrange(self.nodes[node]), verb.removeprefix("gpu-"))
            case _:
                assert verb == "wait"

    def run(self, verbs: Sequence[str]) -> None:
        for verb in verbs:
            self.perform(verb)
            self.cluster.run(self.rng.choice((0.0, 0.5, 3.0, 10.0, 40.0)))

    def finish(self) -> None:
        """No more faults, and no more whims: everything comes to its end."""
        cluster = self.cluster
        cluster.journal.failing = 0
        self.whims.calm = True
        if cluster.world.stopping:
            cluster.restart_daemon()
        for node, gpus in self.nodes.items():
            cluster.connect(node)
            for index in range(gpus):
                cluster.set_gpu(node, index, "ok")
        cluster.run(5.0)
        for node in self.nodes:
            cluster.send(cmd.Drain(node, None, False, "stays"))
        for conduct in cluster.conduct.values():
            conduct.fails, conduct.never_answers = [], False
        cluster.elastic.dies_joining.clear()
        for number, job in cluster.world.jobs.items():
            if job.held and not job.finished:
                cluster.send(cmd.Release(number))
        before = dict(cluster.elastic.formed)
        cluster.run_until(lambda: not cluster.world.active, within_s=8_000)
        cluster.run(60.0)
        validate(cluster.world)
        cluster.check_replay((0.0, self.rng.random(), 1.0))
        assert not cluster.world.holders
        assert not cluster.users
        assert not cluster.elastic.bodies
        assert not any(cluster.controller.pending(node) for node in self.nodes)
        for job in cluster.world.jobs.values():
            assert job.outcome in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
            if job.outcome is JobState.DONE:
                assert job.progress.step == job.spec.steps
            formed = cluster.elastic.formed.get(job.id, 0) - before.get(job.id, 0)
            assert formed <= 12, f"job {job.id} formed {formed} memberships though nobody wanted anything of it"


def tell(seed: int) -> None:
    story = Story(seed)
    story.run(story.rng.choices(ACTS, k=story.rng.randint(5, 40)))
    story.finish()


@pytest.mark.parametrize("tens", range(max(1, SEEDS // 10)))
def test_whims_and_faults(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        tell(seed)
    assert tens >= 0


if __name__ == "__main__":
    import sys
    import traceback

    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            tell(number)
        except Exception:
            print("seed", number, traceback.format_exc(limit=-2)[-900:])
