"""A trainer whose child hides: another session, no environment, nobody's child. Arguments: a file for the child's pid,
and any of `ends` (the trainer itself ends at once), `deaf` (SIGTERM is ignored), `still` (it stops itself), `holds` (it
holds the emulated GPUs), `chain` (each process starts the next and ends)."""

import os
import signal
import sys
import time


def chain(file: str) -> None:
    end = time.monotonic() + 300  # whoever should have ended it has failed
    while time.monotonic() < end:  # each one writes down who it is, and is gone in a moment
        if os.fork():
            os._exit(0)
        with open(file, "w") as out:
            out.write(str(os.getpid()))


def hide(file: str, how: list[str]) -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    if "chain" in how:
        chain(file)
    program = [
        "import fcntl, os, signal, sys, time",
        "held = [open(path, 'r+') for path in sys.argv[2:]]",
        "[fcntl.lockf(each, fcntl.LOCK_EX) for each in held]",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if "deaf" in how else "",
        "open(sys.argv[1] + '.new', 'w').write(str(os.getpid()))",
        "os.rename(sys.argv[1] + '.new', sys.argv[1])",
        "os.kill(os.getpid(), signal.SIGSTOP)" if "still" in how else "",
        "time.sleep(600)",
    ]
    held = []
    if "holds" in how:
        held = [f"{os.environ['HPCDL_EMULATED']}/{uuid}.lock" for uuid in os.environ["HPCDL_GPUS"].split(",")]
    os.execve(sys.executable, [sys.executable, "-c", "\n".join(program), file, *held], {})


def main() -> None:
    file, how = sys.argv[1], sys.argv[2:]
    first = os.fork()
    if first == 0:
        hide(file, how)
    os.waitpid(first, 0)
    while not os.path.exists(file):
        time.sleep(0.01)
    if "ends" not in how:
        signal.pause()


main()
