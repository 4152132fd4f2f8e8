"""Kubernetes' default and Optimus on views."""

from hpcdl.core.model.plan import Policies
from hpcdl.sidecar import POLICIES, K8sDefault, Optimus
from tests.adaptive.views import decide, gpus, node, reasons
from tests.sidecar.views import RESNET, job, running, view


def test_registered() -> None:
    policies = Policies()
    policies.add(*POLICIES)
    assert policies.names() == ("elastic", "elastic-letter", "k8s-default", "optimus")
    assert all(policies.make(name).name == name for name in policies.names())


def test_the_default_draws_and_lets_smaller_jobs_pass() -> None:
    plan = decide(K8sDefault({1: 2, 2: 4, 3: 2}), view(job(1), job(2), job(3)))
    assert gpus(plan) == ["n1:0,1", "-", "n1:2,3"]
    assert reasons(plan)[1] == "drew 4 GPUs of its optional numbers, 2 free on n1"


def test_the_default_spreads_and_never_changes_anything() -> None:
    two = (node("n1", 4), node("n2", 4))
    plan = decide(K8sDefault({2: 1, 3: 1}), view(running(1, 0), job(2), job(3), nodes=two))
    assert gpus(plan) == ["n1:0", "n2:0", "n1:1"]


def test_draws_without_a_file_are_of_the_optional_numbers() -> None:
    jobs = [job(number, counts=(1, 2, 4)) for number in range(1, 60)]
    drawn = [len(t.placement.gpus) for j in jobs if (t := decide(K8sDefault(), view(j)).targets[0]).placement]
    assert len(drawn) == len(jobs)
    assert set(drawn) == {1, 2, 4}
    # A number that fits no node is drawn again among those that do.
    assert gpus(decide(K8sDefault({1: 8}), view(job(1, counts=(1, 8), gpus_max=8)))) == ["n1:0"]


def test_optimus_starts_small_where_it_ends_first_and_queues_in_order() -> None:
    fast = RESNET.__class__("fast", RESNET.points, kinds=(("k80", ((1, 1, 0.1),)), ("v100", RESNET.points)))
    both = (node("n1", 1, "k80"), node("n2", 1, "v100"))
    plan = decide(Optimus(), view(*(job(number, profile=fast) for number in range(1, 5)), nodes=both))
    assert gpus(plan) == ["n2:0", "n1:0", "-", "-"]
    assert "job 3 is before it" in reasons(plan)[3]


def test_optimus_adds_to_the_largest_gain_and_never_removes() -> None:
    # 1000 steps from 1 to 2 GPUs gain 412 s for one GPU; 3000 steps from 2 to 4 gain 257 s for each of two.
    plan = decide(Optimus(), view(running(1, 0), running(2, 1, total=900), running(3, 2, total=800)))
    assert gpus(plan) == ["n1:0,3", "n1:1", "n1:2"]
    plan = decide(Optimus(), view(running(1, 0, 1, 2, 3), job(2)))
    assert gpus(plan) == ["n1:0,1,2,3", "-"]


def test_optimus_counts_no_cost_of_a_restart() -> None:
    plan = decide(Optimus(), view(running(1, 0, 1, step=990)))
    assert gpus(plan) == ["n1:0,1,2,3"]


def test_optimus_adds_nothing_while_a_job_waits_or_where_more_is_slower() -> None:
    plan = decide(Optimus(), view(running(1, 0), job(2, counts=(4,), gpus_min=4)))
    assert gpus(plan) == ["n1:0", "-"]
    slower = RESNET.__class__("slower", ((1, 1, 1.0), (1, 2, 0.9)))
    assert gpus(decide(Optimus(), view(running(1, 0, profile=slower)))) == ["n1:0"]
