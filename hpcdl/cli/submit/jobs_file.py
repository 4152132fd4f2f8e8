"""`hpcdl submit --file`: a YAML file of jobs. Its keys are submit's options; every error has its file, line and key.

    defaults: {gpus: 1, env: [WANDB_MODE=offline]}
    jobs:
      - name: prepare
        command: python prepare.py
      - name: train
        command: [python, train.py, --lr, "{lr}"]
        sweep: {lr: [0.1, 0.01]}
        after: prepare

A file may also be the list of jobs alone. Values are looked at one by one: nothing in the file is called, imported or
evaluated.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import click

from hpcdl.cli.params import check_input
from hpcdl.cli.submit.job import JobRequest, request_of
from hpcdl.cli.submit.options import AFTER, options_of_a_job
from hpcdl.core.model.units import meant

MAX_BYTES = 8 << 20
MAX_VALUES = 200_000
_TOP = ("defaults", "jobs")


class FileError(click.ClickException):
    """What is wrong with the file, and where; one line."""


def _wrong(file: str, line: int, key: str, why: str) -> NoReturn:
    """`line`: 0 where the whole file is meant."""
    where = f"{file}:{line}" if line else file
    raise FileError(f"{where}: {key}: {why}" if key else f"{where}: {why}")


@dataclass(frozen=True, slots=True)
class _Value:
    """A node of the file: a text, a list or a mapping, and where it stands. `value` of a scalar is its text as it is
    written; None where nothing stands."""

    file: str
    line: int
    value: "str | list[_Value] | dict[str, _Value] | None"
    keys: Mapping[str, int] = field(default_factory=dict)
    """Lines of a mapping's keys."""

    def wrong(self, key: str, why: str) -> NoReturn:
        """Raises FileError."""
        _wrong(self.file, self.line, key, why)

    def mapping(self, what: str) -> "dict[str, _Value]":
        """Its values by key, with `_` for `-` where keys are options. Raises FileError."""
        if not isinstance(self.value, dict):
            self.wrong(what, "must be keys and values")
        return {key.replace("-", "_") if what != "sweep" else key: each for key, each in self.value.items()}

    def listed(self) -> "list[_Value]":
        """Its values, or itself."""
        return self.value if isinstance(self.value, list) else [self]

    def scalar(self, key: str) -> str:
        """Its text. Raises FileError."""
        if not isinstance(self.value, str):
            self.wrong(key.replace("_", "-"), "must be a text or a number")
        return self.value

    def check_keys(self, allowed: Sequence[str]) -> None:
        """Raises FileError for a key that there is not."""
        for name in self.value if isinstance(self.value, dict) else ():
            if name.replace("-", "_") not in allowed:
                shown = [each.replace("_", "-") for each in allowed]
                hint = meant(name.replace("_", "-"), shown, f"there are {', '.join(sorted(shown))}")
                _wrong(self.file, self.keys.get(name, self.line), name, f"there is no such key; {hint}")


def read(ctx: click.Context, file: str) -> tuple[list[JobRequest], list[dict[str, Any]]]:
    """The jobs of a file, and what the API takes for them. Raises FileError."""
    shown = "standard input" if file == "-" else file
    root = _load(shown, _text(shown, file))
    defaults: dict[str, _Value] = {}
    listed = root
    options = options_of_a_job()
    if isinstance(root.value, dict):
        root.check_keys(_TOP)
        if "jobs" not in root.value:
            _wrong(shown, 0, "jobs", "is missing: list the jobs under it")
        listed = root.value["jobs"]
        if "defaults" in root.value:
            defaults = root.value["defaults"].mapping("defaults")
    if not isinstance(listed.value, list) or not listed.value:
        listed.wrong("jobs", "must be a list of jobs, - command: python train.py")
    if "command" in defaults:
        defaults["command"].wrong("command", "each job has its own: it is no default")
    if defaults and isinstance(root.value, dict):
        root.value["defaults"].check_keys(tuple(options))
    found: list[JobRequest] = []
    entries: list[dict[str, Any]] = []
    names: dict[str, int] = {}
    for number, item in enumerate(listed.value):
        own = item.mapping("a job")
        item.check_keys(("command", *options))
        job, earlier = _job(ctx, item, {**defaults, **own}, options, names)
        found.append(job)
        done = [place for kind, place in earlier if kind == "done"]
        others = [[kind, place] for kind, place in earlier if kind != "done"]
        more = {"after_entries": done, "condition_entries": others}
        entries.append(job.entry() | {key: places for key, places in more.items() if places})
        name = own["name"].value if "name" in own else None
        if isinstance(name, str):
            if name in names:
                own["name"].wrong("name", f"{name!r} is the name of another job above")
            names[name] = number
    return found, entries


def _text(shown: str, file: str) -> str:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            check_input(Path(file))
            with open(file, "rb") as stream:
                content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            _wrong(shown, 0, "", f"is over {MAX_BYTES >> 20} MiB: use arrays (array:, sweep:), or several files")
        return content.decode("utf-8")
    except OSError as error:
        _wrong(shown, 0, "", f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        _wrong(shown, 0, "", f"is not UTF-8 at byte {error.start}")


def _load(file: str, text: str) -> _Value:
    import yaml

    from hpcdl.config.layers import compose_large, not_yaml

    try:
        root = compose_large(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line, why = not_yaml(error)
        _wrong(file, line, "", why)
    if root is None:
        _wrong(file, 0, "", "is empty: list jobs, - command: python train.py")
    return _value(file, root, [0])


def _value(file: str, node: Any, seen: list[int], depth: int = 0) -> _Value:
    """A node of YAML as it is written; an alias counts each time, so that none can explode."""
    import yaml

    line = node.start_mark.line + 1
    seen[0] += 1
    if seen[0] > MAX_VALUES or depth > 20:
        _wrong(file, line, "", f"holds more than {MAX_VALUES} values, or too many within each other")
    if isinstance(node, yaml.ScalarNode):
        nothing = node.tag == "tag:yaml.org,2002:null"
        return _Value(file, line, None if nothing else str(node.value))
    if isinstance(node, yaml.SequenceNode):
        return _Value(file, line, [_value(file, each, seen, depth + 1) for each in node.value])
    found: dict[str, _Value] = {}
    keys: dict[str, int] = {}
    for key, value in node.value:
        at = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            _wrong(file, at, "", "a key must be a word")
        if key.value in found:
            _wrong(file, at, str(key.value), "is there twice")
        if key.tag == "tag:yaml.org,2002:merge":
            _wrong(file, at, "<<", "is not read: put what all jobs have into defaults:")
        found[str(key.value)] = _value(file, value, seen, depth + 1)
        keys[str(key.value)] = at
    return _Value(file, line, found, keys)


def _job(
    ctx: click.Context,
    item: _Value,
    keys: Mapping[str, _Value],
    options: Mapping[str, click.Option],
    names: Mapping[str, int],
) -> tuple[JobRequest, list[tuple[str, int]]]:
    """The job that these keys say, and what it waits for: jobs above, as (kind of condition, place)."""
    if "command" not in keys:
        item.wrong("command", "is missing: what the job runs")
    words = _words(keys["command"])
    flags: list[str] = []
    lines: dict[str, int] = {}
    earlier: list[tuple[str, int]] = []
    for key, value in keys.items():
        if key == "command":
            continue
        lines[key] = value.line
        flag = max(options[key].opts, key=len)
        for text in _texts(key, value, names, earlier):
            if options[key].is_flag:
                flags += [flag] if text else []
            else:
                flags.append(f"{flag}={text}")
    try:
        return request_of(ctx, ctx.command, flags, words), list(dict.fromkeys(earlier))
    except click.BadParameter as error:
        key = (error.param.name if error.param is not None else None) or ""
        _wrong(item.file, lines.get(key, item.line), key.replace("_", "-"), error.message)
    except (ValueError, click.ClickException) as error:
        item.wrong("", error.message if isinstance(error, click.ClickException) else str(error))


def _words(value: _Value) -> list[str]:
    """The words of a command: a list, or a text that is split as a shell would."""
    if isinstance(value.value, list):
        found = [each.value for each in value.value if isinstance(each.value, str)]
        if found and len(found) == len(value.value):
            return found
    if not isinstance(value.value, str):
        value.wrong("command", "must be a text, or a list of words")
    try:
        words = shlex.split(value.value)
    except ValueError as error:
        value.wrong("command", f"cannot be split into words: {error}")
    if not words:
        value.wrong("command", "is empty")
    return words


def _texts(key: str, value: _Value, names: Mapping[str, int], earlier: list[tuple[str, int]]) -> list[str]:
    """The texts of an option, one for each time that it is given; names of jobs above go into `earlier`."""
    if value.value is None:
        return []
    if key == "sweep":
        swept = {name: [each.scalar(name) for each in part.listed()] for name, part in value.mapping("sweep").items()}
        return [name + "=" + ",".join(text.replace(",", "\\,") for text in texts) for name, texts in swept.items()]
    if key in ("env", "link") and isinstance(value.value, dict):
        return [f"{name}={each.scalar(name)}" for name, each in value.value.items()]
    texts = [each.scalar(key) for each in value.listed()]
    if key in ("hold", "singleton"):
        switches = {"true": "1", "yes": "1", "on": "1", "false": "", "no": "", "off": ""}
        if len(texts) != 1 or texts[0].lower() not in switches:
            value.wrong(key, "must be true or false")
        return [switches[texts[0].lower()]]
    if key in AFTER:
        rest = []
        for text in texts:
            if text in names:
                earlier.append((AFTER[key], names[text]))
            elif all(part.strip().isdigit() or ":" in part for part in re.split("[,?]", text)):
                rest.append(text)
            else:
                hint = meant(text, names, f"it must stand above, with that name: {text}")
                value.wrong(key.replace("_", "-"), f"no job {text!r}: {hint}")
        return rest
    if len(texts) > 1 and key in ("gpus", "array"):
        return [",".join(texts)]
    if len(texts) > 1 and key not in ("env", "notify", "tag", "link"):
        value.wrong(key.replace("_", "-"), "takes one value")
    return texts
