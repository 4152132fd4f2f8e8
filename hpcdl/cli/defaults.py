"""Defaults of the options of `hpcdl submit`, from HPCDL_SUBMIT_* and settings files, put under what the user gave."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

_META = "hpcdl.defaults"


def put_defaults(ctx: click.Context) -> Exception | None:
    """Give the context of `hpcdl submit` the defaults that hold in this folder, before it reads its arguments.

    Returns what is wrong with a settings file, for the caller to raise once `--help` has had its turn.
    """
    home, here = ctx.find_root().obj, _here()
    if ctx.resilient_parsing or _nothing_is_set(home, here):
        return None
    from hpcdl.config import ConfigError, load_submit

    try:
        found = load_submit(home, here)
    except (ConfigError, OSError) as error:
        return error
    ctx.meta[_META] = {option: origin for option, (_, origin) in found.items()}
    ctx.default_map = {option: value for option, (value, _) in found.items()}
    return None


def told_origin(ctx: click.Context, error: click.BadParameter) -> Exception:
    """The error as it is, or with the place of the default that is wrong where no option of the user's is."""
    from hpcdl.layers import ConfigError

    name = error.param.name if error.param is not None else None
    if name is None or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
        return error
    return ConfigError(f"{default_origins(ctx).get(name, 'default')}: submit: {name}: {error.message}")


def default_origins(ctx: click.Context) -> Mapping[str, str]:
    """Where the defaults that `put_defaults` found come from, by the option's name."""
    origins: Any = ctx.meta.get(_META, {})
    return dict(origins)


def _nothing_is_set(home: Path, here: Path) -> bool:
    """Whether there is none of the files and variables that `load_submit` looks at; else it may find one or not.

    Most submits find none, and need not wait for what reads settings.
    """
    if any(name.startswith(_PREFIXES) for name in os.environ):
        return False
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.environ.get("HOME", ""), ".config")
    places: list[Path | str] = [home / "config.yaml", f"{base}/hpcdl/config.yaml", "/etc/hpcdl/config.yaml"]
    places += [folder / "hpcdl.yaml" for folder in (here, *here.parents)]
    return not any(os.path.lexists(place) for place in places)


_PREFIXES = ("HPCDL_SUBMIT_", "HPCDL_SITE", "HPCDL_PROJECT")


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")
