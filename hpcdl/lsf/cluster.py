"""bqueues: what kinds of queues there are. Backfill, interruptible backfill and killable are three different things.

A backfill queue fills the gaps before jobs that have reserved slots; an interruptible one is ended by LSF when the
gap ends, whatever walltime was asked; a killable one is preempted when its nodes are wanted by another queue.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from hpcdl.lsf.text import is_noise, limit_of, short


@dataclass(frozen=True, slots=True)
class LsfQueue:
    """A queue. `run_limit_s`: the longest walltime, None without a limit. `interruptible_s`: the shortest gap that
    its jobs are put into, None where it is no interruptible backfill queue. `preempted_by`: the queues named, () for
    any. `ends`: TERMINATE_WHEN. `requeues`: REQUEUE_EXIT_VALUES. `hosts`: as written, () for all. `slots_max`: the most
    that it gives one job, None without a limit. `preempts`: it is PREEMPTIVE, without a list of whom.
    """

    name: str
    priority: int = 0
    open: bool = True
    run_limit_s: float | None = None
    backfill: bool = False
    interruptible_s: float | None = None
    preemptable: bool = False
    preempted_by: tuple[str, ...] = ()
    rerunnable: bool = False
    ends: tuple[str, ...] = ()
    requeues: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    slots_max: int | None = None
    preempts: bool = False

    @property
    def kind(self) -> str:
        """For people, "" for an ordinary queue."""
        kinds = []
        if self.interruptible_s is not None:
            kinds.append(f"interruptible backfill (gaps of {self.interruptible_s:g} s and more)")
        elif self.backfill:
            kinds.append("backfill")
        if self.preemptable:
            by = f" by {', '.join(self.preempted_by)}" if self.preempted_by else ""
            kinds.append(f"preempted{by}" + (", ended" if "PREEMPT" in self.ends else ""))
        if self.rerunnable:
            kinds.append("rerun when its host is lost")
        if self.requeues:
            kinds.append(f"requeued upon exit code {', '.join(str(code) for code in self.requeues)}")
        if self.run_limit_s is not None:
            kinds.append(f"at most {self.run_limit_s / 60:g} min")
        return "; ".join(kinds)


def bqueues_argv(*, long: bool = True) -> list[str]:
    """All queues; only -l says of what kind they are."""
    return ["bqueues", *(["-l"] if long else [])]


_QUEUE = re.compile(r"^QUEUE: *(\S+)", re.M)


def parse_bqueues_long(text: str) -> tuple[LsfQueue, ...]:
    """The blocks of bqueues -l. A queue that another one says to preempt is preemptable, named there or not.

    Raises ValueError for a block that is none.
    """
    found = list(_QUEUE.finditer(text))
    queues = []
    for at, each in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        queues.append(_queue(each[1], text[each.end() : end]))
    preempting = {name: _preempts(text[each.start() :].split("\nQUEUE:", 1)[0]) for each in found for name in [each[1]]}
    return tuple(_crossed(queue, preempting) for queue in queues)


def _queue(name: str, block: str) -> LsfQueue:
    stats = re.search(r"^ *PRIO +NICE +STATUS.*\n *(-?\d+) +\S+ +(\S+)", block, re.M)
    policies = re.search(r"^ *SCHEDULING POLICIES:(.*)$", block, re.M)
    words = policies[1].split() if policies else []
    gap = re.search(r"^ *INTERRUPTIBLE_BACKFILL *[:=] *(\d+)", block, re.M)
    preemption = re.search(r"^ *PREEMPTION *[:=] *(.*)$", block, re.M)
    told = f"{preemption[1] if preemption else ''} {' '.join(words)}"
    by = re.search(r"PREEMPTABLE\[([^\]]*)\]", told)
    ends = re.search(r"^ *TERMINATE_WHEN *[:=] *(.*)$", block, re.M)
    requeues = re.search(r"^ *REQUEUE_EXIT_VALUES *[:=] *(.*)$", block, re.M)
    hosts = re.search(r"^ *HOSTS:(.*)$", block, re.M)
    named = hosts[1].split() if hosts else []
    limits = block.split("MAXIMUM LIMITS:", 1)
    if stats is None:
        raise ValueError(f"it says nothing that is understood of queue {name[:80]!r}")
    return LsfQueue(
        name=name,
        priority=int(stats[1]),
        open=stats[2].lower() == "open:active",
        run_limit_s=limit_of(limits[1]) if len(limits) > 1 else limit_of(_without_defaults(block)),
        backfill="BACKFILL" in words or "INTERRUPTIBLE_BACKFILL" in words,
        interruptible_s=float(gap[1]) if gap else 0.0 if "INTERRUPTIBLE_BACKFILL" in words else None,
        preemptable="PREEMPTABLE" in told,
        preempted_by=tuple(_bare(part) for part in by[1].split()) if by else (),
        rerunnable=re.search(r"^ *RERUNNABLE *[:=] *y", block, re.M | re.I) is not None,
        ends=tuple(ends[1].split()) if ends else (),
        requeues=tuple(int(part) for part in requeues[1].split() if part.isdecimal()) if requeues else (),
        slots_max=_slots_max(limits[-1]),
        preempts="PREEMPTIVE" in told and "PREEMPTIVE[" not in told,
        hosts=() if not named or named[0] == "all" else tuple(_bare(host.rstrip("/")) for host in named),
    )


def _slots_max(block: str) -> int | None:
    """PROCLIMIT, or TASKLIMIT: one number, or the least, the default and the most; it is the last limit of its line."""
    found = re.search(r"^ *(?:[A-Z]+LIMIT +)*(?:PROC|TASK)LIMIT *\n[^\n]*?(\d+) *$", block, re.M)
    return int(found[1]) if found else None


def _without_defaults(block: str) -> str:
    """Without the limits that count only where nothing was asked."""
    return re.sub(r"^ *DEFAULT LIMITS:.*?(?=^SCHEDULING PARAMETERS|\Z)", "", block, flags=re.M | re.S)


def _bare(name: str) -> str:
    """A queue or host without the preference behind it, `batch+2`."""
    return name.partition("+")[0]


def _preempts(block: str) -> tuple[str, ...]:
    found = re.search(r"PREEMPTIVE\[([^\]]*)\]", block)
    return tuple(_bare(part) for part in found[1].split()) if found else ()


def _crossed(queue: LsfQueue, preempting: dict[str, tuple[str, ...]]) -> LsfQueue:
    by = tuple(name for name, others in preempting.items() if queue.name in others)
    if not by:
        return queue
    return replace(queue, preemptable=True, preempted_by=tuple(dict.fromkeys((*queue.preempted_by, *by))))


def parse_bqueues(text: str) -> tuple[LsfQueue, ...]:
    """The table of bqueues: names, priorities, and whether they are open."""
    return tuple(
        LsfQueue(cells[0], int(cells[1]), cells[2].lower() == "open:active")
        for _, cells, _ in _table(text, "QUEUE_NAME")
        if len(cells) >= 3 and cells[1].lstrip("-").isdecimal()
    )


def _table(text: str, first: str, *, bars: bool = False) -> Iterator[tuple[list[str], list[str], str]]:
    """The lines of a table, whose header begins with `first`: the columns in upper case, the cells, and the line.

    `bars`: cells may have `|` between them.
    """
    columns: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")] if bars and "|" in line else line.split()
        if cells and cells[0].upper() == first:
            columns = [cell.upper() for cell in cells]
        elif columns and cells:
            yield columns, cells, line


def preempting(queue: LsfQueue, queues: Sequence[LsfQueue]) -> tuple[str, ...]:
    """The queues whose jobs preempt those of this one: those that it names, or that name it; of a queue that is
    PREEMPTABLE by any, or of one that is PREEMPTIVE over all, those that are more urgent.
    """
    found = []
    for each in queues:
        named = each.name in queue.preempted_by
        any_one = (queue.preemptable and not queue.preempted_by) or each.preempts
        if each.open and each.name != queue.name and (named or (any_one and each.priority > queue.priority)):
            found.append(each.name)
    return tuple(found)


def not_preempted(queue: LsfQueue | None, queues: Sequence[LsfQueue]) -> str:
    """Why the jobs of a queue are not preempted by others', "" where they are."""
    if queue is None or preempting(queue, queues):
        return "" if queue is not None else "no queue is known for them"
    if queue.preemptable:
        return "it is PREEMPTABLE, but no open queue is more urgent"
    return "bqueues -l does not call it PREEMPTABLE"


def for_gaps(queues: Sequence[LsfQueue], allowed: Collection[str] = ()) -> LsfQueue | None:
    """The queue for pilots in backfill windows: an open backfill one, not interruptible if there is a choice, for
    that one ends its jobs when LSF likes; the least urgent, so that a pilot that waits is before nobody. None without.

    `allowed`: by name, () for all; where none of these is said to backfill it is one of them all the same.
    """
    able = [queue for queue in queues if queue.open and (queue.name in allowed or (queue.backfill and not allowed))]
    return min(
        able,
        key=lambda queue: (not queue.backfill, queue.interruptible_s is not None, queue.priority),
        default=None,
    )


def for_idle(queues: Sequence[LsfQueue], hosts: Sequence[str], allowed: Collection[str] = ()) -> LsfQueue | None:
    """The queue for pilots on hosts that merely idle: an open one that may use them and that others preempt, else
    the least urgent, so that nobody waits for us. `allowed`: by name, () for all.
    """
    able = [
        queue
        for queue in queues
        if queue.open and (queue.name in allowed or not allowed) and any(may_use(queue, host, hosts) for host in hosts)
    ]
    return min(able, key=lambda queue: (not queue.preemptable, queue.priority), default=None)


def may_use(queue: LsfQueue | None, host: str, hosts: Collection[str]) -> bool:
    """Whether the queue's jobs may run on that host, of all `hosts`. A group of hosts, whose members are not listed
    here, is taken to hold it.
    """
    return queue is None or not queue.hosts or host in queue.hosts or any(each not in hosts for each in queue.hosts)


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host as bhosts shows it. `most`: how many slots it has, None without a limit; the others count used slots.

    `running`: those of jobs that run or are suspended there, without reserved ones.
    """

    name: str
    status: str
    most: int | None
    jobs: int
    reserved: int
    running: int = 0

    @property
    def unused(self) -> bool:
        """Whether nothing runs there, even if all of it is kept for a job that waits."""
        return self.status in ("ok", "closed_Full") and self.running == 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs there and nothing is kept for a job that waits."""
        return self.status == "ok" and self.jobs == 0 and self.reserved == 0


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of a host. `kind`: their type in lower case, perhaps cut short by LSF, "" where it is not reported."""

    count: int
    kind: str = ""


BHOSTS_ARGV = (("bhosts", "-w", "-X"), ("bhosts", "-w"), ("bhosts",))
"""The ways to ask for hosts, in order: -w says why one is closed and cuts no names, -X shows groups by their hosts."""


def parse_bhosts(text: str) -> tuple[HostRow, ...]:
    """The table of bhosts, whatever stands before it; also that of -o with a delimiter.

    Raises ValueError for a line in it that is no host's: half an answer is none.
    """
    rows = []
    for columns, cells, line in _table(text, "HOST_NAME", bars=True):
        if not is_noise(line):
            row = dict(zip(columns, cells, strict=False))
            if len(cells) < len(columns) or not row.get("NJOBS", "").isdecimal():
                raise ValueError(f"it printed a line that nobody understands: {line.strip()[:80]!r}")
            most = row.get("MAX", "-")
            reserved = row.get("RSV", "0")
            parts = [row.get(column, "") for column in ("RUN", "SSUSP", "USUSP")]
            known = all(map(str.isdecimal, parts))
            rows.append(
                HostRow(
                    row["HOST_NAME"],
                    row.get("STATUS", ""),
                    int(most) if most.isdecimal() else None,
                    int(row["NJOBS"]),
                    int(reserved) if reserved.isdecimal() else 0,
                    sum(map(int, parts)) if known else int(row["NJOBS"]),
                )
            )
    return tuple(rows)


def lshosts_argv() -> list[str]:
    """For hosts whose slots bhosts does not limit: they have one for each CPU."""
    return ["lshosts", "-w"]


def parse_lshosts(text: str) -> dict[str, int]:
    """CPUs of each host of the table; those without a number are missing."""
    cpus: dict[str, int] = {}
    for columns, cells, _ in _table(text, "HOST_NAME"):
        count = dict(zip(columns, cells, strict=False)).get("NCPUS", "")
        if count.isdecimal():
            cpus[cells[0]] = int(count)
    return cpus


def gpus_argv() -> tuple[list[str], ...]:
    """The ways to ask for GPUs, in order; -w, or a model is cut at 15 characters."""
    return (["lshosts", "-w", "-gpu"], ["lshosts", "-gpu"], ["bhosts", "-gpu"])


def parse_gpus(text: str) -> dict[str, HostGpus]:
    """GPUs by short host name, of lshosts -gpu or bhosts -gpu: a line for each GPU, the host on its first one only."""
    count: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    host = ""
    for _, cells, line in _table(text, "HOST_NAME"):
        if not line[0].isspace():
            host = short(cells[0])
            cells = cells[1:]
        if not host or not cells or not re.fullmatch(r"\d+", cells[0]):
            continue
        count[host] = count.get(host, 0) + 1
        if len(cells) > 1:
            kinds.setdefault(host, set()).add(cells[1].lower())
    return {name: HostGpus(many, "/".join(sorted(kinds.get(name, ())))) for name, many in count.items()}
