"""Where the daemon's policies deliberate: a thread that makes plans, and a process that solves their programs.

Both end with the daemon at once: a solve is given up, and its process killed with what it started (CBC is one). Where
the daemon is killed, the kernel ends them.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hpcdl.batch.command import Commands
from hpcdl.batch.system import BatchError
from hpcdl.core.model.commands import Command, PlanMade
from hpcdl.core.model.plan import Plan
from hpcdl.daemon.memory import end_without_memory
from hpcdl.milp.exchange import question_text, read_reply
from hpcdl.milp.model import SolverError, SolverLimits
from hpcdl.milp.problem import Problem
from hpcdl.milp.solve import ProblemAnswer

START_S = 20.0
"""What a process takes to start on a busy machine, at most; the solver's own limit comes after it."""


class PlanThread:
    """Makes plans beside the Controller (`core.controller.deliberation.Aside`), one at a time."""

    def __init__(self, send: Callable[[Command], object]) -> None:
        """`send`: puts a command in the Controller's inbox."""
        self._send = send
        self._pool = ThreadPoolExecutor(1, "plans")
        self._commands = Commands()

    def __call__(self, make: Callable[[], Plan]) -> "Future[Plan]":
        """Calls `make` in the thread, and tells the Controller when it has returned or failed."""
        found = self._pool.submit(make)
        found.add_done_callback(self._done)
        return found

    def _done(self, found: "Future[Plan]") -> None:
        if not found.cancelled():
            end_without_memory(found.exception())
            self._send(PlanMade())

    def solve(self, problem: Problem, solver: str, limits: SolverLimits) -> ProblemAnswer:
        """As `milp.solve.solve`, in a process of its own. SolverError: it has not answered."""
        argv = [sys.executable, "-P", "-m", "hpcdl.milp", str(os.getpid())]
        try:
            done = self._commands(argv, limits.seconds + START_S, stdin=question_text(problem, solver, limits))
        except (BatchError, OSError) as error:  # too late, too much, or no process or pipe to be had
            raise SolverError(str(error)) from None
        return read_reply(done.out, len(problem.trainers))

    def stop(self) -> None:
        """Gives up what is being made."""
        self._commands.end()
        self._pool.shutdown(wait=False, cancel_futures=True)
