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

from hpcdl.cli.background import BackgroundRequests
from hpcdl.cli.columns import JOBS, folded
from hpcdl.cli.interrupt import RepeatUntilSignal
from hpcdl.cli.job_row import connect, duration_text
from hpcdl.cli.job_table import counts_text, noted_lines
from hpcdl.cli.logs import log_files
from hpcdl.cli.output import AS_OF, Output, Row, cells_of, cut, escape, outputs, paint, say, use_colour, width_of
from hpcdl.cli.params import Seconds
from hpcdl.cli.show import why_lines
from hpcdl.cli.tables import FOLDED, HOLDERS, gpu_rows, memory_text, use_of
from hpcdl.client import Client, ClientError, DaemonAway, path_with
from hpcdl.core.model.units import count, ranges

SORTS = ("id", "state", "gpus", "done", "eta", "name")
"""What `s` goes through."""

COLUMNS = ("id", "name", "state", "gpus", "done", "eta")

WIDE_COLUMNS, WIDE = ("id", "name", "state", "gpus", "elapsed", "progress", "metric", "eta"), 110
"""Those of `hpcdl ls`, in a terminal at least so wide."""

NEEDS = JOBS.needs(
    [JOBS.columns[name] for name in (*COLUMNS, *WIDE_COLUMNS, "note", *SORTS)], None, ("saved_step", *FOLDED)
)
"""Keys of the rows of jobs that are drawn."""

KEYS = "q quit  ? help  ⏎ why  l logs  e unfold  z suspend  u resume  x cancel"

HELP = (
    "keys of hpcdl top",
    "q, Ctrl-C      quit",
    "arrows, j k    choose a job; PgUp PgDn Home End go further",
    "enter          say why the chosen job is where it is, and what it waits for",
    "l              its output, as it comes; l or q goes back",
    "e              show the members of its array one by one, or folded again",
    "z, u           suspend it (checkpoint, free its GPUs, hold it); resume it",
    "x              cancel it, or all that its line stands for; asks first",
    "s, r           sort by the next column; turn the order round",
    "space          pause",
    "any other key  back to the jobs",
)
"""The first line is its title."""

VERBS = {"z": "suspend", "u": "resume", "x": "cancel"}
"""What a key does to the chosen jobs."""

LEAST_WIDTH, LEAST_HEIGHT = 20, 5

_TOLD_S = 5.0
"""So long it is shown what became of an action."""

_TAIL_S = 0.5
"""Between two looks at a job's output."""

_TAIL_BYTES = 256 << 10

_CELL = 38  # columns that a GPU needs

_CELL_POWER = 44  # where its power is shown, too

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
class LogTail:
    """The end of a job's output. `up`: so many lines above its last one are the last in sight."""

    job: int
    title: str
    lines: Sequence[str] = ()
    up: int = 0


def ids_of(row: Row) -> list[int]:
    """The jobs that a line of the table stands for."""
    ends = [part.split("-") for part in str(row["id"]).split(",")]
    return [number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)]


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
    expanded: frozenset[int] = frozenset()  # arrays whose members have a line each
    question: str = ""  # in place of the keys: y or n is to be typed
    told: str = ""  # in place of the keys: what became of an action
    log: LogTail | None = None  # in place of all else

    def jobs(self) -> list[Row]:
        """The lines of the table in their order; members of an array that are alike are one."""
        rows = JOBS.sort(self.answers.jobs, f"-{self.sort}" if self.reverse else self.sort)
        rows = folded({**row, "array": None} if row.get("array") in self.expanded else row for row in rows)
        return [{**row, "note": str(row.get("note") or "").replace("--no-fold", "e")} for row in rows]

    def line(self) -> Row | None:
        """The line that is chosen; the first one where none is."""
        rows = self.jobs()
        return next((row for row in rows if self.chosen in ids_of(row)), rows[0] if rows else None)

    def near(self, steps: int) -> int | None:
        """The job so many lines further down than the chosen one (up, if negative); None without jobs."""
        lines = [ids_of(row) for row in self.jobs()]
        if not lines:
            return None
        place = next((at for at, ids in enumerate(lines) if self.chosen in ids), None)
        return lines[0][0] if place is None else lines[max(0, min(len(lines) - 1, place + steps))][0]


def draw(view: TopView, width: int, height: int | None) -> list[Styled]:
    """The lines, each at most `width` columns wide, `height` of them in all; None: as many as it takes, without keys.

    A terminal that is too small for anything gets what fits.
    """
    if view.log is not None and height is not None:
        return _log(view.log, width, height)
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
        lines.append(_last_line(view))
    elif view.note:
        lines.append((view.note, "alarm"))
    return [(cut(escape(text), width), style) for text, style in lines]


def _last_line(view: TopView) -> Styled:
    if view.question:
        return view.question, "alarm"
    if view.note:
        return view.note, "alarm"
    return (view.told, "") if view.told else (_keys(view), "dim")


def _log(log: LogTail, width: int, height: int) -> list[Styled]:
    room = max(0, height - 2)
    end = len(log.lines) - log.up
    shown = list(log.lines[max(0, end - room) : end])
    more = f", {count(log.up, 'line')} below" if log.up else ", as it comes"
    lines: list[Styled] = [(log.title + more, "title"), *((line, "") for line in shown)]
    lines += [("", "")] * (height - 1 - len(lines))
    lines.append(("l back  ↑↓ PgUp PgDn scroll  End follow", "dim"))
    return [(cut(escape(text), width), style) for text, style in lines[:height]]


def _keys(view: TopView) -> str:
    order = f"{view.sort}{' reversed' if view.reverse else ''}"
    return f"[{order}{', paused' if view.paused else ''}]  {KEYS}"


def _header(view: TopView) -> list[Styled]:
    answers = view.answers
    daemon = answers.status.get("daemon") or {}
    up = f", up {duration_text(daemon['since_s'])}" if daemon.get("since_s") is not None else ""
    stopping = ", stopping" if daemon.get("stopping") else ""
    title = "hpcdl, no daemon"
    if daemon.get("pid"):
        title = f"hpcdl on {daemon.get('host', '?')} (pid {daemon['pid']}){up}{stopping}"
    title += f"  {daemon.get('policy', '?')} for {daemon.get('objective', '?')}"
    states = answers.status.get("jobs") or {}
    jobs = counts_text(states) or "none"
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
    power = any(gpu.get("power_w") is not None for gpu in gpus)
    seen = gpus[: max(0, shown) * across]
    longest = max((width_of(_gpu(gpu, names, _BAR, power=power)) for gpu in seen), default=0)
    bar = _BAR // 2 if (power and cell < _CELL_POWER) or longest >= cell else _BAR
    for place in range(max(0, shown)):
        texts = [_gpu(gpu, names, bar, power=power) for gpu in seen[place * across : (place + 1) * across]]
        lines.append(("".join(_filled(cut(text, cell - 1), cell) for text in texts).rstrip(), ""))
    if shown < rows:
        lines.append((f"… {count(len(gpus) - max(0, shown) * across, 'more GPU')}: hpcdl ls gpus", "dim"))
    return lines


def _filled(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def _gpu(gpu: Row, names: int, size: int, *, power: bool) -> str:
    util = gpu.get("util")
    bar = "?" * size if util is None else ("#" * round(size * min(100.0, max(0.0, util)) / 100)).ljust(size, ".")
    use = f"{bar} {'  - ' if util is None else f'{util:3.0f}%'}"
    wrong = gpu["state"] if gpu.get("state", "ok") != "ok" else "excluded" if gpu.get("avoided_until") else ""
    if wrong:
        use = cut(str(wrong).center(size + 5, "!"), size + 5)
    memory = memory_text(gpu.get("used_mib"), gpu.get("memory_mib")).replace(" GiB", "G")
    watts = "" if not power else "   - " if gpu.get("power_w") is None else f"{gpu['power_w']:3.0f}W "
    return f"{_filled(str(gpu['id']), names)} {use} {memory:>8} {watts}{_holders(gpu)}"


def _holders(gpu: Row) -> str:
    """The job that holds a GPU, with the one that runs beside it."""
    return "+".join(str(gpu[key]["job"]) for key in HOLDERS if gpu.get(key)) or "-"


def _table(view: TopView, width: int, room: int | None) -> list[Styled]:
    rows = view.jobs()
    if not rows:
        return [("no unfinished jobs: hpcdl submit -- COMMAND", "dim")]
    columns = [JOBS.columns[name].column for name in (COLUMNS if width < WIDE else WIDE_COLUMNS)]
    if room is None:
        first, shown = 0, rows
    else:
        most = max(0, room - 1)
        place = next((at for at, row in enumerate(rows) if view.chosen in ids_of(row)), 0)
        first = max(0, min(place - most // 2, len(rows) - most))
        shown = rows[first : first + most]
    notes = [str(row["note"]) for row in shown]
    titles, *lines = noted_lines(columns, cells_of(columns, shown), notes, width, below=False, colour=False)
    found: list[Styled] = [(titles, "title")]
    for row, line in zip(shown, lines, strict=True):
        chosen = room is not None and view.chosen in ids_of(row)
        found.append((line, "chosen" if chosen else str(row.get("state", ""))))
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

_ARROWS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
}  # fmt: skip

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10, "home": -1_000_000, "end": 1_000_000}
"""Lines that a key goes further."""


@click.command()
@click.option("--once", is_flag=True, help="Print how it is now, and end; so does a pipe.")
@click.option(
    "--every", type=Seconds(0.2, 3600), default=1.0, metavar="SECONDS", help="Look again so often.  [default: 1]"
)
@outputs
def top(ctx: click.Context, once: bool, every: float, output: Output) -> None:
    """Show daemon, GPUs and jobs in the terminal, as they change.

    Keys: ? lists them. Arrows (or j and k) choose a job, enter says why it is where it is, l prints its output as it
    comes, e unfolds its array, z suspends it, u resumes it, x cancels it (y or n), s sorts, r turns the order round,
    space pauses, q quits.
    """
    live = not once and output is Output.TABLE and sys.stdout.isatty() and sys.stdin.isatty()
    client = connect(ctx, 0.0) if live else connect(ctx, reading=True)
    answers = ask(client, None if output is Output.JSON else NEEDS)
    status = {key: value for key, value in answers.status.items() if key != "schema"}
    if AS_OF in ctx.meta:  # no daemon runs
        of_a_process = dict.fromkeys(("pid", "host", "since_s", "cpu_s"))
        status |= {"daemon": {**status["daemon"], **of_a_process}, "notes": []}
        answers = replace(answers, status=status)
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
        self._requests = BackgroundRequests()
        self._looking = False  # an answer is waited for
        self._look_at = 0.0
        self._told_until = 0.0
        self._asked: tuple[str, list[int]] | None = None  # verb and jobs of the question

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
        self._look_at = time.monotonic() + self.every_s
        with self._requests as requests:
            while True:
                self._draw()
                ready = rounds.wait([self._input, requests.woken], self._pause_s())
                if requests.woken in ready:
                    requests.deliver()
                if self._input in ready:
                    typed = os.read(self._input, 64)
                    if not typed:  # the terminal is gone
                        return
                    for key in keys(typed):
                        if not self._press(key):
                            return
                now = time.monotonic()
                if self.view.told and now >= self._told_until:
                    self.view = replace(self.view, told="")
                if self.view.log is not None:
                    self.view = replace(self.view, log=self._tail(self.view.log))
                if not self.view.paused and not self._looking and now >= self._look_at:
                    self._looking = True
                    requests.ask(lambda: ask(self.client), self._looked)

    def _pause_s(self) -> float | None:
        """How long nothing is to be done, unless something comes; None: for ever."""
        now, times = time.monotonic(), list[float]()
        if not self.view.paused and not self._looking:
            times.append(self._look_at - now)
        if self.view.told:
            times.append(self._told_until - now)
        if self.view.log is not None:
            times.append(_TAIL_S)
        return max(0.0, min(times)) if times else None

    def _draw(self) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        width, height = max(LEAST_WIDTH, size.columns), max(LEAST_HEIGHT, size.lines)
        lines = [f"{styled(line)}\x1b[K" for line in draw(self.view, width, height)]
        sys.stdout.write("\x1b[H" + "\n".join(lines) + "\x1b[J")
        sys.stdout.flush()

    def _looked(self, result: Answers | ClientError) -> None:
        self._looking = False
        self._look_at = time.monotonic() + self.every_s
        if isinstance(result, DaemonAway):
            self.view = replace(self.view, note="the daemon is away, looking again")
        elif isinstance(result, ClientError):
            self.view = replace(self.view, note=str(result))
        else:
            self.view = replace(self.view, answers=result, note="")

    def _press(self, key: str) -> bool:
        """Do what a key is for; False: quit."""
        view = self.view
        if key in ("\x03", "\x04") or (key == "q" and view.log is None):
            return False
        if self._asked is not None:
            verb, ids = self._asked
            self._asked = None
            self.view = replace(view, question="")
            if key in ("y", "Y"):
                self._act(verb, ids)
        elif view.log is not None:
            self._scroll(view.log, key)
        elif view.why is not None:
            self.view = replace(view, why=None)
        elif key == "s":
            self.view = replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
        elif key == "r":
            self.view = replace(view, reverse=not view.reverse)
        elif key in _STEPS:
            self.view = replace(view, chosen=view.near(_STEPS[key]))
        elif key == " ":
            self.view = replace(view, paused=not view.paused)
        elif key == "?":
            self.view = replace(view, why=HELP)
        else:
            self._press_on_job(key)
        return True

    def _press_on_job(self, key: str) -> None:
        """What a key is for that is about the chosen job, or the first one."""
        row = self.view.line()
        if row is None:
            return
        ids = ids_of(row)
        job = self.view.chosen if self.view.chosen in ids else ids[0]
        view = self.view = replace(self.view, chosen=job)
        array = next((each.get("array") for each in view.answers.jobs if each["id"] == job), None)
        if key in ("\r", "\n"):
            self._requests.ask(lambda: self.client.get(f"/v1/jobs/{job}/why"), self._why)
        elif key == "l" and job is not None:
            self.view = replace(view, log=self._tail(LogTail(job, f"job {job}")))
        elif key == "e" and array:
            self.view = replace(view, expanded=view.expanded ^ {array})
        elif VERBS.get(key) == "cancel":
            self._asked = ("cancel", ids)
            what = f"job {row['id']} ({row.get('name')})" if len(ids) == 1 else f"{len(ids)} jobs ({row['id']})"
            self.view = replace(view, question=f"cancel {what}? y or n")
        elif key in VERBS:
            self._act(VERBS[key], ids)

    def _act(self, verb: str, ids: list[int]) -> None:
        body = {"verb": verb, "ids": ids}
        self._requests.ask(lambda: self.client.request("POST", "/v1/jobs/verb", body), self._acted)
        self._tell(f"{verb} {ranges(ids)}: ...")

    def _acted(self, result: dict[str, Any] | ClientError) -> None:
        if isinstance(result, ClientError):
            self._tell(str(result))
            return
        errors, rows = result.get("errors") or [], result.get("jobs") or []
        done = f"{ranges(row['id'] for row in rows)}: {rows[0]['state']} now" if rows else ""
        self._tell("; ".join(filter(None, (done, str(errors[0]["error"]) if errors else ""))))
        self._look_at = 0.0

    def _tell(self, text: str) -> None:
        self.view, self._told_until = replace(self.view, told=text), time.monotonic() + _TOLD_S

    def _why(self, result: dict[str, Any] | ClientError) -> None:
        if isinstance(result, ClientError):
            self._tell(str(result))
        else:
            self.view = replace(self.view, why=why_lines(result))

    def _scroll(self, log: LogTail, key: str) -> None:
        if key in ("l", "q", "\r", "\n"):
            self.view = replace(self.view, log=None)
        elif key in _STEPS:
            up = max(0, min(len(log.lines) - 1, log.up - _STEPS[key]))
            self.view = replace(self.view, log=replace(log, up=up))

    def _tail(self, log: LogTail) -> LogTail:
        """The end of the output of its newest attempt, as it is now; what is in sight stays where somebody scrolled."""
        files = log_files(self.client.home, log.job)
        if not files:
            return replace(log, lines=(f"job {log.job} has printed nothing yet",), up=0)
        file = files[-1]
        with open(file.path, "rb") as content:
            size = content.seek(0, os.SEEK_END)
            content.seek(max(0, size - _TAIL_BYTES))
            text = content.read(_TAIL_BYTES).decode("utf-8", "replace")
        lines = [line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in text.split("\n")]
        lines = lines[:-1] if not lines[-1] else lines
        title = f"job {log.job}, attempt {file.incarnation} on {file.node}"
        up = log.up + max(0, len(lines) - len(log.lines)) if log.up else 0
        return replace(log, title=title, lines=lines, up=max(0, min(up, len(lines) - 1)))


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
