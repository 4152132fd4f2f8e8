"""What `hpcdl submit --dry-run` says."""

from collections.abc import Iterable

from hpcdl.cli.output import Output, Row, escape, print_json
from hpcdl.cli.sending import Answer, arrays_of, warn
from hpcdl.core.units import count, seconds_text

_EACH = 3
"""Members of an array of which each is told; the others are counted."""


def tell(answer: Answer, output: Output, doubts: Iterable[str]) -> None:
    """Prints it: for each job where it could start now or why it would wait, and when it would start and end."""
    rows: list[Row] = answer["jobs"]
    if output is Output.JSON:
        print_json(answer)
        return
    warn(rows, doubts)
    if output is Output.QUIET:
        return  # nobody has an id
    starts = sum(bool(row["would_start"]) for row in rows)
    for group in arrays_of(rows):
        for row in group[:_EACH]:
            print(escape(f"{row['name']}: {_where(row)}{_when(row)}"))
        if len(group) > _EACH:
            rest = group[_EACH:]
            begin = sum(bool(row["would_start"]) for row in rest)
            print(f"and {len(rest)} more of that array: {begin} would start now, {len(rest) - begin} would wait")
    print(f"nothing was submitted: {starts} of {count(len(rows), 'job')} would start now")


def _where(row: Row) -> str:
    placement = row.get("placement")
    if not placement:
        return f"would wait: {row['reason']}"
    where = " ".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in placement.items())
    return f"would start now on {where}: {row['reason']}"


def _when(row: Row) -> str:
    now = row["submitted_at"]
    told = []
    if not row["would_start"] and row.get("starts_at") is not None:
        told.append(f"starts in about {seconds_text(max(0.0, row['starts_at'] - now))}")
    if row.get("ends_at") is not None:
        told.append(f"ends in about {seconds_text(max(0.0, row['ends_at'] - now))}")
    return f" ({', '.join(told)})" if told else ""
