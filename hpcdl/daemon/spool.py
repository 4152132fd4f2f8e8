"""Intake of submits that were spooled while no daemon ran.

A file goes only once its jobs are in the ledger, or can never be; the request id keeps a submit from being two.
Neighbours: `wire/spool` has the files, `api/submit` checks the body.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import commands as cmd
from hpcdl.daemon.api.submit import BadSubmit, submit_of
from hpcdl.wire.private_files import NotPrivate
from hpcdl.wire.spool import VERSION, Spool, StillChanging

log = logging.getLogger("hpcdl.daemon")

AT_ONCE = 200
"""Files that one look takes at most, and"""
AT_ONCE_BYTES = 64 << 20
"""their content; what is left waits for the next look."""

ANSWER_S = 30.0
"""What is not recorded by then is tried again at the next look; its request id keeps a submit from being two."""


class SpoolReader:
    """Submits what is spooled, in its order. What cannot be submitted is put aside, and recorded as a trouble."""

    def __init__(
        self, home: Path, send: Callable[[cmd.Command], "Future[Any]"], on_trouble: Callable[[str, str], None]
    ) -> None:
        """`send`: the loop's. `on_trouble(where, detail)`: for what users should see."""
        self._home = home
        self._send = send
        self._on_trouble = on_trouble
        self._lock = threading.Lock()

    def look(self) -> int:
        """Takes in what is there now, at most AT_ONCE files; how many. From any thread, but not the loop's own."""
        if not self._lock.acquire(blocking=False):
            return 0  # another thread is at it
        try:
            with Spool(self._home) as spool:
                return self._take_all(spool)
        except FileNotFoundError:
            return 0  # nothing was ever spooled
        except (NotPrivate, OSError) as error:
            self._on_trouble("spool", f"nothing is taken in: {error}")
            return 0
        finally:
            self._lock.release()

    def _take_all(self, spool: Spool) -> int:
        under_way: list[tuple[str, Future[Any]]] = []
        size = 0
        for name in spool.names()[:AT_ONCE]:
            try:
                content = spool.read(name)
                size += len(content)
                under_way.append((name, self._send(_command(content))))
            except StillChanging as error:
                log.info("%s: left for later", error)
            except FileNotFoundError:
                log.info("%s was taken away from the spool", name)
            except (BadSubmit, NotPrivate, OSError) as error:
                self._refuse(spool, name, str(error))
            if size >= AT_ONCE_BYTES:
                break
        end = time.monotonic() + ANSWER_S
        return sum(self._finish(spool, name, answer, max(0.0, end - time.monotonic())) for name, answer in under_way)

    def _finish(self, spool: Spool, name: str, answer: "Future[Any]", within_s: float) -> bool:
        """Whether the submit is in the ledger; only then, or if it never can be, its file goes."""
        try:
            ids = answer.result(within_s)
        except cmd.CommandRefused as refusal:
            if refusal.code != "stopping":
                self._refuse(spool, name, str(refusal))
            return False
        except (JournalError, TimeoutError) as error:
            log.warning("the spooled %s is not recorded yet: %s", name, error)
            return False
        except Exception as error:  # it must not keep the others from being taken in, at each look again
            log.exception("the spooled %s failed", name)
            self._refuse(spool, name, f"the daemon failed at it, see daemon.log: {type(error).__name__}")
            return False
        log.info("took in the spooled %s: jobs %s to %s", name, ids[0], ids[-1])
        try:
            spool.remove(name)
        except OSError as error:
            self._on_trouble("spool", f"{spool.path / name} is taken in and cannot be removed: {error.strerror}")
        return True

    def _refuse(self, spool: Spool, name: str, reason: str) -> None:
        try:
            aside = spool.refuse(name, reason)
        except (NotPrivate, OSError) as error:
            self._on_trouble("spool", f"{name} is refused ({reason}) and cannot be put aside: {error}")
        else:
            self._on_trouble("spool", f"a spooled submit is refused, and now {aside}: {reason}")


def _command(content: bytes) -> cmd.Submit:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise BadSubmit("the file is not JSON") from None
    if not isinstance(body, dict):
        raise BadSubmit("the file is not a JSON object")
    if body.get("version") != VERSION:
        raise BadSubmit(
            f"it has version {body.get('version')!r:.20}, this daemon reads {VERSION}: submit again with its hpcdl"
        )
    return submit_of(body)
