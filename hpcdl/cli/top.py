"""`hpcdl top`: daemon, GPUs and jobs in the terminal, until `q`; without a terminal, or with --once, as they are now.

`draw` is pure: from answers and what the user chose to lines. `_Screen` owns the terminal, and puts it back whatever
happens.
"""

import os
import signal
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import click

from hpcdl.cli.columns import JOBS
from hpcdl.cli.interrupt import RepeatUntilSignal
from hpcdl.cli.job_row import connect, duration_text
from hpcdl.cli.output import Output, Row, cells_of, cut, escape, outputs, paint, say, table_lines, use_colour, width_of
from hpcdl.cli.params import Seconds
from hpcdl.cli.show import why_lines
from hpcdl.cli.tables import gpu_rows, holder_text, memory_text, use_of
from hpcdl.client import Client, ClientError, DaemonAway, path_with
from hpcdl.core.model.units import count

SORTS = ("id", "state", "gpus", "done", "eta", "name")
"""What `s` goes through."""

COLUMNS = ("id", "name", "state", "gpus", "done", "eta", "reason")

NEEDS = JOBS.needs([JOBS.columns[name] for name in (*COLUMNS, *SORTS)], None, ("id", "saved_step"))
"""Keys of the rows of jobs that are drawn."""

KEYS = "q quit  s sort  r reverse  ↑↓ select  ⏎ why  space pause"

LEAST_WIDTH, LEAST_HEIGHT = 20, 5

_CELL = 38  # columns that a GPU needs

_BAR = 10

Styled = tuple[str, str]
"""A line, and how it is shown: "" plain, `title`, `dim`, `chosen`, `alarm`, or a job's state."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The daemon's answers. `status`: /v1/status; `nodes`: of /v1/nodes; `jobs`: rows of the unfinished ones."""

    status: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[Row] = ()
    jobs: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class TopView:
    """What is shown: answers, and what the user chose. `chosen`: a job's id; `why`: lines about it, in place of the
    table. `note`: in place of the keys, a trouble.
    """

    answers: Answers
    sort: str = "id"
    reverse: bool = False
    chosen: int | None = None
    paused: bool = False
    why: Sequence[str] | None = None
    note: str = ""

    def jobs(self) -> list[Row]:
        """The jobs in their order."""
        return JOBS.sort(self.answers.jobs, f"-{self.sort}" if self.reverse else self.sort)

    def near(self, steps: int) -> int | None:
        """The job so many lines further down than the chosen one (up, if negative); None without jobs."""
        ids = [int(row["id"]) for row in self.jobs()]
        if not ids:
            return None
        if self.chosen not in ids:
            return ids[0]
        return ids[max(0, min(len(ids) - 1, ids.index(self.chosen) + steps))]


def draw(view: TopView, width: int, height: int | None) -> list[Styled]:
    """The lines, each at most `width` columns wide, `height` of them in all; None: as many as it takes, without keys.

    A terminal that is too small for anything gets what fits.
    """
    head = _header(view)
    room = None if height is None else max(0, height - 1)
    gpus = _gpus(view.answers.nodes, width, None if room is None else max(1, (room - len(head)) // 2))
    lines = [*head, *gpus, ("", "")]
    left = None if room is None else max(0, room - len(lines))
    if view.why is not None:
        lines += _why(view.why, width, left)
    else:
        lines += _table(view, width, left)
    if room is not None:
        lines = [*lines, *[("", "")] * (room - len(lines))][:room]
        lines.append((view.note, "alarm") if view.note else (_keys(view), "dim"))
    elif view.note:
        lines.append((view.note, "alarm"))
    return [(cut(escape(text), width), style) for text, style in lines]


def _keys(view: TopView) -> str:
    order = f"{view.sort}{' reversed' if view.reverse else ''}"
    return f"[{order}{', paused' if view.paused else ''}]  {KEYS}"


def _header(view: TopView) -> list[Styled]:
    answers = view.answers
    daemon = answers.status.get("daemon") or {}
    up = f", up {duration_text(daemon['since_s'])}" if daemon.get("since_s") is not None else ""
    stopping = ", stopping" if daemon.get("stopping") else ""
    title = f"hpcdl on {daemon.get('host', '?')} (pid {daemon.get('pid', '?')}){up}{stopping}"
    title += f"  {daemon.get('policy', '?')} for {daemon.get('objective', '?')}"
    states = answers.status.get("jobs") or {}
    jobs = ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"
    return [(title, "title"), (_use(answers.nodes), ""), (f"jobs  {jobs}", ""), (_saved(answers.jobs), "")]


def _use(nodes: Sequence[Row]) -> str:
    gpus, use = gpu_rows(nodes), use_of(nodes)
    rest = {"not usable": use.bad, "away": use.away}
    text = f"GPUs  {use.held} held, {use.free} free of {len(gpus)}"
    text += "".join(f", {number} {name}" for name, number in rest.items() if number)
    text += f"; load now {use.load:.0f} %" if use.load is not None else ""
    text += f", {use.load_held:.0f} % on those held" if use.load_held is not None else ""
    power = [gpu["power_w"] for gpu in gpus if gpu.get("power_w") is not None]
    return text + (f"; {sum(power):.0f} W" if power else "")


def _saved(jobs: Sequence[Row]) -> str:
    """How many running jobs have a checkpoint, and how many steps none has."""
    running = [row for row in jobs if row.get("gpus")]
    if not running:
        return "saved  nothing runs"
    none = [row for row in running if row.get("saved_step") is None]
    steps = sum(max(0, (row.get("step") or 0) - (row.get("saved_step") or 0)) for row in running)
    text = f"saved  {len(running) - len(none)} of {count(len(running), 'running job')}"
    return f"{text}; {count(steps, 'step')} not saved yet"


def _gpus(nodes: Sequence[Row], width: int, most: int | None) -> list[Styled]:
    """A bar for each GPU, in as many columns as there is room for."""
    gpus = gpu_rows(nodes)
    across = max(1, width // _CELL)
    rows = -(-len(gpus) // across)
    shown = rows if most is None else min(rows, most)
    if shown < rows:
        shown -= 1
    lines: list[Styled] = []
    names = max((width_of(str(gpu["id"])) for gpu in gpus), default=0)
    cell = width // across
    for place in range(max(0, shown)):
        texts = [_gpu(gpu, names) for gpu in gpus[place * across : (place + 1) * across]]
        lines.append(("".join(_filled(cut(text, cell - 1), cell) for text in texts).rstrip(), ""))
    if shown < rows:
        lines.append((f"… {count(len(gpus) - max(0, shown) * across, 'more GPU')}: hpcdl ls gpus", "dim"))
    return lines


def _filled(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def _gpu(gpu: Row, names: int) -> str:
    util = gpu.get("util")
    bar = "?" * _BAR if util is None else ("#" * round(_BAR * min(100.0, max(0.0, util)) / 100)).ljust(_BAR, ".")
    if gpu.get("state", "ok") != "ok":
        bar = str(gpu["state"]).center(_BAR, "!")
    elif gpu.get("avoided_until"):
        bar = "excluded".center(_BAR, "!")
    part = "  - " if util is None else f"{util:3.0f}%"
    memory = memory_text(gpu.get("used_mib"), gpu.get("memory_mib")).replace(" GiB", "G")
    return f"{_filled(str(gpu['id']), names)} {bar} {part} {memory:>8} {holder_text(gpu)}"


def _table(view: TopView, width: int, room: int | None) -> list[Styled]:
    rows = view.jobs()
    if not rows:
        return [("no unfinished jobs: hpcdl submit -- COMMAND", "dim")]
    columns = [JOBS.columns[name].column for name in COLUMNS]
    if room is None:
        first, shown = 0, rows
    else:
        most = max(0, room - 1)
        place = next((at for at, row in enumerate(rows) if row["id"] == view.chosen), 0)
        first = max(0, min(place - most // 2, len(rows) - most))
        shown = rows[first : first + most]
    titles, *lines = table_lines(columns, cells_of(columns, shown), width=width, colour=False)
    found: list[Styled] = [(titles, "title")]
    for row, line in zip(shown, lines, strict=True):
        found.append((line, "chosen" if row["id"] == view.chosen and room is not None else str(row.get("state", ""))))
    return found


def _why(lines: Sequence[str], width: int, room: int | None) -> list[Styled]:
    wrapped: list[Styled] = []
    for number, line in enumerate(lines):
        style = "title" if number == 0 else ""
        wrapped += [(each, style) for each in textwrap.wrap(escape(line), max(10, width - 1), subsequent_indent="   ")]
    return wrapped if room is None else wrapped[:room]


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
        _Screen(client, TopView(answers), every).run()
    else:
        import shutil

        width = shutil.get_terminal_size().columns
        print("\n".join(styled(line) for line in draw(TopView(answers), width, None)))


def ask(client: Client, fields: str | None = NEEDS) -> Answers:
    """Request all that is drawn. `fields`: of the rows of jobs, None: all. Raises ClientError."""
    status, nodes = client.get("/v1/status"), client.get("/v1/nodes")["nodes"]
    return Answers(status, nodes, client.get(path_with("/v1/jobs", fields=fields))["jobs"])


def styled(line: Styled) -> str:
    """A line with its style, where there is colour; the chosen one is marked without colour, too."""
    text, style = line
    if style == "chosen" and not use_colour():
        return f"\x1b[7m{text}\x1b[0m" if sys.stdout.isatty() else text
    if style not in _STYLES:
        return text.replace(style, paint(style, style), 1) if style else text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if use_colour() else text


class _Screen:
    """The terminal: its keys, its size, and what is drawn on it."""

    def __init__(self, client: Client, view: TopView, every_s: float) -> None:
        self.client = client
        self.view = view
        self.every_s = every_s
        self._input = sys.stdin.fileno()

    def run(self) -> None:
        """Until `q`. Ctrl-C and a lost terminal end it too; the terminal is as before then.

        A new size wakes; Ctrl-Z would not leave the terminal as it was, so it does nothing.
        """
        handlers: dict[int, Any] = {signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: signal.SIG_IGN}
        with RepeatUntilSignal(handlers) as rounds, _raw(self._input):
            sys.stdout.write(_ENTER)
            try:
                self._loop(rounds)
            finally:
                rounds.end()
                sys.stdout.write(_LEAVE)
                sys.stdout.flush()

    def _loop(self, rounds: RepeatUntilSignal) -> None:
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
        """Do what a key is for; False: quit."""
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
    """The keys that were pressed: arrows by name, all else as it is; other escape sequences are nothing."""
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
    """The terminal in cbreak mode: keys come one by one and are not echoed; Ctrl-C still interrupts."""
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
