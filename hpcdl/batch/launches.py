"""What starts processes in a batch script, by its text: srun, jsrun, mpirun and their kind, and on how many GPUs. Pure.

On its first node a script of hpcdl's finds srun and jsrun that start tasks on all of the job's nodes (agent/steps).
What they cannot do, and what reaches other nodes in another way, is in doubt: the wrappers leave that to the batch
system.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcdl.batch.options import IgnoredOption
from hpcdl.core.rules.launchers import ACROSS

_BEFORE = r"^|[;&|(`{{]|\$\(|\b(?:do|then|else|exec|time|if|!)\s|\b(?:timeout|nohup|numactl)\s[^;&|\n]*?\s"
_COMMAND = rf"(?:{_BEFORE})[^\S\n]*(?:\w+=\S*[^\S\n]+)*(?:[\w./$-]*/)?({{}})(?![\w-])"
TASKS = re.compile(r"(?<![\w./-])(srun|jsrun)(?![\w.-])")
_OTHERS = re.compile(
    _COMMAND.format("blaunch|lsrun|lsgrun|aprun|ibrun|lrun|salloc|flux|prun|ccc_mprun|mpprun"), re.MULTILINE
)
_BY_PATH = re.compile(r"(?<![\w./-])((?:\$\{?\w+\}?)?(?:/[\w.-]+)*/(?:srun|jsrun))(?![\w./-])")
"""Those of the batch system: in a job hpcdl's own are found by their names."""
_COPIES = re.compile(_COMMAND.format("sbcast"), re.MULTILINE)
_ASKS_OF_ITSELF = re.compile(
    r"(?:\$\(|`)[^`)\n]{0,200}?\b((?:scontrol(?:\s+-\S+)*\s+show\s+job|squeue|sacct|bjobs|bhist)\b)"
    r"[^`)\n]{0,200}?\$\{?(?:SLURM_(?:ARRAY_)?JOB_?ID|LSB_JOBID)\b"
)
"""Where the script uses the answer."""
_FIXED_RANK = re.compile(r"--(?:machine|node)[-_]rank[= ][\"']?\d+\b")
_ACROSS = re.compile(_COMMAND.format("mpirun|mpiexec|horovodrun|deepspeed|pdsh|clush|ssh|parallel-ssh"), re.MULTILINE)
_CANNOT = re.compile(
    r"(?<![\w-])(?:srun|jsrun)\b[^\n;&|]*?\s(--pty|--multi-prog|--container[\w-]*|--environment|--uenv|--het-group"
    r"|--pack-group|--bcast|--x11|--erf_input|-U|:)(?=[\s=]|$)"
)
_VISIBLE = re.compile(
    r"(?<![\w-])(?P<name>CUDA_VISIBLE_DEVICES=|setenv\s+CUDA_VISIBLE_DEVICES\s+)(?P<quote>[\"']?)(?:(?P<numbers>\d[\d,]*)"
    r"|\$(?!\{?(?:\w+_VISIBLE_DEVICES|HPCDL_))(?:\{[^}\n]*\}|\([^)\n]*\)|\w+))(?P<whole>(?P=quote)(?![^\s;&|)\"'`]))?"
)
"""GPUs that a script chooses by their numbers, written or in a variable; `whole`: that is all of the value."""
_NUMBERED = re.compile(
    r"\b(?:os\.)?environ\[[\"']CUDA_VISIBLE_DEVICES[\"']\]\s*=\s*[\"']\d[\d,]*[\"']"
    r"|\baccelerate\s[^\n;&|]*?--gpu[-_]ids[= ]\s*[\"']?\d[\d,]*"
)
"""The same in Python, and by an option of a launcher."""
_DEEPSPEED = re.compile(_COMMAND.format("deepspeed") + r"([^\n;&|]*)", re.MULTILINE)
_BY_COUNT = re.compile(r"\s--(?:num_gpus|include|exclude)\b")
OWN_GPUS = "$HPCDL_GPUS"
BY_NUMBER = "those may be another job's: hpcdl sets CUDA_VISIBLE_DEVICES, leave it as it is"
_NUMBER = r"[= ]\s*(?:gpu:)?(?:[A-Za-z][\w-]*:)?(\d{1,9})\b"


_ASSIGNED = re.compile(
    r"""^[ \t]*(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?(\w+)(\+?)="""
    r"""("[^"\n]*"|'[^'\n]*'|\([^()]*\)|[^\s;&|]*)""",
    re.MULTILINE,
)
_OF_CSH = re.compile(r"^([ \t]*)(?:setenv\s+(\w+)\s+|set\s+(\w+)\s*=\s*)", re.MULTILINE)
_VARIABLE = re.compile(r"\"\$\{(\w+)\[@\]\}\"|\$(?:\{(\w+)(?:\[[@*]\]|:?[-=]([^{}\n]*))?\}|(\w+))")
_VALUE, _FILLED = 4096, 1 << 20
"""Characters of a variable's value, and of a script with values in it."""
_WITHIN = 3
"""Variables within each other that are looked into."""


def filled(code: str, folder: str) -> str:
    """The code with the variables that it sets to plain text in place of their names; every line keeps its number.
    `folder`: where the job was submitted."""
    values = {"SLURM_SUBMIT_DIR": folder, "LS_SUBCWD": folder, "PWD": folder}

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[4]
        return values.get(name, match[0]) if match[3] is None else values.get(name) or match[3]

    code = _OF_CSH.sub(lambda match: f"{match[1]}{match[2] or match[3]}=", code)
    for name, more, written in _ASSIGNED.findall(code):
        before = values.setdefault(name, "") if more or re.search(rf"\$\{{?{name}\b", written) else ""
        value = " ".join(_VARIABLE.sub(value_of, written).strip("\"'()").split())
        values[name] = (f"{before} {value}" if more else value or values.get(name, ""))[:_VALUE]
    for _ in range(_WITHIN):
        code = _VARIABLE.sub(value_of, code)
        if len(code) > _FILLED:
            return code[:_FILLED]
    return code


def code_of(text: str) -> str:
    """The script without comments, its continued lines made one; every line keeps its number."""
    lines: list[str] = []
    waiting = 0
    begun = ""
    for line in text.split("\n"):
        plain = "" if line.lstrip().startswith("#") else re.sub(r"\s#.*$", "", line)
        if plain.endswith("\\"):
            begun += plain[:-1] + " "
            waiting += 1
            continue
        lines.append(begun + plain)
        lines += [""] * waiting
        begun, waiting = "", 0
    return "\n".join([*lines, begun])


def starts_tasks(text: str) -> bool:
    """Whether the script starts tasks by srun or jsrun, in itself or in a variable."""
    return TASKS.search(code_of(text)) is not None


def calls_jsrun(text: str) -> bool:
    """Whether the script is for a system of jsrun's."""
    return any(match[1] == "jsrun" for match in TASKS.finditer(code_of(text)))


def with_own_gpus(text: str, file: str, gpus: int | None) -> tuple[str, list[IgnoredOption]]:
    """The text of a shell's script where numbers that can only be all GPUs of the job name those; and what was changed.
    A batch system hides all others, so that its job of one GPU has number 0."""
    steps = starts_tasks(text)
    found: list[IgnoredOption] = []
    lines = text.split("\n")

    def put(match: re.Match[str]) -> str:
        numbers, line = match["numbers"], match.string
        every = gpus == 1 if numbers is None else numbers == ",".join(map(str, range(gpus or 0)))
        if not every or match["whole"] is None or (numbers and steps and not TASKS.search(line)):
            return match[0]
        why = "the job has no others, and hpcdl knows which these are"
        found.append(IgnoredOption(f"{file}:{number}", match[0], why, how="stands for the GPUs of the job"))
        return match["name"] + OWN_GPUS

    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("#"):
            lines[number - 1] = _VISIBLE.sub(put, line)
    return "\n".join(lines), found


def step_options(words: Sequence[str]) -> Sequence[str]:
    """The options of a step with their values, without the command behind them."""
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        if not word.startswith("-") and not (before.startswith("-") and "=" not in before):
            return words[:place]
    return words


def gpus_by_number(
    code: str, file: str, gpus: int | None, *, steps: bool = False, alone: bool = True
) -> Iterator[IgnoredOption]:
    """What in a script of a shell's or of Python's takes GPUs of the node by their numbers, or cannot do without.

    `steps`: it has srun or jsrun, which take such numbers for places among the job's GPUs. `alone`: it is on one node.
    """

    def at(place: int, what: str, why: str = BY_NUMBER, how: str = "takes GPUs by their numbers") -> IgnoredOption:
        where, needs = f"{file}:{code.count(chr(10), 0, place) + 1}", f"select:ngpus=={gpus or 0}"
        return IgnoredOption(where, what, why, doubt=True, how=how, needs=needs)

    for match in _VISIBLE.finditer(code):
        line = code[code.rfind("\n", 0, match.start()) + 1 : match.start()]
        if match["numbers"] and steps and not TASKS.search(line):
            continue
        end = code.find(match["quote"], match.end()) if match["quote"] and match["whole"] is None else -1
        yield at(match.start(), code[match.start() : max(end + 1, match.end())])
    for match in _NUMBERED.finditer(code):
        yield at(match.start(), match[0])
    for match in _DEEPSPEED.finditer(code) if alone else ():
        if _BY_COUNT.search(match[2]):
            why = "it counts them from the node's first, and those may be another job's: torchrun takes the job's own"
            yield at(match.start(1), match[1], why)
        else:
            why = "hpcdl names GPUs by their UUIDs, and it reads numbers: start the script by torchrun"
            yield replace(at(match.start(1), match[1], why, "fails"), needs="")


def doubts(text: str, file: str, nodes: int, gpus: int | None, said: str) -> Iterator[IgnoredOption]:
    """What in a script would not do inside a job what it does in a batch job. `said`: the option that says `nodes`."""
    code = code_of(text)

    def at(place: int, what: str, why: str, how: str, needs: str = "") -> IgnoredOption:
        return IgnoredOption(f"{file}:{code.count(chr(10), 0, place) + 1}", what, why, doubt=True, how=how, needs=needs)

    steps = starts_tasks(text)
    yield from gpus_by_number(code, file, gpus, steps=steps, alone=nodes < 2)
    with_values = filled(code, "")
    for match in _CANNOT.finditer(with_values):
        before = [word for word in match[0][: -len(match[1])].split()[1:] if not word.startswith("$")]
        if match[1] != ":" and step_options(before) != before:
            continue  # of the program that it starts
        lines = with_values.count("\n", 0, match.start(1))
        what = "a part of a heterogeneous job" if match[1] == ":" else match[1]
        begin = sum(len(each) + 1 for each in code.split("\n")[:lines])
        yield at(begin, f"{what} of srun or jsrun", "hpcdl cannot do that inside a job", "is not carried out")
    for match in _COPIES.finditer(code):
        why = "hpcdl copies no files to nodes: srun --ntasks-per-node=1 cp FILE DESTINATION"
        yield at(match.start(1), match[1], why, "is not carried out")
    for match in _ASKS_OF_ITSELF.finditer(code):
        why = "hpcdl has no such answer, and the batch system does not know the job"
        yield at(match.start(1), f"{match[1]} of its own job", why, "gets no answer")
    for match in _outside(code):
        why = "it would run outside of this job: start tasks by srun or jsrun, or python itself"
        yield at(match.start(1), match[1], why, "gets nothing from it")
    if nodes < 2:
        return
    across = list(_ACROSS.finditer(code))
    for match in across:
        yield at(match.start(1), match[1], "hpcdl has no such way to this job's other nodes", "gets nothing from it")
    for match in () if steps or across else _FIXED_RANK.finditer(code):
        why = "a batch system starts the script on the first only: say $HPCDL_NODE_RANK there, or start it by srun"
        yield at(match.start(), match[0], why, "would be the rank of each node")
    if not (steps or across or _outside(code) or ACROSS.search(code)):
        why = "with HPCDL_NODES and HPCDL_NODE_RANK, where a batch system starts it on the first only"
        where, _, what = said.rpartition(": ")
        yield IgnoredOption(where, what, why, doubt=True, how="starts the script on each node")


def stays(text: str) -> bool:
    """Whether the script starts nothing on other nodes than its own, whatever nodes there are."""
    code = code_of(text)
    return not (TASKS.search(code) or _ACROSS.search(code) or _outside(code))


def _outside(code: str) -> list[re.Match[str]]:
    """What starts processes by the batch system itself."""
    return [*_OTHERS.finditer(code), *_BY_PATH.finditer(code)]


def gpus_on_each(text: str, nodes: int, tasks: int) -> int | None:
    """GPUs on each node that its srun or jsrun asks for, where the job itself asks for none; None: it names no number.

    The largest of several. `tasks`: of the job, where the command says none.
    """
    found = [
        number
        for line in code_of(text).split("\n")
        for match in TASKS.finditer(line)
        if (number := (_of_srun if match[1] == "srun" else _of_jsrun)(line[match.end() :], nodes, tasks))
    ]
    return max(found, default=None)


def _of_srun(line: str, nodes: int, tasks: int) -> int | None:
    if match := re.search(r"--(?:gres|gpus-per-node)" + _NUMBER, line):
        return int(match[1])
    if match := re.search(r"(?:--gpus|\s-G)" + _NUMBER, line):
        return -(-int(match[1]) // nodes)
    if match := re.search(r"--gpus-per-task" + _NUMBER, line):
        if each := re.search(r"--n?tasks-per-node[= ]\s*(\d{1,9})\b", line):
            return int(match[1]) * int(each[1])
        own = re.search(r"(?:--ntasks|\s-n)[= ]?\s*(\d{1,9})\b", line)
        return -(-int(match[1]) * (int(own[1]) if own else tasks) // nodes)
    return None


_COUNT = re.compile("[0-9]{1,9}")


def _of_jsrun(line: str, nodes: int, tasks: int) -> int | None:
    values: dict[str, str] = {}
    long = {"nrs": "n", "tasks_per_rs": "a", "gpu_per_rs": "g", "rs_per_host": "r"}
    for match in re.finditer(r"\s(?:-([nagr])\s*|--(nrs|tasks_per_rs|gpu_per_rs|rs_per_host)[= ]\s*)(\S+)", line):
        values.setdefault(match[1] or long[match[2]], match[3])
    gpus = values.get("g", "0")
    if not _COUNT.fullmatch(gpus) or gpus == "0":
        return None
    if _COUNT.fullmatch(values.get("r", "")):
        return int(gpus) * int(values["r"])
    if _COUNT.fullmatch(values.get("n", "")):
        return -(-int(gpus) * int(values["n"]) // nodes)
    return int(gpus) if values.get("n") == "ALL_HOSTS" else None
