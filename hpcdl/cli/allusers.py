"""`hpcdl ls --all-users`: the daemons of all users who let this one look, with their jobs, GPUs and load."""

from collections.abc import Sequence
from pathlib import Path

import click

from hpcdl.cli.output import Column, Output, Row, print_ids, print_json, print_table, say
from hpcdl.cli.rows import duration_text, placement_text, step_text

LISTS = ("daemons", "jobs", "nodes", "gpus")


def list_all_users(ctx: click.Context, homes: Sequence[str], what: str | None, output: Output) -> None:
    """Prints them: a line for each daemon, or for each of their jobs or GPUs. Those that cannot be asked are told."""
    from hpcdl.cli.viewing import in_homes, on_node
    from hpcdl.config import load_config

    if what is not None and what not in LISTS:
        raise click.UsageError(f"--all-users lists {', '.join(LISTS)}, not {what!r}", ctx)
    home: Path = ctx.find_root().obj
    seen = in_homes(homes) if homes else on_node(Path(load_config(home).viewers_folder))
    if output is Output.JSON:
        print_json({"daemons": seen.daemons, "problems": seen.problems})
        return
    if output is Output.QUIET:
        print_ids([row["home"] for row in seen.daemons])
    else:
        _print(what or "daemons", seen.daemons)
    for problem in seen.problems:
        say(problem)


def _print(what: str, daemons: Sequence[Row]) -> None:
    columns: Sequence[Column] = _DAEMONS
    lines: list[Row] = list(daemons)
    if what == "jobs":
        columns, lines = _JOBS, [{"of": row, "job": job} for row in daemons for job in row["jobs"]]
    elif what != "daemons":
        nodes = [(row, node) for row in daemons for node in row["nodes"]]
        columns = _GPUS
        lines = [{"of": row, "node": node, "gpu": gpu} for row, node in nodes for gpu in node.get("gpus") or _NO_GPUS]
    if lines:
        print_table(columns, lines)
    elif daemons:
        say(f"no {what}; hpcdl ls --all-users lists the daemons")
    else:
        say("no daemon that you may look at: root sees all, and groups what the setting viewers_group gives them")


def _known(value: object) -> str:
    return "-" if value is None else str(value)


def _percent(value: object) -> str:
    return f"{value:.0f} %" if isinstance(value, int | float) and value >= 10 else f"{value:.1f} %"


def _load(row: Row) -> str:
    """`GPU 83 %, daemon 0.4 %`: the mean of its GPUs now; of a core, since its start."""
    parts = [
        f"{name} {_percent(row[key])}"
        for name, key in (("GPU", "gpu_util"), ("daemon", "daemon_cpu"))
        if row.get(key) is not None
    ]
    return ", ".join(parts) or "-"


def _states(row: Row) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(row["states"].items())) or "-"


def _holder(line: Row) -> str:
    holder = line["gpu"].get("holder")
    return f"{holder['job']}.{holder['incarnation']}" if holder else "-"


_NO_GPUS: Sequence[Row] = ({},)
"""One line for a node without any."""

_DAEMONS = (
    Column("USER", lambda row: str(row["user"])),
    Column("HOST", lambda row: _known(row["host"])),
    Column("HOME", lambda row: str(row["home"]), shrinks=True),
    Column("POLICY", lambda row: _known(row["policy"])),
    Column("JOBS", _states, shrinks=True),
    Column("GPUS", lambda row: f"{row['gpus_held']}/{row['gpus']}", right=True),
    Column("LOAD", _load),
    Column("UP", lambda row: duration_text(row["since_s"])),
)
_JOBS = (
    Column("USER", lambda line: str(line["of"]["user"])),
    Column("HOST", lambda line: _known(line["of"]["host"])),
    Column("ID", lambda line: _known(line["job"].get("id")), right=True),
    Column("NAME", lambda line: _known(line["job"].get("name")), shrinks=True),
    Column("STATE", lambda line: _known(line["job"].get("state")), coloured=True),
    Column("GPUS", lambda line: _known(line["job"].get("gpus")), right=True),
    Column("PLACEMENT", lambda line: placement_text(line["job"].get("placement")) or "-", shrinks=True),
    Column("STEP", lambda line: step_text(line["job"]), right=True),
    Column("ETA", lambda line: duration_text(line["job"].get("eta_s")), right=True),
)
_GPUS = (
    Column("USER", lambda line: str(line["of"]["user"])),
    Column("NODE", lambda line: _known(line["node"].get("name"))),
    Column("GPU", lambda line: _known(line["gpu"].get("index")), right=True),
    Column("STATE", lambda line: _known(line["gpu"].get("state"))),
    Column("JOB", _holder, right=True),
    Column("UTIL", lambda line: _known(line["gpu"].get("util")), right=True),
    Column("MIB", lambda line: _known(line["gpu"].get("used_mib")), right=True),
    Column("NAME", lambda line: _known(line["gpu"].get("name")), shrinks=True),
)
