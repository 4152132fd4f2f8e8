"""jsrun inside a job of hpcdl: resource sets of tasks and GPUs on the job's nodes. Ranks of MPI it cannot start.

Nothing runs outside of the job: what would is refused (BadStep). `srun.py` is its neighbour, `step.py` starts tasks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hpcdl.agent.steps.layout import BadStep, StepOptions
from hpcdl.agent.steps.step import Step, nodes_of
from hpcdl.agent.steps.variables import jsrun_variables
from hpcdl.batch.mpi import OFF

LONG = {
    "nrs": "n", "tasks_per_rs": "a", "tasks_per_rank": "a", "cpu_per_rs": "c", "gpu_per_rs": "g", "rs_per_host": "r",
    "np": "p", "bind": "b", "latency_priority": "l", "launch_distribution": "d", "env": "E", "stdio_stdout": "o",
    "stdio_stderr": "k", "stdio_mode": "t", "chdir": "h", "exit_on_error": "X", "memory_per_rs": "m",
    "launch_node_task": "L", "smpiargs": "M", "progress": "progress", "immediate": "i", "erf_input": "U",
    "env_no_propagate": "F", "stdio_input": "I", "nrs_per_host": "r",
}  # fmt: skip
FLAGS = frozenset("iF")


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """The step's exit code. Raises BadStep."""
    asked, setting, command = parse(words)
    if not command:
        raise BadStep("no command to run")
    options = options_of(asked, setting, command, environ, nodes_of(environ))
    step = Step("jsrun", options, environ)
    return step.run(step.body(step.tasks(), jsrun_variables))


def parse(words: Sequence[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Options by their letters, variables to set, and the command. Raises BadStep."""
    found: dict[str, str] = {}
    setting: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            letter = LONG.get(name.replace("-", "_"), "")
            if not letter:
                raise BadStep(f"{word}: hpcdl cannot do that inside a job")
            complete = bool(equals) or letter in FLAGS
        else:
            letter, value = word[1], word[2:]
            complete = bool(value) or letter in FLAGS
            if letter not in LONG.values():
                raise BadStep(f"{word}: hpcdl cannot do that inside a job")
        if not complete:
            if not rest:
                raise BadStep(f"{word}: its value is missing")
            value = rest.pop(0)
        if letter == "E":
            name, is_set, text = value.partition("=")
            setting.update({name: text} if is_set else {name: os.environ.get(name, "")})
        found[letter] = value
    if "U" in found:
        raise BadStep("resource sets in a file: say them by -n, -a, -g")
    return found, setting, rest


def options_of(
    asked: Mapping[str, str],
    setting: Mapping[str, str],
    command: Sequence[str],
    environ: Mapping[str, str],
    nodes: Sequence[str],
) -> StepOptions:
    """The step that these options ask for in a job on these nodes. Raises BadStep."""
    here = int(environ.get("HPCDL_GPU_COUNT") or 0)
    gpus = here if asked.get("g") in ("ALL_GPUS", "ALL") else _number(asked.get("g", "0"), "-g")
    per_host = None if "r" not in asked else _number(asked["r"], "-r", 1)
    each = _number(asked["a"], "-a", 1) if "a" in asked else 1
    if asked.get("n") == "ALL_HOSTS":
        per_host = per_host or 1
        sets = len(nodes) * per_host
    elif "n" in asked:
        sets = _number(asked["n"], "-n", 1)
    elif "p" in asked:
        sets = -(-_number(asked["p"], "-p", 1) // each)
    else:
        sets = len(nodes) * (per_host or (here // gpus if gpus else 1))
    tasks = _number(asked["p"], "-p") if "p" in asked else sets * each
    if per_host is None:
        fit = here // gpus if gpus else -(-sets // len(nodes))
        per_host = min(sets, fit)
    if not per_host or -(-sets // per_host) > len(nodes):
        raise BadStep(f"{sets} resource sets of {gpus} GPUs do not fit {len(nodes)} nodes with {here} GPUs each")
    used = -(-sets // per_host)
    return StepOptions(
        nodes=tuple(range(used)),
        tasks=tasks,
        per_node=per_host * each,
        cyclic=asked.get("d", "").startswith("cyclic"),
        gpus_node=per_host * gpus,
        gpus_task=gpus,
        tasks_share=each,
        output=asked.get("o", ""),
        error=asked.get("k", ""),
        cwd=os.path.abspath(asked["h"]) if "h" in asked else "",
        kill_on_bad_exit=asked.get("X", "0") == "1",
        no_mpi=asked.get("M") in OFF,
        export=setting,
        command=tuple(command),
    )


def _number(text: str, what: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise BadStep(f"{what}: {text!r} is not a number" + (f" from {least}" if least else ""))
    return int(text)
