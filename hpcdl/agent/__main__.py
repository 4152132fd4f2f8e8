"""`python -m hpcdl.agent --home DIR --node NAME [--emulate-gpus N]`: how a daemon or a batch job starts an agent."""

import argparse
import sys
from pathlib import Path


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 1024:
        raise ValueError(text)
    return number


def _main() -> int:
    parser = argparse.ArgumentParser(prog="hpcdl agent", description="The agent of one node.")
    parser.add_argument("--home", type=Path, required=True, help="HPCDL_HOME")
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--emulate-gpus", type=_count, metavar="N", help="this many emulated GPUs instead of real ones")
    arguments = parser.parse_args()
    from hpcdl.agent.run import main

    return main(arguments.home, arguments.node, arguments.emulate_gpus)


if __name__ == "__main__":
    sys.exit(_main())
