"""The API's answers about the batch system, over a controller and a batch system of the tests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.pilot import BatchState, Hole
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import GpuInfo
from hpcdl.daemon.api import pilots
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.pilots import NOBODY
from tests.daemon.test_batch import AWAY, ONE, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    scene = Scene(home)
    yield scene
    scene.batching.stop()
    scene.loop.stop()


class Moments:
    """Changes that never come."""

    async def wait(self, seconds: float) -> bool:
        await asyncio.sleep(0.005)
        return False


class PilotRoutes:
    """The routes over a scene, and what they answer."""

    def __init__(self, scene: Scene, pilots_max: int, batching: bool = True) -> None:
        about = DaemonStatus(1, "h", 0.0, "0", "/home/jo/.hpcdl", ("marble",), pilots_max)
        with_batch = scene.batching if batching else None
        self.api = ApiContext(scene.loop, cast(Any, None), cast(Any, Moments()), Profiles({}), about, with_batch)

    def ask(self, name: str, query: str = "", **path: Any) -> dict[str, Any]:
        async def answered() -> dict[str, Any]:
            about = {"query_string": query.encode(), "headers": [], "path_params": path}
            return dict(await getattr(pilots, name)(self.api, Request({"type": "http", "method": "GET", **about})))

        return asyncio.run(answered())


def test_pilots_are_listed_and_cancelled(scene: Scene) -> None:
    asked = PilotRoutes(scene, 4)
    scene.want(ONE, ONE)
    scene.turn()
    answer = asked.ask("pilots")
    assert [(row["id"], row["state"], row["batch_id"]) for row in answer["pilots"]] == [
        (1, BatchState.PENDING, "100"),
        (2, BatchState.PENDING, "101"),
    ]
    assert answer["pilots"][0]["asked"] == {"nodes": 1, "on": [], "gpus": None, "walltime_s": 600.0}
    assert answer["notes"] == ["enough of them"]
    assert answer["batch"]["kind"] == "slurm"
    assert answer["batch"]["pilots_max"] == 4
    assert asked.ask("cancel", pilot=2)["pilots"][0]["cancelled"] == "cancelled by its user"
    with pytest.raises(cmd.CommandRefused, match="no pilot p7") as refusal:
        asked.ask("cancel", pilot=7)
    assert refusal.value.code == "unknown-pilot"


def test_pilots_that_are_over_are_listed_on_request(scene: Scene) -> None:
    asked = PilotRoutes(scene, 4)
    scene.want(ONE)
    scene.loop.send(cmd.PilotNotTaken(1, "invalid partition")).result(60)
    assert asked.ask("pilots")["pilots"] == []
    (row,) = asked.ask("pilots", "all=1")["pilots"]
    assert (row["state"], row["how"], row["left_s"]) == ("REFUSED", "invalid partition", None)


def test_a_pilot_whose_agent_has_come_runs_whatever_the_last_poll_said(scene: Scene) -> None:
    """The agent of a batch job that starts connects before the next poll; none may come that can be read."""
    asked = PilotRoutes(scene, 4)
    scene.want(ONE)
    scene.turn()
    inventory = cmd.Inventory("n1", (GpuInfo(0, "u"),), 8, 1000, 1, "boot", "log", True, allocation="100")
    scene.loop.send(inventory).result(60)
    (row,) = asked.ask("pilots")["pilots"]
    assert (row["state"], row["nodes"]) == ("RUNNING", ["n1"])


def test_holes_are_looked_at_when_somebody_asks(scene: Scene) -> None:
    scene.daemon(pilots=False)
    scene.system.idle = (Hole("gpu", 2, ("n1", "n2"), 4, until=5e9, why="batch job 7 is expected"),)
    asked = PilotRoutes(scene, 0)
    scene.batching.start()
    answer = asked.ask("holes")
    assert answer["holes"][0]["nodes"] == ["n1", "n2"]
    assert answer["at"] is not None
    assert answer["notes"] == ["none may be submitted: the setting pilots is 0"]
    for _ in range(5):
        asked.ask("holes")
    assert scene.system.times("holes") == 1, "the last look is young enough"


def test_a_look_is_dated_once_it_is_recorded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever waits for it is answered with the holes of the look before."""
    scene.system.idle = (Hole("gpu", 2, ("n1", "n2"), 4, until=5e9),)
    send, dated = scene.loop.send, list[float | None]()

    def noted(command: cmd.Command) -> Any:
        if isinstance(command, cmd.BatchSeen):
            dated.append(scene.batching.holes_at)
        return send(command)

    monkeypatch.setattr(scene.loop, "send", noted)
    scene.turn()
    assert dated == [None]
    assert scene.batching.holes_at is not None
    assert scene.loop.holes == scene.system.idle


def test_holes_of_a_batch_system_that_is_away_are_answered_with_its_trouble(scene: Scene) -> None:
    scene.daemon(pilots=False)
    scene.system.errors["holes"] = AWAY
    asked = PilotRoutes(scene, 0)
    scene.batching.start()
    answer = asked.ask("holes")
    assert answer["holes"] == []
    assert answer["at"] is None
    assert answer["batch"]["troubles"] == [f"holes: {AWAY}"]
    assert answer["notes"][0] == f"slurm does not work: {AWAY}"


def test_without_a_batch_system(scene: Scene) -> None:
    asked = PilotRoutes(scene, 4, batching=False)
    assert pilots.batch_status(asked.api) is None
    assert asked.ask("holes") == {"holes": [], "at": None, "notes": [NOBODY], "batch": None}
    assert asked.ask("pilots")["notes"] == [NOBODY]
