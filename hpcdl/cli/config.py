"""`hpcdl config`: the policy and the objective that the running daemon uses."""

import click

from hpcdl.cli.output import Output, outputs, print_fields, print_ids, print_json
from hpcdl.cli.rows import connect
from hpcdl.client import Answer


@click.group(invoke_without_command=True)
@outputs
@click.pass_context
def config(ctx: click.Context, output: Output) -> None:
    """Show or set what the running daemon uses; it is kept over a restart.

    Everything else is set in files and read at the start: see docs/settings.md.
    """
    if ctx.invoked_subcommand is None:
        _print(connect(ctx).get("/v1/config"), output)
    elif output is not Output.TABLE:
        raise click.UsageError(f"write --{output.value} after {ctx.invoked_subcommand}", ctx)


@config.command()
@outputs
@click.pass_context
def show(ctx: click.Context, output: Output) -> None:
    """Show policy and objective, and what they may be."""
    _print(connect(ctx).get("/v1/config"), output)


@config.command()
@click.argument("name")
@outputs
@click.pass_context
def policy(ctx: click.Context, name: str, output: Output) -> None:
    """Let the daemon decide by the policy NAME from now on."""
    _print(connect(ctx).request("PUT", "/v1/config", {"policy": name}), output)


@config.command()
@click.argument("name")
@outputs
@click.pass_context
def objective(ctx: click.Context, name: str, output: Output) -> None:
    """Let the daemon aim at the objective NAME from now on.

    It is for policies that weigh one; marble, marble-warm and fifo-exclusive decide the same whatever it is.
    """
    _print(connect(ctx).request("PUT", "/v1/config", {"objective": name}), output)


def _print(answer: Answer, output: Output) -> None:
    chosen = answer["config"]
    if output is Output.JSON:
        print_json(answer)
    elif output is Output.QUIET:
        print_ids(list(chosen.values()))
    else:
        choices = {"policy": answer.get("policies") or (), "objective": answer.get("objectives") or ()}
        print_fields([(name, f"{value}  (of {', '.join(choices.get(name, ()))})") for name, value in chosen.items()])
