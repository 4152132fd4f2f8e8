"""The start of the trainer's first process: in a session of its own, and never outliving its supervisor.

Between fork and exec nothing may be imported, looked up or allocated. Why a command cannot be started is said as a
shell would, with its exit codes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Collection

from hpcdl.agent.supervisor.node_faults import MOUNT
from hpcdl.agent.supervisor.resources import bind, enter, mark
from hpcdl.agent.supervisor.start_file import TORCHRUN, Start
from hpcdl.wire.child import dies_with, prctl

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
NOT_FOUND = 127  # exit codes as a shell gives them
NOT_EXECUTABLE = 126
NO_PYTHON = "--no-python"
"""What stands before the job's command in the line that starts torchrun (hpcdl/agent/start_request.py)."""
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTSTP, signal.SIGPIPE, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that the supervisor ignores, and the trainer must not: a batch system sends some to all that runs in it."""


class CommandNotStarted(Exception):
    """The command could not be started; `code` is what a shell would exit with, the message is for the user.
    `error`: where it is the node that lacks what every other one may have, what the kernel said."""

    def __init__(self, code: int, detail: str, error: OSError | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.error = error


def become_subreaper() -> None:
    """Orphans below this process become its children, so none of them is lost. Raises OSError."""
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_subreaper() -> bool:
    """Whether this process is one."""
    found = ctypes.c_int(0)
    return bool(prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) == 0 and found.value)


def launch(
    start: Start,
    environment: dict[str, str],
    output: int,
    error: int,
    umask: int,
    cpus: Collection[int] = (),
    cgroup: int | None = None,
) -> int:
    """Start the command with these descriptors as stdout and stderr; its pid. The caller reaps it.

    `cpus`: the processors that it runs on, none: as we do. `cgroup`: an `entrance` that it goes through, and is closed.

    Raises CommandNotStarted.
    """
    _look_for_command(start, environment)
    die = dies_with(os.getpid(), heed_signals)

    def prepare() -> None:
        die()
        bind(cpus)
        mark(start.mark)
        if cgroup is not None:
            enter(cgroup)

    try:
        child = subprocess.Popen(
            start.argv,
            cwd=start.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=error,
            start_new_session=True,
            umask=umask,
            preexec_fn=prepare,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _not_started(start, error) from None
    finally:
        if cgroup is not None:
            os.close(cgroup)
    # The loop reaps with waitpid(-1), so Popen must neither wait for the child nor warn that nobody did.
    child.returncode = 0
    return child.pid


def heed_signals() -> None:
    """Ignores none of those that we ignore; in a child, before its exec."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)


def lead() -> None:
    """The same, and what the child starts stays below it for as long as it lives."""
    heed_signals()
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _look_for_command(start: Start, environment: dict[str, str]) -> None:
    """What torchrun is to run is there; it would say so in a traceback, and not before it has been imported."""
    if start.rescale != TORCHRUN or NO_PYTHON not in start.argv[:-1] or not os.path.isdir(start.cwd):
        return
    command = start.argv[start.argv.index(NO_PYTHON) + 1]
    path = environment.get("PATH", os.defpath)
    at = os.path.join(start.cwd, command) if "/" in command else shutil.which(command, path=path)
    try:
        if at is not None:
            os.stat(at)
    except OSError as error:
        if error.errno in MOUNT or error.errno == errno.EACCES:
            raise CommandNotStarted(NOT_EXECUTABLE, f"cannot start {command}: {error.strerror}", error) from None
        at = None
    if at is None:
        raise CommandNotStarted(NOT_FOUND, f"command not found: {command}")
    if not os.access(at, os.X_OK) or os.path.isdir(at):
        raise CommandNotStarted(NOT_EXECUTABLE, f"cannot start {command}: {os.strerror(errno.EACCES)}")


def _not_started(start: Start, error: Exception) -> CommandNotStarted:
    if not isinstance(error, OSError):
        return CommandNotStarted(NOT_EXECUTABLE, f"cannot start {start.argv[0]}: {error}")
    code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
    if error.filename == start.cwd and not os.access(start.cwd, os.X_OK | os.R_OK):
        return CommandNotStarted(code, f"cannot enter the working directory {start.cwd}: {error.strerror}", error)
    if error.errno == errno.ENOENT:
        return CommandNotStarted(code, f"command not found: {start.argv[0]}")
    if error.errno == errno.ENOEXEC:
        return CommandNotStarted(
            code, f"cannot start {start.argv[0]}: it is no program, nor a script that begins with #!"
        )
    unreachable = error if error.errno in MOUNT or _is_hidden(start) else None
    return CommandNotStarted(code, f"cannot start {start.argv[0]}: {error.strerror}", unreachable)


def _is_hidden(start: Start) -> bool:
    """Whether the command's file may not even be looked at here: then the fault is not in its own rights."""
    try:
        os.stat(os.path.join(start.cwd, start.argv[0]))
    except OSError as error:
        return "/" in start.argv[0] and error.errno == errno.EACCES
    return False
