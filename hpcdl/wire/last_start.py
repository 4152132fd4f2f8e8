"""What starts a daemon of a home again: as the last one was started, `hpcdl daemon start` or the line that submits its
batch script. Either leaves that line in HPCDL_HOME.
"""

from collections.abc import Callable
from pathlib import Path

from hpcdl.wire.private_files import NotPrivate, atomic_write, read_private

NAME = "last-start"
BY_HAND = "hpcdl daemon start"
LONGEST = 200

submit_line: Callable[[Path], str] | None = None
"""Says what submits a home's batch script on this machine, "" where there is no batch system. Who asks for daemons sets
it: the command line, and Python's API."""


def start_command(home: Path) -> str:
    """The command that starts one as the last one was started; all that there are where none is known."""
    try:
        line = read_private(home / NAME, LONGEST).decode().strip()
    except FileNotFoundError:
        submits = submit_line(home) if submit_line is not None else ""
        return f"{submits}, or {BY_HAND}" if submits else BY_HAND
    except (NotPrivate, OSError, ValueError):
        return BY_HAND
    return line if line.isprintable() and line else BY_HAND


def start_step(home: Path) -> str:
    """What to do where no daemon runs."""
    return f"start one with: {start_command(home)}"


def remember_start(home: Path, line: str) -> None:
    """`line`: the command. Raises OSError."""
    atomic_write(home / NAME, f"{line}\n".encode())
