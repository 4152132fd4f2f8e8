"""The settings: flag > HPCDL_<NAME> > $HPCDL_HOME/config.yaml > site file > default. conf/hpcdl.yaml documents each.

A wrong setting is never guessed at: ConfigError names where it stands and what would be right.
"""

import dataclasses
import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

SITE_FILE = Path("/etc/hpcdl/config.yaml")
MAX_FILE_BYTES = 1 << 20
DEFAULT = "default"

_DAY = 86_400.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9:.%_-]+")
_PATH = re.compile(r"[^\0\n]+")


PACKING = ("adaptive", "marble")
BATCH = ("auto", "slurm", "lsf", "none")


class ConfigError(ValueError):
    """A setting is unknown or wrong; the message is one line: where, which, what is allowed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a setting may be: a number from `low` to `high`, or a text of this `form`; `said` tells people which."""

    kind: type
    said: str
    low: float = -math.inf
    high: float = math.inf
    form: re.Pattern[str] | None = None
    optional: bool = False


def _seconds(default: float | None, low: float, high: float = _DAY, optional: bool = False) -> Any:
    said = f"a number of seconds from {low:g} to {high:g}"
    optional = optional or default is None
    return field(default=default, metadata={"limits": Limits(float, said, low, high, optional=optional)})


def _whole(default: int | None, low: int, high: int, unit: str = "") -> Any:
    said = f"a whole number {f'of {unit} ' if unit else ''}from {low} to {high}"
    return field(default=default, metadata={"limits": Limits(int, said, low, high, optional=default is None)})


def _text(default: str | None, form: re.Pattern[str], said: str) -> Any:
    return field(default=default, metadata={"limits": Limits(str, said, form=form, optional=default is None)})


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting; `origins` tells where each value comes from. Names end in their unit: _s, _bytes.

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
    max_jobs_a_submit: int = _whole(10_000, 1, 1_000_000, "jobs")
    batch: str = _text("auto", re.compile("|".join(BATCH)), "auto, slurm, lsf or none")
    batch_interval_s: float = _seconds(30.0, 1, 3600)
    site: str | None = _text(None, _PATH, "the name of a site in conf/sites, or the path of its file")
    pilots: int = _whole(0, 0, 10_000, "pilots")
    leave_margin_s: float = _seconds(30.0, 0)
    pilot_idle_s: float = _seconds(120.0, 1)
    listen_host: str = _text("127.0.0.1", _HOST, "a host name or address")
    listen_port: int = _whole(0, 0, 65_535)
    node_name: str | None = _text(None, _HOST, "a node's name")
    log_limit_bytes: int = _whole(1 << 30, 1 << 16, 1 << 50, "bytes")
    snapshot_every: int = _whole(5_000, 1, 10_000_000, "events")
    keep_events: int = _whole(100_000, 0, 1_000_000_000, "events")
    samples: int = _whole(100_000, 1, 100_000_000, "samples")
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            value = getattr(self, setting)
            object.__setattr__(self, setting, _checked(value, SETTINGS[setting], setting, self.origin(setting)))
        for low, high in (("retry_pause_s", "retry_pause_max_s"), ("heartbeat_s", "agent_lease_s")):
            if (getattr(self, low) or 0) > getattr(self, high):
                raise ConfigError(
                    f"{low} ({getattr(self, low):g}, {self.origin(low)}) must not be above "
                    f"{high} ({getattr(self, high):g}, {self.origin(high)}): change one of them"
                )

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

    A file that is not there sets nothing. Raises ConfigError; OSError where a file cannot be read.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for path in (site, home / "config.yaml"):
        for setting, (value, line) in _read(path).items():
            values[setting], origins[setting] = value, f"{path}:{line}"
    for setting in SETTINGS:
        variable = f"HPCDL_{setting.upper()}"
        if variable in environ:
            values[setting], origins[setting] = _parsed(environ[variable], setting, variable), variable
    for setting, value in (overrides or {}).items():
        if value is None:
            continue
        if setting not in SETTINGS:
            raise ConfigError(f"flag: {_unknown(setting)}")
        values[setting] = _parsed(value, setting, "flag") if isinstance(value, str) else value
        origins[setting] = "flag"
    return Config(**values, origins=MappingProxyType(origins))


def _read(path: Path) -> dict[str, tuple[Any, int]]:
    """Settings and the lines where they stand, of one file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes: it is no settings file, move it away")

    import yaml  # here, so that a command without settings files starts fast

    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        if root is None:
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}:{root.start_mark.line + 1}: expected lines of the form `setting: value`")
        found: dict[str, tuple[Any, int]] = {}
        for key, node in root.value:
            where = f"{path}:{key.start_mark.line + 1}"
            name = key.value if isinstance(key, yaml.ScalarNode) else "a list"
            if name not in SETTINGS:
                raise ConfigError(f"{where}: {_unknown(name)}")
            if name in found:
                raise ConfigError(f"{where}: {name} is set already in line {found[name][1]}: remove one of them")
            if not isinstance(node, yaml.ScalarNode):
                raise ConfigError(f"{where}: {name}: must be {SETTINGS[name].said}, not a list or a mapping")
            found[name] = (None, key.start_mark.line + 1)
        # Now that it is known to be flat: no alias can make it large.
        values = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{path}{line}: not YAML: {' '.join(str(problem).split())}: correct it") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: {error}: correct it") from None
    return {name: (values[name], line) for name, (_, line) in found.items()}


def _unknown(setting: str) -> str:
    import difflib

    near = difflib.get_close_matches(setting, SETTINGS, 1)
    hint = f"did you mean {near[0]}?" if near else "conf/hpcdl.yaml lists them"
    return f"{setting!r} is not a setting: {hint}"


def _parsed(text: str, setting: str, where: str) -> Any:
    """The value that a text from a flag or the environment stands for."""
    limits = SETTINGS[setting]
    if limits.optional and not text:
        return None
    convert: Callable[[str], Any] = limits.kind
    try:
        return convert(text)
    except ValueError:
        raise ConfigError(f"{where}: {setting}: must be {limits.said}, got {text!r}") from None


def _checked(value: Any, limits: Limits, setting: str, where: str) -> Any:
    """The value as its setting's type. Raises ConfigError."""
    if value is None and limits.optional:
        return None
    allowed = (int, float) if limits.kind is float else (limits.kind,)
    right = isinstance(value, allowed) and not isinstance(value, bool)
    if right and limits.kind is str:
        right = limits.form is None or limits.form.fullmatch(value) is not None
    elif right:
        right = limits.low <= value <= limits.high  # false for NaN
    if not right:
        raise ConfigError(f"{where}: {setting}: must be {limits.said}, got {value!r}")
    return limits.kind(value)


SETTINGS: Mapping[str, Limits] = MappingProxyType(
    {each.name: each.metadata["limits"] for each in dataclasses.fields(Config) if "limits" in each.metadata}
)
"""Every setting and what it may be."""
