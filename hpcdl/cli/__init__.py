"""The command line: click commands over `hpcdl.client`, each with a table, `--json` and `--quiet`."""

from hpcdl.cli.root import main

__all__ = ["main"]
