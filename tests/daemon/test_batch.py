"""The thread that talks with the batch system: how often it asks, what it submits, and what trouble changes."""

import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.adapter import Allocation, Capabilities, IdleNodes, PilotScript
from hpcdl.batch.command import Commands
from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.pilots import pilot_policy
from hpcdl.batch.system import BatchError
from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.pilot import (
    BatchJob,
    BatchState,
    Hole,
    PendingBatchJob,
    Pilot,
    PilotChoice,
    PilotSpec,
    pilot_mark,
)
from hpcdl.core.model.plan import Plan, Policies, Profiles, View
from hpcdl.core.model.world import GpuInfo, World
from hpcdl.daemon.batch import SUBMITS, TRIES, BatchSettings, BatchThread
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.marble import POLICIES
from tests.support.waiting import until

AWAY = BatchError("squeue has not answered within 30 s", away=True)
FULL = BatchError("sbatch: QOSMaxSubmitJobPerUserLimit", again=True)
NEVER = BatchError("sbatch: invalid partition specified: nope")


class System:
    """A batch system whose answers the test chooses; what it was asked is written down."""

    kind = "slurm"

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.jobs: dict[str, BatchJob] = {}
        self.idle: tuple[Hole, ...] = ()
        self.errors: dict[str, BatchError] = {}
        self.lost_answers = 0
        self.others: tuple[PendingBatchJob, ...] = ()
        self.truth: dict[str, BatchJob] | None = None
        """What a second command says, where that is another thing than the first one's."""
        self.scripts: list[PilotScript] = []

    def _ask(self, what: str, detail: Any) -> None:
        self.asked.append((what, detail))
        if what in self.errors:
            raise self.errors[what]

    def times(self, what: str) -> int:
        return sum(1 for name, _ in self.asked if name == what)

    def capabilities(self) -> Capabilities:
        return Capabilities("slurm", "22.05.8", True)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        return None

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        self._ask("holes", frozenset(own))
        return self.idle

    def idle_nodes(self) -> IdleNodes:
        return IdleNodes(frozenset())

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        return self.others

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        self._ask("submit", script.mark)
        self.scripts.append(script)
        number = str(100 + len(self.jobs))
        self.jobs[number] = BatchJob(number, BatchState.PENDING, script.mark)
        if self.lost_answers:
            self.lost_answers -= 1
            raise AWAY
        return number

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        self._ask("poll", tuple(sorted(ids)))
        return {each: self.jobs.get(each, BatchJob(each, BatchState.MISSING)) for each in ids}

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        self._ask("confirm", tuple(sorted(ids)))
        known = self.jobs if self.truth is None else self.truth
        return {each: known.get(each, BatchJob(each, BatchState.GONE)) for each in ids}

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        self._ask("marked", prefix)
        return tuple(job for job in self.jobs.values() if job.mark.startswith(prefix))

    def cancel(self, ids: Collection[str]) -> None:
        self._ask("cancel", tuple(sorted(ids)))

    def signal(self, batch_id: str, name: str) -> None:
        self._ask("signal", batch_id)

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(argv)

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        return {}


class Scene:
    """A controller whose choice of pilots the test makes, and the thread's turns on a clock that the test moves."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.system = System()
        self.wanted: list[PilotSpec] = []
        self.unwanted: list[tuple[int, str]] = []
        policies = Policies()
        policies.add(*POLICIES)
        self.journal = MemoryJournal()
        controller = Controller(self.journal, policies, Profiles({}), None, self._choose)
        self.loop = ControllerLoop(
            controller, WallClock(0.0), 0.0, lambda world: None, lambda requests: None, lambda why: None
        )
        self.loop.start()
        self.seconds = 1000.0
        self.batching = self.daemon()

    def daemon(self, pilots: bool = True) -> BatchThread:
        """The thread of a daemon that starts now; its turns are called by the test."""
        settings = BatchSettings(self.home, "d-1", 30.0, pilots, ("--account=x",))
        self.batching = BatchThread(self.system, self.loop, settings, monotonic=lambda: self.seconds)
        return self.batching

    def _choose(
        self,
        view: View,
        plan: Plan,
        pilots: Sequence[Pilot],
        holes: Sequence[Hole],
        known: Set[str],
        waiting: Sequence[PendingBatchJob] = (),
    ) -> PilotChoice:
        choice = PilotChoice(tuple(self.wanted), tuple(self.unwanted), ("enough of them",))
        self.wanted, self.unwanted = [], []
        return choice

    def decided(self) -> World:
        """The world once the controller has decided."""
        self.loop.send(cmd.Tick()).result(60)
        self.loop.call(lambda controller: controller.decide(self.loop.now())).result(60)
        return self.loop.world

    def want(self, *specs: PilotSpec) -> None:
        self.wanted = list(specs)
        self.decided()

    def turn(self, after_s: float = 0.0) -> float:
        self.seconds += after_s
        return self.batching.turn()

    def pilot(self, number: int = 1) -> Pilot:
        return self.loop.world.pilots[number]

    def troubles(self) -> list[str]:
        self.loop.call(lambda controller: None).result(60)  # what was sent before is recorded
        return [r.event.detail for r in self.journal.records if r.event.kind == "TroubleSeen"]  # type: ignore[attr-defined]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    scene = Scene(home)
    yield scene
    scene.loop.stop()


ONE = PilotSpec(1, 600.0, "gpu", why="1 idle node")


def test_it_is_asked_at_most_once_an_interval_whatever_happens(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    for _ in range(120):  # a commit each half second, somebody who asks for holes as often, two minutes long
        scene.batching.ask_holes()
        scene.batching.changed(scene.loop.world)
        pause = scene.turn(0.5)
        assert pause <= 30.0
    intervals = 60.0 / 30.0 + 1
    for what in ("poll", "holes", "submit", "marked"):
        assert 1 <= scene.system.times(what) <= intervals, (what, scene.system.asked)
    assert scene.system.times("cancel") == 0


def test_without_pilots_and_allocations_it_is_not_asked_at_all(scene: Scene) -> None:
    scene.daemon(pilots=False)
    for _ in range(10):
        scene.turn(31.0)
    assert scene.system.asked == []
    scene.batching.ask_holes()
    scene.turn(1.0)
    assert [what for what, _ in scene.system.asked] == ["holes"]
    for _ in range(10):
        scene.turn(31.0)
    assert scene.system.times("holes") <= 5, "nobody has asked for a while"


def test_one_poll_has_the_pilots_and_the_allocations_of_nodes(scene: Scene) -> None:
    scene.want(ONE, ONE)
    scene.turn()
    inventory = cmd.Inventory("n9", (GpuInfo(0, "u"),), 8, 1000, 1, "boot", "log", True, allocation="77")
    scene.loop.send(inventory).result(60)
    scene.system.jobs["77"] = BatchJob("77", BatchState.RUNNING, nodes=("n9",))
    scene.turn(31.0)
    assert [ids for what, ids in scene.system.asked if what == "poll"][-1] == ("100", "101", "77")
    scene.loop.send(cmd.AgentGone("n9", "the connection ended")).result(60)
    scene.system.jobs["77"] = BatchJob("77", BatchState.ENDED, reason="TIMEOUT")
    scene.turn(31.0)
    assert scene.loop.world.nodes["n9"].lost


def test_a_pilot_is_submitted_with_its_mark_and_what_the_site_wants(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    assert scene.pilot().batch_id == "100"
    (script,) = scene.system.scripts
    assert script.mark == pilot_mark("d-1", 1)
    assert script.argv == (sys.executable, "-P", "-m", "hpcdl", "--home", str(scene.home), "pilot")
    assert script.options == ("--account=x",)
    assert Path(script.output).parent.stat().st_mode & 0o777 == 0o700


def test_many_pilots_are_submitted_a_few_in_each_interval(scene: Scene) -> None:
    scene.want(*[ONE] * (SUBMITS + 5))
    scene.turn()
    assert scene.system.times("submit") == SUBMITS
    scene.turn(31.0)
    assert scene.system.times("submit") == SUBMITS + 5
    assert all(pilot.batch_id for pilot in scene.loop.world.pilots.values())


def test_a_submission_whose_answer_was_lost_is_found_not_repeated(scene: Scene) -> None:
    scene.system.lost_answers = 1
    scene.want(ONE)
    scene.turn()
    assert scene.pilot().state == "REQUESTED"
    scene.turn(61.0)
    scene.turn(61.0)
    assert scene.pilot().batch_id == "100"
    assert scene.system.times("submit") == 1


def test_who_waits_is_known_since_when(scene: Scene) -> None:
    scene.system.others = (PendingBatchJob("900", 1, ("n1",), "normal"),)
    scene.turn()
    waiting = [scene.loop.call(lambda controller: controller.waiting).result(60)]
    assert waiting[0][0].since > 0.0
    scene.turn(31.0)
    scene.system.others = (*scene.system.others, PendingBatchJob("901", 1, ("n1",), "normal"))
    scene.turn(31.0)
    waiting.append(scene.loop.call(lambda controller: controller.waiting).result(60))
    assert waiting[1][0] == waiting[0][0]
    scene.system.others = ()
    scene.turn(31.0)
    assert scene.loop.call(lambda controller: controller.waiting).result(60) == ()


def test_a_restart_finds_its_pilot_before_it_submits_another(scene: Scene) -> None:
    scene.want(ONE)
    mark = pilot_mark("d-1", 1)
    scene.system.jobs["55"] = BatchJob("55", BatchState.RUNNING, mark, nodes=("n1",))  # then the daemon was killed
    scene.system.jobs["56"] = BatchJob("56", BatchState.RUNNING, pilot_mark("d-1", 10), nodes=("n2",))
    scene.system.jobs["57"] = BatchJob("57", BatchState.RUNNING, pilot_mark("d-2", 1), nodes=("n3",))
    scene.daemon()
    scene.turn()
    assert scene.pilot().batch_id == "55"
    assert scene.system.times("submit") == 0
    assert ("cancel", ("56",)) in scene.system.asked, "ours, and nobody knows of it any more"
    assert not any("57" in ids for what, ids in scene.system.asked if what == "cancel"), "another daemon's"


def test_a_limit_is_tried_again_with_growing_pauses_and_then_given_up(scene: Scene) -> None:
    scene.system.errors["submit"] = FULL
    scene.want(ONE, ONE)
    at: list[float] = []
    while scene.pilot().state == "REQUESTED":
        before = scene.system.times("submit")
        scene.turn(5.0)
        tried = scene.system.times("submit") - before
        assert tried <= 1, "a batch system that refuses one is not asked for the next at once"
        at += [scene.seconds] * tried
        assert scene.seconds < 20_000
    mine = [mark for what, mark in scene.system.asked if what == "submit"]
    assert mine.count(pilot_mark("d-1", 1)) == TRIES
    assert at == sorted(at)
    assert scene.pilot().how == f"tried {TRIES} times: {FULL}"
    assert scene.pilot().state == "REFUSED"
    assert scene.troubles().count(str(FULL)) == 1


def test_what_is_refused_for_good_is_not_tried_again(scene: Scene) -> None:
    scene.system.errors["submit"] = NEVER
    scene.want(ONE)
    scene.turn()
    scene.turn(31.0)
    assert (scene.pilot().state, scene.pilot().how) == ("REFUSED", str(NEVER))
    assert scene.system.times("submit") == 1


def test_a_failed_poll_changes_nothing_and_is_told_once_and_so_is_its_end(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.system.idle = (Hole("gpu", 1, ("n1",)),)
    scene.turn(31.0)
    before = scene.pilot()
    scene.system.errors = {"poll": AWAY, "holes": AWAY}
    asked = len(scene.system.asked)
    for _ in range(5):
        scene.turn(31.0)
        assert scene.pilot() == before
        assert scene.loop.holes == scene.system.idle
    assert [what for what, _ in scene.system.asked[asked:]] == ["poll"] * 5, "one command an interval while it is away"
    assert scene.troubles() == [str(AWAY)]
    assert scene.batching.troubles == {"poll": str(AWAY)}
    scene.system.errors = {}
    scene.turn(31.0)
    assert scene.batching.troubles == {}
    assert len(scene.troubles()) == 2
    assert scene.troubles()[1].startswith("works again, after ")


def test_an_unwanted_pilot_is_cancelled_until_it_is_gone(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.loop.send(cmd.CancelPilot(1)).result(60)
    assert not scene.batching.settled(scene.loop.world)
    scene.turn(1.0)
    assert scene.system.asked[-1] == ("cancel", ("100",))
    assert scene.batching.settled(scene.loop.world)
    asked = scene.system.times("cancel")
    scene.turn(1.0)
    assert scene.system.times("cancel") == asked, "not before the next interval"
    scene.turn(31.0)
    assert scene.system.times("cancel") == asked + 1
    scene.system.jobs["100"] = replace(scene.system.jobs["100"], state=BatchState.ENDED, reason="CANCELLED")
    scene.turn(31.0)
    assert scene.pilot().state == "ENDED"
    asked = scene.system.times("cancel")
    scene.turn(31.0)
    assert scene.system.times("cancel") == asked


def test_what_trains_on_a_cancelled_pilots_node_leaves_it_first(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.system.jobs["100"] = replace(scene.system.jobs["100"], state=BatchState.RUNNING, nodes=("n1",))
    inventory = cmd.Inventory("n1", (GpuInfo(0, "u"),), 8, 1000, 1, "boot", "log", True, allocation="100")
    scene.loop.send(inventory).result(60)
    scene.loop.send(cmd.Submit((JobSpec(("true",), "job", grace_s=40.0),), "r")).result(60)
    scene.decided()
    assert scene.loop.world.jobs[1].live
    scene.loop.send(cmd.CancelPilot(1)).result(60)
    scene.turn(31.0)
    node = scene.loop.world.nodes["n1"]
    assert node.leaving
    assert node.reason == "pilot p1 is given back: cancelled by its user"
    assert scene.system.times("cancel") == 0
    assert not scene.batching.settled(scene.loop.world)
    scene.turn(31.0)
    assert scene.system.times("cancel") == 0, "it has its grace"
    scene.turn(31.0)
    assert scene.system.asked[-1] == ("cancel", ("100",))


def test_a_pilot_that_is_unwanted_before_it_is_submitted_never_is(scene: Scene) -> None:
    scene.want(ONE)
    scene.loop.send(cmd.CancelPilot(1)).result(60)
    scene.turn()
    assert scene.system.times("submit") == 0
    assert scene.pilot().how == "not submitted: cancelled by its user"


def test_a_pilot_that_is_not_listed_is_over_after_three_polls(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.system.jobs.clear()
    for _ in range(2):
        scene.turn(31.0)
        assert not scene.pilot().over
    scene.turn(31.0)
    assert scene.pilot().over


def test_what_the_list_lacks_is_asked_for_alone(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.system.truth = dict(scene.system.jobs)
    scene.system.jobs.clear()
    for _ in range(8):
        scene.turn(31.0)
        assert not scene.pilot().over
    assert scene.system.asked.count(("confirm", ("100",))) == 8
    assert "is not listed, asked for alone pending" in scene.batching.troubles["listing"]
    scene.system.jobs = dict(scene.system.truth)
    scene.turn(31.0)
    assert scene.batching.troubles == {}
    scene.system.errors["confirm"] = AWAY
    scene.system.jobs.clear()
    for _ in range(8):
        scene.turn(31.0)
    assert not scene.pilot().over


def test_another_end_of_a_walltime_counts_once_two_polls_have_told_it(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    waits = scene.system.jobs["100"]
    runs = replace(waits, state=BatchState.RUNNING, nodes=("n1",), started_at=5.0, until=3600.0)

    def ends_at(said: float) -> float | None:
        scene.system.jobs["100"] = replace(runs, until=said)
        scene.turn(31.0)
        job = scene.pilot().job
        return None if job is None else job.until

    assert [ends_at(said) for said in (3600.0, 99_999.0, 3600.0, 7200.0, 7200.0)] == [3600.0] * 4 + [7200.0]
    scene.system.truth = {"100": runs}  # the second command contradicts
    assert [ends_at(303_600.0) for _ in range(3)] == [7200.0] * 3


def test_a_pilot_that_waits_is_over_after_two_polls(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    waits = scene.system.jobs["100"]
    scene.turn(31.0)
    for state in (BatchState.ENDED, BatchState.PENDING, BatchState.ENDED):
        scene.system.jobs["100"] = replace(waits, state=state)
        scene.turn(31.0)
        assert not scene.pilot().over
    scene.turn(31.0)
    assert scene.pilot().over


def test_no_pilot_is_submitted_while_one_that_was_requeued_lives(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    runs = replace(scene.system.jobs["100"], state=BatchState.RUNNING, nodes=("n1",), started_at=5.0)
    for job in (runs, replace(runs, state=BatchState.ENDED)):
        scene.system.jobs["100"] = job
        scene.turn(31.0)
    assert scene.pilot().over
    scene.want(ONE)
    scene.system.jobs["100"] = replace(runs, state=BatchState.PENDING, nodes=(), started_at=None)
    before = scene.system.times("submit")
    scene.turn(1.0)
    assert scene.system.times("submit") == before


def test_a_pilot_that_only_the_second_command_lists_is_seen(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    runs = replace(scene.system.jobs["100"], state=BatchState.RUNNING, nodes=("n1",), started_at=5.0)
    scene.system.truth = {"100": runs}
    scene.system.jobs = {}  # a list of yesterday
    scene.turn(31.0)
    assert (scene.pilot().state, scene.pilot().nodes) == ("RUNNING", ("n1",))
    scene.system.truth = {"100": replace(runs, state=BatchState.PENDING, nodes=())}
    scene.turn(31.0)
    assert scene.pilot().state == "RUNNING", "that would be a conclusion"


def test_a_pilot_that_was_taken_to_be_over_goes_on_when_it_is_listed(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    runs = replace(scene.system.jobs.pop("100"), state=BatchState.RUNNING, nodes=("n1",))
    for _ in range(3):
        scene.turn(31.0)
    assert scene.pilot().over
    scene.system.jobs = {"100": runs}
    scene.system.truth = {}
    scene.turn(31.0)
    assert scene.pilot().over, "one command alone does not bring it back either"
    scene.system.truth = None
    scene.turn(31.0)
    assert (scene.pilot().state, scene.pilot().batch_id) == ("RUNNING", "100")
    twin = replace(runs, id="101")
    scene.system.jobs["101"] = twin
    scene.turn(31.0)
    assert scene.system.asked[-1] != ("cancel", ("100",))
    assert ("cancel", ("101",)) in scene.system.asked, "of two with one mark that which nobody knows"


def test_orphans_are_ended_where_no_pilot_may_be_any_more(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.loop.send(cmd.CancelPilot(1)).result(60)
    runs = replace(scene.system.jobs.pop("100"), state=BatchState.RUNNING, nodes=("n1",))
    scene.daemon(pilots=False)
    for _ in range(3):
        scene.turn(31.0)
    assert scene.pilot().over
    scene.system.jobs = {"100": runs}
    before = scene.system.times("cancel")
    scene.turn(31.0)
    assert scene.system.times("cancel") == before + 1


def test_a_daemon_that_stops_submits_none_and_cancels_what_there_is(scene: Scene) -> None:
    scene.want(ONE)
    scene.turn()
    scene.want(ONE)
    scene.loop.send(cmd.Stop(False)).result(60)
    scene.decided()
    assert [pilot.cancelled for pilot in scene.loop.world.pilots.values()] == ["the daemon stops"] * 2
    scene.turn(1.0)
    assert scene.system.times("submit") == 1
    assert scene.system.asked[-1] == ("cancel", ("100",))
    assert scene.batching.settled(scene.loop.world)
    assert scene.pilot(2).how == "not submitted: the daemon stops"


def test_a_fault_of_ours_neither_ends_the_thread_nor_is_tried_without_a_pause(scene: Scene) -> None:
    def broken(now: float, own: Collection[str]) -> tuple[Hole, ...]:
        raise KeyError("a field that a new version renamed")

    scene.system.holes = broken  # type: ignore[method-assign]
    scene.batching.start()
    until(lambda: scene.batching.troubles, "a trouble")
    assert "KeyError" in scene.batching.troubles["thread"]
    del scene.system.holes
    scene.seconds += 31.0
    scene.batching.ask_holes()
    until(lambda: not scene.batching.troubles, "the end of the trouble")
    assert scene.system.times("holes") == 1
    scene.batching.stop()


def test_a_command_that_hangs_holds_up_neither_the_controller_nor_the_end(scene: Scene) -> None:
    commands = Commands()
    asking = threading.Event()

    def hang(now: float, own: Collection[str]) -> tuple[Hole, ...]:
        asking.set()
        commands(["sleep", "60"])
        raise AssertionError("it was not killed")

    scene.system.holes = hang  # type: ignore[method-assign]
    settings = BatchSettings(scene.home, "d-1", 30.0, True)
    batching = BatchThread(scene.system, scene.loop, settings, commands=commands)
    batching.start()
    assert asking.wait(60)
    assert scene.loop.send(cmd.Tick()).result(60) is None
    until(lambda: commands.count == 1, "the command")
    batching.stop()
    until(lambda: not batching.alive(), "the end of the thread")


def test_where_no_pilot_may_be_and_none_is_nothing_is_looked_at() -> None:
    choose = pilot_policy(PilotLimits(pilots_max=0))
    over = Pilot(1, ONE, 0.0, 0.0, how="ended")
    assert choose(None, None, (over,), (), set()) == PilotChoice()  # type: ignore[arg-type]
