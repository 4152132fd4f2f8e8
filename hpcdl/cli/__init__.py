"""The command line: click commands over `hpcdl.client`, each with a table, `--json` and `--quiet`."""

import gc

# A command makes many values and ends soon: to look for garbage among them all the time costs a tenth of its time.
gc.set_threshold(100_000, 50, 50)

from hpcdl.cli.root import main  # noqa: E402

__all__ = ["main"]
