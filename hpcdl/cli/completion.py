"""`hpcdl completion`: what makes a shell complete hpcdl's commands, options, jobs and nodes."""

import click

from hpcdl.cli.root import COMPLETE, cli

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete the commands, options, jobs, nodes and so on of hpcdl.

    \b
    bash  in ~/.bashrc:  eval "$(hpcdl completion bash)"
    zsh   in ~/.zshrc, after compinit:  eval "$(hpcdl completion zsh)"
    fish  once:  hpcdl completion fish > ~/.config/fish/completions/hpcdl.fish
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """The script, as click writes it. It asks nobody which version the shell has."""
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"click completes nothing for {shell}")
    return ShellComplete.source(kind(cli, {}, "hpcdl", COMPLETE))
