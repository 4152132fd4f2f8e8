"""sbatch as hpcdl reads it: its options in #SBATCH lines and on its command line, and the variables of its jobs.

What is the same for every such command is in `hpcdl.batch.script`, the table's reasons in `hpcdl.batch.options`.
Nothing here runs sbatch: pilots are submitted by `submit.py`.
"""

import os
import re
import signal
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from hpcdl.batch.options import (
    DEFAULT_GRACE_S,
    SIGNALS,
    VALUE,
    BadLine,
    BatchOptions,
    IgnoredOption,
    IndexArray,
    NotForHpcdl,
    Reason,
    WrittenOption,
    count_of,
    exports_of,
    indices_of,
    on_each,
    option_table,
)
from hpcdl.batch.script import INDEX, BatchDependency, BatchScript, SubmitCommand, job_number, read_file, read_stdin
from hpcdl.batch.system import BatchError
from hpcdl.core.model.dependency import Condition
from hpcdl.core.model.units import slurm_seconds
from hpcdl.slurm.system import SYSTEM

OPTIONS = option_table(
    {
        Reason.READ: "gres gpus gpus-per-node gpus-per-task nodes job-name dependency array chdir export wrap parsable "
        "ntasks ntasks-per-node output error open-mode constraint exclude signal ntasks-per-gpu gpu-bind "
        "time mem mem-per-cpu mem-per-gpu cpus-per-task cpus-per-gpu",
        Reason.TIME: "time-min",
        Reason.HOST: "tmp mincpus "
        "threads-per-core ntasks-per-core ntasks-per-socket "
        "sockets-per-node cores-per-socket hint extra-node-info distribution "
        "core-spec thread-spec mem-bind gres-flags",
        Reason.WHERE: "partition account qos priority wckey switches exclusive nice oversubscribe overcommit "
        "contiguous spread-job use-min-nodes prefer segment wait-all-nodes",
        Reason.MAIL: "mail-type mail-user",
        Reason.AGAIN: "requeue no-requeue no-kill",
        Reason.NEVER: "kill-on-invalid-dep",
        Reason.SHELL: "get-user-env",
        Reason.NOTHING: "comment profile acctg-freq gpu-freq cpu-freq mcs-label power "
        "verbose quiet ignore-pbs propagate oom-kill-step network stepmgr",
        Reason.NODES: "nodelist reservation licenses clusters nodefile",
        Reason.START: "begin deadline delay-boot",
        Reason.HOLD: "hold",
        Reason.WAIT: "wait",
        Reason.INPUT: "input",
        Reason.LACKS: "gpus-per-socket tres-per-task export-file bb bbf container burst-buffer uid gid "
        "cluster-constraint test-only help usage version reboot",
    },
    flags="parsable exclusive nice oversubscribe overcommit contiguous spread-job use-min-nodes requeue no-requeue "
    "no-kill verbose quiet ignore-pbs propagate oom-kill-step stepmgr get-user-env hold wait test-only help usage "
    "version reboot",
)
"""By their long names."""

SHORT = {
    "G": "gpus", "N": "nodes", "J": "job-name", "d": "dependency", "a": "array", "D": "chdir", "n": "ntasks",
    "t": "time", "o": "output", "e": "error", "c": "cpus-per-task", "p": "partition", "A": "account", "q": "qos",
    "s": "oversubscribe", "O": "overcommit", "m": "distribution", "B": "extra-node-info", "S": "core-spec",
    "v": "verbose", "Q": "quiet", "k": "no-kill", "C": "constraint", "w": "nodelist", "x": "exclude",
    "L": "licenses", "M": "clusters", "F": "nodefile", "b": "begin", "H": "hold", "W": "wait", "i": "input",
    "h": "help", "V": "version",
}  # fmt: skip


ANSWER_S = 10.0
"""For scontrol, while a user waits; the daemon has more patience."""

_HARMLESS = re.compile(r"SBATCH_(ACCOUNT|PARTITION|QOS|TIMELIMIT|DEBUG|REQUEUE|NO_REQUEUE)")
"""Variables that stand for options which hpcdl may leave out."""


_KINDS = {"afterok": "done", "afterany": "ended", "afternotok": "failed", "after": "started"}
"""Kinds of conditions, by what Slurm calls them."""


def _conditions(given: WrittenOption) -> tuple[tuple[Condition, ...], ...]:
    """Groups of which one condition each must be met: `,` is all of them, `?` one. Raises BadLine."""
    found: list[Condition] = []
    if "," in given.value and "?" in given.value:
        raise given.bad("Slurm takes ',' or '?' in it, not both")
    for part in re.split("[,?]", given.value):
        kind, *ids = part.strip().lower().split(":")
        if kind == "singleton" and not ids and "?" not in given.value:
            continue
        if kind not in _KINDS or not ids:
            raise given.bad(f"{part!r}: a job of hpcdl waits by {', '.join(_KINDS)} with ids, or singleton")
        found += [Condition(_KINDS[kind], given.whole(each, "the id of a job of hpcdl", 1)) for each in ids]
    found = list(dict.fromkeys(found))
    return (tuple(found),) if "?" in given.value else tuple((each,) for each in found)


def _singleton(given: WrittenOption) -> bool:
    return any(part.strip().lower() == "singleton" for part in given.value.split(","))


def _signal(given: WrittenOption) -> tuple[str, float] | None:
    """The preset that sends this signal, so many seconds before the end; None where there is none."""
    name, seconds = _signal_parts(given)
    return (SIGNALS[name], seconds) if name in SIGNALS else None


def _signal_parts(given: WrittenOption) -> tuple[str, float]:
    """Of `[B:][R:]USR1[@SECONDS]`."""
    name, at, seconds = given.value.rpartition(":")[2].partition("@")
    name = name.upper().removeprefix("SIG")
    if name.isascii() and name.isdigit() and len(name) < 3:
        name = next((each.name.removeprefix("SIG") for each in signal.Signals if each.value == int(name)), name)
    return name, float(given.whole(seconds, "a number of seconds", 1)) if at else DEFAULT_GRACE_S


_VARIABLES = {
    "cpus-per-task": "SLURM_CPUS_PER_TASK", "gpus-per-task": "SLURM_GPUS_PER_TASK", "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE", "account": "SLURM_JOB_ACCOUNT", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "gpu-bind": "SLURM_GPU_BIND", "threads-per-core": "SLURM_THREADS_PER_CORE", "qos": "SLURM_JOB_QOS",
    "distribution": "SLURM_DISTRIBUTION",
}  # fmt: skip
"""Variables of a job with the value of an option, by the option."""

_PER_TASK = {"cpus-per-task": "cpu", "gpus-per-task": "gres/gpu"}
"""Resources in SLURM_TRES_PER_TASK of Slurm 24.11, by the option."""

_MEMORY = {"mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU"}


def _with_kind(resources: str) -> str:
    """`gres/gpu=a100:2` as Slurm writes it: `gres/gpu:a100=2`."""
    return re.sub(r"gres/gpu=([^:,]+):(\d+)", r"gres/gpu:\1=\2", resources)


def _time(given: WrittenOption) -> float | None:
    """Seconds; None for no limit. Raises BadLine."""
    if given.value.upper() in ("0", "INFINITE", "UNLIMITED"):
        return None
    try:
        return slurm_seconds(given.value)
    except ValueError:
        raise given.bad(
            f"{given.value[:100]!r} is no time: MINUTES, M:S, H:M:S, DAYS-H, DAYS-H:M, DAYS-H:M:S"
        ) from None


def _mebibytes(given: WrittenOption) -> int:
    """Of `16G`, `500M`, `1T`; MiB without a letter. Raises BadLine."""
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", given.value.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise given.bad(f"{given.value!r} is no amount of memory")
    return int(int(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1 << 20}[match[2].upper()])


class Sbatch(SubmitCommand):
    """See `SubmitCommand`."""

    system = SYSTEM
    mark = "#SBATCH"
    options = OPTIONS
    readers = (
        ("job-name", "name", VALUE),
        ("dependency", "conditions", _conditions),
        ("dependency", "singleton", _singleton),
        ("array", "array", lambda given: indices_of(given, given.value)),
        ("chdir", "cwd", VALUE),
        ("export", "exports", lambda given: exports_of(given, "ALL", "NONE", "NIL")),
        ("parsable", "brief", lambda given: True),
        ("wrap", "wrapped", VALUE),
        ("ntasks", "tasks", count_of),
        ("ntasks-per-node", "tasks_per_node", count_of),
        ("output", "output", VALUE),
        ("error", "error", VALUE),
        ("open-mode", "append", lambda given: given.value.startswith("a")),
        ("signal", "signal", _signal),
        ("time", "time_s", _time),
    )
    node_options = ("nodes", "gpus")
    scratch_variable = "SLURM_TMPDIR"
    folder_variable = "SLURM_SUBMIT_DIR"
    index_variable = "SLURM_ARRAY_TASK_ID"
    after = "afterok:ID"
    dependency_option = "dependency"
    dependency_pattern = re.compile(r"--dep[a-z]*=?|-d")
    lookups = (
        ("scontrol", "show", "job"),
        ("squeue", "--noheader", "--all", "--states=all", "--format=%A %F", "--jobs"),
    )
    job_pattern = r"^\s*(?:\d+\s+)?{}\b|\bJobId={}\b"
    name_lookup = ("squeue", "--me", "--format=%A", "--name")
    name_header = "JOBID"
    no_job = re.compile("invalid job id", re.IGNORECASE)
    no_cluster = re.compile("could not establish a configuration source", re.IGNORECASE)

    def named(self, word: str, rest: list[str]) -> list[tuple[str, str | None, str]]:
        """See `SubmitCommand`. A long name, or the beginning of one; else letters, the last perhaps with its value."""
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = "ntasks-per-node" if name == "tasks-per-node" else name
            near = [each for each in OPTIONS if each.startswith(name)]
            name = near[0] if name not in OPTIONS and len(near) == 1 else name
            if name == "tres-per-task" and (equals or rest):
                value = value if equals else rest.pop(0)
                return _of_each_task(value, word if equals else f"{word} {value}")
            return [(name, value if equals else None, word)]
        found: list[tuple[str, str | None, str]] = []
        for at, letter in enumerate(word[1:], 2):
            if letter not in SHORT:
                return [*found, (f"-{letter}", "", word)]
            name, value = SHORT[letter], word[at:]
            if OPTIONS[name].value and value:
                return [*found, (name, value, f"-{letter} {value}")]
            found.append((name, None, f"-{letter}"))
        return found

    def split_line(self, words: Sequence[str]) -> tuple[list[WrittenOption], list[str]]:
        """With those of all components of a heterogeneous job, which have `:` between them."""
        found, rest = self.split(words, "")
        while rest[:1] == [":"]:
            more, rest = self.split(rest[1:], "")
            found += more
        return found, rest

    def sizes(
        self, last: Mapping[str, WrittenOption], written: Sequence[WrittenOption], ignored: list[IgnoredOption]
    ) -> tuple[int | None, int | None]:
        """See `SubmitCommand`. The later of two counts."""
        nodes = _nodes(last["nodes"], ignored) if "nodes" in last else None
        each: int | None = None
        of: WrittenOption | None = None
        for name in ("gres", "gpus-per-node"):
            if name in last and (number := _gpus(last[name], ignored)) is not None:
                each, of = number, last[name]
        total = _gpus(last["gpus"], ignored) if "gpus" in last else None
        if total is None and each is None and "ntasks-per-gpu" in last and "ntasks" in last:
            of = last["ntasks-per-gpu"]
            total = -(-count_of(last["ntasks"]) // count_of(of))
        elif total is None and each is None and "gpus-per-task" in last:
            of = last["gpus-per-task"]
            total = (_gpus(of, ignored) or 0) * _ranks(last, nodes or 1)
        elif total is not None:
            if each and nodes is None:
                nodes = max(1, total // each)
            of = last["gpus"]
        if total is not None and of is not None:
            spread = on_each(of, total, nodes or 1)
            if each is not None and each != spread:
                raise of.bad(f"with {each} on each of {nodes or 1} nodes that does not agree")
            each = spread
        if "constraint" in last:
            wish = last["constraint"]
            ignored.append(wish.without("", Reason.NODES, f"feature:{wish.value}"))
        if "exclude" in last:
            ignored.append(last["exclude"].without("", Reason.NODES, f"without:{last['exclude'].value}"))
        if "signal" in last and _signal(last["signal"]) is None:
            ignored.append(last["signal"].without("", Reason.SIGNAL))
        return nodes, each

    def job_of(self, words: Sequence[str], around: Mapping[str, str], where: str) -> BatchScript:
        """See `SubmitCommand`."""
        odd = [name for name in around if name.startswith("SBATCH_") and not _HARMLESS.fullmatch(name)]
        if odd:
            raise NotForHpcdl(f"{odd[0]} is set")
        written, rest = self.split(words, where)
        if ":" in rest:
            raise NotForHpcdl("hpcdl has no heterogeneous jobs")
        wrapped = self.options_of(written).wrapped
        if wrapped is not None:
            if rest:
                raise NotForHpcdl("--wrap and a script")
            content = f"#!/bin/sh\n{wrapped}\n".encode("utf-8", "surrogateescape")
            return self.read("wrap", content, (), tuple(written))
        content = read_file(rest[0]) if rest else read_stdin()
        if not content.startswith(b"#!"):
            raise NotForHpcdl("it is no script")
        return self.read(rest[0] if rest else self.name, content, tuple(rest[1:]), tuple(written))

    def options_of(self, written: Sequence[WrittenOption]) -> BatchOptions:
        """See `SubmitCommand`."""
        last = {each.name: each for each in written}
        asked = super().options_of(written)
        found = [(name, last[option].value) for option, name in _VARIABLES.items() if option in last]
        found += [(name, str(_mebibytes(last[option]))) for option, name in _MEMORY.items() if option in last]
        per_task = ",".join(f"{name}={last[option].value}" for option, name in _PER_TASK.items() if option in last)
        found += [("SLURM_TRES_PER_TASK", _with_kind(per_task))] if per_task else []
        if asked.tasks is None and asked.tasks_per_node is None and asked.gpus:
            asked = replace(asked, tasks_per_node=_tasks_of_gpus(last, asked.gpus))
        cpus = self._cpus(last, asked)
        memory = self._memory(last, asked, cpus)
        return replace(asked, set=tuple(found), cpus=cpus, memory_mib=memory or None)

    def _cpus(self, last: Mapping[str, WrittenOption], asked: BatchOptions) -> int | None:
        """Processors on each node; None where it does not say how many."""
        if "cpus-per-task" in last:
            each = count_of(last["cpus-per-task"])
            return each * (asked.tasks_per_node or -(-(asked.tasks or 1) // (asked.nodes or 1)))
        return count_of(last["cpus-per-gpu"]) * (asked.gpus or 1) if "cpus-per-gpu" in last else None

    def _memory(self, last: Mapping[str, WrittenOption], asked: BatchOptions, cpus: int | None) -> int:
        """MiB on each node, 0 where it has no limit."""
        if "mem" in last:
            return _mebibytes(last["mem"])
        if "mem-per-gpu" in last:
            return _mebibytes(last["mem-per-gpu"]) * (asked.gpus or 1)
        tasks = asked.tasks_per_node or -(-(asked.tasks or 1) // (asked.nodes or 1))
        return _mebibytes(last["mem-per-cpu"]) * (cpus or tasks) if "mem-per-cpu" in last else 0

    def array_variables(self, array: IndexArray) -> Mapping[str, object]:
        """See `SubmitCommand`."""
        return {
            "SLURM_ARRAY_TASK_ID": INDEX,
            "SLURM_ARRAY_TASK_COUNT": len(array.indices),
            "SLURM_ARRAY_TASK_MIN": min(array.indices),
            "SLURM_ARRAY_TASK_MAX": max(array.indices),
            "SLURM_ARRAY_TASK_STEP": array.step,
        }

    def dependency(self, words: Sequence[str], around: Mapping[str, str], text: str) -> BatchDependency | None:
        """See `SubmitCommand`."""
        lines, given = self.written_in(text), self.written_on(words)
        value = next((each for each in reversed([*lines, *given]) if each.name == "dependency"), None)
        if value is None and "SBATCH_DEPENDENCY" in around:
            written = around["SBATCH_DEPENDENCY"]
            value = WrittenOption("the environment", "dependency", written, f"SBATCH_DEPENDENCY={written}")
        if value is None:
            return None
        ids, single = dependency_ids(value.value)
        called = [each.value for each in lines if each.name == "job-name"]
        called += [around["SBATCH_JOB_NAME"]] if "SBATCH_JOB_NAME" in around else []
        called += [each.value for each in given if each.name == "job-name"]
        own = called[-1] if called else self._default_name(words)
        return BatchDependency(value.said, ids, (), own if single else None)

    def _default_name(self, words: Sequence[str]) -> str:
        """What Slurm calls a job that nobody named."""
        try:
            written, rest = self.split_line(words)
        except BadLine:
            return ""
        if any(each.name == "wrap" for each in written):
            return "wrap"
        return os.path.basename(rest[0]) if rest else "sbatch"

    def node_features(self) -> Mapping[str, Set[str]]:
        """See `SubmitCommand`."""
        from hpcdl.batch.command import run
        from hpcdl.slurm.nodes import looks_of, shown_argv

        try:
            return {name: features for name, (features, _) in looks_of(run(shown_argv(), ANSWER_S).out).items()}
        except BatchError:
            return {}

    def mpi_default(self) -> str:
        """See `SubmitCommand`."""
        from hpcdl.batch.command import run
        from hpcdl.slurm.cluster import config_argv, parse_config

        try:
            said = os.environ.get("SLURM_MPI_TYPE") or parse_config(run(config_argv(), ANSWER_S).out)["MpiDefault"]
        except (BatchError, KeyError):
            return ""
        return "" if said == "none" else said

    def answer(self, number: int, options: BatchOptions) -> str:
        """See `SubmitCommand`."""
        return str(number) if options.brief else f"Submitted batch job {number}"


SBATCH = Sbatch()


def dependency_ids(value: str) -> tuple[tuple[int, ...], bool]:
    """The ids in a value of --dependency, whatever it wants of those jobs; and whether it has singleton."""
    ids: list[int] = []
    single = False
    for part in re.split(r"[,?]", value):
        kind, colon, rest = part.strip().partition(":")
        single = single or kind.strip().lower() == "singleton"
        for each in (rest if colon else kind).split(":"):  # without a kind: how it was written long ago
            if match := re.match(r"\s*\+?(\d+)", each, re.ASCII):
                ids.append(job_number(match[1]))
    return tuple(dict.fromkeys(ids)), single


def _of_each_task(value: str, said: str) -> list[tuple[str, str | None, str]]:
    """What `cpu:4,gres/gpu:a100:1` of --tres-per-task is as options of their own; itself, where it names more."""
    found: list[tuple[str, str | None, str]] = []
    for part in value.split(","):
        kind, _, number = part.strip().replace("=", ":").partition(":")
        found.append((_OF_EACH_TASK.get(kind, "tres-per-task"), number, said))
    return found


_OF_EACH_TASK = {"cpu": "cpus-per-task", "gres/gpu": "gpus-per-task"}


def _ranks(last: Mapping[str, WrittenOption], nodes: int) -> int:
    if "ntasks" in last:
        return last["ntasks"].whole(last["ntasks"].value, "a number of ranks", 1)
    if "ntasks-per-node" in last:
        return nodes * last["ntasks-per-node"].whole(last["ntasks-per-node"].value, "a number of ranks", 1)
    return nodes


def _tasks_of_gpus(last: Mapping[str, WrittenOption], gpus: int) -> int | None:
    """On each node, where only its GPUs say how many; None where they do not."""
    if "ntasks-per-gpu" in last:
        return gpus * count_of(last["ntasks-per-gpu"])
    each = _gpus(last["gpus-per-task"], []) if "gpus-per-task" in last else None
    return max(1, gpus // each) if each else None


def _nodes(given: WrittenOption, ignored: list[IgnoredOption]) -> int:
    low, dash, high = given.value.partition("-")
    number = given.whole(low, "a number of nodes", 1)
    if dash and given.whole(high, "a number of nodes", number) > number:
        why = f"the script was written for a fixed number: it gets {low} (--nodes {low}:{high} makes it elastic)"
        ignored.append(IgnoredOption(given.where, f"the maximum of {given.said}", why))
    return number


def _gpus(given: WrittenOption, ignored: list[IgnoredOption]) -> int | None:
    """GPUs, of `[gpu:][type:]N`; None where a gres names none."""
    found: list[int] = []
    for part in given.value.split(","):
        text = re.sub(r"\(.*?\)$", "", part.strip())
        if given.name == "gres":
            kind, _, text = text.partition(":")
            if kind != "gpu":
                if kind == "gpumem":
                    ignored.append(given.without(part.strip(), Reason.GPUS, f"gpu:{text}"))
                elif kind not in ("none", "NONE"):
                    ignored.append(given.without(kind, Reason.GPUS_ONLY))
                continue
        model, _, number = text.rpartition(":")
        if not number or not number[0].isdigit():
            model, number = text, "1"
        if model:
            ignored.append(given.without(f"the type {model}", Reason.GPUS, f"gpu:{model}"))
        found.append(given.whole(number, "a number of GPUs"))
    if len(found) > 1:
        raise given.bad("GPUs of several types in one job: ask for one number")
    return found[0] if found else None
