"""`python -m hpcdl` is the command `hpcdl`."""

import sys

from hpcdl.cli import main

if __name__ == "__main__":
    sys.exit(main())
