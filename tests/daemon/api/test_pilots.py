"""The API's answers about the batch system, over a controller and a batch system of the tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.pilot import BatchState, Hole
from hpcdl.core.model.world import GpuInfo
from hpcdl.daemon.api.pilots import NOBODY, BatchRoutes
from tests.daemon.test_batch import AWAY, ONE, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    scene = Scene(home)
    yield scene
    scene.batching.stop()
    scene.loop.stop()


async def moment(seconds: float) -> bool:
    await asyncio.sleep(0.005)
    return False


def ask(handler: Callable[[Request], Awaitable[dict[str, Any]]], query: str = "", **path: Any) -> dict[str, Any]:
    async def answered() -> dict[str, Any]:
        scope = {"type": "http", "method": "GET", "query_string": query.encode(), "headers": [], "path_params": path}
        return await handler(Request(scope))

    return asyncio.run(answered())


def test_pilots_are_listed_and_cancelled(scene: Scene) -> None:
    routes = BatchRoutes(scene.loop, scene.batching, 4, moment)
    scene.want(ONE, ONE)
    scene.turn()
    answer = ask(routes.pilots)
    assert [(row["id"], row["state"], row["batch_id"]) for row in answer["pilots"]] == [
        (1, BatchState.PENDING, "100"),
        (2, BatchState.PENDING, "101"),
    ]
    assert answer["pilots"][0]["asked"] == {"nodes": 1, "on": [], "gpus": None, "walltime_s": 600.0}
    assert answer["notes"] == ["enough of them"]
    assert answer["batch"]["kind"] == "slurm"
    assert answer["batch"]["pilots_max"] == 4
    assert ask(routes.cancel, pilot=2)["pilots"][0]["cancelled"] == "cancelled by its user"
    with pytest.raises(cmd.CommandRefused, match="no pilot p7") as refusal:
        ask(routes.cancel, pilot=7)
    assert refusal.value.code == "unknown-pilot"


def test_pilots_that_are_over_are_listed_on_request(scene: Scene) -> None:
    routes = BatchRoutes(scene.loop, scene.batching, 4, moment)
    scene.want(ONE)
    scene.loop.send(cmd.PilotNotTaken(1, "invalid partition")).result(60)
    assert ask(routes.pilots)["pilots"] == []
    (row,) = ask(routes.pilots, "all=1")["pilots"]
    assert (row["state"], row["how"], row["left_s"]) == ("REFUSED", "invalid partition", None)


def test_a_pilot_whose_agent_has_come_runs_whatever_the_last_poll_said(scene: Scene) -> None:
    """The agent of a batch job that starts connects before the next poll; none may come that can be read."""
    routes = BatchRoutes(scene.loop, scene.batching, 4, moment)
    scene.want(ONE)
    scene.turn()
    inventory = cmd.Inventory("n1", (GpuInfo(0, "u"),), 8, 1000, 1, "boot", "log", True, allocation="100")
    scene.loop.send(inventory).result(60)
    (row,) = ask(routes.pilots)["pilots"]
    assert (row["state"], row["nodes"]) == ("RUNNING", ["n1"])


def test_holes_are_looked_at_when_somebody_asks(scene: Scene) -> None:
    scene.daemon(pilots=False)
    scene.system.idle = (Hole("gpu", 2, ("n1", "n2"), 4, until=5e9, why="batch job 7 is expected"),)
    routes = BatchRoutes(scene.loop, scene.batching, 0, moment)
    scene.batching.start()
    answer = ask(routes.holes)
    assert answer["holes"][0]["nodes"] == ["n1", "n2"]
    assert answer["at"] is not None
    assert answer["notes"] == ["none may be submitted: the setting pilots is 0"]
    for _ in range(5):
        ask(routes.holes)
    assert scene.system.times("holes") == 1, "the last look is young enough"


def test_holes_of_a_batch_system_that_is_away_are_answered_with_its_trouble(scene: Scene) -> None:
    scene.daemon(pilots=False)
    scene.system.errors["holes"] = AWAY
    routes = BatchRoutes(scene.loop, scene.batching, 0, moment)
    scene.batching.start()
    answer = ask(routes.holes)
    assert answer["holes"] == []
    assert answer["at"] is None
    assert answer["batch"]["troubles"] == [f"holes: {AWAY}"]
    assert answer["notes"][0] == f"slurm does not work: {AWAY}"


def test_without_a_batch_system(scene: Scene) -> None:
    routes = BatchRoutes(scene.loop, None, 4, moment)
    assert routes.about() is None
    assert ask(routes.holes) == {"holes": [], "at": None, "notes": [NOBODY], "batch": None}
    assert ask(routes.pilots)["notes"] == [NOBODY]
