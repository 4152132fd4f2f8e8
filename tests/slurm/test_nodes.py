"""Nodes as sinfo prints them, in JSON and text, of several versions."""

import json
from pathlib import Path

import pytest

from hpcdl.batch.adapter import IdleNodes
from hpcdl.batch.system import BatchError
from hpcdl.slurm.nodes import gpus_of, idle_of_text, nodes_argv, nodes_of_json, nodes_of_text, states_of

RECORDINGS = Path(__file__).parents[1] / "recordings" / "slurm"


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize("name", ["hole", "drained-reserved", "suspended"])
def test_json_and_text_show_the_same_idle_nodes(name: str, version: str) -> None:
    as_json = {node.name: node for node in nodes_of_json(recorded(f"{version}-{name}-nodes.json"))}
    as_text = {node.name: node for node in nodes_of_text(recorded(f"{version}-{name}-nodes.txt"))}
    assert sorted(as_json) == ["n1", "n2", "n3", "n4"]
    assert as_text
    for node in as_text.values():
        same = as_json[node.name]
        assert (node.idle, node.planned, node.set_aside) == (same.idle, same.planned, same.set_aside)
        assert (node.gpus, node.kind, node.gpus_used) == (same.gpus, same.kind, same.gpus_used)
        assert sorted(node.queues) == sorted(same.queues)
    assert {name for name, node in as_json.items() if node.idle} == {n for n, node in as_text.items() if node.idle}


@pytest.mark.parametrize("version", ["22.05", "23.02", "23.11", "24.05", "24.11"])
def test_nodes_of_all_versions_are_the_same(version: str) -> None:
    nodes = {node.name: node for node in nodes_of_json(recorded(f"{version}-hole-nodes.json"))}
    assert [name for name, node in nodes.items() if node.idle] == ["n3", "n4"]
    assert [name for name, node in nodes.items() if node.planned] == ["n3", "n4"]
    assert nodes["n1"].states == {"ALLOCATED"}
    assert nodes["n1"].gpus_used == 4
    assert {node.gpus for node in nodes.values()} == {4}
    assert sorted(nodes["n1"].queues) == ["cancelp", "closed", "normal", "scavenge", "short"]
    assert sorted(nodes["n4"].queues) == ["cancelp", "closed", "normal", "scavenge"]


@pytest.mark.parametrize("version", ["22.05", "23.02", "23.11", "24.05", "24.11"])
def test_of_thousands_of_nodes_only_those_that_may_idle_are_read(version: str) -> None:
    text = recorded(f"{version}-hole-nodes.json")
    every = [node for node in nodes_of_json(text) if node.idle]
    assert every
    assert [node for node in nodes_of_json(text, idle_only=True) if node.idle] == every
    with pytest.raises(ValueError, match="name"):
        nodes_of_json('{"nodes": ["n1"]}', idle_only=True)


def test_what_idles_of_all_nodes_in_text() -> None:
    assert idle_of_text(recorded("22.05-all-nodes.txt")) == IdleNodes(frozenset({"n2", "n3"}), 4)
    twice = "NODELIST|STATE|GRES_USED|\nn[1-2]|idle|gpu:0|\nn2|mixed|gpu:1|\n"
    assert idle_of_text(twice) == IdleNodes(frozenset({"n1"}), 2)
    with pytest.raises(BatchError, match="a line that nobody understands: n2"):
        idle_of_text(twice[:-12])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "it lists no node at all"),
        ("(null)|idle|gpu:0|\n", "it lists no node at all"),
        ("n[1-4,|idle|gpu:0|\n", r"a list of nodes that nobody understands: n\[1-4,"),
    ],
)
def test_an_answer_without_nodes_concludes_nothing(rows: str, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        idle_of_text(f"NODELIST|STATE|GRES_USED|\n{rows}")


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_drained_and_reserved_nodes(version: str) -> None:
    nodes = {node.name: node for node in nodes_of_json(recorded(f"{version}-drained-reserved-nodes.json"))}
    assert "DRAIN" in nodes["n3"].states
    assert not nodes["n3"].idle
    assert nodes["n4"].set_aside
    assert nodes["n4"].idle


@pytest.mark.parametrize(("version", "state"), [("22.05", "IDLE"), ("24.11", "MIXED")])
def test_a_node_whose_job_is_suspended_is_not_idle(version: str, state: str) -> None:
    node = {node.name: node for node in nodes_of_json(recorded(f"{version}-suspended-nodes.json"))}["n4"]
    assert node.states == {state}
    assert node.gpus_used == 1
    assert node.memory_used == 100
    assert not node.idle


def test_types_mig_and_signs_of_states() -> None:
    nodes = {node.name: node for node in nodes_of_text(recorded("21.08-types-nodes.txt"))}
    assert [name for name, node in nodes.items() if node.idle] == [
        "g001",
        "g002",
        "g004",
        "g005",
        "g007",
        *(["c1", "c2", "c4", "c7"]),
    ]
    assert (nodes["g001"].gpus, nodes["g001"].kind) == (4, "a100")
    assert (nodes["g004"].gpus, nodes["g004"].kind) == (8, "a100")
    assert (nodes["g005"].gpus, nodes["g005"].kind) == (8, "1g.5gb+a100")
    assert (nodes["g006"].gpus, nodes["g006"].kind, nodes["g006"].gpus_used) == (14, "a100_1g.5gb", 3)
    assert (nodes["c1"].gpus, nodes["c1"].kind) == (0, "")
    assert nodes["c7"].planned
    assert nodes["c3"].queues == ("cpu",)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", (4, "")),
        ("gpu:V100:4(S:0-1)", (4, "v100")),
        ("gpu:a100:2(IDX:0,3),gpu:a100:1(IDX:5)", (3, "a100")),
        ("gres:gpu:2", (2, "")),
        ("gpu:no_consume:4", (4, "")),
        ("gpu:a100:no_consume:4", (4, "a100")),
        ("gpu:1g.5gb:7", (7, "1g.5gb")),
        ("gpu:mi250x:8", (8, "mi250x")),
        ("shard:a100:32,gpu:a100:4", (4, "a100")),
        ("mps:400", (0, "")),
        ("craynetwork:4", (0, "")),
        ("(null)", (0, "")),
        ("N/A", (0, "")),
        ("", (0, "")),
    ],
)
def test_gpus_among_generic_resources(gres: str, gpus: tuple[int, str]) -> None:
    assert gpus_of(gres) == gpus


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("idle", {"IDLE"}),
        ("IDLE+DRAIN", {"IDLE", "DRAIN"}),
        ("idle*", {"IDLE", "NOT_RESPONDING"}),
        ("down*", {"DOWN", "NOT_RESPONDING"}),
        ("planned", {"IDLE", "PLANNED"}),
        ("plnd*", {"IDLE", "PLANNED", "NOT_RESPONDING"}),
        ("mixed-", {"MIXED", "PLANNED"}),
        ("idle~", {"IDLE", "POWERED_DOWN"}),
        ("idle#", {"IDLE", "POWERING_UP"}),
        ("idle%", {"IDLE", "POWERING_DOWN"}),
        ("idle$", {"IDLE", "MAINTENANCE"}),
        ("idle@", {"IDLE", "REBOOT_REQUESTED"}),
        ("alloc+", {"ALLOC", "COMPLETING"}),
        ("inval", {"INVAL"}),
        ("", set()),
    ],
)
def test_states_with_their_signs(text: str, states: set[str]) -> None:
    assert states_of(text) == states


def test_nodes_without_what_they_need_are_no_crash() -> None:
    for text in ('{"nodes": [{}]}', '{"nodes": [3]}', '{"sinfo": [{}]}', '{"sinfo": [3]}'):
        with pytest.raises(ValueError):
            nodes_of_json(text)
    bare = nodes_of_json('{"nodes": [{"name": "n1", "state": ["IDLE", "NEW_FLAG"]}, {"name": "n2"}]}')
    assert [node.idle for node in bare] == [False, False]
    with pytest.raises(BatchError):
        nodes_of_text("nonsense\nslurm_load: x\n")


def test_what_is_asked() -> None:
    assert nodes_argv(True) == ["sinfo", "--json"]
    assert nodes_argv(False)[-1] == "--Format=PartitionName:|,StateComplete:|,Gres:|,GresUsed:|,AllocMem:|,NodeList:|"
    assert json.loads(recorded("22.05-hole-nodes.json"))["meta"]["Slurm"]["release"] == "22.05.8"
