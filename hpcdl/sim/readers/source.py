"""Text and tables out of files that are not trusted: bounded in size, plain or gzip.

Every error is one line `FILE:LINE: COLUMN: what is wrong`. A table's columns are declared with their types and limits
(`read_values`).
"""

import csv
import gzip
import io
import math
import reprlib
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hpcdl.core.model.units import meant
from hpcdl.sim.workload import WorkloadError

MAX_BYTES = 200 << 20
"""A file may be so large, after decompression too."""

MAX_ROWS = 2_000_000

MAX_SECONDS = 1e10
"""Times beyond this are no times (300 years)."""


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The text of a file, decompressed if it is gzip. WorkloadError: it cannot be read, is no text, or too large."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=plain) as unpacked:
                    data = unpacked.read(limit + 1)
            else:
                data = plain.read(limit + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: a damaged gzip file: {error}; make it anew") from error
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from error
    if len(data) > limit:
        raise WorkloadError(f"{path}: holds more than {limit >> 20} MiB; cut it to the part that is to be simulated")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8 text: convert it, for example with iconv") from error


class Place:
    """A file and a line in it, for messages."""

    __slots__ = ("line", "path")

    def __init__(self, path: Path, line: int = 0) -> None:
        self.path = path
        self.line = line

    def wrong(self, column: str, what: str) -> NoReturn:
        """Raises the WorkloadError `FILE:LINE: COLUMN: what`; no column: without it."""
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        raise WorkloadError(f"{where}: {column}: {what}" if column else f"{where}: {what}")

    def number(self, column: str, text: object, low: float = 0.0, high: float = MAX_SECONDS) -> float:
        """A finite number from `low` to `high`, from text or from YAML."""
        number = math.nan
        if isinstance(text, int | float | str) and not isinstance(text, bool) and "_" not in str(text):
            try:
                number = float(text)
            except (ValueError, OverflowError):
                pass
        if math.isnan(number):
            self.wrong(column, f"expected a number, got {shown(text)}")
        if not low <= number <= high:
            what = f"{low:g} or more" if number < low else f"{high:g} or less"
            self.wrong(column, f"must be {what}, got {shown(text)}")
        return number

    def whole(self, column: str, text: object, low: int = 1, high: int = 1 << 53) -> int:
        """A whole number from `low` to `high`; 3.0 and 1e6 are whole."""
        number = self.number(column, text, low, high)
        if number != int(number):
            self.wrong(column, f"expected a whole number, got {shown(text)}")
        return int(number)


def shown(value: object) -> str:
    """A value from a file as a message quotes it: on one line, and short whatever it holds."""
    text = reprlib.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


# --- tables with a header line: CSV, and what separates its columns with another character ----------------------------

Parse = Callable[[Place, str, str], Any]
"""A column's type: from (place, column, text of a cell) to a value; WorkloadError names file, line and column."""


def number(low: float = 0.0, high: float = MAX_SECONDS) -> Parse:
    """A column of finite numbers from `low` to `high`."""
    return lambda place, column, text: place.number(column, text, low, high)


def whole(low: int = 1, high: int = 1 << 53) -> Parse:
    """A column of whole numbers from `low` to `high`."""
    return lambda place, column, text: place.whole(column, text, low, high)


def word(*known: str) -> Parse:
    """A column of texts; of these only, where some are named."""

    def parse(place: Place, column: str, text: str) -> str:
        if known and text not in known:
            place.wrong(column, f"expected one of {', '.join(known)}, got {text!r}")
        return text

    return parse


def read_values(path: Path, columns: Mapping[str, Parse]) -> Iterator[tuple[Place, Any]]:
    """Every row with its line, as the values of `columns` in their order, all of which the table must have."""
    for place, cells in read_table(path, columns, ()):
        yield place, [parse(place, column, cells[column]) for column, parse in columns.items()]


def read_table(
    path: Path, required: Collection[str], optional: Collection[str], delimiter: str = ","
) -> Iterator[tuple[Place, Mapping[str, str]]]:
    """Every row by column, stripped, with its line. Columns may be in any order, lines that begin with # are comments.

    WorkloadError for unknown, repeated or missing columns and for rows with more or fewer cells.
    """
    return rows_of(path, read_text(path), required, optional, delimiter)


def rows_of(
    path: Path, text: str, required: Collection[str], optional: Collection[str] | None, delimiter: str = ","
) -> Iterator[tuple[Place, Mapping[str, str]]]:
    """As `read_table`, of text that was read already; `optional` None: columns that nobody knows are passed over."""
    place = Place(path)
    lines = io.StringIO(text, newline="")
    if delimiter == ",":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE)
    header: list[str] | None = None
    try:
        before = 0
        for cells in reader:
            place.line, before = before + 1, reader.line_num
            if not cells or cells[0].startswith("#") or not any(cell.strip() for cell in cells):
                continue
            while len(cells) > (0 if header is None else len(header)) and not cells[-1].strip():
                cells.pop()  # delimiters at the end of a line, as spreadsheets and `sacct --parsable` leave them
            if header is None:
                header = _header(place, [cell.strip() for cell in cells], required, optional)
                continue
            if len(cells) != len(header):
                place.wrong("", f"has {len(cells)} cells, but the header names {len(header)} columns")
            if reader.line_num > MAX_ROWS:
                place.wrong("", f"more than {MAX_ROWS} lines: cut the file to the part that is to be simulated")
            yield place, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        place.line = reader.line_num
        place.wrong("", f"not a table: {error}")
    if header is None:
        place.line = 0
        place.wrong("", f"is empty: the first line names the columns: {delimiter.join(required)}")


def _header(place: Place, names: list[str], required: Collection[str], optional: Collection[str] | None) -> list[str]:
    # dumps spell their own columns in capitals, and users of spreadsheets do what those do
    known = {name.casefold(): name for name in (*required, *(optional or ()))}
    found = [known.get(name.casefold(), name) for name in names]
    for name in found:
        if optional is not None and name not in known.values():
            hint = meant(name.casefold(), known, f"known are {', '.join(known.values())}", text=known.__getitem__)
            place.wrong(shown(name), f"an unknown column; {hint}")
        if found.count(name) > 1:
            place.wrong(shown(name), "a column that is there twice")
    missing = [name for name in required if name not in found]
    if missing:
        place.wrong(", ".join(missing), f"missing from the header, which is: {', '.join(names)[:200]}")
    return found
