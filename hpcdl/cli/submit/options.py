"""The options of `hpcdl submit` that say what a job is: on the command line, and as keys of a file of jobs.

Each is checked while it is read. Defaults may come from settings, see command.py; what a job is made of them, job.py.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdl.cli import completion
from hpcdl.cli.job_selection import Selection, job_ids, words_of
from hpcdl.cli.params import Finite, OneOf, Seconds, moment
from hpcdl.client import Client, ClientError
from hpcdl.core.model.arrays import Array, indices_from
from hpcdl.core.model.dependency import Condition
from hpcdl.core.model.job import (
    ECT_CLASSES,
    KINDS,
    LONGEST_S,
    MOST_CPUS,
    MOST_RETRIES,
    MOST_STEPS,
    PRIORITY,
    PROGRESS,
    RESCALES,
    SIGNAL_PRESETS,
    Sharing,
    check_continue_from,
    parse_batch_size,
)
from hpcdl.core.model.notice import check_destinations
from hpcdl.core.model.tags import Links, check_links, check_tags
from hpcdl.core.model.units import meant, parse_counts, parse_memory_mib, parse_range
from hpcdl.daemon.clock import WallClock

Gpus = tuple[int, int | None, tuple[int, ...]]


def _checked(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback of click from a function that raises ValueError for what it does not take."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


@_checked
def _name(value: str | None) -> str | None:
    if value and not value.strip("*? "):
        raise ValueError(f"{value!r} means all jobs to other commands: give a name with a letter in it")
    return value


@_checked
def _filled(value: str | None) -> str | None:
    if value == "":
        raise ValueError("it is empty: give a value, or leave it out")
    return value


@_checked
def _gpus(value: str | None) -> Gpus:
    """The minimum, the maximum, and the only numbers allowed; (0, None, ()) where nothing was given."""
    if value is None:
        return 0, None, ()
    if "," in value:
        counts = parse_counts(value)
        return counts[0], counts[-1], counts
    return *parse_range(value), ()


@_checked
def _nodes(value: str) -> tuple[int, int]:
    low, high = parse_range(value)
    if high is None:
        raise ValueError(f"{value!r}: say how many nodes at most, like {low}:{2 * low}")
    return low, high


@_checked
def _deadline(value: str | None) -> tuple[float | None, str | None]:
    """Seconds since the epoch, or a class of ECT_CLASSES."""
    if value is None:
        return None, None
    text = value.strip().lower()
    if text in ECT_CLASSES:
        return None, text
    try:
        return moment(text, WallClock(0.0).now()), None
    except (ValueError, OverflowError):
        forms = f"give +2h, 18:30, 2026-05-01T08:00, or one of {', '.join(ECT_CLASSES)}"
        raise ValueError(f"{value!r} is no deadline: {meant(text, ECT_CLASSES, forms)}") from None


@_checked
def _indices(value: str | None) -> tuple[tuple[int, int, int], ...]:
    return () if value is None else Array(indices_from(value)).indices


@_checked
def _sweeps(values: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """`lr=0.1,0.01`; a comma within a value is `\\,`."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not rest:
            raise ValueError(f"{value!r} has no values: write NAME=VALUE,VALUE..")
        found.append((name, tuple(each.replace("\\,", ",") for each in re.split(r"(?<!\\),", rest))))
    return Array(sweep=tuple(found)).sweep if found else ()


@_checked
def _destinations(values: tuple[str, ...]) -> tuple[str, ...]:
    check_destinations(values)
    for value in values:
        if re.fullmatch(r"[^\s/:@]+@[^\s/:@]+", value):  # no program is called so
            raise ValueError(f"{value!r} is an address: write mailto:{value}")
    return values


@_checked
def _tags(values: tuple[str, ...]) -> tuple[str, ...]:
    """Each once; a comma stands between several."""
    tags = tuple(dict.fromkeys(part.strip() for value in values for part in value.split(",")))
    check_tags(tags)
    return tags


@_checked
def _links(values: tuple[str, ...]) -> Links:
    """`wandb=https://wandb.ai/me/run/1`."""
    for value in values:
        if not re.match(r"[^=:/]+=", value):
            raise ValueError(f"{value[:100]!r}: write NAME=URL, wandb=https://wandb.ai/me/project")
    links = tuple((name, url) for name, _, url in (value.partition("=") for value in values))
    check_links(links)
    return links


@_checked
def _stall(value: str | None) -> tuple[float | None, bool]:
    """`600`, `600:restart`; 0: it is never taken to stall."""
    if value is None:
        return None, False
    seconds, colon, what = value.partition(":")
    try:
        number = Seconds(0, 30 * 86_400).convert(seconds, None, None)
    except click.BadParameter:
        number = -1.0
    if number < 0 or (colon and what != "restart"):
        raise ValueError(f"{value!r}: give seconds, 600 or 10m, or SECONDS:restart")
    return number, bool(colon)


@_checked
def _memory(value: str | None) -> int | None:
    """MiB, rounded up; a number alone is MiB, as Slurm has it."""
    return None if value is None else parse_memory_mib(value)


@_checked
def _batch(value: str | None) -> tuple[int | None, str]:
    """The batch size, or the name of the sweep that says it, `{NAME}`."""
    if value is None:
        return None, ""
    name = re.fullmatch(r"\{([^{}]+)\}", value)
    return (parse_batch_size(value), "") if name is None else (None, name[1])


@_checked
def _share(value: str | None) -> Sharing | None:
    """`foreground`, `foreground:5` with a limit in percent, `background`."""
    return None if value is None else Sharing.from_text(value)


AFTER = {"after": "done", "after_any": "ended", "after_failed": "failed", "after_start": "started"}
"""What jobs to wait for must have come to (`Condition.kind`), by the option that names them."""


_PARTS = re.compile(r"[,?](?![^\[]*\])")


def _jobs_of(ctx: click.Context, param: click.Parameter, word: str) -> Sequence[int]:
    """The jobs that a range or a name means; of names the daemon is asked. Raises click.ClickException."""
    chosen = Selection(words_of(ctx, param, (word,)))
    if chosen.plain or ctx.resilient_parsing:
        return chosen.ids
    try:
        with Client(ctx.find_root().obj) as client:
            return chosen.look_up(client)
    except ClientError as error:
        raise click.ClickException(f"{word[:100]!r} is a name, and of its jobs the daemon is asked: {error}") from None


def _conditions(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[Condition, ...], ...]:
    """Groups of which one condition each must be met: `3-7,12` are six groups, `3?slurm:12` is one, and a name is one
    for each of its jobs.
    """
    kind, found = AFTER[param.name or ""], list[tuple[Condition, ...]]()
    for value in values:
        if "," in value and "?" in value:
            raise click.BadParameter(f"{value[:100]!r}: give ID,ID for all of them, or ID?ID for one", ctx, param)
        parts = [part.strip() for part in _PARTS.split(value)]
        if len(parts) == 1 and ":" not in value:
            found += [(Condition(kind, number),) for number in _jobs_of(ctx, param, value)]
            continue
        try:
            batch = [(Condition(kind, batch=part.lower()),) for part in parts if ":" in part]
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        numbers = job_ids(ctx, param, tuple(part for part in parts if ":" not in part))
        each = [*((Condition(kind, number),) for number in numbers), *batch]
        found += [tuple(one for (one,) in each)] if "?" in value else each
    return tuple(dict.fromkeys(found))


@_checked
def _whose(value: str) -> str:
    text = value.strip().lower()
    try:
        if text:
            check_continue_from(text)
    except ValueError:
        raise ValueError(f"{value[:100]!r}: give a job's id, or any") from None
    return text


@_checked
def _resumes(value: str | None) -> str | None:
    """As the job has it: "" for the user's word alone."""
    return "" if value is not None and value.lower() in ("yes", "true", "") else value


@_checked
def _regex(value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise ValueError(f"{value!r}: {error}") from None
    return value


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "-n", "--name", callback=_name, metavar="NAME",
        help="Its name in tables.  [default: the script's or program's]",
    ),
    click.option(
        "-g", "--gpus", callback=_gpus, metavar="N|MIN:MAX|MIN:|N,..",
        help="GPUs on each node; MIN: is as many as a node has, 1,2,4 only these.  [default: 1; with --profile 1:]",
    ),
    click.option(
        "--cpus", type=click.IntRange(1, MOST_CPUS), metavar="N",
        help="Processors on each node.  [default: those of its GPUs: the node's, shared out equally]",
    ),
    click.option(
        "--mem", callback=_memory, metavar="SIZE",
        help="Memory on each node, 500M or 32G, past which it is ended.  [default: no limit]",
    ),
    click.option(
        "--time", type=Seconds(0, LONGEST_S, min_open=True), metavar="SECONDS",
        help="How long it may hold GPUs, 90m or 12h, all attempts together: then it must checkpoint, and is ended.",
    ),
    click.option(
        "--share", callback=_share, metavar="foreground[:PCT]|background",
        help="foreground: a background job may run on its GPUs too, and slow it down by PCT percent at most (10); "
        "background: it may run so beside another.  [default: neither]",
    ),
    click.option(
        "--gpu-memory", callback=_memory, metavar="SIZE",
        help="What it takes of each GPU at most, 6G: it waits for one that has so much, and jobs share one only where "
        "both fit.  [default: any will do; as measured]",
    ),
    click.option("-N", "--nodes", callback=_nodes, default="1", show_default=True, metavar="N|MIN:MAX", help="Nodes."),
    click.option(
        "-a", "--array", callback=_indices, metavar="1-100|1-9:2|1,5,7-9",
        help="A job for each index, which stands where a word of the command, the name or --checkpoint-dir has "
        "{index}, and is HPCDL_ARRAY_INDEX to the job.",
    ),
    click.option(
        "--sweep", callback=_sweeps, multiple=True, metavar="NAME=VALUE,..",
        help="A job for each value, which stands where a word has {NAME} ({{NAME}} is {NAME} itself), else is appended "
        "as --NAME VALUE, and is HPCDL_SWEEP_NAME to the job; of several sweeps each combination; with --array each "
        "index of each. A comma in a value is \\,.",
    ),
    click.option(
        "--max-parallel", type=click.IntRange(1, 100_000), metavar="N", help="At most N jobs of the array at a time."
    ),
    click.option(
        "--rescale", type=OneOf((*RESCALES, "horovod")), default=None,
        help="How it goes to other nodes; horovod: in-process, of ranks of Horovod's.  "
        "[default: torchrun with --nodes MIN:MAX, else restart]",
    ),
    click.option(
        "--priority", type=click.IntRange(-PRIORITY, PRIORITY), default=0, show_default=True, metavar="N",
        help="Jobs of a higher one come first, whatever the policy.",
    ),
    click.option(
        "--weight", type=Finite(min=0, min_open=True), default=1.0, show_default=True, metavar="W",
        help="What it counts under the objective priority.",
    ),
    click.option(
        "--profile", metavar="NAME", help="The scaling profile that says how fast it is on how many GPUs.",
        shell_complete=completion.profiles,
    ),
    click.option(
        "--steps", type=click.IntRange(1, MOST_STEPS), metavar="N", help="Training steps in all, for estimated times."
    ),
    click.option(
        "--batch", callback=_batch, metavar="B|{NAME}",
        help="Samples of a step, on all its GPUs together: rates are learnt by it. {NAME}: the values of that sweep.  "
        "[default: those of a sweep that is called batch]",
    ),
    click.option(
        "--kind", type=OneOf(KINDS), default=KINDS[0], show_default=True,
        help="What it computes: an inference is answered with its latency at once, where it is known.",
    ),
    click.option(
        "--burst-plan", callback=_filled, metavar="FILE",
        help="Burst-parallel: its plans are made of the layers in this file, which hpcdl burst profile writes.",
    ),
    click.option(
        "--burst-limit", type=Finite(min=0, max=1e6, min_open=True), metavar="A",
        help="Burst-parallel, each layer within A x its GPU-time on one GPU; without --burst-plan its layers are "
        "measured first, here.",
    ),
    click.option(
        "--model", callback=_filled, metavar="NAME",
        help="What it trains: without a profile, one is learnt for it and its script.  [default: its name]",
    ),
    click.option(
        "--deadline", callback=_deadline, metavar="TIME|CLASS",
        help="When it is to be done: +2h, 18:30, 2026-05-01T08:00; or normal, prior, urgent, computed from its "
        "profile. Objective deadline plans for it; under others it comes before other jobs once it is at risk.",
    ),
    click.option(
        "--accuracy", type=float, metavar="VALUE",
        help="The metric at which its script ends: predicts how far it has to go.",
    ),
    click.option(
        "--after", callback=_conditions, multiple=True, metavar="ID,..|ID?ID",
        help="Start once these jobs are DONE; ID?ID: one of them; slurm:ID, lsf:ID: a batch job.",
    ),
    click.option(
        "--after-any", callback=_conditions, multiple=True, metavar="ID,..|ID?ID",
        help="Start once these jobs have ended, however that was.",
    ),
    click.option(
        "--after-failed", callback=_conditions, multiple=True, metavar="ID,..|ID?ID",
        help="Start once these jobs are FAILED or CANCELLED.",
    ),
    click.option(
        "--after-start", callback=_conditions, multiple=True, metavar="ID,..|ID?ID",
        help="Start once these jobs have started.",
    ),
    click.option(
        "--singleton", is_flag=True,
        help="One of your jobs of its name at a time: it waits for the earlier ones to end.",
    ),
    click.option("-H", "--hold", is_flag=True, help="Keep it from starting until hpcdl release."),
    click.option(
        "--env", multiple=True, metavar="K[=V]",
        help="Set K for the job; without =V, K as it is here (which keeps a secret out of the process list).",
    ),
    click.option(
        "--output", callback=_filled, metavar="FILE",
        help="Append its output to this file, too: logs/%x-%j.out has its name and id; %A, %a: its array and index; "
        "%N: the node; %u: you.",
    ),
    click.option(
        "--error", callback=_filled, metavar="FILE",
        help="Append its stderr to this file, and only its stdout to --output; hpcdl logs --stderr knows it, too.",
    ),
    click.option("--cwd", type=click.Path(), callback=_filled, metavar="DIR", help="Where it runs.  [default: here]"),
    click.option(
        "--retries", type=click.IntRange(0, MOST_RETRIES), default=0, show_default=True, metavar="N",
        help="Starts after a user error.",
    ),
    click.option(
        "--checkpoint-dir", type=click.Path(), callback=_filled, metavar="DIR",
        help="Where its checkpoints are.  [default: in the daemon's folder]",
    ),
    click.option(
        "--continue-from", callback=_whose, default="", metavar="ID|any",
        help="Go on from that job's checkpoints in --checkpoint-dir; any: from whoever's they are.",
    ),
    click.option(
        "--grace", type=Seconds(0, 86_400, min_open=True), default=60, show_default=True, metavar="SECONDS",
        help="In which it must checkpoint when it is suspended.",
    ),
    click.option(
        "--signal", type=OneOf(list(SIGNAL_PRESETS)), default="hpcdl", show_default=True,
        metavar="[hpcdl|lightning|submitit|hf|SIGTERM|SIGUSR1|SIGUSR2|none]",
        help="How it is asked to checkpoint and exit.",
    ),
    click.option(
        "--resumes", is_flag=False, flag_value="yes", callback=_resumes, metavar="[PATTERN]",
        help="Its program resumes by itself; PATTERN: from what it writes there (out/checkpoint-*).",
    ),
    click.option(
        "--gate", is_flag=True,
        help="Start python SCRIPT or python -m MODULE ahead of its GPUs: it imports its frameworks and waits for them.",
    ),
    click.option(
        "--container", callback=_filled, metavar="IMAGE",
        help="Run it in this image by apptainer or singularity, with its GPUs, its folder and its checkpoints' in it.",
    ),
    click.option(
        "--trainer-library/--no-trainer-library", default=True,
        help="Put hpcdl.trainer at the end of its PYTHONPATH, so that nothing is installed where it trains.  [default: "
        "--trainer-library]",
    ),
    click.option(
        "--progress", type=OneOf(PROGRESS),
        help="Read the step from the progress bars of the framework that it trains with.",
    ),
    click.option(
        "--progress-regex", callback=_regex, metavar="REGEX",
        help="Finds the step in its output, for trainers without hpcdl.",
    ),
    click.option(
        "--notify", callback=_destinations, multiple=True, metavar="CMD|mailto:ADDR|URL",
        help="Tell of its end, failures, stalls, a deadline that slips.  [default: the setting notify]",
    ),
    click.option(
        "--tag", callback=_tags, multiple=True, metavar="NAME",
        help="A word of yours, for hpcdl ls, report --by tag and the pages.",
    ),
    click.option(
        "--link", callback=_links, multiple=True, metavar="NAME=URL",
        help="An http(s) link that hpcdl show and the pages show: wandb=https://wandb.ai/me/project.",
    ),
    click.option(
        "--stall", callback=_stall, metavar="SECONDS[:restart]",
        help="After so long without progress you are notified; with :restart it is started again. 0: never.",
    ),
)  # fmt: skip


def job_options(command: Any) -> Any:
    """Gives a command the options that say what a job is."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def options_of_a_job() -> dict[str, click.Option]:
    """The same, by the names of their parameters: keys of a file of jobs, keyword arguments in Python."""
    command = click.command()(job_options(lambda: None))
    return {each.name: each for each in command.params if isinstance(each, click.Option) and each.name}


SECTIONS: dict[str, str] = {
    "The job": "name tag link env cwd output error container gate trainer_library git after after_any after_failed "
    "after_start singleton hold priority weight deadline",
    "GPUs, nodes and speed": "gpus nodes cpus mem time share gpu_memory rescale profile burst_plan burst_limit steps "
    "batch kind model accuracy",
    "Many jobs at once": "array sweep max_parallel file",
    "Checkpoints and failures": "grace signal checkpoint_dir continue_from resumes progress "
    "progress_regex retries stall notify",
}
"""Title -> names of parameters. What stands in none is listed last."""


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The help of the options in sections, in place of `format_options` of click, which makes one piece of them."""
    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    lines = {each.name: each.get_help_record(ctx) for each in options}
    for title, names in SECTIONS.items():
        with formatter.section(title):
            formatter.write_dl([line for name in names.split() if (line := lines.pop(name, None)) is not None])
    with formatter.section("This submit"):
        formatter.write_dl([line for line in lines.values() if line is not None])
