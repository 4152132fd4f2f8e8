"""What all of Slurm's commands share: separators, times, durations, numbers, lists of hosts, its errors. Pure.

Formats are those of Slurm's manual pages, 21.08 to 24.11; recordings of them are in tests/recordings/slurm.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping

from hpcdl.batch.adapter import Completed
from hpcdl.batch.system import BatchError
from hpcdl.core.model.units import MOST_NODES, expand_nodes

TIMES = {"SLURM_TIME_FORMAT": "%s"}
"""Variables for commands that print times: without a zone as they are by default, with this as epoch seconds."""

SEPARATOR = "|"

_HEADERS = {"JobID": "JOBID", "PartitionName": "PARTITION", "JobIDRaw": "JOBIDRAW", "NodeList": "NODELIST"}
"""By a table's first field the name of its first column."""

_CELL = r"\|[^|\n]*"

_NOTHING = frozenset({"", "(null)", "n/a", "none", "none assigned", "unknown", "not_set", "invalid", "n/s", "null"})
_ENDLESS = frozenset({"unlimited", "infinite", "partition_limit"})

_LARGEST = 1e15

_AWAY = re.compile(
    "unable to contact slurm controller|socket timed out|connection (?:refused|timed out|reset)|standby mode"
    "|zero bytes were transmitted|unable to establish control|transport endpoint|authentication|munge"
    "|insufficient permissions to connect|message (?:receive|send) failure|network is unreachable|no route to host",
    re.IGNORECASE,
)

_UNCONFIGURED = re.compile("configuration source|_establish_config_source", re.IGNORECASE)


def columns(fields: tuple[str, ...]) -> str:
    """The argument of -O for these fields: each followed by the separator, and none cut to a width."""
    return ",".join(f"{field}:{SEPARATOR}" for field in fields)


def rows(text: str, fields: tuple[str, ...]) -> Iterator[list[str]]:
    """The rows below the header that `columns` of these fields prints, stripped. Where the first field is the last one
    again, the one before it may hold anything, for its end is known.

    What a site's own script prints before the header is skipped. Raises BatchError without a header, or for a line that
    is no row: an answer that is empty, cut or garbage is none.
    """
    many = len(fields)
    head = re.search(rf"^{_HEADERS[fields[0]]}{_CELL * (many - 1)}\|[ \t\r]*$", text, re.MULTILINE | re.IGNORECASE)
    if head is None:
        raise BatchError(f"it printed no header: {_shown(text)}")
    last = r"(.*?)\|\1\|[ \t\r]*" if fields[-1] == fields[0] else r"([^|\n]*)\|[ \t\r]*"
    row = re.compile(r"([^|\n]+)\|" + r"([^|\n]*)\|" * (many - (3 if fields[-1] == fields[0] else 2)) + last, re.DOTALL)
    at = head.end() + 1
    while at < len(text):
        found = row.match(text, at)
        if found is None or text[found.end() : found.end() + 1] not in ("", "\n"):
            line = text[at:].partition("\n")[0]
            if not line.strip():
                at += len(line) + 1
                continue
            raise BatchError(f"it printed a line that nobody understands: {_shown(line)}")
        yield [part.strip() for part in found.groups()]
        at = found.end() + 1


def described(text: str, name: str, needed: tuple[str, ...], none: str = "") -> list[dict[str, str]]:
    """The lines `Name=value …` of scontrol, of those things whose `name` comes first, each with all that is `needed`.

    `none`: how the line begins that says that there are none. Raises BatchError where it printed anything else.
    """
    found = []
    for line in text.splitlines():
        if not line.strip() or (none and line.startswith(none)):
            continue
        said = pairs(line)
        if not said or not re.match(r"\s*[A-Za-z][\w/:]*=", line) or (name in said and not said.keys() >= {*needed}):
            raise BatchError(f"it printed a line that nobody understands: {_shown(line)}")
        if name in said:
            found.append(said)
    if not found and (not none or none not in text):
        raise BatchError(f"it told nothing: {_shown(text)}")
    return found


def _shown(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing at all")
    return "".join(char if char.isprintable() else "?" for char in first[:80])


def pairs(line: str) -> dict[str, str]:
    """`Name=value` as `scontrol show -o` prints; of a name that comes twice the first, free text being at the end."""
    found: dict[str, str] = {}
    for match in re.finditer(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)", line):
        found.setdefault(match[1], match[2])
    return found


def told(text: str) -> str:
    """The text, "" for the words that Slurm prints where there is nothing."""
    return "" if text.strip().lower() in _NOTHING else text.strip()


def moment(text: str) -> float | None:
    """Epoch seconds, None where there is none. A time without a zone is local, as Slurm prints it."""
    text = told(text)
    if not text:
        return None
    if re.fullmatch(r"\d{1,15}(\.\d+)?", text):
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def duration(text: str) -> float | None:
    """Seconds of `30`, `30:00`, `2:00:00`, `1-00:00:00` (minutes, m:s, h:m:s, d-h:m:s); None: no limit, or nothing is
    said.
    """
    text = told(text)
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text)
    if match is None or text.lower() in _ENDLESS:
        return None
    days, parts = int(match[1] or 0), [int(part) for part in match.groups()[1:] if part is not None]
    if match[1] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def whole(text: str) -> int | None:
    """A number, None for UNLIMITED and what is none."""
    return int(text) if text.isascii() and text.isdigit() else None


def entries(text: str, *names: str) -> tuple[str, list[object]]:
    """The list in JSON that is under one of these names, and under which. ValueError: it is something else.

    Raises BatchError (`away`) for the errors in it: when its controller is away, Slurm prints them beside an empty
    list and exits with 0. That a job is unknown is no such error.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested without end") from None
    if not isinstance(data, Mapping):
        raise ValueError("JSON without an object")
    errors = data.get("errors")
    for error in errors if isinstance(errors, list) else []:
        said = error if isinstance(error, Mapping) else {}
        told_of = str(said.get("error") or said.get("description") or error)
        if "job id" not in told_of.lower():
            source = str(said.get("source") or said.get("description") or "").strip()
            raise BatchError(f"Slurm's JSON holds an error instead: {told_of} {source}".rstrip(), away=True)
    for name in names:
        if isinstance(found := data.get(name), list):
            return name, found
    raise ValueError(f"JSON without {' or '.join(names)}")


def number(value: object) -> float | None:
    """A number of JSON: plain up to 23.02, later `{"set": …, "infinite": …, "number": …}`; None: unset or infinite."""
    if isinstance(value, Mapping):
        usable = value.get("set", True) and not value.get("infinite", False)
        return number(value.get("number")) if usable else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return None
    return float(value)


def string(value: object) -> str:
    """A text of JSON, "" for anything else."""
    return value if isinstance(value, str) else ""


def words(value: object) -> tuple[str, ...]:
    """States of JSON in upper case: one text up to 23.02, later a list."""
    found = value if isinstance(value, list) else [value]
    return tuple(part.upper() for word in found if isinstance(word, str) for part in word.split("+") if part)


def hosts(value: object) -> str:
    """A list of hosts in JSON: a text, or from 24.05 on a structure that has it under `list`."""
    if isinstance(value, Mapping):
        return hosts(value.get("list", value.get("nodes", "")))
    if isinstance(value, list):
        return ",".join(text for text in value if isinstance(text, str))
    return told(value) if isinstance(value, str) else ""


class ExpandedLists:
    """Lists of hosts by their text, those that were used last: of up to twice `most` hosts in all, for on a machine of
    thousands of nodes hardly two polls show the same ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lists: dict[str, tuple[str, ...]] = {}
        self._before: dict[str, tuple[str, ...]] = {}
        self._held = 0

    def __call__(self, text: str) -> tuple[str, ...]:
        """The hosts of a list; see `expand_nodes`. From any thread."""
        names = self._lists.get(text)
        if names is None:
            names = self._before.get(text) or expand_nodes(told(text))
            if self._held > self._most:
                self._before, self._lists, self._held = self._lists, {}, 0
            self._lists[text] = names
            self._held += len(names) + 1
        return names

    def __len__(self) -> int:
        """How many hosts are held."""
        return sum(len(names) for lists in (self._lists, self._before) for names in lists.values())


expand = ExpandedLists(MOST_NODES)


def complaint(err: str, out: str = "") -> str:
    """What a command complains about, in its own words and one line: the last error that it prints.

    Where Slurm is installed and nothing says of which cluster, its words are four lines on DNS; ours are one.
    """
    if _UNCONFIGURED.search(err):
        return "Slurm is installed on this machine, but not configured"
    lines = [line.strip() for line in [*out.splitlines(), *err.splitlines()]]
    lines = [line for line in lines if line and not line.startswith("Try ")]
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    line = (errors or lines or ["it gives no reason"])[-1]
    return re.sub(r"^\w+: ((error|fatal): )?", "", line)


def is_away(err: str) -> bool:
    """Whether a complaint means that Slurm does not answer, so that nothing is known."""
    return bool(_AWAY.search(err) or _UNCONFIGURED.search(err))


def checked(name: str, done: Completed) -> str:
    """What a command printed. Raises BatchError with its own words where it failed, or asked a controller in vain."""
    if done.code != 0 or is_away(done.err):
        raise BatchError(f"{name}: {complaint(done.err, done.out)}", away=is_away(done.err))
    return done.out
