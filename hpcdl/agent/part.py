"""This node's part of one attempt (incarnation), from the request to start it until its GPUs were seen free.

The supervisor knows what happens to the trainer; `AgentPart` follows it through whatever happens to the supervisor or
to the agent, and reports. It never concludes from silence that a trainer has ended: only from a record, or from a lock
that nobody holds. Its GPUs are in grant.py, its run folder in run_folder.py, its first request in start_request.py,
the connection in supervisor_link.py.
"""

import asyncio
import logging
import math
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from msgspec import structs

from hpcdl.agent import run_folder
from hpcdl.agent.context import AgentContext, Stage
from hpcdl.agent.emulation import IDLE, Load, TrainingShare, resident_mib
from hpcdl.agent.gpus import Side
from hpcdl.agent.grant import Grant
from hpcdl.agent.orphans import Remains
from hpcdl.agent.rendezvous import Port, check_meeting_point
from hpcdl.agent.report_log import Key, boottime
from hpcdl.agent.shell import ShellTarget, place
from hpcdl.agent.start_request import StartRefusal, indices_of, make_start, resume_variable
from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.node_faults import MOUNT
from hpcdl.agent.supervisor.packets import RescalePacket
from hpcdl.agent.supervisor.start_file import IN_PROCESS, RESCALES, TORCHRUN
from hpcdl.agent.supervisor.watchdog import Watchdog, clock
from hpcdl.agent.supervisor_link import LatestProgress, Names, SupervisorLink, event_of, exit_of
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.wire.messages import PIDS_MOST, DrillMessage, RequestMessage, TrainerLine
from hpcdl.wire.private_files import NotPrivate

log = logging.getLogger("hpcdl.agent")

HUNG_AFTER_S = 60.0
"""Beyond the grace: a supervisor that has not ended its trainer by then is ended itself."""

KILL_S = 3.0
"""For what is killed on a node that is not ours any more to be gone."""

UNOPENED_GRACE_S = 5.0
"""For a trainer whose gate cannot be opened."""

STALE_GRACE_S = 10.0
"""For a trainer that the daemon does not expect."""

FIRST_REPORTS_S = 0.5
"""Between the first reports of progress; later half of the time since the first one, up to the agent's interval."""


class ReportPace:
    """When a trainer's next report of progress is due: soon at first, and again on other nodes; a trainer that warms up
    gets faster then, and how fast it is there is soon known."""

    def __init__(self) -> None:
        self._at, self._from = -math.inf, math.inf

    def due(self, now: float, interval_s: float) -> bool:
        """Whether it is; interval_s: between two reports at most."""
        return now - self._at >= min(interval_s, max(FIRST_REPORTS_S, (self._at - self._from) / 2))

    def reported(self, now: float) -> None:
        """There was one."""
        self._at, self._from = now, min(self._from, now)

    def begins(self) -> None:
        """It trains on other nodes from now on."""
        self._from = math.inf


_GOES = {"suspend": "is being suspended", "leave": "leaves this node", "end": "is being ended"}


def _log_of(order: RequestMessage | None, found: run_folder.ExistingRun | None) -> str:
    if order is not None and order.log:
        return order.log
    return found.start.log if found is not None and found.start is not None else ""


class SupervisorRequests:
    """The requests to a supervisor, in order. A new connection to it gets all of it again, which does no harm.

    A request with a grace period is overdue `HUNG_AFTER_S` after the end of that; then `overdue` is called.
    """

    def __init__(self, overdue: Callable[[], Awaitable[None]]) -> None:
        self._overdue = overdue
        self._sent: list[tuple[str, dict[str, object]]] = []
        self._news = asyncio.Event()
        self._due: float | None = None  # by `boottime`; None: nothing that was asked has an end

    def add(self, kind: str, grace_s: float | None, **body: object) -> None:
        """Asks for `kind` within `grace_s` seconds; None: it may take as long as it takes."""
        if grace_s is not None:
            body["grace_s"] = grace_s
            due = boottime() + grace_s + HUNG_AFTER_S
            self._due = due if self._due is None else min(due, self._due)
        self._sent.append((kind, body))
        self._news.set()

    @property
    def ending(self) -> str:
        """What was asked first that ends the part, or ""."""
        return next((kind for kind, _ in self._sent if kind in _GOES), "")

    async def more(self) -> None:
        """Returns once there is another request."""
        self._news.clear()
        await self._news.wait()

    async def end_if_overdue(self) -> None:
        """Calls `overdue` where a request is; again, if that did not help, after as long."""
        if self._due is not None and boottime() >= self._due:
            self._due = boottime() + HUNG_AFTER_S
            await self._overdue()

    async def send(self, link: SupervisorLink) -> None:
        """Sends all requests, and those that come later, until the connection breaks (OSError)."""
        number = 0
        while True:
            while number < len(self._sent):
                kind, body = self._sent[number]
                await link.send(kind, **body)
                number += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.more(), None if self._due is None else max(0.1, self._due - boottime()))
            await self.end_if_overdue()


class TrainerActivity:
    """Whether a trainer moves and what it uses: for heartbeats, for stalls, and for what emulated GPUs show.

    `pids`: all its processes at the last look, PIDS_MOST of them.
    """

    def __init__(self, log_file: str) -> None:
        """`log_file`: the trainer's output, whose growth is a sign of life; "" where it is not known."""
        self._watchdog = Watchdog(log_file, clock())
        self._training = TrainingShare(clock())
        self.resident_mib: int | None = None
        """Memory of all its processes at the last look."""
        self._emulated = False
        self.pids: tuple[int, ...] = ()

    def look(self, supervisor: dict[str, Any], remains: Remains, *, emulated: bool) -> None:
        """Looks at all processes below a supervisor; may take milliseconds, in any thread."""
        self._watchdog.look(int(supervisor["pid"]), clock())
        self.pids = remains.remember(supervisor)[:PIDS_MOST]
        self.resident_mib, self._emulated = resident_mib(self.pids), emulated

    def stepped(self, step: int | None, *, leads: bool) -> None:
        """The trainer has made a step. Of several nodes, the first one's steps count for stalls."""
        self._training.stepped(step, clock())
        if leads:
            self._watchdog.stepped(step, clock())

    def reported(self, event: ev.Report | None, *, leads: bool) -> None:
        """The supervisor has recorded something, `event` where it is one that is reported."""
        match event:
            case ev.TrainerReady() | ev.Reformed():
                self._training.began(event.step, clock())
            case ev.Saved():
                self._training.saved(event.seconds, event.final, clock())
            case ev.AtGate() | ev.Broken():
                self._training.paused()
        if isinstance(event, ev.Started):
            self._watchdog.began(clock())
            return
        self._watchdog.moved(clock())
        if isinstance(event, ev.TrainerReady | ev.Reformed) and leads:
            self._watchdog.stepped(event.step, clock())

    def stood(self) -> None:
        """This agent was stopped for a while: what it would have seen is not known."""
        self._watchdog.stood(clock())

    def held(self) -> None:
        """It is kept from making steps, and not by itself."""
        self._watchdog.moved(clock())

    def measured(self) -> tuple[float | None, float | None, float]:
        """Seconds since its last step, since its last sign of life, since its start (see `Watchdog.measured`)."""
        return self._watchdog.measured(clock())

    @property
    def cpu(self) -> float | None:
        """What it used of the processors between the last two looks, in % of one."""
        return None if self._watchdog.cores is None else round(100 * self._watchdog.cores, 1)

    def load(self, gpus: int) -> Load:
        """The load of each of its GPUs, so many of them."""
        trains, cores, number = self._training.look(clock()), self._watchdog.cores, max(1, gpus)
        memory = self.resident_mib // number if self._emulated and self.resident_mib is not None else None
        return Load(trains, None if cores is None else cores / number, memory)


class AgentPart:
    """This node's part of one attempt, in one run folder. `run` must be running; everything belongs to the event loop's
    thread.

    `stage`: how far it is. `stale`: the daemon does not expect it. `damage`: what is wrong with its run folder, ""
    where nothing is.
    """

    def __init__(
        self, site: AgentContext, key: Key, order: RequestMessage | None, found: run_folder.ExistingRun | None
    ) -> None:
        """Either an order to start, or a run folder that an earlier agent made (then `order` may be known as well)."""
        self._site = site
        self.key = key
        self.tag = site.tag(key)
        self.folder = run_folder.folder_of(site.run, key)
        self._order = order
        membership = order.request.membership if order is not None else 1
        self._grace_s = order.spec.grace_s if order is not None and order.spec is not None else 30.0
        self._same_boot = True
        self.damage = "" if found is None else found.damage
        start_tag, started = site.start_tag(key), None if found is None else found.start
        mark = processes.mark_of(start_tag) if started is None else started.mark
        self._remains = Remains(self.folder, start_tag, mark, site.orphans)
        spec = None if order is None else order.spec
        self.share = None if spec is None else spec.share  # what its job agreed to on its GPUs
        self._grant = Grant(site, key, self._remains, self.share, None if spec is None else spec.gpu_memory_mib)
        self._rescales = Rescales(site.node) if spec is None else Rescales(site.node, spec.rescale)
        self.stage = Stage.ORDERED if found is None else Stage.FOLLOWED
        if found is not None:
            # What a damaged folder does not say is as it was ordered; a supervisor that lives is of this boot.
            self._same_boot = found.boot == site.reports.boot or (
                not found.boot and not run_folder.is_free(found.folder)
            )
            if found.start is None:
                self._grant.recover(order)
            else:
                membership, self._grace_s = found.start.membership, found.start.grace_s
                self._rescales.kind = found.start.rescale
                self._grant.found(
                    dict(found.start.gpu_env or {}), () if order is None else indices_of(order, site.node)
                )
        self._reported_membership = membership
        self.stale = False
        self._progress = LatestProgress()
        self._pace = ReportPace()
        self._activity = TrainerActivity(_log_of(order, found))
        self._verdict: tuple[Cause, str] | None = None
        self._supervisor: dict[str, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._trainer_pid = 0
        self._suspending = self._gate = self._opened = self._going = False
        self._supervisor_requests = SupervisorRequests(self._end_supervisor)
        self._messages: asyncio.Queue[RequestMessage] = asyncio.Queue()

    @property
    def names(self) -> Names:
        """The fields with which each of its reports begins."""
        job, incarnation = self.key
        return Names(job=job, incarnation=incarnation, membership=self._reported_membership, node=self._site.node)

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that it holds."""
        return self._grant.gpus

    @property
    def side(self) -> Side:
        """How it has them: alone, as a foreground that shares them, or as a background."""
        return self._grant.side

    @property
    def _leads(self) -> bool:
        # Of several nodes the first has the writer, or one rank of whose progress stands for all, and speaks of steps.
        return self._rescales.leads if self._rescales.elastic else self._grant.first

    def obey(self, message: RequestMessage) -> None:
        """Carries out any request but a start, once, in the order in which they come."""
        if message.request.kind in ("rescale", "leave"):
            try:
                if not self._rescales.take(message):
                    return
            except ValueError as error:
                log.error("%s: a membership that makes no sense: %s", self, error)
                return
            self._follows(message.request.membership if message.request.kind == "rescale" else 0)
        if message.request.kind == "role":
            self._grant.promote()
            return
        self._messages.put_nowait(message)

    def _follows(self, membership: int) -> None:
        """What is reported from here on is of this membership, if it is newer."""
        self._reported_membership = max(membership, self._reported_membership)

    def adopt_grant(self, message: RequestMessage) -> None:
        """An open that an earlier agent took: these GPUs are its own, whether the gate was opened yet or not."""
        with suppress(StartRefusal):  # its node may have lost some meanwhile
            self._grant.take(message)
            self._grant.claim()

    def suspend(self) -> None:
        """The agent's own wish: its lease has run out."""
        if not self._suspending:
            self._ask("suspend", self._grace_s, by="agent")

    def go(self, grace_s: float) -> None:
        """The node goes in so many seconds: whatever is to end this part does it by then, a suspend if nothing is."""
        if self._going:
            return
        self._going = True
        kind, grace_s = self.ending or "suspend", min(self._grace_s, grace_s)
        if kind == "suspend":
            self._ask(kind, grace_s, by="agent")
        else:
            self._ask(kind, grace_s)

    def drill(self, message: DrillMessage) -> None:
        """Its trainer is to be killed on purpose; once, though the supervisor may hear of it again."""
        if self.stage is Stage.FOLLOWED:
            body = {"saving": message.saving, "after_s": message.after_s, "within_s": message.within_s}
            self._ask("drill", None, id=message.id, **body)

    async def beside(self, terminal: bool) -> ShellTarget | str:
        """Where a command beside its trainer runs, or why none can; that one is to run is reported."""
        if self.stage is not Stage.FOLLOWED or self.ending or self._suspending or not self._trainer_pid:
            return f"{self} has not started here yet, or is on its way out"
        try:
            where = await asyncio.to_thread(place, self.folder, self.tag, self._grant.shown)
        except (OSError, ValueError) as error:
            return f"{self}: {error}"
        if self._is_over() or self.ending:
            return f"{self} is on its way out"
        text = "a shell was opened beside it" if terminal else "a command was run beside it"
        self._site.reports.report(ev.Noted(**self.names, text=text))
        return where

    async def kill(self) -> None:
        """Nothing of it may stay on a node that is not ours: its supervisor, with which its trainer goes."""
        await asyncio.to_thread(self._remains.end_supervisor, self._supervisor)
        await asyncio.to_thread(self._remains.end_within, KILL_S)

    def end_stale(self) -> None:
        """The daemon does not expect it: it ends, nothing more is reported of it, and its GPUs are dirty meanwhile."""
        if not self.stale:
            self.stale = True
            log.warning("%s is not expected any more, and is ended", self)
            self._site.gpus.stick(self.key, self.gpus, f"still held by {self}, which is stale")
            self._ask("end", STALE_GRACE_S)

    def __str__(self) -> str:
        return f"job {self.key[0]}.{self.key[1]}"

    def _ask(self, kind: str, grace_s: float | None, **body: object) -> None:
        self._supervisor_requests.add(kind, grace_s, **body)
        if kind in _GOES:
            self._site.shells.end(self.key, f"{self} {_GOES[kind]}")

    async def _obey_all(self) -> None:
        while True:
            message = await self._messages.get()
            request = message.request
            try:
                if request.kind == "open":
                    await self._open(message)
                elif request.kind == "rescale" and self._rescales.newest is not None:
                    self._ask("rescale", None, **asdict(self._rescales.newest))
                elif request.kind == "leave":
                    self._ask("leave", request.grace_s)
                elif request.kind == "suspend" and not self._suspending:
                    self._ask("suspend", request.grace_s, by="daemon")
                elif request.kind == "end":
                    self._ask("end", request.grace_s)
            except Exception as error:  # a request that cannot be carried out must not stop the ones behind it
                log.exception("%s of %s failed", request.kind, self)
                self._give_up(f"{request.kind} failed: {error}")

    @property
    def _cpus(self) -> int | None:
        """How many processors its job asked for; None: as many as come with its GPUs, also where nothing is known."""
        return None if self._order is None or self._order.spec is None else self._order.spec.cpus

    async def _open(self, message: RequestMessage) -> None:
        if self._opened or self.stage is Stage.EXITED or self.stage is Stage.FREED:
            return
        try:
            nodes = self._grant.take(message)
            await self._grant.hold()
            gpu_env = self._grant.environment(nodes, self._cpus) | resume_variable(message)
            self._ask("open", None, gpu_env=gpu_env)
        except StartRefusal as refusal:
            self._give_up(str(refusal))

    def _give_up(self, why: str) -> None:
        self._verdict = (Cause.INFRASTRUCTURE, why)
        self._ask("end", UNOPENED_GRACE_S)

    @property
    def ending(self) -> str:
        """What it was asked first that ends it, or ""."""
        return self._supervisor_requests.ending

    def _is_over(self) -> bool:
        return self.stage is not Stage.FOLLOWED

    async def _end_supervisor(self) -> None:
        """Ends a supervisor that has not done in time what it was asked to, also one that never said who it is."""
        log.error("the supervisor of %s hangs, and is killed", self)
        self._verdict = (Cause.INFRASTRUCTURE, "its supervisor hung, and was ended")
        await asyncio.to_thread(self._remains.end_supervisor, self._supervisor)

    # --- what is seen of it ----------------------------------------------------------------------------------------

    @property
    def line(self) -> TrainerLine | None:
        """The trainer for the heartbeat, while it lives."""
        if self.stage is not Stage.FOLLOWED or not self._trainer_pid:
            return None
        job, incarnation = self.key
        step_s, idle_s, started_s = self._activity.measured()
        return TrainerLine(
            self._trainer_pid,
            job,
            incarnation,
            self._supervisor_pid,
            step_s,
            idle_s,
            started_s,
            self._activity.pids,
            self._activity.cpu,
            self._activity.resident_mib,
        )

    @property
    def _supervisor_pid(self) -> int:
        return int((self._supervisor or {}).get("pid") or 0)

    def look(self) -> None:
        """Looks whether it does anything; may take milliseconds, in any thread."""
        if self.stage is Stage.FOLLOWED and self._supervisor is not None and self._supervisor_pid:
            self._activity.look(self._supervisor, self._remains, emulated=self._site.gpus.emulated)

    @property
    def load(self) -> Load:
        """What emulated GPUs show of it."""
        load = self._activity.load(len(self.gpus))
        return load if self.stage is Stage.FOLLOWED else IDLE

    def stood(self) -> None:
        """This agent was stopped for a while: what it would have seen is not known."""
        self._activity.stood()

    @property
    def step(self) -> int | None:
        """The newest that its trainer has reported."""
        return self._progress.step

    def held(self) -> None:
        """Its step gate is closed: that it makes no step is no stall."""
        self._activity.held()

    def report_throttle(self, foreground: int, duty: float, limit: float, slowdown: float | None) -> None:
        """Its step gate lets it run for another share of its time."""
        if not self.stale:
            duty = round(duty, 3)
            slowdown = None if slowdown is None else round(slowdown, 4)
            event = ev.Throttled(**self.names, foreground=foreground, duty=duty, limit=limit, slowdown=slowdown)
            self._site.reports.report(event)

    def report_progress(self) -> None:
        """Reports new progress if a daemon is there and a report is due."""
        now = boottime()
        if not self._site.connected or self.stale or not self._leads or not self._pace.due(now, self._site.interval_s):
            return
        event = self._progress.report(self.names)
        if event is not None:
            self._pace.reported(now)
            self._site.reports.report(event)

    # --- its life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns once nothing is left of it. An error of ours is logged, and it goes on from where it stood."""
        obeying = asyncio.create_task(self._obey_all())
        try:
            while self.stage is not Stage.FREED:
                try:
                    await self._advance()
                except Exception:
                    log.exception("%s: following it failed, trying again", self)
                    await asyncio.sleep(1.0)
        finally:
            obeying.cancel()

    async def _advance(self) -> None:
        if self.stage is Stage.ORDERED:
            await self._begin()
        elif self.stage is Stage.FOLLOWED:
            await self._follow()
        else:
            await self._until_free()

    async def _begin(self) -> None:
        if self._order is None:
            raise ValueError(f"{self} has neither an order nor a run folder")
        site = self._site
        try:
            if self._order.request.placement is None:
                gpu_env = None
                self._grant.first = self._order.request.nodes[:1] in ((), (site.node,))
            else:
                nodes = self._grant.take(self._order)
                await self._grant.hold()
                gpu_env = self._grant.environment(nodes, self._cpus) | resume_variable(self._order)
            formed = None
            if self._rescales.kind == TORCHRUN:
                formed = await self._membership()
                if formed is None:
                    return
            check_meeting_point(site, self._order)
            what = make_start(site, self._order, gpu_env, formed)
            launch = self._site.orphans.start
            self._process = await asyncio.to_thread(run_folder.begin, self.folder, what, self._site.stderr, launch)
        except FileExistsError:
            log.info("%s was started before", self)
        except (StartRefusal, OSError, NotPrivate, subprocess.SubprocessError) as error:
            log.warning("%s cannot be started: %s", self, error)
            spec = self._order.spec
            named = spec is not None and spec.checkpoint_dir is not None
            self._report_exit(_not_started(error, self.names, named=named))
            return
        self.stage = Stage.FOLLOWED

    async def _membership(self) -> RescalePacket | None:
        """The membership into which torchrun is to start the ranks, once there is one; until then nothing is started.

        None: it was asked to go before, and that is reported.
        """
        if self._undecided():
            port = Port(self._site.address)
            try:
                self._site.reports.report(ev.AtGate(**self.names, address=port.address), self.key)
                while self._undecided():
                    await self._supervisor_requests.more()
            finally:
                port.release()
        if self.ending:
            self._report_exit(ev.Exited(**self.names, code=0, ended_by=self.ending))
            return None
        return self._rescales.newest

    def _undecided(self) -> bool:
        return self._rescales.newest is None and not self.ending

    async def _follow(self) -> None:
        """Until the exit is known: from the supervisor, from its records, or because it was lost."""
        for record in await asyncio.to_thread(run_folder.read_records, self.folder):
            self._absorb(record)
        pause = 0.01
        while self.stage is Stage.FOLLOWED:
            try:
                link = SupervisorLink(self.folder)
            except OSError:
                link = None
            if link is not None:
                pause = 0.01
                await self._converse(link)
            if self._is_over():
                break
            if await asyncio.to_thread(run_folder.is_free, self.folder):
                await self._without_supervisor()
                continue
            await self._supervisor_requests.end_if_overdue()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        self._reap()

    def _reap(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # It has written its last record, and goes in a moment.
            asyncio.get_running_loop().call_later(5.0, self._process.poll)

    async def _converse(self, link: SupervisorLink) -> None:
        sending = asyncio.create_task(self._pass_on(link))
        try:
            async for packet in link.packets():
                await self._handle(packet)
                if self.stage is not Stage.FOLLOWED:
                    return
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            link.close()

    async def _pass_on(self, link: SupervisorLink) -> None:
        """Sends the supervisor its requests; all of them again on a new connection, which does no harm."""
        try:
            await link.send("agent", after=self._site.reports.unreported(self.key).record)
            await self._supervisor_requests.send(link)
        except OSError:
            pass  # it is gone, as the reading side finds out

    # --- what the supervisor says ----------------------------------------------------------------------------------

    async def _handle(self, packet: dict[str, Any]) -> None:
        try:
            if packet["type"] == "progress":
                self._progress.take(packet)
                self._activity.stepped(self._progress.step, leads=self._leads)
                if self._leads and not self.stale:
                    self._site.metrics.take(self.key, packet.get("newest"), self._site.interval_s)
                self.report_progress()
            elif run_folder.is_record(packet):
                self._absorb(packet)
                await self._record(packet)
        except ValueError as error:
            log.warning("%s: its supervisor sent what is not understood: %s", self, error)

    def _absorb(self, record: dict[str, Any]) -> None:
        """What a record says about how things stand; again and again without harm."""
        match record["type"]:
            case "supervisor" if isinstance(record.get("pid"), int):
                self._supervisor = record
            case "started" if isinstance(record.get("pid"), int):
                self._trainer_pid = record["pid"]
                self._site.changed.set()
            case "gate":
                self._gate = True
            case "opened":
                self._opened = True
            case "suspending":
                self._suspending = True
            case "rescaling" if isinstance(record.get("membership"), int):
                self._follows(record["membership"])

    async def _record(self, record: dict[str, Any]) -> None:
        """Reports a record that was not reported yet."""
        number, reports = record["n"], self._site.reports
        if number <= reports.unreported(self.key).record:
            if record["type"] == "exit":
                self.stage = Stage.EXITED
            return
        at = record.get("boot") if self._same_boot else -1.0
        at = float(at) if isinstance(at, int | float) else -1.0
        if record["type"] in ("exit", "saved") and self._leads and not self.stale:
            event = self._progress.report(self.names)
            if event is not None:
                reports.report(event, at=at)
        if record["type"] == "exit":
            if (record.get("code") or record.get("signal")) and self._verdict is None and not self.stale:
                if lost := await self._site.gpus.lost(self.gpus):
                    self._verdict = (Cause.INFRASTRUCTURE, lost)
                elif self._site.goes and record.get("ended_by") is None and record.get("oom") is not True:
                    # The batch system's signals come to trainers too: what does not know them ends by one, unasked.
                    self._verdict = (Cause.PREEMPTED, f"its node is wanted back: {self._site.goes}")
            self._report_exit(self._exit(record), number, at)
            return
        try:
            news = event_of(record, self.names)
        except (ValueError, TypeError, ArithmeticError) as error:
            log.warning("%s: record %d is not understood: %s", self, number, error)
            news = None
        if isinstance(news, ev.Saved | ev.TrainerReady):
            self._progress.reached(news.step)
        if isinstance(news, ev.Reformed):
            self._pace.begins()
        self._activity.reported(news, leads=self._leads)
        if news is None or self.stale or (isinstance(news, ev.TrainerReady | ev.ModelReported) and not self._leads):
            reports.passed(self.key, number)
        else:
            reports.report(news, self.key, number, at)

    def _exit(self, record: dict[str, Any]) -> ev.Exited:
        try:
            event = exit_of(record, self.names, self._verdict, self._gate and not self._opened)
            return event if self._leads else structs.replace(event, step=None)
        except (ValueError, TypeError, ArithmeticError) as error:
            detail = f"its exit record is damaged: {error}"
            return ev.Exited(**self.names, hint=Cause.INFRASTRUCTURE, detail=detail)

    def _report_exit(self, event: ev.Exited, record: int = 0, at: float | None = None) -> None:
        if not self.stale and not self._site.reports.unreported(self.key).exited:
            self._site.reports.report(event, self.key, record, at)
        self.stage = Stage.EXITED
        self._site.changed.set()
        self._site.shells.end(self.key, f"{self} has ended")

    async def _without_supervisor(self) -> None:
        """Nobody holds the lock: what the records say is all that there is."""
        for record in await asyncio.to_thread(run_folder.read_records, self.folder):
            self._absorb(record)
            await self._record(record)
        if self._is_over():
            return
        log.warning("the supervisor of %s was lost", self)
        pause = 0.02
        while await asyncio.to_thread(self._remains.end):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        why = "its supervisor was lost" if self._same_boot else "its node was started again"
        if self.damage:
            why = f"its run folder is damaged: {self.damage}"[:500]
        cause, detail = self._verdict or (Cause.INFRASTRUCTURE, why)
        self._report_exit(ev.Exited(**self.names, hint=cause, detail=detail))

    # --- after it --------------------------------------------------------------------------------------------------

    async def _until_free(self) -> None:
        self._site.shells.end(self.key, f"{self} has ended")
        await self._site.shells.gone(self.key)  # they may use the GPUs, too
        await self._grant.until_free(str(self), lambda: self.stale)
        marks = self._site.reports.unreported(self.key)
        if not self.stale and not marks.freed:
            self._site.reports.report(ev.GpusFreed(**self.names), self.key, marks.record)
        self.stage = Stage.FREED


def membership_of(message: RequestMessage) -> RescalePacket:
    """The membership that a request to rescale asks for: a rank for each GPU. Raises ValueError."""
    request = message.request
    gpus = {} if request.placement is None else {share.node: len(share.gpus) for share in request.placement.shares}
    ranks = tuple(gpus.get(node, 1) for node in request.nodes)
    return RescalePacket(request.membership, request.nodes, ranks, request.address)


class Rescales:
    """The memberships that a part was asked to form: only the newest counts, in whatever order and how often they come.

    `kind`: one of RESCALES. `newest`: None before the first. `left`: it was asked to go while the others stay.
    """

    def __init__(self, node: str, kind: str = RESCALES[0]) -> None:
        self._node = node
        self.kind = kind
        self.newest: RescalePacket | None = None
        self.left = False

    def take(self, message: RequestMessage) -> bool:
        """A request to rescale or to leave; whether it is news."""
        if message.request.kind == "leave":
            news, self.left = not self.left, True
            return news
        asked = membership_of(message)
        if self.left or (self.newest is not None and asked.membership <= self.newest.membership):
            return False
        self.newest = asked
        return True

    @property
    def elastic(self) -> bool:
        """Whether its ranks form memberships at all."""
        return self.kind in (IN_PROCESS, TORCHRUN)

    @property
    def leads(self) -> bool:
        """Whether this node is the first of the newest membership."""
        return not self.left and self.newest is not None and self.newest.nodes[0] == self._node


def _not_started(error: Exception, names: Names, *, named: bool) -> ev.Exited:
    """The report of a part that could not be started. `named`: its user chose the checkpoint folder; where that is one
    of the daemon's home, nothing about it is the job's doing."""
    node_fault = permanent = False
    if isinstance(error, run_folder.CheckpointFolderError):
        node_fault, permanent = error.node_fault, error.permanent and named
    elif isinstance(error, OSError):
        node_fault = error.errno in MOUNT
    why = str(error)[:500]
    return ev.Exited(**names, hint=Cause.INFRASTRUCTURE, detail=why, permanent=permanent, node_fault=node_fault)
