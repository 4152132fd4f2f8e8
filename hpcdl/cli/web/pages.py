"""The pages that `hpcdl web` serves: what the daemon answers, drawn by `hpcdl/report`, and the logs of the home.

Each method may be called in any thread. Where the daemon does not answer, the last answer is drawn, with the time at
which it was true. No page waits for another's questions, and none asks on after the daemon has left one unanswered.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import join
from typing import Any

from hpcdl.cli.columns import array_name
from hpcdl.cli.logs import STDERR, STDOUT, LogFile, log_files
from hpcdl.cli.params import local_time
from hpcdl.cli.web.job_log import LogChoice, LogPiece, read_log, streams_apart
from hpcdl.client import ApiError, Client, ClientError, path_with
from hpcdl.core.model.units import ranges
from hpcdl.daemon.clock import WallClock
from hpcdl.report.history import History
from hpcdl.report.html import html, links_html, note
from hpcdl.report.live import (
    PageState,
    Recent,
    TableColumn,
    ids_html,
    job_name,
    lanes,
    listed,
    live_document,
    metric_column,
    now_page,
    page_head,
    progress_bar,
    section,
)
from hpcdl.report.names import breakable, job_mark, marked
from hpcdl.report.series import curves_html
from hpcdl.wire.last_start import start_step

BACK_S, OVERVIEW_S = 6 * 3600.0, 3 * 3600.0
FRESH_S = 1.0
"""An answer is drawn for so long before the daemon is asked again, whoever looks."""
TURN_S = 3.0
"""Another page that asks the daemon what goes on is waited for so long."""
EVERY_S, EVERY_LARGE_S = 2.0, 10.0
"""A browser asks for a page again so often; for one of more than LARGE GPUs."""
LARGE = 256
JOBS = 500

Row = Mapping[str, Any]


class NoPage(Exception):
    """There is no such job or node."""


@dataclass(frozen=True, slots=True)
class _Overview:
    """The last overview, {} where there was none, and the events behind it. `note`: why it is old, or "". `trouble`:
    why nothing can be asked, or ""."""

    answer: Row = field(default_factory=dict)
    recent: Recent = field(default_factory=lambda: Recent(BACK_S))
    note: str = ""
    trouble: str = ""


class _Visit:
    """One page that is drawn: the overview that it shows, and what else it asks the daemon."""

    def __init__(self, client: Client, last: _Overview) -> None:
        gpus = sum(len(node["gpus"]) for node in last.answer.get("nodes", ()))
        every = EVERY_LARGE_S if gpus > LARGE else EVERY_S
        self.answer, self.recent = last.answer, last.recent
        self.shown = PageState(every, local_time, last.note, served=True)
        self._client = client
        self._trouble = last.trouble

    def ask(self, path: str, otherwise: str = "") -> tuple[Row, str]:
        """An answer, and "", or {} and why there is none. Raises NoPage(`otherwise`) where it is not there."""
        if self._trouble:
            return {}, self._trouble
        try:
            return self._client.get(path), ""
        except ApiError as error:
            if otherwise and error.status == 404:
                raise NoPage(otherwise) from None
            return {}, str(error)
        except ClientError as error:
            self._trouble = _words(error)
            return {}, self._trouble


class Pages:
    """The pages of one home."""

    def __init__(self, connect: Callable[[], Client], home: Path) -> None:
        """`connect`: a client of its daemon, of which each page has its own."""
        self._connect = connect
        self._home = home
        self._asking = threading.Lock()  # for the overview, which only grows: of two answers the newer counts
        self._asked_at = -FRESH_S
        self._last = _Overview()

    def trouble(self) -> str:
        """Why the daemon does not answer, and what the pages show then; "" where it does."""
        with self._visit() as visit:
            shows = "how it was last" if visit.answer else "nothing until a daemon answers"
            return visit.shown.note and f"{visit.shown.note}; the pages show {shows}"

    def overview(self) -> str:
        """What goes on now."""
        with self._visit() as visit:
            answer, shown = visit.answer, visit.shown
            if not answer:
                return self._away(shown)
            return now_page(answer, visit.recent.history(answer, OVERVIEW_S), visit.recent.names, shown)

    def timeline(self) -> str:
        """What the GPUs did in the last hours."""
        with self._visit() as visit:
            answer, shown = visit.answer, visit.shown
            if not answer:
                return self._away(shown)
            parts = [section("timeline", "", lanes(visit.recent.history(answer), shown.local))]
        return self._page("Timeline", answer, shown, parts)

    def jobs(self) -> str:
        """The jobs that were submitted last, finished ones too."""
        with self._visit() as visit:
            answer, shown = visit.answer, visit.shown
            if not answer:
                return self._away(shown)
            rows, why = visit.ask(path_with("/v1/jobs", all=1, last=JOBS))
            at = float(answer["at"])

        def clock(key: str) -> TableColumn:
            title = key.removesuffix("_at").capitalize()
            return TableColumn(
                title, lambda row: "–" if row[key] is None else shown.clock(row[key], at), lambda row: row[key]
            )

        found = sorted(rows.get("jobs", ()), key=lambda row: -int(row["id"]))

        def number(row: Row) -> str:
            if "members" in row:
                return ids_html(row["ids"])
            return marked(row["id"], shown.hrefs.job_link(row["id"], str(row["id"])))

        columns = (
            TableColumn("Job", number),
            TableColumn("Name", job_name),
            TableColumn("State", lambda row: html(row.get("states") or row["state"])),
            TableColumn("GPUs", lambda row: str(row["gpus"] or "–"), lambda row: row["gpus"], right=True),
            TableColumn("Progress", progress_bar, lambda row: (row["step"] or 0) / (row["total"] or 1)),
            *metric_column(found),
            *map(clock, ("submitted_at", "started_at", "finished_at")),
            TableColumn("Cause", lambda row: html(row["cause"] or "–")),
        )
        inside = listed("Jobs", _by_array(found), columns) if found else note(why or "No job was submitted yet.")
        limit = note(f"The last {JOBS}; hpcdl ls --all lists all of them.") if len(found) == JOBS else ""
        return self._page("Jobs", answer, shown, [section("jobs", "Jobs", inside + limit, len(found))])

    def job(self, job: int) -> str:
        """A job: where it stands and why, its time on GPUs, its log. Raises NoPage."""
        with self._visit() as visit:
            answer, shown = visit.answer, visit.shown
            if not answer:
                return self._away(shown)
            row = visit.ask(f"/v1/jobs/{job}", f"There is no job {job}.")[0].get("job")
            why, trouble = visit.ask(f"/v1/jobs/{job}/why")
            curves = visit.ask(f"/v1/jobs/{job}/series")[0].get("series")
            finished_at = None if row is None else row.get("finished_at")
            history = _part(visit.recent.history(answer), job=job, finished_at=finished_at)
        files = log_files(self._home, job)
        parts = [] if row is None else [self._facts(row, why, float(answer["at"]), shown)]
        if curves:
            parts.append(section("curves", "Curves", curves_html(curves)))
        if history.spans:
            parts.append(section("timeline", "On GPUs", lanes(history, shown.local)))
        parts += [self._output(job, files), self._log(job)]
        name = f"job {job}" if row is None else f"job {job}: {row['name']}"
        return self._page(name, answer, shown, [note(trouble), *parts] if trouble else parts)

    def node(self, node: str) -> str:
        """A node: its GPUs and who had them. Raises NoPage."""
        with self._visit() as visit:
            answer, shown = visit.answer, visit.shown
            if not answer:
                return self._away(shown)
            found = [each for each in answer["nodes"] if each["name"] == node]
            history = _part(visit.recent.history(answer), node=node)
            names = dict(visit.recent.names)
        if not found:
            raise NoPage(f"There is no node {node!r:.80}.")
        at = float(answer["at"])
        rows = [dict(zip(_GPU, gpu, strict=False)) for gpu in found[0]["gpus"]]
        columns = (
            TableColumn("GPU", lambda row: str(row["index"]), right=True),
            TableColumn("State", lambda row: html(row["state"])),
            TableColumn("Held by", lambda row: _holder(row, names, shown)),
            TableColumn("Since", lambda row: "–" if row["since"] is None else shown.clock(row["since"], at)),
            TableColumn("Load", lambda row: "–" if row["util"] is None else f"{row['util']:.0f} %", right=True),
            TableColumn("Memory", lambda row: _memory(row), lambda row: row["used"], right=True),
            TableColumn("Detail", lambda row: html(row["detail"])),
        )
        parts = [section("gpus", html(found[0]["kind"]) or "GPUs", listed(f"GPUs of {html(node)}", rows, columns))]
        if history.spans:
            parts.append(section("timeline", "Who had them", lanes(history, shown.local)))
        return self._page(node, answer, shown, parts)

    def log(self, job: int, after: str, choice: LogChoice) -> LogPiece:
        """What came of a job's output: see `read_log`."""
        return read_log(self._home, job, after, choice)

    # --- the daemon ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _visit(self) -> Iterator[_Visit]:
        """With the daemon's overview, asked anew if it is not fresh; the last one where another page waits for it."""
        with self._connect() as client:
            if self._asking.acquire(timeout=TURN_S):
                try:
                    if time.monotonic() - self._asked_at >= FRESH_S:
                        self._last = self._ask_overview(client)
                        self._asked_at = time.monotonic()
                finally:
                    self._asking.release()
                last = self._last
            else:
                last = _old(self._last, self._last.note or "The daemon has not answered yet.")
            yield _Visit(client, last)

    def _ask_overview(self, client: Client) -> _Overview:
        recent = copy(self._last.recent)  # pages that are drawn now have the old one
        try:
            answer = client.get(path_with("/v1/overview", after=recent.after))
            recent.take(answer)
        except ClientError as error:
            return _old(self._last, _words(error))
        except (KeyError, TypeError, ValueError, AttributeError):
            return _old(self._last, "The daemon's answer is not of this form: use the daemon's hpcdl.")
        note = "" if client.as_of is None else f"No daemon runs: {start_step(client.home)}"
        return _Overview(answer, recent, note)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _away(self, shown: PageState) -> str:
        """The page while no daemon has answered yet."""
        at = WallClock(0.0).now()
        text = f'<header id="head"><h1>hpcdl</h1><p class="problems" role="status">{html(shown.note, 400)}</p></header>'
        inside = note("This page shows the jobs as soon as a daemon answers.")
        return live_document("hpcdl: no daemon", [text, section("gpus", "No daemon", inside)], at, shown)

    def _page(self, title: str, answer: Row, shown: PageState, parts: Sequence[str]) -> str:
        at = float(answer["at"])
        host = html(answer["status"]["daemon"]["host"], 80)
        head = page_head(title, at, shown, f"hpcdl on {host}")
        return live_document(f"{title[:100]} · hpcdl", [head, *parts], at, shown)

    @staticmethod
    def _output(job: int, files: Sequence[LogFile]) -> str:
        """What of the output is shown, chosen by the script, and where the rest is."""
        attempts = Counter(file.incarnation for file in files)
        of = [("", "the newest attempt")] if len(files) > 1 else []
        for attempt in sorted(attempts, reverse=True) if of else ():
            of.append((str(attempt), f"attempt {attempt}"))
            nodes = [file.node for file in files if file.incarnation == attempt]
            of += [(f"{attempt}.{node}", f"attempt {attempt} on {node}") for node in nodes if len(nodes) > 1]
        streams = [("", "stdout and stderr"), (str(STDOUT), "stdout"), (str(STDERR), "stderr")]
        found = [("of", "Attempt and node", of), ("stream", "Stream", streams if streams_apart(files) else [])]
        selects = "".join(
            f'<select name="{name}" aria-label="{label}">'
            + "".join(f'<option value="{html(value, 400)}">{html(text, 400)}</option>' for value, text in options)
            + "</select>"
            for name, label, options in found
            if options
        )
        lines = '<input type="search" name="lines" placeholder="only lines with …" aria-label="Only lines with">'
        told = f"What was printed last; hpcdl logs {job} prints all of it." if files else "It has printed nothing yet."
        return section("output", "Output", f'<div class="tools">{selects}{lines}</div>{note(told)}')

    @staticmethod
    def _log(job: int) -> str:
        return (
            f'<pre id="log" class="log" tabindex="0" role="log" aria-label="Output of job {job}" '
            f'data-source="/job/{job}/log"></pre>'
        )

    @classmethod
    def _facts(cls, row: Row, why: Row, at: float, shown: PageState) -> str:
        spec = row.get("spec") or {}
        reasons = dict.fromkeys(map(str, filter(None, (row.get("reason"), *why.get("details", ())))))
        where = ", ".join(
            f"{shown.hrefs.node_link(name, breakable(name))}:{','.join(map(str, gpus))}"
            for name, gpus in (row.get("placement") or {}).items()
        )
        facts = {
            "State": html(row["state"]) + (" (held)" if row.get("held") else ""),
            "Why": "<br/>".join(html(each, 400) for each in reasons),
            "Progress": progress_bar(row) if row.get("step") is not None else "",
            "GPUs": f"{job_mark(row['id'])} {where}" if where else "",
            "Checkpoint": "" if row.get("saved_step") is None else f"step {row['saved_step']}",
            **{
                name: shown.clock(row[key], at)
                for name, key in (("Submitted", "submitted_at"), ("Started", "started_at"), ("Finished", "finished_at"))
                if row.get(key) is not None
            },
            **cls._end(row, reasons),
            "Attempts": str(row.get("incarnation") or ""),
            "Tags": html(" ".join(row.get("tags") or ())),
            "Links": links_html(row.get("links") or {}),
            "Command": f"<code>{html(join(map(str, spec.get('command') or ())), 2000)}</code>",
            "Folder": html(spec.get("cwd") or "", 400),
        }
        inside = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items() if text)
        return section("facts", "Where it stands", f"<dl>{inside}</dl>")

    @staticmethod
    def _end(row: Row, reasons: Container[str]) -> dict[str, str]:
        """How the job ended or, of one that goes on, its last attempt."""
        cause, detail = row.get("cause") or "", row.get("detail") or ""
        if row.get("finished_at") is None:
            return {"Last ended by": html(", ".join(filter(None, (cause, detail))), 1000)}
        return {
            "Cause": html(cause),
            "What happened": "" if detail in reasons else html(detail, 1000),
            "Exit code": "" if row.get("exit_code") is None else str(row["exit_code"]),
        }


def _by_array(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows; for all members of an array one, with them, where the first of them stood."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault(("array", row["array"]) if row.get("array") else ("job", row["id"]), []).append(row)
    for members in groups.values():
        yield members[0] if len(members) == 1 else _array(members)


def _array(members: Sequence[Row]) -> Row:
    """What holds for all members of an array, in the keys of a job; `state` where they have but one."""
    states = {row["state"] for row in members}
    told = Counter(row["state"] + (" (nan)" if row.get("not_finite_since") is not None else "") for row in members)
    causes = {row["cause"] for row in members}
    started = [row["started_at"] for row in members if row["started_at"] is not None]
    ended = [row["finished_at"] for row in members]
    return {
        "array": members[0]["array"],
        "members": members,
        "ids": ranges(row["id"] for row in members),
        "name": array_name(members[::-1]),
        "tags": members[0].get("tags"),
        "state": states.pop() if len(states) == 1 else None,
        "states": ", ".join(f"{number} {state}" for state, number in told.most_common()),
        "gpus": sum(row["gpus"] or 0 for row in members),
        "submitted_at": members[0]["submitted_at"],
        "started_at": min(started, default=None),
        "finished_at": None if None in ended else max(ended),
        "cause": causes.pop() if len(causes) == 1 else None,
        **dict.fromkeys(("step", "total", "metric")),
    }


_GPU = ("index", "state", "job", "incarnation", "util", "used", "memory", "detail", "since", "background")


def _holder(row: Row, names: Mapping[int, str], shown: PageState) -> str:
    held = [row["job"], row.get("background")]
    told = [
        f"{marked(job, shown.hrefs.job_link(job, str(job)))} {breakable(names.get(job, ''))}" for job in held if job
    ]
    return "<br/>".join(told) or "–"


def _old(last: _Overview, trouble: str) -> _Overview:
    return replace(last, note=trouble, trouble=trouble)


def _words(error: ClientError) -> str:
    return str(error).removesuffix(" (waited 0 s)")


def _memory(row: Row) -> str:
    return (
        "–"
        if row["used"] is None or not row["memory"]
        else f"{row['used'] / 1024:.1f} of {row['memory'] / 1024:.0f} GiB"
    )


def _part(
    history: History, *, job: int | None = None, node: str | None = None, finished_at: float | None = None
) -> History:
    """What is of one job, from its first GPU until it finished or until now, or on one node."""
    spans = tuple(each for each in history.spans if job in (None, each.job) and node in (None, each.node))
    held = {(each.node, each.gpu) for each in spans}
    gpus = tuple(gpu for gpu in history.gpus if gpu.node == node or (gpu.node, gpu.number) in held)
    jobs = {each.job for each in spans}
    begin = history.begin if job is None else min((each.start_at for each in spans), default=history.begin)
    # Its GPUs may be seen free just after its end.
    end = history.end if finished_at is None else max([finished_at, *(each.end_at for each in spans)])
    return replace(
        history,
        begin=min(begin, end - 60.0),
        end=end,
        spans=spans,
        gpus=gpus,
        jobs=tuple(each for each in history.jobs if each.id in jobs),
        warm=tuple(each for each in history.warm if job in (None, each.job) and node in (None, each.node)),
    )
