"""What is exempt from preemption, until when, and for whom it is not."""

from dataclasses import replace

import pytest

from hpcdl.core.controller.view_builder import Views, build_view
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import BadPlan, Plan, Profiles, View, check
from hpcdl.core.model.world import MeasuredCosts, Target
from hpcdl.core.rules.exemption import PRIOR_S, STARTING_S, STARTS, exemption, lifted, without
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", steps=4000, gpus_max=2)


class Yields:
    """A policy that gives each node to the job that comes first in the view, whoever runs there; asked, it says so."""

    name = "yields"

    def __init__(self) -> None:
        self.asked: list[float] = []

    def decide(self, view: View) -> Plan:
        """See `Policy.decide`."""
        self.asked.append(view.now)
        stays = [job for job in view.jobs if job.placement is not None and not (job.can_suspend or job.leaving)]
        order = [*stays, *sorted((job for job in view.jobs if job not in stays), key=lambda j: (-j.priority, -j.id))]
        free = {node.name: node.gpus for node in view.nodes}
        targets = []
        for job in order:
            name = next((name for name, gpus in free.items() if gpus and not job.blocked), None)
            place = job.placement if job in stays else None
            if place is None and name is not None:
                place = Placement((Share(name, free[name][: job.gpus_max]),))
            for share in () if place is None else place.shares:
                free[share.node] = ()
            targets.append(Target(job.id, place, "the last one first"))
        return Plan(tuple(targets))


def on(*specs: JobSpec, gpus: int = 2) -> tuple[Cluster, Yields]:
    cluster, policy = Cluster({"n1": gpus}), Yields()
    cluster.policies.register("yields", lambda: policy)
    cluster.send(cmd.ChoosePolicy("yields"))
    cluster.submit(*specs)
    return cluster, policy


def asked_at(cluster: Cluster, job: int) -> list[float]:
    return [
        record.at
        for record in cluster.journal.records
        if isinstance(record.event, ev.SuspendRequested | ev.EndRequested) and record.event.job == job
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_it_is_preempted_when_its_start_has_paid_and_not_before(restarts: bool) -> None:
    cluster, policy = on(SPEC)
    cluster.run_until(lambda: cluster.job(1).running is not None)
    cluster.submit(SPEC)  # which the policy would rather have there
    cluster.run_until(lambda: cluster.job(1).running.training_start is not None)
    running = cluster.job(1).running
    due = running.training_start.at + STARTS * running.training_start.took_s
    assert running.training_start.took_s == running.training_start.at - running.granted_at > 0
    if restarts:
        cluster.restart_daemon()
    cluster.run_until(lambda: bool(asked_at(cluster, 1)), within_s=STARTS * running.training_start.took_s + 20.0)
    assert asked_at(cluster, 1)[0] >= due
    assert asked_at(cluster, 1)[0] - due < 2.0  # without any tick: it was asked then
    assert any(at >= due for at in policy.asked)
    cluster.check_replay()


def test_a_higher_priority_does_not_wait() -> None:
    cluster, _ = on(SPEC)
    cluster.run_until(lambda: cluster.job(1).running is not None and cluster.job(1).running.attached)
    cluster.submit(replace(SPEC, priority=1))
    cluster.run_until(lambda: bool(asked_at(cluster, 1)), within_s=5.0)
    cluster.run_until(lambda: cluster.job(2).running is not None, within_s=100.0)
    assert asked_at(cluster, 1)


def test_it_is_lifted_for_those_only_who_get_what_is_given_up() -> None:
    """Two nodes: a job of a higher priority takes one of them, and the other is not to be had for its sake."""
    cluster = Cluster({"n1": 2, "n2": 2})
    policy = Yields()
    cluster.policies.register("yields", lambda: policy)
    cluster.send(cmd.ChoosePolicy("yields"))
    cluster.submit(SPEC, SPEC)
    cluster.run_until(
        lambda: all(cluster.job(n).running is not None and cluster.job(n).running.attached for n in (1, 2))
    )
    view = build_view(cluster.world, cluster.profiles, cluster.now)
    assert [job.exempt for job in view.jobs] == [True, True]
    assert not any(job.can_suspend for job in view.jobs)
    assert lifted(view) == frozenset()
    cluster.submit(replace(SPEC, priority=3))
    cluster.run(3.0)
    asked = [asked_at(cluster, 1), asked_at(cluster, 2)]
    assert sorted(map(len, asked)) == [0, 1]  # the policy would have taken both


@pytest.mark.parametrize("command", [cmd.Hold(1), cmd.Cancel(1), cmd.Preempt(1)])
def test_what_users_say_counts_at_once(command: cmd.Command) -> None:
    cluster, _ = on(SPEC)
    cluster.run_until(lambda: cluster.job(1).running is not None and cluster.job(1).running.attached)
    assert cluster.send(command) == [None]
    cluster.run_until(lambda: bool(asked_at(cluster, 1)), within_s=5.0)


def test_a_program_that_never_says_that_it_is_ready() -> None:
    """Everything after the expected start counts as training; one that would say it is waited for."""
    cluster, _ = on(replace(SPEC, signal="hf"))
    cluster.run_until(lambda: cluster.job(1).running is not None)
    job, running = cluster.job(1), cluster.job(1).running
    job = replace(job, live=(replace(running, attached=False, training_start=None),))
    known = exemption(cluster.world, job, None, STARTS)
    assert known is not None
    assert known.suspend_until == running.granted_at + (1 + STARTS) * PRIOR_S
    waits = replace(job, spec=replace(job.spec, signal="hpcdl"))
    known = exemption(cluster.world, waits, None, STARTS)
    assert known is not None
    assert (known.suspend_until, known.begun) == (running.granted_at + STARTING_S, False)
    again = exemption(cluster.world, replace(job, costs=MeasuredCosts(start_s=7.0)), None, STARTS)
    assert again is not None
    assert again.suspend_until == running.granted_at + (1 + STARTS) * 7.0
    assert exemption(cluster.world, job, None, 0.0) is None


def test_a_view_changes_when_the_time_is_over() -> None:
    cluster, _ = on(SPEC)
    cluster.run_until(lambda: cluster.job(1).running is not None and cluster.job(1).running.training_start is not None)
    running, views = cluster.job(1).running, Views()
    due = running.training_start.at + STARTS * running.training_start.took_s
    for now, exempt in ((due - 1.0, True), (due, False)):
        view = views.build(cluster.world, Profiles(), now)
        assert (view.jobs[0].exempt, view.jobs[0].can_suspend) == (exempt, not exempt)
        assert view.jobs == build_view(cluster.world, Profiles(), now).jobs
        assert views.exempt_ends(now) == ([due] if exempt else [])


def test_check_refuses_a_plan_that_moves_it() -> None:
    cluster, _ = on(SPEC)
    cluster.run_until(lambda: cluster.job(1).running is not None and cluster.job(1).running.attached)
    view = build_view(cluster.world, Profiles(), cluster.now)
    away = Plan((Target(1, None, "for others"),))
    with pytest.raises(BadPlan, match="cannot be suspended"):
        check(away, view)
    check(away, without(view, frozenset([1])))
