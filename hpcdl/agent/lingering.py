"""A trainer that said that it is done and then stands still for ever: it would hold its GPUs for as long."""

from __future__ import annotations

from hpcdl.agent.stillness import Stillness

STILL = 0.02
"""Of a CPU for each rank. The threads of one that hangs wait with timeouts, which costs less."""

LOOK_S = 10.0


class Lingering:
    """`patience_s`: how long it may neither end, nor write output, nor use a CPU; who exports or evaluates does one of
    these. Times are the supervisor's clock's."""

    def __init__(self, log: str, patience_s: float) -> None:
        self._ranks = 0  # that are done
        self._step = 0  # at which they were
        self._log = log
        self._patience_s = patience_s
        self._stillness = Stillness(log, 0.0)
        self._next_look = 0.0

    @property
    def done(self) -> bool:
        """A rank said that training is complete."""
        return self._ranks > 0

    def trained(self, step: int) -> None:
        """A rank has come to this step: beyond the last one it is another training of the same program."""
        if step > self._step:
            self._ranks = 0

    def said_done(self, step: int, now: float) -> None:
        """A rank says it."""
        self._ranks += 1
        self._step = max(self._step, step)
        self._stillness = Stillness(self._log, now, STILL * self._ranks)
        self._next_look = now

    def over(self, supervisor: int, now: float) -> bool:
        """Once a turn while the main process runs: true when it has stood still for too long."""
        if not self.done or now < self._next_look:
            return False
        self._next_look = now + min(LOOK_S, self._patience_s / 4)
        self._stillness.look(supervisor, now)
        _, still_s, _ = self._stillness.measured(now)
        return still_s is not None and still_s >= self._patience_s
