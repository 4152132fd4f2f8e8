"""Site files: what a site allows pilots. They are conf/sites/*.yaml of the project, or a file of the user's own.

A wrong file is refused in one line with its line and key. `limits.py` has the values, `hpcdl doctor --site` writes such
a file, and its section `settings` is read by `hpcdl.config.settings`.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.system import systems
from hpcdl.config.layers import (
    BATCH_SYSTEMS,
    SettingLimits,
    constructed,
    note,
    pairs,
    site_folders,
    site_path,
    yaml_file,
)

MOST = 10**9
FIRST_JOB_MAX = 2_000_000_000
_SETTINGS = "settings"
_NAMED = ("a key of a site", "conf/sites/example.yaml")
_COUNT = SettingLimits(int, f"a whole number from 0 to {MOST}", 0, MOST)
_LIST = SettingLimits(str, "a list of texts, like [a, b]", form=re.compile(".+", re.DOTALL), many=True, alone=False)
_NUMBER = SettingLimits(float, f"a number up to {MOST}", -MOST, MOST)
_SWITCH = SettingLimits(bool, "true or false")


def _text(*choices: str) -> SettingLimits:
    form = re.compile("|".join(map(re.escape, choices))) if choices else None
    return SettingLimits(str, " or ".join(choices) or "a text", form=form)


def site_keys() -> dict[str, SettingLimits]:
    """What a site file may set: the kind of batch system, the charge rule in words, what only one batch system has, the
    fields of `PilotLimits`, the first id of a job, and settings as `hpcdl.config.settings` reads them.
    """
    return {
        "kind": _text(*BATCH_SYSTEMS),
        "charge": _text(),
        **{key: _text(*choices) for system in systems() for key, choices in system.site_keys.items()},
        **dict.fromkeys(("pilots_max", "nodes_max", "nodes_total"), _COUNT),
        **dict.fromkeys(("queues", "without", "options"), _LIST),
        "pilots_without_preemption": _SWITCH,
        **dict.fromkeys(("walltime_min_s", "walltime_max_s", "walltime_step_s", "margin_s"), _NUMBER),
        **dict.fromkeys(("startup_s", "patience_s", "useful"), _NUMBER),
        "first_job_id": SettingLimits(int, f"a whole number from 1 to {FIRST_JOB_MAX}", 1, FIRST_JOB_MAX),
        _SETTINGS: _text(),
    }


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
    known = site_keys()
    lines: dict[str, int] = {}
    values = {}
    with yaml_file(path, SiteError, "site file") as root:
        for key, _ in () if root is None else pairs(path, root, *_NAMED):
            note(path, lines, key, known, *_NAMED)
        read = constructed(root)
        for name in lines:  # in the order of the file: of several faults the first is said, always the same
            if name != _SETTINGS and read[name] is not None:
                values[name] = known[name].checked(read[name], name, f"{path}:{lines[name]}")
    limits = {each.name: values.pop(each.name) for each in dataclasses.fields(PilotLimits) if each.name in values}
    try:
        site = PilotLimits(**{"pilots_max": 10_000, **limits, "without": frozenset(limits.get("without", ()))})
    except ValueError as error:
        name = next((key for key in lines if key in str(error)), next(iter(lines), ""))
        raise SiteError(f"{path}:{lines.get(name, 1)}: {error}") from None
    own = {name: values.pop(name) for name in ("kind", "charge", "first_job_id") if name in values}
    return SiteFile(site, keys=values, **own)
