"""The options of a job as keyword arguments: those of `hpcdl submit` by their names, with `_` for `-`.

They are read by the options of the command line themselves, so that they mean the same, with the same checks and the
same defaults from settings.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

import click

from hpcdl.cli.root import cli, home_folder
from hpcdl.cli.submit.command import put_defaults, submit
from hpcdl.cli.submit.git import WorkTrees
from hpcdl.cli.submit.job import JobRequest, others_folder, request_of
from hpcdl.cli.submit.options import AFTER, options_of_a_job
from hpcdl.core.model.arrays import indices_of
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.units import meant
from hpcdl.python.call import SubmitError
from hpcdl.wire.access import AccessError, read_access

_OF_ARRAYS = frozenset(("array", "sweep"))
"""`hpcdl.map` makes these."""

NEAR = 0.7
"""How like an option a name must be for `did you mean`: most names that are none are a function's own."""

_PLURALS = {"tags": "tag", "links": "link"}


class Options(TypedDict, total=False):
    """Options of a job, each as `hpcdl submit --help` says. Those that are not listed here are taken, too."""

    python: str | os.PathLike[str]  # the interpreter that calls the function; default: this one
    name: str
    gpus: int | str | Sequence[int]  # on each node: 2, "1:4", or [1, 2, 4] for only these
    nodes: int | str
    cpus: int
    mem: str | int  # "32G"; a number is MiB
    time: float | str | timedelta  # seconds
    deadline: str | datetime | timedelta
    after: Any  # a Job, an id, a name, or several of them
    after_any: Any
    after_failed: Any
    after_start: Any
    singleton: bool
    hold: bool
    tags: str | Sequence[str]
    links: Mapping[str, str]  # by the name of the site
    env: Mapping[str, str | None] | Sequence[str]  # None: as it is here
    cwd: str | os.PathLike[str]
    output: str | os.PathLike[str]  # files, from cwd on; "%j": its id
    error: str | os.PathLike[str]
    retries: int
    grace: float | str | timedelta
    checkpoint_dir: str | os.PathLike[str]
    continue_from: int | str
    signal: str
    resumes: bool | str
    container: str  # an image; its python3 calls the function
    gate: bool
    trainer_library: bool
    progress: str
    progress_regex: str
    notify: str | Sequence[str]
    stall: float | str
    steps: int
    batch: int
    kind: str
    model: str
    profile: str
    accuracy: float
    priority: int
    weight: float
    share: str
    gpu_memory: str | int
    rescale: str
    burst_plan: str | os.PathLike[str]
    burst_limit: float
    max_parallel: int  # of hpcdl.map


def home() -> Path:
    """The daemon's folder: HPCDL_HOME, else ~/.hpcdl. Raises SubmitError."""
    try:
        return home_folder(os.environ.get("HPCDL_HOME"))
    except RuntimeError:
        raise SubmitError("your home folder is not known: set HPCDL_HOME") from None


def names() -> set[str]:
    """All names that are options, not arguments of a function."""
    return {*_options(), *_PLURALS, "python"}


def _options() -> dict[str, click.Option]:
    return {name: each for name, each in options_of_a_job().items() if name not in _OF_ARRAYS}


def check(options: Mapping[str, Any]) -> None:
    """Raises SubmitError for a name that is no option, and for a value that no job can have, as far as that is known
    without a daemon."""
    job = {name: value for name, value in options.items() if name != "python"}
    _flags(job)
    values = _flags({name: value for name, value in job.items() if name not in AFTER})  # of names the daemon is asked
    with _as_errors(), click.Context(submit, info_name="submit", parent=click.Context(cli, info_name="hpcdl")) as own:
        click.Command.parse_args(submit, own, [*values, "--", "true"])


def job_request(
    folder: Path, command: Sequence[str], options: Mapping[str, Any], members: Mapping[str, Any] | int | None = None
) -> JobRequest:
    """The job that these words and options are; an array by `members`: swept values as texts, or how many there are.

    `folder`: the daemon's. Raises SubmitError.
    """
    context = click.Context(submit, info_name="submit", parent=click.Context(cli, info_name="hpcdl", obj=folder))
    values: dict[str, Any] = {}
    if isinstance(members, int):
        values["array"] = indices_of(range(members))
    elif members is not None:
        values["sweep"] = tuple((name, tuple(texts)) for name, texts in members.items())
    with _as_errors(), context:
        if (wrong := put_defaults(context)) is not None:
            raise wrong
        found = request_of(context, submit, _flags(options), command, values)
        if why := _others_folder(found, folder):
            raise ValueError(why)
    return found


@contextlib.contextmanager
def _as_errors() -> Iterator[None]:
    """What the options of the command line raise is a SubmitError."""
    try:
        yield
    except click.BadParameter as error:
        name = (error.param.name if error.param is not None else "") or ""
        raise SubmitError(f"{name}: {error.message}" if name else error.message) from None
    except click.ClickException as error:
        raise SubmitError(error.message) from None
    except (ValueError, OSError) as error:
        raise SubmitError(str(error)) from None


def _others_folder(found: JobRequest, home: Path) -> str:
    if found.spec.checkpoint_dir is None:
        return ""
    try:
        return others_folder(found.spec, found.array, read_access(home).instance)
    except AccessError:
        return ""  # the submit says that there is no daemon


def entry(found: JobRequest) -> dict[str, Any]:
    """The job as the API takes it, with the commit that its folder is at."""
    state = WorkTrees().of(found.spec.cwd)
    return found.entry() | ({} if state is None else {"git": to_json(state)})


def _flags(options: Mapping[str, Any]) -> list[str]:
    """The options as they would be typed. Raises SubmitError for a name or a value that is none."""
    known = _options()
    words: list[str] = []
    for name, value in options.items():
        option = known.get(_PLURALS.get(name, name))
        if option is None:
            hint = meant(name, sorted({*known, *_PLURALS}), f"there are {', '.join(sorted(known))}", cutoff=NEAR)
            raise SubmitError(f"{name} is no option of a job: {hint}")
        flag = max(option.opts, key=len)
        if value is None:
            continue
        if option.is_flag:
            if not isinstance(value, bool):
                raise SubmitError(f"{name} must be True or False, got {value!r}")
            off = max(option.secondary_opts, key=len, default=None)
            words += [flag] if value else [off] if off else []
        elif value is True and option.flag_value is not None:
            words.append(f"{flag}={option.flag_value}")
        else:
            words += [f"{flag}={text}" for text in _texts(name, value, joined=not option.multiple)]
    return words


def _texts(name: str, value: Any, *, joined: bool) -> list[str]:
    """The texts of an option, one for each time that it is given. `joined`: once at most."""
    if isinstance(value, Mapping):
        texts = [key if each is None else f"{key}={_text(name, each)}" for key, each in value.items()]
    elif isinstance(value, Iterable) and not isinstance(value, str):
        texts = [_text(name, each) for each in value]
    else:
        texts = [_text(name, value)]
    return [",".join(texts)] if joined else texts


def _text(name: str, value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone().replace(tzinfo=None).isoformat(timespec="seconds")
    if isinstance(value, timedelta):
        ahead = name == "deadline" and value >= timedelta(0)
        return f"{'+' if ahead else ''}{value.total_seconds():.15g}"
    if isinstance(number := getattr(value, "id", None), int):  # a Job
        return str(number)
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise SubmitError(f"{name} cannot be {value!r:.100}")
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
