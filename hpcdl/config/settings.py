"""The settings, conf/hpcdl.yaml documents each. What wins, from the strongest: a flag; HPCDL_<NAME>; for the options of
submit the project's hpcdl.yaml; $HPCDL_HOME/config.yaml; ~/.config/hpcdl/config.yaml; /etc/hpcdl/config.yaml; the
section `settings` of the site that the setting `site` names; the default.

A wrong setting is never guessed at: ConfigError names where it stands and what would be right.
"""

import dataclasses
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcdl.config.layers import (
    BATCH_SYSTEMS,
    ConfigError,
    Layer,
    SettingLimits,
    not_known,
    project_path,
    read_layer,
    site_path,
    user_path,
)
from hpcdl.core.model.milp_solvers import MILP_SOLVERS
from hpcdl.core.model.notice import NoticeRules, rules_of

SITE_FILE = Path("/etc/hpcdl/config.yaml")
DEFAULT = "default"

_DAY = 86_400.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9:.%_-]+")
_PATH = re.compile(r"[^\0\n]+")
_TEXT = re.compile(r"[^\0\n\r]+")
_KINDS = re.compile(r" *[a-z]+(?: *, *[a-z]+)* *")
_ADDRESS = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+=-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
_SMTP = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?")
_NODE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9:.%_-]+")  # a folder is named after it
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")


PACKING = ("adaptive", "marble")
BATCH = ("auto", *BATCH_SYSTEMS, "none")


def _seconds(default: float | None, low: float, high: float = _DAY, optional: bool = False) -> Any:
    said = f"a number of seconds from {low:.15g} to {high:.15g}"
    optional = optional or default is None
    return field(
        default=default, metadata={"limits": SettingLimits(float, said, low, high, optional=optional, unit="s")}
    )


def _number(default: float, low: float, high: float) -> Any:
    said = f"a number from {low:.15g} to {high:.15g}"
    return field(default=default, metadata={"limits": SettingLimits(float, said, low, high)})


def _whole(default: int | None, low: int, high: int, unit: str = "") -> Any:
    said = f"a whole number {f'of {unit} ' if unit else ''}from {low} to {high}"
    return field(
        default=default, metadata={"limits": SettingLimits(int, said, low, high, optional=default is None, unit=unit)}
    )


def _text(default: str | None, form: re.Pattern[str], said: str) -> Any:
    return field(default=default, metadata={"limits": SettingLimits(str, said, form=form, optional=default is None)})


def _switch(default: bool) -> Any:
    return field(default=default, metadata={"limits": SettingLimits(bool, "on or off")})


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting; `origins`: where each value comes from. Names end in their unit: _s, _bytes.

    monitor_interval_s: the paper's monitor interval. heartbeat_s: None stands for it. agent_lease_s: an agent without
    a daemon for longer ends its trainers; lease_margin_s later its node is lost. agent_absence_s: a supervisor without
    an agent for longer checkpoints and ends its trainer. The others: see conf/hpcdl.yaml.
    """

    monitor_interval_s: float = _seconds(10.0, 1, 3600)
    heartbeat_s: float | None = _seconds(None, 0.1, 3600)
    debounce_s: float = _seconds(0.02, 0, 60)
    policy: str = _text("adaptive", _NAME, "a policy's name")
    objective: str = _text("jct", _NAME, "an objective's name")
    t_fwd_s: float | None = _seconds(120.0, 1, optional=True)
    parallel_trainers: int | None = _whole(None, 1, 1_000_000, "trainers")
    milp_solver: str = _text(
        "exact", re.compile("|".join(MILP_SOLVERS)), f"{', '.join(MILP_SOLVERS[:-1])} or {MILP_SOLVERS[-1]}"
    )
    milp_time_limit: float = _seconds(5.0, 0.01, 3600)
    theta: float = _number(0.4, 0, 100)
    sharing: bool = _switch(False)
    packing: str = _text("adaptive", re.compile("|".join(PACKING)), " or ".join(PACKING))
    agent_lease_s: float = _seconds(600.0, 1, 30 * _DAY)
    lease_margin_s: float = _seconds(60.0, 0.1)
    agent_absence_s: float = _seconds(120.0, 1, 30 * _DAY)
    stopped_s: float = _seconds(10.0, 0.1)
    stop_grace_s: float = _seconds(120.0, 0.1)
    poison_limit: int = _whole(3, 1, 1000, "failures")
    poison_limit_infrastructure: int = _whole(50, 1, 1000, "failures")
    retry_pause_s: float = _seconds(1.0, 0)
    retry_pause_max_s: float = _seconds(30.0, 0)
    hold_missing_checkpoint: bool = _switch(True)
    max_jobs_a_submit: int = _whole(10_000, 1, 1_000_000, "jobs")
    stall_s: float | None = _seconds(None, 0, 30 * _DAY)
    avoid_s: float = _seconds(3600.0, 0)
    avoid_failures: int = _whole(5, 0, 1000, "failures")
    notify: str | None = _text(None, _TEXT, "destinations with ; between: commands, mailto:ADDRESS, http(s)://…")
    notify_on: str = _text(
        "end,failure,poison,preemption,stall,gpu,deadline,damage,idle",
        _KINDS,
        "kinds of notifications with commas between",
    )
    notify_from: str | None = _text(None, _ADDRESS, "an e-mail address")
    notify_for_s: float = _seconds(3 * _DAY, 60, 365 * _DAY)
    smtp_host: str | None = _text(None, _SMTP, "a host, or host:port")
    batch: str = _text("auto", re.compile("|".join(BATCH)), f"{', '.join(BATCH[:-1])} or none")
    batch_interval_s: float = _seconds(30.0, 1, 3600)
    site: str | None = _text(None, _PATH, "the name of a site in conf/sites, or the path of its file")
    pilots: int = _whole(0, 0, 10_000, "pilots")
    leave_margin_s: float = _seconds(30.0, 0)
    pilot_idle_s: float = _seconds(120.0, 1)
    listen_host: str = _text("127.0.0.1", _HOST, "a host name or address")
    listen_port: int = _whole(0, 0, 65_535)
    node_name: str | None = _text(None, _NODE, "a node's name")
    viewers_group: str | None = _text(None, _GROUP, "a group's name")
    viewers_folder: str = _text("/dev/shm", _PATH, "the path of a folder")  # noqa: S108
    local_checkpoints: str | None = _text(
        None, re.compile(r"[/$][^\0\n]*"), "the absolute path of a folder of each node"
    )
    mps_pipe_directory: str | None = _text(None, re.compile(r"/[^\0\n]*"), "the absolute path of a folder of each node")
    mps_background_percent: int | None = _whole(None, 1, 100, "per cent")
    log_limit_bytes: int = _whole(1 << 30, 1 << 16, 1 << 50, "bytes")
    snapshot_every: int = _whole(5_000, 1, 10_000_000, "events")
    keep_events: int = _whole(100_000, 0, 1_000_000_000, "events")
    keep_finished: int = _whole(10_000, 0, 10_000_000, "jobs")
    samples: int = _whole(100_000, 1, 100_000_000, "samples")
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            value = SETTINGS[setting].checked(getattr(self, setting), setting, self.origin(setting))
            object.__setattr__(self, setting, value)
        for low, high in (("retry_pause_s", "retry_pause_max_s"), ("heartbeat_s", "agent_lease_s")):
            if (getattr(self, low) or 0) > getattr(self, high):
                raise ConfigError(
                    f"{low} ({getattr(self, low):g}, {self.origin(low)}) must not be above "
                    f"{high} ({getattr(self, high):g}, {self.origin(high)}): change one of them"
                )

        try:
            rules_of(self.notify, self.notify_on)
        except ValueError as error:
            where = f"notify, {self.origin('notify')}; notify_on, {self.origin('notify_on')}"
            raise ConfigError(f"{error} ({where})") from None

    @property
    def notices(self) -> NoticeRules:
        """Who is notified of what."""
        return rules_of(self.notify, self.notify_on)

    def origin(self, setting: str) -> str:
        """Where the value comes from: `flag`, `HPCDL_...`, `FILE:LINE` or `default`."""
        return self.origins.get(setting, DEFAULT)

    def values(self) -> dict[str, Any]:
        """Every setting with its value."""
        return {setting: getattr(self, setting) for setting in SETTINGS}

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats of an agent: `heartbeat_s`, else the monitor interval."""
        return self.monitor_interval_s if self.heartbeat_s is None else self.heartbeat_s

    @property
    def node(self) -> str:
        """This node's name: `node_name`, else the host's, short."""
        return self.node_name or socket.gethostname().split(".")[0]


def load_config(
    home: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    site: Path = SITE_FILE,
) -> Config:
    """The settings that hold for `home`. `overrides`: from flags, as text or value; None is a flag that was not given.

    `site`: the machine's file. A file that is not there sets nothing. Raises ConfigError; OSError where a file cannot
    be read.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers(home, given, environ=environ, site=site):
        for setting, (value, line) in layer.settings.items():
            # Each by itself, so that one that a stronger layer hides is refused as well.
            values[setting] = SETTINGS[setting].checked(value, setting, layer.origin(line))
            origins[setting] = layer.origin(line)
    for setting in SETTINGS:
        variable = f"HPCDL_{setting.upper()}"
        if variable in environ:
            values[setting] = SETTINGS[setting].parsed(environ[variable], setting, variable)
            origins[setting] = variable
    for setting, value in given.items():
        if setting not in SETTINGS:
            raise ConfigError(f"flag: {not_known(setting, SETTINGS)}")
        values[setting] = SETTINGS[setting].parsed(value, setting, "flag") if isinstance(value, str) else value
        origins[setting] = "flag"
    return Config(**values, origins=MappingProxyType(origins))


def layers(
    home: Path, given: Mapping[str, Any], *, environ: Mapping[str, str] = os.environ, site: Path = SITE_FILE
) -> Sequence[Layer]:
    """The files that set something for `home`, the weakest first: the named site's, the machine's, the user's two.

    `given`: what flags set, for the setting `site` names the site's file. Raises as `load_config`.
    """
    user = user_path(environ)
    own = [read_layer(path, SETTINGS, SUBMIT_OPTIONS) for path in (home / "config.yaml",)]
    users = [] if user is None else [read_layer(user, SETTINGS, SUBMIT_OPTIONS, trusted=False)]
    found = [read_layer(site, SETTINGS, SUBMIT_OPTIONS), *users, *own]
    chosen: Any = next((layer.settings["site"][0] for layer in reversed(found) if "site" in layer.settings), None)
    chosen = given.get("site") or environ.get("HPCDL_SITE", chosen)
    path = site_path(chosen, home) if isinstance(chosen, str) and chosen else None
    if path is None:  # a site that there is not is refused where its limits are read
        return found
    named = {name: limits for name, limits in SETTINGS.items() if name != "site"}
    return [read_layer(path, named, SUBMIT_OPTIONS, section="settings"), *found]


def load_submit(
    home: Path,
    folder: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    site: Path = SITE_FILE,
) -> Mapping[str, tuple[Any, str]]:
    """Defaults of the options of `hpcdl submit` for a submit in `folder`: option -> (value, where it comes from).

    Options as in SUBMIT_OPTIONS; from the strongest: HPCDL_SUBMIT_<OPTION>, the project's file, then the sections
    `submit` of the files of `load_config`. A relative folder in a file is relative to that file. Raises as
    `load_config`.
    """
    project = project_path(folder, environ)
    found = [*layers(home, {}, environ=environ, site=site)]
    if project is not None:
        found.append(read_layer(project, SETTINGS, SUBMIT_OPTIONS, trusted=False, elsewhere=_NOT_IN_A_PROJECT))
    options: dict[str, tuple[Any, str]] = {}
    for layer in found:
        for option, (value, line) in layer.submit.items():
            limits = SUBMIT_OPTIONS[option]
            checked = limits.checked(value, f"submit: {option}", layer.origin(line))
            if option in _FOLDERS:
                checked = str(layer.path.parent / Path(checked).expanduser())
            options[option] = checked, layer.origin(line)
    known = {f"{_SUBMIT_VARIABLE}{option.upper()}": option for option in SUBMIT_OPTIONS}
    for variable in environ:
        if variable.startswith(_SUBMIT_VARIABLE) and variable not in known:
            raise ConfigError(not_known(variable, known, "an option of submit that may have a default"))
    for variable, option in known.items():
        limits = SUBMIT_OPTIONS[option]
        if variable in environ:
            value = limits.parsed(environ[variable], option, variable)
            options[option] = limits.checked(value, option, variable), variable
    return options


def mistyped(environ: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Variables that are no settings, and the settings' that they look like. HPCDL_... may have another meaning."""
    import difflib

    known = [f"HPCDL_{setting.upper()}" for setting in SETTINGS]
    found = []
    for name in sorted(environ):
        if name.startswith("HPCDL_") and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.88)
            found += [(name, near[0])] if near else []
    return found


_SUBMIT_VARIABLE = "HPCDL_SUBMIT_"
_NOT_IN_A_PROJECT = (
    "is a setting of the daemon, which must not depend on the folder that it was started in: "
    "put it into $HPCDL_HOME/config.yaml"
)
SETTINGS: Mapping[str, SettingLimits] = MappingProxyType(
    {each.name: each.metadata["limits"] for each in dataclasses.fields(Config) if "limits" in each.metadata}
)
"""Every setting and what it may be."""


def _option(kind: type, said: str, low: float = -math.inf, high: float = math.inf, unit: str = "") -> SettingLimits:
    return SettingLimits(kind, said, low, high, unit=unit)


def _words(said: str, form: str = r"[^\0\n]+", *, many: bool = False, literal: bool = False) -> SettingLimits:
    return SettingLimits(str, said, form=re.compile(form), many=many, literal=literal)


SUBMIT_OPTIONS: Mapping[str, SettingLimits] = MappingProxyType(
    {
        "gpus": _words("N, MIN:MAX, MIN: or N,N", r"\d+(:\d*|(,\d+)*)", literal=True),
        "nodes": _words("N or MIN:MAX", r"\d+(:\d+)?", literal=True),
        "rescale": _words("torchrun, in-process or restart", "torchrun|in-process|restart"),
        "priority": _option(int, "a whole number from -1000 to 1000", -1000, 1000),
        "weight": _option(float, "a number above 0", math.nextafter(0, 1), 1e9),
        "profile": _words("a profile's name"),
        "model": _words("a model's name"),
        "steps": _option(int, "a whole number from 1 to 1000000000000", 1, 10**12),
        "env": _words("K=V or K, several in a list", r"[^\0=]+(=[^\0]*)?", many=True),
        "retries": _option(int, "a whole number from 0 to 1000000", 0, 1_000_000),
        "checkpoint_dir": _words("a folder"),
        "grace": _option(float, "a number of seconds from 0.1 to 86400", 0.1, _DAY, "s"),
        "signal": _words(
            "hpcdl, lightning, submitit, hf, SIGTERM, SIGUSR1, SIGUSR2 or none",
            "hpcdl|lightning|submitit|hf|SIGTERM|SIGUSR[12]|none",
        ),
        "resumes": _words("yes, or a pattern of the checkpoints that its program writes"),
        "progress": _words("tqdm, hf, lightning or keras", "tqdm|hf|lightning|keras"),
        "progress_regex": _words("a regular expression"),
        "notify": _words("a command, mailto:ADDRESS or a URL, several in a list", many=True),
        "git": _option(bool, "true or false"),
        "trainer_library": _option(bool, "true or false"),
        "stall": _words("a time without progress, as --stall takes it", literal=True),
    }
)
"""The options of `hpcdl submit` whose defaults may be set, by the names of its parameters, and what they may be."""

_FOLDERS = ("checkpoint_dir",)
