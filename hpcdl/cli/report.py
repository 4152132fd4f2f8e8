"""`hpcdl report`: where all GPU-hours went: useful, starting, saving, rescaling, lost or idle.

The account is made in hpcdl/report/account.py, from events: the running daemon's, else those of the ledger.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.job_row import connect, moment_text
from hpcdl.cli.job_selection import Selection, selects
from hpcdl.cli.offline import ledger_at_rest, tell_as_of
from hpcdl.cli.output import (
    Column,
    Output,
    cells_of,
    escape,
    outputs_as,
    print_table,
    progress,
    say,
    stdout_takes,
    table_lines,
    width_of,
)
from hpcdl.cli.params import Moment, OneOf, OutputFile, replace_file
from hpcdl.client import ApiError, Client, CopyWithoutDaemon, DaemonAway, path_with
from hpcdl.core.model.units import count, seconds_text

if TYPE_CHECKING:
    from hpcdl.core.model.events import Recorded
    from hpcdl.report.account import Account, AccountLine, Shares, Story
    from hpcdl.report.use import JobUse

_UseRows = list[dict[str, Any]]

_PAGE = 10_000  # events in one question
_MANY = 20_000  # more than these are read from a copy
_WIDTH, _LEAST = 24, 6  # letters of the longest bar
_NAME = 24  # of a name, before bars get shorter for it
_MARKS = {"useful": "█", "starting": "▒", "saving": "▓", "rescaling": "▞", "lost": "×", "idle": "·"}
_BY = ("job", "array", "day", "user", "tag", "policy")
_ALSO = {"day": "job", "job": "day", "array": "job", "user": "job", "tag": "job", "policy": "day"}
"""What a page shows beside what was asked for."""


@click.command()
@click.option(
    "--since", type=Moment(past=True), metavar="TIME", help="From then on: -7d, 18:30, 2026-05-01.  [default: all]"
)
@click.option("--until", type=Moment(past=True), metavar="TIME", help="Up to then.  [default: now]")
@click.option("--by", type=OneOf(_BY), default="job", show_default=True, help="A line for each.")
@click.option(
    "-o", "--output", "target", type=OutputFile(), metavar="FILE",
    help="Draw it as one HTML file.",
)  # fmt: skip
@selects(acts=False)
@outputs_as("Keys only (job ids, days, users, …), one a line.")
def report(
    ctx: click.Context,
    output: Output,
    since: float | None,
    until: float | None,
    by: str,
    target: Path | None,
    chosen: Selection,
) -> None:
    """Show where all GPU-hours went: useful, in checkpoints, lost to failures, idle.

    A GPU counts while it could be given to jobs or a job held it; every second is in exactly one share. With JOBS only
    what these held. Works without a daemon too.
    """
    from hpcdl.report.account import account
    from hpcdl.report.use import use_of

    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since must be before --until", ctx)
    jobs = chosen.look_up(connect(ctx, 0.0, reading=True)) if chosen else []
    if chosen and not jobs:
        raise click.ClickException("there is no such job: hpcdl ls --all lists them")
    story, measured, now, live = _story(ctx)
    use = use_of(measured, story.history, story.watch)
    known = {job.id for job in story.history.jobs}
    missing = [job for job in jobs if job not in known]
    if missing:
        raise click.ClickException(f"there is no job {missing[0]}: hpcdl ls --all lists them")
    if not live:
        tell_as_of(ctx, now)
    end = now if until is None or until > now else until

    def made(of: str) -> "Account":
        return account(
            story,
            of,
            since=since,
            until=end,
            jobs=jobs or None,
            days=_days(story, end) if of == "day" else (),
            use=use,
        )

    found = made(by)
    if target is not None:
        from hpcdl.report.stacked import account_page

        home: Path = ctx.find_root().obj
        replace_file(target, account_page(f"hpcdl on {home}", _span_text(found), [found, made(_ALSO[by])]))
    if output.print_data(
        _json(found, jobs) | {"file": None if target is None else str(target.absolute())},
        [line.key for line in found.lines if line.key],
    ):
        return
    if target is not None:
        print(f"wrote {escape(str(target))}")
    else:
        _print(found)


# --- where the events are ---------------------------------------------------------------------------------------------


def _story(ctx: click.Context) -> "tuple[Story, _UseRows, float, bool]":
    """The events' story, what was measured of jobs, until when, and whether a daemon runs: then they are the daemon's,
    else those of its ledger."""
    from hpcdl.daemon.clock import WallClock
    from hpcdl.report.account import story_of_rows

    tell, client = progress(), connect(ctx, 0.0)
    try:
        events: int = client.get(path_with("/v1/events", after=0, limit=1))["last"]
    except (DaemonAway, CopyWithoutDaemon) as error:
        with ledger_at_rest(client.home, error) as copy:
            past, use = _story_in(copy.path, tell)
        return past, use, past.watch.last_at, False
    story: Story | None = None
    if events > _MANY:  # a copy costs the daemon less than so many answers
        from hpcdl.cli.ledger import any_ledger

        with suppress(ApiError), any_ledger(ctx, tell) as (path, _):
            story, _ = _story_in(path, tell)
    if story is None:
        story = story_of_rows(_rows(client, tell))
    use = []
    with suppress(ApiError):  # a daemon of an earlier version does not say it
        use = client.get("/v1/use")["use"]
    return story, use, max(story.watch.last_at, WallClock(0.0).now()), True


def _story_in(path: Path, tell: Callable[[str], None]) -> "tuple[Story, _UseRows]":
    """That of the events in a file, and what was measured of jobs: as `GET /v1/use` answers it."""
    from hpcdl.core.model.series import GPU_USE
    from hpcdl.ledger.offline import Reader
    from hpcdl.ledger.series import read_means
    from hpcdl.report.account import story_of

    with Reader(path) as reader:
        with reader.reading() as connection:
            means = read_means(connection, GPU_USE)
        use = [{"job": job, **{name: means[job].get(name) for name in GPU_USE}} for job in sorted(means)]
        return story_of(_told(reader.records(), tell)), use


def _rows(client: Client, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """All events, oldest first; the next page is requested while one is read."""
    from concurrent.futures import ThreadPoolExecutor

    def page(after: int) -> dict[str, Any]:
        return client.get(path_with("/v1/events", after=after, limit=_PAGE))

    with ThreadPoolExecutor(1) as asking:
        answer = page(0)
        while found := answer["events"]:
            after = found[-1]["seq"]
            following = asking.submit(page, after) if after < answer["last"] else None
            yield from found
            if following is None:
                return
            tell(f"{after} of {answer['last']} events read")
            answer = following.result()


def _told(records: "Iterable[Recorded]", tell: Callable[[str], None]) -> "Iterator[Recorded]":
    for record in records:
        yield record
        if record.seq % 50_000 == 0:
            tell(f"{record.seq} events read")


def _days(story: "Story", end: float) -> list[tuple[float, str]]:
    """The local midnights from the first event on, with their dates."""
    first = min([story.history.begin, *(at for at, _ in story.watch.chosen)])
    day = datetime.fromtimestamp(first).astimezone().date()
    found: list[tuple[float, str]] = []
    while not found or found[-1][0] <= end:
        found.append((datetime.fromisoformat(day.isoformat()).astimezone().timestamp(), day.isoformat()))
        day += timedelta(days=1)
    return found


# --- what is printed --------------------------------------------------------------------------------------------------


def _json(found: "Account", jobs: Sequence[int]) -> dict[str, Any]:
    return {
        "since": found.begin,
        "until": found.end,
        "by": found.by,
        "jobs": list(jobs),
        "gpus": found.gpus,
        "total": _numbers(found.shares, found.use),
        "rows": [
            {"key": line.key or None, "name": line.name, "suspends": line.suspends, "failures": line.failures}
            | _numbers(line.shares, line.use)
            for line in found.lines
        ],
        "suspends": dict(found.suspends),
        "ends": dict(found.ends),
    }


def _numbers(shares: "Shares", use: "JobUse") -> dict[str, Any]:
    """GPU-hours by share, the goodput, and what was measured of the GPUs' use."""
    from hpcdl.report.account import NAMES

    told: dict[str, Any] = {f"{name}_gpu_h": getattr(shares, name) / 3600 for name in NAMES}
    measured = {"gpu_utilisation": use.util, "gpu_memory_utilisation": use.memory}
    return {"available_gpu_h": shares.available / 3600} | told | {"goodput": shares.goodput} | measured


def _span_text(found: "Account") -> str:
    return f"{moment_text(found.begin)} to {moment_text(found.end)} ({seconds_text(found.end - found.begin)})"


def _print(found: "Account") -> None:
    from hpcdl.core.model.incarnation import Purpose
    from hpcdl.report.account import NAMES
    from hpcdl.report.stacked import hours, label

    if found.shares.available <= 0:
        say("no GPU was there in that time: choose another (--since, --until), or start a daemon (hpcdl daemon start)")
        return
    held = [line.shares.available for line in found.lines if line.key]
    largest = max(held, default=found.shares.available)  # what no job held would flatten the others
    rows = [{"line": line, "shares": line.shares, "use": line.use} for line in found.lines]
    if len(found.lines) > 1:
        rows.append({"line": None, "shares": found.shares, "use": found.use})
    named = [
        Column(
            found.by.upper(), lambda row: "all" if row["line"] is None else label(found.by, row["line"]), shrinks=True
        ),
        Column("GPU-H", lambda row: hours(row["shares"].available), right=True),
    ]
    shares = [Column(name.upper(), _share(name), right=True) for name in NAMES]
    uses = [Column("USED", _used("util"), right=True), Column("MEMORY", _used("memory"), right=True)]
    columns = [*named, *shares, *uses]
    if stdout_takes()[0] is not None:  # on a terminal without those in which nothing stands
        columns = [column for column in columns if any(column.cell(row) != "-" for row in rows)]
    width = _bar_width(columns, rows)
    bars = Column("", lambda row: "" if row["line"] is None else _bar(row["line"], largest, width))
    print_table([*columns, bars] if width else columns, rows)
    print()
    if width:
        print("  ".join(f"{_drawn(_MARKS[name])} {name}" for name in NAMES))
    print(f"{count(found.gpus, 'GPU')}, {_span_text(found)}")
    suspends = {Purpose(purpose).words: number for purpose, number in found.suspends.items()}
    for what, counted in (("suspends", suspends), ("ends", found.ends)):
        if counted:
            print(f"{what}: {', '.join(f'{number} {why}' for why, number in counted.items())}")


def _share(name: str) -> Callable[[Any], str]:
    def text(row: Any) -> str:
        seconds, whole = getattr(row["shares"], name), row["shares"].available
        return f"{100 * seconds / whole:.1f} %" if whole and seconds else "-"

    return text


def _used(name: str) -> Callable[[Any], str]:
    def text(row: Any) -> str:
        share = getattr(row["use"], name)
        return "-" if share is None else f"{100 * share:.1f} %"

    return text


def _bar_width(columns: Sequence[Column], rows: Sequence[Any]) -> int:
    """The columns of the longest bar: what the rest of the table leaves of a terminal; 0: no bars."""
    room, _ = stdout_takes()
    if room is None:
        return _WIDTH
    whole = max(map(width_of, table_lines(columns, cells_of(columns, rows), colour=False)))
    longest = max(width_of(columns[0].cell(row)) for row in rows)
    left = room - 2 - whole + max(0, longest - _NAME)
    return 0 if left < _LEAST else min(_WIDTH, left)


def _bar(line: "AccountLine", largest: float, width: int) -> str:
    """A bar as long as the line's GPU-hours, at most `width`; each share rounds to the nearest mark."""
    from hpcdl.report.account import NAMES

    length = min(width, max(1, round(width * line.shares.available / largest))) if line.shares.available else 0
    text, so_far, drawn = "", 0.0, 0
    for name in NAMES:
        so_far += getattr(line.shares, name)
        until = round(length * so_far / line.shares.available) if length else 0
        text += _drawn(_MARKS[name]) * (until - drawn)
        drawn = until
    return text


def _drawn(mark: str) -> str:
    """The mark, or a letter where the terminal cannot encode it."""
    plain = {"█": "#", "▒": "s", "▓": "c", "▞": "r", "×": "x", "·": "."}
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        mark.encode(encoding)
    except UnicodeEncodeError:
        return plain[mark]
    return mark
