"""bhosts and lshosts: hosts with their slots, what runs on them, and their GPUs."""

import re
from dataclasses import dataclass

from hpcdl.lsf.text import is_noise, short


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host as bhosts shows it. `most`: how many slots it has, None without a limit; the others count used slots."""

    name: str
    status: str
    most: int | None
    jobs: int
    reserved: int

    @property
    def idle(self) -> bool:
        """Whether nothing runs there and nothing is kept for a job that waits."""
        return self.status == "ok" and self.jobs == 0 and self.reserved == 0


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of a host. `kind`: their type in lower case, perhaps cut short by LSF, "" where it is not told."""

    count: int
    kind: str = ""


BHOSTS_ARGV = (("bhosts", "-w", "-X"), ("bhosts", "-w"), ("bhosts",))
"""The ways to ask for hosts, in order: -w tells why one is closed and cuts no names, -X shows groups by their hosts."""


def parse_bhosts(text: str) -> tuple[HostRow, ...]:
    """The table of bhosts, whatever stands before it; also that of -o with a delimiter.

    Raises ValueError for a line in it that is no host's: half an answer is none.
    """
    rows = []
    columns: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")] if "|" in line else line.split()
        if cells and cells[0].upper() == "HOST_NAME":
            columns = [cell.upper() for cell in cells]
        elif columns and not is_noise(line):
            row = dict(zip(columns, cells, strict=False))
            if len(cells) < len(columns) or not row.get("NJOBS", "").isdecimal():
                raise ValueError(f"it printed a line that nobody understands: {line.strip()[:80]!r}")
            most = row.get("MAX", "-")
            reserved = row.get("RSV", "0")
            rows.append(
                HostRow(
                    row["HOST_NAME"],
                    row.get("STATUS", ""),
                    int(most) if most.isdecimal() else None,
                    int(row["NJOBS"]),
                    int(reserved) if reserved.isdecimal() else 0,
                )
            )
    return tuple(rows)


def lshosts_argv() -> list[str]:
    """For hosts whose slots bhosts does not limit: they have one for each CPU."""
    return ["lshosts", "-w"]


def parse_lshosts(text: str) -> dict[str, int]:
    """CPUs of each host of the table; those that do not tell are missing."""
    cpus: dict[str, int] = {}
    at: int | None = None
    for line in text.splitlines():
        cells = line.split()
        if cells and cells[0].upper() == "HOST_NAME":
            at = [cell.lower() for cell in cells].index("ncpus") if "ncpus" in line.lower().split() else None
        elif at is not None and len(cells) > at and cells[at].isdecimal():
            cpus[cells[0]] = int(cells[at])
    return cpus


def gpus_argv() -> tuple[list[str], ...]:
    """The ways to ask for GPUs, in order; -w, or a model is cut at 15 characters."""
    return (["lshosts", "-w", "-gpu"], ["lshosts", "-gpu"], ["bhosts", "-gpu"])


def parse_gpus(text: str) -> dict[str, HostGpus]:
    """GPUs by short host name, of lshosts -gpu or bhosts -gpu: a line for each GPU, the host on its first one only."""
    count: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    columns: list[str] = []
    host = ""
    for line in text.splitlines():
        cells = line.split()
        if cells and cells[0].upper() == "HOST_NAME":
            columns = [cell.lower() for cell in cells]
            continue
        if not columns or not cells:
            continue
        if not line[0].isspace():
            host = short(cells[0])
            cells = cells[1:]
        if not host or not cells or not re.fullmatch(r"\d+", cells[0]):
            continue
        count[host] = count.get(host, 0) + 1
        if len(cells) > 1:
            kinds.setdefault(host, set()).add(cells[1].lower())
    return {name: HostGpus(many, "/".join(sorted(kinds.get(name, ())))) for name, many in count.items()}
