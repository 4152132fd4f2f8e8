"""Commands of a batch system that answer wrongly while a test wants that, in a folder that comes first in PATH."""

import shutil
from pathlib import Path

_SCRIPT = """#!/bin/sh
# What `say` wrote for this command, else the real one.
echo "$0 $*" >> {folder}/asked
if [ -e {folder}/{name}.says ]; then real={real}; . {folder}/{name}.says; else exec {real} "$@"; fi
"""

EMPTY = "exit 0"
GARBAGE = "head -c 600 /dev/urandom | base64; exit 0"
HEADER = '"$real" "$@" | head -n 1'
ERROR = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)'; exit 0"
CUT = '"$real" "$@" | head -c -12'
FAILS = '"$real" "$@"; exit 3'
WITHOUT_LAST = '"$real" "$@" | sed \'$d\''
"""What a command may say: shell, with `$real` the real command."""


class StandIns:
    """`say` has a command answer otherwise, from its next call on; `restore` ends that."""

    def __init__(self, folder: Path, path: str, *names: str) -> None:
        """`path`: the PATH in which the real ones are. Its own PATH, with the stand-ins first, is `path`."""
        self.folder = folder
        self.path = f"{folder}:{path}"
        folder.mkdir()
        for name in names:
            real = shutil.which(name, path=path)
            assert real is not None, name
            script = folder / name
            script.write_text(_SCRIPT.format(folder=folder, name=name, real=real))
            script.chmod(0o755)

    def say(self, name: str, shell: str) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(shell + "\n")
        new.rename(self.folder / f"{name}.says")

    def restore(self, *names: str) -> None:
        for name in names:
            (self.folder / f"{name}.says").unlink(missing_ok=True)

    def asked(self, name: str) -> int:
        """How often a command was called."""
        try:
            lines = (self.folder / "asked").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum(line.split(" ", 1)[0].endswith(f"/{name}") for line in lines)
