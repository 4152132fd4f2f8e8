"""bjobs -p of all users: jobs of others that wait, and whether it is hosts that they wait for."""

import re
from dataclasses import dataclass

from hpcdl.lsf.text import is_noise

_FIELDS = ("jobid", "stat", "queue", "nreq_slot", "job_description", "pend_reason", "job_name")
_HOSTS = re.compile(
    r"not enough|job slot limit reached|slots? (?:is|are) not|requirements? not satisfied|spanning requirement"
    r"|exclusive|just started a job|insufficient",
    re.IGNORECASE,
)
_LIMITS = re.compile(r"dependency|(?:user|project|group|account)[^;]*limit|limit of the|dispatch window", re.IGNORECASE)
_WIDE = re.compile(r"^ *(\d+(?:\[\d+\])?) +\S+ +([A-Z]{3,5}) +(\S+) +(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Listed:
    """A job that waits. `slots`: how many it asks for. `for_hosts`: it waits for hosts. `is_pilot`: of any hpcdl."""

    id: str
    queue: str
    slots: int
    for_hosts: bool
    is_pilot: bool


def waiting_argv(capable: bool) -> list[str]:
    """`capable`: bjobs knows -o."""
    if capable:
        return ["bjobs", "-noheader", "-u", "all", "-p", "-o", " ".join(_FIELDS) + " delimiter='^'"]
    return ["bjobs", "-u", "all", "-p", "-w"]


def parse_waiting(capable: bool, text: str) -> tuple[Listed, ...]:
    """What `waiting_argv` prints, in its order. Raises ValueError for a line that nobody understands.

    Without -o neither slots nor reasons are told: a job is reckoned to wait for one host.
    """
    if not capable:
        rows = _WIDE.findall(text)
        return tuple(Listed(id_, queue, 1, stat == "PEND", "hpcdl:" in rest) for id_, stat, queue, rest in rows)
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("^", len(_FIELDS) - 1)]
        if len(cells) == len(_FIELDS) and re.fullmatch(r"\d+(?:\[\d+\])?", cells[0]):
            id_, stat, queue, slots, described, reason, name = cells
            hosts = stat == "PEND" and _HOSTS.search(reason) is not None and _LIMITS.search(reason) is None
            pilot = described.startswith("hpcdl:") or name.startswith("hpcdl:")
            found.append(Listed(id_, queue, int(slots) if slots.isdecimal() else 1, hosts, pilot))
        elif found and not is_noise(line):
            raise ValueError(f"it printed a line that nobody understands: {line.strip()[:80]!r}")
    return tuple(found)
