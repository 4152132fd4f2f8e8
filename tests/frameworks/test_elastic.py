"""Elastic trainers for real: three agents on loopback, PyTorch on gloo, ranks that come and go.

A job grows from 1 node to 3, gives one back, loses one by SIGKILL, and comes to its end: without a step lost but the
one that failed, and with a loss that goes on where it was.
"""

import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import Cluster, kill_node

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

SCRIPT = Path(__file__).parents[2] / "jobscripts" / "trainers" / "elastic_train.py"
LINE = re.compile(r"^step (\d+) loss ([0-9.]+) ranks (\d+)$", re.MULTILINE)
STEPS = 100_000


def printed(cluster: Cluster, job: int) -> list[tuple[int, float, int]]:
    """(step, loss, ranks) as rank 0 printed them: in order of time where it stays on one node."""
    text = "".join(cluster.cli("logs", str(job)))
    return [(int(step), float(loss), int(ranks)) for step, loss, ranks in LINE.findall(text)]


def memberships(cluster: Cluster, job: int) -> list[list[str]]:
    return [event["body"]["members"] for event in cluster.events(job) if event["kind"] == "RescaleRequested"]


def trains_on(cluster: Cluster, job: int, nodes: list[str]) -> bool:
    """Whether the newest membership has these nodes, and trains."""
    told = memberships(cluster, job)
    return bool(told) and sorted(told[-1]) == nodes and cluster.job(job)["state"] == "RUNNING"


def until_printed_by(cluster: Cluster, job: int, ranks: int) -> None:
    """Until so many ranks have made steps together: what is killed at once after it has formed may have made none."""
    cluster.until(lambda: any(number == ranks for _, _, number in printed(cluster, job)))


def grow(cluster: Cluster, job: int) -> None:
    cluster.until(lambda: trains_on(cluster, job, ["n1"]))
    for node in ("n2", "n3"):
        cluster.add_agent(node, 1)
    cluster.until(lambda: trains_on(cluster, job, ["n1", "n2", "n3"]), seconds=240)
    until_printed_by(cluster, job, 3)


@pytest.fixture
def submitted(make_cluster: Callable[..., Cluster]) -> Callable[[str], tuple[Cluster, int]]:
    def submit(means: str) -> tuple[Cluster, int]:
        cluster = make_cluster(gpus=1, policy="bftrainer")
        # Three nodes of one machine are no faster than one, and a policy that learns this gives the job one.
        points = [{"nodes": nodes, "gpus": 1, "rate": 10.0 * nodes} for nodes in (1, 3)]
        cluster.add_profile("scales", points=points, startup_s=5, save_s=1, resume_s=5, grow_s=1, shrink_s=1)
        cluster.start()
        options = (
            "--profile",
            "scales",
            "--nodes",
            "1:3",
            "--rescale",
            means,
            "--steps",
            str(STEPS),
            "--cwd",
            "/",
            "--grace",
            "30",
        )
        command = (sys.executable, str(SCRIPT), "--every", "20", "--pace", "0.02")
        answer: dict[str, Any] = cluster.cli("submit", "--json", *options, "--", *command)
        return cluster, int(answer["jobs"][0]["id"])

    return submit


def test_ranks_re_form_in_place(submitted: Callable[[str], tuple[Cluster, int]]) -> None:
    cluster, job = submitted("in-process")
    grow(cluster, job)
    writer = cluster.trainer_pid(job)
    cluster.cli("drain", "n2")
    cluster.until(lambda: trains_on(cluster, job, ["n1", "n3"]))
    cluster.until(lambda: not cluster.client.request("GET", "/v1/nodes")["nodes"][1]["gpus"][0]["holder"])
    until_printed_by(cluster, job, 2)
    kill_node(cluster, "n3")
    cluster.until(lambda: trains_on(cluster, job, ["n1"]))
    reached = cluster.job(job)["step"]
    cluster.until_step(job, reached + 20)
    assert cluster.trainer_pid(job) == writer, "the survivor keeps its process"
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")

    lines = printed(cluster, job)
    steps = [step for step, _, _ in lines]
    assert {ranks for _, _, ranks in lines} == {1, 2, 3}
    # Each step once, in order: rank 0 survived it all, so not even the step that failed was printed twice.
    assert steps == list(range(1, len(steps) + 1))
    assert_loss_goes_on(lines)
    assert cluster.kinds(job).count("StartRequested") == 1
    assert_learnt(cluster)


def test_a_curve_that_nobody_told_is_measured_on_one_node_and_on_all(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(gpus=1, policy="bftrainer").start()
    for node in ("n2", "n3"):
        cluster.add_agent(node, 1)
    cluster.until(lambda: len(cluster.client.request("GET", "/v1/nodes")["nodes"]) == 3)
    options = ("--nodes", "1:3", "--rescale", "in-process", "--steps", str(STEPS), "--cwd", "/", "--grace", "30")
    command = (sys.executable, str(SCRIPT), "--every", "20", "--pace", "0.02")
    job = int(cluster.cli("submit", "--json", *options, "--", *command)["jobs"][0]["id"])

    def measured() -> set[int]:
        rows = cluster.cli("profile", "ls", "--json")["profiles"]
        return {point["nodes"] for row in rows if "elastic_train.py" in row["name"] for point in row["points"]}

    cluster.until(lambda: measured() >= {1, 3}, seconds=240)
    assert [len(each) for each in memberships(cluster, job)[:2]] == [1, 3]
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")


def test_torchrun_starts_the_ranks_anew(submitted: Callable[[str], tuple[Cluster, int]]) -> None:
    cluster, job = submitted("torchrun")
    grow(cluster, job)
    cluster.cli("drain", "n2")
    cluster.until(lambda: trains_on(cluster, job, ["n1", "n3"]), seconds=240)
    until_printed_by(cluster, job, 2)
    kill_node(cluster, "n3")
    cluster.until(lambda: trains_on(cluster, job, ["n1"]), seconds=240)
    reached = cluster.job(job)["step"]
    cluster.until_step(job, reached + 20)
    # The run folder goes once its end is recorded; what is open stays readable.
    with (cluster.home / "run" / "n1" / f"{job}.1" / "record.jsonl").open() as file:
        cluster.cli("suspend", str(job))
        cluster.until_state(job, "SUSPENDED")
        records = [json.loads(line) for line in file]
    cluster.cli("cancel", str(job))
    cluster.until_state(job, "CANCELLED")

    assert (records[-1]["type"], records[-1]["code"], records[-1]["ended_by"]) == ("exit", 0, "suspend")
    last = [each for each in records if each["type"] == "saved"][-1]
    assert last["final"] is True
    assert last["step"] == cluster.job(job)["saved_step"] >= reached + 20
    reformed = [each["step"] for each in records if each["type"] == "reformed"]
    assert reformed == sorted(reformed)
    (torchrun,) = {each["pid"] for each in records if each["type"] == "started"}
    assert not [each for each in records if each["type"] == "signalled" and torchrun in each["pids"]]
    left = [
        each["body"]["ended_by"]
        for each in cluster.events(job)
        if each["kind"] == "Exited" and each["body"]["node"] == "n2"
    ]
    assert left == ["leave"]

    # torchrun numbers the ranks anew each time, on one machine by its processes' ids: rank 0 may be on any node.
    lines = sorted(printed(cluster, job), key=lambda line: line[0])
    assert {ranks for _, _, ranks in lines} == {1, 2, 3}
    # What is planned loses nothing; the SIGKILL at most what came after the last commit, every 20 steps.
    times = Counter(step for step, _, _ in lines)
    again = [step for step, number in times.items() if number > 1]
    assert max(times.values()) <= 2
    assert again == list(range(again[0], again[0] + len(again)) if again else ())
    assert len(again) <= 20
    assert_loss_goes_on(lines)
    assert cluster.kinds(job).count("StartRequested") == 1
    broken = [event["body"] for event in cluster.events(job) if event["kind"] == "Broken"]
    assert ("n1", "torchrun goes on with 1 of 2 ranks") in [(each["node"], each["why"]) for each in broken]
    assert_learnt(cluster)


def assert_learnt(cluster: Cluster) -> None:
    """What a rescale costs is kept by the job's model and script, whatever profile it named."""
    times = {row["name"]: row["times"] for row in cluster.cli("profile", "ls", "--json")["profiles"]}
    learnt = next(found for name, found in times.items() if "elastic_train.py" in name)
    assert learnt["grow_s"] > 0
    assert learnt["shrink_s"] > 0


def assert_loss_goes_on(lines: list[tuple[int, float, int]]) -> None:
    """After every change of the number of ranks the loss is where it was, and nowhere near where it began."""
    began = sum(loss for _, loss, _ in lines[:5]) / 5
    changes = [at for at in range(1, len(lines)) if lines[at][2] != lines[at - 1][2]]
    assert len(changes) >= 3
    for at in changes:
        before = [loss for _, loss, _ in lines[max(0, at - 10) : at]]
        after = [loss for _, loss, _ in lines[at : at + 10]]
        if lines[at][0] < 100:
            continue  # it still falls fast
        assert sum(after) / len(after) < 2 * sum(before) / len(before) + 0.02
        assert sum(after) / len(after) < began / 2
