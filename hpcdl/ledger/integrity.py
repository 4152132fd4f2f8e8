"""Whether a ledger is whole, judged by what is kept outside of it; and what a daemon does where it is not.

A ledger that ends before the event of the mark, or has another one in its place, has lost something, and the daemon
refuses it: unless it is a backup that was restored, which says so itself (`stamp`), or its user accepts the loss. Then
nothing that is numbered is begun again: ids go on above all that are known to have been given.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.events import IdsRaised
from hpcdl.core.model.world import NAME as BEGINNING
from hpcdl.core.model.world import World
from hpcdl.ledger.database import refuse_foreign_log
from hpcdl.ledger.high_water_mark import NO_IDS, Ids, Mark, MarkDamaged, MarkFile, ids_of, read_mark
from hpcdl.ledger.journal import SqliteJournal
from hpcdl.ledger.lease import FENCES
from hpcdl.ledger.offline import LEDGER_FILE

# --- traces: folders of jobs, the access file and agents' logs, which show what the ledger must have known ------------

_JOB = re.compile(r"[1-9]\d{0,14}")

_RUN = re.compile(r"([1-9]\d{0,14})\.([1-9]\d{0,9})")

_LOG = re.compile(r"([1-9]\d{0,9})\..+\.log")

_PILOT = re.compile(r"p([1-9]\d{0,9})\.(?:log|out|err|sh)")

_BEGINNING = re.compile(re.escape(BEGINNING.format("")) + r"([1-9]\d{0,9})")

_CLAIM = "claim.json"

_REPORTS = "reports.jsonl"

_KEY = re.compile(rb'\{"(?:mark":\[|n":.{1,80}"body":\{"job":)([1-9]\d{0,14}),(?:"incarnation":)?([1-9]\d{0,9})\b')
"""A line of a report log: a report of an incarnation, or how far its reports came."""

_LINES = 100_000
"""Of a report log, so many lines are read at most."""


@dataclass(frozen=True, slots=True)
class Traces:
    """What lies in a home outside of its ledger. Only names and small files are read; what is not hpcdl's, or cannot be
    read, counts for nothing.

    `ids`: all below are, or may be, somebody's. `served`: the fence of the daemon that served last.

    `heard`: the highest fence that an agent of this node has heard of. `folders`: there are folders of jobs.
    """

    ids: Ids = NO_IDS
    served: int = 0
    heard: int = 0
    folders: bool = False

    @property
    def fence(self) -> int:
        """The highest that is known to have been in use."""
        return max(self.served, self.heard)


def traces_of(home: Path, runs: Iterable[Path] = ()) -> Traces:
    """What lies in the home; `runs`: folders of agents that are elsewhere."""
    jobs = [number for name in ("checkpoints", "logs") for number in _numbers(home / name, _JOB)]
    folders, incarnation, heard = bool(jobs), 0, 0
    for run in {*_folders(home / "run"), *runs}:
        for job, number in _pairs(run):
            jobs.append(job)
            incarnation = max(incarnation, number)
        fence, job, number = _reported(run / _REPORTS)
        heard, incarnation = max(heard, fence), max(incarnation, number)
        jobs.append(job)
    pilots = _numbers(home / "logs" / "pilots", _PILOT)
    ids = Ids(job=max(jobs, default=0) + 1, pilot=max(pilots, default=0) + 1, incarnation=incarnation)
    return Traces(ids, _positive_in(home / "access.json", "fence"), heard, folders)


def traced_ids(home: Path, world: World) -> Ids:
    """Attempts that the ledger does not know, by the logs and checkpoint folders of the unfinished jobs."""
    incarnation = beginning = 0
    for number in world.active:
        spec = world.jobs[number].spec
        folder = Path(spec.checkpoint_dir or home / "checkpoints" / str(number))
        begun = _numbers(folder, _BEGINNING)
        beginning = max([beginning, *begun])
        for each in (folder, *(folder / BEGINNING.format(which) for which in begun)):
            incarnation = max(incarnation, _positive_in(each / _CLAIM, "incarnation"))
        incarnation = max([incarnation, *_numbers(home / "logs" / str(number), _LOG)])
    return Ids(incarnation=incarnation, beginning=beginning)


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _numbers(folder: Path, form: re.Pattern[str]) -> list[int]:
    matches = (form.fullmatch(name) for name in _names(folder))
    return [int(match[1] if match.re.groups else match[0]) for match in matches if match is not None]


def _folders(folder: Path) -> Iterator[Path]:
    for name in _names(folder):
        if (folder / name).is_dir():
            yield folder / name


def _pairs(run: Path) -> Iterator[tuple[int, int]]:
    for name in _names(run):
        if (match := _RUN.fullmatch(name)) is not None:
            yield int(match[1]), int(match[2])


def _positive_in(path: Path, key: str) -> int:
    """The number of that key in a small JSON file; 0 where there is none."""
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        number = json.loads(_content(path))[key]
        return number if type(number) is int and 0 < number < 10**10 else 0
    return 0


def _content(path: Path) -> bytes:
    # Checkpoint folders may be others' too: nothing that is put there may hold us up.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read(1 << 16)


def _reported(path: Path) -> tuple[int, int, int]:
    """Of an agent's report log: the highest fence that it heard of, and the highest job and incarnation."""
    fence = job = incarnation = 0
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            for line, _ in zip(file, range(_LINES), strict=False):
                if line.startswith((b'{"last"', b'{"fence"')):
                    number = json.loads(line).get("fence")
                    fence = max(fence, number if type(number) is int and number < FENCES else 0)
                elif (match := _KEY.match(line)) is not None:
                    job, incarnation = max(job, int(match[1])), max(incarnation, int(match[2]))
    return fence, job, incarnation


ACCEPT = "hpcdl daemon start --accept-loss"

BACKUP, LOSS, FOLDERS, SITE = "backup", "loss", "folders", "site"
"""Why ids are raised, as `IdsRaised` has it."""


class LedgerShrank(JournalError):
    """The ledger does not hold what it held: one line with what is missing and the choices."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"the ledger has lost events: {missing}; nothing was changed: restore a backup (docs/operations.md), "
            f"or go on without them, which forgets their jobs: {ACCEPT}"
        )
        self.missing = missing


@dataclass(frozen=True, slots=True)
class UsableLedger:
    """A ledger that may be used. `raised`: the event to be recorded before anything else; None: it is whole.

    `fence`: one that was in use.
    """

    journal: SqliteJournal
    raised: IdsRaised | None
    fence: int

    @property
    def note(self) -> str:
        """What whoever starts the daemon should know, "" for nothing."""
        return self.raised.detail if self.raised is not None and self.raised.why != SITE else ""


def missing_before(home: Path, path: Path, runs: Iterable[Path] = ()) -> str:
    """What is missing where there is no ledger in a used home, or an empty one; "" where that is a new home.

    To be asked before the ledger is opened, which makes one. Raises JournalError.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = -1
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}: correct that") from error
    if size > 0:
        return ""
    mark = _mark_or_none(home)
    if mark is not None and mark.resumed is not None and not mark.seq:
        return ""  # the loss was accepted, and nothing has been recorded since
    known = _known(mark, traces_of(home, runs))
    return f"{path.name} is {'empty' if size == 0 else 'not there'}, and {known}" if known else ""


def _mark_or_none(home: Path) -> Mark | None:
    try:
        return read_mark(home)
    except MarkDamaged:
        return None


def _known(mark: Mark | None, traces: Traces) -> str:
    """What is known of a ledger without looking at it; "" where there never was one."""
    known = []
    if mark is not None and mark.seq:
        known.append(_known_of(mark))
    if traces.served:
        known.append(f"a daemon with fence {traces.served} served here")
    if traces.heard:
        known.append(f"an agent has heard of fence {traces.heard}")
    if traces.folders:
        known.append(f"there are folders of jobs up to job {traces.ids.job - 1}")
    return "; ".join(known)


def _known_of(mark: Mark) -> str:
    job = mark.given.job - 1
    return f"event {mark.seq} was recorded here" + (f", and ids up to job {job} were given" if job else "")


def missing_in(journal: SqliteJournal, mark: Mark | None, traces: Traces) -> str:
    """What an opened ledger has lost, by what is known of it outside; "" where it is whole. Raises JournalError."""
    last, world = journal.last_seq, journal.load()
    if not last:
        known = _known(mark, traces)
        return f"it has no events, and {known}" if known else ""
    ends = f"it ends with event {last} and job {world.next_job - 1}"
    if mark is not None and mark.seq > last:
        return f"{ends}, and {_known_of(mark)}"
    if mark is not None and mark.seq and journal.digest(mark.seq) not in (mark.digest, None):
        return f"its event {mark.seq} is another than the one that was recorded here: it is of another history"
    if traces.fence > world.fence:
        return f"{ends}, of a daemon with fence {world.fence}, and one with fence {traces.fence} served here"
    return ""


def check(journal: SqliteJournal, mark: Mark | None, traces: Traces | None = None) -> None:
    """Raises LedgerShrank where an opened ledger has lost something, and is no backup that was restored.

    `traces`: of its home, where that is not the folder of the file.
    """
    _judge(journal, mark, traces or traces_of(journal.path.parent), None)


def open_resumed(
    home: Path,
    open_it: Callable[[], SqliteJournal],
    *,
    runs: Iterable[Path] = (),
    accept_loss: bool,
    restored: str = "",
    first_job: int,
) -> UsableLedger:
    """The ledger of a home, with its mark, and the event about ids that it does not know.

    `runs`: folders of agents outside of the home. `accept_loss`: go on without what is missing. `restored`: how it is
    known that all of the home is a backup, in words; "": it is not. `first_job`: the lowest id that the site allows.
    Raises LedgerShrank, with nothing changed, and JournalError.
    """
    missing = missing_before(home, home / LEDGER_FILE, runs)
    if missing and not accept_loss:
        raise LedgerShrank(missing)
    refuse_foreign_log(home / LEDGER_FILE)
    journal = open_it()
    try:
        return _resume(home, journal, runs, missing if accept_loss else None, restored, first_job)
    except BaseException:
        journal.close()
        raise


def _resume(
    home: Path, journal: SqliteJournal, runs: Iterable[Path], accept_loss: str | None, restored: str, first_job: int
) -> UsableLedger:
    """`accept_loss`: what was missing before it was opened, "" for nothing; None: nothing may be missing."""
    try:
        mark = read_mark(home)
    except MarkDamaged as error:
        if accept_loss is None:
            raise MarkDamaged(f"{error}: if hpcdl ledger verify finds nothing else, {ACCEPT} makes it anew") from None
        mark = None
    traces, world = traces_of(home, runs), journal.load()
    own = ids_of(world, journal.last_request)
    why, text = _judge(journal, mark, traces, accept_loss)
    if restored and not why:
        why, text = BACKUP, f"{restored}: its ledger ends with event {journal.last_seq}"
    known = Ids() if mark is None else mark.given
    if why:
        given = own.up_to(known).up_to(traces.ids).up_to(traced_ids(home, world))
    else:  # ids that were reserved only were never given
        found = Ids(traces.ids.job, traces.ids.pilot, 1, known.incarnation, known.beginning)
        given = own.up_to(found)
    seq, digest = journal.last_seq, journal.digest(journal.last_seq) or ""
    line = 1 if mark is None else mark.line + (1 if why else 0)
    journal.mark = MarkFile(home, Mark(line, seq, digest, given, (why, text) if why else None))
    if why:
        journal.begin_anew(given.request)
    return UsableLedger(journal, _raised(own, given, why, text, first_job), max(world.fence, traces.fence, known.fence))


def _judge(journal: SqliteJournal, mark: Mark | None, traces: Traces, accept_loss: str | None) -> tuple[str, str]:
    """Why the ledger is not what it was, and that in words; ("", "") where it is. Raises LedgerShrank."""
    backup = journal.backup()
    if backup is not None:
        when = f" of {datetime.fromtimestamp(backup.at).astimezone():%Y-%m-%d %H:%M:%S}" if backup.at else ""
        return BACKUP, f"a backup was restored: it ends with event {backup.seq}{when}"
    ends = (journal.last_seq, journal.digest(journal.last_seq) or "")
    if mark is not None and mark.resumed is not None and (mark.seq, mark.digest) == ends:
        return mark.resumed  # the daemon that found it was killed before it had recorded anything
    missing = accept_loss or missing_in(journal, mark, traces)
    if missing and accept_loss is None:
        raise LedgerShrank(missing)
    return (LOSS, f"the ledger has lost events ({missing}), and goes on without them") if missing else ("", "")


def _raised(own: Ids, given: Ids, why: str, text: str, first_job: int) -> IdsRaised | None:
    """The event, where there is anything to say."""
    unknown = _unknown(own.job, given.job)
    job, detail = max(given.job, first_job), "; ".join(part for part in (text, unknown) if part)
    if why:
        return IdsRaised(why, job, given.pilot, given.notice, given.incarnation, given.beginning, detail)
    if given.job > own.job or given.pilot > own.pilot:
        return IdsRaised(FOLDERS, job, given.pilot, detail=detail)
    return IdsRaised(SITE, job, detail=f"the site's file has ids begin at {first_job}") if job > own.job else None


def _unknown(first: int, following: int) -> str:
    """What is said of ids from `first` to below `following`."""
    if following <= first:
        return ""
    last = following - 1
    if first == last:
        which = f"job {first} is not known to the ledger: its folders are kept, and its id is"
    else:
        which = f"jobs {first} to {last} are not known to the ledger: their folders are kept, and their ids are"
    return f"{which} not given again; the next job is {following}"
