"""A stand-in for apptainer: it takes the options that hpcdl gives it, writes them down, and runs the command where it
is. A folder that it is to bind must be there, as with the real one."""

import sys
from pathlib import Path

SCRIPT = """#!{python}
import json, os, sys
words = sys.argv[1:]
assert words.pop(0) == "exec", sys.argv
said = {{"binds": [], "devices": [], "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}}
while words[0].startswith("--"):
    option = words.pop(0)
    if option in ("--nv", "--rocm"):
        said["devices"].append(option)
    else:
        value = words.pop(0)
        if option == "--pwd":
            said["pwd"] = value
        else:
            assert option == "--bind" and os.path.isdir(value), (option, value)
            said["binds"].append(value)
said["image"] = words.pop(0)
with open({folder!r} + "/said.json", "w") as file:
    json.dump(said, file)
os.chdir(said["pwd"])
os.execvp(words[0], words)
"""


def stand_in(folder: Path) -> Path:
    """Makes it in this folder, which is to be on PATH; the folder."""
    folder.mkdir()
    path = folder / "apptainer"
    path.write_text(SCRIPT.format(python=sys.executable, folder=str(folder)))
    path.chmod(0o755)
    return folder
