"""The agents of an allocation: one on each node, in a step of its own, started again when it is lost.

`run.py` and `pilot.py` call `look` again and again; steps are started by the batch system's adapter. A node whose agent
has ended with 0, or by a signal of the batch system, is given back and gets no other agent.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hpcdl.agent.departure import end_signals
from hpcdl.batch.adapter import Allocation, BatchAdapter, ask_twice
from hpcdl.batch.system import BatchError, Unsupported
from hpcdl.core.model.pilot import BatchState
from hpcdl.wire.child import dies_with

log = logging.getLogger("hpcdl.allocation")

PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
LASTED_S = 60.0
"""An agent that lived so long had started well; its loss is not the node's fault."""
TRIES = 5
"""So often in a row an agent is started that does not last; then its node is left alone."""
FORWARDED_S = 3.0
"""What starts an agent may or may not pass signals on to it; after this time the batch system is asked to."""


class NodeStatus(Enum):
    """How it stands with a node. GIVEN_BACK: its agent has ended as it should. ALONE: no agent can be started there."""

    WAITS = 1
    RUNS = 2
    GIVEN_BACK = 3
    ALONE = 4


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The options of every agent; see `python -m hpcdl.agent --help`. `emulate_gpus` "": as its node has it."""

    home: Path
    emulate_gpus: str = ""
    grace_s: float | None = None
    alone_s: float | None = None


@dataclass(slots=True)
class _Node:
    stands: NodeStatus = NodeStatus.WAITS
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    not_before: float = 0.0
    failed: int = 0
    pause_s: float = PAUSE_S
    why: str = ""


def agent_argv(
    options: AgentOptions, allocation: Allocation, node: str, left_s: float | None, place: Sequence[str] = ()
) -> list[str]:
    """`left_s`: seconds until the end, None where that is not known. `place`: the outermost switch first."""
    argv = [sys.executable, "-P", "-m", "hpcdl.agent", "--home", str(options.home), "--node", node]
    argv += ["--allocation", allocation.id]
    if left_s is not None:
        argv += ["--left", f"{max(0.0, left_s):.3f}"]
    for switch in place:
        argv += ["--place", switch]
    for name, value in (("--grace", options.grace_s), ("--alone", options.alone_s)):
        if value is not None:
            argv += [name, f"{value:g}"]
    if options.emulate_gpus:
        argv += ["--emulate-gpus", options.emulate_gpus]
    return argv


def wanted_back(code: int) -> bool:
    """Whether an agent ended by one of a batch system's signals: it came before the agent could hear it.

    `code`: of what started it, -N or, as shells and srun have it, 128 + N for the signal N.
    """
    return (-code if code < 0 else code - 128) in end_signals()


@dataclass(slots=True)
class AllocationAgents:
    """`look` is called again and again. What happens is said by `say`, a line each.

    `left_s()`: seconds until the allocation's end. `places`: where nodes are in the network.
    """

    system: BatchAdapter
    allocation: Allocation
    options: AgentOptions
    left_s: Callable[[], float | None]
    say: Callable[[str], None]
    places: Mapping[str, Sequence[str]] = field(default_factory=dict)
    monotonic: Callable[[], float] = time.monotonic
    _nodes: dict[str, _Node] = field(init=False)
    _ending: bool = False

    def __post_init__(self) -> None:
        self._nodes = {name: _Node() for name in self.allocation.nodes}

    @property
    def running(self) -> list[str]:
        """Nodes whose agents were started and have not ended."""
        return [name for name, node in self._nodes.items() if node.process is not None]

    @property
    def given_back(self) -> bool:
        """Whether at least one node was given back and no other has an agent, or is to get one."""
        stands = [node.stands for node in self._nodes.values()]
        return NodeStatus.GIVEN_BACK in stands and not {NodeStatus.RUNS, NodeStatus.WAITS} & set(stands)

    @property
    def hopeless(self) -> bool:
        """Whether every node was left alone."""
        return all(node.stands is NodeStatus.ALONE for node in self._nodes.values())

    @property
    def left_alone(self) -> dict[str, str]:
        """Nodes on which no agent can be started, each with the reason."""
        return {name: node.why for name, node in self._nodes.items() if node.stands is NodeStatus.ALONE}

    def look(self) -> None:
        """Hears which agents have ended, and starts those that are missing."""
        now = self.monotonic()
        for name, node in self._nodes.items():
            if node.process is not None and node.process.poll() is not None:
                self._ended(name, node, now)
            if node.stands is NodeStatus.WAITS and now >= node.not_before and not self._ending:
                self._start(name, node, now)

    def leave(self) -> None:
        """From here on no agent is started; those that run are signalled to give their nodes back."""
        self._ending = True
        for node in self._nodes.values():
            if node.process is not None:
                node.process.send_signal(signal.SIGUSR1)

    def stop_starting(self) -> None:
        """From here on no agent is started."""
        self._ending = True

    def wait(self, seconds: float, pause: Callable[[float], object]) -> bool:
        """Until no agent runs, or so long; whether none does. `pause(s)` waits."""
        end = self.monotonic() + seconds
        while True:
            self.look()
            if not self.running:
                return True
            if self.monotonic() >= end:
                return False
            pause(0.02)

    def end(self, seconds: float, pause: Callable[[float], object]) -> None:
        """Has the agents give their nodes back, within so many seconds; then their steps are killed."""
        self.leave()
        end = self.monotonic() + seconds
        if self.wait(min(FORWARDED_S, seconds), pause):
            return
        try:
            self.system.signal(self.allocation.id, "USR1")
        except BatchError as error:
            log.warning("the agents could not be signalled: %s", error)
        if self.wait(end - self.monotonic(), pause):  # a batch system that is away has cost some of it
            return
        self.say(f"the agents of {', '.join(self.running)} have not ended in time, and are killed")
        for node in self._nodes.values():
            if node.process is not None:
                node.process.kill()
                node.process.wait()
                node.process = None

    def _start(self, name: str, node: _Node, now: float) -> None:
        argv = agent_argv(self.options, self.allocation, name, self.left_s(), self.places.get(name, ()))
        try:
            launched = self.system.launch(self.allocation, name, argv)
            node.process = subprocess.Popen(
                launched,
                stdin=subprocess.DEVNULL,
                cwd="/",
                # A Ctrl-C, or a signal for our group, is ours to answer.
                start_new_session=True,
                # Where the batch job's first process is killed, its nodes are not ours any more.
                preexec_fn=dies_with(os.getpid(), number=signal.SIGTERM),
            )
        except Unsupported as error:
            node.stands, node.why = NodeStatus.ALONE, str(error)
            self.say(f"{name}: {error}: this node is left alone")
            return
        except (BatchError, OSError) as error:
            self._failed(name, node, now, str(error))
            return
        node.stands, node.began = NodeStatus.RUNS, now

    def _ended(self, name: str, node: _Node, now: float) -> None:
        code = 0 if node.process is None else node.process.returncode
        node.process = None
        if code == 0:
            node.stands = NodeStatus.GIVEN_BACK
            if not self._ending:
                how = "this node was lost" if self._was_lost(name) else "its agent has given the node back"
                self.say(f"{name}: {how}")
            return
        how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._ending or wanted_back(code):
            node.stands = NodeStatus.GIVEN_BACK
            self.say(f"{name}: its agent {how}")
            return
        if now - node.began >= LASTED_S:
            node.failed, node.pause_s = 0, PAUSE_S
        self._failed(name, node, now, f"its agent {how}")

    def _was_lost(self, name: str) -> bool:
        """Whether the batch system says that the batch job goes on without this node: what starts an agent may end with
        0 then. Not known is no."""
        try:
            job = ask_twice(self.system, self.allocation.id)
        except BatchError:
            return False
        return job.state is BatchState.RUNNING and bool(job.nodes) and name not in job.nodes

    def _failed(self, name: str, node: _Node, now: float, why: str) -> None:
        node.failed += 1
        if node.failed >= TRIES:
            node.stands, node.why = NodeStatus.ALONE, why
            self.say(f"{name}: {why}, for the {node.failed}th time: this node is left alone")
            return
        node.stands, node.not_before = NodeStatus.WAITS, now + node.pause_s
        self.say(f"{name}: {why}; it is started again in {node.pause_s:.0f} s")
        node.pause_s = min(PAUSE_MAX_S, node.pause_s * 2)
