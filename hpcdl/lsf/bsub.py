"""bsub as hpcdl reads it: its options in #BSUB lines and on its command line, and the variables of its jobs.

What is the same for every such command is in `hpcdl.batch.script`, the table's reasons in `hpcdl.batch.options`.
Nothing here runs bsub: pilots are submitted by `adapter.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from hpcdl.batch.options import (
    ONE_NODE,
    VALUE,
    BatchOptions,
    IgnoredOption,
    IndexArray,
    NotForHpcdl,
    Reason,
    WrittenOption,
    count_of,
    exports_of,
    indices_of,
    option_table,
)
from hpcdl.batch.script import INDEX, BatchDependency, BatchScript, SubmitCommand, find, job_number, read_stdin
from hpcdl.core.model.dependency import Condition
from hpcdl.lsf.system import SYSTEM

OPTIONS = option_table(
    {
        Reason.READ: "J gpu n nnodes R w cwd env o oo e eo m W",
        Reason.TIME: "We c T",
        Reason.HOST: "M D F S C v p hl smt",
        Reason.WHERE: "q P G sla app sp alloc_flags core_isolation Lp jobgroup g x",
        Reason.MAIL: "N Ne B u",
        Reason.AGAIN: "r rn",
        Reason.NOTHING: "Jd L ul outdir",
        Reason.SIGNAL: "wa wt",
        Reason.NODES: "U ext network",
        Reason.START: "b t ti",
        Reason.HOLD: "H",
        Reason.WAIT: "K",
        Reason.TERMINAL: "I Ip Is IS ISp ISs IX XF tty",
        Reason.INPUT: "i is",
        Reason.LACKS: "a E Ep f k Q stage data datagrp json jsdl pack freq h V",
    },
    flags="x N Ne B r rn ul H K I Ip Is IS ISp ISs IX XF tty h V",
)

_SHELL = re.compile(r"[^A-Za-z0-9_@%+=:,./-]")
"""What bsub's shell would take for more than a letter."""


_ATTACHED = re.compile(r"[nWMcp](?=\d)|[JMPRq](?=.)|[oe](?=.*[./%])|gpu(?=\w+=)")
"""Options whose value follows without a space: `-n4`, `-W1:00`, `-Rselect[ngpus>0]`, `-olog.%J`, `-gpunum=1`."""

_NAME = re.compile(r"(.*?)(?:\[(.*)\](?:%(\d+))?)?", re.DOTALL)


def _name(given: WrittenOption) -> str:
    match = _NAME.fullmatch(given.value)
    return match[1] if match else given.value


def _array(given: WrittenOption) -> IndexArray | None:
    match = _NAME.fullmatch(given.value)
    if match is None or match[2] is None:
        return None
    return indices_of(given, match[2] if match[3] is None else f"{match[2]}%{match[3]}")


def _time(given: WrittenOption) -> float:
    """Seconds, of `[HOURS:]MINUTES[/HOST]`. Raises BadLine."""
    match = re.fullmatch(r"(?:(\d{1,6}):)?(\d{1,6})(?:/.*)?", given.value.strip(), re.ASCII)
    if match is None:
        raise given.bad(f"{given.value!r} is no time: [HOURS:]MINUTES")
    return 3600.0 * int(match[1] or 0) + 60.0 * int(match[2])


_KINDS = {"done": "done", "ended": "ended", "exit": "failed", "started": "started"}
"""Kinds of conditions, by what LSF calls them."""


def _conditions(given: WrittenOption) -> tuple[tuple[Condition, ...], ...]:
    """Groups of which one condition each must be met: `(done(1) || exit(2)) && ended(3)`. Raises BadLine."""
    return tuple(dict.fromkeys(_groups(given, given.value)))


def _groups(given: WrittenOption, text: str) -> Iterator[tuple[Condition, ...]]:
    text = text.strip()
    every, some = _parts(text, "&&"), _parts(text, "||")
    if len(every) > 1 and len(some) > 1:
        raise given.bad("&& and || together need parentheses: (done(1) || done(2)) && done(3)")
    if len(some) > 1:
        groups = [list(_groups(given, part)) for part in some]
        if any(len(group) > 1 for group in groups):
            raise given.bad("a job of hpcdl waits for several conditions, each || of others: && within || is not one")
        yield tuple(dict.fromkeys(each for group in groups for each in group[0]))
    elif len(every) > 1:
        for part in every:
            yield from _groups(given, part)
    elif text.startswith("(") and text.endswith(")"):
        yield from _groups(given, text[1:-1])
    else:
        yield (_condition(given, text),)


def _parts(text: str, operator: str) -> list[str]:
    """What stands between operators that are in no parentheses."""
    found, depth = [""], 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and text.startswith(operator, place):
            found.append("")
        elif not (depth == 0 and place and text.startswith(operator, place - 1)):
            found[-1] += letter
    return found


def _condition(given: WrittenOption, text: str) -> Condition:
    match = re.fullmatch(r"([a-z]+)\s*\(\s*(\d{1,9})\s*\)", text, re.ASCII)
    if match is None or match[1] not in _KINDS or match[2] == "0":
        calls = ", ".join(f"{name}(ID)" for name in _KINDS)
        raise given.bad(f"{text!r}: a job of hpcdl waits by {calls}, with && and ||")
    return Condition(_KINDS[match[1]], int(match[2]))


def _folder(given: WrittenOption) -> str:
    if "%" in given.value:
        raise given.bad(f"{given.value!r}: hpcdl makes no folder for each job")
    return given.value


class Bsub(SubmitCommand):
    """See `SubmitCommand`."""

    system = SYSTEM
    mark = "#BSUB"
    options = OPTIONS
    readers = (
        ("J", "name", _name),
        ("J", "array", _array),
        ("w", "conditions", _conditions),
        ("cwd", "cwd", _folder),
        ("env", "exports", lambda given: exports_of(given, "all", "none")),
        ("n", "tasks", count_of),
        ("W", "time_s", _time),
        ("o", "output", VALUE),
        ("oo", "output", VALUE),
        ("e", "error", VALUE),
        ("eo", "error", VALUE),
        ("o", "append", lambda given: True),
        ("oo", "append", lambda given: False),
    )
    node_options = ("nnodes", "n")
    everywhere = True
    scratch_variable = "LSF_TMPDIR"
    folder_variable = "LS_SUBCWD"
    index_variable = "LSB_JOBINDEX"
    after = "done(ID)"
    dependency_option = "w"
    dependency_pattern = re.compile("-w")
    lookups = (("bjobs", "-w"), ("bhist",))
    job_pattern = r"^\s*(?:\d+\s+)?{}\b|Job <{}(?:\[\d+\])?>,"
    no_job = re.compile(r"job <\S+> is not found|no matching job found", re.IGNORECASE)

    def named(self, word: str, rest: list[str]) -> list[tuple[str, str | None, str]]:
        """See `SubmitCommand`. What nobody knows is taken to have a value where a word that is none follows."""
        name = word[1:]
        if name in OPTIONS:
            return [(name, None, word)]
        if match := _ATTACHED.match(name):
            return [(match[0], name[match.end() :], word)]
        value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        return [(name, value, f"{word} {value}".strip())]

    def sizes(
        self, last: Mapping[str, WrittenOption], written: Sequence[WrittenOption], ignored: list[IgnoredOption]
    ) -> tuple[int | None, int | None]:
        """See `SubmitCommand`. The later of two counts, except of -R."""
        if "m" in last:
            ignored.append(last["m"].without("", Reason.NODES, f"hosts:{last['m'].value}"))
        needs = [each for each in written if each.name == "R"]
        return _nodes(last, needs, ignored), _gpus(last, needs, ignored)

    def job_of(self, words: Sequence[str], around: Mapping[str, str], where: str) -> BatchScript:
        """See `SubmitCommand`."""
        if "LSB_BSUB_PARSE_SCRIPT" in around:
            raise NotForHpcdl("LSB_BSUB_PARSE_SCRIPT is set")
        written, rest = self.split(words, where)
        if not rest:
            return self.read(self.name, read_stdin(), (), tuple(written))
        if any(_SHELL.search(word) for word in rest) or "=" in rest[0]:
            raise NotForHpcdl("its command is a shell's")
        if find(rest[0]) is not None:
            raise NotForHpcdl(
                "whether bsub reads the lines of a script that it is not given on standard input is its own affair"
            )
        asked = self._with_launches(self.options_of(written), written, " ".join(rest), rest[0])
        return BatchScript(self, asked, rest[0], tuple(rest))

    def array_variables(self, array: IndexArray) -> Mapping[str, object]:
        """See `SubmitCommand`."""
        return {"LSB_JOBINDEX": INDEX, "LSB_JOBINDEX_STEP": array.step}

    def dependency(self, words: Sequence[str], around: Mapping[str, str], text: str) -> BatchDependency | None:
        """See `SubmitCommand`."""
        written = [*self.written_in(text), *self.written_on(words)]
        value = next((each for each in reversed(written) if each.name == "w"), None)
        return None if value is None else BatchDependency(value.said, *dependency_jobs(value.value))

    def answer(self, number: int, options: BatchOptions) -> str:
        """See `SubmitCommand`."""
        return f"Job <{number}> is submitted to queue <hpcdl>."


BSUB = Bsub()


def _memory_select(text: str) -> str:
    """The select string that wants `16G`, `10.7G` or `500` (MiB) of each GPU; one that no node has, of other text."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([MGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        return f"gmem {text}"
    return f"gpu_mem>={int(float(match[1]) * {'': 1, 'M': 1, 'G': 1024, 'T': 1 << 20}[match[2].upper()])}"


_CALL = re.compile(r"[a-z_]+\s*\(\s*(\"[^\"]*\"|'[^']*'|[^,()\s][^,()]*?)\s*(?:,[^()]*)?\)", re.IGNORECASE)
_BARE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s&|!()]+")


def dependency_jobs(value: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids and the names of jobs in an expression of -w."""
    words = [match[1] for match in _CALL.finditer(value)]
    words += _BARE.findall(_CALL.sub(" ", value))
    ids: list[int] = []
    names: list[str] = []
    for word in words:
        text = re.sub(r"\[[^\]]*\]$", "", word.strip().strip("\"'").strip())
        if text.isascii() and text.isdigit():
            ids.append(job_number(text))
        elif text:
            names.append(text)
    return tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(names))


def _nodes(
    last: Mapping[str, WrittenOption], needs: Sequence[WrittenOption], ignored: list[IgnoredOption]
) -> int | None:
    """Of -nnodes; else of -n and span[ptile=], as far as they say it."""
    if "nnodes" in last:
        given = last["nnodes"]
        return given.whole(given.value, "a number of nodes", 1)
    spans = [(each, found[1]) for each in needs if (found := re.search(r"span\s*\[\s*(.*?)\s*\]", each.value))]
    if "n" not in last:
        return None
    given = last["n"]
    places = given.whole(given.value.split(",")[0], "a number of processors", 1)
    for need, span in reversed(spans):
        if match := re.fullmatch(r"ptile\s*=\s*(\d{1,9})", span, re.ASCII):
            each = need.whole(match[1], "a number of processors", 1)
            if places % each and places > each:
                raise need.bad(f"{places} processors of {given.said} cannot be spread evenly, {each} on each node")
            return max(1, places // each)
        if re.fullmatch(r"hosts\s*=\s*1", span):
            return 1
    if places > 1:
        why = 'it does not say on how many nodes: 1 (-R "span[ptile=N]" or --nodes says it)'
        ignored.append(IgnoredOption(given.where, given.said, why, doubt=not spans, needs=ONE_NODE))
    return None


def _gpus(
    last: Mapping[str, WrittenOption], needs: Sequence[WrittenOption], ignored: list[IgnoredOption]
) -> int | None:
    """On each node: of -gpu num=, else of rusage[ngpus_physical=]."""
    for need in needs:
        sections = list(_SECTION.finditer(need.value))
        odd = [each[0] for each in sections if not _harmless(each[1], each[2], need, ignored)]
        rest = " ".join(_SECTION.sub("", need.value).strip(" &").split())
        for what, wish in ((" ".join(odd), ""), (rest, f"select:{rest}")):  # `-R a100` is `-R select[a100]`
            if what:
                ignored.append(IgnoredOption(need.where, f'"{what}" of -R', Reason.NODES.text, doubt=True, needs=wish))
    if "gpu" in last:
        return _gpu_string(last["gpu"], ignored)
    for need in reversed(needs):
        if match := re.search(r"ngpus_(?:physical|excl_p|shared)\s*=\s*(\d{1,9})", need.value, re.ASCII):
            return int(match[1])
    return None


_SECTION = re.compile(r"(span|rusage|order|same|affinity|select|cu)\s*\[([^\]]*)\]")
_RUSAGE = re.compile(r"\s*(mem|swp|tmp|scratch|ngpus_\w+|gpu|duration|decay)\s*=\s*[\w.]+(?:/(?:host|job|task))?\s*")


def _harmless(name: str, text: str, need: WrittenOption, ignored: list[IgnoredOption]) -> bool:
    """Whether nothing is lost that a section of -R wants; what a select[] wants is for the nodes to have."""
    if name == "rusage":
        return all(_RUSAGE.fullmatch(each) for each in re.split("[,:]", text) if each.strip())
    if name == "select":
        why, needs = Reason.NODES.text, f"select:{text}"
        ignored.append(IgnoredOption(need.where, f'"select[{text}]" of -R', why, doubt=True, needs=needs))
    return True


def _gpu_string(given: WrittenOption, ignored: list[IgnoredOption]) -> int:
    number = 1
    for part in given.value.split(":"):
        key, _, value = part.strip().partition("=")
        if key == "num":
            digits, slash, per = value.partition("/")
            number = given.whole(digits, "a number of GPUs")
            if slash and per != "host":
                ignored.append(given.without(f"/{per}", Reason.EACH_NODE))
        elif key in ("gmodel", "gmem", "gtile", "nvlink", "glink", "block", "aff"):
            model = {"gmodel": f"gpu:{value}", "gmem": f"select:{_memory_select(value)}"}.get(key, "")
            ignored.append(given.without(part.strip(), Reason.GPUS if model else Reason.LINKS, model))
        elif key not in ("mode", "mps", "j_exclusive", "gpack", "-", "") and (key, value) != ("gvendor", "nvidia"):
            raise given.bad(f"{part!r} is not known: num=N:mode=MODE:...")
    return number
