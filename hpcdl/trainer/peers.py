"""Ranks of one node that no torch.distributed joins (Horovod, MPI, sockets of their own) agree on where to stop.

A rank that hears of a suspend writes at which step boundary it heard, into the run folder, and trains on; it stops at
the first boundary after the last of all. Ranks in lock-step meet in each step, so there everybody has read it all, and
nobody is past it. Nothing is written or read before a suspend is asked for, but that a rank is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.session import Session, log

SIZES = ("WORLD_SIZE", "HPCDL_LOCAL_RANKS", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
PATIENCE = 0.5  # of the grace, for a rank that has died or does not look


def several(session: Session, environ: Mapping[str, str]) -> bool:
    """Whether the environment names more ranks than this one, all on this node."""
    nodes = [name for name in environ.get("HPCDL_NODES", "").split(",") if name]
    return session.inside and len(nodes) <= 1 and size(environ) > 1


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
        """As `any`, but may answer False at most steps, on every rank alike, to spare the exchange."""
        return flag

    def choose(self, found: Checkpoint | None) -> Checkpoint | None:
        """What rank 0 found, on every rank."""
        return found

    def barrier(self) -> None:
        """Returns once every rank has come here."""

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks."""
        return [text]


class FileRanks(RankAgreement):
    """By files; made on every rank before its first step.

    Outside of a step nothing can be asked of the others, so `any` is this rank's own flag; one that ends waits for
    nobody, so `barrier` does nothing.
    """

    def __init__(self, session: Session, environ: Mapping[str, str]) -> None:
        self._session = session
        self._folder = Path(environ["HPCDL_SOCKET"]).parent
        self._name = f"{session.incarnation}.{session.rank}"
        self._size = size(environ)
        self._boundary = 0
        self._wrote_at: float | None = None
        self._patience_s = PATIENCE * float(environ.get("HPCDL_GRACE_S") or 60)
        self._write("rank", 0)

    def _write(self, kind: str, boundary: int) -> None:
        try:
            path = self._folder / f"{kind}.{self._name}"
            temporary = path.with_name(f".{path.name}")
            temporary.write_text(str(boundary))
            os.replace(temporary, path)
        except OSError as error:
            log.warning("the other ranks do not hear of the suspend: %s", error)

    def _all(self, kind: str) -> dict[str, int]:
        found = {}
        for path in self._folder.glob(f"{kind}.{self._session.incarnation}.*"):
            try:
                if int(path.suffix[1:]) < self._size:  # others are left from when there were more
                    found[path.suffix] = int(path.read_text())
            except (OSError, ValueError):
                continue
        return found

    def agree(self, flag: bool) -> bool:
        """True at the one boundary at which all stop, once the flag was true on each."""
        self._boundary += 1
        if not flag:
            return False
        if self._wrote_at is None:
            self._wrote_at = time.monotonic()
            self._write("stop", self._boundary)
        stops = self._all("stop")
        if self._all("rank").keys() <= stops.keys():
            return self._boundary > max(stops.values(), default=0)
        if time.monotonic() - self._wrote_at < self._patience_s:
            return False
        log.warning("another rank says nothing of the suspend: this one saves without it")
        return True

    def choose(self, found: Checkpoint | None) -> Checkpoint | None:
        """What lies in the folder that all of them share."""
        return found if self._session.writer else self._session.resume()
