"""Spans and measures on events whose answer is known."""

from itertools import pairwise

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Role, Share
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.world import JobState
from hpcdl.report import measure, read_history
from hpcdl.report.history import Phase
from tests.report.story import node, placed, rows, set_three, submitted

PROFILES = {
    "resnet-50": Profile("ResNet-50", ((1, 1, 1.0), (1, 3, 2.0))),
    "inception-v3": Profile("inception", ((1, 1, 1.0), (1, 3, 3.0), (1, 4, 3.0))),
    "vgg": Profile("vgg", ((1, 1, 1.0), (1, 2, 1.0)), aliases=("VGG-16",)),
}


def test_spans_of_set_three() -> None:
    history = read_history(rows(set_three()))
    assert (history.begin, history.end) == (1000, 1501)
    assert len(history.gpus) == 6
    assert [job.name for job in history.jobs] == ["ResNet-50", "Inception-v3", "VGG-16"]
    first = [span for span in history.spans if (span.job, span.incarnation) == (2, 1)]
    assert [span.gpu for span in first] == [3, 4, 5]
    span = first[0]
    assert (span.start_at, span.ready_at, span.end_at, span.gpus) == (1000, 1037, 1167, 3)
    assert (span.role, span.cause, span.node) == (Role.SECONDARY, Cause.SUSPENDED, "n1")
    assert [(piece.phase, piece.begin, piece.end) for piece in span.pieces] == [
        (Phase.STARTING, 1000, 1037),
        (Phase.TRAINING, 1037, 1152),
        (Phase.SAVING, 1152, 1166),
        (Phase.ENDING, 1166, 1167),
    ]
    held: dict[int, list[tuple[float, float]]] = {}
    for each in history.spans:
        held.setdefault(each.gpu, []).append((each.start_at, each.end_at))
    for times in held.values():
        times.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(times))


def test_measures_of_set_three() -> None:
    measures = measure(read_history(rows(set_three())), PROFILES)
    resnet, inception, vgg = measures.jobs
    assert measures.makespan_s == 501
    assert (inception.start_s, inception.end_s, inception.wait_s, inception.jct_s) == (0, 501, 0, 501)
    assert inception.gpus == ((0, 3), (167, 4), (501, 0))
    assert (inception.suspends, inception.resumes, inception.lost_s) == (1, 1, 218 - 152)
    assert (resnet.suspends, resnet.gpus, resnet.state) == (0, ((0, 3), (152, 0)), JobState.DONE)
    assert (vgg.start_s, vgg.wait_s, vgg.jct_s) == (167, 167, 321)
    assert (measures.suspends, measures.lost_s) == (1, 66)
    # GPU seconds of work: each incarnation counts rate(n) / rate(1) while it trains.
    work = 2.0 * (152 - 37) + 3.0 * (152 - 37) + 3.0 * (501 - 218) + 1.0 * (321 - 204)
    assert measures.utilisation == pytest.approx(work / (6 * 501))
    assert measures.held == pytest.approx((3 * 152 + 3 * 167 + 4 * 334 + 2 * 154) / (6 * 501))


def test_gpus_of_a_job_without_a_profile_count_in_full_while_it_trains() -> None:
    measures = measure(read_history(rows(set_three())))
    work = 3 * (152 - 37) * 2 + 4 * (501 - 218) + 2 * (321 - 204)
    assert measures.utilisation == pytest.approx(work / (6 * 501))


def test_a_run_that_goes_on() -> None:
    told = [*set_three()[:8], (1090.0, ev.Progressed(1, 1, 1, "n1", step=400))]
    history = read_history(rows(told))
    assert history.end == 1090
    assert {span.end_at for span in history.spans} == {1090}
    assert all(span.cause is None for span in history.spans)
    measures = measure(history)
    assert [job.end_s for job in measures.jobs] == [None, None, None]
    assert measures.jobs[0].gpus == ((0, 3),)
    assert (measures.jobs[2].start_s, measures.jobs[2].gpus) == (None, ())


def test_a_role_that_changes_and_a_node_that_is_lost() -> None:
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 2)),
        (0, node("n2", 2)),
        (1, submitted(1, "a")),
        (2, ev.StartRequested(1, 1, ("n1", "n2"), _both(Role.SECONDARY))),
        (5, ev.TrainerReady(1, 1, 1, "n1")),
        (8, ev.RoleChanged(1, 1, Role.PRIMARY)),
        (10, ev.NodeLost("n2", "gone")),
        (12, ev.Exited(1, 1, 1, "n1", code=1)),
        (13, ev.GpusFreed(1, 1, 1, "n1")),
        (13, ev.IncarnationEnded(1, 1, Cause.NODE_LOST)),
        (20, ev.StartRequested(1, 2, ("n1",), placed([0]))),
        (30, ev.NodeLost("n1", "gone, too")),
    ]
    history = read_history(rows(told))
    ends = {(span.node, span.incarnation): span.end_at for span in history.spans}
    assert ends == {("n1", 1): 13, ("n2", 1): 10, ("n1", 2): 30}
    pieces = next(span.pieces for span in history.spans if span.node == "n1")
    assert [(piece.phase, piece.role, piece.end) for piece in pieces] == [
        (Phase.STARTING, Role.SECONDARY, 5),
        (Phase.TRAINING, Role.SECONDARY, 8),
        (Phase.TRAINING, Role.PRIMARY, 12),
        (Phase.ENDING, Role.PRIMARY, 13),
    ]
    job = measure(history).jobs[0]
    assert job.gpus == ((1, 4), (12, 0), (19, 1))
    assert (job.suspends, job.lost_s) == (0, 0)


def test_warm_starts() -> None:
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 2)),
        (0, submitted(1, "a")),
        (0, submitted(2, "b")),
        (1, ev.StartRequested(1, 1, ("n1",), None)),
        (2, ev.StartRequested(2, 1, ("n1",), None)),
        (5, ev.OpenRequested(1, 1, placed([0, 1]))),
        (9, ev.IncarnationEnded(2, 1, Cause.CANCELLED)),
    ]
    history = read_history(rows(told))
    assert [(w.job, w.start_at, w.end_at, w.opened) for w in history.warm] == [(1, 1, 5, True), (2, 2, 9, False)]
    assert [(span.job, span.gpu, span.start_at) for span in history.spans] == [(1, 0, 5), (1, 1, 5)]


def test_what_is_unknown_or_archived_is_passed_over() -> None:
    told = rows(set_three())
    future = {"seq": 1, "at": 1001.0, "stream": "daemon", "version": 1, "kind": "MoonRose", "body": {"phase": "full"}}
    history = read_history([future, *told[4:]])  # neither nodes nor submits are left
    assert [job.name for job in history.jobs] == ["job 1", "job 2", "job 3"]
    assert len(history.gpus) == 6
    assert measure(history).makespan_s == 501
    empty = measure(read_history([]))
    assert (empty.makespan_s, empty.utilisation, empty.held, empty.jobs) == (0, None, None, ())


def test_a_suspend_that_was_not_resumed_is_not_counted_as_lost() -> None:
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 1)),
        (0, submitted(1, "a")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0]))),
        (3, ev.SuspendRequested(1, 1, Purpose.HOLD, 60.0)),
        (4, ev.GpusFreed(1, 1, 1, "n1")),
        (4, ev.IncarnationEnded(1, 1, Cause.SUSPENDED)),
    ]
    job = measure(read_history(rows(told))).jobs[0]
    assert (job.suspends, job.resumes, job.lost_s) == (1, 0, 0)


def _both(role: Role) -> Placement:
    return Placement((Share("n1", (0, 1)), Share("n2", (0, 1))), role)


def test_a_program_that_tells_nothing_trains_once_it_runs() -> None:
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 2)),
        (0, submitted(1, "quiet")),
        (0, submitted(2, "attached")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0]))),
        (0, ev.StartRequested(2, 1, ("n1",), placed([1]))),
        (2, ev.Started(1, 1, 1, "n1")),
        (2, ev.Started(2, 1, 1, "n1")),
        (3, ev.Attached(2, 1, 1, "n1")),
        (10, ev.NodeSilent("n1")),
    ]
    history = read_history(rows(told))
    phases = {span.job: [(piece.phase, piece.begin, piece.end) for piece in span.pieces] for span in history.spans}
    assert phases == {1: [(Phase.STARTING, 0, 2), (Phase.TRAINING, 2, 10)], 2: [(Phase.STARTING, 0, 10)]}
    measured = measure(history)
    assert measured.utilisation == pytest.approx(0.4)


@pytest.mark.parametrize("purpose, lost", [(Purpose.RESCALE, 50.0), (Purpose.HOLD, 0.0), (Purpose.STOP, 0.0)])
def test_what_users_hold_and_daemons_stop_is_not_lost_by_suspending(purpose: Purpose, lost: float) -> None:
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 1)),
        (0, submitted(1, "a")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0]))),
        (1, ev.TrainerReady(1, 1, 1, "n1")),
        (10, ev.SuspendRequested(1, 1, purpose, 60.0)),
        (11, ev.GpusFreed(1, 1, 1, "n1")),
        (11, ev.IncarnationEnded(1, 1, Cause.SUSPENDED)),
        (50, ev.StartRequested(1, 2, ("n1",), placed([0]))),
        (60, ev.TrainerReady(1, 2, 1, "n1")),
    ]
    measured = measure(read_history(rows(told)))
    assert (measured.lost_s, measured.suspends) == (lost, 1)


def rescaled() -> list[tuple[float, ev.Event]]:
    """n2 joins at 10 and is in at 20; n1 leaves at 40; n2 loses itself at 50; n1 comes back at 60, and is lost."""
    return [
        (0, node("n1", 2)),
        (0, node("n2", 1)),
        (0, submitted(1, "grows")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0, 1]))),
        (2, ev.AtGate(1, 1, 1, "n1", address="n1:1")),
        (2, ev.RescaleRequested(1, 1, 1, ("n1",))),
        (4, ev.Reformed(1, 1, 1, "n1")),
        (10, ev.JoinRequested(1, 1, placed([0], name="n2"))),
        (19, ev.RescaleRequested(1, 1, 2, ("n1", "n2"))),
        (20, ev.Reformed(1, 1, 2, "n1", step=9, seconds=1.0)),
        (40, ev.RescaleRequested(1, 1, 3, ("n2",), ("n1",))),
        (41, ev.Reformed(1, 1, 3, "n2", step=20, seconds=1.0)),
        (42, ev.Exited(1, 1, 2, "n1", code=0, ended_by="leave")),
        (43, ev.GpusFreed(1, 1, 2, "n1")),
        (50, ev.Broken(1, 1, 3, "n2")),
        (55, ev.RescaleRequested(1, 1, 4, ("n2",))),
        (56, ev.Reformed(1, 1, 4, "n2", step=25, seconds=6.0)),
        (60, ev.JoinRequested(1, 1, placed([0, 1]))),
        (70, ev.NodeLost("n1", "gone")),
        (90, ev.Exited(1, 1, 4, "n2", code=0)),
        (90, ev.GpusFreed(1, 1, 4, "n2")),
        (90, ev.IncarnationEnded(1, 1, Cause.DONE, final=JobState.DONE)),
        (90, ev.JobEnded(1, JobState.DONE)),
    ]


def test_nodes_of_a_job_that_is_rescaled_in_place_come_and_go() -> None:
    history = read_history(rows(rescaled()))
    times = [(span.node, span.gpu, span.start_at, span.ready_at, span.end_at, span.gpus) for span in history.spans]
    assert times == [
        ("n1", 0, 0, 4, 43, 1),
        ("n1", 1, 0, 4, 43, 1),
        ("n2", 0, 10, 20, 90, 1),
        ("n1", 0, 60, None, 70, 1),
        ("n1", 1, 60, None, 70, 1),
    ]
    assert [(piece.phase, piece.begin, piece.end, piece.gpus) for piece in history.spans[0].pieces] == [
        (Phase.STARTING, 0, 4, 2),
        (Phase.TRAINING, 4, 19, 2),
        (Phase.RESCALING, 19, 20, 2),
        (Phase.TRAINING, 20, 40, 3),
        (Phase.ENDING, 40, 41, 3),
        (Phase.ENDING, 41, 43, 1),
    ]
    assert [(piece.phase, piece.begin, piece.end, piece.nodes) for piece in history.spans[2].pieces] == [
        (Phase.STARTING, 10, 20, 1),
        (Phase.TRAINING, 20, 40, 2),
        (Phase.RESCALING, 40, 41, 2),
        (Phase.TRAINING, 41, 50, 1),
        (Phase.RESCALING, 50, 56, 1),
        (Phase.TRAINING, 56, 90, 1),
    ]


def test_measures_of_a_job_that_is_rescaled_in_place() -> None:
    measures = measure(read_history(rows(rescaled())))
    (job,) = measures.jobs
    assert job.gpus == ((0, 2), (20, 3), (41, 1), (90, 0))
    assert (job.suspends, job.lost_s) == (0, 0)
    assert measures.utilisation == pytest.approx((2 * 15 + 3 * 20 + 9 + 34) / (3 * 90))
