"""The commands beside the trainers of this node: opened, fed and ended as the daemon says."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from hpcdl.agent import runfolder, startfile
from hpcdl.agent.orphans import Orphans
from hpcdl.agent.processfile import ProcessFile
from hpcdl.agent.reports import Key
from hpcdl.agent.shell import Beside, Shell
from hpcdl.wire.messages import ShellEndMessage, ShellMessage, ShellOpenMessage
from hpcdl.wire.private import NotPrivate, open_private_folder

log = logging.getLogger("hpcdl.agent")

MOST = 16
"""So many at once on a node."""


NOT_FOR_OTHERS = ("HPCDL_TAG", "HPCDL_SOCKET", "HPCDL_CHECKPOINT_DIR")
"""By these a process would be a rank of the trainer, or write checkpoints as one."""


def place(folder: Path, tag: str, gpu_env: Mapping[str, str]) -> Beside:
    """Where a command beside the trainer of this run folder runs: its environment and its folder, and the GPUs that it
    has now. Raises OSError and ValueError."""
    try:
        opened = runfolder.open_folder(str(folder))
    except runfolder.NotOurs as error:
        raise ValueError(str(error)) from None
    try:
        start = startfile.decode(runfolder.read_start(opened))
    finally:
        os.close(opened)
    env = {name: value for name, value in start.env.items() if name not in NOT_FOR_OTHERS}
    if start.checkpoint_dir is not None:
        env["HPCDL_JOB_CHECKPOINT_DIR"] = start.checkpoint_dir
    return Beside(tag, start.cwd, env | dict(start.gpu_env or {}) | dict(gpu_env))


class Shells:
    """Everything belongs to the event loop's thread. `outgoing`: what the daemon is to hear."""

    def __init__(self, orphans: Orphans, run: Path) -> None:
        """`run`: the agent's folder, where their processes are recorded for the next agent."""
        self._orphans = orphans
        self._run = run
        self._file: ProcessFile | None = None
        self.outgoing: asyncio.Queue[ShellMessage] = asyncio.Queue()
        self._open: dict[str, tuple[Key, Shell]] = {}
        self._early: dict[str, list[ShellMessage]] = {}
        self._lives: set[asyncio.Task[None]] = set()

    def open(self, message: ShellOpenMessage, place: Callable[[], Awaitable[Beside | str]]) -> None:
        """Starts one. `place()`: where, or why it cannot be there. Never waits."""
        if len(self._open) + len(self._early) >= MOST:
            why = f"{MOST} commands and shells are open on this node: end one of them first"
            self.outgoing.put_nowait(ShellEndMessage(message.id, None, why))
        elif message.id not in self._open and message.id not in self._early:
            self._early[message.id] = []
            life = asyncio.create_task(self._live(message, place))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)

    async def _live(self, message: ShellOpenMessage, place: Callable[[], Awaitable[Beside | str]]) -> None:
        key = (message.job, message.incarnation)
        where = await place()
        early = self._early.pop(message.id)
        if isinstance(where, str):
            self.outgoing.put_nowait(ShellEndMessage(message.id, None, where))
            return
        shell = Shell(message, where, self.outgoing.put_nowait, self._orphans)
        self._open[message.id] = key, shell
        log.info("a %s was opened beside job %d.%d", "terminal" if message.rows else "command", *key)
        for each in early:
            shell.take(each)
        try:
            await shell.run()
        finally:
            del self._open[message.id]
            log.info("a session beside job %d.%d has ended", *key)

    def take(self, message: ShellMessage) -> None:
        """What comes for one of them; what is over hears nothing."""
        if message.id in self._early:
            self._early[message.id].append(message)
        elif message.id in self._open:
            self._open[message.id][1].take(message)

    def end(self, key: Key, why: str) -> None:
        """Those beside this incarnation are to end: it goes."""
        for of, shell in self._open.values():
            if of == key:
                shell.end(why)

    def record(self, now: float) -> None:
        """About once a second, by any monotonic clock: writes down what runs below them."""
        roots = [pid for _, shell in self._open.values() if (pid := shell.pid)]
        if not roots and self._file is None:
            return
        if self._file is None:
            try:
                self._file = ProcessFile(open_private_folder(self._run))
            except (OSError, NotPrivate):
                return
        self._file.look(roots, now)

    async def gone(self, key: Key) -> None:
        """Returns once no process of those beside this incarnation is left."""
        for shell in [shell for of, shell in self._open.values() if of == key]:
            await shell.gone.wait()

    def parted(self) -> None:
        """The daemon is away, and with it whoever would hear of them: they end."""
        for _, shell in self._open.values():
            shell.end("the daemon went away", silent=True)
        for early in self._early.values():
            early.append(ShellEndMessage("", None, "the daemon went away"))
        while not self.outgoing.empty():
            self.outgoing.get_nowait()

    async def close(self) -> None:
        """The agent ends: nothing of theirs stays."""
        self.parted()
        if self._lives:
            await asyncio.wait(self._lives, timeout=5.0)
