"""`hpcdl profile add`: a profile from a file or from rates, put into the folder's profiles/.

A running daemon reads it at once; where it refuses it, the files are as before.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.output import Output, escape, outputs_as, say
from hpcdl.cli.params import InputFile, Seconds
from hpcdl.cli.profile.show import yaml_text
from hpcdl.client import DaemonAway

if TYPE_CHECKING:
    from hpcdl.core.model.profile import Profile

_RATE = re.compile(r"(?:(\d{1,6})x)?(\d{1,4})=([0-9.eE+-]{1,30})")


def _rates(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[dict[str, Any]]:
    """The points of --rate: `4=30.5` on a node, `2x4=55` on two with 4 GPUs each."""
    from hpcdl.core.model.profile import MAX_GPUS, MAX_NODES

    points: list[dict[str, Any]] = []
    typed: dict[tuple[int, int], str] = {}
    for value in values:
        match = _RATE.fullmatch(value.strip())
        try:
            rate = float(match[3]) if match else 0.0
        except ValueError:
            match = None
        if match is None:
            raise click.BadParameter(
                f"{value!r}: write GPUS=RATE, like 2=18.5, or NODESxGPUS=RATE, like 2x4=55", ctx, param
            )
        nodes, gpus = int(match[1] or 1), int(match[2])
        wrong = (
            f"GPUS must be from 1 to {MAX_GPUS}" if not 1 <= gpus <= MAX_GPUS
            else f"NODES must be from 1 to {MAX_NODES}" if not 1 <= nodes <= MAX_NODES
            else "RATE must be steps/s, a number above 0" if not 0 < rate < math.inf
            else f"{typed[nodes, gpus]!r} is of as many GPUs: give one of them" if (nodes, gpus) in typed
            else ""
        )  # fmt: skip
        if wrong:
            raise click.BadParameter(f"{value!r}: {wrong}", ctx, param)
        typed[nodes, gpus] = value
        points.append({"nodes": nodes, "gpus": gpus, "rate": rate})
    return points


@click.command(short_help="Put profiles of a file, or one of rates, in.")
@click.argument("file", required=False, type=InputFile())
@click.option("-n", "--name", metavar="NAME", help="What jobs call it: submit --profile NAME.")
@click.option("--rate", "rates", multiple=True, callback=_rates, metavar="[NODESx]GPUS=RATE",
              help="Steps/s on so many GPUs of a node; once for each number.")  # fmt: skip
@click.option("--startup", type=Seconds(min=0), metavar="SECONDS", help="From a start to the first step.")
@click.option("--save", type=Seconds(min=0), metavar="SECONDS", help="From a suspend until its GPUs are free.")
@click.option("--resume", type=Seconds(min=0), metavar="SECONDS", help="From a resume to the next step.")
@click.option("--alias", "aliases", multiple=True, metavar="NAME", help="Another name for it.")
@click.option("--source", default="", metavar="TEXT", help="Where the numbers come from.")
@click.option("--replace", is_flag=True, help="Replace one of that name.")
@outputs_as("Names only, one a line.")
def add(ctx: click.Context, /, output: Output, file: Path | None, replace: bool, **given: Any) -> None:
    """Check the profiles in FILE, or one given by its rates, and put them into the folder's profiles/.

    hpcdl profile add --name resnet50 --rate 1=10 --rate 2=18.5 --rate 4=31 --startup 20

    A running daemon takes them in at once; else the next one does.
    """
    found = _asked(ctx, file, given)
    home: Path = ctx.find_root().obj
    places = _places(home, found, replace)
    from hpcdl.wire.private_files import atomic_write, make_private_folder

    make_private_folder(home)
    make_private_folder(home / "profiles")
    before = {path: path.read_bytes() if path.exists() else None for path, _ in places}
    for path, profile in places:
        atomic_write(path, yaml_text(profile.name, profile.to_mapping()).encode("utf-8", "backslashreplace"))
    try:
        answer = connect(ctx, 0.0).request("POST", "/v1/profiles/read", {})
    except DaemonAway:
        answer = None
    except BaseException:  # it refused: as it was
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                atomic_write(path, content)
        raise
    names = [profile.name for _, profile in places]
    files = [str(path) for path, _ in places]
    if not output.print_data({"added": names, "files": files, "daemon": answer is not None}, names):
        for path, profile in places:
            print(f"profile {escape(profile.name)} is in {escape(str(path))}")
        if answer is None:
            say("no daemon runs; the next one reads it")


def _asked(ctx: click.Context, file: Path | None, given: dict[str, Any]) -> "list[Profile]":
    """The profiles of the file, or the one that the options describe. Raises UsageError, ProfileError."""
    from hpcdl.config.profiles import read_profiles
    from hpcdl.core.model.profile import Profile, ProfileError

    if file is not None:
        if any(value for value in given.values()):
            raise click.UsageError("give a FILE, or --name and --rate, not both", ctx)
        found = read_profiles(file)
        if not found:
            raise click.ClickException(f"{file} holds no profile")
        return found
    if not given["name"] or not given["rates"]:
        raise click.UsageError("give a FILE, or --name and at least one --rate", ctx)
    times = {f"{name}_s": given[name] for name in ("startup", "save", "resume") if given[name] is not None}
    mapping = {"points": given["rates"], "aliases": list(given["aliases"]), "source": given["source"], **times}
    try:
        return [Profile.from_mapping(given["name"], mapping)]
    except ProfileError as error:
        raise click.UsageError(str(error), ctx) from None


def _places(home: Path, found: "Sequence[Profile]", replace: bool) -> "list[tuple[Path, Profile]]":
    """The file of each profile. Raises ClickException where a name is taken, or would be in two files."""
    from hpcdl.config.layers import conf_folder
    from hpcdl.config.profiles import load_profiles, read_profiles

    folder = home / "profiles"
    known = load_profiles([conf_folder() / "profiles", folder])
    taken = {name.casefold(): each for each in known.values() for name in (*each.aliases, each.name)}
    own: dict[str, tuple[Path, int]] = {}
    for path in sorted(folder.glob("*.y*ml")) if folder.is_dir() else []:
        held = read_profiles(path)
        for each in held:
            own.update({name.casefold(): (path, len(held)) for name in (each.name, *each.aliases)})
    places: list[tuple[Path, Profile]] = []
    for profile in found:
        names = [name.casefold() for name in (profile.name, *profile.aliases)]
        same = next((name for name in names if name in taken), None)
        if same is not None and not replace:
            raise click.ClickException(f"there is a profile {same!r} already: --replace puts this one in its place")
        path = folder / f"{_file_name(profile.name)}.yaml"
        for name in names:
            where, many = own.get(name, (path, 1))
            if many > 1 or (where != path and name != profile.name.casefold()):
                raise click.ClickException(f"{where} has {name!r}, beside others: change it there")
            if where != path:
                path = where
        if any(path == other for other, _ in places):
            raise click.ClickException(f"two of these profiles would be {path}: give one of them another name")
        if path.exists() and path not in {where for where, _ in own.values()}:
            raise click.ClickException(f"{path} is there already and holds no profile of that name: move it away")
        if path.exists() and same is None:
            raise click.ClickException(f"{path} holds another profile: give this one another name")
        places.append((path, profile))
    return places


def _file_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.casefold()).strip("-.") or "profile"
    return os.fsdecode(plain.encode()[:100])
