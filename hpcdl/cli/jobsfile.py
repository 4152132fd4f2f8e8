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

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import click

from hpcdl.cli.entries import Wanted, here, wanted
from hpcdl.cli.files import check_input

MAX_BYTES = 8 << 20
MAX_VALUES = 200_000
_TOP = ("defaults", "jobs")
_NOT_IN_A_FILE = frozenset({"file", "dry_run", "strict", "git", "request_id", "no_spool", "like", "other", "command"})


class FileError(click.ClickException):
    """What is wrong with the file, and where; one line."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A node of the file: a text, a list or a mapping, and its line. `value` of a scalar is its text as it is written;
    None where nothing stands."""

    line: int
    value: "str | list[_Value] | dict[str, _Value] | None"
    keys: Mapping[str, int]
    """Lines of a mapping's keys."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an error is."""

    file: str
    line: int = 0

    def wrong(self, key: str, why: str) -> NoReturn:
        where = f"{self.file}:{self.line}" if self.line else self.file
        raise FileError(f"{where}: {key}: {why}" if key else f"{where}: {why}")


def read(ctx: click.Context, file: str) -> tuple[list[Wanted], list[dict[str, Any]]]:
    """The jobs of a file, and what the API takes for them. Raises FileError."""
    place = _Place("standard input" if file == "-" else file)
    root = _load(place, _text(place, file))
    defaults: dict[str, _Value] = {}
    listed = root
    if isinstance(root.value, dict):
        _known(place, root, _TOP)
        if "jobs" not in root.value:
            place.wrong("jobs", "is missing: list the jobs under it")
        listed = root.value["jobs"]
        if "defaults" in root.value:
            defaults = _mapping(place, root.value["defaults"], "defaults")
    if not isinstance(listed.value, list) or not listed.value:
        _Place(place.file, listed.line).wrong("jobs", "must be a list of jobs, - command: python train.py")
    options = _options(ctx)
    if "command" in defaults:
        _Place(place.file, defaults["command"].line).wrong("command", "each job has its own: it is no default")
    _known(place, _Value(0, defaults, _lines(root, "defaults")), tuple(options))
    found: list[Wanted] = []
    entries: list[dict[str, Any]] = []
    names: dict[str, int] = {}
    for number, item in enumerate(listed.value):
        own = _mapping(place, item, "a job")
        _known(place, item, ("command", *options))
        job, earlier = _job(ctx, place, item, {**defaults, **own}, options, names)
        entry = job.entry() | ({"after_entries": earlier} if earlier else {})
        found.append(job)
        entries.append(entry)
        name = own["name"].value if "name" in own else None
        if isinstance(name, str):
            if name in names:
                _Place(place.file, own["name"].line).wrong("name", f"{name!r} is the name of another job above")
            names[name] = number
    return found, entries


def _text(place: _Place, file: str) -> str:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            check_input(Path(file))
            with open(file, "rb") as stream:
                content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            place.wrong("", f"is over {MAX_BYTES >> 20} MiB: use arrays (array:, sweep:), or several files")
        return content.decode("utf-8")
    except OSError as error:
        place.wrong("", f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        place.wrong("", f"is not UTF-8 at byte {error.start}")


def _load(place: _Place, text: str) -> _Value:
    import yaml

    from hpcdl.layers import check_nesting

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = kind(text)
    try:
        check_nesting(text, kind)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        _Place(place.file, line).wrong("", f"not YAML: {' '.join(str(error.problem or error.context).split())}")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        place.wrong("", f"not YAML: {' '.join(str(error).split())[:200]}")
    finally:
        loader.dispose()
    if root is None:
        place.wrong("", "is empty: list jobs, - command: python train.py")
    return _value(place, root, [0])


def _value(place: _Place, node: Any, seen: list[int], depth: int = 0) -> _Value:
    """The node as it is written; an alias counts each time, so that none can explode."""
    import yaml

    line = node.start_mark.line + 1
    here = _Place(place.file, line)
    seen[0] += 1
    if seen[0] > MAX_VALUES or depth > 20:
        here.wrong("", f"holds more than {MAX_VALUES} values, or too many within each other")
    if isinstance(node, yaml.ScalarNode):
        nothing = node.tag == "tag:yaml.org,2002:null"
        return _Value(line, None if nothing else str(node.value), {})
    if isinstance(node, yaml.SequenceNode):
        return _Value(line, [_value(place, each, seen, depth + 1) for each in node.value], {})
    found: dict[str, _Value] = {}
    keys: dict[str, int] = {}
    for key, value in node.value:
        at = _Place(place.file, key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            at.wrong("", "a key must be a word")
        if key.value in found:
            at.wrong(str(key.value), "is there twice")
        if key.tag == "tag:yaml.org,2002:merge":
            at.wrong("<<", "is not read: put what all jobs have into defaults:")
        found[str(key.value)] = _value(place, value, seen, depth + 1)
        keys[str(key.value)] = key.start_mark.line + 1
    return _Value(line, found, keys)


def _mapping(place: _Place, value: _Value, what: str) -> dict[str, _Value]:
    if not isinstance(value.value, dict):
        _Place(place.file, value.line).wrong(what, "must be keys and values")
    return {key.replace("-", "_") if what != "sweep" else key: each for key, each in value.value.items()}


def _lines(root: _Value, key: str) -> Mapping[str, int]:
    if isinstance(root.value, dict) and key in root.value:
        return {name.replace("-", "_"): line for name, line in root.value[key].keys.items()}
    return {}


def _known(place: _Place, value: _Value, allowed: Sequence[str]) -> None:
    """No key that there is not."""
    names = list(value.value) if isinstance(value.value, dict) else []
    for name in names:
        if name.replace("-", "_") not in allowed:
            shown = [each.replace("_", "-") for each in allowed]
            near = get_close_matches(name.replace("_", "-"), shown, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(shown))}"
            _Place(place.file, value.keys.get(name, value.line)).wrong(name, f"there is no such key; {hint}")


def _options(ctx: click.Context) -> dict[str, click.Option]:
    """The options of submit that a job may have, by the names of their parameters."""
    return {
        each.name: each
        for each in ctx.command.params
        if isinstance(each, click.Option) and each.name not in _NOT_IN_A_FILE and each.name not in ("as_json", "quiet")
        if each.name and each.name != "help"
    }


def _job(
    ctx: click.Context,
    place: _Place,
    item: _Value,
    keys: Mapping[str, _Value],
    options: Mapping[str, click.Option],
    names: Mapping[str, int],
) -> tuple[Wanted, list[int]]:
    """The job that these keys say, and the places of the jobs above that it waits for."""
    at = _Place(place.file, item.line)
    if "command" not in keys:
        at.wrong("command", "is missing: what the job runs")
    words = _words(place, keys["command"])
    flags: list[str] = []
    lines: dict[str, int] = {}
    earlier: list[int] = []
    for key, value in keys.items():
        if key == "command":
            continue
        lines[key] = value.line
        flag = max(options[key].opts, key=len)
        for text in _texts(place, key, value, names, earlier):
            if options[key].is_flag:
                flags += [flag] if text else []
            else:
                flags.append(f"{flag}={text}")
    own = click.Context(ctx.command, info_name=ctx.info_name, parent=ctx.parent)
    own.default_map = ctx.default_map
    try:
        click.Command.parse_args(ctx.command, own, [*flags, "--", *words])
        return wanted(own.params, words, here()), list(dict.fromkeys(earlier))
    except click.BadParameter as error:
        key = (error.param.name if error.param is not None else None) or ""
        _Place(place.file, lines.get(key, item.line)).wrong(key.replace("_", "-"), error.message)
    except (ValueError, click.ClickException) as error:
        message = error.message if isinstance(error, click.ClickException) else str(error)
        at.wrong("", message)


def _words(place: _Place, value: _Value) -> list[str]:
    """A list of words, or a text that is split as a shell would."""
    at = _Place(place.file, value.line)
    if isinstance(value.value, list):
        found = [each.value for each in value.value]
        if not found or not all(isinstance(each, str) for each in found):
            at.wrong("command", "must be a text, or a list of words")
        return [str(each) for each in found]
    if not isinstance(value.value, str):
        at.wrong("command", "must be a text, or a list of words")
    try:
        words = shlex.split(value.value)
    except ValueError as error:
        at.wrong("command", f"cannot be split into words: {error}")
    if not words:
        at.wrong("command", "is empty")
    return words


def _texts(place: _Place, key: str, value: _Value, names: Mapping[str, int], earlier: list[int]) -> list[str]:
    """What an option is given, one text for each time; names of jobs above go into `earlier`."""
    at = _Place(place.file, value.line)
    if value.value is None:
        return []
    if key == "sweep":
        return [_swept(place, name, each) for name, each in _mapping(place, value, "sweep").items()]
    if key == "env" and isinstance(value.value, dict):
        return [f"{name}={_scalar(place, name, each)}" for name, each in value.value.items()]
    listed = value.value if isinstance(value.value, list) else [value]
    texts = [_scalar(place, key, each) for each in listed]
    if key == "hold":
        switches = {"true": "1", "yes": "1", "on": "1", "false": "", "no": "", "off": ""}
        if len(texts) != 1 or texts[0].lower() not in switches:
            at.wrong("hold", "must be true or false")
        return [switches[texts[0].lower()]]
    if key == "after":
        rest = []
        for text in texts:
            if text in names:
                earlier.append(names[text])
            elif all(part.strip().isdigit() for part in text.split(",")):
                rest.append(text)
            else:
                near = get_close_matches(text, names, 1)
                hint = f"did you mean {near[0]}?" if near else "it must stand above, with that name:"
                at.wrong("after", f"no job {text!r}: {hint}" if near else f"no job {text!r}: {hint} {text}")
        return rest
    if len(texts) > 1 and key in ("gpus", "array"):
        return [",".join(texts)]
    if len(texts) > 1 and key not in ("env", "notify"):
        at.wrong(key.replace("_", "-"), "takes one value")
    return texts


def _swept(place: _Place, name: str, value: _Value) -> str:
    listed = value.value if isinstance(value.value, list) else [value]
    texts = [_scalar(place, name, each).replace(",", "\\,") for each in listed]
    return f"{name}={','.join(texts)}"


def _scalar(place: _Place, key: str, value: _Value) -> str:
    if not isinstance(value.value, str):
        _Place(place.file, value.line).wrong(key.replace("_", "-"), "must be a text or a number")
    return value.value
