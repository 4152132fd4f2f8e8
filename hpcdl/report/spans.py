"""From the events of a ledger to what each GPU did when: one span per GPU and incarnation.

Pure. Events that this version does not know are passed over, and so is what concerns jobs or nodes whose beginning was
archived: a drawing of the part that is there is better than none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hpcdl.core import events as ev
from hpcdl.core.codec import CodecError
from hpcdl.core.model import Cause, JobState, Placement, Purpose, Role
from hpcdl.core.units import GpuRef


class Phase(StrEnum):
    """What an incarnation does with its GPUs. ENDING: exited, its GPUs not yet seen free."""

    STARTING = "starting"
    TRAINING = "training"
    SAVING = "saving"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a span in which neither phase nor role changes; times in seconds since the epoch."""

    phase: Phase
    role: Role
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Span:
    """One GPU held by one incarnation, from its grant until it was seen free. `gpus`: how many the incarnation holds.

    `ready_at` is when its training began, None if it never did. `cause` is None while it still runs.
    """

    job: int
    name: str
    incarnation: int
    node: str
    gpu: int
    gpus: int
    start_at: float
    ready_at: float | None
    end_at: float
    pieces: tuple[Piece, ...]
    cause: Cause | None

    @property
    def role(self) -> Role:
        """The role that it ended with."""
        return self.pieces[-1].role


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A wait at the gate, without a GPU. `opened`: it was let through."""

    job: int
    name: str
    incarnation: int
    node: str
    start_at: float
    end_at: float
    opened: bool


@dataclass(frozen=True, slots=True)
class Stay:
    """An incarnation on its GPUs. `asked_at`, `purpose`: its suspend; `exited_at`: its last process was gone; `end_at`:
    its last GPU was seen free. None: has not happened."""

    number: int
    placement: Placement
    start_at: float
    ready_at: float | None = None
    asked_at: float | None = None
    purpose: Purpose | None = None
    exited_at: float | None = None
    end_at: float | None = None
    cause: Cause | None = None
    started_at: float | None = None
    attached: bool = False
    roles: tuple[tuple[float, Role], ...] = ()


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A job and its incarnations that held GPUs, in order. `state` is None while it is not finished."""

    id: int
    name: str
    profile: str | None
    submitted_at: float
    finished_at: float | None
    state: JobState | None
    stays: tuple[Stay, ...]


@dataclass(frozen=True, slots=True)
class History:
    """What happened from `begin`, the first submit, to `end`: the last job's end, or the last event if some go on."""

    begin: float
    end: float
    gpus: tuple[GpuRef, ...]
    jobs: tuple[JobHistory, ...]
    spans: tuple[Span, ...]
    warm: tuple[WarmStart, ...]


@dataclass(slots=True)
class _Growing:
    """The history as far as it was read."""

    jobs: dict[int, JobHistory] = field(default_factory=dict)
    stays: dict[tuple[int, int], Stay] = field(default_factory=dict)
    freed: dict[tuple[int, int, str], float] = field(default_factory=dict)
    gated: dict[tuple[int, int], tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    waits: list[WarmStart] = field(default_factory=list)
    gpus: set[GpuRef] = field(default_factory=set)
    last_at: float = 0.0

    def take(self, event: ev.Event, at: float) -> None:
        self.last_at = max(self.last_at, at)
        match event:
            case ev.JobSubmitted():
                spec = event.spec
                self.jobs[event.job] = JobHistory(event.job, spec.name, spec.profile, at, None, None, ())
            case ev.JobEnded():
                job = self._job(event.job, at)
                self.jobs[event.job] = replace(job, finished_at=at, state=event.state)
            case ev.NodeJoined():
                self.gpus.update(GpuRef(event.node, gpu.index) for gpu in event.gpus)
            case ev.NodeLost():
                for key, stay in self.stays.items():
                    if event.node in stay.placement.nodes and stay.cause is None:
                        self.freed.setdefault((*key, event.node), at)
            case ev.IncarnationEvent():
                self._take_of_incarnation(event, at)
            case _:
                pass

    def _take_of_incarnation(self, event: ev.IncarnationEvent, at: float) -> None:
        key = (event.job, event.incarnation)
        stay = self.stays.get(key)
        match event:
            case ev.StartRequested(placement=None):
                self._job(event.job, at)
                self.gated[key] = (at, event.nodes)
            case ev.StartRequested(placement=Placement() as placement) | ev.OpenRequested(placement=placement):
                self._job(event.job, at)
                self._leave_gate(key, at, opened=True)
                self.gpus.update(placement.gpus)
                self.stays[key] = Stay(event.incarnation, placement, at, roles=((at, placement.role),))
            case ev.IncarnationEnded() if stay is None:
                self._leave_gate(key, at, opened=False)
            case _:
                if stay is not None:
                    self.stays[key] = self._changed(key, stay, event, at)

    def _changed(self, key: tuple[int, int], stay: Stay, event: ev.IncarnationEvent, at: float) -> Stay:
        match event:
            case ev.Started() if stay.started_at is None:
                return replace(stay, started_at=at)
            case ev.Attached():
                return replace(stay, attached=True)
            case ev.TrainerReady() | ev.Progressed() if stay.ready_at is None:
                return replace(stay, ready_at=at)
            case ev.RoleChanged():
                return replace(stay, roles=(*stay.roles, (at, event.role)))
            case ev.SuspendRequested():
                return replace(stay, asked_at=at, purpose=event.purpose)
            case ev.EndRequested() if stay.asked_at is None:
                return replace(stay, asked_at=at)
            case ev.Exited():
                return replace(stay, exited_at=at)
            case ev.GpusFreed():
                self.freed.setdefault((*key, event.node), at)
            case ev.IncarnationEnded():
                return replace(stay, end_at=at, cause=event.cause)
            case _:
                pass
        return stay

    def _job(self, number: int, at: float) -> JobHistory:
        """The job; one whose submit was archived counts from the first that is known of it."""
        return self.jobs.setdefault(number, JobHistory(number, f"job {number}", None, at, None, None, ()))

    def _leave_gate(self, key: tuple[int, int], at: float, opened: bool) -> None:
        since, nodes = self.gated.pop(key, (at, ()))
        name = self._job(key[0], at).name
        self.waits += [WarmStart(key[0], name, key[1], node, since, at, opened) for node in nodes]

    def finish(self) -> History:
        for key in list(self.gated):
            self._leave_gate(key, self.last_at, opened=False)
        grouped: dict[int, list[Stay]] = {}
        for (number, _), stay in sorted(self.stays.items(), key=lambda item: item[0]):
            if stay.ready_at is None and not stay.attached:  # a program that tells nothing: it trains once it runs
                stay = replace(stay, ready_at=stay.started_at)
            grouped.setdefault(number, []).append(stay)
        jobs = tuple(replace(job, stays=tuple(grouped.get(job.id, ()))) for _, job in sorted(self.jobs.items()))
        begin = min((job.submitted_at for job in jobs), default=self.last_at)
        going_on = any(job.finished_at is None for job in jobs)
        ends = [job.finished_at for job in jobs if job.finished_at is not None]
        end = self.last_at if going_on or not ends else max(ends)
        spans = tuple(span for job in jobs for stay in job.stays for span in self._spans(job, stay))
        # A GPU may be seen free just after its job's end is concluded, never before.
        end = max([end, *(span.end_at for span in spans)])
        return History(begin, end, tuple(sorted(self.gpus)), jobs, spans, tuple(self.waits))

    def _spans(self, job: JobHistory, stay: Stay) -> list[Span]:
        spans = []
        for share in stay.placement.shares:
            end = self.freed.get((job.id, stay.number, share.node), stay.end_at or self.last_at)
            pieces = _pieces(stay, end)
            for gpu in share.gpus:
                spans.append(
                    Span(
                        job.id,
                        job.name,
                        stay.number,
                        share.node,
                        gpu,
                        len(stay.placement.gpus),
                        stay.start_at,
                        stay.ready_at,
                        end,
                        pieces,
                        stay.cause,
                    )
                )
        return spans


def _pieces(stay: Stay, end: float) -> tuple[Piece, ...]:
    """The phases and roles of one node's part of a stay, which lasted until `end`; never empty."""
    marks: list[tuple[float, Phase | Role]] = [(at, role) for at, role in stay.roles]
    marks.append((stay.start_at, Phase.STARTING))
    for at, phase in (
        (stay.ready_at, Phase.TRAINING),
        (stay.asked_at, Phase.SAVING),
        (stay.exited_at, Phase.ENDING),
    ):
        if at is not None:
            marks.append((at, phase))
    order = {phase: place for place, phase in enumerate(Phase)}
    phase, role = Phase.STARTING, stay.placement.role
    pieces: list[Piece] = []
    begin = stay.start_at
    for at, mark in sorted(marks, key=lambda each: each[0]):
        now = min(at, end)
        if now > begin:
            pieces.append(Piece(phase, role, begin, now))
            begin = now
        if isinstance(mark, Role):
            role = mark
        elif order[mark] > order[phase]:  # a late report does not lead back from saving to training
            phase = mark
    if end > begin or not pieces:
        pieces.append(Piece(phase, role, begin, max(end, begin)))
    return tuple(pieces)


def read_history(rows: Iterable[Mapping[str, Any]]) -> History:
    """The history in event rows as `GET /v1/events` answers them, oldest first. Raises KeyError for what is no row."""
    growing = _Growing()
    for row in rows:
        try:
            event = event_of(row)
        except CodecError:
            continue
        growing.take(event, float(row["at"]))
    return growing.finish()


def history_of(records: Iterable[ev.Recorded]) -> History:
    """The history in a journal's records, oldest first."""
    growing = _Growing()
    for record in records:
        growing.take(record.event, record.at)
    return growing.finish()


def event_of(row: Mapping[str, Any]) -> ev.Event:
    """The event in a row of `GET /v1/events`. Raises CodecError for one that this version does not know."""
    body = dict(row["body"])
    if isinstance(body.get("spec"), dict):
        # The API names the variables of a job's environment only, so it does not read back as a spec's.
        body["spec"] = {key: value for key, value in body["spec"].items() if key != "env"}
    return ev.decode(str(row["kind"]), body)
