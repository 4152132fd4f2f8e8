"""`hpcdl top`: what goes on, in the terminal, until `q`. Without a terminal, or with --once, how it is now."""

import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from hpcdl.cli.numbers import Seconds
from hpcdl.cli.output import Output, outputs, paint, say, use_colour
from hpcdl.cli.rounds import Rounds
from hpcdl.cli.rows import connect
from hpcdl.cli.showing import why_lines
from hpcdl.cli.topview import LEAST_HEIGHT, LEAST_WIDTH, NEEDS, SORTS, Answers, Styled, View, draw
from hpcdl.client import Client, ClientError, DaemonAway, path_with

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the other screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_STYLES = {"title": "1", "dim": "2", "chosen": "7", "alarm": "1;31"}
_ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}


@click.command()
@click.option("--once", is_flag=True, help="Print how it is now, and end; so does a pipe.")
@click.option(
    "--every", type=Seconds(0.2, 3600), default=1.0, metavar="SECONDS", help="Look again so often.  [default: 1]"
)
@outputs
@click.pass_context
def top(ctx: click.Context, once: bool, every: float, output: Output) -> None:
    """Show daemon, GPUs and jobs in the terminal, as they change.

    Keys: q quits, s goes through what is sorted by, r turns the order round, arrows (or j and k) choose a job, enter
    says why it is where it is, space pauses.
    """
    live = not once and output is Output.TABLE and sys.stdout.isatty() and sys.stdin.isatty()
    client = connect(ctx) if not live else connect(ctx, 0.0)
    answers = ask(client, None if output is Output.JSON else NEEDS)
    status = {key: value for key, value in answers.status.items() if key != "schema"}
    value = {"status": status, "nodes": answers.nodes, "jobs": answers.jobs}
    if output.print_data(value, [row["id"] for row in answers.jobs]):
        return
    if live:
        _Screen(client, View(answers), every).run()
    else:
        import shutil

        width = shutil.get_terminal_size().columns
        print("\n".join(styled(line) for line in draw(View(answers), width, None)))


def ask(client: Client, fields: str | None = NEEDS) -> Answers:
    """All that is drawn. `fields`: of the jobs' rows, None: all. Raises ClientError."""
    status, nodes = client.get("/v1/status"), client.get("/v1/nodes")["nodes"]
    return Answers(status, nodes, client.get(path_with("/v1/jobs", fields=fields))["jobs"])


def styled(line: Styled) -> str:
    """A line with its style, where there is colour; who is chosen is told without colour too."""
    text, style = line
    if style == "chosen" and not use_colour():
        return f"\x1b[7m{text}\x1b[0m" if sys.stdout.isatty() else text
    if style not in _STYLES:
        return text.replace(style, paint(style, style), 1) if style else text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if use_colour() else text


class _Screen:
    """The terminal: what is typed, how large it is, and what is drawn."""

    def __init__(self, client: Client, view: View, every_s: float) -> None:
        self.client = client
        self.view = view
        self.every_s = every_s
        self._input = sys.stdin.fileno()

    def run(self) -> None:
        """Until `q`. Ctrl-C and a lost terminal end it too; the terminal is as before then.

        A new size wakes; Ctrl-Z would not leave the terminal as it was, so it does nothing.
        """
        handlers: dict[int, Any] = {signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: signal.SIG_IGN}
        with Rounds(handlers) as rounds, _raw(self._input):
            sys.stdout.write(_ENTER)
            try:
                self._loop(rounds)
            finally:
                rounds.end()
                sys.stdout.write(_LEAVE)
                sys.stdout.flush()

    def _loop(self, rounds: Rounds) -> None:
        look_at = time.monotonic() + self.every_s
        while True:
            self._draw()
            wait_s = None if self.view.paused else max(0.0, look_at - time.monotonic())
            if self._input in rounds.wait([self._input], wait_s):
                typed = os.read(self._input, 64)
                if not typed:  # the terminal is gone
                    return
                for key in keys(typed):
                    if not self._press(key):
                        return
            if not self.view.paused and time.monotonic() >= look_at:
                self._look()
                look_at = time.monotonic() + self.every_s

    def _draw(self) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        width, height = max(LEAST_WIDTH, size.columns), max(LEAST_HEIGHT, size.lines)
        lines = [f"{styled(line)}\x1b[K" for line in draw(self.view, width, height)]
        sys.stdout.write("\x1b[H" + "\n".join(lines) + "\x1b[J")
        sys.stdout.flush()

    def _look(self) -> None:
        try:
            answers = ask(self.client)
        except DaemonAway as error:
            self.view = replace(self.view, note=f"the daemon is away, looking again: {error}")
        except ClientError as error:
            self.view = replace(self.view, note=str(error))
        else:
            self.view = replace(self.view, answers=answers, note="")

    def _press(self, key: str) -> bool:
        """Does what a key is for; False: to quit."""
        view = self.view
        if key in ("q", "\x03", "\x04"):
            return False
        if view.why is not None:
            self.view = replace(view, why=None)
        elif key == "s":
            self.view = replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
        elif key == "r":
            self.view = replace(view, reverse=not view.reverse)
        elif key in ("up", "k"):
            self.view = replace(view, chosen=view.near(-1))
        elif key in ("down", "j"):
            self.view = replace(view, chosen=view.near(1))
        elif key == " ":
            self.view = replace(view, paused=not view.paused)
        elif key in ("\r", "\n"):
            self._why()
        return True

    def _why(self) -> None:
        job = self.view.chosen if self.view.chosen is not None else self.view.near(0)
        if job is None:
            return
        try:
            answer = self.client.get(f"/v1/jobs/{job}/why")
        except ClientError as error:
            self.view = replace(self.view, note=str(error))
            return
        self.view = replace(self.view, chosen=job, why=why_lines(answer))


def keys(typed: bytes) -> list[str]:
    """What was pressed: arrows by name, all else as it is; other escape sequences are nothing."""
    found = []
    while typed:
        arrow = next((each for each in _ARROWS if typed.startswith(each)), None)
        if arrow is not None:
            found.append(_ARROWS[arrow])
            typed = typed[len(arrow) :]
        elif typed.startswith(b"\x1b"):
            return found
        else:
            found.append(chr(typed[0]))
            typed = typed[1:]
    return found


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Keys come one by one and are not echoed; Ctrl-C still interrupts."""
    try:
        before = termios.tcgetattr(terminal)
    except termios.error as error:
        say(f"the terminal cannot be read: {error.args[-1]}: hpcdl top --once prints how it is")
        raise click.exceptions.Exit(1) from None
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
