"""Legal histories: one in which every kind of event comes, built on purpose, and others from a list of numbers.

A new kind of event comes by itself (`PLAIN`), where a `sample` is legal while job 1 trains on n1; else it needs
a line in `candidates` and a place in `EVERY_KIND`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hpcdl.core.controller.journal import Stamped
from hpcdl.core.fold.fold import Draft
from hpcdl.core.model import events as ce
from hpcdl.core.model import events as de
from hpcdl.core.model import events as ev
from hpcdl.core.model import events as pe
from hpcdl.core.model.events import IdsRaised, JobsRetired
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Role, Share
from hpcdl.core.model.job import Drill, JobSpec
from hpcdl.core.model.notice import NoticeKind
from hpcdl.core.model.pilot import BatchJob, BatchState, PilotSpec
from hpcdl.core.model.world import GpuInfo, JobState, Target, World, validate
from tests.support.samples import sample

NOW = 1_700_000_000.0
NODES = ("n1", "n2")
ELASTIC = JobSpec(("python", "train.py"), "elastic", "jo", nodes=1, nodes_max=2, rescale="in-process")
SPEC = JobSpec(("python", "train.py", "caf\u00e9", "\udcff"), "train", "jo", nodes=1, steps=100, env=(("A", "b\n"),))


def candidates(world: World) -> Iterator[ev.Event]:
    """Events that may or may not follow; of every kind there is."""
    yield ev.DaemonStarted(world.fence + 1, "1", 1, "h")
    yield ev.DaemonStopping(now=False)
    yield ev.PolicyChosen("fifo-exclusive")
    yield ev.ObjectiveChosen("jct")
    yield ev.TroubleSeen("policy marble", "failed")
    yield ev.JobSubmitted(world.next_job, SPEC if world.next_job % 2 else ELASTIC, f"r{world.next_job % 4}")
    swept = replace(SPEC, command=("train", "{lr}", "{index}"))
    yield ev.ArraySubmitted(
        world.next_job, swept, f"r{world.next_job % 4}", ((1, 3, 2),), (("lr", ("0.1", "\udcff")),), 2, True
    )
    for job in world.jobs:
        yield ev.JobRetried(job)
    over = tuple(number for number, job in world.jobs.items() if job.finished)
    yield JobsRetired.of(over[:1])
    yield JobsRetired.of(over)
    yield IdsRaised("backup", world.next_job + 3, 2, 5, 4, 1, "a backup was restored")
    one = Placement((Share("n1", (0, 1)),))
    two = Placement((Share("n1", (2,)), Share("n2", (0,))), Role.SECONDARY, "a layout")
    yield ev.PlanAdopted("marble", tuple(Target(job, one, "why") for job in world.active), tuple(world.active)[:1])
    for name in NODES:
        yield ev.NodeJoined(name, tuple(GpuInfo(n, f"GPU-{name}-{n}") for n in range(4)), 8, 1 << 14, log_id="a")
        yield ev.NodeJoined(
            name, (GpuInfo(0, f"GPU-{name}-0"),), log_id="b", until=NOW + 60, place=("s1",), allocation="771"
        )
        yield ev.NodeSilent(name, "connection closed")
        yield ev.NodeLost(name, "its lease ran out")
        yield ev.NodeLeaves(name, NOW + 9, True, "maintenance")
        yield ev.GpuChanged(name, 3, "lost", "fell off the bus")
        yield ev.ReportsSeen(name, 10**20)
        yield ce.GpuFaulted(name, 1, "xid 79", "x")
        yield ce.GpuAvoided(name, 1 if name == "n1" else None, NOW + 60, "Xid 79", 2, True)
        yield ce.AvoidLifted(name, 1, "over")
    to = ("mailto:a@b.c", "https://h/x")
    yield ev.NoticeDue(world.next_notice, NoticeKind.STALL, 1, "j", to, "RUNNING", "stalled", "no step")
    for notice in list(world.notices)[:1]:
        yield ev.NoticesSent(to[0], (notice,))
        yield ev.NoticesFailed(to[1], (notice,), 1, "refused", NOW + 9)
        yield ev.NoticesGivenUp(to[1], (notice,), "refused")
        yield ev.NoticesRetried()
        yield ev.NoticeDropped(notice)
    spec = PilotSpec(2, 600.0, "killable", 4, NODES, "2 idle nodes")
    yield pe.PilotRequested(world.next_pilot, spec)
    for number in world.pilots:
        batch_id = f"77{number}"
        seen = BatchJob(batch_id, BatchState.RUNNING, f"hpcdl:x:p{number}", "killable", NODES, NOW, NOW + 600.0)
        yield pe.PilotSubmitted(number, batch_id)
        yield pe.PilotRefused(number, "invalid partition")
        yield pe.PilotSeen(number, seen)
        yield pe.PilotCancelRequested(number, "nothing is left to train on it")
        yield pe.PilotEnded(number, "preempted", seen)
        yield pe.PilotFound(number, seen)
    yield ev.BatchDependencyEnded("slurm:12", True, "COMPLETED")
    yield ev.BatchDependencyRequeued("slurm:12")
    for job in world.active:
        yield ev.JobHeld(job)
        yield ev.JobReleased(job)
        yield ev.PriorityChanged(job, 7 - world.jobs[job].spec.priority)
        yield ev.TimeLimitReached(job)
        yield ev.JobDrilled(job, Drill(False, 2.5, 0.2, 0.1, 0.05, 1.5, 1.6, 12, 10, "12 steps were lost"))
        yield de.DeadlineForeseen(job, True, 0.97, NOW + 600.0)
        yield de.DeadlineSlipped(job, 0.25, None, True)
        yield ev.CancelRequested(job)
        yield ev.JobEnded(job, JobState.FAILED, "exit code 1")
        last = world.jobs[job].last_incarnation
        for placement in (one, two):
            yield ev.StartRequested(job, last + 1, placement.nodes, placement)
        yield ev.StartRequested(job, last + 1, ("n2",), None)
        for incarnation in world.jobs[job].live:
            number = incarnation.number
            yield ev.OpenRequested(
                job, number, Placement(tuple(Share(node, (3,)) for node in sorted(incarnation.nodes)))
            )
            yield ev.PreemptRequested(job, number)
            yield ev.ResumedBehind(job, number, 3, 9, 1, ("step 9: x; it is kept as /c/damaged-9",))
            yield ce.JobStalled(job, number, NOW, "no step", 7, True)
            yield ce.StallOver(job, number)
            yield ev.SuspendRequested(job, number, Purpose.RESCALE, 5.0)
            yield ev.EndRequested(job, number, Cause.PREEMPTED, 5.0, "for another")
            yield ev.RoleChanged(job, number, Role.SECONDARY)
            yield ev.IncarnationEnded(job, number, Cause.SUSPENDED, 7, 5, 0, "suspended")
            yield ev.IncarnationEnded(job, number, Cause.USER_ERROR, 7, None, 1, final=JobState.FAILED)
            other = next((name for name in NODES if name not in incarnation.nodes), NODES[0])
            yield ev.JoinRequested(job, number, Placement((Share(other, (1,)),)))
            yield ev.LeaveRequested(job, number, tuple(part.node for part in incarnation.joining))
            yield ev.LeftBehind(job, number, tuple(part.node for part in incarnation.parts if part.leaving))
            staying = tuple(part.node for part in incarnation.parts if part.stays)
            for members, leaving in ((staying, ()), (staying[-1:], staying[:-1])):
                yield ev.RescaleRequested(job, number, incarnation.membership + 1, members, leaving)
            for node in incarnation.nodes:
                yield ev.Reformed(job, number, incarnation.membership, node, 0.1, 12, 0.3)
                yield ev.Broken(job, number, incarnation.membership, node, 0.1, 12, "connection closed by peer")
                yield ev.Started(job, number, 1, node, 0.1, 4711)
                yield ev.AtGate(job, number, 1, node, 0.1, 2.5)
                yield ev.Attached(job, number, 1, node, 0.1, 4711)
                yield ev.TrainerReady(job, number, 1, node, 0.1, 3)
                yield ev.ModelReported(job, number, 1, node, 0.1, (("Conv2d", 2), ("Linear", 1)), 1000, 400)
                yield ev.Progressed(job, number, 1, node, 0.1, 10**30, 10**31)
                yield ev.Saved(job, number, 1, node, 0.1, 9, "/c/9", 1.5, True)
                yield ev.CheckpointDamaged(job, number, 1, node, 0.1, 9, "/c/damaged-9", "x", 1)
                yield ev.Noted(job, number, 1, node, 0.1, "continued")
                yield ev.Exited(job, number, 1, node, 0.0, 1, None, hint=Cause.OUT_OF_MEMORY, detail="x")
                yield ev.GpusFreed(job, number, 1, node)
    for kind in PLAIN:
        yield sample(kind, node=NODES[0])


TRAIN: dict[str, Any] = {"job": 1}
GROW: dict[str, Any] = {"job": 2}  # the elastic job
ON_N2 = GROW | {"node": "n2"}
_CHOSEN: tuple[tuple[type[ev.Event], dict[str, Any]], ...] = (
    (ev.DaemonStarted, {}),
    (ev.PolicyChosen, {}),
    (ev.ObjectiveChosen, {}),
    (ev.TroubleSeen, {}),
    (ev.NodeJoined, {"node": "n1"}),
    (ev.NodeJoined, {"node": "n2"}),
    (ev.ReportsSeen, {}),
    (ev.JobSubmitted, {}),
    (ev.JobSubmitted, {}),
    (ev.ArraySubmitted, {}),
    (ev.JobHeld, TRAIN),
    (ev.JobReleased, TRAIN),
    (ev.PlanAdopted, {}),
    # A job starts without GPUs, gets some, trains and is suspended.
    (ev.StartRequested, TRAIN | {"placement": None}),
    (ev.Started, TRAIN),
    (ev.AtGate, TRAIN),
    (ev.OpenRequested, TRAIN),
    (ev.Attached, TRAIN),
    (ev.TrainerReady, TRAIN),
    (ev.ModelReported, TRAIN),
    (ev.ResumedBehind, TRAIN),
    (ev.Progressed, TRAIN),
    (ev.Saved, TRAIN),
    (ev.CheckpointDamaged, TRAIN),
    (ev.Noted, TRAIN),
    (ev.RoleChanged, TRAIN),
    (ce.JobStalled, TRAIN),
    (ce.StallOver, TRAIN),
    (de.DeadlineForeseen, TRAIN),
    (de.DeadlineSlipped, TRAIN),
    # What is `PLAIN` comes here.
    (ev.PreemptRequested, TRAIN),
    (ev.SuspendRequested, TRAIN),
    (ev.JobDrilled, TRAIN),
    (ev.Exited, TRAIN),
    (ev.GpusFreed, TRAIN),
    (ev.IncarnationEnded, TRAIN),
    # An elastic job grows to a second node, leaves the first one and is ended.
    (ev.StartRequested, GROW),
    (ev.Started, GROW),
    (ev.TrainerReady, GROW),
    (ev.RescaleRequested, GROW),
    (ev.Reformed, GROW),
    (ev.JoinRequested, GROW),
    (ev.Started, ON_N2),
    (ev.TrainerReady, ON_N2),
    (ev.RescaleRequested, GROW),
    (ev.Reformed, GROW),
    (ev.Reformed, ON_N2),
    (ev.RescaleRequested, GROW | {"leaving": ("n1",)}),
    (ev.Broken, GROW),
    (ev.LeaveRequested, GROW),
    (ev.LeftBehind, GROW),
    (ev.EndRequested, GROW),
    (ev.CancelRequested, GROW),
    (ev.Exited, GROW),
    (ev.GpusFreed, GROW),
    (ev.IncarnationEnded, GROW),
    (ev.JobEnded, GROW),
    (ev.JobRetried, GROW),
    (ev.JobEnded, TRAIN),
    (JobsRetired, {}),
    # Nodes, notices, pilots.
    (ev.GpuChanged, {}),
    (ce.GpuFaulted, {}),
    (ce.GpuAvoided, {"node": "n1"}),
    (ce.AvoidLifted, {}),
    (ev.NodeSilent, {}),
    (ev.NodeLeaves, {}),
    (ev.NodeLost, {}),
    (ev.NoticeDue, {}),
    (ev.NoticesSent, {}),
    (ev.NoticesFailed, {}),
    (ev.NoticesGivenUp, {}),
    (ev.NoticesRetried, {}),
    (ev.NoticeDropped, {}),
    (pe.PilotRequested, {}),
    (pe.PilotSubmitted, {}),
    (pe.PilotSeen, {}),
    (pe.PilotCancelRequested, {}),
    (pe.PilotEnded, {}),
    (pe.PilotRequested, {}),
    (pe.PilotFound, {}),
    (pe.PilotRequested, {}),
    (pe.PilotRefused, {}),
    (IdsRaised, {}),
    (ev.DaemonStopping, {}),
)
_HERE = _CHOSEN.index((ev.PreemptRequested, TRAIN))
PLAIN = tuple(kind for kind in ev.KINDS.values() if kind not in {chosen for chosen, _ in _CHOSEN})
"""Kinds of which any example will do."""
EVERY_KIND = (*_CHOSEN[:_HERE], *((kind, dict[str, Any]()) for kind in PLAIN), *_CHOSEN[_HERE:])
"""Kinds of events in a legal order, and which of that kind: the first legal candidate with these fields."""


def every_kind() -> list[Stamped]:
    """The history of `EVERY_KIND`."""
    draft = Draft(World())
    for at, (kind, fields) in enumerate(EVERY_KIND):
        of_kind = [event for event in candidates(draft.world) if type(event) is kind]
        fitting = [event for event in of_kind if all(getattr(event, name) == fields[name] for name in fields)]
        chosen = next((event for event in fitting if _legal(draft.world, event)), None)
        assert chosen is not None, f"step {at} of EVERY_KIND: no legal {kind.__name__} {fields} among {of_kind}"
        draft.add(chosen, NOW + at)
    return draft.events


def history(choices: Sequence[int], before: Sequence[Stamped] = ()) -> list[Stamped]:
    """One legal event for each number; they follow those of `before`, which come first."""
    draft = Draft(World())
    for at, event in before:
        draft.add(event, at)
    at = NOW + len(before)
    for choice in choices:
        # Which events are possible is found by trying, on a copy.
        possible = [event for event in candidates(draft.world) if _legal(draft.world, event)]
        at += choice % 7 - 1  # also backwards, as a clock may be stepped
        draft.add(possible[choice % len(possible)], at)
    return draft.events


def _legal(world: World, event: ev.Event) -> bool:
    draft = Draft(world)
    try:
        draft.add(event, NOW)
        validate(draft.world)
    except ValueError:
        return False
    return True


def submissions(count: int, first: int = 1) -> list[Stamped]:
    """Submits of that many jobs."""
    return [(NOW + job, ev.JobSubmitted(job, SPEC, f"r{job}")) for job in range(first, first + count)]
