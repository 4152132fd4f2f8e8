"""`hpcdl profile plot`: rate and efficiency by number of GPUs, as an HTML file or in the terminal.

Of the daemon's profiles; without a daemon of those in files. The curves are made in hpcdl/report/scaling.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.output import Column, Output, escape, outputs_as, print_table
from hpcdl.cli.params import OutputFile, replace_file
from hpcdl.client import DaemonAway, path_with
from hpcdl.core.model.units import meant

if TYPE_CHECKING:
    from hpcdl.report.scaling import At, Scaling

_WIDTH = 40


@click.command(short_help="Draw how profiles scale.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-o", "--output", "target", type=OutputFile(), metavar="FILE",
              help="The HTML file to write.  [default: draw them here]")  # fmt: skip
@outputs_as("Names only, one a line.")
def plot(ctx: click.Context, output: Output, names: tuple[str, ...], target: Path | None) -> None:
    """Draw how fast these profiles are on how many GPUs, and how efficient: given and learnt ones.

    Without a daemon those of files. Filled: measured or given; the rest lies between, within the error that is shown.
    """
    found = [each for name in dict.fromkeys(names) for each in _scalings(ctx, name)]
    if target is not None:
        from hpcdl.report.scaling import scaling_page

        replace_file(target, scaling_page(f"Profiles: {', '.join(each.name for each in found)}"[:200], found))
    told = {"profiles": [_json(each) for each in found]}
    file = {} if target is None else {"file": str(target.absolute())}
    if not output.print_data(told | file, [each.name for each in found]):
        if target is not None:
            print(f"wrote {escape(str(target))}")
        else:
            _print(found)


def _scalings(ctx: click.Context, name: str) -> "list[Scaling]":
    """The curves of one profile. Raises ClickException, with the nearest name, where there is none."""
    from hpcdl.core.model.profile import Profile, find_profile
    from hpcdl.report.scaling import scaling_of

    try:
        (row,) = connect(ctx, 0.0).get(path_with("/v1/profiles", name=name))["profiles"]
    except DaemonAway:
        from hpcdl.config.layers import conf_folder
        from hpcdl.config.profiles import load_profiles

        known = load_profiles([conf_folder() / "profiles", ctx.find_root().obj / "profiles"])
        profile = find_profile(known, name)
        if profile is None:
            step = meant(name.strip().casefold(), known, "hpcdl profile add makes one", text=repr)
            raise click.ClickException(f"there is no profile {name[:100]!r} in a file: {step}") from None
        return scaling_of(profile)
    profile = Profile.from_mapping(row["name"], row["profile"])
    seen = {(point["nodes"], point["gpus"]) for point in row["points"]} if row["learnt"] else None
    return scaling_of(profile, seen)


def _json(scaling: "Scaling") -> dict[str, Any]:
    keys = ("nodes", "gpus", "rate", "low", "high", "efficiency", "measured")
    points = [{key: getattr(at, key) for key in keys} for at in scaling.points]
    return {"name": scaling.name, "source": scaling.source, "points": points}


def _print(found: "Sequence[Scaling]") -> None:
    for number, scaling in enumerate(found):
        if number:
            print()
        print(escape(scaling.name))
        most = max(at.high for at in scaling.points)
        columns = [
            Column("GPUS", lambda row: _where(row["at"]), right=True),
            Column("STEPS/S", lambda row: f"{row['at'].rate:.4g}", right=True),
            Column("±", lambda row: _error(row["at"]), right=True),
            Column("EFFICIENCY", lambda row: f"{100 * row['at'].efficiency:.0f} %", right=True),
            Column("", lambda row: _bar(row["at"], row["most"])),
        ]
        print_table(columns, [{"at": at, "most": most} for at in scaling.points])


def _where(at: "At") -> str:
    return str(at.gpus) if at.nodes == 1 else f"{at.nodes}x{at.gpus}"


def _error(at: "At") -> str:
    return f"{at.high - at.rate:.2g}" if at.high > at.rate else ""


def _bar(at: "At", most: float) -> str:
    """A bar: `#` where it was measured, `-` as far as it may reach by one standard error."""
    length, reach = round(_WIDTH * at.rate / most), round(_WIDTH * at.high / most)
    return ("#" if at.measured else "=") * length + "-" * (reach - length)
