"""Generated workloads that use every verb, against the modelled cluster: nothing is lost, nothing is held twice."""

from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcdl.core import commands as cmd
from hpcdl.core.commands import Refused
from hpcdl.core.model import JobSpec, JobState
from hpcdl.core.reconcile import reconcile
from hpcdl.core.validate import validate
from tests.model_cluster import Cluster
from tests.model_parts import Conduct
from tests.seeds import seeds

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
    )


@st.composite
def acts(draw: st.DrawFn) -> Act:
    verb = draw(st.sampled_from(VERBS))
    return Act(
        verb=verb,
        after_s=draw(st.sampled_from((0.0, 0.5, 3.0, 10.0, 40.0))),
        pick=draw(st.integers(0, 5)),
        node=draw(st.sampled_from(sorted(NODES))),
        spec=draw(specs()) if verb == "submit" else None,
        conduct=draw(st.tuples(*[st.sampled_from((False, False, True))] * 3)) if verb == "submit" else (False,) * 3,
        fails=draw(st.sampled_from(((), (), (), (1,), (1, 2), (1, 1, 1, 1)))) if verb == "submit" else (),
        policy=draw(st.sampled_from(("marble", "marble-warm", "fifo-exclusive"))),
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
            assert isinstance(answer, Refused) == cluster.world.stopping
        case "hold":
            cluster.send(cmd.Hold(job))
        case "release":
            cluster.send(cmd.Release(job))
        case "preempt":
            cluster.send(cmd.Preempt(job))
        case "cancel":
            cluster.send(cmd.Cancel(job))
        case "retry":
            cluster.send(cmd.Retry(job, with_dependents=act.pick % 2 == 0))
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


@settings(
    max_examples=seeds(150), deadline=None, print_blob=True, phases=PHASES, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    script=st.lists(acts(), min_size=4, max_size=40),
    seed=st.integers(0, 1000),
    delay_s=st.sampled_from((0.0, 2.0)),
    policy=st.sampled_from(("marble-warm", "marble-warm", "marble", "fifo-exclusive")),
    cut=st.floats(0, 1),
)
def test_every_verb(script: list[Act], seed: int, delay_s: float, policy: str, cut: float) -> None:
    cluster = Cluster(NODES, policy=policy, seed=seed, delay_s=delay_s)
    cluster.tick_every(10.0)
    for act in script:
        perform(cluster, act)
        again = reconcile(cluster.world, cluster.decided_at)
        assert cluster.controller.undecided or (again.events, again.requests) == ([], [])
        cluster.run(act.after_s)
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
    assert not cluster.users
    assert not any(cluster.controller.pending(node) for node in NODES)
    for job in cluster.world.jobs.values():
        assert job.outcome in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
        if job.outcome is JobState.DONE:
            assert job.step == job.spec.steps
