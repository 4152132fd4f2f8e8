"""From the command line to a running agent: its folder, its lock, its log, and the signals that end it."""

import asyncio
import logging
import logging.handlers
import os
import signal
import sys
import time
from pathlib import Path

from hpcdl.agent import folder
from hpcdl.agent.agent import Agent
from hpcdl.agent.folder import AnotherAgent
from hpcdl.agent.orders import Limits
from hpcdl.agent.reports import ReportLog
from hpcdl.config import load_config
from hpcdl.gpu import GpuSource, discover
from hpcdl.wire.access import AccessError, AccessFile, read_access
from hpcdl.wire.private import NotPrivate, open_private

log = logging.getLogger("hpcdl.agent")

FAILED, ANOTHER_RUNS = 1, 3
ACCESS_WAIT_S = 10.0
END_S = 2.0
"""A thread that hangs in a GPU driver must not keep an agent that was asked to end."""
LOG_BYTES, LOGS_KEPT = 8 << 20, 2


def main(home: Path, node: str, emulate_gpus: int | None) -> int:
    """Runs until it is told to end. 0: told so; 3: this node has an agent; 1: it cannot run. One line says why.

    `emulate_gpus` None: as many as this node's last agent had.
    """
    os.umask(0o077)
    home = home.absolute()
    try:
        if not node or "/" in node or node in (".", "..") or not node.isprintable():
            raise ValueError(f"{node!r} cannot be a node's name")
        config = load_config(home)
        limits = Limits(config.agent_absence_s, config.stopped_s, config.log_limit_bytes)
        access = _access(home)
        run = folder.run_folder(home, node, access.instance)
        lock = folder.lock(run)
    except AnotherAgent as error:
        return _fail(str(error), ANOTHER_RUNS)
    except (AccessError, NotPrivate, OSError, ValueError) as error:
        return _fail(str(error), FAILED)
    try:
        about = folder.write_about(run, node, emulate_gpus)
        stderr = _begin_logging(run / folder.LOG)
        source = discover(about.emulate_gpus, run / folder.EMULATED)
        return asyncio.run(_run(home, node, access.instance, run, limits, lock, source, stderr))
    except (NotPrivate, OSError, ValueError) as error:
        log.exception("the agent cannot run")
        return _fail(str(error), FAILED)


async def _run(
    home: Path, node: str, instance: str, run: Path, limits: Limits, lock: int, source: GpuSource, stderr: int
) -> int:
    reports = ReportLog(run / folder.REPORTS)
    agent = Agent(home, node, instance, run, limits, lock, source, reports, stderr)
    log.info("agent of %s, process %d, in %s; GPUs: %s %s", node, os.getpid(), run, source.name, source.detail)
    own = asyncio.create_task(agent.run())
    loop = asyncio.get_running_loop()

    def end() -> None:
        own.cancel()
        loop.call_later(END_S, os._exit, 0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    try:
        await own
    except asyncio.CancelledError:
        log.info("asked to end: supervisors and trainers stay, the next agent adopts them")
    return 0


def _access(home: Path) -> AccessFile:
    until = time.monotonic() + ACCESS_WAIT_S
    while True:
        try:
            return read_access(home)
        except AccessError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _begin_logging(path: Path) -> int:
    """Logs to a file of bounded size; the descriptor of one that is for supervisors, which rarely say anything."""
    logging.raiseExceptions = False  # a full disk costs lines of the log, nothing else
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("hpcdl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _fail(why: str, code: int) -> int:
    sys.stderr.write(f"hpcdl agent: {why}\n")
    return code
