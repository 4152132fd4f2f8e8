"""Policies of one's own: files in $HPCDL_HOME/policies, each with a class that has a `name` and `decide(view)`.

They are programs, and run as the daemon does: the folder must be closed to others, and the files their owner's.
"""

import inspect
import os
import re
import stat
import sys
import traceback
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcdl.core.model.plan import Policies
from hpcdl.wire.private_files import NotPrivate, open_private_folder

FOLDER = "policies"
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_MOVED = re.compile(rb"^([ \t]*from )hpcdl\.(?:core\.(?:model|plan|profile|units|view)|placing)(?= import )", re.M)
"""Where policies of version 0.1 imported from, as their guide said; `hpcdl.policy` has all those names."""


class BadPolicyFile(ValueError):
    """A file of a policy that cannot be used; the message is one line: which, where in it, and why."""


def register_files(policies: Policies, home: Path) -> tuple[str, ...]:
    """Adds the policies of the files below `home`; their names. Raises BadPolicyFile, and NotPrivate (wire.private)."""
    folder = home / FOLDER
    if not folder.is_dir():
        return ()
    descriptor = open_private_folder(folder)
    try:
        paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith(("_", ".")))
        return tuple(name for path in paths for name in _register(policies, path, descriptor))
    finally:
        os.close(descriptor)


def _register(policies: Policies, path: Path, folder: int) -> list[str]:
    module = _loaded(path, _read(path, folder))
    found: list[Any] = [
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if each.__module__ == module.__name__
        and callable(getattr(each, "decide", None))
        and not inspect.isabstract(each)
    ]
    if not found:
        raise BadPolicyFile(f"{path}: no class in it has `name` and `decide(view)`: see docs/policy-guide.md")
    names = []
    for each in found:
        name = getattr(each, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadPolicyFile(f"{path}: {each.__name__}.name must be lower-case letters, digits, '.', '_' and '-'")
        try:
            policies.register(name, each)
        except ValueError:
            raise BadPolicyFile(
                f"{path}: there is a policy {name!r} already: give {each.__name__} another name"
            ) from None
        names.append(name)
    return names


def _read(path: Path, folder: int) -> bytes:
    """The content of a file that only its owner can have written."""
    with open(
        os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb"
    ) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise NotPrivate(f"{path} must be a file of yours that nobody else can write: run chmod 600 {path}")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadPolicyFile(f"{path}: larger than {MAX_BYTES} bytes: it is no policy, move it away")
    return content


class _Checked(SourceLoader):
    """Runs what was checked, not what the file holds by now."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:
        return _MOVED.sub(rb"\1hpcdl.policy", self._content)


def _loaded(path: Path, content: bytes) -> ModuleType:
    name = f"hpcdl_policy_{re.sub(r'[^a-z0-9]', '_', path.stem.lower())}"
    loader = _Checked(path, content)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"{path}:{line}" if line else str(path)
        raise BadPolicyFile(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    return module
