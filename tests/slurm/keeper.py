"""Ends what is left of a cluster when the process that made it is gone, however it went.

    python keeper.py CONF FOLDER

It waits for the end of its standard input, kills every process of that cluster until there is none, and removes
FOLDER. Standard library only; it ignores the signals that a terminal sends.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 10.0


def carrying(conf: str) -> list[int]:
    """Processes whose environment at their start named this slurm.conf, but for this one; and every slurmstepd.

    That of 24.11 writes its title over its environment: it is known by its folder, which is that of its slurmd.
    """
    found = []
    wanted, spool = f"SLURM_CONF={conf}".encode(), os.path.join(conf.removesuffix("/etc/slurm.conf"), "spool")
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                environ = Path(entry.path, "environ").read_bytes().split(b"\0")
                if wanted in environ or os.path.dirname(os.readlink(f"{entry.path}/cwd")) == spool:
                    found.append(int(entry.name))
    return found


def end_all(conf: str) -> list[int]:
    """Kills them; the pids that there were. Again and again, for what is killed may just have started another."""
    seen: set[int] = set()
    end = time.monotonic() + PATIENCE_S
    while (found := carrying(conf)) and time.monotonic() < end:
        seen.update(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(seen)


def main() -> None:
    conf, folder = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    end_all(conf)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
