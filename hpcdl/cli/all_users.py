"""`hpcdl ls --all-users`: the daemons of all users who let this one look, with their jobs, GPUs and load."""

from collections.abc import Sequence
from pathlib import Path

import click

from hpcdl.cli.formats import JOBS, number, plain
from hpcdl.cli.machines import GPUS, gpu_rows
from hpcdl.cli.output import Column, Output, Row, print_table, say
from hpcdl.cli.rows import duration_text

LISTS = ("daemons", "jobs", "nodes", "gpus")


def list_all_users(ctx: click.Context, homes: Sequence[str], what: str | None, output: Output) -> None:
    """Prints them: a line for each daemon, or for each of their jobs or GPUs. Those that cannot be asked are told."""
    from hpcdl.cli.viewing import in_homes, on_node
    from hpcdl.config import load_config

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
        columns, lines = (
            _JOBS,
            [{**job, "user": row["user"], "host": row["host"]} for row in daemons for job in row["jobs"]],
        )
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
    *(GPUS.columns[name].column for name in ("node",)),
    number("GPU", "index").column,
    *(GPUS.columns[name].column for name in ("state", "job")),
    number("UTIL", "util").column,
    number("MIB", "used_mib").column,
    plain("NAME", "name", shrinks=True).column,
)
