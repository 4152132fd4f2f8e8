"""Three outputs from one list of rows: a table for people, one JSON value for programs, ids for shells.

Rows are the plain JSON objects that the API answers with; what is printed of them is the columns' business.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import click

Row: TypeAlias = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

AS_OF = "as_of"
"""In JSON, and in the context's meta: when the last event was recorded, where no daemon answered."""

_LEAST = 8  # columns: a cell that may shrink keeps this many
_IDS = 9  # columns: ids keep this many, `1000-1999`
_GAP = "  "
_COLOURS = {
    "RUNNING": "32",
    "DONE": "32",
    "FAILED": "31",
    "CANCELLED": "33",
    "SUSPENDED": "33",
    "SUSPENDING": "33",
    "QUEUED": "36",
    "OK": "32",
    "WARN": "33",
    "FAIL": "31",
}


class Output(Enum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"
    QUIET = "quiet"

    def print_data(self, value: Mapping[str, Any], ids: Sequence[object]) -> bool:
        """Print the JSON value or the ids, whichever the user chose; False: the caller is to print text."""
        if self is Output.JSON:
            print_json(value)
        if self is Output.QUIET:
            print_ids(ids)
        return self is not Output.TABLE


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title and the text of a row's cell. `shrinks`: may be cut to the terminal's width.

    `ids`: of many numbers, `1-4,6-7,9-11`, only the first and the last are shown where the terminal is too narrow.
    """

    title: str
    cell: Callable[[Row], str]
    right: bool = False
    shrinks: bool = False
    coloured: bool = False
    ids: bool = False


def value_column(title: str, key: str, text: Callable[[Any], str] = str, **more: bool) -> Column:
    """A column with one value of a row, `-` where there is none."""
    return Column(title, lambda row: "-" if row.get(key) is None else text(row[key]), **more)


IDS_ONLY = "Ids only, one a line."


def outputs(command: F) -> F:
    """Give a command `--json` and `--quiet`; it is called with its context, and `output=Output.…` instead."""
    return outputs_as(IDS_ONLY)(command)


def outputs_as(told: str, name: str = "output") -> Callable[[F], F]:
    """`outputs` for a command whose `--quiet` prints something else; `told`: its help. `name`: of the argument, where
    the command has an option --output of its own."""

    def decorate(command: F) -> F:
        @click.option("--json", "as_json", is_flag=True, help='Exactly one JSON value, with "schema": 1.')
        @click.option("-q", "--quiet", is_flag=True, help=told)
        @functools.wraps(command)
        @click.pass_context
        def with_output(ctx: click.Context, /, as_json: bool, quiet: bool, **options: Any) -> Any:
            if as_json and quiet:
                raise click.UsageError("--json and --quiet exclude each other", ctx)
            output = Output.JSON if as_json else Output.QUIET if quiet else Output.TABLE
            return command(ctx, **{name: output}, **options)

        return with_output  # type: ignore[return-value]

    return decorate


def say(text: str) -> None:
    """One line for the user on stderr, whatever the text holds."""
    try:
        print(f"hpcdl: {escape(' '.join(text.split()))}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens, or stderr's disk is full: there is no other place to say it


def progress() -> Callable[[str], None]:
    """A function that says on stderr what is being done, on a terminal only: for work that takes minutes."""
    live = sys.stderr.isatty()

    def show(text: str) -> None:
        if live:
            print(f"hpcdl: {text}", file=sys.stderr, flush=True)

    return show


def progress_line() -> Callable[[str], None] | None:
    """A function that writes over one line of the terminal ("" clears it); None where there is no terminal."""
    if not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def stop_writing() -> None:
    """Drop what stdout still holds: its reader is gone, and the interpreter must not complain at its end."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def escape(text: str) -> str:
    """Text that is safe on a terminal: whatever is not printable is written as an escape, like `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_json(value: Mapping[str, Any], *, one_line: bool = False) -> None:
    """Print one JSON value and nothing else; `schema` comes first."""
    import json

    from hpcdl.client import SCHEMA

    content = {"schema": SCHEMA, **value}
    ctx = click.get_current_context(silent=True)
    if ctx is not None and AS_OF in ctx.meta:
        content[AS_OF] = ctx.meta[AS_OF]
    print(json.dumps(content, indent=2 if sys.stdout.isatty() and not one_line else None))


def print_ids(ids: Sequence[object]) -> None:
    """Print ids, one a line."""
    if ids:
        print("\n".join(escape(str(each)) for each in ids))


def print_table(columns: Sequence[Column], rows: Sequence[Row], *, titles: bool = True) -> None:
    """Print titles and rows, aligned; cut to the terminal's width on a terminal, whole in a pipe."""
    lines = table_lines(columns, cells_of(columns, rows), titles=titles)
    if lines:
        print("\n".join(lines))


def stdout_takes() -> tuple[int | None, bool]:
    """The columns that a line may have (None in a pipe: any number), and whether there is colour."""
    if not sys.stdout.isatty():
        return None, False
    import shutil

    return shutil.get_terminal_size().columns, use_colour()


def cells_of(columns: Sequence[Column], rows: Sequence[Row]) -> list[list[str]]:
    """The texts of the cells, column by column."""
    return [list(map(column.cell, rows)) for column in columns]


def table_lines(
    columns: Sequence[Column],
    cells: Sequence[list[str]],
    *,
    titles: bool = True,
    width: int | None = None,
    colour: bool | None = None,
) -> list[str]:
    """The lines of a table from the texts of each column, whole or in `width` columns of a terminal.

    Without `colour` as stdout takes them.
    """
    if colour is None:
        width, colour = stdout_takes()
    texts = list(map(_printable, cells))
    widths = column_widths(columns, texts, width)
    if titles:
        texts = [[column.title, *each] for column, each in zip(columns, texts, strict=True)]
    padded = [_padded(*each, colour=colour) for each in zip(columns, texts, widths, strict=True)]
    return [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]


def column_widths(columns: Sequence[Column], cells: Sequence[list[str]], room: int | None) -> list[int]:
    """The width of each column of a table, of printable texts; in `room` columns of a terminal."""
    widths = [max(width_of(column.title), _widest(each)) for column, each in zip(columns, cells, strict=True)]
    if room is not None:
        _shrink(columns, widths, room)
    return widths


# A table may have thousands of lines: what is so for a whole column is not asked for each cell.
def _printable(cells: list[str]) -> list[str]:
    return cells if "".join(cells).isprintable() else list(map(escape, cells))


def _widest(cells: Sequence[str]) -> int:
    return max(map(len if "".join(cells).isascii() else width_of, cells), default=0)


def _padded(column: Column, cells: Sequence[str], width: int, *, colour: bool) -> list[str]:
    different = set(cells)
    if len(different) * 4 < len(cells) or colour or not "".join(different).isascii() or _widest(cells) > width:
        known = {cell: _cell(column, width, cell, colour=colour) for cell in different}
        return [known[cell] for cell in cells]
    return [cell.rjust(width) for cell in cells] if column.right else [cell.ljust(width) for cell in cells]


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, a line each, without those that have no value."""
    width = max((len(name) for name, value in fields if value), default=0)
    for name, value in fields:
        if value:
            print(f"{name:<{width}}{_GAP}{escape(value)}")


def use_colour() -> bool:
    """Whether there is colour: on a terminal that has it, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(state: str, text: str) -> str:
    """The text in the colour of a state, where there is colour."""
    code = _COLOURS.get(state) if use_colour() else None
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def _shrink(columns: Sequence[Column], widths: list[int], room: int) -> None:
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    for index, column in enumerate(columns):  # before any name
        if over > 0 and column.ids and widths[index] > _IDS:
            less = min(over, widths[index] - _IDS)
            widths[index] -= less
            over -= less
    for index in reversed(range(len(columns))):
        if over > 0 and columns[index].shrinks:
            less = min(over, max(0, widths[index] - max(_LEAST, len(columns[index].title))))
            widths[index] -= less
            over -= less


def _cell(column: Column, width: int, text: str, *, colour: bool) -> str:
    fit = first_and_last if column.ids else shortened if column.shrinks else cut
    shown = fit(text, width)
    space = " " * (width - width_of(shown))
    code = _COLOURS.get(text.rpartition(" ")[2]) if colour and column.coloured else None
    painted = f"\x1b[{code}m{shown}\x1b[0m" if code else shown
    return space + painted if column.right else painted + space


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns of a terminal, with `…` at the end where something is missing."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


def first_and_last(ids: str, width: int) -> str:
    """The numbers in at most `width` columns: where that is too narrow for all, `1…11`."""
    if width_of(ids) <= width:
        return ids
    numbers = re.findall(r"\d+", ids)
    return cut(f"{numbers[0]}…{numbers[-1]}" if len(numbers) > 2 else ids, width)


def shortened(name: str, width: int) -> str:
    """As `cut`, but a name of an array's member, `train.py[lr=0.1,seed=3]`, keeps what tells it from the others as long
    as three letters of the rest have room beside it: `tra…[lr=0.1,seed=3]`."""
    head, bracket, values = name.partition("[")
    room = width - width_of(bracket + values)
    return (
        cut(head, room) + bracket + values
        if name.endswith("]") and room >= min(4, width_of(head))
        else cut(name, width)
    )


def width_of(text: str) -> int:
    """The columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
