"""The API's answer about the daemon itself."""

from hpcdl.core.model.world import Node, World
from hpcdl.daemon.api.status import allocation_ends


def test_an_allocation_ends_when_the_last_of_its_nodes_does() -> None:
    world = World()
    for name, allocation, until in (
        ("n1", "7", 100.0),
        ("n2", "7", 130.0),
        ("n3", "7", 900.0),
        ("n4", "8", None),
        ("login", "", 50.0),
    ):
        world.nodes[name] = Node(name, (), allocation=allocation, until=until)
    assert allocation_ends(world, {"n1", "n2", "n4", "login", "unknown"}) == {"7": 130.0, "8": None}
