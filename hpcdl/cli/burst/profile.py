"""`hpcdl burst profile`: what the layers of a training script cost, as the problem that `burst plan` reads.

The measuring is the trainer library's (trainer/burst_profile.py), in the Python of the command, which needs no hpcdl.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from hpcdl.cli.params import Finite, OutputFile, replace_file
from hpcdl.cli.submit.gate import run_by

MODULE = "hpcdl.trainer.burst_profile"


@click.command(short_help="Measure the layers of a training script.")
@click.option("-o", "--out", type=OutputFile(), metavar="FILE", help="Write there, not to stdout.")
@click.option("--gpus", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="GPUs to plan for.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Global batch; the script's own if left out.")
@click.option("--bytes-per-s", type=Finite(min=0, min_open=True), default=1e10, metavar="X",
              help="Of the network between two GPUs; 1e10 if left out.")  # fmt: skip
@click.option("--latency-s", type=Finite(min=0), default=1e-5, metavar="X",
              help="Of one transfer; 1e-5 if left out.")  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def profile(
    ctx: click.Context,
    out: Path | None,
    gpus: int,
    batch: int | None,
    bytes_per_s: float,
    latency_s: float,
    command: tuple[str, ...],
) -> None:
    """Run a training script up to its first step, and time each layer of its model alone, forward and backward.

    COMMAND is `python SCRIPT` or `python -m MODULE`, of PyTorch. What it prints goes to stderr.

    hpcdl burst profile -o problem.json -- python train.py
    """
    options = ["--gpus", str(gpus), "--bytes-per-s", repr(bytes_per_s), "--latency-s", repr(latency_s)]
    options += [] if batch is None else ["--batch", str(batch)]
    try:
        text = measure(command, Path.cwd(), options)
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from None
    if out is None:
        click.echo(text, nl=False)
    else:
        replace_file(out, text, 0o644)
        click.echo(f"{len(json.loads(text)['layers'])} layers measured: {out}", err=True)


def measure(command: tuple[str, ...], folder: Path, options: Sequence[str]) -> str:
    """The problem that a script's layers make, as JSON. `options`: of trainer/burst_profile.py.

    Raises ValueError where the command is no Python script, and ClickException where nothing was measured.
    """
    from hpcdl.agent.library import with_library

    with tempfile.TemporaryDirectory(prefix="hpcdl-profile-") as made_in:
        made = Path(made_in, "problem.json")
        argv = run_by(["-m", MODULE, "--out", str(made), *options], command, "burst profile")
        environ = os.environ | {"PYTHONPATH": with_library(os.environ.get("PYTHONPATH", ""), Path(made_in))}
        try:
            code = subprocess.run(argv, env=environ, cwd=folder, stdout=2, check=False).returncode
        except OSError as error:
            raise click.ClickException(f"cannot start {argv[0]}: {error.strerror}") from None
        if not made.exists():
            raise click.ClickException(f"{command[0]} ended with exit code {code} before anything was measured")
        return made.read_text(encoding="utf-8")
