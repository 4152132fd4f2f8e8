"""Calls one function of a user's: what `hpcdl.submit(train, lr=0.1)` runs as the job.

    python -m hpcdl.trainer.call FOLDER [CASE] [--NAME VALUE ...]

FOLDER has `call.json`: where the function is, and its arguments. CASE is the place of a member's own arguments in it,
and `--NAME VALUE` the member's values of a sweep. What the function returns or raises is kept beside it, in
`JOB.ATTEMPT.json`, for its owner only. hpcdl/python/ writes the one file and reads the other. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CALL = "call.json"
IMPORTS = "HPCDL_CALL_IMPORTS"  # set while the function's module is imported: nothing may be submitted then
LARGEST = 16 << 20  # bytes of a result
MESSAGE, TRACEBACK = 1 << 16, 1 << 20  # characters that are kept of what it raised


def main(argv: Sequence[str]) -> None:
    """Raises what the function raises, once that is kept."""
    environ = dict(os.environ)  # the function may change its own
    folder, words = Path(argv[0]), list(argv[1:])
    call = json.loads((folder / CALL).read_text(encoding="utf-8"))
    try:
        function = _function(call)
        args, keywords = _arguments(call, words)
        value = function(*args, **keywords)
    except Exception as error:
        _keep(folder, environ, {"raised": _raised(error)})
        raise
    if _is_first(environ):
        _keep(folder, environ, _result(value))


def _function(call: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that the call names. Raises what the import of its module raises, and AttributeError."""
    sys.path[:0] = [each for each in call["path"] if each not in sys.path]
    os.environ[IMPORTS] = call["file"] or call["module"]
    try:
        found: Any = importlib.import_module(call["module"]) if not call["file"] else _script(Path(call["file"]))
    finally:
        del os.environ[IMPORTS]
    for name in call["name"].split("."):
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _script(file: Path) -> Any:
    """The module that a script is, but for what it does as `__main__`.

    It has its own name where that leads to it, so that processes which the function starts can import it, too.
    """
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(file.stem)
    if spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file):
        return importlib.import_module(file.stem)
    spec = importlib.util.spec_from_file_location("hpcdl_script", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(call: Mapping[str, Any], words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    args, keywords = list(call["args"]), dict(call["keywords"])
    if len(words) % 2:
        case = call["cases"][int(words.pop(0))]
        args += case["args"]
        keywords.update(case["keywords"])
    for name, text in zip(words[::2], words[1::2]):
        keywords[name[2:]] = call["sweep"][name[2:]][text]
    return args, keywords


def _is_first(environ: Mapping[str, str]) -> bool:
    """Whether this is the first of the job's ranks. RANK may be of the shell that submitted it, or of its torchrun."""
    return all(environ.get(name, "") in ("", "0") for name in ("HPCDL_RANK", "HPCDL_NODE_RANK"))


def _raised(error: Exception) -> dict[str, str]:
    own = error.__traceback__.tb_next if error.__traceback__ is not None else None
    lines = traceback.TracebackException(type(error), error, own).format()
    module, kind = type(error).__module__, type(error).__qualname__
    try:
        message = str(error)
    except Exception as other:
        message = f"<its text cannot be had: {type(other).__qualname__}>"
    return {
        "type": kind if module == "builtins" else f"{module}.{kind}",
        "message": _shortened(message, MESSAGE),
        "traceback": _shortened("".join(lines), TRACEBACK),
    }


def _shortened(text: str, most: int) -> str:
    """Its start and its end where it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[{len(text) - most} characters are left out]\n{text[-(most // 2) :]}"


def _result(value: object) -> dict[str, Any]:
    kind = type(value).__qualname__
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        return {"unkept": f"it returned what JSON does not have ({kind}: {error}): save that, and return a path"}
    for key in _keys(value):
        if not isinstance(key, str):
            why = f"{kind}: {key!r:.100} is the key of a dict, and JSON's are texts"
            return {"unkept": f"it returned what JSON does not have ({why}): give {str(key)!r:.100} for it"}
    if len(text) > LARGEST:
        return {"unkept": f"it returned {len(text) >> 20} MiB, over {LARGEST >> 20}: save that, and return a path"}
    return {"value": value}


def _keys(value: object) -> Iterator[object]:
    """The keys of all dicts in a value that json has taken."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield from each
            left += each.values()
        elif isinstance(each, (list, tuple)):
            left += each


def _keep(folder: Path, environ: Mapping[str, str], result: Mapping[str, Any]) -> None:
    """Write the result whole or not at all. Of several ranks that fail, the first one's error stays."""
    job, attempt = environ.get("HPCDL_JOB", "0"), environ.get("HPCDL_INCARNATION", "0")
    target = folder / f"{job}.{attempt}.json"
    temporary = folder / f".{target.name}.{os.getpid()}.{environ.get('HPCDL_NODE', '')}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(result, file)
        if "raised" in result:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, target)
        else:
            os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


if __name__ == "__main__":
    main(sys.argv[1:])
