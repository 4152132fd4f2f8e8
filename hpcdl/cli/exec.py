"""`hpcdl exec` and `attach`: a command or a shell beside a running job, on its node."""

import os
import sys
from pathlib import Path

import click

from hpcdl.cli.output import say
from hpcdl.cli.rows import JOB_ID, connect

NODE = click.option(
    "--node", default="", metavar="NAME", help="Of a job on several nodes: there, not on the first one."
)
RANK = click.option(
    "--rank", type=click.IntRange(0, 99_999_999), metavar="N",
    help="Of a job on several nodes: where this rank is, of one for each GPU.",
)  # fmt: skip


@click.command("exec")
@click.argument("job", type=JOB_ID)
@NODE
@RANK
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def execute(ctx: click.Context, job: int, node: str, rank: int | None, tty: bool, command: tuple[str, ...]) -> None:
    """Run a command beside a running job: on its node, in its folder, with its environment and its GPUs.

    Input, output and errors are this command's, Ctrl-C goes to the command, and its exit code is the one here (128 and
    the number of a signal). It is no part of the job, and is ended when the job is suspended, moves or ends.
    """
    if not command[0]:
        raise click.UsageError("the command is empty", ctx)
    if tty:
        _need_terminal(f"hpcdl exec {job} -- ... runs it without one")
    _run(ctx, job, command, node, rank, tty)


@click.command()
@click.argument("job", type=JOB_ID)
@NODE
@RANK
@click.pass_context
def attach(ctx: click.Context, job: int, node: str, rank: int | None) -> None:
    """Open a shell beside a running job: on its node, in its folder, with its environment and its GPUs.

    It is no part of the job, and is closed when the job is suspended, moves or ends.
    """
    _need_terminal(f"hpcdl exec {job} -- COMMAND runs a command without one")
    _run(ctx, job, (os.environ.get("SHELL") or "/bin/sh",), node, rank, True)


def _need_terminal(instead: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException(f"stdin and stdout are no terminal: {instead}")


def _run(ctx: click.Context, job: int, command: tuple[str, ...], node: str, rank: int | None, terminal: bool) -> None:
    if node and rank is not None:
        raise click.UsageError("--node and --rank exclude each other", ctx)
    with connect(ctx, 0.0) as client:
        client.get(f"/v1/jobs/{job}")  # says what is wrong with the daemon or the job in the usual words
    from hpcdl.cli.shellclient import run

    home: Path = ctx.find_root().obj
    ended = run(home, job, command, node, terminal, -1 if rank is None else rank)
    if ended.why:
        say(ended.why)
    ctx.exit(1 if ended.code is None else ended.code)
