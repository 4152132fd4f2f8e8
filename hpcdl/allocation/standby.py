"""A step on the second node of an allocation, which has the batch job requeued where its first node is lost.

Slurm keeps a batch job that outlives the loss of a node (--no-kill) also where the first one is lost, with the batch
script and the daemon: then it fails, or stands there until its walltime ends, and is never requeued by itself.
`python -m hpcdl.allocation.standby KIND ID` is that step; an allocation starts it, on the next node where it was lost.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcdl.agent.departure import end_signals
from hpcdl.allocation.signals import Signals
from hpcdl.batch.adapter import Allocation, BatchAdapter
from hpcdl.batch.command import run
from hpcdl.batch.system import BatchError, system_named
from hpcdl.wire.child import dies_with

END = signal.SIGUSR1
"""The allocation's word for its own end; srun passes it on, where it answers SIGTERM by killing the step."""
END_S = 2.0
LOOK_S = 60.0
"""Between two looks at the batch job, and between two starts of the step."""
END_LOOKS, END_PAUSE_S = 10, 0.5
"""Looks after a signal: a batch job that ends by the loss of its node is signalled before it says so."""


@dataclass(slots=True)
class Standby:
    """Starts the step, for batch systems that need one; `look` is called again and again."""

    system: BatchAdapter
    allocation: Allocation
    monotonic: Callable[[], float] = time.monotonic
    _process: "subprocess.Popen[bytes] | None" = None
    _turn: int = 0
    _not_before: float = 0.0
    _done: bool = False

    def __post_init__(self) -> None:
        self._done = not system_named(self.allocation.kind).outlives_first_node

    def look(self) -> None:
        """Starts the step where there is none. One that has ended with 0 is of no use here."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process, self._done = None, code == 0
        others = [node for node in self.allocation.nodes if node != self.allocation.here]
        if self._done or self._process is not None or not others or self.monotonic() < self._not_before:
            return
        node = others[self._turn % len(others)]
        self._turn, self._not_before = self._turn + 1, self.monotonic() + LOOK_S
        argv = [sys.executable, "-P", "-m", "hpcdl.allocation.standby", self.allocation.kind, self.allocation.id]
        try:
            self._process = subprocess.Popen(
                self.system.launch(self.allocation, node, argv),
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                preexec_fn=dies_with(os.getpid(), number=signal.SIGTERM),
            )
        except (BatchError, OSError):
            return  # the agent of that node says why

    def leave(self) -> None:
        """Has the step end."""
        self._done = True
        if self._process is not None:
            self._process.send_signal(END)

    def end(self) -> None:
        """Waits until it has; what started it may be stopped, and is killed then."""
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def main() -> int:
    """The step. 0: it is of no use, or was told to end; 1: it has had the batch job requeued."""
    kind, batch_id = sys.argv[1:]
    about = system_named(kind)
    signal.signal(END, lambda number, frame: sys.exit(0))
    with Signals(number for number in end_signals() if number != END) as signals:
        looks = END_LOOKS
        while looks:
            looks -= bool(signals.wait(END_PAUSE_S if signals.first else LOOK_S))
            try:
                requeued = about.requeue_without_first(run, batch_id)
            except BatchError:
                continue
            if requeued is None:
                break
            if requeued:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
