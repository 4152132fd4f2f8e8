"""From the command line to a running agent: its folder, its lock, its log, and the signals that end it.

Where it cannot run it says why in one line, and has started nothing. The agent itself is in agent.py.
"""

import asyncio
import logging
import logging.handlers
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from hpcdl.agent import folder
from hpcdl.agent.agent import Agent
from hpcdl.agent.context import AgentContext
from hpcdl.agent.departure import EnclosingJob, end_signals
from hpcdl.agent.folder import AnotherAgent
from hpcdl.agent.gpu.discovery import discover
from hpcdl.agent.gpus import Gpus
from hpcdl.agent.report_log import ReportLog
from hpcdl.agent.run_folder import find
from hpcdl.agent.supervisor import launch
from hpcdl.config.settings import load_config
from hpcdl.wire.access import AccessError, AccessFile, read_access
from hpcdl.wire.private_files import NotPrivate, open_private

log = logging.getLogger("hpcdl.agent")

FAILED, ANOTHER_RUNS = 1, 3
ACCESS_WAIT_S = 10.0
END_S = 2.0
"""A thread that hangs in a GPU driver must not keep an agent that was asked to end."""
LOG_BYTES, LOGS_KEPT = 8 << 20, 2


def main(
    home: Path,
    node: str,
    emulate_gpus: int | None,
    said: bool,
    stay: EnclosingJob,
    absence_s: float,
    daemon: int | None = None,
) -> int:
    """Runs until a signal or the daemon ends it. 0: so ended; 3: this node has an agent; 1: it cannot run. One line
    says why.

    `emulate_gpus` None: as many as this node's last agent had, unless real ones are what was `said`. `stay`: the batch
    job that this is in; there supervisors without an agent end their trainers after `absence_s` seconds.
    `daemon`: the process that started this one, None where that was no daemon.
    """
    os.umask(0o077)
    early = _Early()
    if stay.allocation:
        for number in end_signals():
            signal.signal(number, early.came)
    home = home.absolute()
    try:
        if not node or "/" in node or node in (".", "..") or not node.isprintable():
            raise ValueError(f"{node!r} cannot be a node's name")
        config = load_config(home)
        absence_s = min(config.agent_absence_s, absence_s) if stay.allocation else config.agent_absence_s
        access = _access(home, early)
        run = folder.run_folder(home, node, access.instance)
        lock = folder.lock(run, daemon)
        early.may_go(run)
    except AnotherAgent as error:
        return _fail(str(error), ANOTHER_RUNS)
    except (AccessError, NotPrivate, OSError, ValueError) as error:
        return _fail(str(error), FAILED)
    try:
        launch.become_subreaper()
    except OSError as error:  # what hides from a supervisor that dies is then found by its record alone
        log.warning("this agent cannot be a subreaper: %s", error)
    try:
        about = folder.write_about(run, node, emulate_gpus, said)
        stderr = _begin_logging(run / folder.LOG)
        source = discover(about.emulate_gpus, run / folder.EMULATED)
        reports = ReportLog(run / folder.REPORTS)
        log.info("agent of %s, process %d, in %s; GPUs: %s %s", node, os.getpid(), run, source.name, source.detail)
        gpus = Gpus(source, os.environ.get("CUDA_VISIBLE_DEVICES"), node, reports)
        site = AgentContext(
            node, access.instance, home, run, config, absence_s, reports, gpus, stderr, allocation=stay.allocation
        )
        return asyncio.run(_run(Agent(home, site, lock, stay), stay, early))
    except (NotPrivate, OSError, ValueError) as error:
        log.exception("the agent cannot run")
        return _fail(str(error), FAILED)


class _Early:
    """A batch system's signal that comes before the agent can answer it. `name`: which, "" for none.

    It ends this process at once, but where an earlier agent has left trainers: they are to save first.
    """

    def __init__(self) -> None:
        self.name = ""
        self._run: Path | None = None

    def came(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals."""
        self.name = signal.Signals(number).name
        if self._run is not None:
            self.may_go(self._run)

    def may_go(self, run: Path) -> None:
        """From here on it is known whether there are trainers: in this folder."""
        self._run = run
        if self.name and next(find(run), None) is None:
            os._exit(0)


async def _run(agent: Agent, stay: EnclosingJob, early: _Early) -> int:
    own = asyncio.create_task(agent.run())
    loop = asyncio.get_running_loop()

    def end() -> None:
        own.cancel()
        loop.call_later(END_S, os._exit, 0)

    if stay.allocation:
        for number in end_signals():
            loop.add_signal_handler(number, agent.leave, f"{number.name} in batch job {stay.allocation}")
        if early.name:
            agent.leave(f"{early.name} in batch job {stay.allocation}")
    else:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, end)
    try:
        await own
    except asyncio.CancelledError:
        log.info("asked to end: supervisors and trainers stay, the next agent adopts them")
    if stay.allocation:
        os._exit(0)  # the node is waited for: no thread of a GPU's driver is
    return 0


def _access(home: Path, early: _Early) -> AccessFile:
    until = time.monotonic() + ACCESS_WAIT_S
    while True:
        try:
            return read_access(home)
        except AccessError:
            if early.name:
                os._exit(0)  # nobody has started a trainer
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
