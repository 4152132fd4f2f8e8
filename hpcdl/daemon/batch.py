"""The thread that talks with the batch system: polls it, submits pilots and cancels them.

The core decides, and has recorded it before anything is done here: a pilot without a batch id is submitted, one that is
cancelled is taken back. Nothing is concluded from an answer here either (`core/rules/batch_poll` does). A batch system
that is slow or dead holds up nobody but this thread.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.batch.adapter import BatchAdapter, PilotScript
from hpcdl.batch.command import Commands
from hpcdl.batch.system import BatchError
from hpcdl.core.controller.journal import JournalError
from hpcdl.core.fold.nodes import UNTIL_CHANGED_S
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, PendingBatchJob, Pilot, pilot_mark
from hpcdl.core.model.units import count, seconds_text
from hpcdl.core.model.world import Job, World
from hpcdl.core.rules.batch_poll import SAME_S, agreed, awaited_batch_jobs, doubted, strays
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.wire.private_files import NotPrivate, make_private_folder

log = logging.getLogger("hpcdl.daemon")

TRIES = 6
"""A submission that the batch system may take later is tried so often; each pause is twice the one before."""

PAUSE_MAX_S = 600.0

SUBMITS = 50
"""Pilots that are submitted in one interval, at most."""

AFTER_GRACE_S = 10.0
"""Past its grace a trainer is killed; so long its end takes to be known."""

ASKED_S = 120.0
"""Holes that somebody asked for are looked at for so long after that."""

CONFIRMED = 64
"""Batch jobs of which a second command is asked in one poll, at most; of the others nothing is known until the next."""

STRAYS_S = 86_400.0
"""So long after the end of the last pilot batch jobs are looked for that have its mark, where no more may be submitted.
"""

RECORDED_S = 60.0
"""What was seen or done is recorded within this time, or it is asked for again."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Settings of the thread. `interval_s`: between two polls at least. `pilots`: whether any may be submitted.

    `options`: what each submission carries; `notice_s`: see `PilotScript`. `own`: the batch job that the daemon runs
    in, "" outside of any.
    """

    home: Path
    instance: str
    interval_s: float
    pilots: bool = False
    options: tuple[str, ...] = ()
    notice_s: float = 60.0
    own: str = ""


@dataclass(slots=True)
class _Tried:
    """How often a pilot's submission was tried, and when it is again."""

    tries: int = 0
    at: float = 0.0
    error: str = ""


class BatchThread:
    """The thread that polls the batch system, from `start` to `stop`.

    Other threads call `changed`, `ask_holes`, `settled` and read the attributes.
    """

    def __init__(
        self,
        system: BatchAdapter,
        loop: ControllerLoop,
        settings: BatchSettings,
        *,
        commands: Commands | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`commands`: what the system runs its commands with; at a stop nobody waits for the one that runs then."""
        self.system = system
        self.kind = system.kind
        self.settings = settings
        self.polled_at: float | None = None
        """When the batch system answered last, by the daemon's clock."""
        self.holes_at: float | None = None
        """When its holes were asked for last."""
        self._troubles = Troubles(system.kind, loop)
        self._loop = loop
        self._commands = commands or Commands()
        self._monotonic = monotonic
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="batch system", daemon=True)
        begin = monotonic()
        self._poll_at = self._submit_at = begin
        self._holes_next = begin
        self._cancel_at = begin
        self._asked_until = -1.0
        self._away = False
        self._tried: dict[int, _Tried] = {}
        self._told: set[int] = set()
        self._leave_by: dict[int, float] = {}
        self._marked: tuple[BatchJob, ...] | None = None
        self._since: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        """What the last poll said of the ends of batch jobs."""
        self._turns = 0
        self._confirmed: dict[str, int] = {}

    # --- from other threads ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and the command that it waits for. Does not wait for it."""
        self._ended = True
        self._troubles.end()  # what fails because we end is no trouble
        self._wake.set()
        self._commands.end()

    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def troubles(self) -> Mapping[str, str]:
        """What of the batch system does not work now, by what it was asked for; another object when that changes."""
        return self._troubles.now

    def commands(self) -> int:
        """Commands of the batch system that were run so far."""
        return self._commands.count

    def changed(self, world: World) -> None:
        """Something was committed: maybe pilots are to be submitted or cancelled."""
        if world.pilots:
            self._wake.set()

    def ask_holes(self) -> None:
        """Somebody wants to know what idles: it is asked now, where that is not younger than the interval."""
        self._asked_until = self._monotonic() + ASKED_S
        self._wake.set()

    def settled(self, world: World) -> bool:
        """Whether every pilot that is not wanted was cancelled, or the batch system does not answer."""
        return self._away or all(pilot.over or pilot.id in self._told for pilot in world.pilots.values())

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                pause_s = self.turn()
            except Exception as error:  # a fault of ours must not end the thread, nor be tried without a pause
                log.exception("the batch system's thread failed")
                self._troubles.bad("thread", f"{type(error).__name__}: {error}"[:500])
                self._poll_at = self._submit_at = self._holes_next = self._monotonic() + self.settings.interval_s
                pause_s = self.settings.interval_s
            if self._wake.wait(pause_s):
                self._wake.clear()

    def turn(self) -> float:
        """Does what is due, each thing once; how long nothing will be, in seconds, unless something changes."""
        now = self._monotonic()
        self._marked = None  # of this turn only: after a submission, or an hour, there are others
        polls = now >= self._poll_at
        if polls:
            self._poll_at = now + self.settings.interval_s
            self._poll(now)
        elif self._wants_holes(now) and now >= self._holes_next:
            self._look_for_holes(now, (), self._loop.now())
        if not self._away:
            self._act(now)
        if polls:
            self._troubles.good("thread")  # a whole turn went well, not only one in which nothing was due
        return max(0.01, self._next(now) - self._monotonic())

    def _next(self, now: float) -> float:
        world = self._loop.world
        times = [self._poll_at]
        if self._wants_holes(now):
            times.append(self._holes_next)
        if not self._away:
            waiting = [self._tried[p.id].at if p.id in self._tried else now for p in self._requested(world)]
            if waiting:
                times.append(max(self._submit_at, min(waiting)))
            if _unwanted(world):
                times.append(max(self._cancel_at, min(self._leave_by.values(), default=0.0)))
        return min(times)

    def _wants_holes(self, now: float) -> bool:
        return self.settings.pilots or now < self._asked_until

    def _poll(self, now: float) -> None:
        """One poll of everything that matters: our pilots, and the allocations of our nodes."""
        world = self._loop.world
        ids = {pilot.batch_id for pilot in world.pilots.values() if pilot.batch_id and not pilot.over}
        ids |= {node.allocation for node in world.nodes.values() if node.allocation and not node.lost}
        ids |= awaited_batch_jobs(world, self.kind)
        jobs: tuple[BatchJob, ...] = ()
        asked_at = self._loop.now()
        if ids:
            try:
                jobs = self._steady(
                    world, self._confirm(world, tuple(self.system.poll(sorted(ids)).values()), asked_at)
                )
            except BatchError as error:
                self._away = error.away
                self._troubles.bad("poll", str(error))
                return
            self._troubles.good("poll")
        self._away = False
        since = asked_at - STRAYS_S
        recent = any(not each.over or each.since > since for each in world.pilots.values())
        forgotten = bool(world.unknown) and world.next_pilot > 1  # a ledger that was restored knows only how many
        if self.settings.pilots or recent or forgotten:
            self._look_for_strays()
        if self._wants_holes(now) and now >= self._holes_next:
            self._look_for_holes(now, jobs, asked_at)
        elif jobs:
            self._tell(cmd.BatchSeen(jobs, None, asked_at, self.settings.own, system=self.kind))

    def _confirm(self, world: World, jobs: tuple[BatchJob, ...], asked_at: float) -> tuple[BatchJob, ...]:
        """The poll, with what a second command says of those of which something would be concluded from it."""
        self._turns += 1
        doubts = doubted(world, jobs, asked_at, self.settings.own)
        oldest = sorted(doubts, key=lambda each: self._confirmed.get(each, 0))[:CONFIRMED]
        self._confirmed = {each: self._confirmed.get(each, 0) for each in doubts} | dict.fromkeys(oldest, self._turns)
        if not doubts:
            self._troubles.good("listing")
            return jobs
        second = self.system.confirm(oldest) if oldest else {}
        said: list[BatchJob] = []
        later = BatchState.UNKNOWN
        both = {
            job.id: agreed(job, second[job.id]) if job.id in second else BatchJob(job.id, later)
            for job in jobs
            if job.id in doubts
        }
        for job in jobs:  # what is listed by the second command alone is seen, where nothing is concluded from it
            other = second.get(job.id, job)
            if job.state is BatchState.MISSING and other.state in (BatchState.PENDING, BatchState.RUNNING):
                said.append(other)
        differ = [job.reason for job in both.values() if job.state is BatchState.UNKNOWN and job.reason]
        if differ:
            more = f" (and {count(len(differ) - 1, 'more')})" if len(differ) > 1 else ""
            self._troubles.bad("listing", f"its answers differ, so nothing is concluded from them: {differ[0]}{more}")
        else:
            self._troubles.good("listing")
        seen = {job.id: job for job in said if not doubted(world, (job,), asked_at, self.settings.own)}
        return tuple(seen.get(job.id) or both.get(job.id, job) for job in jobs)

    def _steady(self, world: World, jobs: Sequence[BatchJob]) -> tuple[BatchJob, ...]:
        """The poll, where another end of a walltime than the known one counts only once two in a row have told it."""
        known = {node.allocation: node.until for node in world.nodes.values() if node.allocation and not node.lost}
        known |= {each.batch_id: each.job.until for each in world.pilots.values() if each.job and not each.over}
        last, self._ends = self._ends, {job.id: job.until for job in jobs if job.until is not None}

        def is_news(job: BatchJob) -> bool:
            end, before = known.get(job.id), last.get(job.id)
            if job.until is None or end is None or abs(job.until - end) <= UNTIL_CHANGED_S:
                return False
            return before is None or abs(before - job.until) >= SAME_S

        return tuple(replace(job, until=known[job.id]) if is_news(job) else job for job in jobs)

    def _look_for_strays(self) -> None:
        """Batch jobs with our mark that live though their pilots are over go on, or are ended, never left."""
        try:
            listed = self._ours()
            again, unwanted = strays(self._loop.world, self.settings.instance, listed)
            ids = sorted({job.id for _, job in again} | {job.id for job in unwanted})[:CONFIRMED]
            second = self.system.confirm(ids) if ids else {}
        except BatchError as error:
            self._troubles.bad("marks", str(error))
            return
        self._troubles.good("marks")
        lives = {
            job.id
            for job in listed
            if job.id in second
            and second[job.id].mark == job.mark
            and agreed(job, second[job.id]).state is not BatchState.UNKNOWN
        }
        for number, job in again:
            if job.id in lives:
                self._tell(cmd.PilotBack(number, job))
        if ended := [job.id for job in unwanted if job.id in lives]:
            self._end(ended)

    def _ours(self) -> tuple[BatchJob, ...]:
        """All batch jobs with a mark of this daemon's; asked at most once a turn. Raises BatchError."""
        if self._marked is None:
            self._marked = self.system.marked(pilot_mark(self.settings.instance, 0).removesuffix("0"))
        return self._marked

    def _look_for_holes(self, now: float, jobs: tuple[BatchJob, ...], asked_at: float) -> None:
        self._holes_next = now + self.settings.interval_s
        own = {pilot.batch_id for pilot in self._loop.world.pilots.values() if pilot.batch_id and not pilot.over}
        holes: tuple[Hole, ...] | None = None
        waiting: tuple[PendingBatchJob, ...] | None = None
        try:
            holes = self.system.holes(self._loop.now(), own)
            if self.settings.pilots or own:
                waiting = self._first_seen(self.system.waiting(own))
        except BatchError as error:
            self._away = error.away
            self._troubles.bad("holes", str(error))
        else:
            self._away = False
            self._troubles.good("holes")
        if holes is None and not jobs:
            return
        looked_at = self._loop.now()
        recorded = self._tell(cmd.BatchSeen(jobs, holes, asked_at, self.settings.own, waiting, self.kind))
        if recorded and holes is not None:
            self.holes_at = looked_at

    def _first_seen(self, waiting: Sequence[PendingBatchJob]) -> tuple[PendingBatchJob, ...]:
        """Each with the time at which it was seen first."""
        now = self._loop.now()
        self._since = {job.id: self._since.get(job.id, now) for job in waiting}
        return tuple(replace(job, since=self._since[job.id]) for job in waiting)

    def _tell(self, command: cmd.Command) -> bool:
        """Has it recorded. False where that failed: then it is seen, or looked for, again."""
        if self._ended:
            return False
        try:
            self._loop.send(command).result(RECORDED_S)
        except (cmd.CommandRefused, JournalError, TimeoutError) as error:
            log.warning("%s was not recorded: %s", type(command).__name__, error)
            return False
        if isinstance(command, cmd.BatchSeen):
            self.polled_at = self._loop.now()
        return True

    # --- pilots ------------------------------------------------------------------------------------------------------

    def _requested(self, world: World) -> list[Pilot]:
        """Those that the batch system has not taken yet, as far as we know."""
        living = [pilot for pilot in world.pilots.values() if not pilot.over and not pilot.batch_id]
        # While everything is suspended nothing is begun; what is cancelled then is still looked for.
        return [pilot for pilot in living if pilot.cancelled or not world.stopping]

    def _act(self, now: float) -> None:
        world = self._loop.world
        requested = [p for p in self._requested(world) if p.id not in self._tried or now >= self._tried[p.id].at]
        if requested and (now >= self._submit_at or world.stopping):
            self._submit_at = now + self.settings.interval_s
            self._take_up(requested, now)
        self._cancel(now)

    def _take_up(self, requested: Sequence[Pilot], now: float) -> None:
        """Submits what is not there yet: an earlier daemon, or an answer that was lost, may have submitted it."""
        instance = self.settings.instance
        try:
            ours = self._ours()
        except BatchError as error:
            self._troubles.bad("submit", str(error))
            for pilot in requested:
                self._again(pilot, error, now)
            return
        if strays(self._loop.world, instance, ours)[0]:
            return  # one that was taken to be over was requeued: the next poll has it go on, and then counts anew
        lives = sorted(ours, key=lambda job: (job.state is not BatchState.ENDED, len(job.id), job.id))
        there = {job.mark: job for job in lives}  # of two with one mark that which lives, else the later one
        submitted = 0
        for pilot in requested:
            job_there = there.get(pilot_mark(instance, pilot.id))
            if job_there is not None:
                self._taken(pilot, job_there.id)
            elif pilot.cancelled:
                tried = self._tried.pop(pilot.id, None)
                why = f" (tried {count(tried.tries, 'time')}: {tried.error})" if tried is not None else ""
                self._tell(cmd.PilotNotTaken(pilot.id, f"not submitted: {pilot.cancelled}{why}"))
            elif submitted == SUBMITS or not self._submit(pilot, now):
                return  # the others in a while: a batch system that refuses one is not asked many times over
            else:
                submitted += 1

    def _submit(self, pilot: Pilot, now: float) -> bool:
        try:
            batch_id = self.system.submit(pilot.spec, self._script(pilot))
        except BatchError as error:
            self._troubles.bad("submit", str(error))
            if error.again:
                self._again(pilot, error, now)
            else:
                self._tell(cmd.PilotNotTaken(pilot.id, str(error)))
            return False
        except (OSError, NotPrivate) as error:  # the folder of its output
            self._troubles.bad("submit", str(error))
            self._again(pilot, BatchError(str(error)), now)
            return False
        self._troubles.good("submit")
        self._taken(pilot, batch_id)
        return True

    def _script(self, pilot: Pilot) -> PilotScript:
        settings = self.settings
        folder = settings.home / "logs" / "pilots"
        make_private_folder(folder)
        return PilotScript(
            (sys.executable, "-P", "-m", "hpcdl", "--home", str(settings.home), "pilot"),
            pilot_mark(settings.instance, pilot.id),
            f"hpcdl-p{pilot.id}",
            str(folder / f"p{pilot.id}.log"),
            settings.options,
            settings.notice_s,
        )

    def _taken(self, pilot: Pilot, batch_id: str) -> None:
        if self._tell(cmd.PilotTaken(pilot.id, batch_id)):
            self._tried.pop(pilot.id, None)

    def _again(self, pilot: Pilot, error: BatchError, now: float) -> None:
        """A pause, twice the one before; after the last try it is refused."""
        tried = self._tried.setdefault(pilot.id, _Tried())
        tried.tries += 1
        tried.error = str(error)
        tried.at = now + min(PAUSE_MAX_S, self.settings.interval_s * 2.0**tried.tries)
        if tried.tries >= TRIES and self._tell(cmd.PilotNotTaken(pilot.id, f"tried {tried.tries} times: {error}")):
            self._tried.pop(pilot.id)

    def _cancel(self, now: float) -> None:
        """Ends those that are not wanted: a new one at once, and all of them at each interval until they are gone.

        What trains on its nodes leaves them before that, or saves, as far as its grace allows: how much of one the
        batch system gives is its own business, and may be nothing.
        """
        world = self._loop.world
        unwanted = _unwanted(world)
        self._told.intersection_update(pilot.id for pilot in unwanted)
        self._leave_by = {pilot.id: self._leave_by[pilot.id] for pilot in unwanted if pilot.id in self._leave_by}
        unwanted = [pilot for pilot in unwanted if pilot.id in self._told or self._is_left(world, pilot, now)]
        new = any(pilot.id not in self._told for pilot in unwanted)
        if not unwanted or (now < self._cancel_at and not (new and "cancel" not in self._troubles.now)):
            return
        self._cancel_at = now + self.settings.interval_s
        if self._end([pilot.batch_id for pilot in unwanted]):
            self._told.update(pilot.id for pilot in unwanted)

    def _is_left(self, world: World, pilot: Pilot, now: float) -> bool:
        """Whether nothing trains on the pilot's nodes any more, or it has had its time to leave them."""
        nodes = [node for node in world.nodes.values() if node.allocation == pilot.batch_id and not node.lost]
        there = frozenset(node.name for node in nodes if node.connected)
        graces = [world.jobs[number].spec.grace_s for number in world.live if _trains_on(world.jobs[number], there)]
        if not graces:
            return True
        end = self._leave_by.setdefault(pilot.id, now + max(graces) + AFTER_GRACE_S)
        for node in nodes:
            if node.connected and not node.leaving:
                self._tell(
                    cmd.Drain(node.name, node.until, True, f"pilot p{pilot.id} is given back: {pilot.cancelled}")
                )
        return now >= end

    def _end(self, batch_ids: Sequence[str]) -> bool:
        try:
            self.system.cancel(batch_ids)
        except BatchError as error:
            self._troubles.bad("cancel", str(error))
            return False
        self._troubles.good("cancel")
        return True


def _trains_on(job: Job, nodes: Set[str]) -> bool:
    return any(part.node in nodes and not part.gone for incarnation in job.live for part in incarnation.parts)


def _unwanted(world: World) -> list[Pilot]:
    return [pilot for pilot in world.pilots.values() if pilot.cancelled and pilot.batch_id and not pilot.over]


class Troubles:
    """What of a batch system does not work now; recorded when it begins and when it is over.

    For one thread; others read `now` and may call `end`.
    """

    def __init__(self, kind: str, loop: ControllerLoop) -> None:
        """`kind`: of the batch system, for people. `loop`: has them recorded."""
        self.now: Mapping[str, str] = {}
        """The newest detail of each, by what was asked for; replaced as a whole."""
        self._kind = kind
        self._loop = loop
        self._since: dict[str, float] = {}
        self._ended = False

    def end(self) -> None:
        """From here on nothing is a trouble."""
        self._ended = True

    def bad(self, what: str, detail: str) -> None:
        """It does not work: recorded once, until it works again; another detail is only logged."""
        if self._ended:
            return
        if self.now.get(what) != detail:
            log.warning("%s (%s): %s", self._kind, what, detail)
        if what not in self.now:
            self._since[what] = self._loop.now()
            self._loop.send(cmd.Trouble(f"{self._kind}: {what}", detail))
        self.now = {**self.now, what: detail}

    def good(self, what: str) -> None:
        """It works."""
        if what in self.now:
            self.now = {key: text for key, text in self.now.items() if key != what}
            lasted = seconds_text(self._loop.now() - self._since.pop(what))
            self._loop.send(cmd.Trouble(f"{self._kind}: {what}", f"works again, after {lasted}"))
