"""`hpcdl.submit`, `hpcdl.map`, `hpcdl.job` and `hpcdl.jobs`.

Of the keyword arguments of a function's submit, those that are options of a job are such, and all others go to the
function. A name that is both is refused: `args=` and `options=` say which.
"""

import contextlib
import inspect
import operator
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from hpcdl.cli.submit.job import JobRequest
from hpcdl.cli.submit.send import send
from hpcdl.client import ApiError, path_with
from hpcdl.core.model.arrays import literal
from hpcdl.core.model.units import meant
from hpcdl.python import options as job_options
from hpcdl.python.call import FunctionCall, SubmitError, function_call, text_of
from hpcdl.python.connection import ReadingClient, ThreadClient, warn
from hpcdl.python.handle import Job, SpooledJob, SpooledSubmit
from hpcdl.python.options import Options
from hpcdl.trainer.call import IMPORTS
from hpcdl.wire.private_files import NotPrivate
from hpcdl.wire.spool import SpoolError

T = TypeVar("T")
Case = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and keyword arguments of one call."""


@overload
def submit(what: Sequence[str], /, **keywords: Unpack[Options]) -> Job[None]: ...


@overload
def submit(
    what: Callable[..., T],
    /,
    *arguments: Any,
    args: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **keywords: Any,
) -> Job[T]: ...


def submit(
    what: Callable[..., Any] | Sequence[str],
    /,
    *arguments: Any,
    args: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **keywords: Any,
) -> Job[Any]:
    """Queue a call of a function, or a command, as a job: `submit(train, lr=0.1, gpus=1)`.

    The function must be one that the job can import by its name, and its arguments JSON. `what` may be a list of words
    instead: `submit(["python", "train.py"], gpus=1)`. Keyword arguments that are options of a job (`Options`: gpus,
    name, env, after ...) are such, all others are the function's; `args` are the function's and `options` the job's in
    any case. Raises SubmitError, TypeError where the function does not take these arguments, and ClientError.
    """
    if not callable(what):
        return _command(what, arguments, args, {**keywords, **(options or {})})[0]
    mine, theirs = _sorted(what, keywords, args, options)
    call = function_call(what, arguments, theirs)
    _check(what, arguments, theirs)
    return _call(call, mine)[0]


@overload
def map(what: Sequence[str], sweep: Mapping[str, Iterable[Any]], /, **keywords: Unpack[Options]) -> list[Job[None]]: ...


@overload
def map(
    what: Callable[..., T],
    sweep: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    /,
    *,
    args: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **keywords: Any,
) -> list[Job[T]]: ...


def map(
    what: Callable[..., Any] | Sequence[str],
    sweep: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    /,
    *,
    args: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **keywords: Any,
) -> list[Job[Any]]:
    """Queue an array of jobs by one submit: `map(train, {"lr": [0.1, 0.01], "bs": [32, 64]}, epochs=3)`.

    A job for each combination of the values, the last name's changing fastest; or, where `sweep` is a list of dicts,
    for each of them. All else is as in `submit`, and what the sweep does not give is the same for all of them.
    """
    values = {name: _listed(name, each) for name, each in sweep.items()} if isinstance(sweep, Mapping) else None
    if not callable(what):
        if values is None:
            raise SubmitError("for a command give a dict of lists, each with the values of one --NAME")
        texts = {name: [text_of(each) for each in found] for name, found in values.items()}
        return _command(what, (), args, {**keywords, **(options or {})}, texts)
    mine, theirs = _sorted(what, keywords, args, options)
    call = function_call(what, (), theirs)
    if values is None:
        cases: list[Case] = [((), each) for each in _arguments(sweep)]
        for _, case in cases:
            _check(what, (), {**theirs, **case})
        return call_cases(what, cases, theirs, mine, spool=True)
    if twice := sorted(values.keys() & theirs.keys()):
        raise SubmitError(f"{twice[0]} is in the sweep, and an argument of all its jobs: leave one of them out")
    for combination in product(*(found[:1] for found in values.values())):
        _check(what, (), theirs | dict(zip(values, combination, strict=True)))
    return _call(replace(call, sweep=_by_text(values)), mine)


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    """The values of a sweep; a text is one value, not its letters. Raises SubmitError."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise SubmitError(f"the sweep {name} is a list of values, [0.1, 0.01], not {values!r:.100}")
    return list(values)


def _arguments(sweep: Any) -> list[dict[str, Any]]:
    """Those of each job of a list. Raises SubmitError."""
    cases = list(sweep) if isinstance(sweep, Iterable) else [sweep]
    for each in cases:
        if not isinstance(each, Mapping):
            raise SubmitError(
                f"a sweep is a dict of lists, or a list of dicts with each job's arguments, and has no {each!r:.100}"
            )
    return [{**each} for each in cases]


def call_cases(
    function: Callable[..., Any],
    cases: Sequence[Case],
    keywords: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    spool: bool,
) -> list[Job[Any]]:
    """An array of calls with these arguments, and `keywords` for all. `spool`: see `send`. Raises as `submit`."""
    if not cases:
        raise SubmitError("there is nothing to map over: the sweep is empty")
    return _call(replace(function_call(function, (), keywords), cases=cases), options, spool=spool)


def call_now(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], options: Mapping[str, Any]
) -> Job[Any]:
    """One call with these arguments, of a daemon that runs. Raises as `submit`."""
    call = function_call(function, args, keywords)
    _check(function, args, keywords)
    return _call(call, options, spool=False)[0]


def job(number: int) -> Job[Any]:
    """The job of that id. Raises ApiError where there is none, TypeError for what is no id."""
    try:
        found: Job[Any] = Job(operator.index(number), job_options.home())
    except TypeError:
        raise TypeError(f"a job's id is a number, not {number!r:.100}: hpcdl.jobs(name=…) finds jobs by name") from None
    _ = found.info
    return found


def jobs(
    *, all: bool = False, state: str | None = None, name: str | None = None, tag: str | None = None
) -> list[Job[Any]]:
    """The unfinished jobs in order of submission; `all`: the finished ones, too. `state`: `"DONE"`, `"RUNNING,QUEUED"`;
    `name`, `tag`: patterns (`train*`)."""
    home = job_options.home()
    query = path_with("/v1/jobs", all=1 if all else None, state=state, name=name, tag=tag, fields="id")
    with ReadingClient(home) as client:
        return [Job(row["id"], home) for row in client.get(query)["jobs"]]


def _sorted(
    function: Callable[..., Any],
    keywords: Mapping[str, Any],
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the job, and the keyword arguments of the function. Raises SubmitError."""
    known, parameters = job_options.names(), set()
    with contextlib.suppress(TypeError, ValueError):  # a function without a signature, of C
        parameters = set(inspect.signature(function).parameters)
    mine, theirs = dict(options or {}), dict(args or {})
    for name, value in keywords.items():
        if name in known and name in parameters:
            raise SubmitError(
                f"{name} is an option of a job and an argument of {function.__qualname__}: write "
                f"args={{{name!r}: ...}} for the function's, options={{{name!r}: ...}} for the job's"
            )
        place = mine if name in known else theirs
        if name in place:
            raise SubmitError(f"{name} is given twice: in {'options' if place is mine else 'args'}, and by itself")
        place[name] = value
    return mine, theirs


def _check(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Raises TypeError where the function does not take these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        shown = getattr(function, "__qualname__", repr(function))
        hint = _hint(keywords.keys() - signature.parameters.keys(), signature, str(error))
        raise TypeError(f"{shown}{signature}: {error}{hint}; options of the job: help(hpcdl.Options)") from None


def _hint(names: Collection[str], signature: inspect.Signature, said: str) -> str:
    """What was meant by the first of these arguments, which the function does not have; "" where nobody knows.

    `said`: Python's own error, which names another argument where one is missing, too.
    """
    options = job_options.names()
    for name in sorted(names):
        if name in options:
            return f": {name} is an option of a job, which is neither swept nor in args"
        if hint := meant(name, (*signature.parameters, *sorted(options)), "", cutoff=job_options.NEAR):
            return f": {hint}" if repr(name) in said else f"; it has no {name}: {hint}"
    return ""


def _by_text(values: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Of each swept argument the values by their texts. Raises SubmitError where two have the same one."""
    from hpcdl.python.call import as_json

    found: dict[str, dict[str, Any]] = {}
    for name, listed in values.items():
        found[name] = {}
        for value in listed:
            value = as_json(value, name)
            if (text := text_of(value)) in found[name]:
                raise SubmitError(f"{name} has {text} twice in the sweep")
            found[name][text] = value
    return found


def _call(call: FunctionCall, options: Mapping[str, Any], *, spool: bool = True) -> list[Job[Any]]:
    """Submit a call, an array of them where it has cases or a sweep."""
    given = dict(options)
    here = "python3" if given.get("container") else sys.executable
    python = os.fspath(given.pop("python", here))
    name = given.pop("name", None) or call.name.rpartition(".")[2]
    home = job_options.home()
    if importing := os.environ.get(IMPORTS):
        raise SubmitError(
            f"{importing} submits jobs when it is imported, as every job of it would: put that below "
            'if __name__ == "__main__":'
        )
    folder = call.folder(home)
    words = call.command(python, folder, gate=given.get("gate") is True)
    members: Mapping[str, Any] | int | None = None
    if call.cases or call.sweep:
        words = [literal(word) for word in words]
        members = {each: list(texts) for each, texts in call.sweep.items()} or len(call.cases)
        words += ["{index}"] if call.cases else []
    found = job_options.job_request(home, words, {**given, "name": name}, members)
    return _send(home, found, call, folder, spool=spool)


def _command(
    words: Sequence[str],
    arguments: Sequence[Any],
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    members: Mapping[str, Any] | None = None,
) -> list[Job[Any]]:
    if isinstance(words, str):
        raise SubmitError('give a command as a list of words: ["python", "train.py"] (shlex.split makes one of a text)')
    if not words or not all(isinstance(each, str | os.PathLike) for each in words):
        raise SubmitError(f"give a function, or a command as a list of words, not {words!r:.100}")
    if arguments or args:
        raise SubmitError("a command has its arguments among its words")
    if "python" in options:
        raise SubmitError("python is an option for functions: a command has its program as its first word")
    home = job_options.home()
    return _send(home, job_options.job_request(home, [os.fspath(each) for each in words], options, members))


def _send(
    home: Path, found: JobRequest, call: FunctionCall | None = None, folder: Path | None = None, *, spool: bool = True
) -> list[Job[Any]]:
    """Submit the job, and its call in the folder; the jobs that come of it. `spool`: see `send`."""
    body = {"request_id": os.urandom(16).hex(), "jobs": [job_options.entry(found)]}
    with ThreadClient(home) as client:
        if call is not None and folder is not None:
            if not spool:
                client.get("/v1/config")  # without a daemon nothing is kept
            try:
                call.keep(folder)
            except (OSError, NotPrivate) as error:
                raise SubmitError(f"the call cannot be kept in {home}: {error}") from None
        try:
            answer = send(client, body, number=found.size, spool=spool, note=warn)
        except (ApiError, SpoolError, NotPrivate, OSError) as error:
            if folder is not None:  # after any other error the job may be there
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ApiError):
                raise
            raise SubmitError(f"no daemon runs, and the submit cannot be spooled: {error}") from None
    rows = answer["jobs"]
    for doubt in dict.fromkeys((*found.doubts(), *(each for row in rows for each in row.get("warnings", ())))):
        warn(doubt)
    if "spooled" in answer:
        spooled = SpooledSubmit(home, body)
        return [Job(SpooledJob(spooled, place), home) for place in range(found.size)]
    return [Job(row["id"], home) for row in rows]
