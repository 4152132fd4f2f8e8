"""Text out of files that are not trusted: bounded, plain or gzip, and errors that say where."""

import gzip
import math
import reprlib
import zlib
from pathlib import Path
from typing import NoReturn

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
