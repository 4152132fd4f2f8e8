"""`hpcdl allocation`: what a batch script runs on its first node. It starts a daemon and an agent on each node.

All jobs are suspended before the walltime ends, on a signal of the batch system, or when there is nothing to do.
`agents.py` and `daemon.py` have the two kinds of processes, `chain.py` the next allocation.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.agent.emulation import has_driver
from hpcdl.allocation.agents import AgentOptions, AllocationAgents
from hpcdl.allocation.chain import NextAllocation, of_a_chain, script_of
from hpcdl.allocation.daemon import DaemonNotStarted, DaemonProcess
from hpcdl.allocation.detect import own_address
from hpcdl.allocation.signals import Signals
from hpcdl.allocation.standby import Standby
from hpcdl.batch.adapter import Allocation, BatchAdapter, CommandRunner
from hpcdl.batch.command import run as run_command
from hpcdl.batch.system import BatchError, system_named, systems
from hpcdl.batch.without_agent import write_nodes_without_agent
from hpcdl.config.settings import Config
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.wire.last_start import remember_start

log = logging.getLogger("hpcdl.allocation")

TURN_S = 0.2

AGENTS_S = 30.0
"""After the daemon's end, for agents to give their nodes back."""

RESERVE_S = 5.0
"""Of the walltime, for our own end."""

END_S = 600.0
"""What the end may take where no walltime is known; the daemon bounds it by the longest grace of its jobs."""

AGAIN_S = 5.0
"""Between two tries to become the daemon where another one holds the lease."""

UNFINISHED = ("QUEUED", "STARTING", "RUNNING", "RESCALING", "SUSPENDING", "SUSPENDED")


class CannotRun(Exception):
    """There is nothing to run here; the message is one line with the next step."""


@dataclass(frozen=True, slots=True)
class AllocationOptions:
    """The options of `hpcdl allocation`; see docs/commands.md. `emulate_gpus` "": nothing is said."""

    wait: bool = False
    chain: int | None = None
    script: Path | None = None
    emulate_gpus: str = ""
    idle_exit_s: float | None = None
    grace_s: float | None = None
    moved: bool = False


def find_allocation(system: BatchAdapter | None, environ: Mapping[str, str]) -> tuple[BatchAdapter, Allocation]:
    """The batch system and the allocation of this process. Raises CannotRun."""
    if system is None:
        raise CannotRun(
            "this is no batch job, and no batch system was found: start it from one "
            f"({', '.join(each.submit_line for each in systems())}), or use hpcdl daemon start on a machine of your own"
        )
    try:
        allocation = system.allocation(environ)
    except BatchError as error:
        raise CannotRun(str(error)) from None
    if allocation is None:
        about = system_named(system.kind)
        raise CannotRun(f"this process is in no {about.title} batch job: start it from one (see {about.job_script})")
    if not allocation.nodes:
        raise CannotRun(f"batch job {allocation.id} has no nodes that an agent could run on")
    return system, allocation


def without_gpus(kind: str, driver: bool) -> str:
    """What is said where the batch system granted none. `driver`: this machine has one for GPUs."""
    if driver:
        return "no GPU was granted to this batch job: its agents take those that they find on its nodes"
    return (
        f"no GPU was granted to this batch job, so no job will start: ask for some ({system_named(kind).gpu_line}); "
        "HPCDL_EMULATE_GPUS=N tries hpcdl out without any"
    )


@dataclass(slots=True)
class AllocationRun:
    """One allocation, from the daemon's start to its end. In the main thread, for its signals.

    `now()`: seconds since the epoch. `say`: a line for the batch job's output. `command`: for the chain.
    """

    home: Path
    config: Config
    system: BatchAdapter
    allocation: Allocation
    wishes: AllocationOptions
    now: Callable[[], float]
    say: Callable[[str], None]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    command: CommandRunner = run_command
    _left_alone: dict[str, str] | None = None
    _idle_since: float | None = None
    _next: NextAllocation = field(init=False)
    _signals: Signals = field(init=False)
    _address: str | None = field(init=False)
    _served: DaemonProcess = field(init=False)

    def __post_init__(self) -> None:
        self._signals = Signals()
        listening = self.config.origin("listen_host") == "default"
        self._address = own_address(self._others()) if listening else None
        self._served = DaemonProcess(self.home, self._address, self.say, self.wishes.moved)
        self._next = NextAllocation(
            self.home,
            self.system,
            self.allocation,
            of_a_chain(self.environ, self.wishes.chain),
            lambda: script_of(self.wishes.script, system_named(self.allocation.kind), self.environ),
            self.command,
            self.environ,
            self.say,
        )

    def _others(self) -> list[str]:
        return [node for node in self.allocation.nodes if node != self.allocation.here]

    def left_s(self) -> float | None:
        """Seconds until the walltime ends; None where that is not known. It may be changed while the batch job runs,
        which the daemon hears from the batch system."""
        until = self._served.status.get("allocations", {}).get(self.allocation.id) or self.allocation.until
        return None if until is None else until - self.now()

    def run(self) -> int:
        """0: it has come to its end, or its end was asked for; 1: there was no daemon, or is none any more."""
        with self._signals:
            self._introduce()
            try:
                if not self._start_daemon():
                    self.say(f"{self._signals.first or 'the end of the walltime'} came before there was a daemon")
                    return 0
            except DaemonNotStarted as error:
                self.say(str(error))
                return 1
            options = AgentOptions(self.home, self.wishes.emulate_gpus, self.wishes.grace_s)
            agents = AllocationAgents(self.system, self.allocation, options, self.left_s, self.say, self._places())
            standby = Standby(self.system, self.allocation)
            while not (why := self._over(agents)):
                agents.look()
                self._served.look()
                self._next.look()
                standby.look()
                self._remember(agents.left_alone)
                self._signals.wait(TURN_S)
            standby.leave()
            self._remember({})
            failed = self._served.failed or agents.hopeless
            self._end(why, agents)
            standby.end()
        return 1 if failed else 0

    def _introduce(self) -> None:
        allocation, left_s = self.allocation, self.left_s()
        nodes = count(len(allocation.nodes), "node")
        end = "no end is known" if left_s is None else f"{seconds_text(max(0.0, left_s))} left"
        gpus = "" if allocation.gpus is None else f", {allocation.gpus} GPUs each"
        self.say(f"batch job {allocation.id}: {nodes} ({fold_nodes(allocation.nodes)}){gpus}, {end}")
        if system_named(self.system.kind).requeued(self.environ):
            self.say("this batch job was requeued, by somebody or for a lost node, and goes on from the last saves")
        if allocation.gpus == 0 and self.wishes.emulate_gpus in ("", "auto"):
            self.say(without_gpus(self.system.kind, has_driver()))

    def _remember(self, left_alone: Mapping[str, str]) -> None:
        """The nodes without an agent, for who asks the daemon or the doctor."""
        if left_alone != self._left_alone:
            self._left_alone = dict(left_alone)
            try:
                write_nodes_without_agent(self.home, self.allocation.id, left_alone)
            except OSError as error:
                log.warning("which nodes have no agent cannot be written down: %s", error)

    def _places(self) -> dict[str, tuple[str, ...]]:
        try:
            return dict(self.system.topology(self.allocation.nodes))
        except BatchError as error:
            log.warning("where the nodes are in the network is not known: %s", error)
            return {}

    def _start_daemon(self) -> bool:
        """False where a signal, or the end of the walltime, came first. Raises NotStarted."""
        told = ""
        while True:
            try:
                self._served.start()
            except DaemonNotStarted as error:
                if not error.held or not self.wishes.wait:
                    raise
                if str(error) != told:
                    told = str(error)
                    self.say(f"waiting for the lease: {error}")
            else:
                where = self._address or self.config.listen_host
                self._remember_start()
                self.say(f"daemon of {self.home} on {socket.gethostname()} ({where})")
                return True
            end = time.monotonic() + AGAIN_S
            while time.monotonic() < end:
                left_s = self.left_s()
                if self._signals.wait(TURN_S) or (left_s is not None and left_s < self._leave_s()):
                    return False

    def _remember_start(self) -> None:
        try:
            remember_start(self.home, system_named(self.system.kind).submit_line)
        except OSError as error:
            log.warning("how this daemon was started cannot be written down: %s", error)

    def _leave_s(self) -> float:
        """So long before the walltime's end all is to be saved: for the slowest save, as the daemon has measured it."""
        told = self._served.status.get("daemon", {}).get("leave_s")
        return float(told) if isinstance(told, int | float) else self.config.leave_margin_s

    def _over(self, agents: AllocationAgents) -> str:
        """Why this allocation is to end now, "" while it is not."""
        left_s = self.left_s()
        if self._signals.first:
            return f"{self._signals.first} came"
        if self._served.over:
            return self._served.over
        if left_s is not None and left_s <= self._leave_s() + RESERVE_S:
            return f"the walltime ends in {seconds_text(max(0.0, left_s))}"
        if agents.given_back:
            return "the daemon was stopped" if self._served.stopping() else "all nodes were wanted back"
        if agents.hopeless:
            return "no agent can be started on any node"
        idle_s = self.wishes.idle_exit_s
        if idle_s is not None and self._idle_s() >= idle_s:
            return f"there was nothing to do for {seconds_text(idle_s)}"
        return ""

    def _idle_s(self) -> float:
        """For how long no job was left that could run."""
        status = self._served.status
        if not status or self._unfinished() > 0 or status.get("trainers"):
            self._idle_since = None
            return 0.0
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since

    def _unfinished(self) -> int:
        """Jobs that could still run: those that their users hold cannot."""
        status = self._served.status
        states = status.get("jobs", {})
        held = int(status.get("daemon", {}).get("held") or 0)
        return sum(int(states.get(state, 0)) for state in UNFINISHED) - held

    # --- the chain, and the end ------------------------------------------------------------------------------------

    def _cancel_next(self) -> None:
        """Nothing is left to do for the next one."""
        batch_id = self._next.id
        if not batch_id or not self._served.status or self._unfinished() > 0:
            return
        try:
            self.system.cancel([batch_id])
        except BatchError as error:
            self.say(f"batch job {batch_id} has nothing to do, and could not be cancelled: {error}")
            return
        self.say(f"batch job {batch_id} has nothing to do, and was cancelled")

    def _how_on(self) -> str:
        """Where it goes on, for the last but one line of the output."""
        if self._next.id:
            return f", and goes on in batch job {self._next.id}"
        line = system_named(self.system.kind).submit_line
        return f"; no next allocation was submitted: {line} goes on (--chain N has this one submit it)"

    def _end(self, why: str, agents: AllocationAgents) -> None:
        """All trainers are suspended by the daemon's stop, then the agents end."""
        self.say(f"{why}: everything is saved{self._how_on()}")
        agents.stop_starting()
        left_s = self.left_s()
        seconds = END_S if left_s is None else max(1.0, left_s - RESERVE_S)
        began = time.monotonic()

        def pause(seconds: float) -> None:
            agents.look()
            time.sleep(seconds)

        if self._served.stop(seconds, pause):
            self._cancel_next()
        else:
            self.say("the daemon has not ended in time, and is killed")
            self._served.kill()
        agents.end(max(1.0, min(AGENTS_S, seconds - (time.monotonic() - began))), pause)
        self.say(f"ended after {time.monotonic() - began:.1f} s")
