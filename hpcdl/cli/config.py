"""`hpcdl config`: every setting and where it comes from; the policy and objective of the running daemon.

Only policy and objective are changed here, by the API. All else is read from files (hpcdl/config) and only shown.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcdl.cli import completion
from hpcdl.cli.job_row import connect
from hpcdl.cli.output import Column, Output, Row, cut, outputs_as, print_fields, print_table, say, stdout_takes
from hpcdl.client import Answer, ClientError, DaemonAway
from hpcdl.core.model.objectives import OBJECTIVES


@click.group(invoke_without_command=True)
@outputs_as("Policy and objective only.")
def config(ctx: click.Context, output: Output) -> None:
    """Show and set what the running daemon decides by: policy and objective. They are kept over a restart.

    All other settings are read from files at the start: `hpcdl config show` lists them, docs/settings.md explains them.
    """
    if ctx.invoked_subcommand is None:
        _print(connect(ctx, reading=True).get("/v1/config"), output)
    elif output is not Output.TABLE:
        raise click.UsageError(f"write --{output.value} after {ctx.invoked_subcommand}", ctx)


@config.command(short_help="Show every setting that holds here.")
@click.option("--origin", is_flag=True, help="Also where each value comes from: a variable, FILE:LINE or default.")
@outputs_as("Names only, one a line.")
def show(ctx: click.Context, origin: bool, output: Output) -> None:
    """Show every setting that holds here, and the defaults of submit's options.

    Where a daemon runs and uses another value, that one is shown beside it: settings are read when it starts.
    """
    from hpcdl.config.layers import project_path, user_path
    from hpcdl.config.settings import SITE_FILE, load_config, load_submit, mistyped

    home: Path = ctx.find_root().obj
    here = Path.cwd()
    found, submits = load_config(home), load_submit(home, here)
    answer = _of_daemon(ctx)
    running = _running(answer)
    defaults = type(found)().values()
    settings = [
        _row(name, value, defaults[name], found.origin(name), running) for name, value in found.values().items()
    ]
    options = [
        {"option": name, "value": _plain(value), "origin": place} for name, (value, place) in sorted(submits.items())
    ]
    places = (project_path(here, os.environ), home / "config.yaml", user_path(os.environ), SITE_FILE)
    files = [
        {"layer": layer, "path": None if path is None else str(path), "there": path is not None and path.exists()}
        for layer, path in zip(("project", "home", "user", "machine"), places, strict=True)
    ]
    chosen = {"config": None, "policies": [], "objectives": []} if answer is None else answer
    value = {key: chosen[key] for key in ("config", "policies", "objectives")}
    value |= {"daemon": answer is not None, "settings": settings, "submit": options, "files": files}
    if not output.print_data(value, [row["name"] for row in settings]):
        _print_settings(settings, options, origin)
    for name, near in mistyped(os.environ):
        say(f"{name} is no setting: did you mean {near}?")


def _of_daemon(ctx: click.Context) -> Answer | None:
    """The running daemon's settings; None without a daemon, or after saying why it did not answer."""
    try:
        return connect(ctx, 0.0).get("/v1/config")
    except DaemonAway:
        return None
    except ClientError as error:
        say(str(error))
        return None


def _running(answer: Answer | None) -> dict[str, Any]:
    """The running daemon's values by setting, with the policy and objective that were chosen since its start."""
    if answer is None:
        return {}
    return {name: each["value"] for name, each in answer.get("settings", {}).items()} | dict(answer["config"])


def _row(name: str, value: Any, default: Any, origin: str, running: dict[str, Any]) -> dict[str, Any]:
    from hpcdl.config.settings import SETTINGS

    used = running.get(name, value)
    row = {"name": name, "value": value, "unit": SETTINGS[name].unit, "default": default, "origin": origin}
    return row | {"running": used if name in running else None, "differs": used != value}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _print_settings(settings: Sequence[Row], options: Sequence[Row], origin: bool) -> None:
    differs = any(row["differs"] for row in settings)
    # On a terminal a long list is cut for the columns beside it alone; the last column may be wrapped, but is whole.
    room = _LIST_ROOM if (differs or origin) and stdout_takes()[0] is not None else sys.maxsize
    columns = [
        Column("SETTING", lambda row: str(row["name"])),
        Column("VALUE", lambda row: cut(_with_unit(row, "value"), room)),
    ]
    if differs:
        columns.append(Column("THE DAEMON'S", lambda row: _with_unit(row, "running") if row["differs"] else ""))
    if origin:
        columns.append(Column("FROM", lambda row: str(row["origin"])))
    print_table(columns, settings)
    if options:
        print()
        columns = [
            Column("OPTION OF SUBMIT", lambda row: f"--{row['option'].replace('_', '-')}"),
            Column("DEFAULT", lambda row: _text(row["value"]), shrinks=True),
        ]
        print_table([*columns, Column("FROM", lambda row: str(row["origin"]))] if origin else columns, options)


_LIST_ROOM = 24
"""So much of a value is shown beside other columns."""


def _with_unit(row: Row, key: str) -> str:
    unit = "" if row[key] is None else row["unit"]
    return f"{_text(row[key])} {unit}".rstrip()


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


@config.command()
@click.argument("name", shell_complete=completion.policies)
@outputs_as("Policy and objective only.")
def policy(ctx: click.Context, name: str, output: Output) -> None:
    """Let the daemon decide by the policy NAME from now on."""
    _print(connect(ctx).request("PUT", "/v1/config", {"policy": name}), output)


@config.command(
    help=f"""Let the daemon aim at the objective NAME from now on: {", ".join(OBJECTIVES)}.

    It is for policies that weigh one; marble, marble-warm and fifo-exclusive decide the same whatever it is.
    """,
    short_help="Let the daemon aim at the objective NAME from now on.",
)
@click.argument("name", shell_complete=completion.objectives)
@outputs_as("Policy and objective only.")
def objective(ctx: click.Context, name: str, output: Output) -> None:
    """Set the running daemon's objective."""
    _print(connect(ctx).request("PUT", "/v1/config", {"objective": name}), output)


def _print(answer: Answer, output: Output) -> None:
    chosen = answer["config"]
    if not output.print_data(answer, list(chosen.values())):
        choices = {"policy": answer.get("policies") or (), "objective": answer.get("objectives") or ()}
        print_fields([(name, f"{value}  (of {', '.join(choices.get(name, ()))})") for name, value in chosen.items()])
    for warning in answer.get("warnings") or ():
        say(warning)
