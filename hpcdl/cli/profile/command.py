"""`hpcdl profile`: measures how a training script scales (`run`), and makes a profile of the runs (`fit`).

Runs are jobs of the running daemon, one after another, and cancelled once they are measured. Events become speeds in
light_runs.py; GENIE's model is fitted in hpcdl/estimators.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpcdl.cli.job_row import FINISHED, connect, duration_text, end_text
from hpcdl.cli.output import Column, Output, escape, outputs_as, print_table, say
from hpcdl.cli.params import InputFile, OneOf, Seconds, replace_file
from hpcdl.cli.profile.add import add
from hpcdl.cli.profile.plot import plot
from hpcdl.cli.profile.show import ls, show, yaml_text
from hpcdl.cli.submit.job import JobRequest, default_name, request_of
from hpcdl.client import Client, path_with
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.job import KINDS

if TYPE_CHECKING:
    from hpcdl.cli.profile.light_runs import Speed
    from hpcdl.core.model.latency import Setting
    from hpcdl.estimators.latency import LightRun

BATCH = "HPCDL_PROFILE_BATCH"
"""The variable in which a script finds the global batch size of this run."""
OUT = "runs.csv"
_WAIT_S = 5.0  # so long the daemon holds back an answer without events


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Numbers like `16,32,64`, ascending and distinct."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 31 for part in parts):
        raise click.BadParameter(f"{value!r} is not a number of 1 or more, or several with commas between", ctx, param)
    return tuple(sorted({int(part) for part in parts}))


@click.group()
def profile() -> None:
    """Measure how a training script scales, and make the profile that policies decide by."""


profile.add_command(ls)
profile.add_command(show)
profile.add_command(add)
profile.add_command(plot)


@profile.command(short_help="Measure a command at several settings.")
@click.option("--light", is_flag=True, help="B + G + N runs instead of each batch on each number of GPUs and nodes.")
@click.option(
    "--when-idle", is_flag=True,
    help="Leave the runs of --light to the daemon: on GPUs that nobody else is to have, ended at once when one is.",
)  # fmt: skip
@click.option("--batches", required=True, callback=_numbers, metavar="B,..", help="Global batch sizes.")
@click.option("--gpus", default="1", show_default=True, callback=_numbers, metavar="G,..", help="GPUs on a node.")
@click.option("--nodes", default="1", show_default=True, callback=_numbers, metavar="N,..", help="Nodes.")
@click.option(
    "--steps", type=click.IntRange(min=2), default=100, show_default=True, metavar="N",
    help="Steps to measure at least.",
)  # fmt: skip
@click.option(
    "--limit", type=Seconds(min=1), default=900, show_default=True, metavar="SECONDS",
    help="A run that has not been measured so long after its start has failed.",
)  # fmt: skip
@click.option("--progress-regex", metavar="REGEX", help="Finds the step in its output, for trainers without hpcdl.")
@click.option(
    "--model", metavar="NAME", help="What it trains, as jobs that learn from the runs call it.  [default: as submit]"
)
@click.option("--kind", type=OneOf(KINDS), default=KINDS[0], show_default=True, help="What the runs compute.")
@click.option("--env", multiple=True, metavar="K[=V]", help="Set K for the runs; without =V, K as it is here.")
@click.option(
    "-o", "--output", "out", type=click.Path(dir_okay=False, path_type=Path), default=Path(OUT), show_default=True,
    metavar="FILE", help="Where the runs are kept; those that it holds already are not repeated.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@outputs_as("The name of the file only.")
def run(ctx: click.Context, /, output: Output, **options: Any) -> None:
    """Run COMMAND for some steps at each setting, as jobs of the running daemon, one after another.

    hpcdl profile run --light --batches 32,64,128 --gpus 1,2,4 -- python train.py --batch {batch}

    {batch}, {gpus} and {nodes} in COMMAND stand for the setting; the batch is in HPCDL_PROFILE_BATCH too. COMMAND may
    be the number of a job that the daemon knows: its command is run, in its folder. A run is cancelled once it is
    measured, so the script may train as long as it likes.
    """
    from hpcdl.cli.profile.light_runs import runs_text

    asked = _RunOptions(**options)
    if asked.when_idle:
        _check_left(ctx)
    client = connect(ctx)
    asked = _known_job(client, asked)
    settings = asked.settings()
    _check_room(client, settings)
    if asked.when_idle:
        from hpcdl.cli.profile.when_idle import leave_to_daemon

        try:
            requests = [(setting, asked.request(ctx, setting)) for setting in settings]
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from None
        leave_to_daemon(client, requests, asked.steps, output)
        return
    if not any("{batch}" in part for part in asked.command):
        say(f"COMMAND has no {{batch}}: it must read its batch size from {BATCH}")
    done = _kept(asked.out)
    had = {each.setting for each in done}
    left = [each for each in settings if each not in had]
    missed = 0
    for number, setting in enumerate(left, 1):
        what = f"run {number} of {len(left)}"
        found, hopeless = _measure(ctx, client, asked, setting, what)
        if found is not None:
            done.append(found)
            replace_file(asked.out, runs_text(done))
            continue
        missed += 1
        if hopeless:  # the others would end alike
            missed += len(left) - number
            break
    wanted = [each for each in done if each.setting in set(settings)]
    if not output.print_data(
        {"file": str(asked.out), "runs": [_row(each) for each in wanted], "missing": missed}, [asked.out]
    ):
        if wanted:
            print_table(COLUMNS, [_row(each) for each in wanted])
    if missed:
        kept = f"; the others are in {asked.out}, and are not repeated" if wanted else ""
        say(f"{missed} of {len(settings)} runs are missing{kept}: correct the command and run it again")
        ctx.exit(1)


COLUMNS = (
    Column("BATCH", lambda row: str(row["batch"]), right=True),
    Column("NODES", lambda row: str(row["nodes"]), right=True),
    Column("GPUS EACH", lambda row: str(row["gpus"]), right=True),
    Column("STEPS/S", lambda row: f"{row['steps_per_s']:.4g}", right=True),
    Column("SAMPLES/S", lambda row: f"{row['samples_per_s']:.4g}", right=True),
    Column("START-UP", lambda row: duration_text(row["startup_s"]), right=True),
)


def _check_left(ctx: click.Context) -> None:
    """Raises UsageError for options of runs that this command waits for."""
    for name, option in (("out", "--output"), ("limit", "--limit")):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option} is of runs that are waited for, and those of --when-idle are not: leave one of both out", ctx
            )


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """The options of `run`."""

    command: tuple[str, ...]
    light: bool
    when_idle: bool
    batches: tuple[int, ...]
    gpus: tuple[int, ...]
    nodes: tuple[int, ...]
    steps: int
    limit: float
    progress_regex: str | None
    model: str | None
    kind: str
    env: tuple[str, ...]
    out: Path
    cwd: str = ""
    name: str = ""

    def settings(self) -> "list[Setting]":
        """The settings in the order in which they are run."""
        from hpcdl.core.model.latency import Setting
        from hpcdl.estimators.latency import plan_light_runs

        if self.light or self.when_idle:
            return plan_light_runs(self.batches, self.nodes, self.gpus)
        return [Setting(batch, nodes, gpus) for nodes in self.nodes for gpus in self.gpus for batch in self.batches]

    def request(self, ctx: click.Context, setting: "Setting") -> JobRequest:
        """The job of one run, as submit makes it of options. Raises ValueError and click.UsageError."""
        from hpcdl.cli.submit.command import submit

        values = {"{batch}": setting.batch, "{gpus}": setting.gpus, "{nodes}": setting.nodes}
        command = list(self.command)
        for name, value in values.items():
            command = [part.replace(name, str(value)) for part in command]
        flags = [f"--gpus={setting.gpus}", f"--nodes={setting.nodes}", f"--cwd={self.cwd}"]
        flags += [f"--name={self.name} b{setting.batch} {setting.nodes}x{setting.gpus}"]
        flags += [f"--batch={setting.batch}", f"--kind={self.kind}", f"--model={self.model or self.name}"]
        flags += [f"--env={each}" for each in (*self.env, f"{BATCH}={setting.batch}")]
        flags += [] if self.progress_regex is None else [f"--progress-regex={self.progress_regex}"]
        return request_of(ctx, submit, flags, command)


def _known_job(client: Client, asked: _RunOptions) -> _RunOptions:
    """The options with the command and folder of the job whose number COMMAND is; else as they are, and here."""
    only = asked.command[0]
    if len(asked.command) > 1 or not (only.isascii() and only.isdigit()):
        return replace(asked, cwd=os.getcwd(), name=default_name(asked.command)[:150])
    spec = client.get(f"/v1/jobs/{int(only)}")["job"]["spec"]
    command = tuple(str(part) for part in spec["command"])
    regex = asked.progress_regex or spec.get("progress_regex")
    model = asked.model or spec.get("model") or spec["name"]
    return replace(asked, command=command, cwd=spec["cwd"], name=spec["name"][:150], model=model, progress_regex=regex)


def _check_room(client: Client, settings: "Sequence[Setting]") -> None:
    """Raises ClickException for a setting that the nodes can never hold: its job would wait for ever."""
    from hpcdl.cli.profile.light_runs import shape_text

    nodes = [each for each in client.get("/v1/nodes")["nodes"] if each["connected"]]
    sizes = [sum(gpu["state"] == "ok" for gpu in each["gpus"]) for each in nodes]
    for setting in settings:
        fitting = sum(size >= setting.gpus for size in sizes)
        if fitting < setting.nodes:
            what = f"{shape_text(setting)}: {fitting} of {len(sizes)} connected nodes could hold it"
            raise click.ClickException(f"no room for {what}: see hpcdl nodes")


def _kept(path: Path) -> "list[LightRun]":
    from hpcdl.cli.profile.light_runs import read_runs

    if not path.exists():
        return []
    found = read_runs(path)
    if found:
        say(f"{path} holds {len(found)} runs already; they are not repeated")
    return found


def _measure(
    ctx: click.Context, client: Client, asked: _RunOptions, setting: "Setting", what: str
) -> "tuple[LightRun | None, bool]":
    """One run as a job, which is over when this returns. None: it was not measured, and the user has read why.

    Also whether other runs of the command will hardly do better: only want of memory is the setting's own.
    """
    from hpcdl.cli.profile.light_runs import shape_text

    try:
        body = {"request_id": os.urandom(16).hex(), "jobs": [asked.request(ctx, setting).entry()]}
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from None
    number = int(client.request("POST", "/v1/jobs", body)["jobs"][0]["id"])
    say(f"{what}: {shape_text(setting)} is job {number}")
    try:
        speed = _watch(client, number, asked)
    finally:
        _end(client, number)
    if speed is not None:
        return speed.run(setting), False
    row = client.get(f"/v1/jobs/{number}")["job"]
    say(f"{what} was not measured: {_why(row, asked)}")
    return None, row.get("cause") != Cause.OUT_OF_MEMORY


def _why(row: Any, asked: _RunOptions) -> str:
    log = f"see hpcdl logs {row['id']}"
    if row["state"] == "FAILED":
        return f"{end_text(row)}: {log}"
    if row["state"] == "DONE":
        return f"job {row['id']} ended before {asked.steps} steps were measured: let it train longer"
    return (
        f"job {row['id']} had not reported {asked.steps} steps after {asked.limit:g} s: {log}, or give a longer --limit"
    )


def _watch(client: Client, number: int, asked: _RunOptions) -> "Speed | None":
    """The speed of a run, once it is measured, over, or too long under way (None)."""
    from hpcdl.cli.profile.light_runs import speed_of

    events: list[Any] = []
    started_at = None
    for page in client.follow_events(0, number, wait_s=lambda: _WAIT_S):
        events += page
        speed = speed_of(events, asked.steps)
        if speed is not None and speed.steps >= asked.steps:
            return speed
        kinds = {event["kind"] for event in events}
        if started_at is None and kinds & {"Started", "TrainerReady", "Progressed"}:
            started_at = time.monotonic()
        if kinds & {"JobEnded", "Exited"} and _row_of(client, number)["state"] in FINISHED:
            return speed
        if started_at is not None and time.monotonic() - started_at > asked.limit:
            return None
    return None


def _row_of(client: Client, number: int) -> Any:
    return client.get(path_with("/v1/jobs", ids=number))["jobs"][0]


def _end(client: Client, number: int) -> None:
    """Cancel the job unless it is over, and wait until its GPUs are free."""
    if _row_of(client, number)["state"] not in FINISHED:
        client.request("POST", f"/v1/jobs/{number}/cancel", {})
    while not client.get(path_with("/v1/wait", ids=number, timeout=_WAIT_S), wait_s=_WAIT_S)["done"]:
        pass


def _row(run: "LightRun") -> dict[str, Any]:
    at = run.setting
    return {
        "batch": at.batch,
        "nodes": at.nodes,
        "gpus": at.gpus,
        "steps_per_s": run.samples_per_s / at.batch,
        "samples_per_s": run.samples_per_s,
        "startup_s": run.startup_s,
    }


@profile.command(short_help="Make a profile from measured runs.")
@click.argument("runs", type=InputFile())
@click.option("-n", "--name", required=True, metavar="NAME", help="What jobs call the profile: submit --profile NAME.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    metavar="B",
    help="Of jobs that say none.  [default: the largest that was run]",
)
@click.option("--nodes", type=click.IntRange(1, 1000), metavar="N", help="Up to so many nodes.  [default: as was run]")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="G", help="Up to so many on each.  [default: as was run]")
@click.option("--inference", is_flag=True, help="Its GPUs do not synchronise.")
@click.option(
    "-o", "--output", "out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="A new file for the profile; the daemon reads those in its folder's profiles/.  [default: print it]",
)  # fmt: skip
@outputs_as("The name of the profile only.")
def fit(
    ctx: click.Context,
    output: Output,
    runs: Path,
    name: str,
    batch: int | None,
    nodes: int | None,
    gpus: int | None,
    inference: bool,
    out: Path | None,
) -> None:
    """Fit GENIE's prediction model to RUNS, the file of `profile run`, and make a profile of it.

    It answers for every batch size: submit --profile NAME --batch B.

    hpcdl profile fit runs.csv --name resnet50 -o ~/.hpcdl/profiles/resnet50.yaml
    """
    from hpcdl.cli.profile.light_runs import read_runs
    from hpcdl.estimators.latency import fit as fit_model
    from hpcdl.estimators.latency import profile_of

    found = read_runs(runs)
    if out is not None and out.exists():
        raise click.ClickException(f"{out} is there already: name a new file, or remove it")
    try:
        model = fit_model(found, synchronises=not inference)
    except ValueError as error:
        raise click.ClickException(f"{runs}: {error}") from None
    size = batch or max(each.setting.batch for each in found)
    most_nodes = nodes or max(each.setting.nodes for each in found)
    most_gpus = gpus or max(each.setting.gpus for each in found)
    made = profile_of(model, name, size, most_nodes, most_gpus)
    mapping = made.to_mapping()
    if out is not None:
        replace_file(out, yaml_text(made.name, mapping))
    figures = {"gamma": model.gamma, "lambda": model.lambda_, "startup_s": model.startup_s, "error": model.error}
    value = {"name": made.name, "profile": mapping, "model": figures, "runs": len(found)}
    if not output.print_data(value, [made.name]):
        if out is None:
            print(yaml_text(made.name, mapping), end="")
        else:
            print(f"wrote {escape(str(out))}: {len(found)} runs, fitted within {model.error:.1%}")
    if model.error > 0.05:
        say(f"the runs are {model.error:.0%} off the model on average: measure longer, or while nothing else runs")
