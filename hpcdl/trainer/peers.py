"""How the ranks of one trainer agree: on the step to suspend at, the checkpoint to load, and that all are there.

Ranks of one node do so in the run folder, whatever joins them (PyTorch, Horovod, MPI, sockets of their own):
step_counters.py has the step. Ranks of several nodes need a framework's collectives: torch.py has PyTorch's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.session import Session, log
from hpcdl.trainer.step_counters import StepCounters

SIZES = (
    "WORLD_SIZE",
    "HPCDL_LOCAL_RANKS",
    "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
)
ABSENT_S = 60.0  # for a rank that has not come to its loop: the others then go on without its word
POLL_S = 0.005
LOOK_S = 0.2


def size(environ: Mapping[str, str]) -> int:
    """How many ranks the environment names."""
    return max((int(environ[name]) for name in SIZES if environ.get(name, "").isdigit()), default=1)


class RankAgreement:
    """How the ranks of one trainer agree; every rank calls the same methods in the same order.

    As it stands here it is for a trainer of one rank, or of ranks that need no agreement.
    """

    def any(self, flag: bool) -> bool:
        """True on every rank if the flag is true on one."""
        return flag

    def agree(self, flag: bool) -> bool:
        """As `any`, at a step boundary, but may answer True some boundaries later, on every rank at the same one."""
        return flag

    def choose(self, found: Checkpoint | None) -> Checkpoint | None:
        """What rank 0 found, on every rank."""
        return found

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks."""
        return [text]

    def barrier(self) -> None:
        """Returns once every rank has come here."""


class NodeRanks(RankAgreement):
    """By the run folder, which all ranks of a node share. A rank that has ended is not waited for; one that never came
    to its loop for a minute, and by `barrier` not at all."""

    def __init__(self, session: Session, counters: StepCounters, rank: int, size: int) -> None:
        self._session = session
        self._counters = counters
        self._rank = rank
        self._size = size
        self._round = 0
        self._folder = run_folder(os.environ)
        self._old: list[Path] = []

    def agree(self, flag: bool) -> bool:
        return self._counters.arrive(flag)

    def any(self, flag: bool) -> bool:
        return "1" in self.gather("1" if flag else "0")

    def choose(self, found: Checkpoint | None) -> Checkpoint | None:
        self._say(json.dumps(None if found is None else [found.step, found.incarnation]))
        if self._rank == 0:
            return found
        texts = self._hear([0], self._absent)
        if not texts:
            return self._session.resume()
        chosen = json.loads(texts[0])
        return None if chosen is None else self._session.stored(*chosen)

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks, save for ranks that do not come."""
        return self._gather(text, self._absent)

    def barrier(self) -> None:
        self._gather("", lambda rank, since: not self._counters.lives(rank))

    def _absent(self, rank: int, since: float) -> bool:
        if self._counters.came(rank):
            return not self._counters.lives(rank)
        return time.monotonic() - since >= ABSENT_S

    def _gather(self, text: str, absent: Callable[[int, float], bool]) -> list[str]:
        self._say(text)
        texts = self._hear(range(self._size), absent)
        if len(texts) == self._size:
            # Everybody is in this round, so nobody reads what was said in those before. One that comes late does.
            for path in self._old[:-1]:
                path.unlink(missing_ok=True)
            del self._old[:-1]
        return texts

    def _path(self, rank: int) -> Path:
        return self._folder / f"said.{self._session.incarnation}.{self._counters.launch}.{self._round}.{rank}"

    def _say(self, text: str) -> None:
        self._round += 1
        path = self._path(self._rank)
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(text)
        os.replace(temporary, path)
        self._old.append(path)

    def _hear(self, ranks: Iterable[int], absent: Callable[[int, float], bool]) -> list[str]:
        """What these ranks say in this round. `absent`: whether one is not to be waited for, since when."""
        since = time.monotonic()
        texts = []
        for rank in ranks:
            path, look = self._path(rank), since
            while True:
                gone = False
                if time.monotonic() >= look:
                    look = time.monotonic() + LOOK_S
                    gone = absent(rank, since)
                try:
                    texts.append(path.read_text())
                    break
                except FileNotFoundError:
                    pass
                if gone:
                    log.warning("rank %d does not come: the others go on without it", rank)
                    break
                time.sleep(POLL_S)
        return texts


def run_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the attempt on this node."""
    return Path(environ["HPCDL_SOCKET"]).parent


_node_ranks: list[NodeRanks] = []  # of this process, for all of its training loops


def node_ranks(session: Session, rank: int, size: int) -> NodeRanks | None:
    """This process's, of so many ranks that are all on this node; None where they cannot agree in the run folder."""
    if not _node_ranks or _node_ranks[0]._session is not session:
        try:
            counters = StepCounters(run_folder(os.environ), session.incarnation, rank)
        except (OSError, ValueError) as error:
            log.warning("the ranks cannot agree in the run folder: %s", error)
            return None
        _node_ranks[:] = [NodeRanks(session, counters, rank, size)]
    return _node_ranks[0]


def agreement(session: Session) -> RankAgreement:
    """Of the ranks that the environment names, where no framework joins them."""
    ranks = size(os.environ)
    nodes = [name for name in os.environ.get("HPCDL_NODES", "").split(",") if name]
    here = session.inside and len(nodes) <= 1 and ranks > 1
    found = node_ranks(session, session.rank, ranks) if here else None
    return RankAgreement() if found is None else found
