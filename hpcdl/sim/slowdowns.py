"""What two jobs on one GPU, or on one node, cost each other in a simulation: a workload's slowdown matrix. Values only.

Neither policies nor the Controller see any of it; `agents` has the trainers run at these speeds.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LOSS = 0.18
"""Of its speed a foreground loses where the workload says nothing: what DeepPool prints as the most (section 7.1)."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A cell of the matrix. Raises ValueError.

    `foreground`, `background`: whom it is about, by model or by kind of job (`training`, `inference`); "": any.
    `slowdown`: s, by which a step of the foreground takes longer: it runs at 1/(1 + s) of its speed. `share`: the part
    of its own speed at which the background runs meanwhile. By default the background gets what the foreground loses,
    and no more: nothing is gained. DeepPool's totals, which almost double for VGG-16, say that there is more.

    `apart`: the two are on different GPUs of one node instead, and share its buses (GENIE, figure 18). `foreground` is
    then whom it slows down, and `background` whoever trains there, too: neither agreed to it, and no limit holds it.
    """

    foreground: str = ""
    background: str = ""
    slowdown: float = LOSS / (1 - LOSS)
    share: float = LOSS
    apart: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slowdown) and self.slowdown >= 0):
            raise ValueError(f"the slowdown must be a number, 0 or more, got {self.slowdown}")
        if not 0 < self.share <= 1:
            raise ValueError(f"the background's share must be above 0 and at most 1, got {self.share}")

    def speeds(self, limit: float | None) -> tuple[float, float]:
        """The parts of their own speed at which foreground and background run.

        A slowdown above the foreground's `limit` is held there, as the agent's loop does (`agent.slowdown_loop`): the
        background then runs for as much less of its time. None: nothing is held.
        """
        duty = 1.0 if limit is None or self.apart or self.slowdown <= limit else limit / self.slowdown
        return 1 / (1 + duty * self.slowdown), duty * self.share


def slowdown_of(matrix: Iterable[Slowdown], foreground: tuple[str, str], background: tuple[str, str]) -> Slowdown:
    """The first cell that is about such a pair on a GPU, else the default. The jobs: their (model, kind)."""
    return next(_about(matrix, foreground, background, apart=False), Slowdown())


def interference(matrix: Iterable[Slowdown], job: tuple[str, str], other: tuple[str, str]) -> Slowdown | None:
    """The first cell that is about what a job loses by another one on the same node; None: there is none."""
    return next(_about(matrix, job, other, apart=True), None)


def _about(
    matrix: Iterable[Slowdown], foreground: tuple[str, str], background: tuple[str, str], *, apart: bool
) -> Iterator[Slowdown]:
    for cell in matrix:
        if cell.apart == apart and _is_about(cell.foreground, foreground) and _is_about(cell.background, background):
            yield cell


def _is_about(name: str, job: tuple[str, str]) -> bool:
    return not name or name.casefold() in (job[0].casefold(), job[1])
