"""A call of a function as a job: by reference, with its arguments as JSON, in a folder of the daemon's.

Code is never pickled: the job imports the function from its file, so that file says what runs. What
`hpcdl.trainer.call` reads and writes, this file writes and reads.
"""

import functools
import inspect
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpcdl
from hpcdl.trainer.call import CALL
from hpcdl.trainer.gate import frameworks
from hpcdl.wire.private_files import make_private_folder, write_new

FOLDER = "calls"
RUNNER = ("-m", "hpcdl.trainer.call")
_INTO_A_FILE = "write it into a file, and import it from there"


class SubmitError(ValueError):
    """A call that cannot be a job; the message is one line that says what to do instead."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function and its arguments. `cases`: of each member of an array its own; `sweep`: of each swept argument what
    the text of a value stands for.
    """

    module: str
    file: str  # of a script that was run; "": the module is imported by its name
    name: str  # qualified, within the module
    source: str  # the file that it is in; "" for none
    args: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    cases: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = ()
    sweep: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As `hpcdl.trainer.call` reads it. Raises SubmitError for an argument that is not JSON."""
        return {
            "version": 1,
            "module": self.module,
            "file": self.file,
            "name": self.name,
            "path": import_folders(self.source),
            "args": [as_json(each, f"argument {place}") for place, each in enumerate(self.args, 1)],
            "keywords": {name: as_json(each, name) for name, each in self.keywords.items()},
            "cases": [
                {"args": as_json(list(args), "argument"), "keywords": as_json(dict(keywords), "arguments")}
                for args, keywords in self.cases
            ],
            "sweep": self.sweep,
        }

    def command(self, python: str, folder: Path, *, gate: bool) -> list[str]:
        """The words of the job, without those of its array."""
        words = [*RUNNER, str(folder)]
        if gate:
            names = [word for name in frameworks(Path(self.source or os.devnull)) for word in ("--import", name)]
            words = ["-m", "hpcdl.trainer.gate", *names, *words]
        return [python, *words]

    def folder(self, home: Path) -> Path:
        """A folder of that daemon for the call, which is not there yet."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", self.name)[-60:]
        return home / FOLDER / f"{plain}-{os.urandom(6).hex()}"

    def keep(self, folder: Path) -> None:
        """Write the call into the folder. Raises OSError, NotPrivate, SubmitError."""
        content = json.dumps(self.document()).encode()
        make_private_folder(folder)
        write_new(folder / CALL, content)


def function_call(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> FunctionCall:
    """The call of a function that a job can import. Raises SubmitError."""
    if isinstance(function, functools.partial):
        raise SubmitError("a functools.partial has no name: give the function itself, and its arguments with it")
    shown = getattr(function, "__qualname__", None) or type(function).__qualname__
    module_name, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str):
        raise SubmitError(f"{shown} is not a function that a job can import by its name: give one, or a list of words")
    if "<lambda>" in name:
        raise SubmitError(
            f"a lambda has no name that a job could import: make it a function with def, and {_INTO_A_FILE}"
        )
    if "<locals>" in name:
        raise SubmitError(
            f"{name.replace('.<locals>', '')} is made inside of another function, so a job cannot import it: define it "
            "at the top of its file, and give what it uses as arguments"
        )
    if inspect.ismethod(function):
        raise SubmitError(f"{name} is a method, bound to an object that stays here: give a function of a file")
    if inspect.iscoroutinefunction(function):
        raise SubmitError(f"{name} is a coroutine: give a function that runs it by asyncio.run")
    module = sys.modules.get(module_name)
    file, source = "", _source(function)
    if module_name == "__main__":
        module_name, file = _main(name, source)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise SubmitError(f"{module_name}.{name} is not this function any more: give it by the name that it has there")
    return FunctionCall(module_name, file, name, source, args, keywords)


def _source(function: Callable[..., Any]) -> str:
    """The file in which the function is written; "" for none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    path = "" if code is None else os.path.abspath(code.co_filename)
    return path if os.path.isfile(path) else ""


def _main(name: str, source: str) -> tuple[str, str]:
    """Of a function of `__main__`: the name of its module, or the file of the script. Raises SubmitError."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    path = os.path.abspath(file) if isinstance(file, str) else ""
    if not source or not os.path.isfile(path) or not os.path.samefile(path, source):
        first = "%%writefile train.py as the first line of its cell, then: from train import " + name.partition(".")[0]
        raise SubmitError(f"{name} is in no file, so a job cannot import it: {_INTO_A_FILE} (in a notebook {first})")
    return (Path(path).stem, path) if spec is None else (str(spec.name), "")  # the latter of python -m MODULE


def import_folders(source: str) -> list[str]:
    """Where modules are imported from here, but for those of the interpreter and of its packages. hpcdl's own folder is
    left out, for the job has what its agent gives it, unless the function is in that."""
    own = os.path.realpath(Path(hpcdl.__file__).parents[1])
    paths = sysconfig.get_paths()
    packages = {
        os.path.realpath(each) for each in (*site.getsitepackages(), site.getusersitepackages(), *paths.values())
    }
    standard = os.path.realpath(paths["stdlib"]) + os.sep
    if not os.path.realpath(source).startswith(own + os.sep):
        packages.add(own)
    found = (os.path.realpath(each or ".") for each in sys.path)
    return [
        each for each in dict.fromkeys(found)
        if os.path.isdir(each) and each not in packages and not each.startswith(standard)
    ]  # fmt: skip


_HINTS = {"ndarray": ".tolist()", "Tensor": ".tolist(), or save it and give its path"}


def as_json(value: object, where: str) -> Any:
    """The value as JSON has it: a tuple becomes a list. Raises SubmitError."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        if wrong := next((each for each in value if not isinstance(each, str)), None):
            raise SubmitError(
                f"{where} has the key {wrong!r}: arguments go as JSON, whose keys are texts: {str(wrong)!r}"
            )
        return {name: as_json(each, f"{where}[{name!r}]") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each, f"{where}[{place}]") for place, each in enumerate(value)]
    kind = type(value).__name__
    hint = "give numbers, texts, lists and dicts, or save it and give its path"
    if isinstance(value, os.PathLike):
        hint = "give str(path)"
    elif isinstance(value, set | frozenset | range):
        hint = "give a list"
    elif kind in _HINTS:
        hint = f"give {_HINTS[kind]}"
    elif hasattr(value, "item") and hasattr(value, "dtype"):
        hint = "give .item(), a plain number"
    raise SubmitError(f"{where} has the type {kind}, which JSON does not have: {hint}")


def text_of(value: object) -> str:
    """A value of a sweep as it stands in names and tables."""
    return value if isinstance(value, str) else json.dumps(value)
