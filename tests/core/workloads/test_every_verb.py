"""Generated workloads that use every verb, against the modelled cluster: nothing is lost, nothing is held twice."""

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcdl.core.controller.reconcile import reconcile
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.arrays import Array
from hpcdl.core.model.commands import CommandRefused, StallMeasurement
from hpcdl.core.model.job import JobSpec, Sharing
from hpcdl.core.model.notice import NoticeRules
from hpcdl.core.model.world import JobState, validate
from hpcdl.core.rules.intake import Settings
from hpcdl.deeppool.policy import DeepPool
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct
from tests.support.seeds import seeds

NODES = {"n1": 4, "n2": 3}
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: of such long scripts it takes minutes. Put Phase.shrink here to look into a failure."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens, after some time. `pick` chooses among the jobs that there are."""

    verb: str
    after_s: float
    pick: int = 0
    node: str = "n1"
    spec: JobSpec | None = None
    conduct: tuple[bool, ...] = (False, False, False)
    fails: tuple[int, ...] = ()
    policy: str = "marble"


FAULTS = ("restart", "silent", "back", "node-gone", "crash", "kill", "gpu-lost", "gpu-ok", "gpu-dirty", "full")
CARE = ("array", "array", "xid", "avoid", "avoid-node", "lift", "still", "moves-on", "told", "not-told", "notices")
TO = "mailto:me@example.org"
VERBS = (
    *["submit"] * 7,
    *["wait"] * 4,
    "hold",
    "release",
    "preempt",
    "preempt",
    "cancel",
    "retry",
    "policy",
    "objective",
    "stop",
    "stop-now",
    *FAULTS,
    *CARE,
)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    low = draw(st.integers(1, 3))
    return JobSpec(
        command=("train",),
        name="j",
        gpus_min=low,
        gpus_max=draw(st.one_of(st.none(), st.integers(low, 4))),
        nodes=draw(st.sampled_from((1, 1, 1, 2))),
        profile=draw(st.sampled_from((None, "plain"))),
        steps=draw(st.sampled_from((1, 20, 60, 150, 400))),
        retries=draw(st.integers(0, 2)),
        grace_s=draw(st.sampled_from((30.0, 30.0, 1.0))),
        signal=draw(st.sampled_from(("hpcdl", "hpcdl", "hpcdl", "none", "hf"))),
        gate=draw(st.sampled_from((True, True, False))),
        priority=draw(st.sampled_from((0, 0, 0, 5, -5))),
        stall_s=draw(st.sampled_from((None, 5.0))),
        stall_restart=draw(st.booleans()),
        share=draw(st.sampled_from((None, Sharing("foreground"), Sharing("foreground"), Sharing("background")))),
        gpu_memory_mib=draw(st.sampled_from((None, 4_000, 4_000, 12_000))),
    )


@st.composite
def acts(draw: st.DrawFn) -> Act:
    verb = draw(st.sampled_from(VERBS))
    return Act(
        verb=verb,
        after_s=draw(st.sampled_from((0.0, 0.5, 3.0, 10.0, 40.0))),
        pick=draw(st.integers(0, 5)),
        node=draw(st.sampled_from(sorted(NODES))),
        spec=draw(specs()) if verb in ("submit", "array") else None,
        conduct=draw(st.tuples(*[st.sampled_from((False, False, True))] * 3)) if verb == "submit" else (False,) * 3,
        fails=draw(st.sampled_from(((), (), (), (1,), (1, 2), (1, 1, 1, 1)))) if verb == "submit" else (),
        policy=draw(st.sampled_from(("marble", "marble-warm", "fifo-exclusive", "deeppool"))),
    )


def perform(cluster: Cluster, act: Act) -> None:
    """Does it, as a user, an agent or fate would."""
    known = sorted(cluster.world.jobs)
    job = known[act.pick % len(known)] if known else 1
    node, index = act.node, act.pick % NODES[act.node]
    match act.verb:
        case "submit":
            assert act.spec is not None
            after = (job,) if known and act.pick == 5 else ()
            spec = JobSpec(**{name: getattr(act.spec, name) for name in JobSpec.__slots__} | {"after": after})
            cluster.conduct[cluster.world.next_job] = Conduct(list(act.fails), *act.conduct)
            (answer,) = cluster.send(cmd.Submit((spec,), f"r{cluster.world.seq}"))
            assert isinstance(answer, CommandRefused) == cluster.world.stopping
        case "array":
            assert act.spec is not None
            sweep = (("lr", ("0.1", "0.01", "1")),)
            entry = cmd.Entry(act.spec, Array(sweep=sweep, max_parallel=act.pick % 3), held=act.pick == 5)
            follows = cmd.Entry(act.spec, after=(0,))
            (answer,) = cluster.send(cmd.Submit((entry, follows), f"r{cluster.world.seq}"))
            assert isinstance(answer, CommandRefused) == cluster.world.stopping
        case "xid":
            cluster.report_fault(node, index, ("xid 79", "xid 94", "xid 13", "remap failed")[act.pick % 4])
        case "avoid":
            cluster.send(cmd.Avoid(node, index, 60.0, moves=act.pick % 2 == 0))
        case "avoid-node":
            cluster.send(cmd.Avoid(node, None, 60.0, moves=act.pick % 2 == 0))
        case "lift":
            cluster.send(cmd.Lift(node, None if act.pick % 2 else index))
        case "still" | "moves-on":
            quiet_s = 1000.0 if act.verb == "still" else 0.0
            cluster.send(cmd.Tick(tuple(stills(cluster, quiet_s))))
        case "told":
            cluster.send(cmd.NoticesTaken(TO, tuple(cluster.world.notices)[: act.pick]))
        case "not-told":
            some = tuple(cluster.world.notices)[: act.pick]
            cluster.send(cmd.NoticesNotTaken(TO, some, act.pick, "no route", 15.0, some[:2]))
        case "notices":
            cluster.send(cmd.RetryNotices() if act.pick % 2 else cmd.DropNotice(1 + act.pick))
        case "hold":
            cluster.send(cmd.Hold(job))
        case "release":
            cluster.send(cmd.Release(job))
        case "preempt":
            cluster.send(cmd.Preempt(job))
        case "cancel":
            cluster.send(cmd.Cancel(job))
        case "retry":
            anew = act.pick % 3 == 0
            (answer,) = cluster.send(cmd.Retry(job, with_dependents=act.pick % 2 == 0, from_start=anew))
            if anew and isinstance(answer, cmd.Retried):
                cluster.durable.pop(job, None)  # its checkpoints are elsewhere
        case "policy":
            assert cluster.send(cmd.ChoosePolicy(act.policy)) == [None]
        case "objective":
            assert cluster.send(cmd.ChooseObjective("jct")) == [None]
        case "stop" | "stop-now":
            cluster.send(cmd.Stop(act.verb == "stop-now"))
        case "restart":
            cluster.restart_daemon()
        case "silent":
            cluster.disconnect(node)
        case "back":
            cluster.connect(node)
        case "node-gone":
            cluster.disconnect(node)
            cluster.send(cmd.NodeGone(node, "the batch job ended"))
        case "crash":
            cluster.crash_node(node)
        case "kill":
            cluster.kill(job)
        case "gpu-lost" | "gpu-dirty" | "gpu-ok":
            cluster.set_gpu(node, index, act.verb.removeprefix("gpu-"))
        case "full":
            cluster.journal.failing = 1 + act.pick % 2
        case _:
            assert act.verb == "wait"


def stills(cluster: Cluster, quiet_s: float) -> Iterator[StallMeasurement]:
    """What agents would measure of all that lives, if nothing of it moved for so long."""
    for number in cluster.world.live:
        for each in cluster.world.jobs[number].live:
            yield StallMeasurement(
                number, each.number, each.nodes, quiet_s if each.progress else None, quiet_s, quiet_s
            )


def never_more_than_allowed(cluster: Cluster) -> None:
    """Of a capped array no more members hold GPUs than may."""
    holding: dict[int, set[int]] = {}
    for number, _ in cluster.world.holders.values():
        spec = cluster.world.jobs[number].spec
        if spec.array_most:
            holding.setdefault(spec.array, set()).add(number)
            assert len(holding[spec.array]) <= spec.array_most


@settings(
    max_examples=seeds(150), deadline=None, print_blob=True, phases=PHASES, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    script=st.lists(acts(), min_size=4, max_size=40),
    seed=st.integers(0, 1000),
    delay_s=st.sampled_from((0.0, 2.0)),
    policy=st.sampled_from(("marble-warm", "marble-warm", "marble", "fifo-exclusive", "deeppool")),
    cut=st.floats(0, 1),
    sharing=st.booleans(),
)
def test_every_verb(script: list[Act], seed: int, delay_s: float, policy: str, cut: float, sharing: bool) -> None:
    rules = Settings(agent_lease_s=300.0, notices=NoticeRules((TO,)), avoid_s=600.0, avoid_failures=2, sharing=sharing)
    cluster = Cluster(NODES, seed=seed, delay_s=delay_s, settings=rules, gpu_memory_mib=16_384)
    cluster.policies.add(DeepPool)
    cluster.send(cmd.ChoosePolicy(policy))
    always = "deeppool" in (policy, *(act.policy for act in script if act.verb == "policy"))
    cluster.tick_every(10.0)
    for act in script:
        perform(cluster, act)
        if not (sharing or always):
            assert not cluster.world.backgrounds
        again = reconcile(cluster.world, cluster.decided_at)
        assert cluster.controller.undecided or (again.events, again.requests) == ([], [])
        cluster.run(act.after_s)
        never_more_than_allowed(cluster)
    # No more faults: whatever went on, everything finishes.
    cluster.journal.failing = 0
    if cluster.world.stopping:
        cluster.restart_daemon()
    for node in NODES:
        cluster.connect(node)
        for index in range(NODES[node]):
            cluster.set_gpu(node, index, "ok")
    for conduct in cluster.conduct.values():
        conduct.fails, conduct.never_answers = [], False
    for number, job in cluster.world.jobs.items():
        if job.held and not job.finished:
            cluster.send(cmd.Release(number))
    cluster.run_until(lambda: not cluster.world.active, within_s=20_000)
    cluster.run(60.0)
    validate(cluster.world)
    cluster.check_replay((0.0, cut, 1.0))
    assert not cluster.world.holders
    assert not cluster.world.backgrounds
    assert not cluster.users
    assert not cluster.behind
    assert not any(cluster.controller.pending(node) for node in NODES)
    for job in cluster.world.jobs.values():
        assert job.outcome in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
        if job.outcome is JobState.DONE:
            assert job.progress.step == job.spec.steps
