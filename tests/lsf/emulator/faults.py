"""Trouble on demand: lines `COMMAND FAULT [VALUE] [xTIMES]` in the file `faults` of the cluster's folder.

COMMAND may be `*`. Faults: `slow S`, `wait N` (N times "Please wait" before it works), `hang` ("Please wait" until it
is killed), `away` (once, then 255), `refused` (from a non-LSF host, 255), `empty` (nothing, exit 0), `error TEXT`
(255), `mail` (a line of the shell after the output), `banner` (bsub: the project line before the id), `lost ID` (bjobs
does not know that job), `noise TEXT` (on stdout before the output).
"""

import os
import sys
import time

from tests.lsf.emulator.options import Refused
from tests.lsf.emulator.store import Store

WAIT = "Cannot connect to LSF. Please wait ..."


def due(store: Store, command: str) -> list[tuple[str, str]]:
    """The faults of this call, as (fault, value); those with a count are counted down."""
    lines = [line.strip() for line in os.environ.get("LSFEMU_FAULTS", "").split(";")]
    found = [_fault(line) for line in lines if _for(line, command)]
    try:
        with open(store.path("faults")) as file:
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return found
    left, counted = [], False
    for line in lines:
        words = line.split()
        if not _for(line, command):
            left.append(line)
            continue
        found.append(_fault(line))
        if words[-1][0] == "x" and words[-1][1:].isdigit():
            counted = True
            if (times := int(words[-1][1:]) - 1) > 0:
                left.append(" ".join([*words[:-1], f"x{times}"]))
        else:
            left.append(line)
    if counted:
        with open(store.path("faults.new"), "w") as file:
            file.write("".join(line + "\n" for line in left))
        os.replace(store.path("faults.new"), store.path("faults"))
    return found


def _for(line: str, command: str) -> bool:
    words = line.split()
    return len(words) > 1 and words[0] in ("*", command)


def _fault(line: str) -> tuple[str, str]:
    words = line.split()
    if words[-1][0] == "x" and words[-1][1:].isdigit():
        words.pop()
    return words[1], " ".join(words[2:])


def before(faults: list[tuple[str, str]]) -> bool:
    """What happens before the command's own work; whether that is still to be done. Raises Refused."""
    for fault, value in faults:
        if fault == "slow":
            time.sleep(float(value))
        elif fault == "noise":
            print(value)
        elif fault == "wait":
            for _ in range(int(value or 1)):
                print(WAIT, file=sys.stderr, flush=True)
        elif fault == "hang":
            while True:
                print(WAIT, file=sys.stderr, flush=True)
                time.sleep(1.0)
        elif fault == "away":
            raise Refused(WAIT)
        elif fault == "refused":
            raise Refused("Request from non-LSF host rejected")
        elif fault == "error":
            raise Refused(value)
        elif fault == "empty":
            return False
    return True
