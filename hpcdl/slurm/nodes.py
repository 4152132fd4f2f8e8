"""Nodes in Slurm: how sinfo is asked for them, in JSON or text, which of them idle, and what GPUs they have.

Pure: `adapter.py` runs the commands, `hpcdl.batch.holes` makes backfill holes of what idles. A flag of a node that is
not known here means that it does not idle.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hpcdl.batch.adapter import IdleNodes
from hpcdl.batch.system import BatchError
from hpcdl.core.model.units import expand_nodes, gpu_kind
from hpcdl.slurm.text import columns, described, entries, expand, hosts, number, rows, string, told, words

_FIELDS = ("PartitionName", "StateComplete", "Gres", "GresUsed", "AllocMem", "NodeList")

_OF_ALL = ("NodeList", "StateComplete", "GresUsed")

_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""sinfo's signs behind a state."""

_SHORT = {"PLND": "PLANNED", "RESV": "RESERVED", "MAINT": "MAINTENANCE", "DRNG": "DRAIN", "COMP": "COMPLETING"}
_FREE = frozenset({"IDLE", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
_SET_ASIDE = frozenset({"RESERVED", "MAINTENANCE"})
"""Flags of a node in a reservation that has begun: it idles for those who are in that reservation."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node. `states`: its state and flags in upper case, as they come. `gpus_used`, `memory_used`: held on it.

    `gpus`: None where Slurm says nothing of generic resources.
    """

    name: str
    queues: tuple[str, ...]
    states: frozenset[str]
    gpus: int | None = None
    kind: str = ""
    gpus_used: int = 0
    memory_used: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether it would take a batch job now. A flag that nobody knows says no.

        A job that an admin has suspended has left its CPUs and keeps its GPUs and memory: its node shows as idle.
        """
        free = "IDLE" in self.states and self.states <= _FREE | _SET_ASIDE
        return free and not self.gpus_used and not self.memory_used

    @property
    def planned(self) -> bool:
        """Whether Slurm keeps it for a batch job that waits."""
        return "PLANNED" in self.states

    @property
    def set_aside(self) -> bool:
        """Whether a reservation holds it now."""
        return bool(self.states & _SET_ASIDE)

    @property
    def for_anybody(self) -> bool:
        """Whether it idles, and no reservation keeps it for some."""
        return self.idle and not self.set_aside


def nodes_argv(as_json: bool) -> list[str]:
    """All nodes in JSON; in text only those that idle, planned ones among them, for text groups equal nodes slowly."""
    if as_json:
        return ["sinfo", "--json"]
    return ["sinfo", "--states=idle", f"--Format={columns(_FIELDS)}"]


def all_argv() -> list[str]:
    """All nodes in text, by states and GPUs in use alone: few groups, however many nodes there are."""
    return ["sinfo", f"--Format={columns(_OF_ALL)}"]


def idle_of_text(text: str) -> IdleNodes:
    """What idles, of what `all_argv` prints. Raises as `rows` does, and where no node is listed: silence says nothing.

    Lists are not remembered as `expand` does: hardly two polls show the same ones.
    """
    idle: set[str] = set()
    others: set[str] = set()
    for names, state, used in rows(text, _OF_ALL):
        alike = SlurmNode("", (), states_of(state), gpus_used=gpus_of(used)[0])
        (idle if alike.for_anybody else others).update(expand_nodes(told(names)))
    every = idle | others
    if not every:
        raise BatchError("it lists no node at all")
    if cut := next((name for name in every if "[" in name or "]" in name), None):
        raise BatchError(f"it printed a list of nodes that nobody understands: {cut[:80]}")
    return IdleNodes(frozenset(idle - others), len(every))


def shown_argv() -> list[str]:
    """All nodes, with the features and the types of GPUs that batch jobs may ask for."""
    return ["scontrol", "show", "node", "--oneliner"]


def looks_of(text: str) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Features and types of GPUs by node, of what `shown_argv` prints. Raises as `described` does."""
    return {
        said["NodeName"]: (
            frozenset(told(said.get("ActiveFeatures", "")).split(",")) - {""},
            frozenset(re.findall(r"gpu:([^:,\d][^:,(]*)", told(said.get("Gres", "")))),
        )
        for said in described(text, "NodeName", ("State",))
    }


@lru_cache(maxsize=1024)
def states_of(text: str) -> frozenset[str]:
    """`idle+planned`, `idle*`, `IDLE+DRAIN`, `planned` -> {IDLE, PLANNED} and so on."""
    found = set()
    for at, word in enumerate(text.strip().upper().split("+")):
        while word and word[-1] in _SUFFIXES:
            found.add(_SUFFIXES[word[-1]])
            word = word[:-1]
        word = _SHORT.get(word, word)
        if at == 0 and word == "PLANNED":
            found.add("IDLE")
        found.add(word or "COMPLETING")  # `ALLOCATED+`: some of its jobs are completing
    return frozenset(found) if text.strip() else frozenset()


@lru_cache(maxsize=4096)
def gpus_of(gres: str) -> tuple[int, str]:
    """How many GPUs, and of which kind: `gpu:a100:4(S:0-1)` -> 4, a100; `gpu:1g.5gb:7` -> 7, 1g.5gb (a MIG profile).

    Several kinds on one node are joined: `1g.5gb+a100`. Names of models are brought to the type (`nvidia_a100_80gb`).
    """
    total, kinds = 0, set()
    for part in re.split(r",(?![^(]*\))", told(gres)):
        match = re.fullmatch(
            r"(?:gres[:/])?gpu(?::([^:()]+))??(?::no_consume)?[:=](\d+)([KMG]?)(?:\(.*\))?", part.strip()
        )
        if match is None:
            continue
        count = int(match[2]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[3]]
        total += count
        if match[1] and count:
            kinds.add(_kind(match[1]))
    return total, "+".join(sorted(kinds))


def _kind(name: str) -> str:
    name = name.lower()
    return name if re.search(r"\d+g\.\d+gb", name) else gpu_kind(name.replace("_", " "))


def _alike(
    names: Sequence[str], queues: tuple[str, ...], states: frozenset[str], gres: str, used: str, memory: float
) -> list[SlurmNode]:
    count, kind = gpus_of(gres)
    held = gpus_of(used)[0]
    return [SlurmNode(name, queues, states, count, kind, held, memory) for name in names]


def nodes_of_text(text: str) -> tuple[SlurmNode, ...]:
    """What `nodes_argv(False)` prints: a line for equal nodes of a partition. A node comes once.

    Raises as `rows` does.
    """
    found = []
    for queue, state, gres, used, memory, names in rows(text, _FIELDS):
        held = float(memory) if memory.isdecimal() else 0.0
        found.extend(_alike(expand(names), (queue.rstrip("*"),), states_of(state), gres, used, held))
    return _merged(found)


def nodes_of_json(text: str, *, idle_only: bool = False) -> tuple[SlurmNode, ...]:
    """What `sinfo --json` prints: nodes up to 23.02, later groups of equal nodes of a partition.

    `idle_only`: of the former those that may idle, for thousands are printed where dozens matter.
    ValueError: it is neither, so that the caller asks for text. Raises as `entries` does.
    """
    name, found = entries(text, "nodes", "sinfo")
    if name == "nodes":
        wanted = found if not idle_only else [entry for entry in found if _may_idle(entry)]
        return tuple(node for entry in wanted for node in _nodes_of_entry(entry))
    return _merged([node for entry in found for node in _nodes_of_group(entry)])


def _may_idle(entry: object) -> bool:
    """Whether it is no node that surely works. What is no node at all is for the reader to complain about."""
    if not isinstance(entry, Mapping):
        return True
    state = str(entry.get("state")).upper()
    return "IDLE" in state or "PLANNED" in state


def _nodes_of_entry(entry: object) -> list[SlurmNode]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ValueError("a node without a name")
    partitions = entry.get("partitions")
    queues = tuple(name for name in partitions if isinstance(name, str)) if isinstance(partitions, list) else ()
    states = states_of("+".join(words(entry.get("state")) + words(entry.get("state_flags"))))
    used, memory = string(entry.get("gres_used")), number(entry.get("alloc_memory")) or 0.0
    return _alike([entry["name"]], queues, states, string(entry.get("gres")), used, memory)


def _nodes_of_group(entry: object) -> list[SlurmNode]:
    if not isinstance(entry, Mapping):
        raise ValueError("a group of nodes that is no object")
    partition, node, names = (entry.get(key) for key in ("partition", "node", "nodes"))
    gres, memory = entry.get("gres"), entry.get("memory")
    if not (isinstance(partition, Mapping) and isinstance(node, Mapping) and isinstance(names, Mapping)):
        raise ValueError("a group of nodes without partition, node or nodes")
    gres, memory = (value if isinstance(value, Mapping) else {} for value in (gres, memory))
    states = states_of("+".join(words(node.get("state"))))
    held = number(memory.get("allocated")) or 0.0
    queues = (string(partition.get("name")),)
    return _alike(expand(hosts(names)), queues, states, string(gres.get("total")), string(gres.get("used")), held)


def _merged(nodes: list[SlurmNode]) -> tuple[SlurmNode, ...]:
    found: dict[str, SlurmNode] = {}
    queues: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.name, node)
        queues.setdefault(node.name, []).extend(node.queues)
    return tuple(replace(node, queues=tuple(dict.fromkeys(queues[name]))) for name, node in found.items())
