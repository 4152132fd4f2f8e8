"""jobstat, OLCF's own command: what runs, waits and is blocked, in the two layouts that its clusters have.

It is cut at its rulers, and columns are found by their names. Some of its noise comes before the first ruler.
"""

import re
from dataclasses import dataclass

from hpcdl.lsf.moments import clock_length

_RULER = re.compile(r"^-+ *(Running|Eligible|Blocked) Jobs: *(\d+) *(?:\((.*)\))? *-+$", re.M)
_USED = re.compile(r"(\d+) of (\d+) nodes")
_BUSY = re.compile(r"(\d+)/(\d+)=")
_TWO_WORDS = {"starttime", "queuetime"}


@dataclass(frozen=True, slots=True)
class Listed:
    """A job of a section (`running`, `eligible`, `blocked`). `seconds`: what remains, or its walltime."""

    section: str
    id: str
    user: str
    project: str
    nodes: int
    seconds: float | None
    queue: str = ""
    name: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """What jobstat shows. `used`, `nodes`: of the cluster, None where it does not tell."""

    jobs: tuple[Listed, ...]
    counts: dict[str, int]
    used: int | None = None
    nodes: int | None = None

    def words(self) -> str:
        """For people."""
        parts = [f"{many} {section}" for section, many in self.counts.items()]
        on = f" on {self.used} of {self.nodes} nodes" if self.nodes is not None else ""
        return f"{', '.join(parts)} jobs{on}"


def jobstat_argv() -> list[str]:
    """All jobs of the cluster."""
    return ["jobstat"]


def parse_jobstat(text: str) -> Overview:
    """Raises ValueError where no ruler is in it."""
    rulers = list(_RULER.finditer(text))
    if not rulers:
        raise ValueError("jobstat printed none of its three tables")
    jobs: list[Listed] = []
    counts: dict[str, int] = {}
    used = nodes = None
    for at, ruler in enumerate(rulers):
        section = ruler[1].lower()
        counts[section] = int(ruler[2])
        if section == "running" and ruler[3]:
            if total := _USED.search(ruler[3]):
                used, nodes = int(total[1]), int(total[2])
            elif shares := _BUSY.findall(ruler[3]):
                used, nodes = sum(int(busy) for busy, _ in shares), sum(int(most) for _, most in shares)
        end = rulers[at + 1].start() if at + 1 < len(rulers) else len(text)
        jobs.extend(_rows(section, text[ruler.end() : end]))
    return Overview(tuple(jobs), counts, used, nodes)


def _rows(section: str, text: str) -> list[Listed]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    columns = [name.lower() for name in lines[0]]
    rows = []
    for cells in lines[1:]:
        row: dict[str, str] = {}
        for column in columns[:-1]:
            many = 2 if column in _TWO_WORDS else 1
            row[column] = " ".join(cells[:many])
            cells = cells[many:]
        row[columns[-1]] = " ".join(cells)
        if row.get("jobid", "").isdecimal() and row.get("nodes", "").isdecimal():
            rows.append(
                Listed(
                    section,
                    row["jobid"],
                    row.get("username", row.get("user", "")),
                    row.get("project", ""),
                    int(row["nodes"]),
                    clock_length(row.get("remain", row.get("walltime", ""))),
                    row.get("queue", ""),
                    row.get("jobname", ""),
                    row.get("blockreason", ""),
                )
            )
    return rows
