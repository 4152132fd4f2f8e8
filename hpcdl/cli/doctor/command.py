"""`hpcdl doctor`: whether hpcdl can work here, and what to do where it cannot.

Needs neither daemon nor batch system, and changes nothing. The checks are in machine.py, batch_system.py and
security.py; `--site` is in site_file.py.
"""

import os
import shutil
import sys
import textwrap
from pathlib import Path

import click

from hpcdl.cli.output import Output, Row, escape, outputs_as, paint


@click.command()
@click.option(
    "--site", is_flag=False, flag_value="", metavar="[NAME]",
    help="Ask the batch system for its limits, and write a site file, $HPCDL_HOME/sites/NAME.yaml.",
)  # fmt: skip
@click.option("--security", is_flag=True, help="Check who could read, write, reach or overhear this installation.")
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), metavar="FILE", help="Where; - prints it.")
@outputs_as("What FAILs only, one a line.")
def doctor(ctx: click.Context, site: str | None, security: bool, target: Path | None, output: Output) -> None:
    """Check what hpcdl needs here, each with what it found and the next step; exit 1 if anything FAILs.

    Changes nothing, submits nothing, and asks the batch system a handful of questions.
    """
    home: Path = ctx.find_root().obj
    if security and (site is not None or target is not None):
        raise click.UsageError("--security goes without --site and --output", ctx)
    if site is not None:
        from hpcdl.cli.doctor.site_file import write_site_file

        write_site_file(ctx, home, site, target, output)
        return
    if target is not None:
        raise click.UsageError("--output is where --site writes", ctx)
    from hpcdl.cli.doctor.machine import CheckState, local_checkpoints, local_checks, sharing

    batch: Row | None = None
    if security:
        from hpcdl.cli.doctor.security import security_checks

        checks = list(security_checks(home))
    else:
        from hpcdl.cli.doctor.batch_system import agents_missing, batch_checks, read_settings

        config, site_file, read = read_settings(home)
        found, batch = batch_checks(config, site_file, os.environ)
        checks = [*local_checks(home), *read, *local_checkpoints(config.local_checkpoints), sharing(config), *found]
        checks += agents_missing(home)
    rows: list[Row] = [
        {"name": each.name, "state": each.state.value, "detail": each.detail, "next": each.next} for each in checks
    ]
    failed = [row["name"] for row in rows if row["state"] == CheckState.FAIL]
    if not output.print_data({"ok": not failed, "checks": rows} | ({} if security else {"batch": batch}), failed):
        _print(rows)
    if failed:
        ctx.exit(1)


def _print(rows: list[Row]) -> None:
    """A table whose texts are never cut: on a terminal they go on in the next line."""
    widths = [max(len(row[key]) for row in rows) for key in ("state", "name")]
    indent = sum(widths) + 4
    terminal = sys.stdout.isatty()
    room = max(40, shutil.get_terminal_size().columns - indent) if terminal else 1 << 30
    for row in rows:
        detail = textwrap.wrap(escape(row["detail"]), room) or [""]
        step = [f"-> {line}" if not at else f"   {line}" for at, line in enumerate(_wrapped(row["next"], room - 3))]
        state = paint(row["state"], row["state"].ljust(widths[0]))
        print(f"{state}  {row['name']:<{widths[1]}}  {detail[0]}".rstrip())
        for line in (*detail[1:], *step):
            print(" " * indent + line)


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(escape(text), room) if text else []
