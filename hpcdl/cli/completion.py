"""`hpcdl completion`: what makes a shell complete hpcdl's commands, options, jobs and nodes."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.output import escape
from hpcdl.cli.root import COMPLETE, cli
from hpcdl.client import Client, ClientError, path_with

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


# What the shell is offered when a user presses Tab: jobs, nodes, profiles and the like, as the daemon has them now.
#
# Imported by every command, so it imports nothing heavy. Without a daemon, or one that is slow, nothing is offered: a
# shell that waits, or an error in the middle of a line, would be worse.

PATIENCE = "HPCDL_COMPLETION_S"
"""The variable with the seconds in which the daemon has to answer."""

ANSWER_S = 0.5

MOST = 500
"""Jobs that are offered, the newest of them."""

_FINISHED_TOO = frozenset({"show", "why", "logs", "wait", "events", "timeline", "retry"})
"""Commands that are about finished jobs too."""

_FINISHED_ONLY = frozenset({"retry"})

Offer = tuple[str, str]
"""A word, and what it is."""

Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def job_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Ids, with name and state."""
    command = ctx.info_name or ""
    query: dict[str, object] = {"fields": "id,name,state", "last": None if incomplete else MOST}
    if command in _FINISHED_TOO:
        query["all"] = 1
    rows = _asked(ctx, path_with("/v1/jobs", **query), "jobs")
    taken = {str(each) for each in ctx.params.get(param.name or "") or ()} if param.nargs == -1 else set()
    if command in _FINISHED_ONLY:
        rows = [row for row in rows if row.get("state") in ("FAILED", "CANCELLED")]
    found = [(str(row["id"]), f"{row.get('state', '')} {row.get('name', '')}") for row in rows]
    return _items([offer for offer in found if offer[0] not in taken][-MOST:], incomplete)


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of nodes, with whether their agents are connected."""
    rows = _asked(ctx, "/v1/nodes", "nodes")
    return _items([(row["name"], _node_text(row)) for row in rows], incomplete)


def _node_text(row: dict[str, Any]) -> str:
    told = "lost" if row.get("lost") else "connected" if row.get("connected") else "away"
    return f"{told}, drained" if row.get("leaving") else told


def policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of the daemon's policies."""
    return _items([(str(name), "") for name in _asked(ctx, "/v1/config", "policies")], incomplete)


def objectives(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of objectives."""
    return _items([(str(name), "") for name in _asked(ctx, "/v1/config", "objectives")], incomplete)


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of profiles, and of what they were learnt from."""
    rows = _asked(ctx, "/v1/profiles", "profiles")
    return _items(
        [(row["name"], "learnt" if row.get("learnt") else str(row.get("source") or "")) for row in rows], incomplete
    )


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Whatever the shell offers for files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def words(offers: Iterable[str], *, listed: bool = False) -> Complete:
    """These words; `listed`: several of them, with commas between."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        given = set(before.lower().split(","))
        known = [(word, "") for word in offers if word.lower() not in given]
        return _items([(f"{before}{comma}{word}", told) for word, told in known], f"{before}{comma}{last}")

    return complete


def _items(offers: Sequence[Offer], incomplete: str) -> list[Any]:
    """Those that begin so, in whichever case it was typed."""
    from click.shell_completion import CompletionItem

    begin = incomplete.lower()
    return [
        CompletionItem(escape(word), help=escape(told) if told else None)
        for word, told in offers
        if word.lower().startswith(begin)
    ]


def _asked(ctx: click.Context, path: str, key: str) -> list[Any]:
    """What the daemon answers in time; nothing else in any case."""
    home = ctx.find_root().params.get("home")
    if not isinstance(home, Path):
        return []
    try:
        within_s = float(os.environ.get(PATIENCE) or ANSWER_S)
        with Client(home, patience_s=0.0, answer_s=within_s) as client:
            found = client.get(path).get(key)
    except (ClientError, OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
