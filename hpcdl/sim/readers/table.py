"""Tables with a header line: CSV, and what separates its columns with another character."""

import csv
import difflib
import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from hpcdl.sim.readers.source import MAX_ROWS, Place, read_text, shown


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
            near = difflib.get_close_matches(name.casefold(), known, n=1)
            meant = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(known.values())}"
            place.wrong(shown(name), f"an unknown column; {meant}")
        if found.count(name) > 1:
            place.wrong(shown(name), "a column that is there twice")
    missing = [name for name in required if name not in found]
    if missing:
        place.wrong(", ".join(missing), f"missing from the header, which is: {', '.join(names)[:200]}")
    return found
