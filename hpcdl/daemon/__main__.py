"""`python -m hpcdl.daemon --home DIR`: the daemon process. People use `hpcdl daemon start`."""

import argparse
import asyncio
import errno
import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import NoReturn

from hpcdl.batch.site import SiteError
from hpcdl.config.layers import ConfigError
from hpcdl.config.policy_files import BadPolicyFile
from hpcdl.config.settings import load_config
from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model.profile import ProfileError
from hpcdl.daemon.api.server import LogRateFilter
from hpcdl.daemon.daemon import Daemon
from hpcdl.daemon.memory import end_without_memory
from hpcdl.daemon.ready import ReadyPipe
from hpcdl.ledger.lease import LeaseError
from hpcdl.wire.private_files import NotPrivate, check_way

LOG_BYTES, LOGS_KEPT = 8 << 20, 2

NO_MEMORY = "no memory is left (ulimit -v, or the machine's): the daemon did not start; start it where it may have more"


def main() -> int:
    """Runs until it is stopped. What keeps it from starting is said in one line."""
    parser = argparse.ArgumentParser(prog="hpcdl.daemon")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--emulate-gpus", type=int)
    parser.add_argument("--node")
    parser.add_argument("--no-agent", action="store_true")
    parser.add_argument("--accept-loss", action="store_true")
    parser.add_argument("--moved", action="store_true")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--foreground", action="store_true")
    options = parser.parse_args()
    os.umask(0o077)
    _begin_logging(options.home if options.ready_fd is not None else None)
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    ready = ReadyPipe(options.ready_fd, people=options.foreground)
    try:
        check_way(options.home)
        config = load_config(options.home, {} if options.node is None else {"node_name": options.node})
        ready.phase("opening the ledger")
        daemon = Daemon(
            options.home,
            config,
            options.emulate_gpus,
            not options.no_agent,
            ready.phase,
            options.accept_loss,
            options.moved,
        )
        return asyncio.run(_serve(daemon, ready))
    except (
        ConfigError,
        ProfileError,
        JournalError,
        LeaseError,
        SiteError,
        BadPolicyFile,
        NotPrivate,
        OSError,
        MemoryError,
    ) as error:
        text = _told(error, options.home)
        if not options.foreground:
            logging.getLogger("hpcdl.daemon").error("%s", text)
        ready.tell({"error": text})
        return 1
    except Exception as error:
        logging.getLogger("hpcdl.daemon").exception("the daemon cannot run")
        text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        ready.tell({"error": f"the daemon cannot run: {text}: see {options.home / 'daemon.log'}"})
        return 1


async def _serve(daemon: Daemon, ready: ReadyPipe) -> NoReturn:
    """Runs the daemon, then ends the process at once: the ledger is closed and the lease given back.

    Python would first wait, for as long as it takes, for threads that still compute an estimate, read an archive or
    compile a solver; on a loaded machine that is minutes in which no other daemon can start.
    """
    try:
        exit_code = await daemon.run(ready)
    except Exception as error:
        end_without_memory(error)
        raise
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_code)


def _told(error: Exception, home: Path) -> str:
    """What is wrong, with the path; the system's own errors do not always name it."""
    if isinstance(error, OSError) and error.strerror:
        step = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "correct that"
        return f"{error.filename or home}: {error.strerror}: {step}, then start it again"
    return NO_MEMORY if isinstance(error, MemoryError) else str(error)


def _begin_logging(home: Path | None) -> None:
    """In the background to a file of bounded size in `home`; else to standard error."""
    handler: logging.Handler = logging.StreamHandler()
    if home is not None:
        handler = logging.handlers.RotatingFileHandler(home / "daemon.log", maxBytes=LOG_BYTES, backupCount=LOGS_KEPT)
        logging.raiseExceptions = False  # a full disk costs lines of the log, nothing else
    handler.addFilter(LogRateFilter())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


if __name__ == "__main__":
    sys.exit(main())
