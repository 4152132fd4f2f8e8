"""Another uid of this machine: does things with its own rights, in a process of its own."""

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
UID = 61_234
"""Nobody's; no such user need exist."""
OTHER_UID = 61_235
WHY_NOT = "needs root, to become another uid"


def as_uid(uid: int, function: Callable[[], Any], *, gid: int | None = None, groups: tuple[int, ...] = ()) -> Any:
    """What `function` returns (JSON) in a child that is this uid for good; what it raises is raised as a text.

    What it needs must be imported already: the other uid may not be able to read the interpreter's files.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.setgroups(list(groups))
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            os.chdir("/")
            try:
                told = {"value": function()}
            except BaseException as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(writing, "w") as out:
                json.dump(told, out)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    told = json.loads(text)
    if "error" in told:
        raise AssertionError(told["error"])
    return told["value"]


@contextmanager
def held_by(uid: int, function: Callable[[], Any]) -> Iterator[None]:
    """While a child that is this uid for good keeps what `function` returned: connections, say."""
    told, tell = os.pipe()
    end, ended = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ended)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            kept = function()
            os.write(tell, b"x" if kept else b"")
            os.close(tell)
            os.read(end, 1)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(end)
    try:
        assert os.read(told, 1) == b"x", "it failed, or returned nothing"
        yield
    finally:
        os.close(ended)
        os.close(told)
        os.waitpid(child, 0)


def attempt(action: Callable[[], Any]) -> str:
    """`done`, or the name of the error: PermissionError is what a stranger is to get."""
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "done"


def python_for_others() -> tuple[str, dict[str, str]] | None:
    """An interpreter that another uid can run, with the environment that gives it hpcdl; None where there is none."""
    packages = sysconfig.get_path("purelib")
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", shutil.which(version, path="/usr/local/bin:/usr/bin")):
        if candidate and os.path.exists(candidate) and _runs(candidate, path):
            return candidate, path
    return None


def _runs(python: str, path: dict[str, str]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
            os.chdir("/")
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            code = "import hpcdl.daemon.daemon, cryptography.x509, sqlalchemy, uvicorn"
            os.execve(python, [python, "-c", code], {"PATH": "/usr/bin:/bin", **path})
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status == 0
