"""The trainer library alone, in a folder for the PYTHONPATH of jobs: nothing is installed where they train.

The folder lies in the agent's own, node-local and closed to others, and is named after its content: trainers keep the
version that they started with. What `hpcdl` is there: hpcdl/trainer/alone.py.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import hpcdl
from hpcdl.agent.supervisor.start_file import START_FILE

log = logging.getLogger("hpcdl.agent")

NAME = "trainer-library-"


def with_library(path: str, run: Path) -> str:
    """The PYTHONPATH with the library at its end, which is made in the agent's folder `run` where it is missing; as it
    was where it cannot be made: what is installed may do."""
    try:
        folder = str(_make(run))
    except OSError as error:
        log.warning("jobs get no trainer library: %s", error)
        return path
    # A job that submits another one hands on its own.
    places = [each for each in path.split(os.pathsep) if path and not Path(each).name.startswith(NAME)]
    return os.pathsep.join([*places, folder])


def _make(run: Path) -> Path:
    folder = run / f"{NAME}{_digest()}"
    if folder.exists():
        return folder
    made = Path(tempfile.mkdtemp(prefix=f".{NAME}", dir=run))
    try:
        for name, content in _files().items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        os.rename(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    used = b"".join(path.read_bytes() for path in run.glob(f"*/{START_FILE}"))
    for older in run.glob(f"{NAME}*"):
        if older != folder and older.name.encode() not in used:
            shutil.rmtree(older, ignore_errors=True)
    return folder


@cache
def _files() -> Mapping[str, bytes]:
    """As they are when this agent first starts a job, whatever an upgrade puts there while it runs."""
    package = Path(hpcdl.__file__).parent
    alone = (package / "trainer" / "alone.py").read_bytes()
    found = {"hpcdl/__init__.py": alone + f"\n__version__ = {hpcdl.__version__!r}\n".encode()}
    for path in sorted((package / "trainer").rglob("*.py")):
        found[f"hpcdl/{path.relative_to(package)}"] = path.read_bytes()
    return found


@cache
def _digest() -> str:
    content = hashlib.sha256()
    for name, body in _files().items():
        content.update(f"{name} {len(body)}\n".encode() + body)
    return content.hexdigest()[:12]
