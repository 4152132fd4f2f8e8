"""`hpcdl completion`, and what the shell is offered when a user presses Tab: jobs, nodes, profiles and the like.

Imported by every command, so it imports nothing heavy. Without a daemon, or with a slow one, nothing is offered: a
shell that waits, or an error in the middle of a line, would be worse.
"""

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
    """The shell's script as click writes it, without asking which version the shell has."""
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    return ShellComplete.source(kind(cli, {}, "hpcdl", COMPLETE))


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
    """Offers ids of jobs, with name and state; to who begins a name, names."""
    command = ctx.info_name or ""
    query: dict[str, object] = {"fields": "id,name,state", "last": None if incomplete else MOST}
    if command in _FINISHED_TOO:
        query["all"] = 1
    rows = _asked(ctx, path_with("/v1/jobs", **query), "jobs")
    words = ctx.params.get(param.name or "") or () if param.nargs == -1 else ()
    taken = {str(each) for word in words for each in (word if isinstance(word, range) else (word,))}
    if command in _FINISHED_ONLY:
        rows = [row for row in rows if row.get("state") in ("FAILED", "CANCELLED")]
    found = [(str(row["id"]), f"{row.get('state', '')} {row.get('name', '')}") for row in rows]
    if incomplete and not incomplete[0].isdigit():
        found = [(str(row.get("name", "")), f"{row.get('state', '')} {row['id']}") for row in rows]
    return _items([offer for offer in found if offer[0] not in taken][-MOST:], incomplete)


def offered(path: str, key: str, text: Callable[[dict[str, Any]], str] = lambda row: "") -> Complete:
    """Offers what the daemon answers under `key`: names, or rows with a name and what `text` says of them."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        rows = [each if isinstance(each, dict) else {"name": str(each)} for each in _asked(ctx, path, key)]
        return _items([(row["name"], text(row)) for row in rows], incomplete)

    return complete


def _node_text(row: dict[str, Any]) -> str:
    """Whether its agent is connected."""
    told = "lost" if row.get("lost") else "connected" if row.get("connected") else "away"
    return f"{told}, drained" if row.get("leaving") else told


nodes = offered("/v1/nodes", "nodes", _node_text)
policies = offered("/v1/config", "policies")
objectives = offered("/v1/config", "objectives")
profiles = offered(
    "/v1/profiles", "profiles", lambda row: "learnt" if row.get("learnt") else str(row.get("source") or "")
)


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Offers files, by the shell itself."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def words(offers: Iterable[str], *, listed: bool = False) -> Complete:
    """Offers these words; `listed`: several of them, with commas between."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        given = set(before.lower().split(","))
        known = [(word, "") for word in offers if word.lower() not in given]
        return _items([(f"{before}{comma}{word}", told) for word, told in known], f"{before}{comma}{last}")

    return complete


def _items(offers: Sequence[Offer], incomplete: str) -> list[Any]:
    """The offers that begin like what was typed, in whichever case."""
    from click.shell_completion import CompletionItem

    begin = incomplete.lower()
    return [
        CompletionItem(escape(word), help=escape(told) if told else None)
        for word, told in offers
        if word.lower().startswith(begin)
    ]


def _asked(ctx: click.Context, path: str, key: str) -> list[Any]:
    """A list from the daemon's answer; an empty one where it does not answer in time."""
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
