"""`GET /v1/jobs`: which jobs a query asks for, and their rows as JSON.

Of a job that holds nothing and is to have nothing, the JSON of its row is kept until something that it was made of
changes. The pieces are joined by hand: encoding 10,000 kept rows at each `hpcdl ls` would take 80 ms instead of 13
(`hpcdl ls (all waiting)` of benchmarks/cli.py). Of many such jobs that follow each other, the pieces are kept joined:
of 100,000, a call then takes 40 ms instead of a second.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from json.encoder import encode_basestring
from typing import Any

from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.world import Job, JobState, Target, World
from hpcdl.core.rules.retention import is_retired
from hpcdl.daemon.api.http import ApiProblem, encode, encoded, number_of
from hpcdl.daemon.api.rows import JOB_KEYS, RowBuilder
from hpcdl.daemon.queue import Queue

FINISHED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
KEPT = 20_000
"""Rows of one choice of keys that are kept; all others are made at each request."""
MANY = 1_000
"""With more unfinished jobs, those that wait are kept in runs."""
RUN = 256
"""Ids of a run."""
CHOICES = 4
"""So many choices of keys are kept, those that were asked for last."""


Texts = tuple[str, ...]
Retired = Callable[[Sequence[int] | None, int | None], list[Job]]
"""See `Journal.retired`: by ids, or below an id."""


@dataclass(frozen=True, slots=True)
class JobQuery:
    """What `GET /v1/jobs` asks for. `states`, `ids`, `fields`: None is all (without `every`: all but finished jobs).

    `tags`: patterns as `name` is one; a job has a tag that one of them fits. `last`: only so many of them, those that
    were submitted last. `by_column`: a list for each field in place of a row for each job.
    """

    every: bool = False
    ids: tuple[int, ...] | None = None
    states: frozenset[JobState] | None = None
    user: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    last: int | None = None
    by_column: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "JobQuery":
        """What a query says. Raises ApiProblem."""
        states = fields = None
        if "state" in query:
            given = [part.strip().upper() for part in query["state"].split(",") if part.strip()]
            wrong = next((part for part in given if part not in JobState.__members__), None)
            if wrong is not None or not given:
                raise ApiProblem(400, f"there is no state {wrong or query['state']!r:.40}: {', '.join(JobState)}")
            states = frozenset(map(JobState, given))
        if "fields" in query:
            fields = tuple(dict.fromkeys(part for part in query["fields"].split(",") if part))
            unknown = next((part for part in fields if part not in JOB_KEYS), None)
            if unknown is not None or not fields:
                raise ApiProblem(400, f"a row has no {unknown or query['fields']!r:.40}: {', '.join(sorted(JOB_KEYS))}")
        ids = None
        if "ids" in query:
            ids = tuple(number_of(part, "ids") for part in query["ids"].split(",") if part)
        by_column = "by" in query
        if by_column and (query["by"] != "column" or fields is None):
            raise ApiProblem(400, "by must be column, and goes with fields")
        last = number_of(query["last"], "last") if "last" in query else None
        tags = tuple(part for part in query.get("tag", "").split(",") if part)
        if "tag" in query and not tags:
            raise ApiProblem(400, "an empty tag names no job: give one, or a pattern like exp*")
        if empty := next((key for key in ("name", "user") if query.get(key) == ""), None):
            raise ApiProblem(400, f"an empty {empty} names no job: give one, or leave it out")
        return cls(
            query.get("all") == "1", ids, states, query.get("user"), query.get("name"), tags, fields, last, by_column
        )

    def jobs(self, world: World) -> Iterable[Job]:
        """Those of the world's jobs, in order of submission."""
        return self._chosen(world) if self.last is None else deque(self._chosen(world), self.last)

    @property
    def unfiltered(self) -> bool:
        """Whether these are all unfinished jobs."""
        return not (self.finished or self.states or self.user or self.name or self.tags or self.last is not None) and (
            self.ids is None and self.fields is not None and self.by_column
        )

    def past(self, world: World, retired: Retired) -> Iterator[Job]:
        """Those that have left the world: in the order of `ids`, else the newest first; `last` at most."""
        if self.ids is not None:
            pieces = iter([retired([number for number in self.ids if is_retired(world, number)], None)])
        elif self.finished:
            pieces = _pieces(retired)
        else:
            return
        # One may have left it only now.
        found = (job for piece in pieces for job in piece if job.id not in world.jobs and self._wants(job))
        yield from found if self.last is None else islice(found, self.last)

    @property
    def finished(self) -> bool:
        """Whether finished jobs are asked for, of those that are not named."""
        return self.every or (self.states is not None and bool(self.states & FINISHED))

    def _chosen(self, world: World) -> Iterator[Job]:
        return filter(self._wants, self._listed(world))

    def _wants(self, job: Job) -> bool:
        if self.states is not None and state_of(job) not in self.states:
            return False
        if self.user is not None and job.spec.user != self.user:
            return False
        if self.tags and not any(fnmatchcase(tag, each) for tag in job.spec.tags for each in self.tags):
            return False
        return self.name is None or fnmatchcase(job.spec.name, self.name)

    def _listed(self, world: World) -> Iterable[Job]:
        if self.ids is not None:
            return [world.jobs[number] for number in self.ids if number in world.jobs]
        if self.finished:
            return world.jobs.values()
        return [world.jobs[number] for number in world.active]


def _pieces(retired: Retired) -> Iterator[list[Job]]:
    before: int | None = None
    while piece := retired(None, before):
        yield piece
        before = piece[-1].id


@dataclass(slots=True)
class _CachedRow:
    """A row's JSON, and all that it was made of: it is good for as long as none of that has changed."""

    job: Job
    target: Target | None
    reasons: object  # the plan's, as they were when last looked at
    said: str | None  # the job's reason among them
    nothing: str  # `why.nothing_here`
    queued: str  # `Queue.text` and `Queue.note` of the job
    not_finite: Mapping[str, int] | None  # the job's, of the rows
    texts: tuple[str, ...]  # the whole row, or value by value where the query chose fields


@dataclass(slots=True)
class _CachedRun:
    """The columns of jobs that follow each other, hold nothing and have no place, and all that these were made of."""

    jobs: list[Job]
    targets: list[Target | None]
    reasons: object  # the plan's, as they were when last looked at
    said: list[str | None]  # the jobs' reasons among them
    nothing: str
    queue: Queue  # as it was when last looked at
    waiting: list[bool]  # whether each is in it
    texts: list[str]  # of each column
    empty: list[bool]  # whether a column has nothing

    def holds(self, rows: RowBuilder, ids: list[int], jobs: list[Job]) -> bool:
        """Whether the columns are still these."""
        if self.jobs != jobs or self.nothing != rows.nothing or self.targets != _got(rows.world.targets, ids):
            return False
        if self.reasons is not rows.reasons:
            if self.said != _got(rows.reasons, ids):
                return False
            self.reasons = rows.reasons  # another plan, which says the same
        if self.queue is not rows.queue:
            if not self.queue.is_alike(rows.queue) or self.waiting != _in(rows.queue, ids):
                return False
            self.queue = rows.queue
        return True


def _got(found: Mapping[int, Any], ids: Iterable[int]) -> list[Any]:
    return list(map(found.get, ids))


def _in(queue: Queue, ids: Iterable[int]) -> list[bool]:
    return list(map(queue.waiting.__contains__, ids))


class JobList:
    """Answers to `GET /v1/jobs`. For one thread."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...] | None, dict[int, _CachedRow]] = {}
        self._runs: dict[tuple[str, ...] | None, dict[int, _CachedRun]] = {}

    @staticmethod
    def past(rows: RowBuilder, asked: JobQuery, retired: Retired) -> dict[int, Texts]:
        """Rows of jobs that have left the world, for `answer`; for a thread that may take its time."""
        if not rows.world.retired:
            return {}
        return {job.id: _made(rows, job, asked.fields) for job in asked.past(rows.world, retired)}

    def answer(self, rows: RowBuilder, asked: JobQuery, past: dict[int, Texts] | None = None) -> bytes:
        """The whole answer. With `fields` a row has these keys only, and of these none that is null; a column that has
        nothing else is left out too. `past`: as the method of that name has it, of the same world.
        """
        kept = self._kept.pop(asked.fields, {})
        self._kept[asked.fields] = kept
        if len(self._kept) > CHOICES:
            del self._kept[oldest := next(iter(self._kept))]
            self._runs.pop(oldest, None)
        if asked.unfiltered and not past and len(rows.world.active) > MANY:
            return encoded(self._by_runs(kept, rows, asked.fields or ()))
        if len(kept) >= KEPT:  # jobs that have left the world make room
            for number in [each for each in kept if each not in rows.world.jobs]:
                del kept[number]
        if past:
            there = {job.id: self._texts(kept, rows, job, asked.fields) for job in asked.jobs(rows.world)} | past
            order = sorted(there) if asked.ids is None else [number for number in asked.ids if number in there]
            latest = 0 if asked.last is None else max(0, len(order) - asked.last)
            found = [there[number] for number in order[latest:]]
        else:
            found = [self._texts(kept, rows, job, asked.fields) for job in asked.jobs(rows.world)]
        if asked.fields is None:
            told = f'"jobs":[{",".join([text for (text,) in found])}]'
        elif asked.by_column:
            told = f'"count":{len(found)},"columns":{{{_columns(asked.fields, found)}}}'
        else:
            told = f'"jobs":[{",".join([_row(asked.fields, texts) for texts in found])}]'
        return encoded(told)

    def _by_runs(self, kept: dict[int, _CachedRow], rows: RowBuilder, fields: Texts) -> str:
        """The columns of all unfinished jobs, those of runs of waiting ones as they are kept."""
        world, before, now = rows.world, self._runs.get(fields, {}), {}
        moving = {number for number, target in world.targets.items() if target.placement is not None}
        moving.update(world.live, rows.queue.places, rows.not_finite)
        texts: list[Sequence[str]] = []
        empty: list[Sequence[bool]] = []
        for ids in _runs(list(world.active), moving):
            if ids[0] in moving:
                row = self._texts(kept, rows, world.jobs[ids[0]], fields)
                texts.append(row)
                empty.append([text == "null" for text in row])
                continue
            jobs = list(map(world.jobs.__getitem__, ids))
            run = before.get(ids[0])
            if run is None or not run.holds(rows, ids, jobs):
                run = _made_run(rows, ids, jobs, fields)
            now[ids[0]] = run
            texts.append(run.texts)
            empty.append(run.empty)
        self._runs[fields] = now
        shown = [not all(each) for each in zip(*empty, strict=True)]
        columns = [
            f'"{field}":[{",".join(column)}]'
            for field, column, some in zip(fields, zip(*texts, strict=True), shown, strict=True)
            if some
        ]
        return f'"count":{len(world.active)},"columns":{{{",".join(columns)}}}'

    @staticmethod
    def _texts(
        kept: dict[int, _CachedRow], rows: RowBuilder, job: Job, fields: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        known = kept.get(job.id)
        target = rows.world.targets.get(job.id)
        not_finite = rows.not_finite.get(job.id)
        if known is not None and known.job is job and known.not_finite == not_finite:
            if job.finished:
                return known.texts
            queued = _queued(rows, job)
            if known.target is target and known.nothing == rows.nothing and known.queued == queued:
                if known.reasons is not rows.reasons and known.said == rows.reasons.get(job.id):
                    known.reasons = rows.reasons  # another plan, which says the same
                if known.reasons is rows.reasons:
                    return known.texts
        texts = _made(rows, job, fields)
        # What holds GPUs, or is to have some, changes with time and with other jobs.
        still = job.finished or (not job.live and (target is None or target.placement is None))
        if still and (len(kept) < KEPT or job.id in kept):
            said = None if job.finished else rows.reasons.get(job.id)
            queued = _queued(rows, job)
            kept[job.id] = _CachedRow(job, target, rows.reasons, said, rows.nothing, queued, not_finite, texts)
        return texts


def _runs(ids: list[int], moving: Collection[int]) -> Iterator[list[int]]:
    """The ids in their order, in pieces: each that moves alone, the others in runs, of which a job that comes or goes
    changes one only.
    """
    begin = 0
    size = len(ids)
    while begin < size:
        first = ids[begin]
        end = begin + 1
        if first not in moving:
            limit = (first // RUN + 1) * RUN
            while end < size and first < ids[end] < limit and ids[end] not in moving:
                end += 1
        yield ids[begin:end]
        begin = end


def _made_run(rows: RowBuilder, ids: list[int], jobs: list[Job], fields: Texts) -> _CachedRun:
    columns = list(zip(*(_made(rows, job, fields) for job in jobs), strict=True))
    texts = [",".join(column) for column in columns]
    empty = [column.count("null") == len(column) for column in columns]
    targets, said = _got(rows.world.targets, ids), _got(rows.reasons, ids)
    return _CachedRun(jobs, targets, rows.reasons, said, rows.nothing, rows.queue, _in(rows.queue, ids), texts, empty)


def _queued(rows: RowBuilder, job: Job) -> str:
    return rows.queue.text(job, rows.now) + rows.queue.note(job, rows.now)


def _made(rows: RowBuilder, job: Job, fields: tuple[str, ...] | None) -> Texts:
    row = rows.job(job, fields)
    return (encode(row),) if fields is None else tuple([_value(row.get(key)) for key in fields])


def _value(value: Any) -> str:
    """As `encode`, which takes its time over a single value."""
    if value is None:
        return "null"
    if type(value) is str:
        return encode_basestring(value)
    return str(value) if type(value) is int else encode(value)


def _row(fields: Sequence[str], texts: Sequence[str]) -> str:
    told = [f'"{field}":{text}' for field, text in zip(fields, texts, strict=True) if text != "null"]
    return f"{{{','.join(told)}}}"


def _columns(fields: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    columns = zip(fields, zip(*found, strict=True), strict=True) if found else ()
    told = [f'"{field}":[{",".join(texts)}]' for field, texts in columns if texts.count("null") < len(texts)]
    return ",".join(told)
