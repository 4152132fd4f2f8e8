"""This node's part of one incarnation, from the request to start it until its GPUs were seen free.

The supervisor knows what happens; this follows it through whatever happens to the supervisor or to the agent.
"""

import asyncio
import logging
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hpcdl.agent import start
from hpcdl.agent.asked import Asked
from hpcdl.agent.load import IDLE, Load, resident_mib
from hpcdl.agent.orders import Refusal, make_start
from hpcdl.agent.packets import Rescale
from hpcdl.agent.ports import Port
from hpcdl.agent.reports import Key, boottime
from hpcdl.agent.site import Stage
from hpcdl.agent.startfile import TORCHRUN
from hpcdl.agent.stillness import clock
from hpcdl.agent.supervisorlink import SupervisorLink
from hpcdl.agent.translate import event_of, exit_of
from hpcdl.core import events as ev
from hpcdl.core.model import Cause
from hpcdl.wire.messages import PIDS_MOST, TrainerLine
from hpcdl.wire.private import NotPrivate

log = logging.getLogger("hpcdl.agent")


class Part(Asked):
    """One run folder. `run` must be running; everything belongs to the event loop's thread."""

    @property
    def line(self) -> TrainerLine | None:
        """The trainer for the heartbeat, while it lives."""
        if self.stage is not Stage.FOLLOWED or not self._trainer_pid:
            return None
        job, incarnation = self.key
        step_s, idle_s, started_s = self._stillness.measured(clock())
        return TrainerLine(
            self._trainer_pid, job, incarnation, self._supervisor_pid, step_s, idle_s, started_s, self._pids
        )

    @property
    def _supervisor_pid(self) -> int:
        return int((self._supervisor or {}).get("pid") or 0)

    def look(self) -> None:
        """Looks whether it does anything; may take milliseconds, in any thread."""
        if self.stage is Stage.FOLLOWED and self._supervisor_pid:
            self._stillness.look(self._supervisor_pid, clock())
            self._pids = self._remains.remember(self._supervisor)[:PIDS_MOST]
            if self._site.gpus.emulated:
                self._memory_mib = resident_mib(self._pids)

    @property
    def load(self) -> Load:
        """What emulated GPUs show of it."""
        trains, cores, number = self._training.look(clock()), self._stillness.cores, max(1, len(self.gpus))
        if self.stage is not Stage.FOLLOWED:
            return IDLE
        memory = None if self._memory_mib is None else self._memory_mib // number
        return Load(trains, None if cores is None else cores / number, memory)

    def stood(self) -> None:
        """This agent was stopped for a while: what it would have seen is not known."""
        self._stillness.stood(clock())

    def tell_progress(self) -> None:
        """Reports new progress if a daemon is there and the last report is an interval ago."""
        now = boottime()
        if not self._site.connected or self.stale or not self._leads or now - self._told_at < self._site.interval_s:
            return
        event = self._progress.untold(self.names)
        if event is not None:
            self._told_at = now
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
        self._site.on_freed(self)

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
                gpu_env = self._grant.environment(nodes)
            formed = None
            if self._rescales.kind == TORCHRUN:
                formed = await self._membership()
                if formed is None:
                    return
            what = make_start(
                self._order,
                self.tag,
                site.node,
                site.limits,
                gpu_env,
                site.emulated,
                site.address,
                formed,
                node_gpus=site.gpus.number,
            )
            launch = self._site.orphans.start
            self._process = await asyncio.to_thread(start.begin, self.folder, what, self._site.stderr, launch)
        except FileExistsError:
            log.info("%s was started before", self)
        except (Refusal, OSError, NotPrivate, subprocess.SubprocessError) as error:
            log.warning("%s cannot be started: %s", self, error)
            self._report_exit(ev.Exited(**self.names.fields, hint=Cause.INFRASTRUCTURE, detail=str(error)[:500]))
            return
        self.stage = Stage.FOLLOWED

    async def _membership(self) -> Rescale | None:
        """The membership into which torchrun is to start the ranks, once there is one; until then nothing is started.

        None: it was asked to go before, and that is reported.
        """
        if self._undecided():
            port = Port(self._site.address)
            try:
                self._site.reports.report(ev.AtGate(**self.names.fields, address=port.address), self.key)
                while self._undecided():
                    self._more.clear()
                    await self._more.wait()
            finally:
                port.release()
        if self.ending:
            self._report_exit(ev.Exited(**self.names.fields, code=0, ended_by=self.ending))
            return None
        return self._rescales.newest

    def _undecided(self) -> bool:
        return self._rescales.newest is None and not self.ending

    async def _follow(self) -> None:
        """Until the exit is known: from the supervisor, from its records, or because it was lost."""
        for record in await asyncio.to_thread(start.read_records, self.folder):
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
            if await asyncio.to_thread(start.is_free, self.folder):
                await self._without_supervisor()
                continue
            await self._end_if_overdue()
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
        """Tells the supervisor what it is asked; all of it again on a new connection, which does no harm."""
        try:
            await link.send("agent", after=self._site.reports.unreported(self.key).record)
            sent = 0
            while True:
                while sent < len(self._asked):
                    kind, body = self._asked[sent]
                    await link.send(kind, **body)
                    sent += 1
                self._more.clear()
                if self._overdue_at is None:
                    await self._more.wait()
                    continue
                try:
                    await asyncio.wait_for(self._more.wait(), max(0.1, self._overdue_at - boottime()))
                except TimeoutError:
                    await self._end_if_overdue()
        except OSError:
            pass  # it is gone, as the reading side finds out

    # --- what the supervisor says ----------------------------------------------------------------------------------

    async def _handle(self, packet: dict[str, Any]) -> None:
        try:
            if packet["type"] == "progress":
                self._progress.take(packet)
                self._training.stepped(self._progress.step, clock())
                if self._leads:
                    self._stillness.stepped(self._progress.step, clock())
                self.tell_progress()
            elif start.is_record(packet):
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
            event = self._progress.untold(self.names)
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
            told = event_of(record, self.names)
        except (ValueError, TypeError, ArithmeticError) as error:
            log.warning("%s: record %d is not understood: %s", self, number, error)
            told = None
        if isinstance(told, ev.Saved | ev.TrainerReady):
            self._progress.reached(told.step)
        self._notice_life(told)
        if told is None or self.stale or (isinstance(told, ev.TrainerReady) and not self._leads):
            reports.passed(self.key, number)
        else:
            reports.report(told, self.key, number, at)

    def _notice_life(self, told: ev.Report | None) -> None:
        """What a record says about whether the trainer moves. Of several nodes, the first one's steps count."""
        match told:
            case ev.TrainerReady() | ev.Reformed():
                self._training.began(told.step, clock())
            case ev.Saved():
                self._training.saved(told.seconds, told.final, clock())
            case ev.AtGate() | ev.Broken():
                self._training.paused()
        if isinstance(told, ev.Started):
            self._stillness.began(clock())
        elif isinstance(told, ev.TrainerReady | ev.Reformed) and self._leads:
            self._stillness.moved(clock())
            self._stillness.stepped(told.step, clock())
        else:
            self._stillness.moved(clock())

    def _exit(self, record: dict[str, Any]) -> ev.Exited:
        try:
            event = exit_of(record, self.names, self._verdict, self._gate and not self._opened)
            return event if self._leads else replace(event, step=None)
        except (ValueError, TypeError, ArithmeticError) as error:
            detail = f"its exit record is damaged: {error}"
            return ev.Exited(**self.names.fields, hint=Cause.INFRASTRUCTURE, detail=detail)

    def _report_exit(self, event: ev.Exited, record: int = 0, at: float | None = None) -> None:
        if not self.stale and not self._site.reports.unreported(self.key).exited:
            self._site.reports.report(event, self.key, record, at)
        self.stage = Stage.EXITED
        self._site.changed.set()
        self._site.shells.end(self.key, f"{self} has ended")

    async def _without_supervisor(self) -> None:
        """Nobody holds the lock: what the records say is all that there is."""
        for record in await asyncio.to_thread(start.read_records, self.folder):
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
        self._report_exit(ev.Exited(**self.names.fields, hint=cause, detail=detail))

    # --- after it --------------------------------------------------------------------------------------------------

    async def _until_free(self) -> None:
        self._site.shells.end(self.key, f"{self} has ended")
        await self._site.shells.gone(self.key)  # they may use the GPUs, too
        await self._grant.until_free(str(self), lambda: self.stale)
        marks = self._site.reports.unreported(self.key)
        if not self.stale and not marks.freed:
            self._site.reports.report(ev.GpusFreed(**self.names.fields), self.key, marks.record)
        self.stage = Stage.FREED


def look_at(parts: list[Part]) -> None:
    """Looks at each whether it does anything; in any thread."""
    for part in parts:
        part.look()


def loads_of(parts: Iterable[Part]) -> dict[Key, Load]:
    """What emulated GPUs show of those that hold them."""
    return {part.key: part.load for part in parts if part.gpus}
