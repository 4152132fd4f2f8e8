"""How LSF prints: times, wrapped long forms, `-o` with its delimiter, JSON."""

import json
import time
from collections.abc import Mapping, Sequence

WIDTH = 79
INDENT = 21


def stamp(at: float) -> str:
    """`Feb  2 00:46`, without a year."""
    return time.strftime("%b %e %H:%M", time.localtime(at))


def long_stamp(at: float) -> str:
    """`Wed Jan 21 22:12:59`."""
    return time.strftime("%a %b %e %H:%M:%S", time.localtime(at))


def wrapped(text: str) -> str:
    """A paragraph of a long form, cut at 79 columns wherever that falls."""
    lines, rest = [text[:WIDTH]], text[WIDTH:]
    while rest:
        lines.append(" " * INDENT + rest[: WIDTH - INDENT])
        rest = rest[WIDTH - INDENT :]
    return "\n".join(lines)


def format_of(text: str) -> tuple[list[tuple[str, int]], str | None]:
    """The fields of `-o "jobid stat:8 delimiter='^'"` with their widths (0: the field's own), and the delimiter."""
    delimiter = None
    head, found, tail = text.partition("delimiter=")
    if found:
        delimiter = tail.strip()
        if len(delimiter) >= 2 and delimiter[0] == delimiter[-1] and delimiter[0] in "'\"":
            delimiter = delimiter[1:-1]
    fields = []
    for word in head.split():
        name, _, width = word.partition(":")
        fields.append((name.lower(), int(width.lstrip("-")) if width.lstrip("-").isdigit() else 0))
    return fields, delimiter


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], delimiter: str | None, *, header: bool
) -> str:
    lines = [list(headers), *rows] if header else list(rows)
    if delimiter is not None:
        return "".join(delimiter.join(line) + "\n" for line in lines)
    text = ""
    for line in lines:
        text += " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + "\n"
    return text


def as_json(command: str, count_name: str, records: Sequence[Mapping[str, str]]) -> str:
    """Two blanks deep, without a blank after the colon, slashes escaped."""
    if not records:
        return f'{{\n  "COMMAND":"{command}",\n  "{count_name}":0,\n  "RECORDS":[\n  ]\n}}\n'
    bodies = []
    for record in records:
        cells = [f"      {_string(name)}:{_string(value)}" for name, value in record.items()]
        bodies.append("    {\n" + ",\n".join(cells) + "\n    }")
    inner = ",\n".join(bodies)
    return f'{{\n  "COMMAND":"{command}",\n  "{count_name}":{len(records)},\n  "RECORDS":[\n{inner}\n  ]\n}}\n'


def _string(value: str) -> str:
    return json.dumps(value).replace("/", "\\/")
