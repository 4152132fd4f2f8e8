"""`hpcdl ls --watch`: the same again whenever it has changed; on a terminal in place of what was there."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdl.cli.output import Output, escape, print_ids, print_json, say
from hpcdl.client import DaemonAway
from hpcdl.core.units import parse_duration

EVERY_S = 2.0
LEAST_S = 0.1
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


class Watch:
    """Prints what `lines` or `value` give whenever that is new."""

    def __init__(self, every_s: float, output: Output, title: str) -> None:
        self.every_s = every_s
        self.output = output
        self.title = title
        self._last: Any = None
        self._live = output is Output.TABLE and sys.stdout.isatty()

    def show(self, value: dict[str, Any], ids: Sequence[object], lines: Callable[[], list[str]]) -> None:
        """Print it, if it is another one than before."""
        if self.output is Output.JSON:
            if value != self._last:
                print_json(value, one_line=True)
            self._last = value
        elif self.output is Output.QUIET:
            if list(ids) != self._last:
                if self._last is not None:
                    print()
                print_ids(ids)
            self._last = list(ids)
        else:
            self._table(lines())
        sys.stdout.flush()

    def _table(self, found: list[str]) -> None:
        if self._live:
            self._redraw(found)
        elif found != self._last:
            if self._last is not None:
                print()
            print("\n".join(found))
        self._last = found

    def _redraw(self, found: list[str]) -> None:
        import shutil

        size = shutil.get_terminal_size()
        room = max(1, size.lines - 2)
        if len(found) > room:
            found = [*found[: room - 1], f"… {len(found) - room + 1} more lines: make the terminal higher, or filter"]
        head = f"{self.title}: every {self.every_s:g} s, Ctrl-C ends"
        text = "\n".join(f"{line}{_TO_END}" for line in (escape(head)[: size.columns], *found))
        sys.stdout.write(f"{_CLEAR if self._last is None else ''}{_HOME}{text}\n{_BELOW}")


def repeat(every_s: float, once: Callable[[], None]) -> None:
    """Calls it again and again, until Ctrl-C. A daemon that goes away is said to, and waited for.

    Raises DaemonAway where there was none from the beginning.
    """
    once()
    away = False
    while True:
        time.sleep(every_s)
        try:
            once()
        except DaemonAway as error:
            if not away:
                say(f"{error}; waiting for it")
            away = True
        else:
            if away:
                say("the daemon is back")
            away = False
