"""How the ranks of one trainer agree: on the step to suspend at, the checkpoint to load, and that all are there.

On the step they agree without a collective: in memory on one node (step_counters.py), over TCP on several
(stop_exchange.py). On the rest by the collectives of what joins them (`JoinedRanks`: torch.py, tensorflow.py and
horovod.py bring theirs), or, on one node, in the run folder, whatever joins them (MPI, sockets of their own).
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.group.step_counters import StepCounters
from hpcdl.trainer.session import Session, attach, log

if TYPE_CHECKING:
    from hpcdl.trainer.group.stop_exchange import Endpoint

SIZES = (
    "WORLD_SIZE",
    "HPCDL_LOCAL_RANKS",
    "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
)
BOOT = "/proc/sys/kernel/random/boot_id"  # two nodes may have the same numbers for two folders
OUTSIDE = "outside"  # of hpcdl, where nobody asks for a suspend
ABSENT_S = 60.0  # for a rank that has not come to its loop: the others then go on without its word
POLL_S = 0.005
LOOK_S = 0.2
HOW_RANKS_ARE_KNOWN = (
    "hpcdl knows a rank by what torchrun or another launcher puts into the environment, or by hpcdl.attach(rank). Call "
    "that first in the function of each rank, and nowhere else, where the script starts them (torch.multiprocessing)"
)


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
        """What rank 0, the writer, found, on every rank."""
        return found

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks."""
        return [text]

    def check_writer(self, session: Session) -> None:
        """Raises RuntimeError on every rank where a framework joins several that take themselves for rank 0."""

    def barrier(self) -> None:
        """Returns once every rank has come here."""


class JoinedRanks(RankAgreement):
    """Ranks that a framework joins, by its collectives, of which a subclass has at least `gather`.

    They agree on the step of a suspend without one. Only where they cannot, as where one node reaches no other, do they
    ask each other at each `every`-th step: a suspend then comes up to so many steps later.
    """

    def __init__(self, size: int, every: int = 1) -> None:
        """`size`: how many there are. Raises ValueError."""
        if every < 1:
            raise ValueError(f"every {every} must be 1 or more")
        self.size = size
        self._every = every
        self._calls = 0
        self._arrive: Callable[[bool], bool] | None = bool if size == 1 else None

    def gather(self, text: str) -> list[str]:
        """Every rank's text, of one line, in one order on all of them. Collective."""
        raise NotImplementedError

    def any(self, flag: bool) -> bool:
        return "1" in self.gather("1" if flag else "0")

    def agree(self, flag: bool) -> bool:
        if self._arrive is None:
            self._arrive = self._meet()
        return self._arrive(flag)

    def choose(self, found: Checkpoint | None) -> Checkpoint | None:
        if self.size == 1:
            return found
        texts = self.gather(json.dumps(None if found is None else [found.step, found.incarnation]))
        # A framework may call another rank its first than hpcdl does: only the writer has looked.
        chosen = next((each for each in map(json.loads, texts) if each is not None), None)
        return None if chosen is None else attach().stored(*chosen)

    def check_writer(self, session: Session) -> None:
        """Each would write, and resume by, the random state and the place in the data of rank 0. Collective."""
        if self.size == 1:
            return
        writes = session.writer and session.checkpoint_dir is not None
        writers = self.gather("1" if writes else "0").count("1")
        if writers > 1:
            raise RuntimeError(f"{writers} ranks take themselves for rank 0: {HOW_RANKS_ARE_KNOWN}")

    def barrier(self) -> None:
        self.gather("")

    def _ask(self, flag: bool) -> bool:
        self._calls += 1
        return self._calls % self._every == 0 and self.any(flag)

    def _meet(self) -> Callable[[bool], bool]:
        """Collective: what to call at each boundary, of the same kind on all ranks."""
        session, me = attach(), secrets.token_hex(8)
        said = self.gather(f"{me} {place_of_run_folder() if session.inside else OUTSIDE}")
        ranks = [text.partition(" ")[0] for text in said]
        places = [text.partition(" ")[2] for text in said]
        if set(places) == {OUTSIDE}:
            return bool
        number, nodes = ranks.index(me), list(dict.fromkeys(places))
        here = [rank for rank, place in enumerate(places) if place == places[number]]
        counters = node_counters(session, here.index(number)) if session.inside else None
        if self.any(counters is None) or counters is None:
            return self._ask
        if len(nodes) > 1 and self.any(counters.shared):
            counters.shared = False
            endpoint = self._serve(len(nodes)) if number == 0 else None
            endpoint = json.loads(self.gather(json.dumps(endpoint))[0])
            linked = endpoint is not None
            if endpoint is not None and number == here[0]:
                linked = self._link(counters, nodes.index(places[number]), endpoint)
            if self.any(not linked):
                log.warning("the nodes do not reach each other: the ranks ask each other by collectives")
                counters.shared = True
                return self._ask
        return counters.arrive

    @staticmethod
    def _serve(nodes: int) -> Endpoint | None:
        """Where so many nodes say at which boundary they can stop."""
        from hpcdl.trainer.group.stop_exchange import StopServer  # asyncio takes its time

        address = os.environ.get("HPCDL_ADDRESS", "")
        try:
            return StopServer(address, nodes).endpoint if address else None
        except OSError as error:
            log.warning("no port at %s for the step to suspend at: %s", address, error)
            return None

    @staticmethod
    def _link(counters: StepCounters, node: int, endpoint: Endpoint) -> bool:
        """Links the memory of this node, which has that number, with the others'; whether that worked."""
        from hpcdl.trainer.group.stop_exchange import StopClient

        try:
            StopClient(counters, node).start(endpoint)
        except OSError as error:
            log.warning("%s:%d of rank 0 is not reached: %s", endpoint[0], endpoint[1], error)
            return False
        return True


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


def place_of_run_folder() -> str:
    """The same on all ranks that share the run folder, and on no others."""
    try:
        found = os.stat(run_folder(os.environ))
        return f"{Path(BOOT).read_text().strip()} {found.st_dev} {found.st_ino}"  # one line
    except OSError as error:  # a supervisor that is gone, say, and its folder with it
        return f"{os.uname().nodename} {os.getpid()} {error}"


_counters: list[tuple[Session, StepCounters]] = []  # of this process, for all of its training loops
_node_ranks: list[tuple[Session, NodeRanks]] = []


def node_counters(session: Session, rank: int) -> StepCounters | None:
    """This process's, which has that number among its node's; None where there are none."""
    if not _counters or _counters[0][0] is not session:
        try:
            counters = StepCounters(run_folder(os.environ), session.incarnation, rank)
        except (OSError, ValueError) as error:
            log.warning("the ranks cannot agree in the run folder: %s", error)
            return None
        _counters[:] = [(session, counters)]
    return _counters[0][1]


def agreement(session: Session) -> RankAgreement:
    """Of the ranks that the environment names, where no framework joins them."""
    ranks = size(os.environ)
    nodes = [name for name in os.environ.get("HPCDL_NODES", "").split(",") if name]
    here = session.inside and len(nodes) <= 1 and ranks > 1
    counters = node_counters(session, session.rank) if here else None
    if counters is None:
        return RankAgreement()
    if not _node_ranks or _node_ranks[0][0] is not session:
        _node_ranks[:] = [(session, NodeRanks(session, counters, session.rank, ranks))]
    return _node_ranks[0][1]
