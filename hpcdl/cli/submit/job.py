"""The options of one job as the API takes it: a spec, an array, whether it is held.

Also what this machine shows of what will go wrong where the job runs: a command or folder that is not here. No secret
of the submitting shell goes into the spec.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from hpcdl.batch.system import systems
from hpcdl.cli.params import user_name
from hpcdl.cli.submit.burst import stage_plans
from hpcdl.cli.submit.gate import behind_gate, runs_gate
from hpcdl.cli.submit.lightning import SRUN, as_tasks
from hpcdl.cli.submit.options import AFTER
from hpcdl.core.model.arrays import Array, Steps, check_batch_sweep, check_places, folders_of, indices_text, named
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.job import JobSpec, check_counts
from hpcdl.core.model.notice import program_of
from hpcdl.core.model.units import meant
from hpcdl.core.rules.launchers import SHELLS, check_launcher, shell_script

if TYPE_CHECKING:  # most submits have no batch script
    from hpcdl.batch.options import ExportedVariables

CONTAINER = "hpcdl.trainer.container"

_OF_MEMBERS = ("array", "array_index", "array_most", "sweep")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job, or an array of them, that is to be submitted."""

    spec: JobSpec
    array: Array | None = None
    held: bool = False
    like: int = 0  # the job whose environment it has, under `spec.env`, and whose notifications; 0: none
    own_notify: bool = False  # its notifications are `spec.notify` all the same

    @property
    def size(self) -> int:
        """How many jobs it is."""
        return 1 if self.array is None else self.array.size

    def entry(self) -> dict[str, Any]:
        """The job as `POST /v1/jobs` takes it."""
        body: dict[str, Any] = {key: value for key, value in to_json(self.spec).items() if key not in _OF_MEMBERS}
        if self.array is not None:
            body["array"] = plain(self.array)
        if self.held:
            body["held"] = True
        if self.like:
            body["like"] = self.like
            if not self.own_notify:
                del body["notify"]
        return body

    def doubts(self) -> list[str]:
        """What can be seen here of what may go wrong."""
        spec = self.spec
        if self.like and "PATH" not in dict(spec.env):  # its own is known to the daemon
            spec = replace(spec, env=(*spec.env, ("PATH", os.environ.get("PATH", ""))))
        found = list(doubts(spec, array=self.array is not None))
        return found + list(unheard(spec) if self.own_notify or not self.like else ())


_AS_GIVEN = (
    *("profile", "steps", "retries", "signal", "progress_regex", "progress", "resumes", "weight", "priority", "model"),
    *("notify", "continue_from", "trainer_library", "cpus", "share", "singleton", "kind"),
)
"""Options that are fields of a job as they are."""


def job_request(given: Mapping[str, Any], command: Sequence[str], here: Path) -> JobRequest:
    """The job that these values of submit's options (by the names of its parameters) and this command say.

    `exports` among them: what a batch script wants of the environment, `tasks` how it is run; the command is then the
    script's, with placeholders where it is an array. Raises ValueError and click.UsageError.
    """
    scales = given["profile"] or given["burst_plan"] or given["burst_limit"]
    low, high, counts = given["gpus"] if given["gpus"][0] else (1, None if scales else 1, ())
    name, nodes = given["name"], given["nodes"]
    array = array_of(given["array"], given["sweep"], given["max_parallel"])
    command = tuple(command) if array is None else with_sweeps(command, given["sweep"])
    name = default_name(command) if name is None else name
    command = behind_gate(command) if given["gate"] else command
    means, batch = _means(given["rescale"], command, nodes), given.get("tasks")
    if given["signal"] == "lightning" and batch is None:
        command, batch = as_tasks(command, name, (low, high, counts), nodes)
    files = {name: os.path.expanduser(given[name] or "") for name in ("output", "error")}
    if batch is not None:  # whose own files these replace
        batch = replace(batch, **{name: "" for name, file in files.items() if file})
    if given["container"]:
        command = in_container(given["container"], command, given, means)
    folder = Path(given["cwd"] or ".")
    stall_s, stall_restart = given["stall"]
    checkpoints = given["checkpoint_dir"]
    place = folder if folder.is_absolute() else here / folder
    waits = [group for name in AFTER for group in given[name]]
    plain = [group for group in waits if len(group) == 1 and group[0].kind == "done" and group[0].job]
    batch_size, batch_sweep = given["batch"]
    if array is not None and batch_size is None and not batch_sweep:
        with suppress(ValueError):  # it is called so, and is something else
            check_batch_sweep("batch", array.sweep)
            batch_sweep = "batch"
    if array is None and batch_sweep:
        raise ValueError(f"--batch {{{batch_sweep}}} is of a sweep: add --sweep {batch_sweep}=16,32,64")
    burst = stage_plans(given, command, place, None if high is None else high * nodes[1])
    spec = JobSpec(
        **{name: given[name] for name in _AS_GIVEN},
        output=files["output"],
        error=files["error"],
        command=command,
        name=name,
        user=user_name(os.getuid()),
        cwd=str(place),
        burst=burst,
        gpus_min=low,
        gpus_max=high,
        gpus_counts=counts,
        nodes=nodes[0],
        nodes_max=nodes[1] if nodes[1] > nodes[0] else None,
        after=tuple(group[0].job for group in plain),
        conditions=tuple(group for group in waits if group not in plain),
        env=tuple(_variables(given["env"], given.get("exports")).items()),
        checkpoint_dir=str(Path(checkpoints).absolute()) if checkpoints else None,
        grace_s=given["grace"],
        gate=runs_gate(command),
        rescale=means,
        deadline=given["deadline"][0],
        ect=given["deadline"][1],
        accuracy_target=given["accuracy"],
        stall_s=stall_s,
        stall_restart=stall_restart,
        memory_mib=given["mem"],
        gpu_memory_mib=given["gpu_memory"],
        time_s=given["time"],
        batch=batch if means == "restart" else None,
        tags=given["tag"],
        links=given["link"],
        batch_size=batch_size,
        batch_sweep=batch_sweep,
    )
    check_counts(spec)
    check_launcher(spec, script_text(spec.command, spec.cwd))
    if array is not None:
        check_places(spec, array)
    if spec.checkpoint_dir is not None and (why := unwritable(spec.checkpoint_dir)):
        raise click.ClickException(why)
    for file in (spec.output, spec.error):
        if why := unwritable_file(file, spec.cwd):
            raise click.ClickException(why)
    return JobRequest(spec, array, given["hold"])


def in_container(image: str, command: Sequence[str], given: Mapping[str, Any], means: str) -> tuple[str, ...]:
    """The command as the trainer library runs it in an image. Raises ValueError where the image would be in the way."""
    for option, wrong in (
        ("--gate", given["gate"]),
        ("--signal lightning", given["signal"] == "lightning"),
        (f"--rescale {means}", means != "restart"),
        ("a batch script", given.get("tasks") is not None),
    ):
        if wrong:
            raise ValueError(f"--container does not go with {option}: start the container in your own script")
    if "://" not in image:
        image = os.path.abspath(image)
    return (sys.executable, "-m", CONTAINER, image, "--", *command)


def request_of(
    ctx: click.Context,
    submit: click.Command,
    flags: Sequence[str],
    command: Sequence[str],
    values: Mapping[str, Any] = MappingProxyType({}),
) -> JobRequest:
    """The job that submit's options, as they would be typed, and this command say. Raises as `job_request`.

    `submit`: the command whose options they are, of which a context of its own is made in place of `ctx`: errors name
    the command that was typed. `values`: of options as they are once they are read.
    """
    own = click.Context(submit, info_name=ctx.info_name, parent=ctx.parent)
    if ctx.command is submit:
        own.default_map = ctx.default_map
    click.Command.parse_args(submit, own, [*flags, "--", *command])
    return job_request({**own.params, **values}, command, here())


def here() -> Path:
    """The folder that we are in. Raises click.UsageError where it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise click.UsageError("this folder no longer exists: cd to another one, or give --cwd") from None


def _variables(given: Sequence[str], exports: "ExportedVariables | None") -> dict[str, str]:
    if exports is None:
        return environment(given, os.environ)
    known = [each for each in exports.named if "=" in each or each in os.environ]  # as batch systems do
    return environment((*known, *given), os.environ, every=exports.every, left=exports.left)


def _means(given: str | None, command: Sequence[str], nodes: tuple[int, int]) -> str:
    """How a job goes to other nodes. Where nobody says, torchrun starts and restarts the ranks of an elastic one."""
    if given is not None:
        return "in-process" if given == "horovod" else given  # whose ranks they are is the script's to know
    return "torchrun" if nodes[1] > nodes[0] and not runs_gate(command) else "restart"


Sweeps = tuple[tuple[str, tuple[str, ...]], ...]


def with_sweeps(command: Sequence[str], sweep: Sweeps) -> tuple[str, ...]:
    """The command with `--NAME {NAME}` at its end for each sweep that no word of it names."""
    known = named(command)
    more = [word for name, _ in sweep if name not in known for word in (f"--{name}", f"{{{name}}}")]
    return (*command, *more)


def array_of(indices: tuple[Steps, ...], sweep: Sweeps, most: int | None) -> Array | None:
    """The array that the options ask for; None for a single job. Raises ValueError."""
    if not indices and not sweep:
        if most is not None:
            raise ValueError("--max-parallel needs --array or --sweep")
        return None
    return Array(indices, sweep, most or 0)


def plain(array: Array) -> dict[str, object]:
    """The array as `POST /v1/jobs` takes it."""
    found: dict[str, object] = {"indices": indices_text(array.indices)} if array.indices else {}
    if array.sweep:
        found["sweep"] = {name: list(values) for name, values in array.sweep}
    if array.max_parallel:
        found["max_parallel"] = array.max_parallel
    return found


LEFT = re.compile(r"_|PWD|OLDPWD|SHLVL|(SSH|DBUS|XDG_SESSION)_.*|(HPCDL|PMI|PMIX|OMPI)_.*")
"""Names of the submitting shell, its session or a launcher: they mean nothing to the job, or the wrong thing."""

SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|(API|ACCESS|PRIVATE)_?KEY|(^|_)(KEY|PASS|PASSPHRASE|PAT|DATABASE_URL)$",
    re.IGNORECASE,
)
"""Names that are never taken along by themselves, for what they hold would go into the ledger. docs/commands.md and the
help of `hpcdl submit` list them."""

_FUNCTION_END = "%%"
"""Of the name of a variable in which bash exports a function."""

_THREADS = "OMP_NUM_THREADS"


def default_name(command: Sequence[str]) -> str:
    """The basename of the script that is run, else of the module (`-m`), else of the program."""
    after_module = False
    module = ""
    chosen = ""
    for part in command:
        if part.endswith((".py", ".sh")):
            chosen = os.path.basename(part)
            break
        if after_module and not module:
            module = part
        after_module = part == "-m"
    text = chosen or module or os.path.basename(command[0]) or command[0]
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def _is_secret(name: str) -> bool:
    return SECRET.search(name.removesuffix(_FUNCTION_END)) is not None


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def environment(
    given: Sequence[str], around: Mapping[str, str], *, every: bool = True, left: Collection[str] = ()
) -> dict[str, str]:
    """The job's own variables: those of `around` that mean something to it, then `K=V` and `K` as given.

    Not `every`: only those given. `left`: names that are not taken by themselves. Raises click.UsageError.
    """
    kept = {}
    if every:
        hidden = (LEFT, *(system.hidden_variables for system in systems()))
        kept = {
            name: value
            for name, value in around.items()
            if not any(each.fullmatch(name) for each in hidden) and not _is_secret(name) and name not in left
        }
        if kept.get(_THREADS, "") == around.get(f"HPCDL_{_THREADS}"):  # a job that submits: its own share was no choice
            del kept[_THREADS]
    for entry in given:
        name, equals, value = entry.partition("=")
        if not name:
            raise click.BadParameter(f"{entry!r} has no name: write K=V or K", param_hint="'--env'")
        if not _VARIABLE.fullmatch(name):
            wrong = "letters, digits and _, and no digit first"
            raise click.BadParameter(f"{name[:100]!r} is no name of a variable: {wrong}", param_hint="'--env'")
        if not equals:
            if name not in around:
                raise click.BadParameter(f"{name} is not set here: write {name}=VALUE", param_hint="'--env'")
            value = around[name]
        kept[name] = value
    return kept


# --- what this machine shows of what will go wrong --------------------------------------------------------------------

SCRIPT_CHARACTERS = 1 << 18

MEMBERS_LOOKED_AT = 200
"""Of an array whose members have a checkpoint folder each; what the others have is seen when they start."""


def unwritable(folder: str) -> str:
    """Why checkpoints cannot be written into a folder, with the next step; "" where they can, or nobody knows here."""
    path = Path(folder)
    if named((folder,)):
        parts = path.parts
        path = Path(*parts[: next(place for place, part in enumerate(parts) if named((part,)))])
    while not os.path.lexists(path):
        path = path.parent
    if path == Path("/"):
        return ""  # nothing of it is on this machine
    if not path.is_dir():
        return f"the checkpoint folder {folder} cannot be made: {path} is no folder: choose another --checkpoint-dir"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"the checkpoint folder {folder} cannot be written: {path} is not yours: choose another --checkpoint-dir"
    return ""


def unwritable_file(pattern: str, cwd: str) -> str:
    """Why output cannot be appended to a file that is named by a pattern, with the next step; "" where it can, or
    nobody knows here."""
    path = os.path.join(cwd, pattern)
    folder = os.path.dirname(path)
    if not pattern or "%" in folder or named((folder,)) or not os.path.exists(os.sep.join(folder.split(os.sep)[:2])):
        return ""  # it is known where the job starts, or nothing of it is on this machine
    if not os.path.isdir(folder):
        if not pattern.startswith("/") and not os.path.isdir(cwd):
            return ""  # said of the job's folder
        exists = os.path.lexists(folder)
        why = "it is no folder" if exists else "there is no such folder"
        return f"{pattern} cannot have the output, {folder}: {why}" + ("" if exists else f": mkdir -p {folder}")
    if os.path.isdir(path):
        return f"{path} is a folder: name a file in it for the output, {os.path.join(pattern, '%j.out')}"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return f"{path} cannot have the output: you may not write there: choose another file"
    return ""


def script_text(command: Sequence[str], cwd: str) -> str:
    """What is in the shell script that a command runs, by a shell or by its #! line; "" where nobody knows here."""
    words = command[1:] if command[0].rpartition("/")[2] == "env" else command
    program = next((word for word in words if "=" not in word), "")
    file = shell_script(command)
    try:
        with open(os.path.join(cwd, file or program), encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read(SCRIPT_CHARACTERS)
    except (OSError, ValueError):
        return ""
    first = text.split("\n", 1)[0]
    is_shell = first.startswith("#!") and any(word.rpartition("/")[2] in SHELLS for word in first[2:].split())
    return text if (file or is_shell) and "\0" not in text else ""


def others_folder(spec: JobSpec, array: Array | None, instance: str) -> str:
    """Why its checkpoint folder, or one of an array's first members, may not be taken: it is another job's; else ""."""
    if spec.checkpoint_dir is None:
        return ""
    from hpcdl.agent.supervisor.claim import another_jobs

    folders = [spec.checkpoint_dir]
    if array is not None and named(folders):
        folders = list(folders_of(spec.checkpoint_dir, array, MEMBERS_LOOKED_AT))
    return next((why for each in folders if (why := another_jobs(each, instance, spec.continue_from))), "")


def doubts(spec: JobSpec, *, array: bool) -> Iterator[str]:
    """What may go wrong, as far as this machine shows it."""
    folder = Path(spec.cwd)
    here = folder.is_dir()
    if not here:
        yield f"{folder} is not a folder on this machine; the job needs it where it runs"
    command = spec.command[1:] if spec.signal == "lightning" and spec.command[0] == SRUN else spec.command
    if command[1:3] == ("-m", CONTAINER):
        image, command = command[3], command[5:]
        if "://" not in image and not _exists(Path(image)):
            yield f"--container {image} is not there: the job fails where it is not there either"
        if here:
            yield from _absent_script(command, folder, inside=True)
        return
    if here:
        yield from _absent_script(command, folder)
    if spec.batch is None:
        yield from _gpus_by_number(command, folder, spec.gpus_max)
    program = command[0]
    if array and named((program,)):
        return
    path = dict(spec.env).get("PATH") or os.defpath
    if program == "env":
        program = next((word for word in command[1:] if "=" not in word), program)
    shown = program if len(program) <= 100 else f"{program[:100]}…"
    if "/" in program:
        if here and not os.path.exists(folder / program):
            yield f"{shown} is not there: the job fails where it is not there either"
        elif here and os.path.isdir(folder / program):
            yield f"{shown} is a folder: give the program in it"
        elif here and not os.access(folder / program, os.X_OK):
            yield f"{shown} may not be run: chmod +x, or name its interpreter: {_python(path)} {shown}"
    elif not _on_path(program, path):
        if program == "python" and _on_path("python3", path):
            hint = ": python3, or activate an environment first?"
        else:
            hint = f": ./{shown}, or {_python(path)} {shown}?" if here and _exists(folder / program) else ""
        yield f"{shown} is not a program on PATH here; the job fails where it is none either{hint}"


def _gpus_by_number(command: Sequence[str], folder: Path, gpus: int | None) -> Iterator[str]:
    """What in a command, or in the script that it runs, takes GPUs of the node by their numbers."""
    from hpcdl.batch.launches import code_of, gpus_by_number
    from hpcdl.cli.submit.starts_over import script_of

    script = script_of(command)
    text = script_text(command, str(folder))
    if script:
        with suppress(OSError, ValueError), open(folder / script, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(SCRIPT_CHARACTERS)
    for each in gpus_by_number(" ".join(command), "", gpus):
        yield f"{each.said} {each.how}: {each.why}"
    yield from map(str, gpus_by_number(code_of(text), script or shell_script(command) or command[0], gpus))


def _absent_script(command: Sequence[str], folder: Path, *, inside: bool = False) -> Iterator[str]:
    """That the script which an interpreter is to run is not in the folder. `inside`: of an image, which may have files
    of its own by their whole paths."""
    from hpcdl.cli.submit.starts_over import script_of

    script = script_of(command) or shell_script(command)
    if not script or named((script,)) or (inside and os.path.isabs(script)) or _exists(folder / script):
        return
    place = folder / os.path.dirname(script)
    others = os.listdir(place) if os.access(place, os.R_OK | os.X_OK) else []
    near = meant(os.path.basename(script), others, "", cutoff=0.75)
    yield f"{script} is not there: the job fails where it is not there either{near and f' ({near})'}"


def unheard(spec: JobSpec) -> Iterator[str]:
    """Which of its notifications nobody may hear of, since their command is not on this machine."""
    for destination in spec.notify:
        if _is_absent(destination, Path(spec.cwd)):
            yield (
                f"--notify {program_of(destination)[0]}: no such program here; where the daemon's node has none "
                "either, nobody is notified (hpcdl notifications --test tries it)"
            )


_SHELL_WORDS = frozenset({
    *("case", "for", "function", "if", "select", "time", "until", "while"),
    *("cd", "command", "eval", "exec", "exit", "export", "hash", "let", "local", "read", "readonly", "set", "shift"),
    *("source", "trap", "type", "ulimit", "umask", "unset", "wait"),
})  # fmt: skip
"""What a shell runs without a program of that name."""


def _is_absent(destination: str, folder: Path) -> bool:
    """Whether it is a command whose program is not on this machine, as far as that can be read from it."""
    program = "" if destination.startswith(("mailto:", "http://", "https://")) else program_of(destination)[0]
    if not re.fullmatch(r"[\w./+-]*[\w+-]", program) or program in _SHELL_WORDS:
        return False
    if "/" in program:
        return folder.is_dir() and not _exists(folder / program)
    return not _on_path(program, os.environ.get("PATH", os.defpath))


def _on_path(program: str, path: str) -> bool:
    """As shutil.which, whose module takes longer to import than all that is done here."""
    places = (os.path.join(folder, program) for folder in path.split(os.pathsep))
    return any(os.access(place, os.X_OK) and not os.path.isdir(place) for place in places)


def _python(path: str) -> str:
    """What calls it there: Debian and others have python3 alone."""
    return "python3" if _on_path("python3", path) and not _on_path("python", path) else "python"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long a name
        return False
