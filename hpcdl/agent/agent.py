"""The agent of a node: its parts, its GPUs, its report log and its lease, and what the daemon requests of them.

It starts and ends trainers only as the daemon says, or when the daemon has been silent for its lease or the node is
wanted back. What it is killed in the middle of, the next agent finds in the run folders and the log, and goes on with.
A part is in part.py, the connection to the daemon in daemon_link.py.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from hpcdl.agent import run_folder, shell
from hpcdl.agent.colocation import Colocation
from hpcdl.agent.context import AgentContext, Stage
from hpcdl.agent.daemon_link import DaemonConnection, Rejected
from hpcdl.agent.departure import Departure, EnclosingJob
from hpcdl.agent.folder import LastContact, still_ours
from hpcdl.agent.part import AgentPart
from hpcdl.agent.report_log import Key, ReportLog, boottime
from hpcdl.agent.shell import ShellTarget
from hpcdl.agent.supervisor import process_file, processes
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor.watchdog import STOOD_S, clock
from hpcdl.core.model.commands import ExpectedIncarnation
from hpcdl.core.model.events import Exited, GpusFreed, TroubleSeen
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.units import count
from hpcdl.wire import messages as msg

log = logging.getLogger("hpcdl.agent")

LEASE_S = 600.0
"""Seconds; until a daemon has said its own."""

LAST_WORDS_S = 5.0
"""Seconds that a dismissed agent waits for a daemon to take its reports; then they are left to the next agent."""

LOOK_S, LAST_LOOK_S = 1.0, 0.02


class Agent:
    """What is done on a node, as the daemon says over a `DaemonConnection`. It belongs to the event loop's thread."""

    def __init__(self, home: Path, site: AgentContext, lock: int, stay: EnclosingJob) -> None:
        """`lock`: of the node's folder, which we hold."""
        self._site = site
        self._lock = lock
        self.instance, self.reports, self.shells, self.changed = site.instance, site.reports, site.shells, site.changed
        self.parts: dict[Key, AgentPart] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._heard = LastContact(site.run)
        self._lease_s = site.reports.lease_s or LEASE_S
        self._lapsed = False
        self._looked_at = clock()
        self._fresh_start: dict[Key, msg.RequestMessage] = {}
        self._free_before: set[Key] = set()  # run folders of an earlier agent's of which nothing is left
        self._bye_at: float | None = None
        self._hurried = asyncio.Event()  # the end is near: dismissed, or the node goes
        self._leaving = Departure(stay, boottime())
        self._leaves = asyncio.Event()
        self._connection = DaemonConnection(home, self)
        self._colocation = Colocation(site, self.parts)
        self._over = asyncio.Event()

    @property
    def interval_s(self) -> float:
        """Seconds between two heartbeats, as the daemon wants it."""
        return self._site.interval_s

    async def run(self) -> None:
        """Returns after a bye, once nothing is left to report, or when the folder is no longer ours."""
        background = [asyncio.create_task(self.reports.run())]
        try:
            await self._site.gpus.refresh()
            await self._adopt()
            background.append(asyncio.create_task(self._connection.run()))
            background.append(asyncio.create_task(self._watch()))
            background.append(asyncio.create_task(self._colocation.run()))
            over = asyncio.create_task(self._over.wait())
            await asyncio.wait([over, *background], return_when=asyncio.FIRST_COMPLETED)
            for each in background:
                if each.done():
                    each.result()
        finally:
            for each in (*background, *self._lives):
                each.cancel()
            await asyncio.gather(*background, *self._lives, return_exceptions=True)
            await self.shells.close()

    # --- what an earlier agent left --------------------------------------------------------------------------------

    async def _adopt(self) -> None:
        living, self._free_before, troubles = await asyncio.to_thread(
            take_stock, self._site.run, self.reports, self._site.start_tag
        )
        for trouble in troubles:
            log.error("%s", trouble)
            self.reports.report(TroubleSeen("agent", trouble[:500]))
        for found in living:
            order = self.reports.requests.get(found.key, {}).get("start")
            self._live(AgentPart(self._site, found.key, order, found))
        for key, kinds in self.reports.requests.items():
            part, marks = self.parts.get(key), self.reports.unreported(key)
            if part is not None:
                self._obey_known(part)
            elif "start" in kinds and not marks.exited and not marks.record:  # else its run folder was removed
                self._fresh_start[key] = kinds["start"]
        mine = (self.instance, self._site.node, set(self.parts), self._site.run)
        swept = await asyncio.to_thread(kill_unclaimed, *mine)
        if swept:
            log.warning("%d processes without a run folder were killed", swept)
        await asyncio.to_thread(shell.end_left_commands, self.instance, self._site.node, self._site.run)

    def _obey_known(self, part: AgentPart) -> None:
        """What the log holds for it, in the order in which it was asked."""
        kinds = self.reports.requests.get(part.key, {})
        for message in sorted(kinds.values(), key=lambda each: each.request.id):
            if message.request.kind == "open":
                part.adopt_grant(message)
            if message.request.kind != "start":
                part.obey(message)

    def _live(self, part: AgentPart) -> None:
        self.parts[part.key] = part
        life = asyncio.create_task(self._follow(part))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _follow(self, part: AgentPart) -> None:
        await part.run()
        if part.stale:
            self._remove(part.key)

    def _remove(self, key: Key) -> None:
        part = self.parts.pop(key, None)
        self._free_before.discard(key)
        self.reports.forget(key)
        self._site.metrics.forget(key)
        run_folder.put_away(run_folder.folder_of(self._site.run, key), "" if part is None else part.damage)

    # --- the daemon ------------------------------------------------------------------------------------------------

    def dialled(self, address: str) -> None:
        """Notes the IP of ours from which a connection was made."""
        self._site.address = address

    def hello(self) -> msg.HelloMessage:
        """The first message."""
        return msg.HelloMessage(self._site.node, self.reports.log_id, self.instance, self.reports.fence)

    async def welcomed(self, welcome: msg.WelcomeMessage) -> msg.InventoryMessage:
        """Does what must come before the inventory. Raises Rejected for a daemon that was replaced."""
        if welcome.instance != self.instance:
            raise Rejected(f"the daemon is of instance {welcome.instance[:40]!r}")
        if welcome.fence < self.reports.fence:
            raise Rejected(f"the daemon (fence {welcome.fence}) was replaced: {self.reports.fence} has been seen")
        await self.reports.see(welcome.fence, welcome.lease_s)
        self.heard()
        self._lapsed = False
        self._bye_at = None
        if not self._leaving.begun:
            self._hurried.clear()
        self._lease_s, self._site.interval_s = welcome.lease_s, max(0.05, welcome.interval_s)
        self.reports.recorded(welcome.reports_seen)
        self._settle(welcome.expected)
        await self._site.gpus.refresh()
        memory = await asyncio.to_thread(psutil.virtual_memory)
        return msg.InventoryMessage(
            self._site.gpus.inventory(),
            len(os.sched_getaffinity(0)),
            memory.total >> 20,
            os.getpid(),
            self.reports.boot,
            self._site.gpus.emulated,
            self._leaving.stay.allocation,
            self._leaving.walltime_left_s(boottime()),
            self._leaving.stay.place,
            looks=True,
            address=self._site.address,
        )

    def _settle(self, expected: tuple[ExpectedIncarnation, ...]) -> None:
        """What is not expected ends; what is expected and not here is reported as gone."""
        wanted = {(each.job, each.incarnation): each for each in expected}
        for key in list(self.parts):
            if key not in wanted:
                part = self.parts[key]
                if part.stage is Stage.FREED:
                    self._remove(key)
                else:
                    part.end_stale()
        for key in [key for key in (*self.reports.requests, *self.reports.marks) if key not in wanted]:
            if key not in self.parts:
                if self._fresh_start.pop(key, None) is not None:
                    self._site.grants.freed(key)  # what an earlier agent had granted, and not started
                self._remove(key)
        for key, each in wanted.items():
            if key in self._fresh_start:
                self._begin(self._fresh_start.pop(key))
            elif key not in self.parts and each.taken:
                self._report_gone(each)

    def _report_gone(self, expected: ExpectedIncarnation) -> None:
        key = (expected.job, expected.incarnation)
        marks = self.reports.unreported(key)
        if not marks.exited:
            log.warning("job %d.%d is expected here, and there is no trace of it", *key)
            exited = Exited(
                *key,
                expected.membership,
                self._site.node,
                hint=Cause.INFRASTRUCTURE,
                detail="no trace of it on this node",
            )
            self.reports.report(exited, key)
        if not marks.freed:
            self._site.grants.freed(key)
            self.reports.report(GpusFreed(*key, expected.membership, self._site.node), key)

    def joined(self) -> None:
        """The inventory was sent: reports and requests may flow."""
        self._site.connected = True
        for part in self.parts.values():
            part.report_progress()

    def parted(self) -> None:
        """The session has ended."""
        self._site.connected = False
        self.shells.parted()

    def heard(self) -> None:
        """Notes a sign of life of the daemon: the lease counts from here."""
        self._heard.now()

    def carry_out(self, message: msg.RequestMessage) -> None:
        """Carries out a request that is in the log, once."""
        request = message.request
        key = (request.job, request.incarnation)
        part = self.parts.get(key)
        if request.kind == "start":
            known = self.reports.requests.get(key, {}).get("start")
            over = key in self._free_before or (part is not None and part.stage is Stage.FREED)
            if over and not self.reports.unreported(key).freed and known is not None and known.request.id == request.id:
                # The node left this incarnation, and joins it again; nothing is left of its first time.
                self.parts.pop(key, None)
                self._free_before.discard(key)
                run_folder.put_away(run_folder.folder_of(self._site.run, key))
                self._begin(message)
            elif part is None and not self.reports.unreported(key).exited:
                self._begin(message)
        elif part is not None and part.stage is not Stage.FREED:
            part.obey(message)

    def _begin(self, message: msg.RequestMessage) -> None:
        part = AgentPart(self._site, (message.request.job, message.request.incarnation), message, None)
        self._live(part)
        self._obey_known(part)

    def open_shell(self, message: msg.ShellOpenMessage) -> None:
        """Runs a command beside a trainer."""
        part = self.parts.get((message.job, message.incarnation))

        async def place() -> ShellTarget | str:
            return "the job has gone from this node" if part is None else await part.beside(message.rows > 0)

        self.shells.open(message, place)

    def drill(self, message: msg.DrillMessage) -> None:
        """Has what trains of an incarnation killed on purpose."""
        part = self.parts.get((message.job, message.incarnation))
        if part is not None:
            part.drill(message)

    def forget(self, message: msg.ForgetMessage) -> None:
        """Forgets an incarnation that the daemon has recorded as ended."""
        key = (message.job, message.incarnation)
        part = self.parts.get(key)
        # Where nothing was seen free since it was last started, what may go is what it was before.
        if self.reports.unreported(key).freed and (part is None or part.stage is Stage.FREED):
            self._remove(key)

    def bye(self, message: msg.ByeMessage) -> None:
        """The daemon stops; where it says so, this agent ends as well."""
        log.info("the daemon stops: %s", message.why)
        if message.end:
            self._bye_at = boottime()
            self._hurried.set()

    async def heartbeat(self) -> msg.HeartbeatMessage:
        """What there is to be seen now."""
        self._look_at_the_clock()
        for part in list(self.parts.values()):
            await asyncio.to_thread(part.look)
        await self._site.gpus.refresh()
        if self._site.gpus.renumbered:
            raise Rejected("the GPUs of this node are numbered in another way now: it joins again")
        for part in self.parts.values():
            part.report_progress()
        lines = [line for part in self.parts.values() if (line := part.line) is not None]
        loads = {part.key: part.load for part in self.parts.values() if part.gpus}
        kept = run_folder.kept(self._site.run)
        gpus = self._site.gpus.lines(loads, self._site.start_tag)
        return msg.HeartbeatMessage(gpus, tuple(lines), kept, self._site.metrics.hand_over())

    # --- the lease, and the end ------------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        """The node is wanted back: everything on it is to go, and then the agent. Once, whatever comes after it."""
        if self._leaving.begin(reason):
            self._site.goes = reason
            log.warning("this node goes (%s): %.0f s are left", reason, self._leaving.left_s)
            self._leaves.set()
            self._hurried.set()

    async def goes(self) -> msg.LeavingMessage:
        """Returns once the node is wanted back, with what the daemon is to know of that."""
        await self._leaves.wait()
        return self._leaving.message(boottime())

    async def _give_back(self) -> None:
        """What the daemon does not have leave is suspended; at the end of the grace nothing is left running."""
        leaving, connected = self._leaving, self._site.connected
        living = [part for part in self.parts.values() if part.stage in (Stage.ORDERED, Stage.FOLLOWED)]
        for part in living:
            if part.ending or not connected or not leaving.patient:
                part.go(leaving.trainers_s)
        if leaving.left_s <= 0:
            log.error("the grace period is over: %d trainers are killed", len(living))
            await asyncio.gather(*(part.kill() for part in living))
            self._over.set()
        elif all(part.stage is Stage.FREED for part in self.parts.values()) and (self.reports.settled or not connected):
            log.info("nothing is left here, and the node is given back")
            self._over.set()

    async def _watch(self) -> None:
        while not self._over.is_set():
            if self._hurried.is_set():
                await asyncio.sleep(LAST_LOOK_S)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), LOOK_S)
            self._look_at_the_clock()
            if self._site.orphans.find() and (left := await asyncio.to_thread(self._site.orphans.end)):
                log.warning("%d processes that were left to this agent do not end", left)
            self.shells.record(clock())
            self._leaving.look(boottime(), self._site.connected)
            if self._leaving.begun:
                self._site.goes = self._leaving.reason
                self._leaves.set()
                self._hurried.set()
                await self._give_back()
            if not self._site.connected:
                self._look_at_lease()
                if not still_ours(self._site.run, self._lock):
                    log.error("%s was removed: this agent ends", self._site.run)
                    self._over.set()
            if self._bye_at is not None and self._said_all():
                log.info("nothing is left to report: this agent ends")
                self._over.set()

    def _look_at_the_clock(self) -> None:
        """Time in which this process was stopped, or the machine, is nobody's stall."""
        now = clock()
        if now - self._looked_at > STOOD_S:
            log.warning("this agent was stopped for %.0f s", now - self._looked_at)
            for part in self.parts.values():
                part.stood()
        self._looked_at = now

    def _look_at_lease(self) -> None:
        if self._lapsed or boottime() - self._heard.at < self._lease_s:
            return
        self._lapsed = True
        living = [part for part in self.parts.values() if part.stage in (Stage.ORDERED, Stage.FOLLOWED)]
        log.warning("no daemon for %.0f s: %d trainers are suspended", self._lease_s, len(living))
        for part in living:
            part.suspend()

    def _said_all(self) -> bool:
        if self._bye_at is None or any(part.stage is not Stage.FREED for part in self.parts.values()):
            return False
        late = not self._site.connected and boottime() - self._bye_at > LAST_WORDS_S
        return self.reports.settled or late


SWEEP_S = 2.0
"""Seconds of one attempt to end what nobody answers for."""


def never_started(found: run_folder.ExistingRun, tag: str) -> bool:
    """Whether the run folder was made, and its maker died before there was a trainer. `tag`: the part's."""
    folder = found.folder
    if not run_folder.is_free(folder) or run_folder.has_records(folder):
        return False
    return not processes.kin(process_file.read_process_file(folder).below) and not processes.tagged(tag)


def left_over(found: run_folder.ExistingRun, order: msg.RequestMessage | None) -> bool:
    """Whether the run folder is of an earlier start in the same incarnation, of which nothing is left: its node left
    the incarnation, and was asked to join it again."""
    if order is None or found.start is None or not found.start.request:
        return False
    if found.start.request == order.request.id or not run_folder.is_free(found.folder):
        return False
    return not processes.kin(process_file.read_process_file(found.folder).below)


def kill_unclaimed(instance: str, node: str, known: Collection[Key], run: Path) -> int:
    """Kills what carries our instance's tag for this node and has no run folder; how many processes there were.

    Own uid, tag and start time are checked again at the signal. What has a run folder is left to its part: a living
    supervisor goes on with it, and what a dead one left is killed there. So is what has one in another home than that
    of `run`, our agent's folder: one of the two was copied from the other, and they have one name.
    """

    def unknown() -> list[Process]:
        found = processes.tagged(instance)
        found = [each for each in found if (key := _key(each.tag, instance, node)) is not None and key not in known]
        theirs = {each.pid for root in run_folder.supervisors_of_other_homes(run) for each in processes.tree(root.pid)}
        return [each for each in found if each.pid not in theirs]

    return len(processes.kill_all(lambda: processes.kin(unknown()), SWEEP_S))


def take_stock(
    run: Path, reports: ReportLog, tag_of: Callable[[Key], str]
) -> tuple[list[run_folder.ExistingRun], set[Key], list[str]]:
    """The run folders of an earlier agent that a part is to follow; those of which nothing is left, and all is
    reported; and what people should know. A folder in which nothing was ever started is removed."""
    living: list[run_folder.ExistingRun] = []
    free: set[Key] = set()
    troubles = []
    if lost := end_lost_supervisors(run):
        troubles.append(f"{count(lost, 'supervisor')} without a run folder: killed, with all that was below")
    for found in run_folder.find(run):
        order, marks = reports.requests.get(found.key, {}).get("start"), reports.unreported(found.key)
        if found.damage:
            troubles.append(f"run folder {found.folder}: {found.damage}: it is kept in {run / run_folder.DAMAGED}")
        if left_over(found, order) or never_started(found, tag_of(found.key)):
            run_folder.put_away(found.folder, found.damage)  # no trainer was started: to start it (again) is harmless
        elif marks.exited and marks.freed:
            free.add(found.key)  # it goes when the daemon says so, or does not expect it
        else:
            living.append(found)
    return living, free, troubles


def end_lost_supervisors(run: Path) -> int:
    """Kills supervisors whose run folders were removed, and all that is below them; how many there were.

    Nobody can reach them any more, and nobody would know whose GPUs they hold.
    """
    lost = [each for name, each in run_folder.supervisors(run).items() if not (run / name).is_dir()]
    for supervisor in lost:
        processes.signal_process(supervisor, signal.SIGSTOP)
        below = processes.descendants(supervisor.pid, tags=False)
        processes.signal_process(supervisor, signal.SIGKILL)
        processes.kill_all(lambda: processes.kin(below), SWEEP_S)  # noqa: B023
    return len(lost)


def _key(tag: str, instance: str, node: str) -> Key | None:
    """The job and incarnation of a tag of ours, None for another's."""
    parts = tag.removeprefix(f"{instance}:").split(":", 2)
    if len(parts) != 3 or not processes.matches(parts[2], node) or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])
