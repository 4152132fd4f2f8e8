"""Pilots and polls of the batch system: what is recorded, what is concluded, and what never is."""

from collections.abc import Sequence, Set
from dataclasses import replace

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import MemoryJournal
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import CommandRefused
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
    pilot_of,
)
from hpcdl.core.model.plan import Plan, Profiles, View
from hpcdl.core.model.world import GpuInfo
from hpcdl.core.rules.batch_poll import MISSES, agreed, doubted, strays
from hpcdl.core.rules.departures import leave_s
from hpcdl.core.rules.intake import Settings
from hpcdl.policies import all_policies

SPEC = PilotSpec(2, 600.0, "killable", 4, ("n1", "n2"), "2 idle nodes")
HOLE = Hole("killable", 2, ("n1", "n2"), 4, until=1000.0)


class Chooser:
    """A pilot policy that asks for what it is told to, and remembers what it was shown."""

    def __init__(self) -> None:
        self.next = PilotChoice()
        self.seen: list[tuple[tuple[Pilot, ...], tuple[Hole, ...]]] = []

    def __call__(
        self,
        view: View,
        plan: Plan,
        pilots: Sequence[Pilot],
        holes: Sequence[Hole],
        known: Set[str],
        waiting: Sequence[PendingBatchJob] = (),
    ) -> PilotChoice:
        self.seen.append((tuple(pilots), tuple(holes)))
        choice, self.next = self.next, PilotChoice()
        return choice


class Daemon:
    """A Controller with a clock that is moved by hand."""

    def __init__(self, journal: MemoryJournal | None = None, margin_s: float = 30.0) -> None:
        self.chooser = Chooser()
        self.journal = journal or MemoryJournal()
        settings = Settings(leave_margin_s=margin_s)
        self.controller = Controller(self.journal, all_policies(), Profiles(), settings, self.chooser)
        self.now = self.controller.world.at or 100.0
        self.controller.begin(ev.DaemonStarted(self.controller.world.fence + 1, "1", 1, "h"), self.now)

    def send(self, *commands: cmd.Command) -> list[object]:
        self.now += 1.0
        return self.controller.step(commands, self.now)

    def decide(self, *commands: cmd.Command) -> None:
        answers = self.send(*commands)
        assert not [answer for answer in answers if isinstance(answer, CommandRefused)]
        self.controller.decide(self.now)

    def pilot(self, number: int = 1) -> Pilot:
        return self.controller.world.pilots[number]

    def submitted(self) -> None:
        """Pilot 1, taken as batch job 77."""
        self.chooser.next = PilotChoice(ask=(SPEC,))
        self.decide(cmd.Tick())
        self.decide(cmd.PilotTaken(1, "77"))

    def join(self, node: str, allocation: str = "77", until: float | None = None, pid: int = 1) -> None:
        gpus = tuple(GpuInfo(index, f"GPU-{node}-{index}") for index in range(4))
        self.decide(cmd.Inventory(node, gpus, 8, 1 << 14, pid, "boot", f"log-{node}", True, until, (), allocation))

    def kinds(self) -> list[str]:
        return [record.event.kind for record in self.journal.records]


def seen(state: BatchState, **more: object) -> BatchJob:
    known: dict[str, object] = {"nodes": ("n1", "n2"), "started_at": 90.0} if state is BatchState.RUNNING else {}
    return BatchJob("77", state, **(known | more))  # type: ignore[arg-type]


def test_a_pilot_from_the_decision_to_its_end() -> None:
    daemon = Daemon()
    daemon.decide(cmd.BatchSeen(holes=(HOLE,)))
    assert daemon.chooser.seen[-1] == ((), (HOLE,))
    daemon.submitted()
    assert (daemon.pilot().state, daemon.pilot().batch_id) == ("PENDING", "77")
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING),)))
    assert (daemon.pilot().state, daemon.pilot().nodes) == ("RUNNING", ("n1", "n2"))
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING),)))
    assert daemon.kinds().count("PilotSeen") == 1, "what is no news is not recorded"
    daemon.decide(cmd.BatchSeen((seen(BatchState.ENDED, preempted=True),)))
    assert (daemon.pilot().over, daemon.pilot().how, daemon.pilot().nodes) == (True, "preempted", ())


def test_that_it_ran_is_known_after_an_end_of_which_little_is_told() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING),)))
    daemon.decide(cmd.BatchSeen((seen(BatchState.ENDED, code=0),)))
    job = daemon.pilot().job
    assert job is not None
    assert (job.state, job.started_at, job.nodes) == (BatchState.ENDED, 90.0, ("n1", "n2"))


def test_it_waits_for_as_long_as_its_state_stays_whatever_the_reason() -> None:
    daemon = Daemon()
    daemon.submitted()
    taken_at = daemon.now
    for hosts in (12, 11, 12):
        daemon.decide(cmd.BatchSeen((seen(BatchState.PENDING, reason=f"Job slot limit reached: {hosts} hosts"),)))
    assert daemon.pilot().since == taken_at
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING),)))
    runs_at = daemon.now
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING, reason="another"),)))
    assert daemon.pilot().since == runs_at
    daemon.decide(cmd.BatchSeen((seen(BatchState.PENDING, reason="requeued"),)))
    assert daemon.pilot().since == daemon.now


def test_what_is_recorded_is_there_after_a_restart() -> None:
    daemon = Daemon()
    daemon.chooser.next = PilotChoice(ask=(SPEC, SPEC))
    daemon.decide(cmd.Tick())
    daemon.send(cmd.PilotTaken(1, "77"))
    again = Daemon(daemon.journal)
    assert [pilot.state for pilot in again.controller.world.pilots.values()] == ["PENDING", "REQUESTED"]
    again.send(cmd.PilotTaken(2, "78"), cmd.PilotTaken(2, "78"))
    assert again.kinds().count("PilotSubmitted") == 2, "to be told twice is harmless"


def test_a_refusal_is_its_end_and_is_said() -> None:
    daemon = Daemon()
    daemon.chooser.next = PilotChoice(ask=(SPEC,))
    daemon.decide(cmd.Tick())
    daemon.decide(cmd.PilotNotTaken(1, "invalid partition specified: killable"))
    assert (daemon.pilot().state, daemon.pilot().how) == ("REFUSED", "invalid partition specified: killable")
    (answer,) = daemon.send(cmd.CancelPilot(1))
    assert isinstance(answer, CommandRefused)
    assert "over already" in str(answer)
    (answer,) = daemon.send(cmd.CancelPilot(5))
    assert isinstance(answer, CommandRefused)
    assert "no pilot p5: hpcdl pilots" in str(answer)


def test_not_listed_is_not_over() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1")
    daemon.send(cmd.AgentGone("n1", "connection closed"))
    gone = cmd.BatchSeen((seen(BatchState.GONE),))
    for _ in range(5):
        daemon.decide(cmd.BatchSeen((seen(BatchState.MISSING),)))
    for other in (BatchState.UNKNOWN, BatchState.MISSING):  # nothing is known: the count starts again
        for _ in range(2):
            daemon.decide(gone)
        daemon.decide(cmd.BatchSeen((seen(other),)))
    for _ in range(2):
        daemon.decide(gone)
        assert not daemon.pilot().over
        assert not daemon.controller.world.nodes["n1"].lost
    daemon.decide(gone)
    assert daemon.pilot().over
    assert daemon.controller.world.nodes["n1"].lost


@pytest.mark.parametrize("state", [BatchState.UNKNOWN, BatchState.SUSPENDED, BatchState.RUNNING])
def test_a_silent_node_of_a_living_batch_job_is_not_lost(state: BatchState) -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1")
    daemon.send(cmd.AgentGone("n1", "connection closed"))
    for _ in range(5):
        daemon.decide(cmd.BatchSeen((seen(state),)))
    assert not daemon.controller.world.nodes["n1"].lost


def test_an_allocation_that_is_no_pilot_loses_its_nodes_too() -> None:
    daemon = Daemon()
    daemon.join("n1", "55")
    daemon.join("n2", "56")
    daemon.send(cmd.AgentGone("n1", "gone"), cmd.AgentGone("n2", "gone"))
    daemon.decide(cmd.BatchSeen((BatchJob("55", BatchState.ENDED, reason="TIMEOUT"),)))
    nodes = daemon.controller.world.nodes
    assert (nodes["n1"].lost, nodes["n2"].lost) == (True, False)
    assert "batch job 55 is over: TIMEOUT" in nodes["n1"].reason


@pytest.mark.parametrize("state", [BatchState.ENDED, BatchState.GONE, BatchState.PENDING])
def test_while_an_agent_of_it_is_connected_a_batch_job_is_not_over(state: BatchState) -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING),)))
    daemon.join("n1")
    before = daemon.controller.world.nodes["n1"]
    for _ in range(MISSES + 2):
        daemon.decide(cmd.BatchSeen((seen(state),)))
    assert (daemon.pilot().state, daemon.controller.world.nodes["n1"]) == ("RUNNING", before)
    assert doubted(daemon.controller.world, (seen(state),)) == (), "so nobody needs to be asked"
    daemon.send(cmd.AgentGone("n1", "gone"))
    assert doubted(daemon.controller.world, (seen(state),)) == ("77",)


def test_the_daemons_own_batch_job_is_not_over() -> None:
    daemon = Daemon()
    daemon.join("n1", "55")
    daemon.send(cmd.AgentGone("n1", "gone"))
    for state in (BatchState.ENDED, *[BatchState.GONE] * MISSES):
        daemon.decide(cmd.BatchSeen((BatchJob("55", state),), own="55"))
    assert not daemon.controller.world.nodes["n1"].lost


def test_what_was_concluded_is_undone_when_the_batch_job_is_listed_again() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1")
    daemon.join("n2")
    for node, reason in (("n1", "batch job 77 is over: not listed"), ("n2", "by its user")):  # as 0fb7880 recorded it
        daemon.decide(cmd.Drain(node, None, True, reason))
    again = (seen(BatchState.RUNNING, until=900.0),)
    assert doubted(daemon.controller.world, again) == ("77",)
    daemon.decide(cmd.BatchSeen(again))
    nodes = daemon.controller.world.nodes
    assert (nodes["n1"].leaving, nodes["n1"].until, nodes["n2"].leaving) == (False, 900.0, True)
    daemon.decide(cmd.BatchSeen((seen(BatchState.ENDING),)))
    daemon.decide(cmd.BatchSeen((seen(BatchState.SUSPENDED),)))
    assert nodes is not daemon.controller.world.nodes
    assert daemon.controller.world.nodes["n1"].leaving


def marked(number: int, batch_id: str, state: BatchState = BatchState.RUNNING) -> BatchJob:
    return BatchJob(batch_id, state, pilot_mark("x", number), nodes=("n1",))


def test_a_batch_job_with_our_mark_is_never_left() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.chooser.next = PilotChoice(ask=(SPEC, SPEC))
    daemon.decide(cmd.Tick())
    daemon.decide(cmd.PilotTaken(2, "78"), cmd.PilotTaken(3, "79"), cmd.CancelPilot(2))
    listed = (marked(1, "77"), marked(2, "78"), marked(3, "79"), marked(3, "80"), marked(9, "81"))
    world = daemon.controller.world
    assert strays(world, "x", listed) == ((), (marked(3, "80"), marked(9, "81")))
    assert strays(world, "other", listed) == ((), ())
    for number in range(MISSES):
        daemon.decide(cmd.BatchSeen(tuple(BatchJob(each, BatchState.GONE) for each in ("77", "78"))))
        assert daemon.pilot().over == (number == MISSES - 1)
    again, unwanted = strays(daemon.controller.world, "x", listed)
    assert (again, unwanted) == (((1, marked(1, "77")),), (marked(2, "78"), marked(3, "80"), marked(9, "81")))
    assert strays(daemon.controller.world, "x", (marked(1, "77", BatchState.ENDED),)) == ((), ())
    daemon.decide(
        cmd.PilotBack(1, marked(1, "77")), cmd.PilotBack(2, marked(2, "78")), cmd.PilotBack(9, marked(9, "1"))
    )
    assert (daemon.pilot().state, daemon.pilot().nodes, daemon.pilot(2).over) == ("RUNNING", ("n1",), True)
    assert daemon.kinds().count("PilotFound") == 1
    assert Daemon(daemon.journal).pilot() == daemon.pilot()


def test_a_pilot_whose_agent_has_come_is_not_taken_to_wait_whatever_is_polled() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1")
    daemon.join("n3", "90")
    ((known,), _) = daemon.chooser.seen[-1]
    assert (known.state, known.nodes) == ("RUNNING", ("n1", "n2"))
    assert daemon.pilot().state == "PENDING", "what is recorded is what the batch system says"


RUNS = BatchJob("7", BatchState.RUNNING, nodes=("n1",), started_at=100.0, until=700.0)
WELL = BatchJob("7", BatchState.ENDED, code=0)


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        (RUNS, RUNS, BatchState.RUNNING),
        (RUNS, replace(RUNS, started_at=120.0, until=None, nodes=()), BatchState.RUNNING),
        (RUNS, replace(RUNS, nodes=("n2",)), BatchState.UNKNOWN),
        (RUNS, replace(RUNS, started_at=-86000.0), BatchState.UNKNOWN),
        (RUNS, replace(RUNS, until=5000.0), BatchState.UNKNOWN),
        (RUNS, BatchJob("7", BatchState.GONE), BatchState.UNKNOWN),
        (replace(RUNS, preempted=True), RUNS, BatchState.UNKNOWN),
        (RUNS, replace(RUNS, preempted=True), BatchState.UNKNOWN),
        (replace(RUNS, preempted=True), replace(RUNS, preempted=True), BatchState.RUNNING),
        (BatchJob("7", BatchState.MISSING), RUNS, BatchState.UNKNOWN),
        (BatchJob("7", BatchState.MISSING), BatchJob("7", BatchState.UNKNOWN), BatchState.UNKNOWN),
        (BatchJob("7", BatchState.MISSING), BatchJob("7", BatchState.GONE), BatchState.GONE),
        (BatchJob("7", BatchState.MISSING), BatchJob("7", BatchState.ENDED), BatchState.ENDED),
        (BatchJob("7", BatchState.ENDED), BatchJob("7", BatchState.GONE), BatchState.ENDED),
        (BatchJob("7", BatchState.ENDED), RUNS, BatchState.UNKNOWN),
        (WELL, WELL, BatchState.ENDED),
        (WELL, BatchJob("7", BatchState.ENDED), BatchState.ENDED),
        (BatchJob("7", BatchState.ENDED, failed=True), WELL, BatchState.ENDED),
        (replace(WELL, code=1), replace(WELL, code=2), BatchState.ENDED),
        (WELL, replace(WELL, code=1), BatchState.UNKNOWN),
        (replace(WELL, code=1), WELL, BatchState.UNKNOWN),
        (replace(WELL, preempted=True), WELL, BatchState.UNKNOWN),
        (BatchJob("7", BatchState.PENDING), RUNS, BatchState.UNKNOWN),
    ],
)
def test_two_commands_that_differ_say_nothing(first: BatchJob, second: BatchJob, state: BatchState) -> None:
    assert agreed(first, second).state is state


def test_what_is_taken_from_one_command_is_only_that_a_pilot_goes_on() -> None:
    daemon = Daemon()
    daemon.submitted()
    world = daemon.controller.world
    runs = seen(BatchState.RUNNING)
    for job in (seen(BatchState.PENDING), runs, seen(BatchState.UNKNOWN)):
        assert doubted(world, (job,)) == ()
    daemon.decide(cmd.BatchSeen((runs,)))
    world = daemon.controller.world
    for job in (seen(BatchState.PENDING), replace(runs, nodes=("n8",)), replace(runs, started_at=9.0)):
        assert doubted(world, (job,)) == ("77",), job


def test_a_requeued_allocation_has_lost_its_silent_nodes() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1")
    daemon.join("n2")
    daemon.send(cmd.AgentGone("n1", "gone"))
    daemon.decide(cmd.BatchSeen((seen(BatchState.PENDING, reason="BeginTime"),)))
    nodes = daemon.controller.world.nodes
    assert (nodes["n1"].lost, nodes["n2"].lost) == (True, False)
    assert not daemon.pilot().over
    daemon.send(cmd.AgentGone("n2", "gone"))
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING, nodes=("n3", "n4"), started_at=200.0),)))
    assert daemon.controller.world.nodes["n2"].lost


def test_a_node_that_comes_back_under_another_allocation_is_not_hurt() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1")
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING, preempted=True),)))
    assert daemon.controller.world.nodes["n1"].leaving
    daemon.join("n1", "90")
    node = daemon.controller.world.nodes["n1"]
    assert (node.leaving, node.until) == (False, None)
    daemon.decide(cmd.BatchSeen((seen(BatchState.ENDED),)))
    assert not daemon.controller.world.nodes["n1"].leaving


def test_a_batch_job_that_runs_anew_under_its_id_has_its_nodes_whole() -> None:
    daemon = Daemon()
    daemon.join("n1", until=1000.0)
    daemon.decide(cmd.Drain("n1", daemon.now + 25.0, True, "SIGTERM in batch job 77"))
    daemon.decide(cmd.AgentGone("n1", "gone"))
    daemon.join("n1", until=1000.0)
    assert daemon.controller.world.nodes["n1"].leaving, "the same agent has only called again"
    daemon.decide(cmd.AgentGone("n1", "gone"))
    daemon.now = 700.0
    daemon.join("n1", until=4000.0, pid=2)
    node = daemon.controller.world.nodes["n1"]
    assert (node.leaving, node.until) == (False, 4000.0)


def test_a_poll_that_began_before_a_node_came_says_nothing_of_it() -> None:
    daemon = Daemon()
    daemon.submitted()
    asked_at = daemon.now
    daemon.join("n1", until=5000.0)
    for stale in (seen(BatchState.ENDING), seen(BatchState.RUNNING, preempted=True)):
        daemon.controller.step([cmd.BatchSeen((stale,), None, asked_at)], daemon.now)
        assert not daemon.controller.world.nodes["n1"].leaving
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING, preempted=True),), None, daemon.now))
    assert daemon.controller.world.nodes["n1"].leaving


def test_a_walltime_that_changes_is_heeded() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.join("n1", until=5000.0)
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING, until=5010.0),)))
    assert daemon.controller.world.nodes["n1"].until == 5000.0, "rounding is no change"
    daemon.decide(cmd.BatchSeen((seen(BatchState.RUNNING, until=900.0),)))
    node = daemon.controller.world.nodes["n1"]
    assert (node.until, node.leaving) == (900.0, False)


def test_a_node_is_left_in_time_for_the_slowest_save() -> None:
    daemon = Daemon(margin_s=30.0)
    daemon.send(cmd.Submit((JobSpec(("train",), "j", grace_s=200.0),), "r"))
    daemon.join("n1", until=1000.0)
    assert daemon.controller.world.jobs[1].live
    daemon.now = 760.0
    daemon.decide(cmd.Tick())
    assert daemon.controller.wake_at == 1000.0 - 30.0 - 200.0
    assert not daemon.controller.world.nodes["n1"].leaving
    daemon.now = 770.0
    daemon.controller.decide(daemon.now)
    node = daemon.controller.world.nodes["n1"]
    assert (node.leaving, node.until) == (True, 1000.0)
    assert "its allocation ends in" in node.reason


def test_a_job_whose_grace_is_longer_than_its_nodes_stay_trains_in_half_of_it() -> None:
    daemon = Daemon(margin_s=30.0)
    daemon.now = 700.0
    daemon.send(cmd.Submit((JobSpec(("train",), "j", grace_s=400.0),), "r"))
    daemon.join("n1", until=1000.0)
    assert daemon.controller.world.jobs[1].live
    daemon.decide(cmd.Tick())
    assert not daemon.controller.world.nodes["n1"].leaving
    assert daemon.controller.wake_at == 1000.0 - 30.0 - 134.0, "it was asked to start at 702"
    assert leave_s(daemon.controller.world, 30.0) == 30.0 + 134.0
    daemon.now = 836.0
    daemon.controller.decide(daemon.now)
    assert daemon.controller.world.nodes["n1"].leaving


def test_a_daemon_that_stops_cancels_its_pilots() -> None:
    daemon = Daemon()
    daemon.submitted()
    daemon.decide(cmd.Stop(False))
    assert daemon.pilot().cancelled == "the daemon stops"
    assert not daemon.pilot().over


def test_only_the_last_that_ended_are_kept() -> None:
    daemon = Daemon()
    for number in range(1, 81):
        daemon.chooser.next = PilotChoice(ask=(SPEC,))
        daemon.decide(cmd.Tick())
        daemon.send(cmd.PilotNotTaken(number, "no"))
    assert len(daemon.controller.world.pilots) == 65
    assert max(daemon.controller.world.pilots) == 80


def test_marks_are_known_again() -> None:
    assert pilot_of(pilot_mark("abc", 12), "abc") == 12
    for other in ("", "hpcdl:abc:p", "hpcdl:abc:px", "hpcdl:other:p12", "x hpcdl:abc:p12", "hpcdl:abc:p1\u0662"):
        assert pilot_of(other, "abc") is None


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"walltime_s": 0.0}, {"walltime_s": float("inf")}, {"on": ("n1",)}])
def test_pilots_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a pilot"):
        replace(SPEC, **wrong)  # type: ignore[arg-type]
