"""`python -m hpcdl.agent.supervisor FOLDER`: the program that an agent starts for every part of an attempt."""

import sys

from hpcdl.agent.supervisor.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
