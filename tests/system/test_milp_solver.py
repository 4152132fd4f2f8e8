"""A daemon whose nodes a mixed integer program hands out: it starts, spreads and ends jobs as with the exact counts."""

from collections.abc import Callable

from tests.system.cluster import Cluster


def troubles(cluster: Cluster) -> list[str]:
    return [event["body"]["detail"] for event in cluster.events() if event["kind"] == "TroubleSeen"]


def solvers(cluster: Cluster) -> set[str]:
    plans = [event["body"] for event in cluster.events() if event["kind"] == "PlanAdopted"]
    return {plan["solver"] for plan in plans if plan["targets"]}


def test_a_solver_over_nodes_decides_and_why_says_so(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(gpus=1, policy="bftrainer", milp_solver="cbc", milp_time_limit=120).start()
    cluster.add_agent("n2", 1)
    cluster.hold()
    jobs = [cluster.submit() for _ in range(3)]
    cluster.until(lambda: sorted(cluster.job(job)["state"] for job in jobs) == ["QUEUED", "RUNNING", "RUNNING"])
    cluster.until(lambda: cluster.cli("why", str(jobs[2]), "--json")["solver"] == "cbc over nodes: proven optimal")
    assert "numbers of nodes by cbc over nodes: proven optimal" in cluster.cli("why", str(jobs[2]))
    cluster.release()
    cluster.until_done(*jobs)
    assert "cbc over nodes: proven optimal" in solvers(cluster)
    assert troubles(cluster) == []


def test_a_solver_without_time_is_told_of_once_and_the_exact_counts_decide(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(gpus=1, policy="harvest", milp_solver="highs", milp_time_limit=0.01).start()
    cluster.add_agent("n2", 1)
    jobs = [cluster.submit(options=("--nodes", "1:2")) for _ in range(2)]
    cluster.until_done(*jobs)
    late = cluster.submit(options=("--nodes", "1:2"))
    cluster.until_done(late)
    told = troubles(cluster)
    assert len(told) <= 1, told
    exact = any(text.startswith("exact over counts: proven optimal") for text in solvers(cluster))
    assert exact == bool(told)


def test_a_policy_without_a_program_is_named(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(gpus=1, policy="adaptive", milp_solver="highs").start()
    line = "the setting milp_solver, highs, is for bftrainer and harvest: adaptive has no such program"
    assert cluster.cli("config", "--json")["warnings"] == [line]
    assert cluster.cli("config", "policy", "bftrainer", "--json")["warnings"] == []
