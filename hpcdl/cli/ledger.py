"""`hpcdl ledger verify`, `rebuild`, `export`, `backup` and `vacuum`: care of a daemon's ledger.

A ledger that a running daemon has open is never touched: the daemon makes a copy, or the command refuses. What is done
to the file is in hpcdl/ledger.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.offline import proven
from hpcdl.cli.output import Output, escape, outputs_as, print_fields, print_json, progress, say
from hpcdl.cli.params import check_folder, replacing
from hpcdl.client import AccessUnusable, ClientError, CopyWithoutDaemon, DaemonAway
from hpcdl.core.model.units import count

if TYPE_CHECKING:
    from hpcdl.ledger.maintenance import Counts

_MIB = float(1 << 20)


@click.group()
def ledger() -> None:
    """Check, export, back up or shrink the ledger of HPCDL_HOME.

    verify, export and backup work while a daemon runs, from a copy that it makes; rebuild and vacuum need it stopped.
    """


# --- which file -------------------------------------------------------------------------------------------------------


@contextmanager
def leased_ledger(home: Path, away: ClientError | None = None) -> Iterator[Path]:
    """The ledger while no daemon runs, and none can start. Asks the batch system where only that knows. `away`: how a
    daemon was missed."""
    from hpcdl.daemon.clock import WallClock
    from hpcdl.daemon.identity import original_of
    from hpcdl.ledger.lease import LeaseHeld
    from hpcdl.ledger.offline import leased

    now = WallClock(0.0).now()
    with ExitStack() as stack:
        try:
            path = proven(home, lambda how: stack.enter_context(leased(home, now, **how)))
        except LeaseHeld as error:
            if not error.here:
                raise
            if isinstance(away, AccessUnusable):
                raise away from None
            if (original := original_of(home)) is not None:
                raise click.ClickException(
                    f"{home} is a copy of {original}, made while {error.holder or 'a daemon'} ran there: remove "
                    f"{home}/lease.*, then run this again"
                ) from None
            raise click.ClickException(
                f"a daemon already runs on {home}, {error.holder}, and this needs the ledger to itself: "
                "hpcdl daemon stop saves all jobs and ends it; then run this again"
            ) from None
        yield path


@contextmanager
def any_ledger(ctx: click.Context, tell: Callable[[str], None]) -> Iterator[tuple[Path, bool]]:
    """The ledger, or a copy that the running daemon made of it, which is removed at the end; and whether it is one."""
    client = connect(ctx, 0.0)
    try:
        copy = Path(client.request("POST", "/v1/ledger/copy", {}, wait_s=300.0)["path"])
    except (DaemonAway, CopyWithoutDaemon, AccessUnusable) as away:
        with leased_ledger(ctx.find_root().obj, away) as path:
            yield path, False
        return
    tell(f"the running daemon made {copy}")
    try:
        yield copy, True
    finally:
        for each in (copy, *(copy.with_name(f"{copy.name}-{end}") for end in ("wal", "shm", "journal"))):
            each.unlink(missing_ok=True)


# --- the commands -----------------------------------------------------------------------------------------------------


@ledger.command(short_help="Check it against its events.")
@outputs_as("The number of events only.")
def verify(ctx: click.Context, output: Output) -> None:
    """Fold every event and compare with snapshot and tables; exit 1 with the first difference.

    A running daemon goes on meanwhile: it makes a copy, and that is checked.
    """
    from hpcdl.core.controller.journal import JournalError
    from hpcdl.ledger import maintenance
    from hpcdl.ledger.high_water_mark import MarkDamaged, read_mark

    tell, begun = progress(), time.monotonic()
    damage: MarkDamaged | None = None
    mark = None
    try:
        mark = read_mark(ctx.find_root().obj)  # before a copy is made: the daemon goes on
    except MarkDamaged as error:
        damage = error
    with any_ledger(ctx, tell) as (path, running):
        try:
            found = maintenance.verify(path, tell, mark)
            if damage is not None:
                rest = f"the ledger is as its events say, {found.events} of them, with {found.jobs} jobs"
                raise MarkDamaged(f"{damage}; {rest}: if no job is missing, hpcdl daemon start --accept-loss")
        except JournalError as error:
            if output is Output.JSON:
                print_json({"ok": False, "problem": str(error), "running": running})
            say(str(error))
            ctx.exit(1)
    took = time.monotonic() - begun
    if not output.print_data(
        {"ok": True, "problem": None, "running": running, "seconds": took} | asdict(found), [found.events]
    ):
        print_fields([("ledger", "as its events say"), *_told(found), ("took", f"{took:.1f} s")])


@ledger.command(short_help="Make its tables anew from its events.")
@outputs_as("The number of events only.")
def rebuild(ctx: click.Context, output: Output) -> None:
    """Make tables and snapshot anew from the events, in one step; for a ledger that verify finds wrong."""
    from hpcdl.ledger import maintenance

    tell, begun = progress(), time.monotonic()
    with leased_ledger(ctx.find_root().obj) as path:
        found = maintenance.rebuild(path, tell)
    took = time.monotonic() - begun
    if not output.print_data({"seconds": took} | asdict(found), [found.events]):
        print_fields([("ledger", "made anew from its events"), *_told(found), ("took", f"{took:.1f} s")])


@ledger.command(short_help="Write all events as JSON, or the jobs as CSV.")
@click.option(
    "-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), default=Path("-"),
    metavar="FILE", help="Where, only you can read it.  [default: stdout]",
)  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="The jobs as CSV, in place of the events.")
@click.option("--with-environment", is_flag=True, help="Values of environments and notify too: they may be secret.")
@outputs_as("The name of the file only.")
def export(ctx: click.Context, output: Output, target: Path, as_csv: bool, with_environment: bool) -> None:
    """Write all events, archived ones too, as lines of JSON; the first line says what they are."""
    from hpcdl import __version__
    from hpcdl.ledger.maintenance import jobs_csv, lines
    from hpcdl.ledger.offline import Reader

    to_stdout = str(target) == "-"
    if to_stdout and output is not Output.TABLE:
        raise click.UsageError(f"--{output.value} is about the file that is written: name one with -o FILE", ctx)
    if as_csv and with_environment:
        raise click.UsageError("--csv has no environments", ctx)
    if not to_stdout:
        check_folder(target)
    tell = progress()
    with any_ledger(ctx, tell) as (path, _), Reader(path) as reader:
        found = jobs_csv(reader) if as_csv else lines(reader, __version__, with_environment=with_environment)
        if to_stdout:
            for line in found:
                sys.stdout.write(line)
            sys.stdout.flush()
            return
        with replacing(target, durable=True) as file:
            written = _write(file, found, tell)
    size = target.stat().st_size
    if not output.print_data({"file": str(target.absolute()), "lines": written, "bytes": size}, [target]):
        print(f"wrote {escape(str(target))}: {count(written, 'line')}, {size / _MIB:.1f} MiB")


@ledger.command(short_help="Copy it and its archive files into a folder.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@outputs_as("The names of the files only.")
def backup(ctx: click.Context, output: Output, folder: Path) -> None:
    """Copy the ledger and its archive files into FOLDER, which is made if it is not there.

    Each file is replaced as a whole, so a backup that is cut short leaves the one before it usable. To restore it, stop
    the daemon and copy them back.
    """
    from hpcdl.ledger import maintenance
    from hpcdl.ledger.high_water_mark import read_mark
    from hpcdl.wire.private_files import make_private_folder

    home: Path = ctx.find_root().obj
    folder = folder.absolute()
    if folder.resolve() == home.resolve():
        raise click.UsageError(f"{folder} is where the ledger is: name another folder", ctx)
    make_private_folder(folder)
    tell = progress()
    with any_ledger(ctx, tell) as (path, running):
        if not running:  # a copy of less than there was would take the place of a good one
            maintenance.check(path, read_mark(home))
        copies = maintenance.back_up(path, folder, tell)
    total = sum(each.stat().st_size for each in copies)
    if not output.print_data({"folder": str(folder), "files": [each.name for each in copies], "bytes": total}, copies):
        are = "is" if len(copies) == 1 else "are"
        print(f"{count(len(copies), 'file')}, {total / _MIB:.1f} MiB, {are} in {escape(str(folder))}")


@ledger.command(short_help="Archive old events, and give space back.")
@click.option("--keep-days", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS",
              help="What is left of submits, pilots and scripts stays for so long.")  # fmt: skip
@click.option("--logs-after", type=click.FloatRange(min=0), metavar="DAYS",
              help="Remove the logs of jobs that finished so long ago.  [default: keep all logs]")  # fmt: skip
@outputs_as("The bytes that were freed only.")
def vacuum(ctx: click.Context, output: Output, keep_days: float, logs_after: float | None) -> None:
    """Move older events to archive files, give free pages of the ledger back, and remove what nothing needs.

    That is: copies and unfinished files, refused submits, output of pilots, batch scripts of jobs that are over, and
    checkpoint folders in which these saved nothing.
    Events are never removed, nor is a file that hpcdl did not write.
    """
    from hpcdl.config.settings import load_config
    from hpcdl.daemon.clock import WallClock
    from hpcdl.ledger import SqliteJournal, maintenance
    from hpcdl.ledger.records import every_job
    from hpcdl.ledger.trim import trim

    home: Path = ctx.find_root().obj
    tell = progress()
    keep_events = load_config(home).keep_events
    with leased_ledger(home) as path:
        moved, before, after = maintenance.shrink(path, keep_events, tell)
        with SqliteJournal(path) as journal:
            tell("removing what nothing needs")
            freed = trim(home, every_job(journal), WallClock(0.0).now(), keep_days=keep_days, log_days=logs_after)
    rows = [{"what": each.what, "files": each.files, "bytes": each.bytes} for each in freed]
    total = sum(each.bytes for each in freed) + max(0, before - after)
    told = {"archived_events": moved, "before_bytes": before, "after_bytes": after}
    if not output.print_data(told | {"removed": rows, "freed_bytes": total}, [total]):
        print_fields(
            [
                ("ledger", f"{before / _MIB:.1f} MiB before, {after / _MIB:.1f} MiB after"),
                ("archived", f"{moved} events" if moved else ""),
                *((each.what, f"{each.files} removed, {each.bytes / _MIB:.1f} MiB") for each in freed),
            ]
        )


def _write(file: IO[bytes], found: Iterator[str], tell: Callable[[str], None]) -> int:
    """Write the lines; how many there were."""
    written = 0
    for line in found:
        file.write(line.encode())
        written += line.count("\n")
        if written % 50_000 == 0:
            tell(f"{written} lines written")
    return written


def _told(found: "Counts") -> list[tuple[str, str]]:
    return [
        ("events", str(found.events)),
        ("jobs", f"{found.jobs}, with {count(found.incarnations, 'attempt')} on {count(found.nodes, 'node')}"),
        ("snapshot", f"of event {found.snapshot}" if found.snapshot else "none yet"),
    ]
