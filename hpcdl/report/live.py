"""The page of what goes on now: one self-contained HTML file that a browser looks at again by itself.

Nothing is loaded. `now_page` draws the answer of `GET /v1/overview`; `Recent` keeps the events of the last hours
between two answers. Names and reasons are text of strangers: they go through `html`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdl.core.model.gpu_use import GpuUse, gpu_use
from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.units import GpuRef, count, fold_nodes, seconds_text
from hpcdl.report.grid import MOST_TILES, gpu_now, grid, grid_legend
from hpcdl.report.heat import heat, heat_legend
from hpcdl.report.history import History, JobHistory, Phase, Piece, Span
from hpcdl.report.html import document, html, links_html, note, table_of_cells, visible
from hpcdl.report.spans import read_history
from hpcdl.report.timeline import COLOURS, Scale, draw, timeline_legend

MOST_LANES = 32
"""GPUs that have a lane of their own in the timeline; of more, the nodes' shares are drawn."""

MOST_SPANS = 1500

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PageState:
    """The state of the page. `every_s`: it is written again so often, None: it is not. `note`: why it is old,
    "" where it is not; `over`: nobody will write it again. `moment`: a time as people read it.
    """

    every_s: float | None
    moment: Callable[[float], str]
    note: str = ""
    over: bool = False


def now_page(answer: Row, history: History, names: Mapping[int, str], shown: PageState) -> str:
    """The page of what goes on now.

    `answer`: of `GET /v1/overview`; `history`: of the last hours; `names`: of jobs, as they are shown.
    """
    at = float(answer["at"])
    daemon = answer["status"]["daemon"]
    title = f"hpcdl on {visible(daemon['host'], 80)}"
    dense = sum(len(node["gpus"]) for node in answer["nodes"]) > MOST_TILES
    parts = [
        _head(answer, title, at, shown),
        _tiles(answer),
        _section("GPUs", grid(answer["nodes"], names) + _more(answer, "nodes", "ls nodes") + grid_legend(dense)),
        _section(f"The last {seconds_text(history.end - history.begin)}", _timeline(history)),
        _running(answer),
        _waiting(answer, at),
        _failed(answer, at, shown),
        _notices(answer, shown),
    ]
    every = 0 if shown.every_s is None or shown.over else shown.every_s
    head = f'<meta http-equiv="refresh" content="{max(1, round(every))}">' if every else ""
    head += '<meta name="referrer" content="no-referrer">'
    stale = ' class="stale"' if shown.note or shown.over else ""
    return document(title, parts, live=True, root=f' data-at="{at:.3f}" data-every="{every:g}"{stale}', head=head)


# --- the document -----------------------------------------------------------------------------------------------------
def _section(title: str, inside: str, number: int | None = None) -> str:
    told = "" if number is None else f' <span class="soft">{number}</span>'
    return f"<section><h2>{title}{told}</h2>{inside}</section>"


def _head(answer: Row, title: str, at: float, shown: PageState) -> str:
    daemon = answer["status"]["daemon"]
    words = [f"{html(daemon['policy'], 40)} for {html(daemon['objective'], 40)}"]
    if daemon["pid"]:  # else there is no daemon
        words.append(f"up {seconds_text(daemon['since_s'])}")
        words.append(f"pid {daemon['pid']}, version {html(daemon['version'], 40)}")
    if daemon["stopping"]:
        words.append('<b class="alarm">stopping</b>')
    every = f", written every {_every(shown.every_s)}" if shown.every_s and not shown.over else ""
    alarms = []
    if shown.note:
        alarms.append(f"<b>This is how it was at {html(shown.moment(at))}.</b> {html(shown.note, 400)}")
    if shown.over:
        alarms.append("<b>Nobody writes this page any more:</b> hpcdl page was ended.")
    batch = answer["status"].get("batch") or {}
    alarms += [html(each, 300) for each in batch.get("troubles", ())[:3]]
    told = "".join(f'<p class="problems">{each}</p>' for each in alarms)
    as_of = f'<p class="as-of">as of {html(shown.moment(at))}{every} · <span id="age"></span></p>'
    return f'<header><h1>{html(title)}</h1>{as_of}<p class="note">{" · ".join(words)}</p></header>{told}'


def _every(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else seconds_text(seconds)


# --- figures ----------------------------------------------------------------------------------------------------------
def _tiles(answer: Row) -> str:
    use = gpu_use(gpu_now(node, gpu) for node in answer["nodes"] for gpu in node["gpus"])
    whole = use.held + use.free + use.bad + use.away
    lines = [("held", use.held), ("free", use.free), ("excluded or unhealthy", use.bad), ("away", use.away)]
    told = ", ".join(f"{number} {name}" for name, number in lines if number or name in ("held", "free"))
    states = answer["status"]["jobs"]
    jobs = ", ".join(f"{number} {html(name, 20)}" for name, number in _ordered(states)) or "none yet"
    saved = sum(1 for row in answer["running"] if row.get("saved_step") is not None)
    notices = answer["status"]["notices"]
    figures = [
        (str(whole), "GPU" if whole == 1 else "GPUs", told, _bar(use, whole)),
        ("–" if use.load is None else f"{use.load:.0f} %", "load now", _load_told(use), ""),
        (str(sum(states.get(each, 0) for each in _GOING)), "unfinished jobs", jobs, ""),
        (
            f"{saved} of {len(answer['running'])}",
            "with a checkpoint",
            "of the jobs that hold GPUs" + (" and are listed" if answer["running_more"] else ""),
            "",
        ),
    ]
    if answer["status"]["pilots"]:
        number = answer["status"]["pilots"]
        figures.append((str(number), "pilot" if number == 1 else "pilots", "that wait or run in the batch system", ""))
    if notices["waiting"] or notices["given_up"]:
        told = f"{notices['waiting']} waiting, {notices['given_up']} given up"
        number = len(answer["notices"]) + answer["notices_more"]
        figures.append((str(number), "notice" if number == 1 else "notices", told, ""))
    return (
        '<div class="figures-row">'
        + "".join(
            f'<div class="figure"><b>{number}</b> {name}{bar}<small>{told}</small></div>'
            for number, name, told, bar in figures
        )
        + "</div>"
    )


_GOING = ("QUEUED", "STARTING", "RUNNING", "RESCALING", "SUSPENDING", "SUSPENDED")

_ENDED = ("DONE", "FAILED", "CANCELLED")


def _ordered(states: Mapping[str, int]) -> list[tuple[str, int]]:
    names = [*_GOING, *_ENDED]
    known = [(name, states[name]) for name in names if states.get(name)]
    return known + sorted((name, number) for name, number in states.items() if name not in names)


def _load_told(use: GpuUse) -> str:
    if use.load is None:
        return "no GPU reports its load"
    more = f"; {use.load_held:.0f} % on those held" if use.load_held is not None else ""
    return f"mean of {count(use.told, 'GPU')}{more}"


def _bar(use: GpuUse, whole: int) -> str:
    if not whole:
        return ""
    x, parts = 0.0, []
    for number, look in ((use.held, "c0"), (use.free, "free"), (use.bad, "bad"), (use.away, "away")):
        if number:
            wide = 100.0 * number / whole
            parts.append(f'<rect x="{x:.2f}%" width="{wide:.2f}%" height="100%" class="share {look}"/>')
            x += wide
    return f'<svg width="100%" height="8" aria-hidden="true">{"".join(parts)}</svg>'


def _more(answer: Row, what: str, command: str) -> str:
    left = answer[f"{what}_more"]
    return note(f"and {left} more: hpcdl {command} lists all of them") if left else ""


def _timeline(history: History) -> str:
    length = history.end - history.begin
    if not history.gpus or not (history.spans or history.warm):
        return note("No GPU was held.")
    if len(history.gpus) <= MOST_LANES and len(history.spans) <= MOST_SPANS:
        paint = {job.id: job.id % COLOURS for job in history.jobs}
        return draw(history, Scale(history.begin, length, ago=True), paint) + timeline_legend(history, paint)
    return heat(history, length, ago=True) + heat_legend()


# --- tables -----------------------------------------------------------------------------------------------------------
Columns = Sequence[tuple[str, Callable[[Row], str]]]
"""Titles, and the cell of a row as a fragment of HTML."""


def _listed(
    title: str, rows: Sequence[Row], columns: Columns, right: Iterable[int], more: str, number: int | None
) -> str:
    """A section with a table of rows of the answer. `right`: columns of numbers; `number`: how many there are."""
    cells = [[cell(row) for _, cell in columns] for row in rows]
    table = table_of_cells([name for name, _ in columns], cells, frozenset(right), kind="table wide")
    return _section(title, table + more, number)


def _running(answer: Row) -> str:
    rows, left = answer["running"], answer["running_more"]
    if not rows:
        return _section("Running", note("No job holds a GPU."), 0)
    columns: Columns = (
        ("Job", lambda row: f"{_mark(row['id'])} {row['id']}"),
        ("", _name),
        ("State", lambda row: html(row["state"], 20)),
        ("GPUs", lambda row: str(row["gpus"])),
        ("On", lambda row: _long(fold_nodes(str(name) for name in row["on"]), 24)),
        ("Progress", _progress),
        ("Steps/s", lambda row: _rate(row.get("rate"))),
        ("Saved", _saved),
        ("Done in", lambda row: _band(row, "eta_s", "eta_low_s", "eta_high_s")),
        ("Why", lambda row: _long(row.get("reason", ""), 90)),
    )
    text = f"and {count(left, 'more job')} that hold fewer GPUs: hpcdl ls lists all of them"
    return _listed("Running", rows, columns, (3, 6), note(text) if left else "", len(rows) + left)


def _waiting(answer: Row, at: float) -> str:
    rows = answer["waiting"]
    if not rows:
        return _section("Waiting", note("No job waits."), 0)
    columns: Columns = (
        ("Job", lambda row: str(row["id"])),
        ("", _name),
        ("State", lambda row: html(row["state"], 20) + (" (held)" if row.get("held") else "")),
        ("GPUs", _asked),
        ("Since", lambda row: seconds_text(max(0.0, at - row["submitted_at"]))),
        ("Starts in", lambda row: _band(row, "starts_in_s", "starts_low_s", "starts_high_s")),
        ("Done in", lambda row: _band(row, "eta_s", "eta_low_s", "eta_high_s")),
        ("Why", lambda row: _long(row.get("reason", ""), 110)),
    )
    number = len(rows) + answer["waiting_more"]
    return _listed("Waiting", rows, columns, (3, 4), _more(answer, "waiting", "ls"), number)


def _failed(answer: Row, at: float, shown: PageState) -> str:
    if not answer["failed"]:
        return ""

    def when(row: Row) -> str:
        if row.get("finished_at") is None:
            return "–"
        ago = seconds_text(max(0.0, at - row["finished_at"]))
        return f'<span title="{html(shown.moment(row["finished_at"]))}">{ago} ago</span>'

    columns: Columns = (
        ("Job", lambda row: str(row["id"])),
        ("", _name),
        ("When", when),
        ("Cause", lambda row: html(row.get("cause", "–"), 40)),
        ("Exit", lambda row: html(row.get("exit_code", "–"), 20)),
        ("What happened", lambda row: _long(row.get("detail", ""), 140)),
    )
    return _listed("Failed last", answer["failed"], columns, (4,), "", None)


def _notices(answer: Row, shown: PageState) -> str:
    rows = [{**row, **each} for row in answer["notices"] for each in row["destinations"]]
    if not rows:
        return ""
    columns: Columns = (
        ("Id", lambda row: str(row["id"])),
        ("At", lambda row: html(shown.moment(row["at"]))),
        ("Kind", lambda row: html(row["kind"], 20)),
        ("To", lambda row: _long(row["destination"], 40)),
        ("State", lambda row: html(row["state"], 20)),
        ("Text", lambda row: _long(row["text"], 80)),
        ("Why", lambda row: _long(row["why"], 80)),
    )
    more = _more(answer, "notices", "notices")
    return _listed("Notifications not delivered", rows[:40], columns, (), more, None)


def _mark(job: int) -> str:
    """The job's colour in the grid and the timeline."""
    full = '<rect width="10" height="10" rx="2" class="full"/>'
    return f'<svg width="10" height="10" class="gpu c{job % COLOURS}" aria-hidden="true">{full}</svg>'


def _long(text: object, most: int) -> str:
    """Cut, the rest where the mouse rests."""
    plain = str(text)
    return html(plain, most) if len(plain) <= most else f'<span title="{html(plain, 1000)}">{html(plain, most)}</span>'


def _name(row: Row) -> str:
    """The job's name, with its tags and links below it."""
    tags = html(" ".join(map(str, row.get("tags") or ())), 200)
    more = " ".join(filter(None, (tags, links_html(row.get("links") or {}))))
    return _long(row["name"], 40) + (f'<br><small class="soft">{more}</small>' if more else "")


def _progress(row: Row) -> str:
    step, total = row.get("step"), row.get("total")
    if step is None:
        return "–"
    if not total:
        return f"step {step}"
    part = max(0.0, min(1.0, step / total))
    return (
        f'<svg width="90" height="9" class="progress c{row["id"] % COLOURS}"><rect width="100%" height="100%" rx="2" '
        f'class="empty"/><rect width="{100 * part:.1f}%" height="100%" rx="2" class="full"/></svg> '
        f'<span title="step {step} of {total}">{100 * part:.0f} %</span>'
    )


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.3g}"


def _saved(row: Row) -> str:
    saved, step = row.get("saved_step"), row.get("step")
    if saved is None:
        return "–" if step is None else "nothing yet"
    return f"step {saved}" if step is None or step <= saved else f"step {saved}, {count(step - saved, 'step')} ago"


def _band(row: Row, expected: str, low: str, high: str) -> str:
    if row.get(expected) is None:
        return "–"
    told = _about(row[expected])
    if row.get(low) is None or row.get(high) is None or _about(row[low]) == _about(row[high]):
        return told
    return f'{told} <span class="soft">({_about(row[low])} to {_about(row[high])})</span>'


def _about(seconds: float) -> str:
    return "under 1 min" if seconds < 60 else seconds_text(60 * round(seconds / 60)).replace(" min 00 s", " min")


def _asked(row: Row) -> str:
    low, high = row.get("gpus_min", 1), row.get("gpus_max")
    gpus = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
    nodes, most = row.get("nodes", 1), row.get("nodes_max") or row.get("nodes", 1)
    return gpus if most == 1 else f"{gpus} on each of {nodes if nodes == most else f'{nodes} to {most}'} nodes"


# --- what the GPUs did in the last hours ------------------------------------------------------------------------------
MOST = 20_000
"""Events that are kept."""

NAME = 80
"""Letters of a job's name that are kept."""


@dataclass(slots=True)
class Recent:
    """The events that have to do with the last `back_s` seconds. `after`: what the next answer is to begin after."""

    back_s: float
    after: int = 0
    names: dict[int, str] = field(default_factory=dict)
    _rows: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, answer: Row) -> None:
        """Takes in the next answer. One that begins elsewhere is of another ledger: then nothing of before counts."""
        if answer["after"] != self.after:
            self._rows, self.names = [], {}
        self._rows += answer["events"]
        self.names |= {int(number): visible(name, NAME) for number, name in answer["names"].items()}
        self.after = answer["last"]
        over = {
            _key(row)
            for row in self._rows
            if row["kind"] == "IncarnationEnded" and row["at"] < answer["at"] - self.back_s
        }
        self._rows = [row for row in self._rows if _key(row) not in over][-MOST:]
        held = {int(job) for node in answer["nodes"] for gpu in node["gpus"] for job in (gpu[2], *gpu[9:10])}
        known = {row["body"].get("job") for row in self._rows} | held
        self.names = {job: name for job, name in self.names.items() if job in known}

    def history(self, answer: Row) -> History:
        """From `back_s` before the answer, or where the first that is known begins, until the answer."""
        now = float(answer["at"])
        found = read_history(self._rows, until=now)
        spans = [self._named(span) for span in found.spans if span.end_at > now - self.back_s]
        spans += self._others(answer["nodes"], spans, now)
        first = min((span.start_at for span in spans), default=now)
        begin = min(now - 60.0, max(now - self.back_s, first))
        spans = [clipped(span, begin) for span in spans]
        jobs = {span.job: span.name for span in spans}
        waits = [replace(wait, start_at=max(begin, wait.start_at)) for wait in found.warm if wait.end_at > begin]
        # A node may have come back with fewer GPUs than it had, or not at all.
        gpus = {GpuRef(str(node["name"]), int(gpu[0])) for node in answer["nodes"] for gpu in node["gpus"]}
        gpus |= {GpuRef(span.node, span.gpu) for span in spans}
        named = [replace(wait, name=self.names.get(wait.job, wait.name)) for wait in waits]
        jobs |= {wait.job: wait.name for wait in named}
        return History(
            begin,
            now,
            tuple(sorted(gpus)),
            tuple(JobHistory(job, name, None, begin, None, None, ()) for job, name in sorted(jobs.items())),
            tuple(spans),
            tuple(named),
        )

    def _named(self, span: Span) -> Span:
        return replace(span, name=self.names.get(span.job, span.name))

    def _others(self, nodes: Iterable[Mapping[str, Any]], spans: Sequence[Span], now: float) -> Iterable[Span]:
        """What is held now since before the events that are known."""
        known = {(span.job, span.incarnation, span.node, span.gpu) for span in spans}
        for node in nodes:
            for index, _, job, incarnation, _, _, _, _, since, *_ in node["gpus"]:
                if job and (job, incarnation, node["name"], index) not in known:
                    name = self.names.get(job, f"job {job}")
                    begin = now - self.back_s if since is None else min(now, since)
                    piece = Piece(Phase.TRAINING, Role.PRIMARY, begin, now)
                    yield Span(job, name, incarnation, node["name"], index, 1, begin, begin, now, (piece,), None)


def clipped(span: Span, begin: float) -> Span:
    """The span from `begin` on."""
    if span.start_at >= begin:
        return span
    pieces = tuple(replace(each, begin=max(begin, each.begin)) for each in span.pieces if each.end > begin)
    return replace(span, start_at=begin, pieces=pieces or span.pieces[-1:])


def _key(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of the attempt; of what concerns none, None and its seq."""
    body = row["body"]
    return (body["job"], body["incarnation"]) if "incarnation" in body else (None, row["seq"])
