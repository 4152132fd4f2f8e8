"""`hpcdl page`: what goes on now, as one HTML file that is written again and again while it is looked at.

The page itself is drawn in report/live.py; here it is only asked for and written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.job_row import connect
from hpcdl.cli.output import AS_OF, Output, escape, outputs_as
from hpcdl.cli.params import READERS, OneOf, OutputFile, Seconds, local_time, replace_file
from hpcdl.client import Client, ClientError, path_with
from hpcdl.wire.last_start import start_step

HOURS = 3.0


@click.command()
@click.option(
    "-o", "--output", "target", required=True, type=OutputFile(plain=True), metavar="FILE",
    help="The HTML file to write.",
)  # fmt: skip
@click.option(
    "--every", type=Seconds(1, 3600), metavar="SECONDS",
    help="Write it again so often, until Ctrl-C or SIGTERM; browsers that show it follow.",
)  # fmt: skip
@click.option(
    "--back", "back_s", type=Seconds(300, 6 * 3600), default=HOURS * 3600, metavar="SECONDS",
    help="How far back the timeline goes.  [default: 3h]",
)  # fmt: skip
@click.option("--readers", type=OneOf(list(READERS)), default="owner", show_default=True, help="Who may read FILE.")
@outputs_as("The name of the file only.")
def page(ctx: click.Context, target: Path, every: float | None, back_s: float, readers: str, output: Output) -> None:
    """Write a web page of what goes on now: GPUs, their last hours, jobs, failures, notifications.

    One self-contained file, for a browser, a web portal's file view, or a copy. Nothing listens for it.
    """
    if every is not None and output is not Output.TABLE:
        raise click.UsageError("--every goes on, so leave out --json and --quiet", ctx)
    picture = Picture(connect(ctx, 0.0, reading=every is None), target, READERS[readers], every, back_s)
    if every is not None:
        from hpcdl.cli.interrupt import repeat

        repeat(every, picture.refresh, last=picture.end)
    picture.refresh()
    if not output.print_data({"file": str(target.absolute())}, [target]):
        print(f"wrote {escape(str(target))}")


class Picture:
    """The page: the file, and the answers that are drawn in it."""

    def __init__(self, client: Client, target: Path, mode: int, every_s: float | None, back_s: float) -> None:
        from hpcdl.report.live import Recent

        self._client = client
        self._target = target
        self._mode = mode
        self._every_s = every_s
        self._recent = Recent(back_s)
        self._answer: Mapping[str, Any] = {}
        self._note = ""

    def refresh(self) -> None:
        """Asks the daemon, once, and writes the file. Raises OSError, and ClientError for the first answer only:
        from then on the page says why it shows an old one.
        """
        try:
            answer = self._client.get(path_with("/v1/overview", after=self._recent.after))
            try:
                self._recent.take(answer)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise ClientError("the daemon's answer is not of this form: use the daemon's hpcdl") from None
            offline = AS_OF in click.get_current_context().meta
            self._answer, self._note = answer, f"No daemon runs: {start_step(self._client.home)}" if offline else ""
        except ClientError as error:
            if not self._answer:
                raise
            self._note = str(error).removesuffix(" (waited 0 s)")
        self.write()

    def end(self) -> None:
        """Writes that nobody writes it any more; nothing where the daemon has not answered yet. Raises OSError."""
        if self._answer:
            self.write(over=True)

    def write(self, *, over: bool = False) -> None:
        """The file, whole; `over`: it says that nobody writes it any more. Raises OSError."""
        from hpcdl.report.live import PageState, now_page

        shown = PageState(self._every_s, local_time, self._note, over)
        history = self._recent.history(self._answer)
        replace_file(self._target, now_page(self._answer, history, self._recent.names, shown), self._mode)
