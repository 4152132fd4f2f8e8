"""Arrays: what they are, how they are recorded, and that never more of them run than may."""

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.arrays import Array, check_places, expand, indices_from, indices_of, members_of, named, variables
from hpcdl.core.model.commands import CommandRefused, Entry
from hpcdl.core.model.events import decode, encode
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import JobState
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct
from tests.support.seeds import seeds

SPEC = JobSpec(("train", "--lr", "{lr}", "{index}", "{{lr}}", "${HOME}", '{"a":{"b":1}}'), "t", env=(("A", "b"),))


@pytest.mark.parametrize(
    "text, listed",
    [("1-4", [1, 2, 3, 4]), ("1-9:2", [1, 3, 5, 7, 9]), ("1,5,7-9", [1, 5, 7, 8, 9]), ("0", [0]), ("3,1", [3, 1])],
)
def test_indices(text: str, listed: list[int]) -> None:
    assert [index for index, _ in Array(indices_from(text)).members()] == listed
    assert [index for index, _ in Array(indices_of(listed)).members()] == listed


@pytest.mark.parametrize("text", ["", "a", "1-", "4-1", "1-3:0", "-1", "1-2-3", "1e3", "٣"])
def test_what_is_no_index(text: str) -> None:
    with pytest.raises(ValueError, match=r"index|go up"):
        indices_from(text)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=60, unique=True))
def test_indices_of_any_list(numbers: list[int]) -> None:
    assert [index for index, _ in Array(indices_of(numbers)).members()] == numbers


@pytest.mark.parametrize(
    "array, why",
    [
        (lambda: Array(), "needs indices or a sweep"),
        (lambda: Array(((1, 200_000, 1),)), "at most|100000 at most"),
        (lambda: Array(((1, 3, 1), (3, 4, 1))), "twice"),
        (lambda: Array(((1, 3, 1),), max_parallel=-1), "at a time"),
        (lambda: Array(sweep=(("index", ("1",)),)), "no name of a sweep"),
        (lambda: Array(sweep=(("a b", ("1",)),)), "no name of a sweep"),
        (lambda: Array(sweep=(("a", ("1",)), ("a", ("2",)))), "the sweep a is given twice"),
        (lambda: Array(sweep=(("a", ()),)), "no values"),
        (lambda: Array(sweep=(("a", ("\0",)),)), "NUL"),
    ],
)
def test_what_is_no_array(array: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        array()  # type: ignore[operator]


def test_members() -> None:
    array = Array(((1, 3, 2),), (("lr", ("0.1", "a b\n\udcff")),), 4)
    specs = expand(SPEC, array, 12)
    assert array.size == len(specs) == 4
    assert [(spec.array_index, dict(spec.sweep)["lr"]) for spec in specs] == [
        (1, "0.1"), (3, "0.1"), (1, "a b\n\udcff"), (3, "a b\n\udcff")
    ]  # fmt: skip
    assert specs[1].command == ("train", "--lr", "0.1", "3", "{lr}", "${HOME}", '{"a":{"b":1}}')
    assert specs[2].command[2] == "a b\n\udcff"
    assert [spec.name for spec in specs] == ["t[1,lr=0.1]", "t[3,lr=0.1]", "t[1,lr=a b??]", "t[3,lr=a b??]"]
    assert {(spec.array, spec.array_most, spec.learns_as) for spec in specs} == {(12, 4, "t @ train")}
    assert all(spec.env is SPEC.env for spec in specs)
    assert variables(specs[0]) == {"HPCDL_ARRAY_JOB": "12", "HPCDL_ARRAY_INDEX": "1", "HPCDL_SWEEP_LR": "0.1"}
    assert variables(SPEC) == {}
    for spec in specs:  # they are as good as ones that were checked
        fields = {name: getattr(spec, name) for name in JobSpec.__slots__}
        assert JobSpec(**fields) == spec


def test_a_sweep_alone_counts_from_1() -> None:
    spec = replace(SPEC, command=("train", "{a}{b}"), name="run-{a}", checkpoint_dir="/ck/{a}/{index}")
    specs = expand(spec, Array(sweep=(("a", ("1", "2")), ("b", ("x", "y")))), 1)
    assert [(each.array_index, each.command[1]) for each in specs] == [(1, "1x"), (2, "1y"), (3, "2x"), (4, "2y")]
    assert specs[3].checkpoint_dir == "/ck/2/4"
    assert specs[3].name == "run-2"
    assert specs[3].model == "run-{a}"


def test_a_name_that_is_no_sweep() -> None:
    array = Array(sweep=(("lrate", ("1",)),))
    with pytest.raises(ValueError, match=re.escape("did you mean {lrate}?")):
        check_places(replace(SPEC, command=("a", "{lrat}")), array)
    with pytest.raises(ValueError, match=re.escape("there are {index}, {lrate} ({{other}} stands for {other}")):
        check_places(replace(SPEC, command=("a", "{other}")), array)
    assert named(("{{a}}", "${b}", "{c}-{d.e}", "{ f }", "{1}")) == {"c", "d.e"}


def test_a_sweep_of_batch_sizes() -> None:
    array = Array(sweep=(("bs", ("16", "32")), ("lr", ("1", "2"))))
    spec = replace(SPEC, batch_sweep="bs")
    check_places(spec, array)
    specs = expand(spec, array, 1)
    assert [(each.batch_size, each.batch_sweep) for each in specs] == [(16, ""), (16, ""), (32, ""), (32, "")]
    assert JobSpec(**{name: getattr(specs[0], name) for name in JobSpec.__slots__}) == specs[0]
    assert expand(replace(SPEC, batch_size=8), array, 1)[3].batch_size == 8
    with pytest.raises(ValueError, match=r"the sweep lr has the batch sizes: '0.1' is no batch size"):
        check_places(replace(SPEC, batch_sweep="lr"), Array(sweep=(("lr", ("4", "0.1")),)))
    with pytest.raises(ValueError, match=r"no batch size|that of the sweep bs, which"):
        check_places(spec, Array(sweep=(("lr", ("4",)),)))
    with pytest.raises(ValueError, match="from 1 to 2147483647, got 0"):
        replace(SPEC, batch_size=0)
    with pytest.raises(ValueError, match="give one of them"):
        replace(SPEC, batch_size=4, batch_sweep="bs")


def test_one_event() -> None:
    cluster = Cluster({"n1": 2})
    entry = Entry(replace(SPEC, command=("train", "{index}")), Array(((1, 50, 1),), (), 2))
    (ids,) = cluster.send(cmd.Submit((Entry(SPEC), entry, Entry(SPEC, after=(1,))), "r"))
    assert ids == tuple(range(1, 53))
    told = [each.event for each in cluster.journal.records if isinstance(each.event, ev.ArraySubmitted)]
    assert [event.job for event in told] == [2]
    assert decode("ArraySubmitted", encode(told[0])) == told[0]
    world = cluster.world
    assert world.request_ids == {"r": ids}
    assert list(world.active) == list(ids)
    assert members_of(lambda number: spec.spec if (spec := world.jobs.get(number)) else None, 30) == range(2, 52)
    assert world.jobs[52].spec.after == tuple(range(2, 52))
    assert world.jobs[2].spec.command == ("train", "1")
    cluster.check_replay()
    assert cluster.send(cmd.Submit((entry,), "r")) == [ids]


@pytest.mark.parametrize(
    "entry, why",
    [
        (Entry(replace(SPEC, checkpoint_dir="/ck"), Array(sweep=(("lr", ("1", "2")),))), "cannot both checkpoint into"),
        (Entry(replace(SPEC, command=("{lr}",)), Array(sweep=(("lr", ("a", "")),))), "first word empty"),
        (Entry(SPEC, Array(((1, 2, 1),))), "names {lr}, which is no sweep"),
        (Entry(replace(SPEC, batch_sweep="lr"), Array(sweep=(("lr", ("a",)),))), "'a' is no batch size"),
        (Entry(replace(SPEC, batch_sweep="lr")), "this job has none"),
        (Entry(SPEC, Array(((1, 20_000, 1),), (("lr", ("1",)),))), "takes 1 to 10000 jobs, got 20000"),
        (Entry(SPEC, after=(0,)), "must wait for earlier ones"),
    ],
)
def test_refused(entry: Entry, why: str) -> None:
    cluster = Cluster({"n1": 2})
    (answer,) = cluster.send(cmd.Submit((entry,), "r"))
    assert isinstance(answer, CommandRefused)
    assert why in str(answer)
    assert not cluster.world.jobs


def test_held_from_the_start() -> None:
    cluster = Cluster({"n1": 4})
    array = Array(((1, 3, 1),))
    spec = JobSpec(("train", "{index}"), "j", profile="plain", steps=20)
    cluster.send(cmd.Submit((Entry(spec, array, held=True), Entry(spec, held=True)), "r"))
    cluster.tick_every(5.0)
    cluster.run(30.0)
    assert {state_of(job) for job in cluster.world.jobs.values()} == {JobState.QUEUED}
    assert all(job.held and not job.last_incarnation for job in cluster.world.jobs.values())
    for number in (1, 4):
        cluster.send(cmd.Release(number))
    cluster.run_until(lambda: len(cluster.world.active) == 2, within_s=500)
    assert set(cluster.world.active) == {2, 3}
    cluster.check_replay()


def used(cluster: Cluster, array: int) -> int:
    """Members of an array that hold GPUs, or are to."""
    world = cluster.world
    jobs = [job for job in world.jobs.values() if job.spec.array == array]
    return sum(job.running is not None or job.id in world.targets for job in jobs)


@settings(max_examples=seeds(25), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), policy=st.sampled_from(("marble", "marble-warm", "fifo-exclusive")), seed=st.integers(0, 99))
def test_never_more_than_may(data: st.DataObject, policy: str, seed: int) -> None:
    cluster = Cluster({"n1": 4, "n2": 3}, policy=policy, seed=seed, delay_s=data.draw(st.sampled_from((0.0, 2.0))))
    cluster.tick_every(10.0)
    caps: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 2))):
        most, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
        spec = JobSpec(("t", "{index}"), "j", profile="plain", steps=data.draw(st.sampled_from((20, 120))), retries=1,
                       gpus_max=data.draw(st.sampled_from((1, 2))), gate=data.draw(st.booleans()))  # fmt: skip
        first = cluster.world.next_job
        caps[first] = most
        for number in range(first, first + size):
            cluster.conduct[number] = Conduct(data.draw(st.sampled_from(([], [], [1]))))
        cluster.send(cmd.Submit((Entry(spec, Array(((1, size, 1),), (), most)), Entry(spec)), f"r{first}"))
    held: set[int] = set()
    for _ in range(400):
        for array, most in caps.items():
            assert used(cluster, array) <= most
        if not cluster.world.active:
            break
        verb = data.draw(st.sampled_from(("", "", "", "hold", "release", "cancel", "restart"))) if len(held) < 6 else ""
        number = data.draw(st.sampled_from(sorted(cluster.world.active))) if verb else 0
        match verb:
            case "hold":
                cluster.send(cmd.Hold(number))
                held.add(number)
            case "release":
                cluster.send(cmd.Release(number))
            case "cancel":
                cluster.send(cmd.Cancel(number))
            case "restart":
                cluster.restart_daemon()
                for node in ("n1", "n2"):
                    cluster.connect(node)
        cluster.run(7.0)
        if not verb:
            for each in [each for each in cluster.world.active if cluster.world.jobs[each].held]:
                cluster.send(cmd.Release(each))
    assert not cluster.world.active
    cluster.check_replay()


def test_a_full_array_is_filled_up_at_once() -> None:
    cluster = Cluster({"n1": 8})
    cluster.tick_every(10.0)
    spec = JobSpec(("t", "{index}"), "j", profile="plain", steps=60, gpus_max=1)
    cluster.send(cmd.Submit((Entry(spec, Array(((1, 6, 1),), (), 3)),), "r"))
    cluster.run(1.0)
    assert sorted(cluster.world.live) == [1, 2, 3]
    reasons = {cluster.controller.reasons[number] for number in (4, 5, 6)}
    assert len(reasons) == 1
    assert "at most 3 of array 1 at a time" in reasons.pop()
    cluster.send(cmd.Hold(2))
    cluster.send(cmd.Hold(4))
    cluster.run_until(lambda: 5 in cluster.world.live, within_s=60)
    assert sorted(cluster.world.live) == [1, 3, 5]


@pytest.mark.parametrize("base", ["nightly", "a[b", "a[1]", "x" * 180])
@pytest.mark.parametrize("array", [
    Array(((1, 12, 1),)), Array((), (("lr", ("0.1", "a\tb", "]")),)), Array(((1, 3, 2),), (("lr", ("0.1",)),)),
])  # fmt: skip
def test_of_a_members_name_the_name_of_its_submit_is_left(base: str, array: Array) -> None:
    members = expand(JobSpec(("x",), base), array, 1)
    assert {member.base_name for member in members} == {base}
    assert len({member.name for member in members}) == len(members)
    own = expand(JobSpec(("x",), "run-{index}"), array, 1)
    assert [member.base_name for member in own] == [member.name for member in own], "the user has named each"
