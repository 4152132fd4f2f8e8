"""The account: what became of all GPU-seconds that there were. One account for the daemon's events and the simulator's.

A GPU counts while it could be given to jobs (its agent was connected, the GPU not lost) or a job held it. Each of these
seconds is in exactly one share, so that the shares add up to what was available. Where two jobs share a GPU, each has
half of its seconds.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import groupby
from typing import Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Role
from hpcdl.core.model.transitions import FAILURES, is_interruption
from hpcdl.core.model.units import GpuRef
from hpcdl.report.account_events import AccountEvents, Interval, Work, owner_of
from hpcdl.report.curves import merged
from hpcdl.report.history import History, Phase, Span
from hpcdl.report.names import stem
from hpcdl.report.spans import history_of, read_history
from hpcdl.report.use import NO_USE, JobUse, UseSum

BY = ("job", "array", "user", "tag", "day", "policy")
IDLE = ""
"""The key of what no job held."""

_SHARE = {
    Phase.STARTING: "starting",
    Phase.RESCALING: "rescaling",
    Phase.SAVING: "saving",
    Phase.ENDING: "saving",
}


@dataclass(frozen=True, slots=True)
class Shares:
    """GPU-seconds. `useful`: training whose work was kept. `starting`: from the grant to the first step, of resumes
    too. `saving`: periodic checkpoints, and from the request to suspend (or the exit) until the GPU was seen free.
    `rescaling`: without progress while nodes come or go. `lost`: training after the last durable checkpoint before an
    end that was no suspend, done or cancelled by its user: what the next start trains again; all of an attempt that
    failed before it trained; and the end of a script that was cut off. `idle`: held by no job.
    """

    useful: float = 0.0
    starting: float = 0.0
    saving: float = 0.0
    rescaling: float = 0.0
    lost: float = 0.0
    idle: float = 0.0

    @property
    def held(self) -> float:
        """GPU-seconds held by jobs."""
        return self.useful + self.starting + self.saving + self.rescaling + self.lost

    @property
    def available(self) -> float:
        """GPU-seconds that could be given to jobs, or were held by one."""
        return self.held + self.idle

    @property
    def goodput(self) -> float | None:
        """The useful part of what was available, from 0 to 1; None of nothing."""
        return self.useful / self.available if self.available > 0 else None


NAMES = tuple(each.name for each in fields(Shares))


@dataclass(frozen=True, slots=True)
class AccountLine:
    """The account of one job, array, user, day or policy. `failures`: ends that were none of done, suspended
    (also before there was anything to save), cancelled and at the job's own time limit. `use`: of the GPU-seconds for
    which it is known; what is idle uses nothing.
    """

    key: str
    name: str
    shares: Shares
    suspends: int
    failures: int
    use: JobUse = NO_USE


@dataclass(frozen=True, slots=True)
class Account:
    """From `begin` to `end`, in seconds since the epoch; `gpus`: as many were there at some time.

    `available`: GPU-seconds, measured by itself: as much as the shares add up to. `suspends`: requested, by purpose;
    `ends`: of attempts that held GPUs, by cause.
    """

    begin: float
    end: float
    gpus: int
    available: float
    shares: Shares
    by: str
    lines: tuple[AccountLine, ...]
    suspends: Mapping[str, int]
    ends: Mapping[str, int]
    use: JobUse = NO_USE


@dataclass(frozen=True, slots=True)
class Story:
    """What the events say: the history, and what the account needs beside it."""

    history: History
    watch: AccountEvents


def story_of_rows(rows: Iterable[Mapping[str, Any]]) -> Story:
    """The story in event rows as `GET /v1/events` answers them, oldest first. Raises KeyError for what is no row."""
    watch = AccountEvents()
    return Story(read_history(rows, watch), watch)


def story_of(records: Iterable[ev.Recorded]) -> Story:
    """The story in a journal's records, oldest first."""
    watch = AccountEvents()
    return Story(history_of(records, watch), watch)


def account(
    story: Story,
    by: str = "job",
    *,
    since: float | None = None,
    until: float | None = None,
    jobs: Collection[int] | None = None,
    days: Sequence[tuple[float, str]] = (),
    use: Mapping[int, JobUse] | None = None,
) -> Account:
    """The account of a time, by default from the first GPU or submit to the last event.

    `by`: one of BY; a job with several tags counts for each of them. `jobs`: only what these held; nothing is idle
    then. `days`: when each day begins and its name, ascending, for by="day". `use`: of each job (`use_of`). Raises
    ValueError for another `by`.
    """
    if by not in BY:
        raise ValueError(f"by must be one of {', '.join(BY)}, got {by!r}")
    watch = story.watch
    end = max(story.history.end, watch.last_at) if until is None else until
    begin = _begin(story) if since is None else since
    end = max(begin, end)
    wanted = None if jobs is None else frozenset(jobs)
    names = {job.id: job.name for job in story.history.jobs}
    if by == "array":
        names = _array_names(watch, names)
    key_of = _keys(by, watch, days)
    sums: dict[str, dict[str, float]] = {}
    total = dict.fromkeys(NAMES, 0.0)
    uses, whole, known = dict[str, _Uses](), _Uses(), use or {}
    for piece in _pieces(story, begin, end, wanted):
        total[piece.share] += (piece.end - piece.begin) * piece.gpus
        share = known.get(piece.job, NO_USE) if piece.job else _IDLE_USE
        whole.add(share, (piece.end - piece.begin) * piece.gpus)
        for key, seconds in key_of(piece):
            mine = sums.setdefault(key, dict.fromkeys(NAMES, 0.0))
            mine[piece.share] += seconds * piece.gpus
            uses.setdefault(key, _Uses()).add(share, seconds * piece.gpus)
    asked = [
        (at, job, what) for at, job, what in watch.asked if begin <= at <= end and (wanted is None or job in wanted)
    ]
    held = {(job.id, attempt.end_at) for job in story.history.jobs for attempt in job.attempts}
    ends = [
        (at, ended)
        for at, ended in watch.ends
        if begin <= at <= end and (wanted is None or ended.job in wanted) and (ended.job, at) in held
    ]
    suspends = _counted(key_of, ((at, job) for at, job, _ in asked))
    failures = _counted(key_of, ((at, ended.job) for at, ended in ends if _failed(ended)))
    keys = sorted(sums.keys() | suspends.keys() | failures.keys(), key=_order)
    return Account(
        begin=begin,
        end=end,
        gpus=len({*story.history.gpus, *watch.gpus}),
        available=_available(story, begin, end, wanted),
        shares=_shares(total),
        by=by,
        lines=tuple(
            AccountLine(
                key,
                _name(by, key, names),
                _shares(sums.get(key, {})),
                suspends[key],
                failures[key],
                uses[key].mean if key in uses and use else NO_USE,
            )
            for key in keys
        ),
        suspends=dict(sorted(Counter(what for _, _, what in asked).items())),
        ends=dict(sorted(Counter(ended.cause.value for _, ended in ends).items())),
        use=whole.mean if use else NO_USE,
    )


_IDLE_USE = JobUse(0.0, 0.0)


class _Uses:
    """The use of some GPU-seconds."""

    def __init__(self) -> None:
        self._util, self._memory = UseSum(), UseSum()

    def add(self, use: JobUse, seconds: float) -> None:
        self._util.add(use.util, seconds)
        self._memory.add(use.memory, seconds)

    @property
    def mean(self) -> JobUse:
        return JobUse(self._util.share, self._memory.share)


def _failed(ended: ev.IncarnationEnded) -> bool:
    return ended.cause in FAILURES or (is_interruption(ended) and ended.cause is not Cause.WALLTIME)


# --- the pieces -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AccountSpan:
    """Some GPUs from `begin` to `end` in one share. `gpus`: 0.5 of one that two jobs share. `job`: 0 where none held
    them.
    """

    begin: float
    end: float
    share: str
    gpus: float
    job: int


def _begin(story: Story) -> float:
    firsts = [intervals[0][0] for intervals in story.watch.there.values()]
    firsts += [begin for gpu in story.watch.gpus for begin, _ in story.watch.intervals(gpu, float("inf"))]
    firsts += [span.start_at for span in story.history.spans]
    return min([story.history.begin, *firsts]) if story.history.jobs else min(firsts, default=story.history.begin)


def _pieces(story: Story, begin: float, end: float, wanted: frozenset[int] | None) -> Iterator[_AccountSpan]:
    """Of all GPUs, within the time; on any GPU they overlap only where two jobs share it."""
    shared = _shared(story)
    for _, same in groupby(story.history.spans, key=lambda span: id(span.pieces)):
        spans = list(same)
        span = spans[0]
        if (wanted is None or span.job in wanted) and span.start_at < end and span.end_at > begin:
            work = story.watch.work.get((span.job, span.incarnation))
            beside = [shared[gpu] for gpu in (GpuRef(each.node, each.gpu) for each in spans) if gpu in shared]
            for low, high, share in shares_of(span, work):
                low, high = max(low, begin), min(high, end)
                if high <= low:
                    continue
                if len(spans) > len(beside):
                    yield _AccountSpan(low, high, share, len(spans) - len(beside), span.job)
                for both in beside:
                    alone = list(_without([(low, high)], both))
                    for first, last in alone:
                        yield _AccountSpan(first, last, share, 1, span.job)
                    for first, last in _without([(low, high)], alone):
                        yield _AccountSpan(first, last, share, 0.5, span.job)
    if wanted is None:
        for gpu, held in _held(story).items():
            for low, high in _without(story.watch.intervals(gpu, end), held):
                low, high = max(low, begin), min(high, end)
                if high > low:
                    yield _AccountSpan(low, high, "idle", 1, 0)


def shares_of(span: Span, work: Work | None) -> Iterator[tuple[float, float, str]]:
    """What one GPU's span was for: from, until, share. `work`: of its attempt. Of its training, what was lost goes
    before what was spent on checkpoints."""
    for piece in span.pieces:
        if piece.phase is not Phase.TRAINING:
            in_vain = piece.phase is Phase.STARTING and work is not None and work.in_vain
            yield piece.begin, piece.end, "lost" if in_vain else _SHARE[piece.phase]
            continue
        whole = [(piece.begin, piece.end)]
        lost = _within(whole[0], work.lost) if work is not None else []
        kept = list(_without(whole, lost))
        saving = [each for low, high in kept for each in _within((low, high), work.saving)] if work is not None else []
        yield from ((low, high, "lost") for low, high in lost)
        yield from ((low, high, "saving") for low, high in saving)
        yield from ((low, high, "useful") for low, high in _without(kept, saving))


def _within(outer: Interval, intervals: Iterable[Interval]) -> list[Interval]:
    """What of the intervals lies in the outer one, united."""
    cut = [(max(low, outer[0]), min(high, outer[1])) for low, high in intervals]
    return merged((low, high) for low, high in cut if high > low)


def _without(intervals: Iterable[Interval], taken: Sequence[Interval]) -> Iterator[Interval]:
    """What is left of the intervals without the `taken` ones, which are ascending and apart."""
    for low, high in intervals:
        first = bisect_right(taken, (low, low))
        for begin, end in taken[max(0, first - 1) :]:
            if begin >= high:
                break
            if end > low:
                if begin > low:
                    yield low, begin
                low = end
        if low < high:
            yield low, high


def _held(story: Story) -> dict[GpuRef, list[Interval]]:
    """When each GPU was held, also those that never were."""
    found: dict[GpuRef, list[Interval]] = {gpu: [] for gpu in story.watch.gpus}
    for span in story.history.spans:
        found.setdefault(GpuRef(span.node, span.gpu), []).append((span.start_at, span.end_at))
    return {gpu: merged(intervals) for gpu, intervals in found.items()}


def _shared(story: Story) -> dict[GpuRef, list[Interval]]:
    """When two jobs held a GPU, a foreground and a background beside it: ascending and apart."""
    spans = story.history.spans
    background = (span for span in spans if any(piece.role is Role.BACKGROUND for piece in span.pieces))
    found: dict[GpuRef, list[Interval]] = {GpuRef(span.node, span.gpu): [] for span in background}
    until = dict.fromkeys(found, float("-inf"))
    for span in sorted(spans, key=lambda span: span.start_at) if found else ():
        gpu = GpuRef(span.node, span.gpu)
        if gpu in found:
            if span.start_at < min(until[gpu], span.end_at):
                found[gpu].append((span.start_at, min(until[gpu], span.end_at)))
            until[gpu] = max(until[gpu], span.end_at)
    return {gpu: both for gpu, both in found.items() if both}


def _available(story: Story, begin: float, end: float, wanted: frozenset[int] | None) -> float:
    if wanted is not None:
        shared, held = _shared(story), 0.0
        for span in story.history.spans:
            low, high = max(span.start_at, begin), min(span.end_at, end)
            if span.job in wanted and high > low:
                alone = _without([(low, high)], shared.get(GpuRef(span.node, span.gpu), ()))
                held += (high - low + sum(last - first for first, last in alone)) / 2
        return held
    return sum(
        high - low
        for gpu, held in _held(story).items()
        for low, high in _within((begin, end), (*held, *story.watch.intervals(gpu, end)))
    )


# --- the lines ------------------------------------------------------------------------------------------------------

_Key = Callable[[_AccountSpan], Iterable[tuple[str, float]]]


def _keys(by: str, watch: AccountEvents, days: Sequence[tuple[float, str]]) -> _Key:
    """To which lines a piece belongs, and with how many seconds each."""
    if by in ("day", "policy"):
        marks = [*days] if by == "day" else [(at, name) for at, name in watch.chosen]
        return lambda piece: _split(piece, marks)

    @cache
    def label(job: int) -> str:
        if not job:
            return IDLE
        owner = owner_of(watch, job)
        return owner.user or "-" if by == "user" else str((owner.array or job) if by == "array" else job)

    if by == "tag":
        return lambda piece: (
            (tag, piece.end - piece.begin)
            for tag in ((owner_of(watch, piece.job).tags or ("-",)) if piece.job else (IDLE,))
        )
    return lambda piece: ((label(piece.job), piece.end - piece.begin),)


def _split(piece: _AccountSpan, marks: Sequence[tuple[float, str]]) -> Iterator[tuple[str, float]]:
    place = bisect_right(marks, piece.begin, key=lambda mark: mark[0])
    low = piece.begin
    while low < piece.end or low == piece.begin == piece.end:
        high = min(marks[place][0], piece.end) if place < len(marks) else piece.end
        yield marks[place - 1][1] if place else "-", high - low
        if high >= piece.end:
            return
        low, place = high, place + 1


def _counted(key_of: _Key, moments: Iterable[tuple[float, int]]) -> Counter[str]:
    return Counter(key for at, job in moments for key, _ in key_of(_AccountSpan(at, at, "", 0, job)))


def _order(key: str) -> tuple[bool, int, str]:
    """Jobs by number, the rest by name, what idled at the end."""
    return key == IDLE, int(key) if key.isdecimal() else 0, key


def _array_names(watch: AccountEvents, names: Mapping[int, str]) -> dict[int, str]:
    """What the names of an array's jobs have in common, and how many they are; of other jobs their names."""
    members: dict[int, list[str]] = {}
    for job, name in names.items():
        members.setdefault(owner_of(watch, job).array or job, []).append(name)
    return {
        array: found[0] if len(found) == 1 else f"{stem(found)} ({len(found)} jobs)" for array, found in members.items()
    }


def _name(by: str, key: str, names: Mapping[int, str]) -> str:
    if key == IDLE:
        return "no job"
    return names.get(int(key), f"job {key}") if by in ("job", "array") else key


def _shares(sums: Mapping[str, float]) -> Shares:
    return Shares(**{name: sums.get(name, 0.0) for name in NAMES})
