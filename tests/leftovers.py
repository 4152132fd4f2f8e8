"""What a session of tests must not leave: processes, and files in the home and the temporary folder of whoever runs it.

Every process that a test starts, however far below, has a variable in its environment that names the session. Their
TMPDIR is a folder of the session, and so is where Keras keeps its settings.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import uuid
from pathlib import Path

from hpcdl.agent import processes
from hpcdl.agent.processes import Process

VARIABLE = "TESTS_OF_HPCDL"
PATIENCE_S = 20.0
"""For what is on its way out when the last test is over."""


class Session:
    """Of the process that was started by hand; those that pytest-xdist starts are below it and belong to it."""

    def __init__(self) -> None:
        self.owner = VARIABLE not in os.environ
        tempfile.gettempdir()  # this process keeps its own, with pytest's folders
        if self.owner:
            self.folder = Path(tempfile.mkdtemp(prefix="hpcdl-tests-"))
            self.folder.chmod(0o1777)  # as /tmp is: tests with a second uid use it, too
            os.environ |= {VARIABLE: uuid.uuid4().hex, "TMPDIR": str(self.folder)}
            os.environ["KERAS_HOME"] = str(self.folder / "keras")
            self._keras = Path.home() / ".keras"
            self._had_keras = self._keras.exists()

    def left(self) -> list[str]:
        """What is left, in words; processes are ended, and the session's folder goes."""
        end = time.monotonic() + PATIENCE_S
        while (found := self._processes()) and time.monotonic() < end:
            time.sleep(0.1)
        said, commands = [], {each.pid: command for each, command in processes.commands()}
        for each in found:
            said.append(f"process {each.pid} ({each.state}): {' '.join(commands.get(each.pid, []))[:200]}")
            processes.signal_process(each, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._keras.exists() and not self._had_keras:
            said.append(f"{self._keras}")
        return said

    def _processes(self) -> list[Process]:
        mine = os.environ[VARIABLE]
        return [each for each, _ in processes.commands() if processes.variable(each.pid, VARIABLE) == mine]
