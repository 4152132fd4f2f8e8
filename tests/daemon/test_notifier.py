"""The thread that delivers notices: bundled, again until they are taken, held up by nobody."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeRules
from hpcdl.core.model.plan import Policies, Profiles
from hpcdl.core.rules.intake import Settings
from hpcdl.daemon.delivery import Letter, NotDelivered, Ways
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.notifier import BUNDLE_S, COLLECT_S, LIMIT_S, PAUSE_S, Notifier
from hpcdl.marble import POLICIES
from tests.support.waiting import until

A, B = "mailto:a@example.org", "mailto:b@example.org"


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


class Post:
    """A loop, jobs that end when they are cancelled, and what was sent."""

    def __init__(self, home: Path) -> None:
        self.clock = Clock()
        self.journal = MemoryJournal()
        policies = Policies()
        policies.add(*POLICIES)
        settings = Settings(notices=NoticeRules((A,)))
        controller = Controller(self.journal, policies, Profiles({}), settings)
        self.loop = ControllerLoop(controller, self.clock, 0.0, lambda _: None, lambda _: None, lambda _: None)  # type: ignore[arg-type]
        self.loop.start()
        self.ways = Ways("i", home)  # its commands are ours alone: there are none
        self.sent: list[tuple[str, Letter]] = []
        self.fails: dict[str, str] = {}
        self.hangs: dict[str, threading.Event] = {}
        self.notifier = self.another()

    def another(self, for_s: float = 1e6) -> Notifier:
        return Notifier(self.loop, self.ways, for_s, send=self._send, monotonic=self.clock.now)

    def _send(self, destination: str, letter: Letter, ways: Ways) -> None:
        if destination in self.hangs:
            self.hangs[destination].wait(60)
            raise NotDelivered("it hung")
        if destination in self.fails:
            raise NotDelivered(self.fails[destination])
        self.sent.append((destination, letter))

    def end(self, many: int = 1, **spec: Any) -> None:
        """So many jobs are submitted, and end."""
        specs = tuple(JobSpec(("true",), "j", **spec) for _ in range(many))
        ids = self.loop.send(cmd.Submit(specs, f"r{self.loop.world.seq}")).result(60)
        for future in [self.loop.send(cmd.Cancel(number)) for number in ids]:
            future.result(60)

    def turn(self, seconds: float = 0.0) -> float | None:
        """Lets time pass, and waits for what was begun; how long nothing is due."""
        self.clock.time += seconds
        pause = self.notifier.turn()
        boxes = self.notifier._boxes
        until(lambda: all(box.flight is None or to in self.hangs for to, box in boxes.items()), "all that was sent")
        return pause

    @property
    def numbers(self) -> list[tuple[str, list[int]]]:
        return [(to, [notice.id for notice in letter.notices]) for to, letter in self.sent]


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    post = Post(tmp_path)
    yield post
    for event in post.hangs.values():
        event.set()
    post.loop.stop()


def test_what_ends_together_is_one_message(post: Post) -> None:
    assert post.turn() is None
    post.end(200)
    assert post.turn() == pytest.approx(COLLECT_S)
    assert post.sent == []
    post.turn(COLLECT_S)
    (letter,) = [letter for _, letter in post.sent]
    assert [notice.id for notice in letter.notices] == list(range(1, 201))
    assert letter.subject == "200 notifications: 200 end"
    assert letter.text.count("\n") == 51
    assert "and 150 more" in letter.text
    assert post.loop.world.notices == {}
    assert [r.event.kind for r in post.journal.records].count("NoticesSent") == 1


def test_a_destination_gets_one_message_a_minute(post: Post) -> None:
    for _ in range(4):
        post.end()
        post.turn()
        post.turn(COLLECT_S)
    assert post.numbers == [(A, [1])]
    assert post.turn(BUNDLE_S - 4 * COLLECT_S - 1) == pytest.approx(2.0)
    post.turn(2.0)
    assert post.numbers == [(A, [1]), (A, [2, 3, 4])]
    post.end(notify=(B,))
    post.turn()
    post.turn(COLLECT_S)
    assert post.numbers[-1] == (B, [5]), "another destination has its own minute"


def test_what_fails_is_tried_again_after_growing_pauses(post: Post) -> None:
    post.fails[A] = "no route"
    post.end()
    post.turn()
    post.turn(COLLECT_S)
    pauses = []
    for _ in range(12):
        route = post.loop.world.routes[A]
        pauses.append(route.retry_at - post.clock.time)
        assert post.turn() == pytest.approx(pauses[-1])
        post.turn(pauses[-1])
    assert pauses == [min(3600.0, PAUSE_S * 2**n) for n in range(12)]
    assert post.loop.world.routes[A].failed == 13
    post.fails.clear()
    post.turn(3600.0)
    assert post.numbers == [(A, [1])]
    assert (post.loop.world.notices, post.loop.world.routes) == ({}, {})


def test_what_nobody_takes_is_given_up_and_can_be_retried(post: Post) -> None:
    post.notifier = post.another(for_s=40.0)
    post.fails[A] = "no route"
    post.end()
    for pause in (0.0, COLLECT_S, 15.0, 30.0):
        post.turn(pause)
    notice = post.loop.world.notices[1]
    assert (notice.waiting, notice.given_up) == ((), (A,))
    assert post.turn(1e5) is None
    post.fails.clear()
    post.loop.send(cmd.RetryNotices()).result(60)
    post.turn()
    post.turn(COLLECT_S)
    assert post.numbers == [(A, [1])]


def test_one_that_hangs_holds_up_nobody(post: Post) -> None:
    post.hangs[B] = threading.Event()
    post.end(notify=(B, A))
    post.turn()
    post.turn(COLLECT_S)
    assert post.numbers == [(A, [1])]
    post.turn(LIMIT_S)
    route = post.loop.world.routes[B]
    assert (route.failed, route.why) == (1, f"no end of it within {LIMIT_S:g} s")
    flight = post.notifier._boxes[B].flight
    post.turn(PAUSE_S)
    assert post.notifier._boxes[B].flight is flight, "not another one beside it"
    post.hangs.pop(B).set()
    assert flight is not None
    assert flight.thread is not None
    thread = flight.thread
    until(lambda: not thread.is_alive(), "the end of the one that hung")
    post.turn(BUNDLE_S)
    post.turn(BUNDLE_S)
    assert (B, [1]) in post.numbers


def test_a_daemon_that_dies_before_it_records_sends_again_with_the_same_id(post: Post) -> None:
    post.end()
    first: list[str] = []

    def send_and_die(destination: str, letter: Letter, ways: Ways) -> None:
        post.notifier.stop()  # nothing is recorded from here on
        first.append(letter.id)

    post.notifier = Notifier(post.loop, post.ways, 1e6, send=send_and_die, monotonic=post.clock.now)
    post.notifier.turn()
    post.clock.time += COLLECT_S
    post.notifier.turn()
    until(lambda: first, "the first letter")
    assert list(post.loop.world.notices) == [1]
    post.notifier = post.another()
    post.turn()
    post.turn(COLLECT_S)
    assert [letter.id for _, letter in post.sent] == first == ["i-1"]


def test_a_stop_waits_for_no_destination(post: Post) -> None:
    post.notifier = Notifier(post.loop, post.ways, 1e6, send=post._send)
    post.hangs[A] = threading.Event()
    post.end()
    post.notifier.start()
    until(lambda: A in post.notifier._boxes and post.notifier._boxes[A].flight is not None, "its flight")
    post.notifier.stop()
    until(lambda: not post.notifier._thread.is_alive(), "the end of the thread")
    assert list(post.loop.world.notices) == [1], "the next daemon tells it"


def test_a_command_is_run_where_its_jobs_are(post: Post) -> None:
    post.end(cwd="/a", notify=(B,))
    post.turn()
    post.turn(COLLECT_S)
    assert [letter.folder for _, letter in post.sent] == ["/a"]
    post.end(cwd="/a", notify=(B,))
    post.end(cwd="/b", notify=(B,))
    post.turn()
    post.turn(BUNDLE_S)
    assert [letter.folder for _, letter in post.sent] == ["/a", ""]
