"""What `hpcdl top` draws: from what the daemon answered and what the user chose to lines of text. Pure."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdl.cli.formats import JOBS
from hpcdl.cli.machines import gpu_rows, holder_text, memory_text
from hpcdl.cli.output import Row, cut, escape, table_lines, width_of
from hpcdl.cli.rows import duration_text
from hpcdl.core.units import count

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
    """What the daemon said. `status`: /v1/status; `nodes`: of /v1/nodes; `jobs`: the rows of the unfinished ones."""

    status: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[Row] = ()
    jobs: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class View:
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


def draw(view: View, width: int, height: int | None) -> list[Styled]:
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


def _keys(view: View) -> str:
    order = f"{view.sort}{' reversed' if view.reverse else ''}"
    return f"[{order}{', paused' if view.paused else ''}]  {KEYS}"


def _header(view: View) -> list[Styled]:
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
    gpus = gpu_rows(nodes)
    held = sum(1 for gpu in gpus if gpu.get("holder"))
    bad = sum(1 for gpu in gpus if gpu.get("state", "ok") != "ok" or gpu.get("avoided_until"))
    text = f"GPUs  {held} held, {len(gpus) - held - bad} free of {len(gpus)}" + (f", {bad} not usable" if bad else "")
    loads = [gpu["util"] for gpu in gpus if gpu.get("util") is not None]
    if loads:
        text += f"; load now {sum(loads) / len(loads):.0f} %"
        on_held = [gpu["util"] for gpu in gpus if gpu.get("holder") and gpu.get("util") is not None]
        text += f", {sum(on_held) / len(on_held):.0f} % on those held" if on_held else ""
    power = [gpu["power_w"] for gpu in gpus if gpu.get("power_w") is not None]
    return text + (f"; {sum(power):.0f} W" if power else "")


def _saved(jobs: Sequence[Row]) -> str:
    """How much of what runs a checkpoint has."""
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
        bar = "avoided".center(_BAR, "!")
    part = "  - " if util is None else f"{util:3.0f}%"
    memory = memory_text(gpu.get("used_mib"), gpu.get("memory_mib")).replace(" GiB", "G")
    return f"{_filled(str(gpu['id']), names)} {bar} {part} {memory:>8} {holder_text(gpu)}"


def _table(view: View, width: int, room: int | None) -> list[Styled]:
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
    titles, *lines = table_lines(columns, shown, width=width, colour=False)
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
