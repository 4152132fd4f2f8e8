"""`hpcdl ls`: jobs, nodes and GPUs as they are now, in columns that the user chooses.

The lists themselves are in tables.py and columns.py, those of other users in all_users.py. Most calls are `hpcdl ls`
without options: what the others need is imported late.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from hpcdl.cli import completion
from hpcdl.cli.job_row import STATES, connect
from hpcdl.cli.output import Output, escape, outputs, print_ids, print_json, say
from hpcdl.cli.tables import Jobs, List, columns_of, formats_of
from hpcdl.client import FOLLOW_S, Client, DaemonAway
from hpcdl.core.model.units import count, meant, parse_duration
from hpcdl.wire.spool import FOLDER, waiting

EVERY_S, LEAST_S = 2.0, 0.1
"""Of `--watch`: the seconds between two looks, and the fewest that may be chosen."""

_CLEAR, _HOME, _TO_END, _BELOW = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


def watch_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """The seconds of `--watch`; a word that is no number is what to list, since the number may be left out."""
    if value is None:
        return None
    try:
        seconds = parse_duration(value)
    except ValueError:
        ctx.meta["hpcdl.ls.what"] = value
        return EVERY_S
    if not LEAST_S <= seconds <= 86_400:
        raise click.BadParameter(f"{value} is not from {LEAST_S:g} to 86400 seconds", ctx, param)
    return seconds


class ListWatch:
    """Prints a list whenever it has changed; on a terminal in place of what was there."""

    def __init__(self, found: List, client: Client, every_s: float, output: Output, title: str) -> None:
        self._list = found
        self._client = client
        self._every_s = every_s
        self._output = output
        self._title = title
        self._last: Any = None
        self._live = output is Output.TABLE and sys.stdout.isatty()

    def refresh(self) -> None:
        """Asks the daemon, and prints what is new. Raises ClientError."""
        found = self._list.look(self._client, self._output)
        lines = found.lines or [self._list.nothing]
        shown: Any = {Output.JSON: found.value, Output.QUIET: found.ids, Output.TABLE: lines}[self._output]
        if self._live:
            self._redraw(shown)
        elif shown != self._last:
            if self._output is Output.JSON:
                print_json(found.value, one_line=True)
            else:
                if self._last is not None:
                    print()
                print_ids(shown)
        self._last = shown
        sys.stdout.flush()

    def _redraw(self, found: list[str]) -> None:
        import shutil

        size = shutil.get_terminal_size()
        room = max(1, size.lines - 2)
        if len(found) > room:
            found = [*found[: room - 1], f"… {len(found) - room + 1} more lines: make the terminal higher, or filter"]
        head = f"{self._title}: every {self._every_s:g} s, Ctrl-C ends"
        text = "\n".join(f"{line}{_TO_END}" for line in (escape(head)[: size.columns], *found))
        sys.stdout.write(f"{_CLEAR if self._last is None else ''}{_HOME}{text}\n{_BELOW}")


LISTS = ("jobs", "nodes", "gpus")


@click.command()
@click.argument("what", required=False, metavar="[jobs|nodes|gpus]", shell_complete=completion.words(LISTS))
@click.option("-a", "--all", "every", is_flag=True, help="Finished jobs too.")
@click.option(
    "-c", "--columns", metavar="NAME,…", help="These columns only, in this order; a wrong name lists them.",
    shell_complete=columns_of,
)  # fmt: skip
@click.option(
    "-f", "--format", "form", default="default", metavar="NAME", help="default, long; of jobs also times, …",
    shell_complete=formats_of,
)  # fmt: skip
@click.option(
    "-s", "--sort", metavar="COLUMN", help="Sort by a column; -COLUMN the other way round.", shell_complete=columns_of
)
@click.option(
    "--state", "states", multiple=True, metavar="STATE,…", help="Jobs in these states only.",
    shell_complete=completion.words(STATES, listed=True),
)  # fmt: skip
@click.option("-u", "--user", metavar="NAME", help="Jobs of this user only.")
@click.option("-n", "--name", metavar="GLOB", help="Jobs with such a name only: 'sweep-*'.")
@click.option("-t", "--tag", metavar="GLOB,…", help="Jobs with such a tag only.")
@click.option(
    "--group",
    type=click.Choice(("sweep",)),
    help="A line for each array, finished jobs too, with its best: the first by --sort.  [default of --sort: metric]",
)
@click.option("--no-fold", is_flag=True, help="A line for each member of an array, and for each node.")
@click.option(
    "-w", "--watch", "every_s", is_flag=False, flag_value="2", metavar="[SECONDS]", callback=watch_seconds,
    help="Again whenever it has changed, until Ctrl-C.",
)  # fmt: skip
@click.option("--all-users", is_flag=True, help="The daemons of all users on this node that you may look at.")
@click.option("--homes", multiple=True, metavar="PATH", help="With --all-users: look at these homes, not at this node.")
@outputs
def ls(
    ctx: click.Context,
    /,
    what: str | None,
    output: Output,
    every_s: float | None,
    all_users: bool,
    homes: tuple[str, ...],
    **chosen: Any,
) -> None:
    """List the jobs that are not finished, oldest first; or the nodes, or the GPUs of all nodes.

    GPUS is what a job holds now, over what it asked for (1:4, at least 1 and at most 4; 4:, at least 4; 2x4, 4 on each
    of 2 nodes; 1:8x4, 4 on each of 1 to 8 nodes). ELAPSED counts from its first start. PROGRESS and METRIC are what was
    reported last, so they may be a monitor interval (10 s) old. ETA is measured; until it is, it is from the job's
    profile, or with its band from other jobs' steps: ~3m30s (1-6m). NOTE says what there is to say besides: its place
    in the queue, who preempts it.
    """
    unread = ctx.meta.get("hpcdl.ls.what")
    if unread is not None:
        if what is not None:
            raise click.UsageError(f"{unread!r} is no number of seconds", ctx)
        what = unread
    if all_users or homes:
        _all_users(ctx, all_users, homes, what, output, every_s, chosen)
        return
    what = what or "jobs"
    if what not in LISTS:
        named = f"{', '.join(LISTS)} are; jobs called so: hpcdl ls --name {shlex.quote(what[:100])}"
        near = meant(what, LISTS, named, text="hpcdl ls {}".format, cutoff=0.8)
        if re.fullmatch(r"\d[\d,-]*", what, re.ASCII):
            near = f"hpcdl show {what} shows {'a job' if what.isdigit() else 'jobs'}"
        raise click.UsageError(f"{what!r} is nothing to list: {near}", ctx)
    if what == "jobs":
        found: List = Jobs(ctx, **chosen)
    else:
        from hpcdl.cli.tables import Machines

        found = Machines(ctx, what, **chosen)
    if every_s is not None:
        from hpcdl.cli.interrupt import repeat

        repeat(every_s, ListWatch(found, connect(ctx, FOLLOW_S), every_s, output, f"hpcdl ls {what}").refresh)
    _once(ctx, found, connect(ctx, reading=True), output)


def _all_users(
    ctx: click.Context,
    asked: bool,
    homes: tuple[str, ...],
    what: str | None,
    output: Output,
    every_s: float | None,
    chosen: dict[str, Any],
) -> None:
    from hpcdl.cli.all_users import list_all_users

    if not asked:
        raise click.UsageError("--homes goes with --all-users", ctx)
    if every_s is not None or chosen.pop("form") != "default" or any(chosen.values()):
        raise click.UsageError("--all-users goes with --homes, --json and --quiet only", ctx)
    list_all_users(ctx, homes, what, output)


def _once(ctx: click.Context, found: List, client: Client, output: Output) -> None:
    try:
        listing = found.look(client, output)
    except DaemonAway as error:
        raise DaemonAway(f"{error}{_spooled(ctx.find_root().obj) if isinstance(found, Jobs) else ''}") from None
    if not output.print_data(listing.value, listing.ids):
        if listing.lines:
            print("\n".join(listing.lines))
        if note := listing.note if listing.lines else found.nothing:
            say(note)


def _spooled(home: Path) -> str:
    """How many submits the next daemon takes in from the spool; "" for none."""
    number = waiting(home)
    return f"; it takes in {count(number, 'submit')} spooled in {home / FOLDER}" if number else ""
