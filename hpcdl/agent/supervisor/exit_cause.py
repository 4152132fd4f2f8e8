"""How a trainer ended, for its `exit` record: from the wait status, the kernel's counter and the last output."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from hpcdl.agent import outofmemory, rankfailure
from hpcdl.agent.output import printable
from hpcdl.agent.rankfailure import RankFailure

FAILED = 1
STALE = os.EX_TEMPFAIL
SHELL_KILLED = 128 + signal.SIGKILL  # what a shell makes of it


@dataclass(frozen=True, slots=True)
class Exit:
    """`code` or `signal`: of the first process; both None where it never ran. `stale`: another one has the checkpoint
    folder. `oom`: it ran out of memory. `killed`: the signal from outside that ended a process below the first one.
    `repeats`: so many times its ranks had failed alike, with nothing gained between."""

    code: int | None
    signal: str | None = None
    detail: str = ""
    stale: bool = False
    oom: bool = False
    killed: str | None = None
    repeats: int = 1

    @property
    def fields(self) -> dict[str, object]:
        """As the record has them."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"detail": printable(self.detail)}


def exit_of(status: int | None, tail: bytes, attached: bool, ours: bool, oom_kills: outofmemory.Counter) -> Exit:
    """`status`: as waitpid gives it. `ours`: who was killed may have been killed by us."""
    code, name = (None, None) if status is None else describe(status)
    if code == 0:
        return Exit(0)
    rank = rankfailure.marked(tail)
    killed = None if rank is None else rank.signal
    if killed is None and (rank is None or rank.code == 1):
        killed = rankfailure.killed(tail)
    # The kernel's counter may speak of a neighbour: it counts only for who was killed, and not by us.
    counts = not ours and (signal.SIGKILL.name in (name, killed) or code == SHELL_KILLED)
    oom, detail = oom_kills.verdict(rankfailure.said_before(tail), counts)
    if not detail:
        detail = rankfailure.cause(tail) if rank is None else rank.detail
    outside = killed if killed in rankfailure.OUTSIDE_SIGNALS and name is None and not ours else None
    return Exit(code, name, detail, code == STALE and attached, oom, None if oom else outside)


def given_up(failure: RankFailure, oom: bool, why: str, repeats: int) -> Exit:
    """Of ranks that torchrun would start again, and that would fail again."""
    if oom or failure.signal in rankfailure.OUTSIDE_SIGNALS:
        return Exit(FAILED, None, why, oom=oom, killed=None if oom else failure.signal, repeats=repeats)
    return Exit(failure.code, failure.signal, why, repeats=repeats)


def describe(status: int) -> tuple[int | None, str | None]:
    """Exit code and signal name of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, rankfailure.signal_name(os.WTERMSIG(status))
    return os.WEXITSTATUS(status), None
