"""Slurm's partitions, reservations, licences, QOS, switches and configuration: how scontrol is asked, and its answers.

Pure: arguments and parsers only; `adapter.py` runs the commands. Jobs are in `jobs.py`, nodes in `nodes.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcdl.batch.system import BatchError
from hpcdl.slurm.text import described, duration, expand, moment, pairs, told, whole


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition that this user may see. `open`: it takes and starts batch jobs of an ordinary user.

    `walltime_s`: its MaxTime, None without a limit; `grace_s`: between the first signal of a preemption and the end.
    `tier`: PriorityTier; with preempt/partition_prio those of a higher one preempt.
    """

    name: str
    open: bool
    walltime_s: float | None
    nodes_min: int
    nodes_max: int | None
    preemption: str = ""
    grace_s: float = 0.0
    default: bool = False
    tier: int = 1
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes and licences set aside from `start` to `end` for some."""

    name: str
    start: float
    end: float | None
    nodes: tuple[str, ...]
    licences: Mapping[str, int]
    maintenance: bool = False


@dataclass(frozen=True, slots=True)
class PilotConstraints:
    """What the site's options make each pilot ask for, beside nodes: it limits which holes it can use."""

    reservation: str = ""
    licences: tuple[tuple[str, int], ...] = ()
    qos: str = ""


def partitions_argv() -> list[str]:
    """Those that this user may use; hidden ones and others' are left out by Slurm."""
    return ["scontrol", "show", "partition", "--oneliner"]


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """What `partitions_argv` prints. Raises as `described` does."""
    found = []
    for said in described(text, "PartitionName", ("State",), "No partitions in the system"):
        shut = said.get("RootOnly") == "YES" or said.get("ReqResv") == "YES" or said.get("MaxNodes") == "0"
        found.append(
            Partition(
                name=said["PartitionName"],
                open=said.get("State", "UP") == "UP" and not shut,
                walltime_s=duration(said.get("MaxTime", "")),
                nodes_min=max(1, whole(said.get("MinNodes", "")) or 1),
                nodes_max=whole(said.get("MaxNodes", "")),
                preemption=told(said.get("PreemptMode", "")),
                grace_s=float(whole(said.get("GraceTime", "")) or 0),
                default=said.get("Default") == "YES",
                tier=whole(said.get("PriorityTier", "")) or whole(said.get("Priority", "")) or 1,
                nodes=expand(said.get("Nodes", "")),
            )
        )
    return tuple(found)


def reservations_argv() -> list[str]:
    """All reservations, with their nodes."""
    return ["scontrol", "show", "reservation", "--oneliner"]


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """What `reservations_argv` prints; () for `No reservations in the system`. Raises as `described` does."""
    found = []
    needed = ("StartTime", "EndTime", "Nodes", "Flags", "State")
    for said in described(text, "ReservationName", needed, "No reservations in the system"):
        start = moment(said["StartTime"])
        if start is None:
            raise BatchError(f"the reservation {said['ReservationName']} has no start")
        flags = said.get("Flags", "").upper().split(",")
        found.append(
            Reservation(
                name=said["ReservationName"],
                start=start,
                end=moment(said.get("EndTime", "")),
                nodes=expand(said.get("Nodes", "")),
                licences=parse_licences_wanted(said.get("Licenses", "")),
                maintenance="MAINT" in flags,
            )
        )
    return tuple(found)


def licences_argv() -> list[str]:
    """All licences, with how many are free."""
    return ["scontrol", "show", "licenses", "--oneliner"]


def parse_licences(text: str) -> dict[str, int]:
    """How many of each licence are free; {} where there are none. Raises as `described` does."""
    found = {}
    for said in described(text, "LicenseName", ("Total", "Used"), "No licenses configured"):
        free = whole(said.get("Free", ""))
        total, used = whole(said["Total"]) or 0, whole(said["Used"]) or 0
        found[said["LicenseName"]] = free if free is not None else max(0, total - used)
    return found


def parse_licences_wanted(text: str) -> dict[str, int]:
    """`matlab:2,fluent` or `matlab=2` -> how many of each."""
    found = {}
    for part in told(text).split(","):
        name, _, count = part.replace("=", ":").strip().partition(":")
        if name:
            found[name] = whole(count) if whole(count) is not None else 1
    return {name: count for name, count in found.items() if count is not None}


def pilot_constraints(options: Sequence[str]) -> PilotConstraints:
    """What these options of sbatch ask for: `-L`, `--licenses`, `--reservation`, in both forms of each."""
    reservation, qos, licences = "", "", dict[str, int]()
    for at, option in enumerate(options):
        name, equals, value = option.partition("=")
        if not equals and option[:2] in ("-L", "-q") and len(option) > 2:
            name, value = option[:2], option[2:]
        elif not equals:
            value = options[at + 1] if at + 1 < len(options) else ""
        if name in ("-L", "--licenses"):
            licences.update(parse_licences_wanted(value))
        elif name == "--reservation":
            reservation = value
        elif name in ("-q", "--qos"):
            qos = value
    return PilotConstraints(reservation, tuple(sorted(licences.items())), qos)


_ENDS = frozenset({"CANCEL", "REQUEUE"})
"""Modes of preemption that free nodes. SUSPEND and GANG stop processes, which keep the memory of their GPUs."""


def higher(part: Partition, parts: Sequence[Partition]) -> tuple[Partition, ...]:
    """The partitions whose batch jobs preempt those of this one, where Slurm goes by PriorityTier."""
    ends = _ENDS & set(part.preemption.upper().split(","))
    return tuple(each for each in parts if ends and each.open and each.tier > part.tier)


def not_preempted(part: Partition, parts: Sequence[Partition], nodes: Collection[str]) -> str:
    """Why the batch jobs of a partition on these nodes are not ended for others', "" where they are."""
    if not _ENDS & set(part.preemption.upper().split(",")):
        return f"its PreemptMode is {part.preemption or 'not reported'}"
    above = {node for each in higher(part, parts) for node in each.nodes}
    return "" if above >= set(nodes) else "no partition with a higher PriorityTier has these nodes"


def qos_argv() -> list[str]:
    """Which QOS preempts which, from the accounting."""
    return ["sacctmgr", "--parsable2", "show", "qos", "format=Name,Preempt,PreemptMode"]


def qos_not_preempted(text: str, name: str, mode: str) -> str:
    """As `not_preempted`, of a QOS, by what `qos_argv` prints. `mode`: the cluster's PreemptMode. Raises BatchError."""
    lines = [line.split("|") for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != ["Name", "Preempt", "PreemptMode"] or any(len(line) != 3 for line in lines):
        raise BatchError("it printed no table of QOS")
    own = next((line[2] for line in lines[1:] if line[0] == name), None)
    if own is None:
        return f"there is no QOS {name}"
    if not _ENDS & set((mode if own.lower() in ("", "cluster") else own).upper().split(",")):
        return f"the PreemptMode of QOS {name} is {own}"
    by = [line[0] for line in lines[1:] if name in line[1].split(",")]
    return "" if by else f"no QOS preempts {name}"


def topology_argv() -> list[str]:
    """The switches, or blocks, and their nodes."""
    return ["scontrol", "show", "topology", "--oneliner"]


def parse_topology(text: str, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The switches above each of these nodes, the outermost first. {} for a flat network, which has none."""
    switches = []
    for line in text.splitlines():
        said = pairs(line)
        if line.strip() and not said and "No topology" not in line:
            raise BatchError(f"it printed a line that nobody understands: {line[:80]!r}")
        name = said.get("SwitchName") or said.get("BlockName") or said.get("AggregatedBlock")
        if name:
            inside = expand(said.get("Nodes", ""))
            level = whole(said.get("Level", "")) or 0
            switches.append((-level, -len(inside), name, frozenset(inside)))
    found = {}
    for node in nodes:
        place = tuple(name for _, _, name, inside in sorted(switches, key=lambda each: each[:3]) if node in inside)
        if place:
            found[node] = place
    return found


def config_argv() -> list[str]:
    """Slurm's configuration."""
    return ["scontrol", "show", "config"]


def parse_config(text: str) -> dict[str, str]:
    """`Name = value`, a line each; values that say nothing are "". Raises BatchError where it is something else."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and not line.startswith(" "):
            found[name.strip()] = told(value)
    if not found:
        raise BatchError("scontrol: it printed no configuration")
    return found


def parse_version(text: str) -> str:
    """`slurm 23.02.7`, `slurm-wlm 22.05.8` -> the number; "" where there is none."""
    last = text.strip().splitlines()[-1].split() if text.strip() else []
    return last[-1] if last and last[-1][:1].isdecimal() else ""
