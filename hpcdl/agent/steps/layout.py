"""Which task of a step runs on which node, and which of that node's GPUs it sees. Pure.

Counts and indices only: what the GPUs are called, each node knows for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcdl.core.model.units import repeated


class BadStep(ValueError):
    """The step cannot be run here; one line says why."""


@dataclass(frozen=True)
class Task:
    """One process of a step. `local`: its place on its node; `gpus`: indices among the job's there, None for all."""

    rank: int
    local: int
    node: int
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StepOptions:
    """What a step asks for, whichever command asked.

    `nodes`: the job's node indices that it runs on. `per_node`: tasks on each, None: spread in blocks. `gpus_node`:
    GPUs of each node that it takes for itself, None: it shares all. `gpus_task`: for each task, None: all of the
    step's. `gpu_bind`: srun's word for another way.
    """

    nodes: tuple[int, ...]
    tasks: int
    per_node: int | None = None
    cyclic: bool = False
    gpus_node: int | None = None
    gpus_task: int | None = None
    gpu_bind: str = ""
    tasks_share: int = 1  # so many tasks share what `gpus_task` says: jsrun's tasks of one resource set
    overlap: bool = False  # takes GPUs that another step has, too
    label: bool = False
    output: str = ""
    error: str = ""
    append: bool = False
    cwd: str = ""
    time_s: float | None = None
    kill_on_bad_exit: bool = False
    no_mpi: bool = False  # it says that its tasks are no ranks of MPI's
    export: Mapping[str, str] | None = None  # set over the script's environment
    only: tuple[str, ...] | None = None  # of the script's environment no others than these
    command: tuple[str, ...] = field(default=())


def spread(options: StepOptions) -> list[Task]:
    """All tasks by rank, without their GPUs. Raises BadStep."""
    nodes, tasks = options.nodes, options.tasks
    if options.per_node is not None:
        if tasks > options.per_node * len(nodes):
            raise BadStep(f"{tasks} tasks do not fit {len(nodes)} nodes with {options.per_node} on each")
        counts = [max(0, min(options.per_node, tasks - place * options.per_node)) for place in range(len(nodes))]
    else:
        counts = [tasks // len(nodes) + (place < tasks % len(nodes)) for place in range(len(nodes))]
    order = [place for place, number in enumerate(counts) for _ in range(number)]
    if options.cyclic:
        order = [place for turn in range(max(counts)) for place, number in enumerate(counts) if turn < number]
    seen: dict[int, int] = {}
    found = []
    for rank, place in enumerate(order):
        found.append(Task(rank, seen.setdefault(place, 0), nodes[place]))
        seen[place] += 1
    return found


def gpus_of(options: StepOptions, task: Task, of: Sequence[int]) -> tuple[int, ...] | None:
    """The GPUs that a task sees of those `of` its node that the step has; None: all of the job's. Raises BadStep."""
    bind = options.gpu_bind.removeprefix("verbose,").removeprefix("v,")
    kind, _, value = bind.partition(":")
    try:
        if kind in ("map_gpu", "map"):
            listed = [int(each.partition("*")[0]) for each in value.split(",")]
            return (of[listed[task.local % len(listed)]],)
        if kind in ("mask_gpu", "mask"):
            masks = [int(each.partition("*")[0], 16) for each in value.split(",")]
            mask = masks[task.local % len(masks)]
            return tuple(index for place, index in enumerate(of) if mask >> place & 1)
        if kind == "single":
            return (of[task.local // int(value or 1) % len(of)],)
        each = int(value) if kind == "per_task" else options.gpus_task
    except (ValueError, IndexError, ZeroDivisionError):
        raise BadStep(f"--gpu-bind={options.gpu_bind} does not fit the {len(of)} GPUs of the step") from None
    if each is None or kind == "none":
        return None if options.gpus_node is None else tuple(of)
    first = task.local // options.tasks_share * each
    if first + each > len(of):
        raise BadStep(f"task {task.rank} lacks GPUs: {each} for each, and the step has {len(of)} on a node")
    return tuple(of[first : first + each])


def per_node_text(tasks: Sequence[Task]) -> str:
    """Numbers of tasks on nodes as Slurm writes them: `4(x2),3`."""
    counts: list[int] = []
    last = None
    for task in sorted(tasks, key=lambda each: each.node):
        if task.node != last:
            counts.append(0)
            last = task.node
        counts[-1] += 1
    return repeated(counts)


def filled(pattern: str, values: Mapping[str, str]) -> str:
    """A file's name of its pattern: `%j`, `%4t`, `%%`. What nobody knows stays."""

    def put(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        value = values.get(letter)
        if value is None:
            return match[0]
        return value.rjust(int(width[:1]), "0") if width and value.isdigit() else value

    return re.sub(r"%(\d*)([A-Za-z%])", put, pattern)
