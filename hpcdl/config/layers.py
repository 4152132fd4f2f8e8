"""Where settings come from: files with their lines, the project's file, the site's, and what a setting may be.

A file is a mapping of settings, flat but for one section `submit:` with defaults for the options of `hpcdl submit`.
What is wrong is refused with file, line and key; nothing is guessed at.
"""

import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdl.core.model.units import meant, parse_duration

BATCH_SYSTEMS = {"slurm": "hpcdl.slurm.system", "lsf": "hpcdl.lsf.system"}
"""Every batch system by its name, with the module whose SYSTEM it is (a `hpcdl.batch.system.BatchSystem`).

What a process runs under is looked for in this order: Slurm's packages may bring commands named as LSF's."""

MAX_FILE_BYTES = 1 << 20
PROJECT = "hpcdl.yaml"
PROJECT_VARIABLE = "HPCDL_PROJECT"
LISTED = "conf/hpcdl.yaml"
"""Has all settings, with what each is for."""
SUBMIT = "submit"
"""The section of a settings file with defaults for the options of `hpcdl submit`."""


NOT_YAML = (AttributeError, LookupError, OverflowError, RecursionError, TypeError)
"""What PyYAML raises beside its own errors and ValueError, for a tag whose text is none of its kind (`!!bool x`)."""


MAX_DEPTH = 100
"""Lists and mappings within each other in any YAML file of ours."""

MAX_VALUES = 200_000
"""Values in one, where an alias counts as all that it stands for: a few lines could stand for terabytes."""


def check_nesting(content: str | bytes, loader: Any) -> None:
    """yaml.MarkedYAMLError for what is nested deeper than MAX_DEPTH, or is no YAML.

    Before `loader` composes it: libyaml's calls itself for each level, and no recursion limit stops it from a crash.
    """
    import yaml

    depth = 0
    for event in yaml.parse(content, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                problem = f"more than {MAX_DEPTH} lists or mappings within each other"
                mark: Any = event.start_mark
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def compose_large(text: str) -> Any:
    """The root of a YAML text that may be large, by libyaml where that is there; None where nothing is in it.

    Raises what PyYAML does: see `not_yaml`.
    """
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    check_nesting(text, kind)
    return yaml.compose(text, Loader=kind)


def not_yaml(error: Exception) -> tuple[int, str]:
    """Of what PyYAML raised: the line, 0 where it does not say, and what is wrong."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "context", None) or error
    return mark.line + 1 if mark else 0, f"not YAML: {' '.join(str(problem).split())[:200]}"


def check_size(node: Any) -> None:
    """yaml.MarkedYAMLError for a composed node that stands for more than MAX_VALUES values; None is nothing."""
    import yaml

    waiting, seen = [] if node is None else [node], 0
    while waiting:
        each = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES} values", problem_mark=node.start_mark)
        if isinstance(each, yaml.CollectionNode):
            for below in each.value:
                waiting += below if isinstance(below, tuple) else (below,)


class ConfigError(ValueError):
    """A setting is unknown or wrong; the message is one line: where, which, what is allowed."""


@dataclass(frozen=True, slots=True)
class SettingLimits:
    """What a setting may be: a number from `low` to `high`, or a text of this `form`; `said`: which, in words.

    `unit`: of its numbers, "" where they count nothing. `many`: a list of texts of that form, `alone`: or one of
    them. `literal`: a text that is taken as it is written, also where YAML reads a number in it (1:3 is 63 to it).
    """

    kind: type
    said: str
    low: float = -math.inf
    high: float = math.inf
    form: re.Pattern[str] | None = None
    optional: bool = False
    unit: str = ""
    many: bool = False
    alone: bool = True
    literal: bool = False

    def checked(self, value: Any, name: str, where: str) -> Any:
        """The value as its setting's type. Raises ConfigError."""
        if value is None and self.optional:
            return None
        if self.many:
            value = [value] if self.alone and isinstance(value, str) else value
            right = isinstance(value, list | tuple) and all(self._fits(each) for each in value)
            if right:
                return tuple(value)
        elif self._fits(number := self._number(value)):
            return self.kind(number)
        try:
            shown = f"{value!r:.200}"
        except ValueError:  # Python does not print so many digits
            shown = "a number with thousands of digits"
        raise ConfigError(f"{where}: {name}: must be {self.said}, got {shown}")

    def _number(self, value: Any) -> Any:
        """Seconds that are written with units, `10m`, as a number; what they are not as it is."""
        if self.unit != "s" or not isinstance(value, str) or not value[-1:].isalpha():
            return value
        try:
            return parse_duration(value)
        except (ValueError, OverflowError):
            return value

    def _fits(self, value: Any) -> bool:
        if isinstance(value, bool) or self.kind is bool:
            return isinstance(value, bool) and self.kind is bool
        if self.kind is str:
            return isinstance(value, str) and (self.form is None or self.form.fullmatch(value) is not None)
        number = isinstance(value, int | float if self.kind is float else int)
        return number and self.low <= value <= self.high  # false for NaN

    def parsed(self, text: str, name: str, where: str) -> Any:
        """The value that a text from a flag or the environment stands for, not yet checked. Raises ConfigError."""
        if self.optional and not text:
            return None
        if self.many:
            return text.split()
        if self.kind is bool and text.lower() in _SWITCH:
            return _SWITCH[text.lower()]
        try:
            return text if self.kind is bool else self.kind(self._number(text))
        except ValueError:
            raise ConfigError(f"{where}: {name}: must be {self.said}, got {text!r:.200}") from None


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file sets: names and their values, with the lines where they stand; `submit` the same of its section."""

    path: Path
    settings: Mapping[str, tuple[Any, int]] = field(default_factory=dict)
    submit: Mapping[str, tuple[Any, int]] = field(default_factory=dict)

    def origin(self, line: int) -> str:
        """`FILE:LINE`."""
        return f"{self.path}:{line}"


def read_layer(
    path: Path,
    known: Mapping[str, SettingLimits],
    submits: Mapping[str, SettingLimits],
    *,
    section: str = "",
    trusted: bool = True,
    elsewhere: str = "",
) -> Layer:
    """The settings of a file, of its `section` where one is named; none where there is no file. Values are unchecked.

    `known`, `submits`: what it may set. `trusted` False: the file must belong to us or root, and nobody else may write
    it. `elsewhere`: what is said of a setting where this file may hold a section `submit` only. Raises ConfigError, and
    OSError where the file cannot be read.
    """
    settings: dict[str, int] = {}
    options: dict[str, int] = {}
    literal: dict[str, str] = {}
    try:
        with yaml_file(path, trusted=trusted) as node:
            if section and node is not None:
                node = next((below for key, below in pairs(path, node) if key.value == section), None)
            if _is_nothing(node):
                return Layer(path)
            for key, below in pairs(path, node):
                name, where = key.value, f"{path}:{key.start_mark.line + 1}"
                if name == SUBMIT:
                    for option, each in () if _is_nothing(below) else pairs(path, below):
                        note(path, options, option, submits, "an option of submit that may have a default")
                        _check_flat(f"{path}:{option.start_mark.line + 1}", option.value, each, submits[option.value])
                        if submits[option.value].literal and not _is_nothing(each):
                            literal[option.value] = each.value
                elif elsewhere and name in known:
                    raise ConfigError(f"{where}: {name} {elsewhere}")
                else:
                    note(path, settings, key, {SUBMIT: None} if elsewhere else {**known, SUBMIT: None})
                    _check_flat(where, name, below, known[name])
            values = constructed(node)
    except (FileNotFoundError, NotADirectoryError):
        return Layer(path)
    section_values = values.get(SUBMIT) or {}
    return Layer(
        path,
        {name: (values[name], line) for name, line in settings.items()},
        {
            name: (section_values[name] if name not in literal else literal[name], line)
            for name, line in options.items()
        },
    )


@contextmanager
def yaml_file(
    path: Path,
    wrong: type[ValueError] = ConfigError,
    what: str = "settings file",
    *,
    trusted: bool = True,
    pipes: bool = False,
) -> Iterator[Any]:
    """The root of a YAML file as PyYAML composes it, None where nothing is in it; small, whatever it stands for.

    `pipes`: it may be no regular file, as /dev/stdin is.

    What is wrong with the file, also what the block finds (ConfigError, and what it takes to construct values), is
    raised as `wrong`, in a line with file and line. `what`: the file is to be one. OSError passes through.
    """
    try:
        content = _content(path, what, trusted, pipes)
    except ConfigError as error:
        raise wrong(str(error)) from None
    import yaml  # here, so that a command without such files starts fast

    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        check_size(root)
        yield root
    except (ConfigError, wrong) as error:
        raise wrong(str(error)) from None
    except (yaml.YAMLError, ValueError, *NOT_YAML) as error:
        line, why = not_yaml(error)
        raise wrong(f"{path}{f':{line}' if line else ''}: {why}: correct it") from None


def constructed(root: Any) -> Any:
    """The values of such a root, None of none."""
    import yaml

    return None if root is None else yaml.SafeLoader("").construct_document(root)


def _content(path: Path, what: str, trusted: bool, pipes: bool) -> bytes:
    fd = os.open(path, os.O_RDONLY | (0 if pipes else os.O_NONBLOCK) | os.O_CLOEXEC)
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode) or not (pipes or stat.S_ISREG(info.st_mode)):
        os.close(fd)
        raise ConfigError(f"{path} is not a file: move it away, or name another")
    with os.fdopen(fd, "rb") as file:
        for each in () if trusted else (info, os.lstat(path)):
            check_owner(each, path)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes: it is no {what}, move it away")
    return content


def check_owner(info: os.stat_result, path: Path) -> None:
    """ConfigError unless the file is ours or root's, and only its owner may write it."""
    away = (
        f"remove it, or go without a project's file: {PROJECT_VARIABLE}=none" if path.name == PROJECT else "remove it"
    )
    if info.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to uid {info.st_uid}, and is not read: {away}")
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o022 and not stat.S_ISLNK(info.st_mode):
        raise ConfigError(f"{path} may be written by others (mode {mode:04o}), and is not read: chmod go-w {path}")


def _is_nothing(node: Any) -> bool:
    return node is None or getattr(node, "tag", "") == "tag:yaml.org,2002:null"


def _check_flat(where: str, name: str, node: Any, limits: SettingLimits) -> None:
    """ConfigError unless the node is a value, or a list of values where the setting takes many."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return
    if not limits.many:
        raise ConfigError(f"{where}: {name}: must be {limits.said}, not a list or a mapping")
    if not isinstance(node, yaml.SequenceNode) or not all(isinstance(each, yaml.ScalarNode) for each in node.value):
        raise ConfigError(f"{where}: {name}: must be {limits.said}, in a flat list")


def pairs(path: Path, node: Any, what: str = "a setting", listed: str = LISTED) -> Sequence[tuple[Any, Any]]:
    """Keys, which are texts, and values of a mapping's node; none of nothing."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: expected lines of the form `key: value`")
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: 'a list' is not {what}: {listed} lists them")
    found: Sequence[tuple[Any, Any]] = node.value
    return found


def note(
    path: Path, found: dict[str, int], key: Any, known: Iterable[str], what: str = "a setting", listed: str = LISTED
) -> None:
    """Adds a key with its line. ConfigError where it is none of the `known`, or stands there already."""
    line = key.start_mark.line + 1
    if key.value not in known:
        raise ConfigError(f"{path}:{line}: {not_known(key.value, known, what, listed)}")
    if key.value in found:
        raise ConfigError(f"{path}:{line}: {key.value} is set already in line {found[key.value]}: remove one of them")
    found[key.value] = line


def not_known(name: str, known: Iterable[str], what: str = "a setting", listed: str = LISTED) -> str:
    """What is said of a name that there is not: with the nearest one that there is."""
    return f"{name!r} is not {what}: {meant(name, known, f'{listed} lists them')}"


# --- where the files are ----------------------------------------------------------------------------------------------


def conf_folder() -> Path:
    """The project's `conf/`: beside the package in a checkout, else below the data folder of the environment.

    FileNotFoundError says where it was looked for.
    """
    import sysconfig

    root = Path(__file__).resolve().parents[2]
    places = [root / "conf"] if (root / "setup.cfg").is_file() else []
    schemes = dict.fromkeys((sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")))
    places += [Path(sysconfig.get_path("data", scheme)) / "share" / "hpcdl" / "conf" for scheme in schemes]
    for place in places:
        if (place / "profiles").is_dir():
            return place
    raise FileNotFoundError(f"hpcdl's conf folder is not in {' nor in '.join(map(str, places))}: is hpcdl installed?")


def site_path(choice: str, home: Path | None) -> Path | None:
    """The file of the site that the setting `site` names: a path, or a name in `home`/sites or conf/sites; or None."""
    if "/" in choice or choice.endswith((".yaml", ".yml")):
        path = Path(choice).expanduser()
        return path if path.is_absolute() or home is None else home / path
    return next((path for folder in site_folders(home) if os.path.isfile(path := folder / f"{choice}.yaml")), None)


def site_folders(home: Path | None) -> tuple[Path, ...]:
    """Where sites are looked for, the first one first."""
    return (*(() if home is None else (home / "sites",)), conf_folder() / "sites")


def user_path(environ: Mapping[str, str]) -> Path | None:
    """The user's settings for all folders: $XDG_CONFIG_HOME/hpcdl/config.yaml, else below ~/.config."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if base.startswith("/"):  # the specification has any other ignored
        return Path(base) / "hpcdl" / "config.yaml"
    home = environ.get("HOME", "")
    return Path(home) / ".config" / "hpcdl" / "config.yaml" if home.startswith("/") else None


def project_path(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """The project's file for what is done in `folder`: the nearest hpcdl.yaml from there upwards.

    It is not looked for above the user's home folder, nor on another file system, nor in /. HPCDL_PROJECT names another
    one, or `none`.
    """
    named = environ.get(PROJECT_VARIABLE)
    if named is not None:
        return None if named in ("", "none") else folder / Path(named).expanduser()
    home = environ.get("HOME", "")
    try:
        device = os.stat(folder).st_dev
        for each in (folder, *folder.parents):
            if each == each.parent or os.stat(each).st_dev != device:
                return None
            if os.path.lexists(each / PROJECT):
                return each / PROJECT
            if home and each == Path(home):
                return None
    except OSError:
        pass  # a folder above that may not be looked at holds nothing of ours
    return None
