"""The daemon process: takes the lease, opens the ledger, starts every part, and stops them in order.

All parts are made here and know each other only by their arguments. Threads: asyncio (the API and the agents), the
Controller's (`loop`), the batch system's, the notifier's, and those of the ticks. It must never hold the event loop up:
what waits for a disk or a process runs in one of the others.
"""

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn

from hpcdl import __version__
from hpcdl.agent.folder import is_local, run_folder
from hpcdl.allocation.detect import listen_address, look_around
from hpcdl.batch.pilots import pilot_policy
from hpcdl.batch.site import load_site
from hpcdl.config.settings import Config
from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import DaemonStarted
from hpcdl.core.model.series import Point
from hpcdl.core.model.units import count
from hpcdl.core.model.world import World
from hpcdl.core.rules.endings import Rules
from hpcdl.core.rules.intake import Settings
from hpcdl.daemon.agents import Hub, HubSettings, Telemetry, measured
from hpcdl.daemon.api.admission import Admission
from hpcdl.daemon.api.app import Api
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.profiles import ProfileNames, read_known
from hpcdl.daemon.api.server import make_server
from hpcdl.daemon.api.viewers import Viewers
from hpcdl.daemon.api.wait import Changes
from hpcdl.daemon.batch import BatchSettings, BatchThread
from hpcdl.daemon.clock import WallClock
from hpcdl.daemon.deadline_watch import DeadlineWatch
from hpcdl.daemon.delivery import Ways
from hpcdl.daemon.gpu_memory import GpuMemory
from hpcdl.daemon.identity import (
    LIMIT,
    Original,
    begin_apart,
    forget_agents,
    keep_place,
    load_identity,
    node_name,
    original_of,
)
from hpcdl.daemon.idle_gpus import IdleGpus
from hpcdl.daemon.learner import Learner
from hpcdl.daemon.local_agent import LocalAgent
from hpcdl.daemon.loop import ControllerLoop
from hpcdl.daemon.memory import end_without_memory, watch_memory
from hpcdl.daemon.meter import Meter
from hpcdl.daemon.notifier import Notifier
from hpcdl.daemon.planning import PlanThread
from hpcdl.daemon.ready import ReadyPipe
from hpcdl.daemon.series import Means, SeriesKeeper
from hpcdl.daemon.spool import SpoolReader
from hpcdl.daemon.ticks import Ticks
from hpcdl.daemon.unsaved_folders import UnsavedFolders
from hpcdl.ledger import Lease, SqliteJournal
from hpcdl.ledger.integrity import UsableLedger, open_resumed
from hpcdl.ledger.lease import LeaseError, LeaseHeld
from hpcdl.ledger.offline import LEDGER_FILE
from hpcdl.ledger.samples import GpuTelemetry
from hpcdl.ledger.series import SeriesChange
from hpcdl.milp import Reallocation
from hpcdl.milp.counting import MilpCounts
from hpcdl.policies import all_policies
from hpcdl.solver import prepare
from hpcdl.wire.access import AccessError, AccessFile, read_access, write_access
from hpcdl.wire.messages import HeartbeatMessage
from hpcdl.wire.private_files import read_private

log = logging.getLogger("hpcdl.daemon")

AGENTS_S = 20.0
"""How long a start waits for the local agent while nothing of it moves, and a stop for agents to end."""

AGENT_LOOK_S = 0.5

LEASE_LOST_EXIT = 4

AFTER_GRACE_S = 10.0
"""Past its grace a trainer is killed; so long its end takes to be known here."""

DECISION_S = 20.0
"""How long a stop waits for the Controller's thread, which may be in the middle of a decision."""

PILOTS_S = 20.0
"""How long a stop waits for the batch system to take back pilots."""

TROUBLE_AGAIN_S = 600.0
"""The same trouble is recorded at most this often."""

COPIED = "this home was copied from"
"""How it begins after what jobs are held in a copy; it is stored."""


class Daemon:
    """One daemon on one home, from the lease to its release."""

    def __init__(
        self,
        home: Path,
        config: Config,
        emulate_gpus: int | None,
        local_agent: bool = True,
        phase: Callable[[str], None] = lambda text: None,
        accept_loss: bool = False,
        moved: bool = False,
    ) -> None:
        """Takes the lease and loads the world. Raises LeaseHeld, JournalError, OSError with a line for the user.

        `phase(text)` is called before what takes long. `accept_loss`: go on with a ledger that has lost events.
        `moved`: the home is no copy of one that stays, whatever it looks like.
        """
        self._phase = phase
        self.home = home
        self.config = config
        self.viewers = Viewers(home, config)
        self.site_file = load_site(config.site, config.pilots, home)
        self.here = look_around(config.batch, now=WallClock(0.0).now, site=self.site_file)
        self._moved = moved
        self.lease = self._acquire(WallClock(0.0).now(), 0)
        try:
            self._open(emulate_gpus, local_agent, accept_loss)
        except BaseException:
            self.lease.release()
            raise

    def _acquire(self, now: float, fence_hint: int) -> Lease:
        here = self.here
        try:
            return Lease.acquire(
                self.home, now=now, fence_hint=fence_hint, batch_job=here.batch_job, batch_ended=here.batch_ended
            )
        except LeaseHeld as error:
            original = original_of(self.home)
            if original is None or original.in_place or self._moved:
                raise
            raise LeaseError(
                f"{self.home} is a copy of {original}, made while {error.holder or 'a daemon'} ran there: remove "
                f"{self.home}/lease.*, and the next start begins apart from it"
            ) from None

    def _open(self, emulate_gpus: int | None, local_agent: bool, accept_loss: bool) -> None:
        home, config = self.home, self.config
        original = None if self._moved else original_of(home)
        if original is not None:
            forget_agents(home)
        restored = f"{home} was put back from a copy" if original is not None and original.in_place else ""
        first_job = self.site_file.first_job_id
        resumed = open_ledger(
            home,
            config,
            lambda: self.lease.holds(),
            self._phase,
            accept_loss=accept_loss,
            restored=restored,
            first_job=first_job,
        )
        self._phase("taking stock of the jobs")
        self.journal, self._resumed = resumed.journal, resumed
        if resumed.note:
            log.warning("%s", resumed.note)
        self.profiles = Learner(lambda: self.controller.world).profiles(ProfileNames([read_known(home)]))
        self.planning = PlanThread(lambda command: self.loop.send(command))
        counting = None
        if config.milp_solver != "exact":
            counting = MilpCounts(config.milp_solver, config.milp_time_limit, self.planning.solve)
        reallocation = Reallocation(config.t_fwd_s, config.parallel_trainers, config.packing)
        self.policies = all_policies(reallocation, home, counting, config.theta)
        system = self.here.system
        kind = "" if system is None else system.kind
        self.site = self.site_file.on(kind)
        pilots = None if system is None else pilot_policy(self.site)
        settings = settings_of(config, kind)
        self.controller = Controller(self.journal, self.policies, self.profiles, settings, pilots, self.planning)
        world = self.controller.world
        if self.lease.fence <= resumed.fence:  # the fence file was lost; the ledger remembers, or who heard of it
            self.lease.release()
            self.lease = self._acquire(world.at, resumed.fence)
        self.clock = WallClock(world.at)
        fresh = world.seq == 0
        self.started_at = self.clock.now()
        nonce = secrets.token_hex(16)
        started = DaemonStarted(self.lease.fence, __version__, os.getpid(), socket.gethostname(), nonce)
        self.controller.begin(started, self.clock.now(), resumed.raised)
        if fresh:
            defaults: list[cmd.Command] = [cmd.ChoosePolicy(config.policy), cmd.ChooseObjective(config.objective)]
            for answer in self.controller.step(defaults, self.clock.now()):
                if isinstance(answer, Exception):
                    raise answer
        self._apart = ""
        if self._moved:
            self._let_go_on()
        elif original is not None and not original.in_place:
            self._begin_apart(original)
        self.identity = load_identity(home, self.clock.now())
        keep_place(home)
        self.node = node_name(home, config.node_name, config.node)
        self.meter = Meter.of(self.controller.world, self.clock.now())
        self.idle = IdleGpus()
        self.gpu_memory = GpuMemory()
        self.controller.on_recorded = self.meter.take
        self._stop_within_s = config.stop_grace_s
        self._told: dict[tuple[str, str], float] = {}
        self.emulate_gpus = emulate_gpus
        self.local_agent = local_agent
        self.exit_code = 0

    async def run(self, on_ready: ReadyPipe) -> int:
        """Serves until it is stopped; returns the exit code.

        Threads may go on: whoever calls ends the process without them, since the ledger is closed.
        """
        self._running = running = asyncio.get_running_loop()
        running.set_exception_handler(_unhandled)
        watch_memory()
        self._stopping = asyncio.Event()
        changes = Changes(running)
        self._ahead = Ahead()
        self.batching: BatchThread | None = None

        def changed(world: World) -> None:
            changes.announce(world)
            if self.batching is not None:
                self.batching.changed(world)
            self.notifier.changed(world)
            self._ahead.look(world.policy)

        def dispatch(requests: list[Request]) -> None:
            running.call_soon_threadsafe(self.hub.dispatch, requests)

        def lost(why: str) -> None:
            self.exit_code = LEASE_LOST_EXIT
            running.call_soon_threadsafe(self._end_server)

        self.loop = ControllerLoop(self.controller, self.clock, self.config.debounce_s, changed, dispatch, lost)
        self._spool = SpoolReader(self.home, self.loop.send, self._on_trouble)
        telemetry = Telemetry(self.clock.now, self._keep_samples)
        self.series = SeriesKeeper(
            lambda: self.loop.world,
            self.clock.now,
            self._keep_series,
            self._read_series,
            self.journal.divergences(),
            self._series_means,
        )

        def heard(node: str, heartbeat: HeartbeatMessage) -> None:
            telemetry.heard(node, heartbeat)
            self.series.heard(node, heartbeat)

        settings = HubSettings(
            self.identity.instance,
            self.home,
            self.config.agent_lease_s,
            self.config.heartbeat,
            self.config.hold_missing_checkpoint,
        )
        self.hub = Hub(self.loop, settings, heard)
        self._changes = changes
        self.batching = self._make_batching()
        self.ways = Ways(self.identity.instance, self.home, self.config.notify_from, self.config.smtp_host)
        self.notifier = Notifier(self.loop, self.ways, self.config.notify_for_s)
        address = listen_address(self.config, self.batching is not None and self.batching.settings.pilots)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, self.config.listen_port), family=family, backlog=2048)
        server = self._server()
        self._uvicorn = server
        port = int(listener.getsockname()[1])
        node = self.node
        self.agent = LocalAgent(self.home, node, self.emulate_gpus, lambda: node in self.hub.nodes())
        ticks = self._ticks()
        # HUP: its terminal was closed. The others: in a batch job they come to every process of it, before its end.
        inside = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGXCPU) if self.here.run is not None else ()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *inside):
            if number != signal.SIGHUP or inside or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                running.add_signal_handler(number, self._on_signal)
        self.loop.start()
        identity = self.identity
        opens = (identity.certificate, identity.token)
        self._access = AccessFile(identity.instance, address, port, *opens, os.getpid(), self.lease.fence)
        write_access(self.home, self._access)
        self.viewers.publish(identity, listener, self._on_trouble)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        ticks.start()
        if self.batching is not None:
            self.batching.start()
        self.notifier.start()
        stopper = asyncio.create_task(self._stop_when_asked())
        try:
            await self._become_ready(server, on_ready)
            await serving
        finally:
            stopper.cancel()
            ticks.stop()
            if self.batching is not None:
                self.batching.stop()
            self.notifier.stop()
            self.planning.stop()
            self.viewers.withdraw()
            self.series.flush()
            await _aside(self._close)
        return self.exit_code

    def _begin_apart(self, original: Original) -> None:
        """What is unfinished runs in the original: here it is held, so that no job trains twice into one folder. What
        was on its way to the original's nodes and batch system is not carried out here, nor taken back."""
        world, after = self.controller.world, f"{COPIED} {original}"
        numbers = [number for number, job in world.jobs.items() if not (job.finished or job.held)]
        apart: list[cmd.Command] = [cmd.Hold(number, after=after) for number in numbers]
        apart += [cmd.NodeGone(node, after) for node in world.nodes]
        apart += [cmd.PilotNotTaken(pilot.id, after) for pilot in world.pilots.values() if not pilot.over]
        self.controller.step(apart, self.clock.now())
        begin_apart(self.home)
        many = f"{count(len(numbers), 'unfinished job')} {'is' if len(numbers) == 1 else 'are'}"
        held = f"; {many} held: hpcdl resume JOB lets one run here" if numbers else ""
        self._apart = (
            f"{self.home} is a copy of {original}, and begins apart from it{held}; if it was moved here, and nothing "
            "runs there any more: hpcdl daemon stop, then hpcdl daemon start --moved"
        )
        log.warning("%s", self._apart)

    def _let_go_on(self) -> None:
        """The home was moved: what an earlier start held since it looked like a copy is not held any more."""
        held = [number for number, job in self.controller.world.jobs.items() if job.held_after.startswith(COPIED)]
        self.controller.step([cmd.Release(number) for number in held], self.clock.now())

    def _make_batching(self) -> BatchThread | None:
        config, system, here = self.config, self.here.system, self.here
        if here.trouble:
            self._on_trouble("allocation", here.trouble)
        if system is None:
            if config.pilots:
                self._on_trouble(
                    "pilots", "there is no batch system to submit them to: hpcdl doctor says what is missing"
                )
            return None
        settings = BatchSettings(
            self.home,
            self.identity.instance,
            config.batch_interval_s,
            self.site.pilots_max > 0 and bool(self.site.queues),
            self.site.options,
            own="" if here.run is None else here.run.id,
        )
        return BatchThread(system, self.loop, settings, commands=here.commands)

    def _server(self) -> uvicorn.Server:
        settings = {name: (value, self.config.origin(name)) for name, value in self.config.values().items()}
        about = DaemonStatus(
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=self.started_at,
            version=__version__,
            home=str(self.home),
            policies=self.policies.names(),
            pilots_max=self.site.pilots_max,
            leave_margin_s=self.config.leave_margin_s,
            settings=settings,
        )
        context = ApiContext(
            self.loop,
            self.hub,
            self._changes,
            self.profiles,
            about,
            self.batching,
            self.meter,
            self._on_stop,
            self.idle,
            self.series,
            self.ways,
        )
        door = Admission()
        api = Api(context, self.identity.token, self.viewers.token, door.proven)
        return make_server(api.application(), self.identity.certificate_path, self.identity.key_path, door)

    def _ticks(self) -> Ticks:
        ticks = Ticks(self._on_trouble)
        ticks.every(self.config.monitor_interval_s, "monitor", self._monitor)
        ticks.every(self.config.monitor_interval_s, "spool", self._spool.look)
        ticks.every(self.config.monitor_interval_s, "deadlines", DeadlineWatch(self.loop, self.profiles).look)
        ticks.every(self.config.monitor_interval_s, "unsaved folders", UnsavedFolders(self.home, self.loop).look)
        ticks.every(10.0, "lease", self._renew)
        ticks.every(10.0, "mark", self._sync_mark)
        ticks.every(60.0, "retention", self._retain)
        ticks.every(60.0, "garbage", gc.collect)
        if self.local_agent:
            ticks.every(1.0, "local agent", lambda: self.agent.look(time.monotonic()))
        return ticks

    def _monitor(self) -> None:
        def look() -> None:
            self.hub.report_absent()
            world, beats = self.loop.world, self.hub.heartbeats()
            idle = self.idle.look(world, beats, time.monotonic())
            memory = self.gpu_memory.measure(world, beats)
            self.loop.send(cmd.Tick(measured(world, beats, self.config.stall_s), idle, memory))

        self._running.call_soon_threadsafe(look)

    def _on_trouble(self, where: str, detail: str) -> None:
        now = time.monotonic()
        if now - self._told.get((where, detail), -TROUBLE_AGAIN_S) >= TROUBLE_AGAIN_S:
            self._told = {key: at for key, at in self._told.items() if now - at < TROUBLE_AGAIN_S}
            self._told[where, detail] = now
            self.loop.send(cmd.Trouble(where, detail))

    def _sync_mark(self) -> None:
        if self.journal.mark is not None:
            self.journal.mark.sync()

    def _renew(self) -> None:
        if not self.lease.renew():
            # A commit finds it, and ends us; so there has to be one.
            self.loop.send(cmd.Trouble("lease", "this daemon does not hold it any more"))
            return
        try:
            read_access(self.home)
        except AccessError:  # without it no command finds us, nor can end us
            log.warning("the access file was removed, or is damaged: it is written anew")
            write_access(self.home, self._access)

    def _keep_samples(self, samples: Sequence[GpuTelemetry]) -> None:
        # In the controller's thread: a commit that waits for the disk must not hold up the API.
        self.loop.call(lambda _: self.journal.add_samples(samples))

    def _keep_series(self, changes: Sequence[SeriesChange]) -> None:
        self.loop.call(lambda _: self.journal.add_series(changes))

    async def _read_series(self, job: int) -> Mapping[str, Sequence[Point]]:
        return await asyncio.to_thread(self.journal.series, job)

    async def _series_means(self, names: Sequence[str]) -> Means:
        return await asyncio.to_thread(self.journal.means, names)

    def _retain(self) -> None:
        """Old jobs leave the world; snapshots bound the replay; what is older goes to the archive."""
        config = self.config
        while self.loop.send(cmd.Retire(config.keep_finished)).result():
            pass  # some at a time: others may ask for something in between

        def keep(controller: Controller) -> None:
            self.journal.flush()  # samples that no commit has taken along
            seq = controller.world.seq
            # A snapshot writes every job of the world: that many events apart, it costs each event the same.
            if seq - self.journal.snapshot_seq >= max(config.snapshot_every, len(controller.world.jobs)):
                self.journal.snapshot(controller.world)
                self.journal.archive(seq - config.keep_events)

        self.loop.call(keep).result()

    async def _become_ready(self, server: uvicorn.Server, on_ready: ReadyPipe) -> None:
        while not server.started:
            await asyncio.sleep(0.01)
            if server.should_exit:
                return
        note = await self._await_agent() if self.local_agent else ""
        self._phase("taking in what was submitted meanwhile")
        await asyncio.to_thread(self._spool.look)
        about: dict[str, object] = {
            "pid": os.getpid(),
            "home": str(self.home),
            "node": self.node,
            "nodes": list(self.hub.nodes()),
            "fence": self.lease.fence,
        }
        note = "; ".join(filter(None, (self._resumed.note, self._apart, note or self._surprise())))
        on_ready.tell(about | ({"note": note} if note else {}))
        self._ahead.start(self.loop.world.policy)
        collect_garbage_rarely()

    async def _await_agent(self) -> str:
        """Until this node's own agent has joined this daemon, while one is at work; else a note that it has not."""
        self._phase(f"waiting for the agent of {self.node}")
        while self.node not in self.hub.nodes():
            self.hub.arrived.clear()
            if not self.local_agent or self._stopping.is_set():
                return ""
            now = time.monotonic()
            self.agent.look(now)
            if self.agent.still_s(now) > AGENTS_S:
                why = self.agent.last_words() or f"see {self.home / 'run' / self.node / 'agent.log'}"
                log.warning("the agent of %s has not called for %d s: %s", self.node, AGENTS_S, why)
                return f"the agent of this node ({self.node}) has not called yet, so its GPUs are not known: {why}"
            try:
                await asyncio.wait_for(self.hub.arrived.wait(), AGENT_LOOK_S)
            except TimeoutError:
                pass
        return ""

    def _surprise(self) -> str:
        """What whoever asked for emulated GPUs should know: an agent that survived the last daemon keeps its own."""
        node = self.loop.world.nodes.get(self.node)
        if not self.local_agent or self.emulate_gpus is None or node is None or not node.connected:
            return ""
        if node.emulated and len(node.gpus) == self.emulate_gpus:
            return ""
        kind = "emulated GPUs" if node.emulated else "real GPUs"
        return (
            f"the agent of {node.name} still runs with {len(node.gpus)} {kind}, not {self.emulate_gpus} emulated ones: "
            "hpcdl daemon stop ends it, then start again"
        )

    # --- the end ---------------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self.loop.send(cmd.Stop(False))
        self._on_stop(False)

    def _on_stop(self, now: bool) -> float:
        if not self._stopping.is_set():
            grace = 0.0 if now else longest_grace_s(self.loop.world) + AFTER_GRACE_S
            self._stop_within_s = max(self.config.stop_grace_s, grace)
            self._stopping.set()
        return self._stop_within_s + AGENTS_S

    async def _stop_when_asked(self) -> None:
        """Once a stop is recorded: waits until nothing lives, then lets agents and server end."""
        await self._stopping.wait()
        # Our own agent may have died just now: it is started again, for its trainers are to be suspended too.
        ours = self.node if self.local_agent else None
        end = time.monotonic() + self._stop_within_s
        while time.monotonic() < end and lives(self.loop.world, ours):
            await self._changes.wait(1.0)
        if lives(self.loop.world, ours):
            log.warning("stopping with trainers that have not ended; their agents end them when their lease runs out")
        await self._end_pilots()
        self.agent.end()
        self.hub.bye("hpcdl daemon stop")
        end = time.monotonic() + AGENTS_S
        while time.monotonic() < end and self.hub.nodes():
            await self._changes.wait(0.5)  # an agent that goes is recorded, and wakes us
        await _aside(self.agent.finish)
        self._end_server()

    async def _end_pilots(self) -> None:
        """The core wants none of them now; waits until the batch system took them back, or does not answer."""
        end = time.monotonic() + PILOTS_S
        while self.batching is not None and not self.batching.settled(self.loop.world) and time.monotonic() < end:
            await self._changes.wait(0.2)

    def _end_server(self) -> None:
        self._uvicorn.should_exit = True
        self._changes.close()  # who waits for an answer gets it now, not a connection that breaks

    def _close(self) -> None:
        """Closes the ledger and gives the lease back; without either where a decision does not end.

        What was committed is on the disk, and the next daemon succeeds a process that is gone.
        """
        if not self.loop.stop(DECISION_S):
            log.error("a decision has not ended within %d s: the daemon ends without it", DECISION_S)
            return
        try:
            self.journal.close()
            if self.exit_code == 0:
                self.lease.release()
        except (JournalError, OSError) as error:
            log.error("closing: %s", error)


def _unhandled(running: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    end_without_memory(context.get("exception"))
    running.default_exception_handler(context)


async def _aside(function: Callable[[], None]) -> None:
    """Runs it in a thread of its own: those of the event loop may all be computing estimates, for long."""
    await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), function)


# --- parts that only the process needs --------------------------------------------------------------------------------

POLICIES = frozenset({"bftrainer", "harvest"})
"""These optimise over all nodes whenever one comes or goes."""


class Ahead:
    """Loads the compiled loops of `hpcdl.solver` ahead of the decisions that need them, once, in a thread of its own.

    That takes seconds; until then decisions do without.
    """

    def __init__(self, load: Callable[[], object] = prepare) -> None:
        self._load = load
        self._started = self._begun = False

    def start(self, policy: str) -> None:
        """From now on it may cost the processor something: the daemon is ready. `policy`: the one in use."""
        self._started = True
        self.look(policy)

    def look(self, policy: str) -> None:
        """Begins to load where this policy needs it; from any thread, at every change."""
        if self._started and not self._begun and policy in POLICIES:
            self._begun = True
            # Not a daemon thread: a compiler that is cut off at the end of the process may take that down.
            threading.Thread(target=self._run, name="ahead").start()

    def _run(self) -> None:
        try:
            self._load()
        except Exception:  # a compiler's own affair: decisions are slower, and the same
            log.exception("the loops of hpcdl.solver cannot be loaded")


THRESHOLDS = 10_000, 20, 50
"""New objects until the youngest are looked at; and how often until all are, which takes 60 ms with 2,000 jobs. What
is no part of a cycle goes at once in any case, and next to nothing of ours is."""


def collect_garbage_rarely() -> None:
    """Has garbage collected rarely, since that stops everybody who waits for an answer; a tick does it once a minute in
    any case, for connections that came to nothing leave buffers of TLS. What is loaded by now is never looked at again.
    """
    gc.set_threshold(*THRESHOLDS)
    gc.collect()
    gc.freeze()


def longest_grace_s(world: World) -> float:
    """Seconds that a stop waits for the slowest save: the longest grace period of the jobs that hold GPUs."""
    return max((world.jobs[n].spec.grace_s for n in world.active if world.jobs[n].running is not None), default=0.0)


def lives(world: World, ours: str | None) -> bool:
    """Whether any incarnation is left on a node that can still answer, or on `ours`, which will again."""
    return any(
        not part.gone and (world.nodes[part.node].connected or part.node == ours)
        for number in world.active
        for incarnation in world.jobs[number].live
        for part in incarnation.parts
        if part.node in world.nodes
    )


def open_ledger(
    home: Path,
    config: Config,
    holds: Callable[[], bool],
    phase: Callable[[str], None],
    *,
    accept_loss: bool,
    restored: str = "",
    first_job: int,
) -> UsableLedger:
    """The ledger once the lease is taken: whole, or resumed from a backup or an accepted loss.

    `holds`: whether the lease is still ours; `phase(text)`: how far it is; `restored`: as `open_resumed`. Raises as
    that, and OSError.
    """

    def on_read(done: int, of: int) -> None:
        phase(f"reading the ledger: event {done:,} of {of:,}")

    return open_resumed(
        home,
        lambda: SqliteJournal(home / LEDGER_FILE, lease_check=holds, samples=config.samples, on_read=on_read),
        runs=_runs_elsewhere(home, config),
        accept_loss=accept_loss,
        restored=restored,
        first_job=first_job,
    )


def _runs_elsewhere(home: Path, config: Config) -> tuple[Path, ...]:
    """Where this machine's agent keeps its folder, where that is not in the home; () while there is no instance."""
    instance = home / "tls" / "instance"
    if is_local(home) or not instance.exists():
        return ()
    node = config.node_name or node_name(home, None, config.node)
    return (run_folder(home, node, read_private(instance, LIMIT).decode(errors="replace").strip()),)


def settings_of(config: Config, batch_system: str = "") -> Settings:
    """The settings of the Controller, from those of the user. `batch_system`: with which the daemon talks."""
    rules = Rules(
        config.poison_limit, config.poison_limit_infrastructure, config.retry_pause_s, config.retry_pause_max_s
    )
    return Settings(
        config.agent_lease_s,
        config.lease_margin_s,
        rules,
        config.max_jobs_a_submit,
        config.leave_margin_s,
        config.notices,
        config.stall_s,
        config.avoid_s,
        config.avoid_failures,
        sharing=config.sharing,
        batch_system=batch_system,
    )
