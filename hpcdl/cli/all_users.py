"""`hpcdl ls --all-users`: the daemons of all users who let this one look, with their jobs, GPUs and load.

Whoever looks may be root, and whoever answers may be hostile: each daemon has its own few seconds and megabytes, what
is not of the form that an answer has is left out, and one that fails is a line among the problems. How daemons let
others look: wire/viewer_file.py.
"""

import glob
import itertools
import json
import math
import os
import queue
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.columns import JOBS, number, plain
from hpcdl.cli.job_row import duration_text
from hpcdl.cli.output import Column, Output, Row, print_table, say
from hpcdl.cli.params import user_name
from hpcdl.cli.tables import GPUS, gpu_rows, use_of
from hpcdl.wire import viewer_file as files
from hpcdl.wire.http_client import HttpConnection, HttpError
from hpcdl.wire.tls import client_context
from hpcdl.wire.viewer_file import ViewerFile, ViewerFilePlace

LISTS = ("daemons", "jobs", "nodes", "gpus")


def list_all_users(ctx: click.Context, homes: Sequence[str], what: str | None, output: Output) -> None:
    """Print what the daemons of all users have: a line for each daemon, job or GPU, then a line for each problem."""
    from hpcdl.config.settings import load_config

    if what is not None and what not in LISTS:
        raise click.UsageError(f"--all-users lists {', '.join(LISTS)}, not {what!r}", ctx)
    home: Path = ctx.find_root().obj
    seen = in_homes(homes) if homes else on_node(Path(load_config(home).viewers_folder))
    if not output.print_data(
        {"daemons": seen.daemons, "problems": seen.problems}, [row["home"] for row in seen.daemons]
    ):
        _print(what or "daemons", seen.daemons)
    for problem in seen.problems if output is not Output.JSON else ():
        say(problem)


def _print(what: str, daemons: Sequence[Row]) -> None:
    columns: Sequence[Column] = _DAEMONS
    lines: list[Row] = list(daemons)
    if what == "jobs":
        columns = _JOBS
        lines = [{**job, "user": row["user"], "host": row["host"]} for row in daemons for job in row["jobs"]]
    elif what != "daemons":
        columns = _GPUS
        lines = [{**gpu, "user": row["user"]} for row in daemons for gpu in gpu_rows(row["nodes"], bare=True)]
    if lines:
        print_table(columns, lines)
    elif daemons:
        say(f"no {what}; hpcdl ls --all-users lists the daemons")
    else:
        say("no daemon that you may look at: root sees all, and groups what the setting viewers_group gives them")


def _percent(value: object) -> str:
    return f"{value:.0f} %" if isinstance(value, int | float) and value >= 10 else f"{value:.1f} %"


def _load(row: Row) -> str:
    """`GPU 83 %, daemon 0.4 %`: the mean of its GPUs now; of a core, since its start."""
    loads = {"GPU": row.get("gpu_util"), "daemon": row.get("daemon_cpu")}
    return ", ".join(f"{name} {_percent(load)}" for name, load in loads.items() if load is not None) or "-"


def _states(row: Row) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(row["states"].items())) or "-"


_USER = plain("USER", "user").column

_HOST = plain("HOST", "host").column

_DAEMONS = (
    _USER,
    _HOST,
    Column("HOME", lambda row: str(row["home"]), shrinks=True),
    plain("POLICY", "policy").column,
    Column("JOBS", _states, shrinks=True),
    Column("GPUS", lambda row: f"{row['gpus_held']}/{row['gpus']}", right=True),
    Column("LOAD", _load),
    Column("UP", lambda row: duration_text(row["since_s"])),
)

_JOBS = (
    _USER,
    _HOST,
    number("ID", "id").column,
    plain("NAME", "name", shrinks=True).column,
    plain("STATE", "state", coloured=True).column,
    number("GPUS", "gpus").column,
    *(JOBS.columns[name].column for name in ("placement", "step", "eta")),
)

_GPUS = (
    _USER,
    GPUS.columns["node"].column,
    number("GPU", "index").column,
    GPUS.columns["state"].column,
    GPUS.columns["job"].column,
    number("UTIL", "util").column,
    number("MIB", "used_mib").column,
    plain("NAME", "name", shrinks=True).column,
)

# --- asking them ------------------------------------------------------------------------------------------------------
ASK_S = 5.0
"""Seconds for one daemon: the handshake and its answers."""

PLACE_S = 2 * ASK_S
"""Seconds for one home, or for all daemons of one user on the node."""

ANSWER_LIMIT = 16 << 20  # bytes of one answer

ROWS_LIMIT = 100_000

NAMES_LIMIT = 20_000  # in one folder, whose owner may want whoever looks to wait

AT_ONCE = 16

LIST_LIMIT = 1 << 20  # bytes of a list of homes

Json = dict[str, Any]


class NotShown(Exception):
    """This daemon cannot be shown; one line says why."""


@dataclass(slots=True)
class DaemonListing:
    """Daemons as `hpcdl ls --all-users --json` prints them, and a line for each that did not answer."""

    daemons: list[Json] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def on_node(shared: Path) -> DaemonListing:
    """The daemons on this node whose viewer files may be read."""
    try:
        uids = files.users(shared)
    except OSError as error:
        return DaemonListing([], [f"{shared} cannot be listed: {error.strerror}"])
    return _look([(f"uid {uid}", lambda uid=uid: files.of_user(shared, uid)) for uid in uids])  # type: ignore[misc]


def in_homes(given: Iterable[str]) -> DaemonListing:
    """The daemons of these homes. A home: a folder of a daemon, of daemons or of a user; a pattern; a list."""
    problems: list[str] = []
    homes = dict.fromkeys(_homes(given, problems))
    seen = _look([(str(home), lambda home=home: files.in_home(home)) for home in homes])  # type: ignore[misc]
    return DaemonListing(seen.daemons, problems + seen.problems)


# --- which ------------------------------------------------------------------------------------------------------------
_OF_A_HOME = (files.NAME, "access.json", "ledger.sqlite")


def _homes(given: Iterable[str], problems: list[str], listed: bool = False) -> Iterator[Path]:
    for text in given:
        path = Path(text).expanduser() if text.startswith("~") else Path(text)
        if not os.path.lexists(path) and glob.has_magic(text):
            for match in sorted(glob.glob(str(path))):
                yield from _in_folder(Path(match), problems)
        elif path.is_dir():
            yield from _in_folder(path, problems)
        elif path.is_file() and not listed:
            yield from _homes(_lines(path, problems), problems, listed=True)
        else:
            problems.append(f"{path}: there is no such folder{'' if listed else ' or list of folders'}")


def _in_folder(path: Path, problems: list[str]) -> Iterator[Path]:
    if any(os.path.lexists(path / name) for name in _OF_A_HOME):
        yield path
        return
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, NAMES_LIMIT + 1))
    except OSError:
        return
    if len(names) > NAMES_LIMIT:
        problems.append(f"{path}: holds over {NAMES_LIMIT} names, and not all were looked at: name the folders in it")
    for each in (below for name in names for below in (path / name, path / name / ".hpcdl")):
        if os.path.lexists(each / files.NAME):
            yield each


def _lines(path: Path, problems: list[str]) -> list[str]:
    """The lines of a file that lists homes; # begins a comment."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as opened:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode) or info.st_size > LIST_LIMIT:
                raise OSError(0, f"it is no list of at most {LIST_LIMIT >> 20} MiB")
            text = opened.read(LIST_LIMIT).decode("utf-8", "surrogateescape")
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return []
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#") and "\0" not in line]


# --- all of them at once ----------------------------------------------------------------------------------------------
Find = Callable[[], Iterable[ViewerFilePlace]]


def _look(places: list[tuple[str, Find]]) -> DaemonListing:
    """Ask every place in a thread of its own, AT_ONCE at a time; nobody waits for one that hangs."""
    seen, known = DaemonListing(), set[tuple[int, str]]()
    told: queue.SimpleQueue[tuple[int, Json | str | None]] = queue.SimpleQueue()
    waiting = list(enumerate(places))[::-1]
    running: dict[int, float] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number, (_, find) = waiting.pop()
            running[number] = time.monotonic() + PLACE_S
            threading.Thread(target=_visit, args=(number, find, told), daemon=True).start()
        try:
            number, what = told.get(timeout=max(0.0, min(running.values()) - time.monotonic()) + 0.01)
        except queue.Empty:
            for number in [each for each, end in running.items() if end <= time.monotonic()]:
                del running[number]
                seen.problems.append(f"{places[number][0]}: no answer within {PLACE_S:g} s")
            continue
        if number not in running:
            continue  # too late
        if what is None:
            del running[number]
        elif isinstance(what, str):
            seen.problems.append(what)
        elif (key := (what["uid"], what["instance"])) not in known:
            known.add(key)
            seen.daemons.append(what)
    seen.daemons.sort(key=lambda each: (each["user"], each["home"]))
    return seen


def _visit(number: int, find: Find, told: "queue.SimpleQueue[tuple[int, Json | str | None]]") -> None:
    try:
        for found in find():
            told.put((number, _of(found)))
    except Exception as error:  # of one place; the others are reported all the same
        told.put((number, f"it could not be looked at: {type(error).__name__}"))
    finally:
        told.put((number, None))


def _of(found: ViewerFilePlace) -> Json | str:
    """The daemon's row as JSON, or a line that says why there is none."""
    viewer = found.viewer
    if viewer is None or found.uid is None:
        return found.problem
    whose = f"{user_name(found.uid)}, {viewer.home}"
    try:
        return _ask(viewer, found.uid)
    except TimeoutError:
        return f"{whose}: the daemon (pid {viewer.pid}) does not answer within {ASK_S:g} s"
    except ConnectionRefusedError:
        return f"{whose}: nothing listens on {viewer.address}:{viewer.port} any more: {found.path} is stale"
    except ssl.SSLError:
        return f"{whose}: what listens on {viewer.address}:{viewer.port} is not the daemon: {found.path} is stale"
    except OSError as error:
        return f"{whose}: {error.strerror or error}"
    except (NotShown, HttpError) as error:
        return f"{whose}: {error}"


# --- one of them ------------------------------------------------------------------------------------------------------
def _ask(viewer: ViewerFile, uid: int) -> Json:
    """The daemon's row, from its answers. Raises NotShown, HttpError and OSError."""
    if files.gone(viewer):
        raise NotShown(f"the daemon (pid {viewer.pid}) is gone, and left its viewer file")
    here = os.uname().nodename
    if viewer.node != here and viewer.address in ("127.0.0.1", "::1"):
        raise NotShown(f"the daemon listens on {viewer.node} alone: run this there")
    context = client_context(viewer.certificate)
    end = time.monotonic() + ASK_S
    with closing(HttpConnection(viewer.address, viewer.port, ASK_S, context, end=end, most=ANSWER_LIMIT)) as connection:
        status, jobs, nodes = (_get(connection, viewer, f"/v1/{name}") for name in ("status", "jobs", "nodes"))
    return _row(viewer, uid, status, jobs, nodes)


def _get(connection: HttpConnection, viewer: ViewerFile, path: str) -> Json:
    """The answer's JSON object. Raises NotShown, HttpError and OSError."""
    connection.send("GET", path, None, {"Authorization": f"Bearer {viewer.token}"})
    answer = connection.receive()
    if answer.status != 200:
        raise NotShown(f"it answers with status {answer.status}")
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        raise NotShown("its answer is not JSON") from None
    if not isinstance(found, dict):
        raise NotShown("its answer is no JSON object")
    return found


# --- what is believed -------------------------------------------------------------------------------------------------
TEXT_LIMIT = 256


def _text(value: object) -> str | None:
    return value[:TEXT_LIMIT] if isinstance(value, str) else None


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        return None
    return value if math.isfinite(value) else None


def _seconds(value: object) -> int | float | None:
    number = _number(value)
    return None if number is None or number < 0 else number


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _indices(value: object) -> dict[str, list[int]] | None:
    """A placement: lists of GPU indices by node; None for anything else."""
    if not isinstance(value, dict) or len(value) > 10_000:
        return None
    return {
        name[:TEXT_LIMIT]: [each for each in gpus if type(each) is int][:1024]
        for name, gpus in value.items()
        if isinstance(gpus, list)
    }


def _checked_holder(value: object) -> dict[str, int] | None:
    if isinstance(value, dict) and type(value.get("job")) is int and type(value.get("incarnation")) is int:
        return {"job": value["job"], "incarnation": value["incarnation"]}
    return None


Form = Mapping[str, Callable[[object], Any]]

_JOB: Form = {
    **dict.fromkeys(("name", "user", "state", "role", "cause"), _text),
    **dict.fromkeys(("id", "gpus_min", "gpus_max", "nodes", "nodes_max", "gpus", "incarnation"), _number),
    **dict.fromkeys(("step", "total", "submitted_at", "started_at", "finished_at", "wait_s", "jct_s"), _number),
    **dict.fromkeys(("suspends", "failures", "retries_used", "exit_code", "weight"), _number),
    "eta_s": _seconds,
    "placement": _indices,
    "held": _truth,
}

_GPU: Form = {
    **dict.fromkeys(("name", "state"), _text),
    **dict.fromkeys(("index", "memory_mib", "util", "used_mib", "power_w"), _number),
    "holder": _checked_holder,
    "background": _checked_holder,
}

_NODE: Form = {
    **dict.fromkeys(("name", "allocation"), _text),
    **dict.fromkeys(("until", "cpus", "memory_mib"), _number),
    **dict.fromkeys(("connected", "lost", "leaving", "emulated"), _truth),
    "gpus": lambda value: _rows(value, _GPU),
}

_DAEMON: Form = {
    **dict.fromkeys(("host", "version", "policy", "objective"), _text),
    **dict.fromkeys(("since_s", "cpu_s"), _seconds),
    "stopping": _truth,
}


def _only(row: Mapping[str, Any], form: Form) -> Json:
    return {name: believed(row[name]) for name, believed in form.items() if name in row}


def _rows(value: object, form: Form) -> list[Json]:
    if not isinstance(value, list):
        return []
    return [_only(row, form) for row in value[:ROWS_LIMIT] if isinstance(row, dict)]


def _row(viewer: ViewerFile, uid: int, status: Json, jobs: Json, nodes: Json) -> Json:
    """A daemon's row as JSON. Its user is who owns the viewer file, whatever the daemon says."""
    daemon = status.get("daemon")
    if not isinstance(daemon, dict):
        raise NotShown("its answer is none of hpcdl's")
    states = status["jobs"] if isinstance(status.get("jobs"), dict) else {}
    found = _rows(nodes.get("nodes"), _NODE)
    use = use_of(found)
    about: Json = {**dict.fromkeys(_DAEMON), **_only(daemon, _DAEMON)}
    up_s, cpu_s = about["since_s"], about.pop("cpu_s")
    return {
        "user": user_name(uid),
        "uid": uid,
        "instance": viewer.instance,
        "pid": viewer.pid,
        "home": viewer.home,
        **about,
        "states": {str(name)[:32]: number for name, number in states.items() if type(number) is int},
        "gpus_held": use.held,
        "gpus": use.held + use.free + use.bad + use.away,
        "gpu_util": None if use.load is None else round(use.load, 1),
        "daemon_cpu": round(100 * cpu_s / up_s, 2) if cpu_s is not None and up_s else None,
        "jobs": _rows(jobs.get("jobs"), _JOB),
        "nodes": found,
    }
