"""bsub's options, in a script's #BSUB lines or on its command line, as what hpcdl makes of them."""

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
    several_nodes,
    whole,
)

MARK = "#BSUB"

OPTIONS = {
    **dict.fromkeys(("J", "gpu", "n", "nnodes", "R", "w", "cwd", "env"), Option()),
    **dict.fromkeys(("W", "We", "c", "T"), Option(why=TIME)),
    **dict.fromkeys(("o", "oo", "e", "eo", "outdir"), Option(why=LOGS)),
    **dict.fromkeys(("M", "D", "F", "S", "C", "v", "p", "hl", "smt"), Option(why=HOST)),
    **dict.fromkeys(("q", "P", "G", "sla", "app", "sp", "alloc_flags", "core_isolation", "Lp", "jobgroup", "g"),
                    Option(why=WHERE)),
    "x": Option(value=False, why=WHERE),
    **dict.fromkeys(("N", "B"), Option(value=False, why=MAIL)),
    "u": Option(why=MAIL),
    **dict.fromkeys(("r", "rn"), Option(value=False, why=AGAIN)),
    **dict.fromkeys(("Jd", "L"), Option(why=NOT)),
    "ul": Option(value=False, why=NOT),
    **dict.fromkeys(("wa", "wt"), Option(why="hpcdl asks it to checkpoint as --signal PRESET and --grace say",
                                         doubt=True)),
    **dict.fromkeys(("m", "U", "ext", "a", "network"), Option(why="hpcdl chooses among the nodes that it has",
                                                              doubt=True)),
    **dict.fromkeys(("b", "t", "ti"), Option(why="hpcdl starts it when there are GPUs", doubt=True)),
    "H": Option(value=False, why="hpcdl suspend holds a job", doubt=True),
    "K": Option(value=False, why="hpcdl wait waits", doubt=True),
    **dict.fromkeys(("I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "XF", "tty"),
                    Option(value=False, why="a job of hpcdl is not interactive", doubt=True)),
    **dict.fromkeys(("i", "is"), Option(why="a job of hpcdl has no standard input", doubt=True)),
    **dict.fromkeys(("E", "Ep", "f", "k", "Q", "stage", "data", "datagrp", "json", "jsdl", "pack", "freq"),
                    Option(why=NOT, doubt=True)),
    **dict.fromkeys(("h", "V"), Option(value=False, why=NOT, doubt=True)),
}  # fmt: skip


def given_in(text: str, file: str) -> list[Given]:
    """The options of a script's #BSUB lines, wherever they stand. Raises BadLine."""
    return batchlines.given_in(text, file, MARK, split_options, everywhere=True)


def split_options(words: Sequence[str], where: str) -> tuple[list[Given], list[str]]:
    """Options, and what follows them: the command. Raises BadLine."""
    found: list[Given] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word = rest.pop(0)
        name = word[1:]
        option = OPTIONS.get(name)
        if option is None and name[1:].isdigit() and name[0] in OPTIONS:  # -n4
            found.append(Given(where, name[0], name[1:], word))
        elif option is None:
            value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
            found.append(Given(where, name, value, f"{word} {value}".strip()))
        elif not option.value:
            found.append(Given(where, name, "", word))
        elif not rest:
            raise BadLine(f"{where}: {word}: its value is missing")
        else:
            value = rest.pop(0)
            found.append(Given(where, name, value, f"{word} {value}"))
    return found, rest


def asked_of(given: Sequence[Given]) -> Asked:
    """What these options ask for; the later of two counts, except of -R. Raises BadLine."""
    last = {each.name: each for each in given}
    ignored = left_out(given, OPTIONS)
    needs = [each for each in given if each.name == "R"]
    nodes = _nodes(last, needs, ignored)
    name, array = _name(last["J"]) if "J" in last else (None, None)
    return Asked(
        gpus=_gpus(last, needs, ignored),
        nodes=nodes,
        name=name,
        after=_after(last["w"]) if "w" in last else None,
        array=None if array is None else indices_of(last["J"], array),
        cwd=last["cwd"].value if "cwd" in last else None,
        exports=_exports(last["env"]) if "env" in last else None,
        ignored=tuple(ignored),
    )


def _nodes(last: dict[str, Given], needs: Sequence[Given], ignored: list[Ignored]) -> int | None:
    """Of -nnodes; else of -n and span[ptile=], as far as they say it."""
    if "nnodes" in last:
        given = last["nnodes"]
        number = whole(given, given.value, "a number of nodes", 1)
        ignored += several_nodes(number, [given])
        return number
    spans = [(each, found[1]) for each in needs if (found := re.search(r"span\s*\[\s*(.*?)\s*\]", each.value))]
    if "n" not in last:
        return None
    given = last["n"]
    places = whole(given, given.value.split(",")[0], "a number of processors", 1)
    for need, span in reversed(spans):
        if match := re.fullmatch(r"ptile\s*=\s*(\d{1,9})", span, re.ASCII):
            each = whole(need, match[1], "a number of processors", 1)
            if places % each and places > each:
                raise need.bad(f"{places} processors of {given.said} cannot be spread evenly, {each} on each node")
            number = max(1, places // each)
            ignored += several_nodes(number, [given])
            return number
        if re.fullmatch(r"hosts\s*=\s*1", span):
            return 1
    if places > 1:
        why = 'it does not say on how many nodes: 1 (-R "span[ptile=N]" or --nodes says it)'
        ignored.append(Ignored(given.where, given.said, why, doubt=not spans))
    return None


def _gpus(last: dict[str, Given], needs: Sequence[Given], ignored: list[Ignored]) -> int | None:
    """On each node: of -gpu num=, else of rusage[ngpus_physical=]."""
    for need in needs:
        rest = re.sub(r"span\s*\[.*?\]|rusage\s*\[\s*(ngpus_\w+\s*=\s*\d+|mem\s*=\s*\w+)\s*\]", "", need.value).strip()
        if rest:
            why = "hpcdl chooses among the nodes that it has"
            ignored.append(Ignored(need.where, f'"{rest}" of -R', why, doubt=True))
    if "gpu" in last:
        return _gpu_string(last["gpu"], ignored)
    for need in reversed(needs):
        if match := re.search(r"ngpus_(?:physical|excl_p|shared)\s*=\s*(\d{1,9})", need.value, re.ASCII):
            return int(match[1])
    return None


def _gpu_string(given: Given, ignored: list[Ignored]) -> int:
    number = 1
    for part in given.value.split(":"):
        key, _, value = part.strip().partition("=")
        if key == "num":
            digits, slash, per = value.partition("/")
            number = whole(given, digits, "a number of GPUs")
            if slash and per != "host":
                why = "hpcdl counts GPUs on each node"
                ignored.append(Ignored(given.where, f"/{per} of {given.said}", why, doubt=True))
        elif key in ("gmodel", "gmem", "gtile", "nvlink", "block", "aff"):
            why = "hpcdl chooses among the GPUs that it has"
            ignored.append(Ignored(given.where, f"{part} of {given.said}", why, doubt=key in ("gmodel", "gmem")))
        elif key not in ("mode", "mps", "j_exclusive", "-", ""):
            raise given.bad(f"{part!r} is not known: num=N:mode=MODE:...")
    return number


def _name(given: Given) -> tuple[str, str | None]:
    match = re.fullmatch(r"(.*?)(?:\[(.*)\](?:%(\d+))?)?", given.value, re.DOTALL)
    name, array, most = match.groups() if match else (given.value, None, None)
    return name, array if most is None else f"{array}%{most}"


def _after(given: Given) -> tuple[int, ...]:
    found: list[int] = []
    for part in given.value.split("&&"):
        match = re.fullmatch(r"\(?\s*done\s*\(\s*(\d{1,9})\s*\)\s*\)?", part.strip(), re.ASCII)
        if match is None or match[1] == "0":
            raise given.bad(
                f"{part.strip()!r}: a job of hpcdl waits for others to be DONE: done(ID) && done(ID), or --after ID"
            )
        found.append(int(match[1]))
    return tuple(dict.fromkeys(found))


def _exports(given: Given) -> Exports:
    parts = [part.strip() for part in given.value.split(",") if part.strip()]
    every = "all" in parts
    named = tuple(part for part in parts if part not in ("all", "none") and not part.startswith("~"))
    if any(part.startswith("=") for part in named):
        raise given.bad('a variable has no name: write "all", "none", or NAME=VALUE with commas between')
    return Exports(every, named, tuple(part[1:] for part in parts if part.startswith("~")))
