"""`python -m hpcdl.milp PID`: solves one problem from stdin (exchange.py), and prints the answer.

The daemon, process PID, runs it. Who is killed ends nothing, and HiGHS lets no other thread see that it is gone: so the
kernel ends this process with the daemon.
"""

import os
import sys

from hpcdl.milp.exchange import read_question, refusal_text, reply_text
from hpcdl.milp.solve import solve
from hpcdl.wire.child import dies_with


def main() -> None:
    """Reads to the end of stdin; whatever goes wrong is the answer. What solvers print goes to stderr."""
    dies_with(int(sys.argv[1]))()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        try:
            problem, solver, limits = read_question(sys.stdin.read())
            answers.write(reply_text(solve(problem, solver, limits)))
        except Exception as error:  # told to the daemon, which goes on without
            answers.write(refusal_text(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
