"""`hpcdl page`: what goes on now, as one HTML file that is written again and again while it is looked at."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.job_row import connect, moment_text
from hpcdl.cli.output import Output, escape, outputs_as
from hpcdl.cli.params import READERS, OutputFile, Seconds, replace_private
from hpcdl.client import Client, ClientError, path_with

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
@click.option(
    "--readers", type=click.Choice(list(READERS)), default="owner", show_default=True, help="Who may read FILE."
)
@outputs_as("The name of the file only.")
def page(ctx: click.Context, target: Path, every: float | None, back_s: float, readers: str, output: Output) -> None:
    """Write a web page of what goes on now: GPUs, their last hours, jobs, failures, notifications.

    One self-contained file, for a browser, a web portal's file view, or a copy. Nothing listens for it.
    """
    if every is not None and output is not Output.TABLE:
        raise click.UsageError("--every goes on, so leave out --json and --quiet", ctx)
    client = connect(ctx, 0.0)
    picture = Picture(client, target, READERS[readers], every, back_s)
    if every is None:
        picture.look()
        picture.write()
        if not output.print_data({"file": str(target.absolute())}, [target]):
            print(f"wrote {escape(str(target))}")
        return
    _again(picture, every)


def _again(picture: "Picture", every: float) -> None:
    """Until a signal; the page then says that nobody writes it any more."""
    from hpcdl.cli.interrupt import Interrupted, RepeatUntilSignal

    with RepeatUntilSignal() as rounds:
        picture.look()  # a daemon that is not there at the start is an error
        try:
            while True:
                began = time.monotonic()
                with rounds.whole():
                    picture.write()
                rounds.pause(max(1.0, every - (time.monotonic() - began)))
                picture.try_to_look()
        except Interrupted:
            picture.write(over=True)
            raise


class Picture:
    """The file, and what is shown in it."""

    def __init__(self, client: Client, target: Path, mode: int, every_s: float | None, back_s: float) -> None:
        from hpcdl.report.live import Recent

        self._client = client
        self._target = target
        self._mode = mode
        self._every_s = every_s
        self._recent = Recent(back_s)
        self._answer: Mapping[str, Any] = {}
        self._note = ""

    def look(self) -> None:
        """Asks the daemon, once. Raises ClientError."""
        answer = self._client.get(path_with("/v1/overview", after=self._recent.after))
        try:
            self._recent.take(answer)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ClientError("the daemon's answer is not of this form: use the daemon's hpcdl") from None
        self._answer, self._note = answer, ""

    def try_to_look(self) -> None:
        """As `look`; one that fails is told in the page."""
        try:
            self.look()
        except ClientError as error:
            self._note = str(error).removesuffix(" (waited 0 s)")

    def write(self, *, over: bool = False) -> None:
        """The file, whole. Raises OSError."""
        from hpcdl.report.live import PageState, now_page

        moment: Callable[[float], str] = moment_text
        shown = PageState(self._every_s, moment, self._note, over)
        history = self._recent.history(self._answer)
        replace_private(self._target, now_page(self._answer, history, self._recent.names, shown), self._mode)
