"""What starts a daemon of a home again: the line that submits its batch script, where the last one ran in one.

An allocation leaves that line in HPCDL_HOME, `hpcdl daemon start` removes it.
"""

from pathlib import Path

from hpcdl.wire.private_files import NotPrivate, atomic_write, read_private

NAME = "last-start"
BY_HAND = "hpcdl daemon start"
LONGEST = 200


def start_command(home: Path) -> str:
    """The command that starts one as the last one was started."""
    try:
        line = read_private(home / NAME, LONGEST).decode().strip()
    except (NotPrivate, OSError, ValueError):
        return BY_HAND
    return line if line.isprintable() and line else BY_HAND


def start_step(home: Path) -> str:
    """What to do where no daemon runs."""
    return f"start one with: {start_command(home)}"


def remember_start(home: Path, line: str) -> None:
    """`line`: the command; BY_HAND leaves no file. Raises OSError."""
    if line == BY_HAND:
        (home / NAME).unlink(missing_ok=True)
    else:
        atomic_write(home / NAME, f"{line}\n".encode())
