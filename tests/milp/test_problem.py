"""PROBLEM.json: what it may leave out, and one line that names the field for whatever is wrong in it."""

import json
from typing import Any

import pytest

from hpcdl.milp.problem import ProblemError, read


def asked(**changes: Any) -> dict[str, Any]:
    """A problem; `trainer` changes its first trainer, None leaves a field out."""
    trainer = {"id": "a", "current": ["n1"], "min": 1, "max": 4, "curve": [[1, 2.5], [3, 6]]}
    trainer |= changes.pop("trainer", {})
    whole = {"horizon_s": 120, "nodes": ["n1", "n2", "n3"], "trainers": [trainer], **changes}
    return {
        name: [{k: v for k, v in trainer.items() if v is not None}, *value[1:]] if value == [trainer] else value
        for name, value in whole.items()
        if value is not None
    }


def grouped(**trainer: Any) -> dict[str, Any]:
    groups = {"v100": ["n1", "n2"], "k80": ["m1"]}
    row = {"id": "a", "min": 1, "max": 4, "curve": {"v100": [[1, 2]], "k80": [[1, 1]]}, **trainer}
    return {"horizon_s": 120, "groups": groups, "trainers": [row]}


def test_what_may_be_left_out() -> None:
    problem = read('{"horizon_s": 0, "nodes": 7, "trainers": [{"id": "a", "curve": [[0, 0], [2, 5.0]]}]}')
    (trainer,) = problem.trainers
    assert (trainer.fewest, trainer.sizes, trainer.now, trainer.up_s, trainer.down_s) == (1, (), 0, 0.0, 0.0)
    assert trainer.weight == 1.0
    assert trainer.most >= 7
    assert trainer.curves[0] is not None
    assert trainer.curves[0].points == ((2, 5.0),)
    assert problem.capacities == [7]
    assert not read('{"horizon_s": 1.5, "nodes": 0, "trainers": []}').trainers
    assert read('{"horizon_s": 1, "nodes": [], "trainers": [], "comment": "any other name"}').capacities == [0]


def test_nodes_that_have_left_do_not_count() -> None:
    problem = read(json.dumps(asked(trainer={"current": ["gone", "n3", "n1", "lost"]})))
    assert problem.trainers[0].now == 2
    assert problem.held == (("n3", "n1"),)
    assert read(json.dumps(asked(trainer={"current": ["gone"]}))).trainers[0].now == 0


def test_a_number_of_nodes_where_nodes_have_names_is_of_those_that_nobody_names() -> None:
    whole = asked(trainer={"current": 1})
    whole["trainers"].append({**whole["trainers"][0], "id": "b", "current": ["n1"]})
    problem = read(json.dumps(whole))
    assert problem.held == (("n2",), ("n1",))


def test_the_group_is_where_the_named_nodes_are() -> None:
    problem = read(json.dumps(grouped(current=["m1"])))
    assert (problem.trainers[0].now, problem.trainers[0].group) == (1, 1)
    one_curve = read(json.dumps(grouped(curve=[[1, 2]])))
    assert one_curve.trainers[0].curves[0] == one_curve.trainers[0].curves[1]
    some = read(json.dumps(grouped(curve={"k80": [[1, 2]]})))
    assert some.trainers[0].curves[0] is None


def test_numbers_that_other_programs_write() -> None:
    problem = read(json.dumps(asked(nodes=3.0, trainer={"current": 1.0, "max": 10**9, "curve": [[1.0, 2]]})))
    assert problem.capacities == [3]


WRONG: list[tuple[str, Any]] = [
    ("the problem is a list: it must be an object", []),
    ("horizon_s is missing", asked(horizon_s=None)),
    ("horizon_s is -1: it must be from 0", asked(horizon_s=-1)),
    ("horizon_s is a text: it must be a number", asked(horizon_s="120")),
    ("horizon_s is true or false", asked(horizon_s=True)),
    ("horizon_s is too large: it must be from 0 to 1e+100", asked(horizon_s=10**400)),
    ("horizon is not known: is horizon_s meant?", asked(horizon=120)),
    ("nodes: it or groups is needed, and neither is there", asked(nodes=None)),
    ("nodes: it or groups is needed, and both are there", {**grouped(), "nodes": 3}),
    ("nodes is null", {**asked(), "nodes": None}),
    ("nodes is true or false", asked(nodes=True)),
    ("nodes is -1: it must be a whole number from 0", asked(nodes=-1)),
    ("nodes is 2.5: it must be a whole number", asked(nodes=2.5)),
    ("nodes is too large: it must be a whole number", asked(nodes=10**30)),
    ("nodes[1] is a number: it must be a text", asked(nodes=["n1", 2])),
    ("nodes[1] is empty", asked(nodes=["n1", ""])),
    ("nodes[2]: 'n1' is there twice", asked(nodes=["n1", "n2", "n1"])),
    ("groups is an object: it must be an object with a group at least", {**grouped(), "groups": {}}),
    ("groups is a list", {**grouped(), "groups": []}),
    ("groups: a group without a name", {**grouped(), "groups": {"": 3}}),
    ("groups.v100 is a text", {**grouped(), "groups": {"v100": "n1"}}),
    ("groups.k80[0]: 'n1' is a node of another group", {**grouped(), "groups": {"v100": ["n1"], "k80": ["n1"]}}),
    ("groups: more than 1000000 nodes", {**grouped(), "groups": {"v100": 10**6, "k80": 1}}),
    ("trainers is missing", asked(trainers=None)),
    ("trainers is an object: it must be a list", asked(trainers={})),
    ("trainers[0] is a number", asked(trainers=[3])),
    ("trainers[0].id is missing", asked(trainer={"id": None})),
    ("trainers[0].id is a number", asked(trainer={"id": 7})),
    ("trainers[1].id: 'a' is another trainer's id", asked(trainers=[{"id": "a", "curve": [[1, 1]]}] * 2)),
    ("trainers[0].scale_up is not known: is scale_up_s meant?", asked(trainer={"scale_up": 3})),
    ("trainers[0].min is 0: it must be a whole number from 1", asked(trainer={"min": 0})),
    ("trainers[0].min is -2", asked(trainer={"min": -2})),
    ("trainers[0].min is true or false", asked(trainer={"min": True})),
    ("trainers[0].max is 2, less than min, 3", asked(trainer={"min": 3, "max": 2})),
    ("trainers[0].max is 0", asked(trainer={"max": 0})),
    ("trainers[0].max is a text", asked(trainer={"max": "64"})),
    ("trainers[0].current is a text", asked(trainer={"current": "n1"})),
    ("trainers[0].current is -1", asked(trainer={"current": -1})),
    ("trainers[0].current is true or false", asked(trainer={"current": True})),
    ("trainers[0].current[1]: 'n1' is there twice", asked(trainer={"current": ["n1", "n1"]})),
    ("trainers[0].current[0] is a list", asked(trainer={"current": [["n1"]]})),
    ("trainers[0].current has names, and the nodes have none", asked(nodes=3)),
    ("trainers[0].group is 'v100', and there are no groups", asked(trainer={"group": "v100"})),
    ("trainers[0].group is 'p100': the groups are v100, k80", grouped(group="p100")),
    ("trainers[0].group: in which group are the 2 nodes", grouped(current=2)),
    ("trainers[0].current[0] is 'm1', of group 'k80': not of 'v100'", grouped(current=["m1"], group="v100")),
    ("trainers[0].current[1] is 'm1', of group 'k80': not of 'v100'", grouped(current=["n1", "m1"])),
    ("trainers[0].sizes is a number", asked(trainer={"sizes": 4})),
    ("trainers[0].sizes is empty", asked(trainer={"sizes": []})),
    ("trainers[0].sizes[1] is 8: outside of min to max, 1 to 4", asked(trainer={"sizes": [1, 8]})),
    ("trainers[0].sizes[0] is 0", asked(trainer={"sizes": [0, 1]})),
    ("trainers[0].sizes[2]: 2 is there twice", asked(trainer={"sizes": [1, 2, 2]})),
    ("trainers[0].sizes[0] is 1.5", asked(trainer={"sizes": [1.5]})),
    ("trainers[0].scale_up_s is -20", asked(trainer={"scale_up_s": -20})),
    ("trainers[0].scale_down_s is a text", asked(trainer={"scale_down_s": "5s"})),
    ("trainers[0].weight is -0.5", asked(trainer={"weight": -0.5})),
    ("trainers[0].weight is null", {**asked(), "trainers": [{**asked()["trainers"][0], "weight": None}]}),
    ("trainers[0].curve is missing", asked(trainer={"curve": None})),
    ("trainers[0].curve is empty", asked(trainer={"curve": []})),
    ("trainers[0].curve is a number", asked(trainer={"curve": 3})),
    ("trainers[0].curve has no point beyond 0 nodes", asked(trainer={"curve": [[0, 0]]})),
    ("trainers[0].curve[0]: a throughput of 1 on no node", asked(trainer={"curve": [[0, 1], [1, 2]]})),
    ("trainers[0].curve[1]: 1 nodes after 3; the points must rise", asked(trainer={"curve": [[3, 6], [1, 2]]})),
    ("trainers[0].curve[1]: 1 nodes after 1", asked(trainer={"curve": [[1, 2], [1, 3]]})),
    ("trainers[0].curve[0][1] is -2", asked(trainer={"curve": [[1, -2]]})),
    ("trainers[0].curve[0][1] is null", asked(trainer={"curve": [[1, None]]})),
    ("trainers[0].curve[0][1] is 1e+200", asked(trainer={"curve": [[1, 1e200]]})),
    ("trainers[0].curve[0][0] is -1", asked(trainer={"curve": [[-1, 2]]})),
    ("trainers[0].curve[0] is a list: it must be [nodes, throughput]", asked(trainer={"curve": [[1, 2, 3]]})),
    ("trainers[0].curve[1] is a number", asked(trainer={"curve": [[1, 2], 3]})),
    ("trainers[0].curve is by group, and there are no groups", asked(trainer={"curve": {"v100": [[1, 2]]}})),
    ("trainers[0].curve.p100: there is no such group", grouped(curve={"p100": [[1, 2]]})),
    ("trainers[0].curve has no group", grouped(curve={})),
    ("trainers[0].curve.v100[0][0] is 0.5", grouped(curve={"v100": [[0.5, 1]]})),
    ("trainers[0].curve: there is none for 'v100', where it runs", grouped(curve={"k80": [[1, 2]]}, current=["n1"])),
]  # fmt: skip


@pytest.mark.parametrize(("why", "value"), WRONG, ids=[why for why, _ in WRONG])
def test_what_is_wrong_is_named(why: str, value: Any) -> None:
    with pytest.raises(ProblemError) as caught:
        read(json.dumps(value))
    message = str(caught.value)
    assert message.startswith(why)
    assert "\n" not in message


def test_two_trainers_on_one_node() -> None:
    whole = asked()
    whole["trainers"].append({**whole["trainers"][0], "id": "b"})
    with pytest.raises(ProblemError, match=r"trainers\[1\].current: 'n1' is another trainer's node"):
        read(json.dumps(whole))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the problem is not JSON"),
        ("{", "the problem is not JSON"),
        ('{"horizon_s": NaN}', "NaN is no JSON number"),
        ('{"horizon_s": -Infinity}', "-Infinity is no JSON number"),
        ('{"horizon_s": 1e999, "nodes": 1, "trainers": []}', "horizon_s is inf: it must be from 0"),
        ('{"nodes": 1, "nodes": 2}', "'nodes' is there twice"),
        ('{"horizon_s": ' + "9" * 5000 + "}", "the problem is not JSON"),
        ("[" * 100_000, "the problem is nested too deeply"),
    ],
    ids=range(8),
)
def test_texts_that_are_no_problem(text: str, why: str) -> None:
    with pytest.raises(ProblemError) as caught:
        read(text)
    assert str(caught.value).startswith(why)
