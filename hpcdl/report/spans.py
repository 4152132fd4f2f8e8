"""From the events of a ledger to what each GPU did when: one span per GPU for as long as an attempt of a job has it.

Pure. Events that this version does not know are passed over, and so is what concerns jobs or nodes whose beginning was
archived: a drawing of the part that is there is better than none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.frozen import CodecError
from hpcdl.core.model.incarnation import Placement, Role
from hpcdl.core.model.units import GpuRef
from hpcdl.report.history import History, JobAttempt, JobHistory, Phase, Piece, Span, Tenure, WarmStart

Take = Callable[[ev.Event, float], None]
"""Is called with each event and its time."""


@dataclass(slots=True)
class _Growing:
    """The history as far as it was read."""

    jobs: dict[int, JobHistory] = field(default_factory=dict)
    attempts: dict[tuple[int, int], JobAttempt] = field(default_factory=dict)
    tenures: dict[tuple[int, int], list[Tenure]] = field(default_factory=dict)
    open: dict[str, dict[tuple[int, int], Tenure]] = field(default_factory=dict)
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
            case ev.ArraySubmitted():
                for number, spec in zip(event.members, event.specs, strict=True):
                    self.jobs[number] = JobHistory(number, spec.name, spec.profile, at, None, None, ())
            case ev.JobRetried():
                self.jobs[event.job] = replace(self._job(event.job, at), finished_at=None, state=None)
            case ev.JobEnded():
                job = self._job(event.job, at)
                self.jobs[event.job] = replace(job, finished_at=at, state=event.state)
            case ev.NodeJoined():
                self.gpus.update(GpuRef(event.node, gpu.index) for gpu in event.gpus)
            case ev.NodeLost():
                for tenure in self.open.pop(event.node, {}).values():
                    tenure.end_at = at
            case ev.IncarnationEvent():
                self._take_of_incarnation(event, at)
            case _:
                pass

    def _take_of_incarnation(self, event: ev.IncarnationEvent, at: float) -> None:
        key = (event.job, event.incarnation)
        attempt = self.attempts.get(key)
        match event:
            case ev.StartRequested(placement=None):
                self._job(event.job, at)
                self.gated[key] = (at, event.nodes)
            case ev.StartRequested(placement=Placement() as placement) | ev.OpenRequested(placement=placement):
                self._job(event.job, at)
                self._leave_gate(key, at, opened=True)
                self._takes(key, placement, at)
                self.attempts[key] = JobAttempt(event.incarnation, placement, at, roles=((at, placement.role),))
            case ev.IncarnationEnded() if attempt is None:
                self._leave_gate(key, at, opened=False)
            case _:
                if attempt is not None:
                    self.attempts[key] = self._changed(key, attempt, event, at)

    def _changed(self, key: tuple[int, int], attempt: JobAttempt, event: ev.IncarnationEvent, at: float) -> JobAttempt:
        match event:
            case ev.Started() if attempt.started_at is None:
                return replace(attempt, started_at=at)
            case ev.Attached():
                return replace(attempt, attached=True)
            case ev.TrainerReady() | ev.Progressed() if attempt.ready_at is None:
                return replace(attempt, ready_at=at)
            case ev.RoleChanged():
                return replace(attempt, roles=(*attempt.roles, (at, event.role)))
            case ev.SuspendRequested():
                return replace(attempt, asked_at=at, purpose=event.purpose)
            case ev.EndRequested() if attempt.asked_at is None:
                return replace(attempt, asked_at=at)
            case ev.Exited():
                part = self.open.get(event.node, {}).get(key)
                if part is not None:
                    part.exited_at = at
                return replace(attempt, exited_at=at)
            case ev.JoinRequested():
                self._takes(key, event.placement, at)
            case ev.RescaleRequested():
                self._lets_go(key, event.leaving, at)
                return replace(attempt, told=(*attempt.told, (at, event.members)))
            case ev.LeaveRequested():
                self._lets_go(key, event.nodes, at)
            case ev.Reformed():
                formed = (*attempt.formed, (at, attempt.told[-1][1] if attempt.told else ()))
                return replace(attempt, formed=formed, ready_at=at if attempt.ready_at is None else attempt.ready_at)
            case ev.Broken():
                return replace(attempt, broken=(*attempt.broken, at))
            case ev.GpusFreed():
                tenure = self.open.get(event.node, {}).pop(key, None)
                if tenure is not None:
                    tenure.end_at = at
            case ev.LeftBehind():
                for node in event.nodes:
                    left = self.open.get(node, {}).pop(key, None)
                    if left is not None:
                        left.end_at = at
            case ev.IncarnationEnded():
                for there in {tenure.node for tenure in self.tenures[key]}:
                    self.open.get(there, {}).pop(key, None)
                return replace(attempt, end_at=at, cause=event.cause)
            case _:
                pass
        return attempt

    def _takes(self, key: tuple[int, int], placement: Placement, at: float) -> None:
        self.gpus.update(placement.gpus)
        for share in placement.shares:
            tenure = Tenure(share.node, share.gpus, at)
            self.tenures.setdefault(key, []).append(tenure)
            self.open.setdefault(share.node, {})[key] = tenure

    def _lets_go(self, key: tuple[int, int], nodes: Iterable[str], at: float) -> None:
        for node in nodes:
            tenure = self.open.get(node, {}).get(key)
            if tenure is not None:
                tenure.left_at = at

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
        grouped: dict[int, list[JobAttempt]] = {}
        for (number, incarnation), attempt in sorted(self.attempts.items(), key=lambda item: item[0]):
            attempt = replace(attempt, tenures=tuple(self.tenures[number, incarnation]))
            if (
                attempt.ready_at is None and not attempt.attached
            ):  # a program that reports nothing: it trains once it runs
                attempt = replace(attempt, ready_at=attempt.started_at)
            grouped.setdefault(number, []).append(attempt)
        jobs = tuple(replace(job, attempts=tuple(grouped.get(job.id, ()))) for _, job in sorted(self.jobs.items()))
        begin = min((job.submitted_at for job in jobs), default=self.last_at)
        going_on = any(job.finished_at is None for job in jobs)
        ends = [job.finished_at for job in jobs if job.finished_at is not None]
        end = self.last_at if going_on or not ends else max(ends)
        spans = tuple(span for job in jobs for attempt in job.attempts for span in self._spans(job, attempt))
        # A GPU may be seen free just after its job's end is concluded, never before.
        end = max([end, *(span.end_at for span in spans)])
        return History(begin, end, tuple(sorted(self.gpus)), jobs, spans, tuple(self.waits))

    def _spans(self, job: JobHistory, attempt: JobAttempt) -> list[Span]:
        spans = []
        sizes = attempt.sizes()
        for tenure in attempt.tenures:
            end = next(at for at in (tenure.end_at, attempt.end_at, self.last_at) if at is not None)
            pieces = _pieces(attempt, tenure, sizes, end)
            ready_at = next((piece.begin for piece in pieces if piece.phase is Phase.TRAINING), None)
            for gpu in tenure.gpus:
                of = (job.id, job.name, attempt.number, tenure.node, gpu, pieces[-1].gpus)
                spans.append(Span(*of, tenure.begin, ready_at, end, pieces, attempt.cause))
        return spans


_MAY_FOLLOW = {
    Phase.TRAINING: frozenset({Phase.STARTING, Phase.RESCALING}),
    Phase.RESCALING: frozenset({Phase.TRAINING}),
    Phase.SAVING: frozenset({Phase.STARTING, Phase.TRAINING, Phase.RESCALING}),
    Phase.ENDING: frozenset(Phase) - {Phase.ENDING},
}
"""A late report does not lead back from saving to training."""


def _pieces(
    attempt: JobAttempt, tenure: Tenure, sizes: tuple[tuple[float, int, int, int], ...], end: float
) -> tuple[Piece, ...]:
    """What one node's part of an attempt did until `end`; never empty."""
    marks: list[tuple[float, Phase | Role | tuple[int, int, int]]] = [(at, role) for at, role in attempt.roles]
    marks += [(at, (nodes, per_node, gpus)) for at, nodes, per_node, gpus in sizes]
    marks += [(at, phase) for at, phase in _phases(attempt, tenure) if at is not None]
    phase, role, size = Phase.STARTING, attempt.placement.role, sizes[0][1:]
    pieces: list[Piece] = []
    begin = tenure.begin
    for at, mark in sorted(marks, key=lambda each: each[0]):
        if isinstance(mark, Role):
            after = (phase, mark, size)
        elif isinstance(mark, Phase):
            after = (mark if phase in _MAY_FOLLOW[mark] else phase, role, size)
        else:
            after = (phase, role, mark)
        now = min(at, end)
        if now > begin and after != (phase, role, size):
            pieces.append(Piece(phase, role, begin, now, *size))
            begin = now
        phase, role, size = after
    if end > begin or not pieces:
        pieces.append(Piece(phase, role, begin, max(end, begin), *size))
    return tuple(pieces)


def _phases(attempt: JobAttempt, tenure: Tenure) -> Iterable[tuple[float | None, Phase]]:
    if not attempt.formed and not attempt.told:
        yield attempt.ready_at, Phase.TRAINING
    yield from ((at, Phase.TRAINING) for at, members in attempt.formed if tenure.node in members and at >= tenure.begin)
    yield from ((at, Phase.RESCALING) for at, members in attempt.told if tenure.node in members)
    yield from ((at, Phase.RESCALING) for at in attempt.broken)
    yield attempt.asked_at, Phase.SAVING
    yield tenure.left_at, Phase.ENDING
    yield tenure.exited_at, Phase.ENDING


def read_history(rows: Iterable[Mapping[str, Any]], also: Take | None = None, until: float | None = None) -> History:
    """The history in event rows as `GET /v1/events` answers them, oldest first. Raises KeyError for what is no row.

    `also` is called with every event that is known, too. `until`: nothing has ended between the last event and then.
    """
    growing = _Growing(last_at=until or 0.0)
    for row in rows:
        try:
            event = event_of(row)
        except CodecError:
            continue
        growing.take(event, float(row["at"]))
        if also is not None:
            also(event, float(row["at"]))
    return growing.finish()


def history_of(records: Iterable[ev.Recorded], also: Take | None = None) -> History:
    """The history in a journal's records, oldest first; `also` as above."""
    growing = _Growing()
    for record in records:
        growing.take(record.event, record.at)
        if also is not None:
            also(record.event, record.at)
    return growing.finish()


def event_of(row: Mapping[str, Any]) -> ev.Event:
    """The event in a row of `GET /v1/events`. Raises CodecError for one that this version does not know."""
    body = dict(row["body"])
    if isinstance(body.get("spec"), dict):
        # The API names the variables of a job's environment only, so it does not read back as a spec's.
        body["spec"] = {key: value for key, value in body["spec"].items() if key != "env"}
    return ev.decode(str(row["kind"]), body)
