"""sbatch's options, in a script's #SBATCH lines or on its command line, as what hpcdl makes of them."""

import re
from collections.abc import Sequence

from hpcdl.cli import batchlines
from hpcdl.cli.batchlines import (
    AGAIN,
    HOST,
    LOGS,
    MAIL,
    NOT,
    TIME,
    WHERE,
    Asked,
    BadLine,
    Exports,
    Given,
    Ignored,
    Option,
    indices_of,
    left_out,
    on_each,
    several_nodes,
    whole,
)

MARK = "#SBATCH"

OPTIONS = {
    **dict.fromkeys(
        ("gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "job-name", "dependency", "array", "chdir"),
        Option(),
    ),
    **dict.fromkeys(("export", "wrap"), Option()),
    "parsable": Option(value=False),
    **dict.fromkeys(("ntasks", "ntasks-per-node"), Option(why="the script starts its ranks itself")),
    **dict.fromkeys(("time", "time-min"), Option(why=TIME)),
    **dict.fromkeys(("output", "error", "open-mode"), Option(why=LOGS)),
    **dict.fromkeys(
        ("mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-task", "cpus-per-gpu", "tmp", "mincpus", "threads-per-core",
         "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "sockets-per-node", "cores-per-socket", "hint",
         "extra-node-info", "distribution", "core-spec", "thread-spec", "mem-bind", "gpu-bind", "gres-flags"),
        Option(why=HOST),
    ),
    **dict.fromkeys(("partition", "account", "qos", "priority", "wckey", "switches"), Option(why=WHERE)),
    **dict.fromkeys(("exclusive", "nice"), Option(value=False, why=WHERE)),
    **dict.fromkeys(("oversubscribe", "overcommit", "contiguous", "spread-job", "use-min-nodes"),
                    Option(value=False, why=WHERE)),
    **dict.fromkeys(("mail-type", "mail-user"), Option(why=MAIL)),
    **dict.fromkeys(("requeue", "no-requeue"), Option(value=False, why=AGAIN)),
    "kill-on-invalid-dep": Option(why="hpcdl cancels a job whose dependency can never be DONE"),
    "no-kill": Option(value=False, why=AGAIN),
    **dict.fromkeys(("comment", "profile", "acctg-freq", "gpu-freq", "cpu-freq", "mcs-label", "power"),
                    Option(why=NOT)),
    **dict.fromkeys(("verbose", "quiet", "ignore-pbs"), Option(value=False, why=NOT)),
    "propagate": Option(value=False, why=NOT),
    "get-user-env": Option(value=False, why="it gets the variables of this shell"),
    "signal": Option(why="hpcdl asks it to checkpoint as --signal PRESET and --grace say", doubt=True),
    **dict.fromkeys(("constraint", "nodelist", "exclude", "reservation", "licenses", "clusters", "nodefile"),
                    Option(why="hpcdl chooses among the nodes that it has", doubt=True)),
    **dict.fromkeys(("begin", "deadline", "delay-boot"), Option(why="hpcdl starts it when there are GPUs", doubt=True)),
    "hold": Option(value=False, why="hpcdl suspend holds a job", doubt=True),
    "wait": Option(value=False, why="hpcdl wait waits", doubt=True),
    "input": Option(why="a job of hpcdl has no standard input", doubt=True),
    **dict.fromkeys(("gpus-per-socket", "export-file", "bb", "bbf", "container", "burst-buffer", "uid", "gid",
                     "cluster-constraint"), Option(why=NOT, doubt=True)),
    **dict.fromkeys(("test-only", "help", "usage", "version", "reboot"), Option(value=False, why=NOT, doubt=True)),
}  # fmt: skip
"""By their long names."""

SHORT = {
    "G": "gpus", "N": "nodes", "J": "job-name", "d": "dependency", "a": "array", "D": "chdir", "n": "ntasks",
    "t": "time", "o": "output", "e": "error", "c": "cpus-per-task", "p": "partition", "A": "account", "q": "qos",
    "s": "oversubscribe", "O": "overcommit", "m": "distribution", "B": "extra-node-info", "S": "core-spec",
    "v": "verbose", "Q": "quiet", "k": "no-kill", "C": "constraint", "w": "nodelist", "x": "exclude",
    "L": "licenses", "M": "clusters", "F": "nodefile", "b": "begin", "H": "hold", "W": "wait", "i": "input",
    "h": "help", "V": "version",
}  # fmt: skip


def given_in(text: str, file: str) -> list[Given]:
    """The options of a script's #SBATCH lines. Raises BadLine."""
    return batchlines.given_in(text, file, MARK, split_options, everywhere=False)


def split_options(words: Sequence[str], where: str) -> tuple[list[Given], list[str]]:
    """Options, and what follows them: the script and its arguments. Raises BadLine."""
    found: list[Given] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        found += _long(word, rest, where) if word.startswith("--") else _short(word, rest, where)
    return found, rest


def _long(word: str, rest: list[str], where: str) -> list[Given]:
    name, equals, value = word[2:].partition("=")
    near = [each for each in OPTIONS if each.startswith(name)]
    name = name if name in OPTIONS else near[0] if len(near) == 1 else name
    option = OPTIONS.get(name, Option(value=False))
    said = word
    if option.value and not equals:
        if not rest:
            raise BadLine(f"{where}: {word}: its value is missing")
        value = rest.pop(0)
        said = f"{word} {value}"
    return [Given(where, name, value, said)]


def _short(word: str, rest: list[str], where: str) -> list[Given]:
    found: list[Given] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = SHORT.get(letter)
        if name is None:
            return [*found, Given(where, f"-{letter}", "", word)]
        if not OPTIONS[name].value:
            found.append(Given(where, name, "", f"-{letter}"))
            continue
        if not letters and not rest:
            raise BadLine(f"{where}: {word}: its value is missing")
        value = letters or rest.pop(0)
        found.append(Given(where, name, value, f"-{letter} {value}"))
        letters = ""
    return found


def asked_of(given: Sequence[Given]) -> Asked:
    """What these options ask for; the later of two counts. Raises BadLine."""
    last = {each.name: each for each in given}
    ignored = left_out(given, OPTIONS)
    nodes, gpus = _sizes(last, ignored)
    array = last.get("array")
    chdir, name, wrap = last.get("chdir"), last.get("job-name"), last.get("wrap")
    return Asked(
        gpus=gpus,
        nodes=nodes,
        name=None if name is None else name.value,
        after=_after(last["dependency"]) if "dependency" in last else None,
        array=None if array is None else indices_of(array, array.value),
        cwd=None if chdir is None else chdir.value,
        exports=_exports(last["export"]) if "export" in last else None,
        brief="parsable" in last,
        wrapped=None if wrap is None else wrap.value,
        ignored=tuple(ignored),
    )


def _sizes(last: dict[str, Given], ignored: list[Ignored]) -> tuple[int | None, int | None]:
    nodes = _nodes(last["nodes"], ignored) if "nodes" in last else None
    each: int | None = None
    of: Given | None = None
    for name in ("gres", "gpus-per-node"):
        if name in last and (number := _gpus(last[name], ignored)) is not None:
            each, of = number, last[name]
    total = _gpus(last["gpus"], ignored) if "gpus" in last else None
    if total is None and each is None and "gpus-per-task" in last:
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
    ignored += several_nodes(nodes or 1, [last[name] for name in ("gpus", "nodes") if name in last])
    return nodes, each


def _ranks(last: dict[str, Given], nodes: int) -> int:
    if "ntasks" in last:
        return whole(last["ntasks"], last["ntasks"].value, "a number of ranks", 1)
    if "ntasks-per-node" in last:
        return nodes * whole(last["ntasks-per-node"], last["ntasks-per-node"].value, "a number of ranks", 1)
    return nodes


def _nodes(given: Given, ignored: list[Ignored]) -> int:
    low, dash, high = given.value.partition("-")
    number = whole(given, low, "a number of nodes", 1)
    if dash and whole(given, high, "a number of nodes", number) > number:
        why = f"the script was written for a fixed number: it gets {low} (--nodes {low}:{high} makes it elastic)"
        ignored.append(Ignored(given.where, f"the maximum of {given.said}", why))
    return number


def _gpus(given: Given, ignored: list[Ignored]) -> int | None:
    """GPUs, of `[gpu:][type:]N`; None where a gres names none."""
    found: list[int] = []
    for part in given.value.split(","):
        text = re.sub(r"\(.*?\)$", "", part.strip())
        if given.name == "gres":
            kind, _, text = text.partition(":")
            if kind != "gpu":
                if kind not in ("none", "NONE"):
                    ignored.append(Ignored(given.where, f"{kind} of {given.said}", "hpcdl shares out GPUs only", True))
                continue
        model, _, number = text.rpartition(":")
        if not number or not number[0].isdigit():
            model, number = text, "1"
        if model:
            why = "hpcdl chooses among the GPUs that it has"
            ignored.append(Ignored(given.where, f"the type {model} of {given.said}", why, doubt=True))
        found.append(whole(given, number, "a number of GPUs"))
    if len(found) > 1:
        raise given.bad("GPUs of several types in one job: ask for one number")
    return found[0] if found else None


def _after(given: Given) -> tuple[int, ...]:
    found: list[int] = []
    for part in given.value.split(","):
        kind, *ids = part.strip().split(":")
        if kind != "afterok" or not ids:
            raise given.bad(f"{part!r}: a job of hpcdl waits for others to be DONE: afterok:ID[:ID...], or --after ID")
        found += [whole(given, each, "the id of a job of hpcdl", 1) for each in ids]
    return tuple(dict.fromkeys(found))


def _exports(given: Given) -> Exports:
    parts = [part for part in given.value.split(",") if part]
    every = "ALL" in parts
    named = tuple(part for part in parts if part not in ("ALL", "NONE", "NIL"))
    if any(part.startswith("=") for part in named):
        raise given.bad("a variable has no name: write ALL, NONE, or NAME=VALUE with commas between")
    return Exports(every, named)
