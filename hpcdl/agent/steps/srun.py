"""srun inside a job of hpcdl: its options, and those variables of the script that stand for some.

Nothing runs outside of the job: what would is refused (BadStep). `jsrun.py` is its neighbour, `step.py` starts tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from hpcdl.agent.steps.layout import BadStep, StepOptions
from hpcdl.agent.steps.step import Step, nodes_of
from hpcdl.agent.steps.variables import SrunVariables
from hpcdl.batch.mpi import OFF
from hpcdl.core.model.units import expand_nodes, slurm_seconds


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ = _words(
    "ntasks nodes ntasks-per-node ntasks-per-gpu gres gpus gpus-per-node gpus-per-task tres-per-task gpu-bind export "
    "output error open-mode chdir label nodelist exclude time kill-on-bad-exit distribution cpus-per-task overlap "
    "relative input mpi"
)
IGNORED = _words(
    "unbuffered cpu-bind mem mem-per-cpu mem-per-gpu mem-bind cpus-per-gpu hint threads-per-core exclusive exact "
    "whole job-name partition account qos comment verbose quiet disable-status wait no-kill immediate resv-ports "
    "propagate switches nice accel-bind gres-flags cpu-freq gpu-freq acctg-freq network ntasks-per-core "
    "ntasks-per-socket sockets-per-node cores-per-socket extra-node-info oversubscribe overcommit contiguous "
    "quit-on-interrupt profile constraint reservation jobid slurmd-debug max-exit-timeout msg-timeout use-min-nodes "
    "mincpus tmp wckey spread-job send-libs prolog epilog task-prolog task-epilog licenses core-spec thread-spec "
    "deadline begin priority mail-type mail-user signal threads compress prefer oom-kill-step stepmgr"
)
"""Options that change nothing here, or nothing that a trainer sees."""
REFUSED = {
    "multi-prog": "several programs in one step",
    "pty": "a terminal",
    "het-group": "heterogeneous jobs",
    "bcast": "copies of programs",
    "x11": "a display",
    "test-only": "a test",
}
FLAGS = _words(
    "label overlap unbuffered exclusive exact whole verbose quiet disable-status no-kill oversubscribe overcommit "
    "contiguous quit-on-interrupt spread-job use-min-nodes multi-prog pty test-only kill-on-bad-exit immediate "
    "resv-ports propagate nice x11 send-libs bcast compress oom-kill-step stepmgr"
)
"""Those without a value, or with one behind `=` only."""
SHORT = {
    "n": "ntasks", "N": "nodes", "G": "gpus", "o": "output", "e": "error", "D": "chdir", "l": "label", "w": "nodelist",
    "x": "exclude", "t": "time", "K": "kill-on-bad-exit", "m": "distribution", "c": "cpus-per-task", "r": "relative",
    "i": "input", "u": "unbuffered", "J": "job-name", "p": "partition", "A": "account", "q": "qos", "v": "verbose",
    "Q": "quiet", "X": "disable-status", "W": "wait", "k": "no-kill", "I": "immediate", "s": "oversubscribe",
    "O": "overcommit", "B": "extra-node-info", "C": "constraint", "L": "licenses", "S": "core-spec", "T": "threads",
    "d": "slurmd-debug",
}  # fmt: skip


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """The step's exit code. Raises BadStep."""
    asked, command = parse(words)
    if not command:
        raise BadStep("no command to run")
    nodes = nodes_of(environ)
    options = options_of(asked, command, environ, nodes)
    step = Step("srun", options, environ)
    cpus = asked.get("cpus-per-task") or environ.get("SLURM_CPUS_PER_TASK")
    variables = SrunVariables(step.number, nodes, int(cpus) if cpus and cpus.isdigit() else None, options.gpus_node)
    return step.run(step.body(step.tasks(), variables))


def parse(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options by their long names, and the command. Raises BadStep."""
    found: dict[str, str] = {}
    rest = list(words)
    known = READ | IGNORED | REFUSED.keys()
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            name = "ntasks-per-node" if name == "tasks-per-node" else name
            near = [each for each in known if each.startswith(name)]
            name = near[0] if name not in known and len(near) == 1 else name
            if name not in known:
                raise BadStep(f"{word}: hpcdl cannot do that inside a job")
            if not equals and name not in FLAGS:
                value = _next(word, rest)
            found[name] = value
            continue
        letters = word[1:]
        while letters:
            name = SHORT.get(letters[0], "")
            if not name:
                raise BadStep(f"{word}: hpcdl cannot do that inside a job")
            if name in FLAGS and name != "kill-on-bad-exit":
                found[name], letters = "", letters[1:]
                continue
            value = letters[1:].removeprefix("=")
            found[name] = value or ("" if name in FLAGS else _next(word, rest))
            letters = ""
    for name, what in REFUSED.items():
        if name in found:
            raise BadStep(f"--{name}: hpcdl has no {what.removeprefix('a ')} inside a job")
    if ":" in rest:
        raise BadStep("hpcdl has no heterogeneous jobs: one step for each part")
    return found, rest


def _next(word: str, rest: list[str]) -> str:
    if not rest:
        raise BadStep(f"{word}: its value is missing")
    return rest.pop(0)


def options_of(
    asked: Mapping[str, str], command: Sequence[str], environ: Mapping[str, str], nodes: Sequence[str]
) -> StepOptions:
    """The step that these options ask for in a job on these nodes. Raises BadStep."""
    chosen = _nodes(asked, nodes, environ)
    per_node = _number(asked.get("ntasks-per-node"), "--ntasks-per-node")
    gpus = _gpus(asked, len(chosen))
    gpus_task = asked.get("gpus-per-task") or _gres_gpus(asked.get("tres-per-task", ""))
    each = _gpu_number(gpus_task or environ.get("SLURM_GPUS_PER_TASK"))
    tasks = _number(asked.get("ntasks"), "--ntasks")
    if "ntasks-per-gpu" in asked and "ntasks" not in asked and per_node is None:
        on_each = int(environ.get("HPCDL_GPU_COUNT") or 0) if gpus is None else gpus
        per_node = on_each * (_number(asked["ntasks-per-gpu"], "--ntasks-per-gpu") or 1) or None
    if tasks is None and per_node is not None:
        tasks = per_node * len(chosen)
    if tasks is None and "nodes" not in asked and "nodelist" not in asked:
        tasks = _number(environ.get("SLURM_NTASKS"), "SLURM_NTASKS")
    if per_node is None and "ntasks" not in asked:
        per_node = _number(environ.get("SLURM_NTASKS_PER_NODE"), "SLURM_NTASKS_PER_NODE")
    if tasks is None:
        tasks = len(chosen) * (per_node or 1)
    if per_node is not None and per_node * len(chosen) < tasks:
        per_node = None  # Slurm warns, and does without
    if tasks < len(chosen):
        chosen = chosen[:tasks]
    to_each = asked.get("ntasks-per-gpu") or ("" if gpus_task else environ.get("SLURM_NTASKS_PER_GPU"))
    bind = asked.get("gpu-bind") or environ.get("SLURM_GPU_BIND") or (f"single:{to_each}" if to_each else "")
    if gpus is None and gpus_task and each is not None:
        gpus = each * (per_node or -(-tasks // len(chosen)))
    exported = asked.get("export") or environ.get("SRUN_EXPORT_ENV") or "ALL"
    named = [part for part in _commas(exported) if part not in ("ALL", "NONE", "NIL")]
    setting = dict(part.split("=", 1) for part in named if "=" in part)
    return StepOptions(
        nodes=chosen,
        tasks=tasks,
        per_node=per_node,
        cyclic=asked.get("distribution", "").startswith("cyclic"),
        gpus_node=gpus,
        gpus_task=each,
        gpu_bind=bind,
        overlap="overlap" in asked,
        label="label" in asked,
        output=asked.get("output", ""),
        error=asked.get("error", ""),
        append=asked.get("open-mode", "").startswith("a"),
        cwd=os.path.abspath(asked["chdir"]) if "chdir" in asked else "",
        time_s=_seconds(asked["time"]) if asked.get("time", "0") != "0" else None,
        kill_on_bad_exit=asked.get("kill-on-bad-exit", environ.get("SLURM_KILL_BAD_EXIT", "0")) in ("", "1"),
        no_mpi=(asked.get("mpi") or environ.get("SLURM_MPI_TYPE")) in OFF,
        export=setting,
        only=None if "ALL" in _commas(exported) else tuple(part for part in named if "=" not in part),
        command=tuple(command),
    )


def _nodes(asked: Mapping[str, str], nodes: Sequence[str], environ: Mapping[str, str]) -> tuple[int, ...]:
    """Indices of the nodes that the step runs on. Raises BadStep."""
    known = list(range(len(nodes)))
    out = expand_nodes(asked["exclude"]) if asked.get("exclude") else ()
    known = [index for index in known if nodes[index] not in out]
    many = _number(re.split("[-:]", asked["nodes"])[0], "--nodes") if "nodes" in asked else None
    if "nodelist" in asked:
        names = expand_nodes(asked["nodelist"])
        away = [name for name in names if name not in nodes and name != environ.get("HPCDL_ADDRESS")]
        if away:
            raise BadStep(f"--nodelist: {away[0]} is none of the job's nodes ({', '.join(nodes)})")
        named = [nodes.index(name) if name in nodes else 0 for name in names]
        known = named + [index for index in known if index not in named] if many and many > len(named) else named
    elif "relative" in asked:
        known = known[_number(asked["relative"], "--relative") or 0 :]
    if many is not None and many > len(known):
        raise BadStep(f"it asks for {many} nodes, and the job has {len(known)}")
    if not known:
        raise BadStep("no node of the job is left for it")
    return tuple(known[:many])


def _gpus(asked: Mapping[str, str], nodes: int) -> int | None:
    """GPUs that it takes on each node. Raises BadStep."""
    if of_gres := _gres_gpus(asked.get("gres", "")):
        return _gpu_number(of_gres)
    if "gpus-per-node" in asked:
        return _gpu_number(asked["gpus-per-node"])
    total = _gpu_number(asked.get("gpus"))
    return None if total is None else -(-total // nodes)


def _gres_gpus(text: str) -> str:
    """What a list of --gres or --tres-per-task says of GPUs: `a100:2` of `gres/gpu:a100:2,shard:1`; "": nothing."""
    for part in _commas(text):
        kind, _, rest = re.sub(r"\(.*\)$", "", part).replace("=", ":").partition(":")
        if kind.endswith("gpu"):
            return rest or "1"
    return ""


def _gpu_number(text: str | None) -> int | None:
    """Of `4`, `a100:4` or `a100`."""
    if not text:
        return None
    last = text.rpartition(":")[2]
    return int(last) if last.isdigit() else 1


def _number(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise BadStep(f"{what}: {text!r} is not a number")
    if not int(text) and what != "--relative":
        raise BadStep(f"{what}: must be at least 1")
    return int(text)


def _commas(text: str) -> list[str]:
    """Parts between commas that are not within quotes, which go."""
    return [re.sub(r"""^['"]|['"]$""", "", part.strip()) for part in text.split(",") if part.strip()]


def _seconds(text: str) -> float:
    try:
        return slurm_seconds(text)
    except ValueError:
        raise BadStep(f"--time: {text!r} is not a time") from None
