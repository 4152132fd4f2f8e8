"""Site files: what a site allows pilots. `conf/sites/*.yaml` of the project, or a file of one's own."""

import dataclasses
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.system import systems
from hpcdl.config.layers import BATCH_SYSTEMS, NOT_YAML, check_size, site_folders, site_path

MAX_FILE_BYTES = 1 << 20
MOST = 10**9
_TIMES = ("walltime_min_s", "walltime_max_s", "walltime_step_s", "margin_s", "startup_s", "patience_s")
_COUNTS = ("pilots_max", "nodes_max", "nodes_total")
_LISTS = ("queues", "without", "options")
_SWITCHES = ("pilots_without_preemption",)
_SETTINGS = "settings"
_FIRST_JOB, FIRST_JOB_MAX = "first_job_id", 2_000_000_000


def site_keys() -> dict[str, tuple[str, ...]]:
    """What a site file may set, with what may be chosen: the fields of `Site` by name, the kind of batch system, the
    charge rule in words, what only one batch system has, and settings as `hpcdl.config.settings` reads them.
    """
    rest = (*_COUNTS, *_LISTS, *_SWITCHES, *_TIMES, "useful", _FIRST_JOB, _SETTINGS)
    return {"kind": tuple(BATCH_SYSTEMS), "charge": (), **_of_systems(), **dict.fromkeys(rest, ())}


def _of_systems() -> dict[str, tuple[str, ...]]:
    return {key: choices for system in systems() for key, choices in system.site_keys.items()}


class SiteError(ValueError):
    """No such site, or a file that is wrong; one line that names file, line and key."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A site as its file has it. `kind`: the batch system's name, "" where the file does not say. `charge`: for people.

    `first_job_id`: no job of hpcdl's has a lower id, so that they are apart from those of the batch system. `keys`:
    what the file sets of the batch systems' `site_keys`.
    """

    site: PilotLimits = field(default_factory=PilotLimits)
    kind: str = ""
    charge: str = ""
    first_job_id: int = 1
    keys: Mapping[str, str] = field(default_factory=dict)

    def on(self, kind: str) -> PilotLimits:
        """The site, for this kind of batch system ("": none). Raises SiteError where the file is for another one."""
        if kind and self.kind and kind != self.kind:
            raise SiteError(
                f"site: its file is for {self.kind}, and the batch system here is {kind}: choose another site, "
                "or set batch"
            )
        return self.site


def load_site(choice: str | None, pilots: int, home: Path | None = None) -> SiteFile:
    """The site that the settings name: `choice` is a name in conf/sites or `home`/sites, or a path; None: no limits.

    `pilots`: how many the user wants at most; the site's own limit stays below that. Raises SiteError, OSError.
    """
    if choice is None:
        return SiteFile(PilotLimits(pilots_max=pilots))
    read = read_site(_path_of(choice, home))
    most = min(pilots, read.site.pilots_max)
    return dataclasses.replace(read, site=dataclasses.replace(read.site, pilots_max=most))


def _path_of(choice: str, home: Path | None) -> Path:
    path = site_path(choice, home)
    if path is not None:
        return path
    known = sorted({path.stem for folder in site_folders(home) if folder.is_dir() for path in folder.glob("*.yaml")})
    raise SiteError(
        f"site: there is no site {choice!r}; there are {', '.join(known) or 'none'}: "
        "name one of them or a file, or have one written: hpcdl doctor --site"
    )


def read_site(path: Path) -> SiteFile:
    """One file. Raises SiteError, and OSError where it cannot be read."""
    import yaml  # here, so that a command that needs no site starts fast

    if not stat.S_ISREG(os.stat(path).st_mode):
        raise SiteError(f"{path} is not a file: name another")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise SiteError(f"{path}: larger than {MAX_FILE_BYTES} bytes: it is no site file")
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        check_size(root)
        lines: dict[str, int] = {}
        keys = site_keys()
        if root is not None:
            if not isinstance(root, yaml.MappingNode):
                raise SiteError(f"{path}:{root.start_mark.line + 1}: expected lines of the form `key: value`")
            for key, _ in root.value:
                where = f"{path}:{key.start_mark.line + 1}"
                if not isinstance(key, yaml.ScalarNode) or key.value not in keys:
                    named = key.value if isinstance(key, yaml.ScalarNode) else "a list"
                    raise SiteError(f"{where}: {named!r} is not a key of a site: {', '.join(keys)}")
                if key.value in lines:
                    raise SiteError(f"{where}: {key.value} is set already in line {lines[key.value]}")
                lines[key.value] = key.start_mark.line + 1
        values = (yaml.SafeLoader("").construct_document(root) if root is not None else None) or {}
    except (yaml.YAMLError, ValueError, *NOT_YAML) as error:
        if isinstance(error, SiteError):
            raise
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SiteError(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or error}: correct it") from None
    return _site(path, values, lines)


def _site(path: Path, values: Mapping[str, Any], lines: Mapping[str, int]) -> SiteFile:
    fields: dict[str, Any] = {"pilots_max": 10_000}
    of_systems = _of_systems()
    rest: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in values.items():
        if value is None or key == _SETTINGS:
            continue
        try:
            if key in of_systems:
                keys[key] = _text(value, of_systems[key])
            elif key in ("kind", "charge"):
                rest[key] = _text(value, tuple(BATCH_SYSTEMS) if key == "kind" else ())
            elif key == _FIRST_JOB:
                rest[key] = _first_job(value)
            else:
                fields[key] = _field(key, value)
        except ValueError as error:
            raise SiteError(f"{path}:{lines[key]}: {key}: {error}, got {_shown(value)}") from None
    try:
        site = PilotLimits(**fields)
    except ValueError as error:
        key = next((key for key in lines if key in str(error)), next(iter(lines), ""))
        raise SiteError(f"{path}:{lines.get(key, 1)}: {error}") from None
    return SiteFile(site, keys=keys, **rest)


def _first_job(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= FIRST_JOB_MAX:
        raise ValueError(f"must be a whole number from 1 to {FIRST_JOB_MAX}")
    return value


def _field(key: str, value: Any) -> Any:
    if key in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
            raise ValueError(f"must be a whole number from 0 to {MOST}")
        return value
    if key in _LISTS:
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise ValueError("must be a list of texts, like [a, b]")
        return frozenset(value) if key == "without" else tuple(value)
    if key in _SWITCHES:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST <= value <= MOST:
        raise ValueError(f"must be a number up to {MOST}")
    return float(value)


def _shown(value: Any) -> str:
    """What a file holds, for its reader; a number of any length."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python does not print so many digits
        return "a number with thousands of digits"


def _text(value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if choices and value not in choices:
        raise ValueError(f"must be {' or '.join(choices)}")
    return value
