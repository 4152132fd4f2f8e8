"""`hpcdl submit`: from a command line to a job."""

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import click

from hpcdl.cli.output import Output, escape, outputs, print_ids, print_json, say
from hpcdl.cli.rows import connect
from hpcdl.core.codec import to_json
from hpcdl.core.model import ECT_CLASSES, SIGNAL_PRESETS, JobSpec
from hpcdl.core.units import parse_counts, parse_duration, parse_range
from hpcdl.daemon.clock import Clock

LEFT = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LS_COLORS|(BASH_FUNC|SSH|DBUS|XDG_SESSION)_.*|(HPCDL|SLURM|LSB|PMI|PMIX|OMPI)_.*"
)
"""Names of the submitting shell, its session or a batch step: they mean nothing to the job, or the wrong thing."""
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|AUTH", re.IGNORECASE)
"""Names that are never taken along by themselves: what they hold would go into the ledger."""


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
        return _moment(text, datetime.fromtimestamp(Clock(0.0).now()).astimezone()).timestamp(), None
    except (ValueError, OverflowError):
        classes = ", ".join(ECT_CLASSES)
        hint = f"{value!r} is no deadline: give +2h, 18:30, 2026-05-01T08:00, or one of {classes}"
        raise click.BadParameter(hint, ctx, param) from None


def _moment(text: str, now: datetime) -> datetime:
    """`+2h` from now, the next `18:30`, or a date with its time. Raises ValueError."""
    if text.startswith("+"):
        return now + timedelta(seconds=parse_duration(text[1:]))
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        hour, minute = map(int, text.split(":"))
        today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return today if today > now else today + timedelta(days=1)
    moment = datetime.fromisoformat(text.upper())
    return moment if moment.tzinfo is not None else moment.astimezone()


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


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--name", metavar="NAME", help="Its name in tables.  [default: the script's or program's]")
@click.option(
    "-g", "--gpus", callback=_gpus, metavar="N|MIN:MAX|MIN:|N,..",
    help="GPUs on each node; MIN: is as many as a node has, 1,2,4 only these.  [default: 1; with --profile 1:]",
)  # fmt: skip
@click.option("-N", "--nodes", callback=_nodes, default="1", show_default=True, metavar="N|MIN:MAX", help="Nodes.")
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
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@outputs
@click.pass_context
def submit(
    ctx: click.Context,
    output: Output,
    command: tuple[str, ...],
    name: str | None,
    gpus: tuple[int, int | None, tuple[int, ...]],
    nodes: tuple[int, int],
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
) -> None:
    """Queue COMMAND as a job: hpcdl submit --gpus 1:3 -- python train.py --lr 0.1

    It gets the environment of this shell, as with sbatch and bsub, except the shell's and the batch step's own
    variables and names that look like secrets (TOKEN, SECRET, PASSW, CREDENTIAL, ..._KEY, AUTH): those with --env NAME.
    """
    folder = Path(cwd).absolute() if cwd else _here()
    if progress_regex is not None:
        _check_regex(progress_regex)
    low, high, counts = gpus if gpus[0] else (1, None if profile or model else 1, ())
    try:
        spec = JobSpec(
            command=command,
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
            env=tuple(environment(env, os.environ).items()),
            retries=retries,
            checkpoint_dir=str(Path(checkpoint_dir).absolute()) if checkpoint_dir else None,
            grace_s=grace,
            signal=signal,
            progress_regex=progress_regex,
            gate=runs_gate(command),
            model=model,
            deadline=deadline[0],
            ect=deadline[1],
            accuracy_target=accuracy,
        )
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from None
    if not folder.is_dir():
        say(f"{folder} is not a folder on this machine; the job needs it where it runs")
    body = {"request_id": request_id or os.urandom(16).hex(), "jobs": [to_json(spec)]}
    answer = connect(ctx).request("POST", "/v1/jobs", body)
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


def runs_gate(command: Sequence[str]) -> bool:
    """Whether the command is a script behind `python -m hpcdl.trainer.gate`, so that it may be started ahead."""
    return any(pair == ("-m", "hpcdl.trainer.gate") for pair in pairwise(command))


def environment(given: Sequence[str], around: Mapping[str, str]) -> dict[str, str]:
    """The job's own variables: those of `around` that mean something to it, then `K=V` and `K` as given.

    Raises click.UsageError.
    """
    kept = {name: value for name, value in around.items() if not LEFT.fullmatch(name) and not SECRET.search(name)}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not name:
            raise click.BadParameter(f"{entry!r} has no name: write K=V or K", param_hint="'--env'")
        if not equals:
            if name not in around:
                raise click.BadParameter(f"{name} is not set here: write {name}=VALUE", param_hint="'--env'")
            value = around[name]
        kept[name] = value
    return kept


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
