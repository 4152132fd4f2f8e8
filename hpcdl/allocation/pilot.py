"""`hpcdl pilot`: what the batch job of a pilot runs on its first node. It starts an agent on each node, and no daemon.

The agents dial the daemon that submitted the pilot. The nodes are given back when it calls for that, on a signal of the
batch system, or when no daemon answers.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

from hpcdl.allocation.agents import AgentOptions, AllocationAgents
from hpcdl.allocation.run import TURN_S
from hpcdl.allocation.signals import Signals
from hpcdl.batch.adapter import Allocation, BatchAdapter, ask_twice
from hpcdl.batch.system import BatchError
from hpcdl.core.model.units import fold_nodes

GRACE_S = 25.0
ASK_S = 1.0
"""After the agents' start the batch system is asked once: no step was signalled of a preemption before that."""


def run_pilot(
    home: Path,
    system: BatchAdapter,
    allocation: Allocation,
    now: Callable[[], float],
    say: Callable[[str], None],
    *,
    emulate_gpus: str = "",
    idle_s: float = 120.0,
    grace_s: float = GRACE_S,
) -> int:
    """Until all agents have ended. 0: their nodes were given back; 1: no agent could be started on any.

    The batch system's signals come to the agents by themselves; those that come here only are passed on, and so is a
    preemption before there were agents. An agent that no daemon answers for `idle_s` seconds gives its node back.
    """

    def left_s() -> float | None:
        return None if allocation.until is None else allocation.until - now()

    options = AgentOptions(home, emulate_gpus, grace_s, idle_s)
    with Signals() as signals:
        say(f"pilot, batch job {allocation.id}: {fold_nodes(allocation.nodes)}")
        agents = AllocationAgents(system, allocation, options, left_s, say)
        ask_at = time.monotonic() + ASK_S
        while not agents.given_back and not agents.hopeless:
            agents.look()
            why = f"{signals.first} came" if signals.wait(TURN_S) else ""
            if not why and time.monotonic() >= ask_at:
                ask_at = math.inf
                why = "this batch job was preempted as it began" if _preempted(system, allocation) else ""
            if why:
                say(f"{why}: the nodes are given back")
                agents.end(grace_s, time.sleep)
                break
    say("no agent could be started" if agents.hopeless else "all nodes are given back")
    return 1 if agents.hopeless else 0


def _preempted(system: BatchAdapter, allocation: Allocation) -> bool:
    """Whether the nodes are wanted by somebody else; not known is no."""
    try:
        return ask_twice(system, allocation.id).preempted
    except BatchError:
        return False
