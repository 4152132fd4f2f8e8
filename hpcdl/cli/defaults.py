"""Defaults of the options of `hpcdl submit`, from HPCDL_SUBMIT_* and settings files, put under what the user gave."""

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
    if ctx.resilient_parsing:
        return None
    from hpcdl.config import ConfigError, load_submit

    try:
        found = load_submit(ctx.find_root().obj, _here())
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


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")
