"""A whole home of the version before the house was moved: every kind of event, jobs in every state, an archive, two
snapshots, requests that wait, marks, a lease. It opens, and says what it said then.

What is compared is what is stored or public: rows of tables, and documents of the API at one time. Documents may have
grown since; what people read as sentences may have been put better. `expected.json.gz` was made by that version,
commit 35eb605: a modelled cluster was driven through the Controller, and what is hard to reach was built as events.
"""

import asyncio
import gzip
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.config.settings import Config
from hpcdl.core.controller.controller import Controller
from hpcdl.core.fold.fold import fold
from hpcdl.core.model.events import KINDS, DaemonStarted
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import JobState, World, validate
from hpcdl.daemon.agents import Hub, HubSettings
from hpcdl.daemon.api.app import Api
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.submit import submit_of
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.daemon import open_ledger
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.ledger import Lease, SqliteJournal
from hpcdl.ledger.high_water_mark import read_mark
from hpcdl.ledger.integrity import LedgerShrank
from hpcdl.ledger.lease import LeaseHeld
from hpcdl.ledger.snapshots import body_of, world_of
from hpcdl.policies import all_policies
from hpcdl.wire.access import read_access
from hpcdl.wire.spool import Spool
from tests.support.model_parts import PLAIN

RECORDED = Path(__file__).parents[1] / "recordings" / "home"
ARCHIVE = "ledger-archive-000000000001-000000000309.jsonl.gz"
TOKEN = "t" * 64
SAYS = {"reason", "text", "details", "notes"}
"""Keys whose values are sentences for people: that they are there is all that is compared."""
FOLLOWS = {
    "cpu_s",
    "version",
    "policies",
    "objectives",
    "settings",
    "forecast",
    "rate",
    "eta_claim",
    "eta_s",
    "eta_low_s",
}
FOLLOWS |= {"eta_high_s", "starts_in_s", "starts_low_s", "starts_high_s"}
"""Keys whose values are the program's or the machine's, and estimates: they do not follow from the ledger alone."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The recorded home, as it was when its daemon had ended."""
    home = tmp_path / "home"
    (home / "spool").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "ledger.sqlite").write_bytes(gzip.decompress((RECORDED / "ledger.sqlite.gz").read_bytes()))
    for name in (ARCHIVE, "mark.json", "mark.now", "lease.3", "fence", "access.json", "spool/r-100.json"):
        shutil.copyfile(RECORDED / name, home / name)
    for path in home.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return home


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((RECORDED / "expected.json.gz").read_bytes()))
    return found


class Fixed:
    """A clock that stands still."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


class Asked:
    """The API over a ledger at one time."""

    def __init__(self, journal: SqliteJournal, now: float, home: Path) -> None:
        self._runner = asyncio.Runner()
        clock: Any = Fixed(now)
        profiles = Profiles({"plain": PLAIN})
        controller = Controller(journal, all_policies(), profiles)
        changes = self._runner.run(self._changes())
        self.loop = ControllerLoop(controller, clock, 3600.0, changes.announce, lambda requests: None, lambda why: None)
        self.loop.start()
        hub = Hub(self.loop, HubSettings("d-1", home, 600.0, 10.0), lambda node, beat: None)
        about = DaemonStatus(1, "h", 0.0, "0", "/home/jo/.hpcdl", ("marble",))
        self._api = Api(ApiContext(self.loop, hub, changes, profiles, about), TOKEN).application()

    async def _changes(self) -> Changes:
        return Changes(asyncio.get_running_loop())

    def get(self, path: str) -> Any:
        return self._runner.run(self._get(*path.partition("?")[::2]))

    async def _get(self, path: str, query: str) -> Any:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
            "raw_path": path.encode(), "query_string": query.encode(), "client": ("127.0.0.1", 1), "root_path": "",
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode())], "server": ("127.0.0.1", 2), "scheme": "https",
        }  # fmt: skip
        given, sent = [{"type": "http.request", "body": b"", "more_body": False}], list[Any]()

        async def receive() -> Any:
            return given.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self._api(scope, receive, send), 60)
        assert sent[0]["status"] == 200, (path, sent)
        return json.loads(b"".join(message.get("body", b"") for message in sent[1:]))

    def close(self) -> None:
        self.loop.stop()
        self._runner.close()


def documents(journal: SqliteJournal, now: float, home: Path) -> dict[str, Any]:
    """What the API answers about everything that there is."""
    asked = Asked(journal, now, home)
    try:
        jobs = range(1, asked.loop.world.next_job)
        known = [f"/v1/jobs/{job}" for job in jobs if asked.get(f"/v1/jobs?ids={job}")["jobs"]]
        paths = ["/v1/jobs", "/v1/jobs?all=1", "/v1/events?limit=10000", "/v1/nodes", "/v1/avoided", "/v1/notices"]
        paths += ["/v1/pilots?all=1", "/v1/holes", "/v1/status", "/v1/config", "/v1/overview", "/v1/profiles"]
        paths += [*known, *(f"{each}/{more}" for each in known for more in ("why", "attempts"))]
        paths += [f"/v1/events?job={job}" for job in jobs]
        return {path: asked.get(path) for path in paths}
    finally:
        asked.close()


def tables(home: Path) -> dict[str, list[list[Any]]]:
    """Rows for people with sqlite3, by table, in the order of their keys."""
    connection = sqlite3.connect(home / "ledger.sqlite")
    try:
        return {
            name: [list(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")]
            for name in ("job", "incarnation", "node", "outbox", "sample")
        }
    finally:
        connection.close()


def missing(then: Any, now: Any, where: str, skipped: frozenset[str]) -> Iterator[str]:
    """Where a document lacks, or says otherwise, what one of then said."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key, value in then.items():
            if key in skipped & FOLLOWS:
                continue  # an estimate is left out where there is no time for it
            if key not in now:
                yield f"{where}.{key} is gone"
            elif key not in skipped:
                yield from missing(value, now[key], f"{where}.{key}", skipped)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for place, (value, other) in enumerate(zip(in_order(then), in_order(now), strict=True)):
            yield from missing(value, other, f"{where}[{place}]", skipped)
    elif then != now:
        yield f"{where} was {then!r:.200}, is {now!r:.200}"


def in_order(rows: list[Any]) -> list[Any]:
    """Rows of jobs by their ids: which comes first among those that wait is an estimate, too."""
    return (
        sorted(rows, key=lambda row: row["id"]) if all(isinstance(row, dict) and "id" in row for row in rows) else rows
    )


def values(document: Any) -> set[Any]:
    """The texts and numbers in a document, wherever they are in it; a value in another place is no other value."""
    if isinstance(document, dict):
        return set[Any]().union(*map(values, document.values()))
    if isinstance(document, list):
        return set[Any]().union(*map(values, document))
    return set() if document is None or isinstance(document, bool) or document in (0, "") else {document}


def without_snapshots(home: Path, newest: int) -> None:
    """Drops the newest ones."""
    connection = sqlite3.connect(home / "ledger.sqlite")
    with connection:
        connection.execute(
            "DELETE FROM snapshot WHERE seq IN (SELECT seq FROM snapshot ORDER BY seq DESC LIMIT ?)", (newest,)
        )
    connection.close()


def test_every_kind_of_event_and_every_state_of_a_job_is_in_it(home: Path, expected: dict[str, Any]) -> None:
    with SqliteJournal(home / "ledger.sqlite") as journal:
        records, world = journal.read(0, 10**6), journal.load()
    known = set(expected["kinds"])  # a kind that came later is in no recording
    assert {record.event.kind for record in records} == known
    assert known <= set(KINDS), "stored names of events do not change"
    assert {str(state_of(job)) for job in world.jobs.values()} == set(expected["states"]) <= set(map(str, JobState))
    assert {stream for record in records if (stream := record.event.stream.partition("/")[0])} == {
        "daemon", "job", "node", "pilot"
    }  # fmt: skip


@pytest.mark.parametrize("dropped", [0, 1, 2], ids=["newest snapshot", "older snapshot", "events alone"])
def test_it_is_the_same_world(home: Path, expected: dict[str, Any], dropped: int) -> None:
    without_snapshots(home, dropped)
    assert tables(home) == expected["tables"]
    with SqliteJournal(home / "ledger.sqlite") as journal:
        world = journal.load()
        assert journal.snapshot_seq == (683, 621, 0)[dropped], "its snapshots are read, too"
        validate(world)
        assert world == fold(World(), journal.read(0, 10**6))
        assert journal.verify() == world.seq == expected["world"]["seq"]
        assert [request.kind for request in journal.pending()] == ["start", "suspend"]
        for number, job in expected["world"]["jobs"].items():
            assert values(job) <= values(to_json(world.jobs[int(number)])), f"job {number}"
        assert values(expected["world"]) <= values(to_json(world))
        found = documents(journal, expected["at"], home)
    lost: list[str] = []
    for path, then in expected["documents"].items():
        # Events are as they were recorded, sentences too.
        skipped = frozenset() if path.startswith("/v1/events") else frozenset(SAYS | FOLLOWS)
        lost += missing(then, found[path], path, skipped)
    assert lost == []


def test_a_snapshot_of_format_9_is_read(home: Path) -> None:
    """`snapshot-9.json.gz`: of this ledger, by the last version that wrote it, commit 56c4569."""
    body = gzip.decompress((RECORDED / "snapshot-9.json.gz").read_bytes()).decode("ascii")
    seq = json.loads(body)["world"]["seq"]
    connection = sqlite3.connect(home / "ledger.sqlite")
    with connection:
        connection.execute("INSERT INTO snapshot (seq, format, body) VALUES (?, 9, ?)", (seq, body))
    connection.close()
    with SqliteJournal(home / "ledger.sqlite") as journal:
        world = journal.load()
        assert journal.snapshot_seq == seq
        assert world == fold(World(), journal.read(0, 10**6))
        assert world_of(body_of(world)) == world, "and it is the same from one of today"


def test_a_daemon_opens_it_and_goes_on(home: Path, expected: dict[str, Any]) -> None:
    with pytest.raises(LeaseHeld, match="process 4711 on login1 in batch job 771"):
        Lease.acquire(home, now=0.0)
    lease = Lease.acquire(home, now=0.0, batch_ended=lambda job: job == "slurm:771:1700000000:cluster")
    assert lease.fence == 4
    resumed = open_ledger(home, Config(), lease.holds, lambda phase: None, accept_loss=False, first_job=1)
    with resumed.journal as journal:
        assert (resumed.raised, resumed.note) == (None, ""), "its mark says that it is whole"
        before = journal.load()
        controller = Controller(journal, all_policies(), Profiles({"plain": PLAIN}))
        controller.begin(DaemonStarted(lease.fence, "1", 1, "h"), before.at + 1)
        controller.decide(before.at + 2)
        validate(controller.world)
        with Spool(home) as spool:
            command = submit_of(json.loads(spool.read(*spool.names())))
        (ids,) = controller.step([command], before.at + 3)
        assert ids == tuple(range(before.next_job, before.next_job + 7)), "three indices of two values, and one"
        assert journal.verify() == controller.world.seq > before.seq
    lease.release()
    mark = read_mark(home)
    assert mark is not None
    assert (mark.seq, mark.given.job) == (controller.world.seq, controller.world.next_job)


def test_its_mark_tells_that_events_are_missing(home: Path, expected: dict[str, Any]) -> None:
    connection = sqlite3.connect(home / "ledger.sqlite")
    with connection:
        connection.execute("DELETE FROM event WHERE seq = ?", (expected["world"]["seq"],))
    connection.close()
    with pytest.raises(LedgerShrank):
        open_ledger(home, Config(), lambda: True, lambda phase: None, accept_loss=False, first_job=1)


def test_its_access_file_is_read(home: Path) -> None:
    body = json.loads((home / "access.json").read_bytes())
    (home / "access.json").write_text(json.dumps(body | {"inode": home.stat().st_ino}))
    access = read_access(home)
    assert (access.instance, access.host, access.port, access.pid) == ("d-1a2b", "127.0.0.1", 40123, 4711)
    assert (access.token, access.fence, access.certificate) == (TOKEN, 3, body["certificate"])
