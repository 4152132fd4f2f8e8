"""Where the ranks of a fixed number of nodes meet."""

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.agent.context import AgentContext
from hpcdl.agent.rendezvous import FROM, TO, check_meeting_point, group_environment, meeting_point
from hpcdl.core.model.commands import Request
from hpcdl.trainer.ranks import environment
from hpcdl.wire.messages import RequestMessage
from tests.agent.daemon import spec_of

NODES = ("n1", "n2", "n3")


def site(node: str) -> AgentContext:
    return cast(AgentContext, SimpleNamespace(node=node, instance="0123"))


def order(address: str = "10.0.0.1,10.0.0.2,10.0.0.3", attempt: int = 1, **keys: Any) -> RequestMessage:
    nodes = NODES[: address.count(",") + 1]
    return RequestMessage(1, Request("start", "n1", 7, attempt, nodes=nodes, address=address), spec=spec_of(**keys))


def test_all_nodes_know_one_place_and_each_attempt_has_its_own() -> None:
    places = [meeting_point(site(node), order()) for node in NODES]
    assert places[0] is not None
    assert places[0][0] == "10.0.0.1"
    assert FROM <= places[0][1] < TO
    assert set(places) == {places[0]}
    assert len({meeting_point(site("n1"), order(attempt=number)) for number in range(1, 20)}) > 15


def test_every_process_gets_what_makes_them_one_group() -> None:
    found = [group_environment(site(node), order()) for node in NODES]
    assert [each["RANK"] for each in found] == [each["NODE_RANK"] for each in found] == ["0", "1", "2"]
    for each in found:
        assert (each["WORLD_SIZE"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) == ("3", "0", "1")
        assert (each["MASTER_ADDR"], each["PET_NNODES"]) == ("10.0.0.1", "3")
        assert each["HPCDL_RDZV_ENDPOINT"] == f"10.0.0.1:{each['MASTER_PORT']}"
    assert group_environment(site("n1"), order("fd00::1,fd00::2"))["HPCDL_RDZV_ENDPOINT"].startswith("[fd00::1]:")


@pytest.mark.parametrize(
    "nothing",
    [order("10.0.0.1"), order("10.0.0.1,"), order(rescale="torchrun"), order(rescale="in-process")],
    ids=["one node", "an agent that does not say", "torchrun", "in-process"],
)
def test_where_there_is_no_such_group(nothing: RequestMessage) -> None:
    assert group_environment(site("n1"), nothing) == {}


def test_the_first_node_sees_that_the_port_is_free() -> None:
    for attempt in range(1, 50):
        wanted = order("127.0.0.1,127.0.0.2", attempt)
        place = meeting_point(site("n1"), wanted)
        assert place is not None
        with socket.socket() as mine:
            try:
                mine.bind(place)
            except OSError:
                continue  # somebody else has that very port
            with pytest.raises(OSError, match=f"{place[0]}:{place[1]}: "):
                check_meeting_point(site("n1"), wanted)
            check_meeting_point(site("n2"), wanted)
            return
    raise AssertionError("no port is free")


def test_ranks_count_those_of_all_nodes() -> None:
    around = group_environment(site("n2"), order("10.0.0.1,10.0.0.2"))
    around |= {"HPCDL_NODES": "n1,n2", "HPCDL_NODE_RANK": "1", "HPCDL_GPUS": "a,b", "CUDA_VISIBLE_DEVICES": "a,b"}
    found = [environment(around, each, 2, "/store") for each in range(2)]
    assert [each["RANK"] for each in found] == [each["HPCDL_RANK"] for each in found] == ["2", "3"]
    assert [each["LOCAL_RANK"] for each in found] == [each["HPCDL_LOCAL_RANK"] for each in found] == ["0", "1"]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"]) for each in found} == {("4", "2")}
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["a,b", "a,b"], "the LOCAL_RANK is the GPU's number"
    assert [each["HPCDL_GPUS"] for each in found] == ["a", "b"]
