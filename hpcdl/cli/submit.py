"""`hpcdl submit`: from a command line to a job."""

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from hpcdl.cli.defaults import put_defaults, told_origin
from hpcdl.cli.jobparts import default_name, environment, runs_gate
from hpcdl.cli.moments import moment
from hpcdl.cli.numbers import Finite
from hpcdl.cli.output import Output, escape, outputs, print_ids, print_json, say
from hpcdl.cli.rows import connect
from hpcdl.cli.sending import Answer, send
from hpcdl.client import ApiError, Client, ClientError
from hpcdl.core.codec import to_json
from hpcdl.core.model import ECT_CLASSES, RESCALES, SIGNAL_PRESETS, JobSpec
from hpcdl.core.units import parse_counts, parse_range
from hpcdl.daemon.clock import Clock


def _gpus(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int | None, tuple[int, ...]]:
    """The minimum, the maximum, and the only numbers allowed; (0, None, ()) where nothing was given."""
    if value is None:
        return 0, None, ()
    try:
        if "," in value:
            counts = parse_counts(value)
            return counts[0], counts[-1], counts
        return *parse_range(value), ()
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _nodes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    try:
        low, high = parse_range(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if high is None:
        raise click.BadParameter(f"{value!r}: say how many nodes at most, like {low}:{2 * low}", ctx, param)
    return low, high


def _deadline(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float | None, str | None]:
    """Seconds since the epoch, or a class of ECT_CLASSES."""
    if value is None:
        return None, None
    text = value.strip().lower()
    if text in ECT_CLASSES:
        return None, text
    try:
        return moment(text, Clock(0.0).now()), None
    except (ValueError, OverflowError):
        classes = ", ".join(ECT_CLASSES)
        hint = f"{value!r} is no deadline: give +2h, 18:30, 2026-05-01T08:00, or one of {classes}"
        raise click.BadParameter(hint, ctx, param) from None


def _job_ids(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    """`--after 3,5 --after 7`: 3, 5, 7."""
    found: list[int] = []
    for value in values:
        for part in value.split(","):
            text = part.strip()
            if not (text.isascii() and text.isdigit() and int(text) > 0):
                raise click.BadParameter(f"{value!r} is not a job id, or several with commas between", ctx, param)
            found.append(int(text))
    return tuple(dict.fromkeys(found))


if TYPE_CHECKING:  # most submits have no batch script
    from hpcdl.cli.batchlines import Asked, Exports
    from hpcdl.cli.batchscript import Batch


class _Submit(click.Command):
    """Knows the defaults that settings give its options, and whether `--` stood before the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        wrong = put_defaults(ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            raise told_origin(ctx, error) from None
        if wrong is not None:
            raise wrong
        before = len(words) - len(ctx.params.get("command") or ()) - 1
        ctx.meta[_PLAIN] = 0 <= before < len(words) and words[before] == "--"
        return rest


_PLAIN = "hpcdl.submit.plain"


@click.command(cls=_Submit, context_settings={"allow_interspersed_args": False})
@click.option("-n", "--name", metavar="NAME", help="Its name in tables.  [default: the script's or program's]")
@click.option(
    "-g", "--gpus", callback=_gpus, metavar="N|MIN:MAX|MIN:|N,..",
    help="GPUs on each node; MIN: is as many as a node has, 1,2,4 only these.  [default: 1; with --profile 1:]",
)  # fmt: skip
@click.option("-N", "--nodes", callback=_nodes, default="1", show_default=True, metavar="N|MIN:MAX", help="Nodes.")
@click.option(
    "--rescale", type=click.Choice(RESCALES), default=None,
    help="How it goes to other nodes.  [default: torchrun with --nodes MIN:MAX, else restart]",
)  # fmt: skip
@click.option(
    "--weight", type=Finite(min=0, min_open=True), default=1.0, show_default=True, metavar="W",
    help="What it counts under the objective priority.",
)  # fmt: skip
@click.option("--profile", metavar="NAME", help="The scaling profile that tells how fast it is on how many GPUs.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Training steps in all, for estimated times.")
@click.option(
    "--model",
    metavar="NAME",
    help="What it trains: without a profile, one is learnt for it and its script.  [default: its name]",
)
@click.option(
    "--deadline", callback=_deadline, metavar="TIME|CLASS",
    help="When it is to be done: +2h, 18:30, 2026-05-01T08:00; or normal, prior, urgent, reckoned from its profile.",
)  # fmt: skip
@click.option(
    "--accuracy",
    type=float,
    metavar="VALUE",
    help="The metric at which its script ends: predicts how far it has to go.",
)
@click.option("--after", callback=_job_ids, multiple=True, metavar="ID,..", help="Start once these jobs are DONE.")
@click.option(
    "--env", multiple=True, metavar="K[=V]",
    help="Set K for the job; without =V, K as it is here (which keeps a secret out of the process list).",
)  # fmt: skip
@click.option("--cwd", type=click.Path(), metavar="DIR", help="Where it runs.  [default: here]")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Starts after a user error.",
)
@click.option(
    "--checkpoint-dir",
    type=click.Path(),
    metavar="DIR",
    help="Where its checkpoints are.  [default: in the daemon's folder]",
)
@click.option(
    "--grace", type=float, default=60.0, show_default=True, metavar="SECONDS", help="To checkpoint in on a suspend."
)
@click.option(
    "--signal", type=click.Choice(list(SIGNAL_PRESETS)), default="hpcdl", show_default=True,
    help="How it is asked to checkpoint and exit.",
)  # fmt: skip
@click.option("--progress-regex", metavar="REGEX", help="Finds the step in its output, for trainers without hpcdl.")
@click.option("--request-id", metavar="ID", help="A submit repeated with the same id is the same job.")
@click.option("--no-spool", is_flag=True, help="Fail where no daemon runs; else the next one takes the submit in.")
@click.option(
    "--as", "like", type=click.Choice(("sbatch", "bsub")),
    help="COMMAND is the arguments of sbatch or bsub, whose words are answered; for jobscripts/sbatch and bsub.",
)  # fmt: skip
@click.option("--else", "other", metavar="FILE", help="With --as: what takes jobs that are not for hpcdl.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@outputs
@click.pass_context
def submit(
    ctx: click.Context,
    output: Output,
    command: tuple[str, ...],
    name: str | None,
    gpus: tuple[int, int | None, tuple[int, ...]],
    nodes: tuple[int, int],
    rescale: str | None,
    weight: float,
    profile: str | None,
    steps: int | None,
    model: str | None,
    deadline: tuple[float | None, str | None],
    accuracy: float | None,
    after: tuple[int, ...],
    env: tuple[str, ...],
    cwd: str | None,
    retries: int,
    checkpoint_dir: str | None,
    grace: float,
    signal: str,
    progress_regex: str | None,
    request_id: str | None,
    no_spool: bool,
    like: str | None,
    other: str | None,
) -> None:
    """Queue COMMAND as a job: hpcdl submit --gpus 1:3 -- python train.py --lr 0.1

    A script with #SBATCH or #BSUB lines, named without -- before it, is asked for GPUs, nodes, name, dependencies,
    array, folder and environment; options given here win, and what is ignored is said.

    It gets the environment of this shell, as with sbatch and bsub, except the shell's and the batch step's own
    variables and names that look like secrets (TOKEN, SECRET, PASSW, CREDENTIAL, ..._KEY, AUTH): those with --env NAME.
    """
    if not command and like is None:
        raise click.MissingParameter(ctx=ctx, param=next(each for each in ctx.command.params if each.name == "command"))
    batch = _batch(ctx, command, like, other)
    if batch is not None:
        asked = _without_flags(ctx, batch.asked)
        cwd, after = cwd or asked.cwd, asked.after or after
        name = (asked.name or default_name((batch.file,))) if name is None else name
        gpus = (asked.gpus, asked.gpus, ()) if asked.gpus else gpus
        nodes = (asked.nodes, asked.nodes) if asked.nodes else nodes
    folder = Path(cwd or ".")
    folder = folder if folder.is_absolute() else _here() / folder
    if progress_regex is not None:
        _check_regex(progress_regex)
    low, high, counts = gpus if gpus[0] else (1, None if profile or model else 1, ())
    client = connect(ctx)
    lines = [command] if batch is None else _lines(batch, client, like, other, command, ping=no_spool)
    try:
        spec = JobSpec(
            command=lines[0],
            name=default_name(command) if name is None else name,
            user=_user(),
            cwd=str(folder),
            gpus_min=low,
            gpus_max=high,
            gpus_counts=counts,
            nodes=nodes[0],
            nodes_max=nodes[1] if nodes[1] > nodes[0] else None,
            profile=profile,
            steps=steps,
            after=after,
            env=tuple(_variables(env, None if batch is None else batch.asked.exports).items()),
            retries=retries,
            checkpoint_dir=str(Path(checkpoint_dir).absolute()) if checkpoint_dir else None,
            grace_s=grace,
            signal=signal,
            progress_regex=progress_regex,
            gate=runs_gate(lines[0]),
            rescale=rescale or _means(lines[0], nodes),
            weight=weight,
            model=model,
            deadline=deadline[0],
            ect=deadline[1],
            accuracy_target=accuracy,
        )
    except ValueError as error:
        _fail(like, other, command, click.UsageError(str(error), ctx))
    if not folder.is_dir():
        say(f"{folder} is not a folder on this machine; the job needs it where it runs")
    specs = [replace(spec, command=line) for line in lines]
    if batch is not None and batch.asked.array is not None:
        # They scale alike, so what is learnt is of all of them.
        of_array = zip(specs, batch.asked.array.indices, strict=True)
        specs = [
            replace(each, name=f"{spec.name}[{index}]"[-200:], model=model or spec.name) for each, index in of_array
        ]
    jobs = [to_json(each) for each in specs]
    try:
        answer = send(client, request_id or os.urandom(16).hex(), jobs, spool=not no_spool and like is None)
    except ApiError as error:
        _fail(like, other, command, error)
    if batch is not None:
        if like is not None:
            from hpcdl.cli import dropin

            dropin.tell(batch, int(answer["jobs"][0]["id"]))
            return
        for each in batch.asked.ignored:
            say(str(each))
        if not gpus[0]:
            say(f"{batch.file} asks for no GPU; a job of hpcdl has at least 1: --gpus N")
    _print(answer, output)


def _print(answer: Answer, output: Output) -> None:
    rows = answer["jobs"]
    if output is Output.JSON:
        print_json(answer)
    elif output is Output.QUIET:
        print_ids([row["id"] for row in rows])
    else:
        for row in rows:
            click.echo(f"job {row['id']} {row['state'].lower()}: {row['name']}")
            if row.get("forecast"):
                click.echo(f"  {escape(row['forecast']['text'])}")


def _batch(ctx: click.Context, command: tuple[str, ...], like: str | None, other: str | None) -> "Batch | None":
    """The batch script that is to be submitted; None: the command is one."""
    if like is None and (ctx.meta[_PLAIN] or not os.path.isfile(command[0])):
        return None
    from hpcdl.cli.batchlines import BadLine
    from hpcdl.cli.batchscript import find, read

    try:
        if like is None:
            found = find(command[0])
            return None if found is None else read(found[0], command[0], found[1], command[1:])
        from hpcdl.cli import dropin

        return dropin.batch_of(like, command, os.environ)
    except BadLine as error:
        _fail(like, other, command, click.ClickException(str(error)))


def _fail(like: str | None, other: str | None, command: tuple[str, ...], error: Exception) -> NoReturn:
    """hpcdl cannot take the job: raises `error`; with --as the batch system's command takes this process's place."""
    if like is None:
        raise error from None
    from hpcdl.cli import dropin

    dropin.pass_on(like, other, command, str(error))


def _without_flags(ctx: click.Context, asked: "Asked") -> "Asked":
    """What the script asks for, without that which the command line says otherwise."""

    def given(option: str) -> bool:
        return ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE

    return replace(
        asked,
        gpus=None if given("gpus") else asked.gpus,
        nodes=None if given("nodes") else asked.nodes,
        after=None if given("after") else asked.after,
    )


def _lines(
    batch: "Batch", client: Client, like: str | None, other: str | None, command: tuple[str, ...], *, ping: bool
) -> list[tuple[str, ...]]:
    """The commands of a batch script's jobs; the script is kept. `ping`: nothing is where no daemon answers."""
    from hpcdl.cli.batchlines import BadLine
    from hpcdl.cli.batchscript import commands

    try:
        if ping or like is not None:
            client.get("/v1/config")
        return commands(batch, client.home, str(_here()))
    except ClientError as error:
        _fail(like, other, command, error)
    except BadLine as error:
        _fail(like, other, command, click.ClickException(str(error)))


def _variables(given: Sequence[str], exports: "Exports | None") -> dict[str, str]:
    if exports is None:
        return environment(given, os.environ)
    known = [each for each in exports.named if "=" in each or each in os.environ]  # as batch systems do
    return environment((*known, *given), os.environ, every=exports.every, left=exports.left)


def _means(command: Sequence[str], nodes: tuple[int, int]) -> str:
    """How a job goes to other nodes where nobody says: torchrun starts and restarts the ranks of an elastic one."""
    return "torchrun" if nodes[1] > nodes[0] and not runs_gate(command) else "restart"


def _check_regex(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="'--progress-regex'") from None


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise click.UsageError("this folder no longer exists: cd to another one, or give --cwd") from None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
