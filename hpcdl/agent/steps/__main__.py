"""`python -I .../steps/__main__.py NAME ARG...`: a batch script, or a command of it that a stub stands for.

Run by its path, for the job's own PYTHONPATH may name another hpcdl, or none: so this finds the package by itself.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hpcdl.agent.steps import batch_commands, jsrun, script, srun
from hpcdl.agent.steps.layout import BadStep
from hpcdl.wire.private_files import NotPrivate


def main(name: str, words: list[str]) -> int:
    """The exit code."""
    try:
        if name == "script":
            return script.main(words)
        if name == "srun":
            return srun.main(words, os.environ)
        if name == "jsrun":
            return jsrun.main(words, os.environ)
        if batch_commands.knows(name):
            return batch_commands.main(name, words, os.environ)
        raise BadStep("it would run outside of this job: start tasks by srun or jsrun, or python itself")
    except (BadStep, NotPrivate, OSError) as error:
        sys.stderr.write(f"hpcdl: {name}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
