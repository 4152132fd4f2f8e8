"""The page of what goes on now: one self-contained HTML file that a browser looks at again by itself.

Nothing is loaded. `now_page` draws the answer of `GET /v1/overview`; `Recent` keeps the events of the last hours
between two answers. Names and reasons are text of strangers: they go through `html`. `hpcdl web` serves the same page.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from hpcdl.core.model.gpu_use import GpuUse, gpu_use
from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.units import GpuRef, count, fold_nodes, seconds_text
from hpcdl.report.clock import Local, clock_text, moment_text
from hpcdl.report.grid import MOST_TILES, Hrefs, gpu_now, grid, grid_legend
from hpcdl.report.heat import heat, heat_legend
from hpcdl.report.history import History, JobHistory, Phase, Piece, Span
from hpcdl.report.html import document, html, links_html, note, table_cell, table_of_cells, visible
from hpcdl.report.names import breakable, job_colour, marked, numbers_text, stem
from hpcdl.report.series import curves_html, number_text
from hpcdl.report.spans import read_history
from hpcdl.report.timeline import Scale, draw, timeline_legend

MOST_LANES = 32
"""GPUs that have a lane of their own in the timeline; of more, the nodes' shares are drawn."""

MOST_SPANS = 1500

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PageState:
    """The state of the page. `every_s`: it is written again so often, None: it is not. `note`: why it is old,
    "" where it is not; `over`: nobody will write it again. `local`: the local time of a moment. `served`: by `hpcdl
    web`, which has a page for each job and node.
    """

    every_s: float | None
    local: Local
    note: str = ""
    over: bool = False
    served: bool = False

    @property
    def hrefs(self) -> Hrefs:
        """Where its links lead."""
        return Hrefs("/job/{}", "/node/{}") if self.served else Hrefs("#job-{}")

    def moment(self, at: float) -> str:
        """A date with its time of day."""
        return moment_text(at, self.local)

    def clock(self, at: float, now: float) -> str:
        """A time of day, with the date where it is another day's: a fragment of HTML."""
        return f'<time title="{self.moment(at)}">{clock_text(at, now, self.local)}</time>'


def now_page(answer: Row, history: History, names: Mapping[int, str], shown: PageState) -> str:
    """The page of what goes on now.

    `answer`: of `GET /v1/overview`; `history`: of the last hours; `names`: of jobs, as they are shown.
    """
    at = float(answer["at"])
    dense = sum(len(node["gpus"]) for node in answer["nodes"]) > MOST_TILES
    gpus = grid(answer["nodes"], names, shown.hrefs) + _more(answer, "nodes", "ls nodes") + grid_legend(dense)
    parts = [
        _head(answer, at, shown),
        _tiles(answer),
        section("gpus", "GPUs", gpus),
        section("timeline", f"The last {seconds_text(history.end - history.begin)}", lanes(history, shown.local)),
        _running(answer, at, shown),
        _curves(answer, shown),
        _waiting(answer, at, shown),
        _failed(answer, at, shown),
        _notices(answer, at, shown),
    ]
    return live_document(page_title(answer), parts, at, shown)


def page_title(answer: Row) -> str:
    """What a page is of."""
    return f"hpcdl on {visible(answer['status']['daemon']['host'], 80)}"


def live_document(title: str, parts: Sequence[str], at: float, shown: PageState) -> str:
    """A page that says how old it is; a file is read again by the browser, a served page asks for what is new."""
    every = 0 if shown.every_s is None or shown.over else shown.every_s
    head = f'<meta http-equiv="refresh" content="{max(1, round(every))}">' if every and not shown.served else ""
    head += '<meta name="referrer" content="no-referrer">'
    stale = ' class="stale"' if shown.note or shown.over else ""
    job = ' data-job-href="/job/"' if shown.served else ' data-job-href="#job-"'
    root = f' data-at="{at:.3f}" data-every="{every:g}"{job}{stale}'
    if shown.served:
        root += " data-served"
        menu = '<a href="/">Overview</a> <a href="/jobs">Jobs</a> <a href="/timeline">Timeline</a>'
        parts = [f'<nav aria-label="Pages">{menu}</nav>', *parts]
    return document(title, parts, script=True, served=shown.served, root=root, head=head)


# --- the document -----------------------------------------------------------------------------------------------------
def section(name: str, title: str, inside: str, number: int | None = None) -> str:
    """A part of the page, with its title; a served page changes part by part."""
    told = "" if number is None else f' <span class="soft">{number}</span>'
    return f'<section id="{name}"><h2>{title}{told}</h2>{inside}</section>'


def _head(answer: Row, at: float, shown: PageState) -> str:
    daemon = answer["status"]["daemon"]
    words = [f"{html(daemon['policy'], 40)} for {html(daemon['objective'], 40)}"]
    if daemon["pid"]:  # else there is no daemon
        words.append(f"up {seconds_text(daemon['since_s'])}")
        words.append(f"pid {daemon['pid']}, version {html(daemon['version'], 40)}")
        if daemon["stopping"]:
            words.append('<b class="alarm">stopping</b>')
    batch = answer["status"].get("batch") or {}
    return page_head(page_title(answer), at, shown, " · ".join(words), batch.get("troubles", ())[:3])


def page_head(title: str, at: float, shown: PageState, under: str, troubles: Sequence[object] = ()) -> str:
    """Title, time and troubles of a page. `under`: a fragment of HTML below the title."""
    every = f", written every {_every(shown.every_s)}" if shown.every_s and not (shown.over or shown.served) else ""
    alarms = []
    if shown.note:
        alarms.append(f"<b>This is how it was at {shown.moment(at)}.</b> {html(shown.note, 400)}")
    if shown.over:
        alarms.append("<b>Nobody writes this page any more:</b> hpcdl page was ended.")
    alarms += [html(each, 300) for each in troubles]
    told = "".join(f'<p class="problems" role="status">{each}</p>' for each in alarms)
    as_of = f'<p class="as-of">as of {shown.moment(at)}{every} · <span id="age"></span></p>'
    return f'<header id="head"><h1>{html(title)}</h1>{as_of}<p class="note">{under}</p>{told}</header>'


def _every(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else seconds_text(seconds)


# --- figures ----------------------------------------------------------------------------------------------------------
def _tiles(answer: Row) -> str:
    use = gpu_use(gpu_now(node, gpu) for node in answer["nodes"] for gpu in node["gpus"])
    whole = use.held + use.free + use.bad + use.away
    lines = [("held", use.held), ("free", use.free), ("excluded or unhealthy", use.bad), ("away", use.away)]
    told = ", ".join(f"{number} {name}" for name, number in lines if number or name in ("held", "free"))
    states = answer["status"]["jobs"]
    saved = sum(1 for row in answer["running"] if row.get("saved_step") is not None)
    notices = answer["status"]["notices"]
    figures = [
        (str(whole), "GPU" if whole == 1 else "GPUs", told, _bar(use, whole)),
        ("–" if use.load is None else f"{use.load:.0f} %", "GPU load now", _load_told(use), ""),
        (str(sum(states.get(each, 0) for each in _GOING)), "unfinished jobs", _states_text(states), ""),
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
        figures.append((str(number), "notification" if number == 1 else "notifications", told, ""))
    return (
        '<div id="figures" class="figures-row">'
        + "".join(
            f'<div class="figure"><b>{number}</b> {name}{bar}<small>{told}</small></div>'
            for number, name, told, bar in figures
        )
        + "</div>"
    )


_GOING = ("QUEUED", "STARTING", "RUNNING", "RESCALING", "SUSPENDING", "SUSPENDED")

_ENDED = ("DONE", "FAILED", "CANCELLED")


def _states_text(states: Mapping[str, int]) -> str:
    """How many jobs are in which state, the finished ones in a line of their own: a fragment of HTML."""

    def text(names: Iterable[str]) -> str:
        return ", ".join(f"{states[name]} {html(name, 20)}" for name in names if states.get(name))

    others = sorted(states.keys() - {*_GOING, *_ENDED})
    lines = (text(_GOING), f"finished: {ended}" if (ended := text([*_ENDED, *others])) else "")
    return "<br/>".join(filter(None, lines)) or "none yet"


def _load_told(use: GpuUse) -> str:
    if use.load is None:
        return "no GPU reports its load"
    more = f"; {use.load_held:.0f} % on those held" if use.load_held is not None else ""
    return f"measured, mean of {count(use.told, 'GPU')}{more}"


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


def lanes(history: History, local: Local) -> str:
    """What the GPUs did, with a lane for each or, of many, the shares of nodes."""
    length = history.end - history.begin
    if not history.gpus or not (history.spans or history.warm):
        return note("No GPU was held.")
    if len(history.gpus) <= MOST_LANES and len(history.spans) <= MOST_SPANS:
        return draw(history, Scale(history.begin, length, local=local)) + timeline_legend(history)
    return heat(history, length, local=local) + heat_legend()


# --- tables -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of rows of an answer. `cell`: a fragment of HTML; `value`: a number to sort by, where the text is none;
    `right`: it is of numbers."""

    title: str
    cell: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    right: bool = False

    def td(self, row: Row) -> str:
        """The cell of a row."""
        number = self.value(row) if self.value is not None else None
        sort = "" if number is None else f' data-v="{number:g}"'
        return table_cell(self.title, self.cell(row), right=self.right, more=sort)


def listed(title: str, rows: Iterable[Row], columns: Sequence[TableColumn]) -> str:
    """A table of rows of an answer, in the colours of their states; a row with `heading` is a heading of those below
    it, and one with `members` unfolds into these."""
    lines = []

    def line(row: Row, kind: str = "") -> None:
        anchor = f' id="job-{row["id"]}"' if isinstance(row.get("id"), int) else ""
        state = f' data-state="{html(row["state"], 20)}"' if isinstance(row.get("state"), str) else ""
        lines.append(f"<tr{kind}{anchor}{state}>{''.join(column.td(row) for column in columns)}</tr>")

    for row in rows:
        if "heading" in row:
            lines.append(
                f'<tr class="heading"><th scope="rowgroup" colspan="{len(columns)}">{row["heading"]}</th></tr>'
            )
        elif "members" in row:
            line(row, f' class="array" data-array="{row["array"]}"')
            for member in row["members"]:
                line(member, ' class="member"')
        else:
            line(row)
    right = frozenset(place for place, column in enumerate(columns) if column.right)
    titles = [column.title for column in columns]
    return table_of_cells(titles, lines, right, kind="table wide cards", caption=title, hidden=True)


def job_name(row: Row, at: str | None = None) -> str:
    """A job's name, with its tags and links below it, as a fragment of HTML. `at`: what stands in its place."""
    tags = html(" ".join(map(str, row.get("tags") or ())), 200)
    more = " ".join(filter(None, (tags, links_html(row.get("links") or {}))))
    name = f"<b>{breakable(row['name'] if at is None else at, 120)}</b>"
    return name + (f'<br/><small class="soft">{more}</small>' if more else "")


def metric_column(rows: Iterable[Row]) -> list[TableColumn]:
    """The column of the metric that each job reported last; none where no job reported one."""
    if all(row.get("metric") is None and row.get("not_finite_since") is None for row in rows):
        return []

    def cell(row: Row) -> str:
        if row.get("metric") is None and row.get("not_finite_since") is not None:
            return f'<b class="alarm" title="since about step {row["not_finite_since"]}">nan</b>'
        return "–" if row.get("metric") is None else number_text(row["metric"])

    return [TableColumn("Metric", cell, lambda row: row.get("metric"), right=True)]


def swept(row: Row) -> str:
    """What distinguishes a member of a sweep: `lr=0.1 bs=32`; "" of any other job."""
    return " ".join(f"{name}={value}" for name, value in (row.get("sweep") or {}).items())


def _running(answer: Row, at: float, shown: PageState) -> str:
    rows, left = answer["running"], answer["running_more"]
    if not rows:
        return section("running", "Running", note("No job holds a GPU."), 0)
    columns = (
        TableColumn("Job", lambda row: marked(row["id"], shown.hrefs.job_link(row["id"], str(row["id"])))),
        TableColumn("Name", lambda row: job_name(row, row.get("shown"))),
        TableColumn("State", lambda row: html(row["state"], 20)),
        TableColumn("GPUs", lambda row: str(row["gpus"]), right=True),
        TableColumn("On", lambda row: breakable(fold_nodes(str(name) for name in row["on"]), 60)),
        TableColumn("Progress", progress_bar, lambda row: row["step"] / row["total"] if _has_progress(row) else -1.0),
        TableColumn("Steps/s", lambda row: _rate(row.get("rate")), right=True),
        *metric_column(rows),
        TableColumn("Saved", _saved, lambda row: row.get("saved_step") or -1.0),
        TableColumn("Done", lambda row: _then(row, "eta", at, shown), lambda row: row.get("eta_s")),
    )
    if any(row.get("reason") for row in rows):
        columns += (TableColumn("Why", lambda row: _long(row.get("reason", ""), 90)),)
    text = f"and {count(left, 'more job')} that hold fewer GPUs: hpcdl ls lists all of them"
    table = listed("Running jobs", _by_array(rows, answer.get("arrays") or {}), columns)
    return section("running", "Running", table + (note(text) if left else ""), len(rows) + left)


def _curves(answer: Row, shown: PageState) -> str:
    """Some curves of the jobs that hold the most GPUs."""
    names = {str(row["id"]): row["name"] for row in answer["running"]}
    states = {str(row["id"]): html(row["state"], 20) for row in answer["running"]}
    parts = []
    for job, found in (answer.get("curves") or {}).items():
        if job in names and found:
            link = shown.hrefs.job_link(int(job), job)
            title = f"<h3>{marked(int(job), link)} {breakable(names[job])}</h3>"
            parts.append(f'<div class="of-job" data-state="{states[job]}">{title}{curves_html(found)}</div>')
    more = len(answer["running"]) - len(parts)
    told = note(f"hpcdl show ID has those of the other {count(more, 'job')}.") if parts and more else ""
    return section("curves", "Curves", "".join(parts) + told) if parts else ""


def _by_array(rows: Sequence[Row], arrays: Mapping[str, Row]) -> Iterable[Row]:
    """The members of an array below a heading, each by what differs."""
    order = {row["array"] if row.get("array") else -row["id"]: None for row in rows}
    groups: dict[int, list[Row]] = {key: [] for key in order}
    for row in rows:
        groups[row["array"] if row.get("array") else -row["id"]].append(row)
    for key, members in groups.items():
        if len(members) == 1:
            yield members[0]
            continue
        of = arrays.get(str(key)) or {}
        waits = f", {of['waiting']} wait" if of.get("waiting") else ""
        name = breakable(stem([str(row["name"]) for row in members]), 120)
        yield {"heading": f'{name} <span class="soft">array {key}: {len(members)} hold GPUs{waits}</span>'}
        differ = [swept(row) for row in members]
        apart = len(set(differ)) == len(members)  # else their indices differ, too, which the names have
        for row, values in zip(members, differ, strict=True):
            yield {**row, "shown": values if apart and values else row["name"]}


def _folded(rows: Sequence[Row], arrays: Mapping[str, Row]) -> Iterable[Row]:
    """One row for those of an array that wait alike: with their ids, their number and what differs."""

    def alike(row: Row) -> tuple[Any, ...]:
        return (row["array"], row["state"], bool(row.get("held"))) if row.get("array") else (row["id"],)

    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(alike(row), []).append(row)
    for members in groups.values():
        first = members[0]
        of = arrays.get(str(first.get("array")))
        if len(members) == 1 or of is None:
            yield from members
            continue
        alone = sum(1 for key in groups if key[0] == first["array"]) == 1
        number = of["waiting"] if alone else len(members)
        ids = str(of["ids"]) if alone else numbers_text(row["id"] for row in members)
        differs = " ".join(f"{name}={a}..{b}" for name, a, b in of["varies"]) or "[…]"
        yield {
            **first,
            "ids": ids,
            "number": number,
            "shown": stem([str(row["name"]) for row in members]),
            "differs": differs,
        }


def _waiting(answer: Row, at: float, shown: PageState) -> str:
    rows = answer["waiting"]
    if not rows:
        return section("waiting", "Waiting", note("No job waits."), 0)

    def name(row: Row) -> str:
        if "number" not in row:
            return job_name(row)
        number = f'<span class="soft">{row["number"]} jobs</span>'
        return f"{job_name(row, row['shown'])} {breakable(row['differs'])} {number}"

    columns = (
        TableColumn(
            "Job",
            lambda row: shown.hrefs.job_link(
                row["id"] if shown.served else 0, ids_html(str(row.get("ids", row["id"])))
            ),
        ),
        TableColumn("Name", name),
        TableColumn("State", lambda row: html(row["state"], 20) + (" (held)" if row.get("held") else "")),
        TableColumn("GPUs", _asked, right=True),
        TableColumn("Since", lambda row: shown.clock(row["submitted_at"], at), lambda row: row["submitted_at"]),
        TableColumn("Starts", lambda row: _then(row, "starts", at, shown), lambda row: row.get("starts_in_s")),
        TableColumn("Done", lambda row: _then(row, "eta", at, shown), lambda row: row.get("eta_s")),
        TableColumn("Why", lambda row: _long(row.get("reason", ""), 110)),
    )
    number = len(rows) + answer["waiting_more"]
    folded = list(_folded(rows, answer.get("arrays") or {}))
    left = number - sum(row.get("number", 1) for row in folded)
    more = note(f"and {left} more: hpcdl ls lists all of them") if left > 0 else ""
    return section("waiting", "Waiting", listed("Waiting jobs", folded, columns) + more, number)


def ids_html(text: str) -> str:
    """Numbers of jobs as a fragment of HTML that breaks after commas only: `33,35-44`."""
    return ",<wbr/>".join(f'<span class="kept">{each}</span>' for each in html(text, 60).split(","))


def _failed(answer: Row, at: float, shown: PageState) -> str:
    if not answer["failed"]:
        return ""

    rows = [{**row, "state": "FAILED"} for row in answer["failed"]]

    def when(row: Row) -> str:
        return "–" if row.get("finished_at") is None else shown.clock(row["finished_at"], at)

    columns = (
        TableColumn("Job", lambda row: shown.hrefs.job_link(row["id"] if shown.served else 0, str(row["id"]))),
        TableColumn("Name", job_name),
        TableColumn("State", lambda row: row["state"]),
        TableColumn("When", when, lambda row: row.get("finished_at")),
        TableColumn("Cause", lambda row: html(row.get("cause", "–"), 40)),
        TableColumn("Exit", lambda row: html(row.get("exit_code", "–"), 20), right=True),
        TableColumn("Detail", lambda row: _long(row.get("detail", ""), 140)),
    )
    return section("failed", "Failed last", listed("Jobs that failed last", rows, columns))


def _notices(answer: Row, at: float, shown: PageState) -> str:
    rows = [{**row, **each} for row in answer["notices"] for each in row["destinations"]]
    if not rows:
        return ""

    def alike(row: Row) -> tuple[str, ...]:
        return (row["kind"], row["destination"], row["state"], row["why"])

    folded = [list(group) for _, group in groupby(sorted(rows, key=alike), alike)]
    lines = [{**group[-1], "group": group} for group in folded]

    def when(row: Row) -> str:
        times = [each["at"] for each in row["group"]]
        last = shown.clock(max(times), at)
        first = shown.clock(min(times), at)
        return last if clock_text(min(times), at, shown.local) in last else f"{first} to {last}"

    def what(row: Row) -> str:
        number = len(row["group"])
        told = _long(row["text"], 80)
        return told if number == 1 else f"<b>{number} times</b>, the last: {told}"

    columns = (
        TableColumn("Notification", lambda row: numbers_text({each["id"] for each in row["group"]})),
        TableColumn("At", when, lambda row: row["at"]),
        TableColumn("Kind", lambda row: html(row["kind"], 20)),
        TableColumn("To", lambda row: breakable(row["destination"], 80)),
        TableColumn("State", lambda row: html(row["state"], 20)),
        TableColumn("Text", what),
        TableColumn("Why", lambda row: _long(row["why"], 120)),
    )
    without_anchor = [{key: value for key, value in row.items() if key != "id"} for row in lines[:40]]
    more = _more(answer, "notices", "notifications")
    title = "Notifications not delivered"
    return section("notifications", title, listed(title, without_anchor, columns) + more)


def _long(text: object, most: int) -> str:
    """Cut, the rest where the mouse rests."""
    plain = str(text)
    return html(plain, most) if len(plain) <= most else f'<span title="{html(plain, 1000)}">{html(plain, most)}</span>'


def _has_progress(row: Row) -> bool:
    return row.get("step") is not None and bool(row.get("total"))


def progress_bar(row: Row) -> str:
    """How far a job is."""
    step, total = row.get("step"), row.get("total")
    if step is None:
        return "–"
    if not total:
        return f"step {step}"
    part = max(0.0, min(1.0, step / total))
    look = job_colour(row["id"]) if row.get("not_finite_since") is None else "alarm"
    return (
        f'<span class="kept"><svg width="90" height="9" class="progress {look}" aria-hidden="true">'
        f'<rect width="100%" height="100%" rx="2" class="empty"/>'
        f'<rect width="{100 * part:.1f}%" height="100%" rx="2" class="full"/></svg> '
        f'<span title="step {step} of {total}">{100 * part:.0f} %</span></span>'
    )


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.3g}"


def _saved(row: Row) -> str:
    saved, step = row.get("saved_step"), row.get("step")
    if saved is None:
        return "–" if step is None else "nothing yet"
    return f"step {saved}" if step is None or step <= saved else f"step {saved}, {count(step - saved, 'step')} ago"


def _then(row: Row, what: str, at: float, shown: PageState) -> str:
    """When something is expected: the time of day, how long until then, and the band of that."""
    expected = row.get("eta_s" if what == "eta" else f"{what}_in_s")
    if expected is None:
        return "–"
    low, high = row.get(f"{what}_low_s"), row.get(f"{what}_high_s")
    told = f"in {_about(expected)}"
    if low is not None and high is not None and _about(low) != _about(high):
        told += f" ({_about(low)} to {_about(high)})"
    return f'{shown.clock(at + expected, at)} <span class="soft">{told}</span>'


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
        self._rows = [*self._rows, *answer["events"]]  # never in place: who draws may have a copy of this
        self.names = self.names | {int(number): visible(name, NAME) for number, name in answer["names"].items()}
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

    def history(self, answer: Row, most_s: float | None = None) -> History:
        """From `back_s` (or less, `most_s`) before the answer, or where the first that is known begins, until then."""
        now = float(answer["at"])
        back_s = self.back_s if most_s is None else min(most_s, self.back_s)
        found = read_history(self._rows, until=now)
        spans = [self._named(span) for span in found.spans if span.end_at > now - back_s]
        spans += self._others(answer["nodes"], spans, now)
        first = min((span.start_at for span in spans), default=now)
        begin = min(now - 60.0, max(now - back_s, first))
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
