"""Our own format of a workload, and arrivals that it describes."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.job import Sharing
from hpcdl.core.model.profile import Profile
from hpcdl.sim.readers import read_workload
from hpcdl.sim.workload import NodeSpell, Workload, WorkloadError, check_fits, cluster

PROFILES = {"bert": Profile("BERT", ((1, 1, 1.0),))}


def read(folder: Path, text: str, seed: int | None = None, nodes: tuple[NodeSpell, ...] = ()) -> Workload:
    path = folder / "work.yaml"
    path.write_text(text)
    return read_workload(path, PROFILES, nodes, seed=seed)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(WorkloadError) as caught:
        check_fits(read(folder, text, nodes=cluster(2, 4)))
    told = str(caught.value)
    assert "\n" not in told
    assert len(told) < 500
    return told.removeprefix(f"{folder / 'work.yaml'}:")


def test_the_example_is_read() -> None:
    example = read_workload(conf_folder() / "workloads" / "example.yaml", load_profiles([conf_folder() / "profiles"]))
    check_fits(example)
    assert [spell.kind for spell in example.nodes] == ["v100", "v100", "k80"]
    first = next(job for job in example.jobs if job.name == "first")
    assert (first.steps, first.gpus_min, first.gpus_max, first.user) == (6000, 1, 4, "ana")
    assert first.profile.on("k80").rate(1) == 0.4
    vgg = next(job for job in example.jobs if job.profile.name == "vgg-16")
    assert (vgg.gpus_counts, vgg.deadline_s) == ((1, 2, 4), 5400)
    assert any(job.kind == "inference" and job.profile.name == "inception-v3-inference" for job in example.jobs)
    assert len(example.jobs) > 10
    assert [job.submit_s for job in example.jobs] == sorted(job.submit_s for job in example.jobs)


def test_jobs_with_everything(tmp_path: Path) -> None:
    text = """
schema: 1
name: ours
source: a test
cluster: {nodes: 2, gpus_per_node: 4, gpu_type: V100}
profiles: {own: {points: [{gpus: 1, rate: 3}], kinds: {k80: [{gpus: 1, rate: 1}]}}}
jobs:
  - {submit_s: 1, profile: OWN, duration_s: 10, gpus: 4, nodes: "1:2", user: 17, name: 5, told: false}
  - {submit_s: 2, model: bert, steps: 8, gpus: [4, 1], draw: 4}
  - {submit_s: 3, model: bert, steps: 8}
"""
    workload = read(tmp_path, text)
    first, second, third = workload.jobs
    assert (workload.name, workload.source, workload.nodes) == ("ours", "a test", cluster(2, 4, "v100"))
    assert (first.steps, first.nodes, first.nodes_max, first.user, first.name) == (30, 1, 2, "17", "5")
    assert (first.told, second.told) == (False, True)
    assert (second.gpus_counts, second.draw, third.gpus_max) == ((1, 4), 4, 1)
    assert read(tmp_path, text, nodes=cluster(1, 8, "k80")).jobs[0].steps == 10


def test_groups_of_nodes_come_and_go(tmp_path: Path) -> None:
    text = "schema: 1\njobs: [{model: bert, steps: 1}]\ncluster:\n"
    text += "  - {nodes: 1, gpus_per_node: 4, gpu_type: v100}\n"
    text += "  - {nodes: 2, gpus_per_node: 8, from_s: 100, until_s: 900}\n"
    first, second, third = read(tmp_path, text).nodes
    assert (first.name, first.gpus, first.kind) == ("n1", 4, "v100")
    assert (second.name, second.gpus, second.kind, second.from_s, second.until_s) == ("n2", 8, "", 100, 900)
    assert third.name == "n3"


ARRIVALS = """
schema: 1
arrivals:
  process: poisson
  per_hour: 30
  hours: 4
  seed: 3
  mix:
    - {weight: 3, model: bert, steps: [10, 20], gpus: "1:4", user: ana}
    - {model: bert, duration_s: 60, gpus: 2, kind: inference, deadline_after_s: [100, 200]}
"""


def test_arrivals_are_drawn_with_their_seed(tmp_path: Path) -> None:
    workload = read(tmp_path, ARRIVALS)
    assert workload == read(tmp_path, ARRIVALS)
    assert workload == read(tmp_path, ARRIVALS, seed=3)
    assert workload.jobs != read(tmp_path, ARRIVALS, seed=4).jobs
    assert 80 < len(workload.jobs) < 160
    training = [job for job in workload.jobs if job.kind == "training"]
    assert 0.6 < len(training) / len(workload.jobs) < 0.9
    assert {job.steps for job in training} <= set(range(10, 21))
    for job in workload.jobs:
        if job.kind == "inference":
            assert job.deadline_s is not None
            assert 100 <= job.deadline_s - job.submit_s <= 200


def test_exponential_gaps_fill_their_span(tmp_path: Path) -> None:
    text = "schema: 1\narrivals: {process: exponential, jobs: 50, span_s: 600, mix: [{model: bert, steps: 1}]}\n"
    jobs = read(tmp_path, text).jobs
    assert len(jobs) == 50
    assert jobs[0].submit_s == 0
    assert 400 < jobs[-1].submit_s <= 600


HEAD = "schema: 1\njobs:\n"
MIX = "mix: [{model: bert, steps: 1}]"


@pytest.mark.parametrize(
    "text, told",
    [
        ("", " is empty"),
        ("3", " expected keys and values, got 3"),
        ("jobs: []", " schema: expected 1, got None"),
        ("schema: 2", " schema: expected 1, got 2"),
        ("schema: 1", " jobs: none"),
        ("schema: 1\njobs: 3", " jobs: expected a list"),
        ("schema: 1\njbos: []", " 'jbos': an unknown key"),
        ("schema: 1\nschema: 1", "2: 'schema': a key that is there twice"),
        ("schema: 1\njobs: [}", "2: not YAML"),
        ("schema: 1\njobs: !!python/object/apply:os.system [ls]", "2: not YAML: could not determine a constructor"),
        (HEAD + "- 3", "3: expected keys and values, got 3"),
        (HEAD + "- {model: bert, step: 1}", "3: 'step': an unknown key"),
        (HEAD + "- {model: bert, steps: 1}\n- {model: brt, steps: 1}", "4: model: no profile is called 'brt'; did you"),
        (HEAD + "- {model: bert, profile: bert, steps: 1}", "3: model, profile: both are given"),
        (HEAD + "- {model: bert}", "3: steps, duration_s: neither"),
        (HEAD + "- {model: bert, steps: true}", "3: steps: expected a number, got True"),
        (HEAD + "- {model: [bert], steps: 1}", "3: model: expected text"),
        (HEAD + "- {model: bert, steps: 1, gpus: 0}", "3: gpus: must be 1 or more"),
        (HEAD + "- {model: bert, steps: 1, gpus: []}", "3: gpus: expected different numbers"),
        (HEAD + "- {model: bert, steps: 1, gpus: {a: 1}}", "3: gpus: expected a number"),
        (HEAD + "- {model: bert, steps: 1, nodes: '1:'}", "3: nodes: '1:': say a maximum"),
        (HEAD + "- {model: bert, steps: 1, submit_s: .nan}", "3: submit_s: expected a number, got nan"),
        (HEAD + "- {model: bert, steps: 1, submit_s: 5, deadline_s: 4}", "3: deadline_s: 4 is not after"),
        (HEAD + "- {model: bert, steps: 1, told: 1}", "3: told: expected true or false"),
        (HEAD + "- {model: bert, steps: 1, gpus: 2, draw: 3}", "3: job bert/1: draw: 3 GPUs are not in 1:2"),
        (HEAD + "- {submit_s: 5, model: bert, steps: 1}\n- {model: bert, steps: 1}", "4: submit_s: 0 is before"),
        (HEAD + "- {model: bert, steps: 1, gpus: 64}", "job bert/1 can never fit"),
        ("schema: 1\nprofiles: []", " profiles: expected names"),
        ("schema: 1\nprofiles: {1: {}}", " profiles: a name must be text"),
        ("schema: 1\nprofiles: {a: {points: []}}", " profiles: profile a: points: at least one"),
        (
            "schema: 1\nprofiles: {a: {points: [{gpus: 1, rate: .nan}]}}",
            " profiles: profile a: points[0]: rate must be",
        ),
        ("schema: 1\narrivals: 3", " arrivals: expected keys and values"),
        (f"schema: 1\narrivals: {{process: uniform, {MIX}}}", " arrivals: process: expected exponential or poisson"),
        (f"schema: 1\narrivals: {{per_hour: 1, {MIX}}}", " arrivals: hours missing"),
        (f"schema: 1\narrivals: {{per_hour: 1, hours: 1, jobs: 3, {MIX}}}", " arrivals: jobs not for process poisson"),
        (f"schema: 1\narrivals: {{per_hour: 0, hours: 1, {MIX}}}", " arrivals: arrivals need a rate"),
        (f"schema: 1\narrivals: {{per_hour: 1.e+8, hours: 1000, {MIX}}}", " arrivals: arrivals must be 0 to 1000000"),
        ("schema: 1\narrivals: {per_hour: 1, hours: 1}", " arrivals: mix: expected a list"),
        ("schema: 1\narrivals: {per_hour: 1, hours: 1, mix: [{}]}", " arrivals: mix[0]: steps, duration_s: exactly"),
        (
            "schema: 1\narrivals: {per_hour: 1, hours: 1, mix: [{steps: [3, 2]}]}",
            " arrivals: mix[0]: steps: needs 0 < LOW <= HIGH",
        ),
        (
            "schema: 1\narrivals: {per_hour: 1, hours: 1, mix: [{steps: 1, weight: 0}]}",
            " arrivals: mix[0]: weight: must be more than 0",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    assert refused(tmp_path, text).startswith(told)


@pytest.mark.parametrize(
    "group, told",
    [
        ("3", "expected keys and values"),
        ("{nodes: 1}", "cluster: gpus_per_node missing"),
        ("{nodes: 0, gpus_per_node: 1}", "cluster: nodes: must be 1 or more"),
        ("{nodes: 1, gpus_per_node: 0}", "cluster: gpus_per_node: must be 1 or more"),
        ("{nodes: 1, gpus_per_node: 1, from_s: 5, until_s: 5}", "cluster: node n1: is there from 5"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(tmp_path: Path, group: str, told: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(tmp_path, f"schema: 1\njobs: [{{model: bert, steps: 1}}]\ncluster: {group}\n")
    assert told in str(caught.value)


def test_aliases_cannot_explode(tmp_path: Path) -> None:
    bomb = "schema: 1\na0: &a0 [x]\n"
    for level in range(1, 30):
        bomb += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    assert refused(tmp_path, bomb).startswith(" holds more than 2000000 values")
    assert refused(tmp_path, "schema: 1\njobs: &a [*a]").startswith((" holds more than", "2: "))


def test_what_arrives_may_share_gpus(tmp_path: Path) -> None:
    one = ARRIVALS.replace("kind: inference", "kind: inference, share: background, gpu_memory: 2G", 1)
    assert one != ARRIVALS
    drawn, before = read(tmp_path, one).jobs, read(tmp_path, ARRIVALS).jobs
    assert [replace(job, share=None, gpu_memory_mib=None) for job in drawn] == list(before), "the same jobs"
    shares = {(job.kind, job.share, job.gpu_memory_mib) for job in drawn}
    assert shares == {("training", None, None), ("inference", Sharing("background"), 2048)}
