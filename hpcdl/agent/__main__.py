"""`python -m hpcdl.agent --home DIR --node NAME [...]`: how a daemon or a batch job starts an agent."""

import argparse
import os
import sys
from pathlib import Path

GRACE_S = 25.0
"""Below the 30 s that batch systems commonly wait between their first signal and SIGKILL."""
ABSENCE_S = 20.0
"""In a batch job a supervisor without an agent ends its trainer so soon: the node may have been given to others."""


def _main() -> int:
    parser = argparse.ArgumentParser(prog="hpcdl agent", description="The agent of one node.")
    parser.add_argument("--home", type=Path, required=True, help="HPCDL_HOME")
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument(
        "--emulate-gpus",
        metavar="N|auto",
        help="this many emulated GPUs instead of real ones; auto: as many as the batch system granted, where this "
        "machine has no GPU driver",
    )
    parser.add_argument("--daemon", type=int, metavar="PID", help="that starts it; once that is gone it does not begin")
    inside = parser.add_argument_group("in a batch job", "where its signals mean that the node is wanted back")
    inside.add_argument("--allocation", default="", metavar="ID", help="the batch job's id")
    inside.add_argument("--left", type=float, metavar="S", help="seconds until its walltime ends")
    inside.add_argument("--place", action="append", default=[], metavar="SWITCH", help="the outermost switch first")
    inside.add_argument("--grace", type=float, default=GRACE_S, metavar="S", help="from its first signal to SIGKILL")
    inside.add_argument("--alone", type=float, metavar="S", help="without a daemon for so long, the node is given back")
    inside.add_argument("--absence", type=float, default=ABSENCE_S, metavar="S", help="as agent_absence_s")
    arguments = parser.parse_args()
    from hpcdl.agent.departure import EnclosingJob
    from hpcdl.agent.emulation import emulated
    from hpcdl.agent.run import main

    try:
        number, said = emulated(arguments.emulate_gpus, os.environ)
        stay = EnclosingJob(
            arguments.allocation, arguments.left, tuple(arguments.place), arguments.grace, arguments.alone
        )
    except ValueError as error:
        parser.error(str(error))
    return main(arguments.home, arguments.node, number, said, stay, arguments.absence, arguments.daemon)


if __name__ == "__main__":
    sys.exit(_main())
