"""Requests and messages that nobody would send: an answer in the API's form, or the connection's end.

Never a traceback, and nothing is changed by what was refused.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match, Route

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import Journal, MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.events import GpuChanged
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Policies, Profiles
from hpcdl.core.model.world import GpuInfo, World, validate
from hpcdl.daemon.agents import Hub, HubSettings
from hpcdl.daemon.api.app import Api
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.jobs import VERBS
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.marble import POLICIES
from hpcdl.wire import messages as msg
from tests.security.fuzz import JSON, SCALARS, TEXTS, fuzzed

TOKEN, VIEWER = "t" * 64, "v" * 64
STATUSES = {200, 400, 401, 403, 404, 409, 413, 503}


class Scene:
    """The API and the hub over a controller in memory, with a node and a job."""

    def __init__(self, home: Path, journal: Journal | None = None) -> None:
        self.home = home
        self.runner = asyncio.Runner()
        policies = Policies()
        policies.add(*POLICIES)
        self.controller = Controller(journal or MemoryJournal(), policies, Profiles({}))
        changes = self.runner.run(self._changes())
        self.loop = ControllerLoop(
            self.controller, WallClock(0.0), 3600.0, changes.announce, lambda requests: None, lambda why: None
        )
        self.loop.start()
        self.hub = Hub(self.loop, HubSettings("d-1", home, 600.0, 10.0), lambda node, beat: None)
        gpus = (GpuInfo(0, "GPU-0", "V100", 16_384),)
        self.send(cmd.Hello("n1", "log-1"))
        self.send(cmd.Inventory("n1", gpus, 4, 1000, 1, "boot", "log-1", True))
        self.send(cmd.Submit((JobSpec(("true",), "job"),), "r-1"))
        about = DaemonStatus(1, "h", 0.0, "0", str(home), ("marble",))
        api = Api(ApiContext(self.loop, self.hub, changes, Profiles({}), about), TOKEN, VIEWER)
        self.application = api.application()

    async def _changes(self) -> Changes:
        return Changes(asyncio.get_running_loop())

    def send(self, command: cmd.Command) -> Any:
        return self.loop.send(command).result(60)

    @property
    def world(self) -> World:
        return self.loop.world

    def ask(self, method: str, path: str, query: str = "", body: bytes = b"", token: str | None = TOKEN) -> Any:
        """Status and JSON of the answer; of the one that is text, the schema that its reader would see elsewhere."""
        return self.runner.run(self._ask(method, path, query, body, token))

    async def _ask(self, method: str, path: str, query: str, body: bytes, token: str | None) -> tuple[int, Any]:
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode("utf-8", "replace"), "query_string": query.encode("utf-8", "replace"),
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "https",
            "root_path": "",
        }  # fmt: skip
        sent: list[Any] = []
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return given.pop() if given else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self.application(scope, receive, send), 60)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        if dict(sent[0]["headers"]).get(b"content-type", b"").startswith(b"text/plain; version=0.0.4"):
            return sent[0]["status"], {"schema": 1, "text": content.decode()}
        return sent[0]["status"], json.loads(content)

    def routes(self) -> list[tuple[str, str]]:
        found = [route for route in self.application.routes if isinstance(route, Route)]
        return [(method, route.path) for route in found for method in sorted(route.methods or ())]

    def close(self) -> None:
        self.loop.stop()
        self.runner.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("fuzz") / "home"
    home.mkdir(mode=0o700)
    scene = Scene(home)
    yield scene
    validate(scene.world)
    scene.close()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A fault of the daemon is logged with its traceback."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


OTHER_KEYS = (
    "jobs",
    "request_id",
    "now",
    "until",
    "reason",
    "policy",
    "objective",
    "verb",
    "ids",
    "dry_run",
    "path",
    "id",
)
KEYS = st.sampled_from([*(field.name for field in fields(JobSpec)), *OTHER_KEYS])
SPEC = st.fixed_dictionaries(
    {"command": st.just(["true"]), "name": st.just("x")},
    optional={field.name: SCALARS | JSON for field in fields(JobSpec) if field.name not in ("command", "name")},
)
BODIES = st.one_of(
    st.fixed_dictionaries({"request_id": TEXTS, "jobs": st.lists(SPEC | JSON, max_size=2)}),
    st.dictionaries(KEYS, JSON, max_size=4),
    JSON,
)
QUERY = st.dictionaries(
    st.sampled_from(["all", "ids", "after", "limit", "job", "wait", "timeout", "name", "state", "fields", "user"]),
    TEXTS,
    max_size=3,
)


def test_the_order_of_the_routes_does_not_matter(scene: Scene) -> None:
    """No request fits two of them."""
    routes = [route for route in scene.application.routes if isinstance(route, Route)]
    for route in routes:
        for verb in VERBS:
            path = route.path.replace("{verb:verb}", verb).replace("{node:str}", "n1")
            path = re.sub(r"\{\w+:int\}", "1", path)
            for method in route.methods or ():
                scope = {"type": "http", "method": method, "path": path}
                assert [each for each in routes if each.matches(scope)[0] is Match.FULL] == [route], path
    status, answer = scene.ask("POST", "/v1/jobs/1/frobnicate")
    assert (status, answer["code"]) == (404, "unknown-route")


@fuzzed(60)
@given(data=st.data())
def test_requests(scene: Scene, data: st.DataObject) -> None:
    # A stop that is understood would have all else refused.
    method, pattern = data.draw(st.sampled_from([each for each in scene.routes() if each[1] != "/v1/stop"]))
    known = {"int": st.integers(0, 3).map(str), "verb": st.sampled_from(list(VERBS)), "str": st.just("n1")}
    # Once over the pattern: what is drawn may have braces, too.
    path = re.sub(r"\{\w+:(\w+)\}", lambda match: data.draw(known[match[1]] | TEXTS), pattern)
    # What waits is not to wait here.
    query = data.draw(QUERY)
    query = {key: ("0" if key in ("wait", "timeout") else value) for key, value in query.items()}
    if path.endswith("/wait"):
        query["timeout"] = "0"
    text = "&".join(f"{key}={quote(value, errors='replace')}" for key, value in query.items())
    body = b"" if method in ("GET", "HEAD") else json.dumps(data.draw(BODIES)).encode()
    token = data.draw(st.sampled_from([TOKEN, TOKEN, TOKEN, VIEWER, "x", None]))
    before_seq, files = scene.world.seq, sorted(os.listdir(scene.home))
    status, answer = scene.ask(method, path, text, body, token)
    if method == "HEAD":
        return
    assert status in STATUSES, (method, path, text, body[:500], answer)
    assert answer["schema"] == 1
    if status >= 400:
        assert answer["error"].isprintable() or "\\" in repr(answer["error"])
        assert answer["code"]
        assert "Traceback" not in answer["error"]
    if status >= 400 or token != TOKEN or method == "GET":
        assert scene.world.seq == before_seq, (method, path, body[:500])
        assert sorted(os.listdir(scene.home)) == files
    if token == VIEWER and status == 200:
        assert method == "GET"


@fuzzed(30)
@given(body=st.binary(max_size=200), path=TEXTS, method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "X", ""]))
def test_bytes(scene: Scene, body: bytes, path: str, method: str) -> None:
    before = scene.world.seq
    for where in (f"/v1/{path}", "/v1/jobs", "/v1/stop", "/v1/config"):
        status, answer = scene.ask(method, where, "", b"\xff" + body)
        assert status in STATUSES, (method, where, answer)
        assert answer["schema"] == 1
    assert scene.world.seq == before


def test_numbers_that_are_too_long_are_no_route(scene: Scene) -> None:
    """Python refuses to read them, which must not be a fault of the daemon: nobody has to show a token for it."""
    for token in (TOKEN, None):
        status, answer = scene.ask("GET", f"/v1/jobs/{'9' * 5000}", token=token)
        assert (status in (401, 404), answer["schema"]) == (True, 1)
        status, answer = scene.ask("GET", f"/v1/jobs/{'9' * 30}", token=token)
        assert (status in (401, 404), answer["schema"]) == (True, 1)


def test_what_is_replayed_is_done_once(scene: Scene) -> None:
    """A submit by its request id; a report of an agent by its number in the agent's log."""
    body = json.dumps({"request_id": "replayed", "jobs": [{"command": ["true"], "name": "once"}]}).encode()
    first, second = (scene.ask("POST", "/v1/jobs", body=body) for _ in range(2))
    assert first == second
    assert first[0] == 200
    jobs = scene.world.jobs.keys()
    number = scene.world.nodes["n1"].reports_seen + 1
    report = cmd.AgentReport("n1", "log-1", number, GpuChanged("n1", 0, "dirty", "a process that is not ours"))
    scene.send(report)
    seq = scene.world.seq
    scene.send(report)
    assert (scene.world.seq, scene.world.jobs.keys()) == (seq, jobs)
    assert scene.ask("GET", "/v1/jobs", token="t" * 63 + "u")[0] == 401


# --- the agents' WebSocket --------------------------------------------------------------------------------------------

KINDS: dict[str, type[Any]] = {
    "hello": msg.HelloMessage,
    "inventory": msg.InventoryMessage,
    "taken": msg.TakenMessage,
    "report": msg.ReportMessage,
    "heartbeat": msg.HeartbeatMessage,
    "leaving": msg.LeavingMessage,
    "request": msg.RequestMessage,
    "unknown": msg.HelloMessage,
}


def message(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """One with this kind's fields, most of them wrong."""
    plain = {"v": st.sampled_from([msg.VERSION, msg.VERSION, msg.VERSION, 0, 99, None]), "type": st.just(kind)}
    return st.fixed_dictionaries(plain, optional=dict.fromkeys(KINDS[kind].__struct_fields__, JSON))


FRAMES = st.one_of(
    st.sampled_from(sorted(KINDS)).flatmap(message).map(json.dumps), JSON.map(json.dumps), st.text(max_size=50)
)


@fuzzed(80)
@given(frame=FRAMES | st.binary(max_size=50))
def test_frames_are_messages_or_bad_ones(frame: str | bytes) -> None:
    try:
        found = msg.decode_message(frame)
    except msg.BadMessage as error:
        said = str(error)
    else:
        said = ""
        assert msg.decode_message(msg.encode_message(found)) == found
    assert len(said) < 1000


class Socket:
    """An agent's end: sends these frames, then goes away."""

    def __init__(self, frames: list[Any]) -> None:
        self._frames = frames
        self.sent: list[str] = []
        self.closed: tuple[int, str] | None = None

    async def accept(self) -> None:
        pass

    async def receive(self) -> dict[str, Any]:
        if self.closed is not None or not self._frames:
            return {"type": "websocket.disconnect", "code": 1006}
        return {"type": "websocket.receive", "text": self._frames.pop(0)}

    async def send_text(self, text: str) -> None:
        self.sent.append(text)

    async def close(self, code: int, why: str) -> None:
        self.closed = (code, why)


HELLO = msg.encode_message(msg.HelloMessage("n2", "log-2", "d-1", 0))
INVENTORY = msg.encode_message(msg.InventoryMessage((), 4, 1000, 7, "boot", True))


@fuzzed(30)
@given(frames=st.lists(FRAMES, min_size=1, max_size=4), greeted=st.integers(0, 2))
def test_an_agent_that_says_anything_harms_nobody(scene: Scene, frames: list[str], greeted: int) -> None:
    before = scene.world
    socket = Socket([*[HELLO, INVENTORY][:greeted], *frames])
    scene.runner.run(asyncio.wait_for(scene.hub.serve(socket), 60))  # type: ignore[arg-type]
    assert scene.hub.nodes() == ()
    scene.send(cmd.Tick())
    validate(scene.world)
    if greeted == 0 and len(socket.sent) == 0:
        assert scene.world.nodes.keys() == before.nodes.keys()
    assert scene.world.jobs.keys() == before.jobs.keys()
    assert scene.world.nodes["n1"] == before.nodes["n1"]
