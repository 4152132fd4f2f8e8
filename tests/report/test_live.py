"""The page of what goes on now: what is in it, how large it gets, and that names in it are only names."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.report import grid
from hpcdl.report.clock import clock_marks, clock_text
from hpcdl.report.heat import COLUMNS, shares_of
from hpcdl.report.html import asset, html, visible
from hpcdl.report.live import PageState, Recent, now_page
from hpcdl.report.names import breakable, short_names, stem
from hpcdl.report.spans import history_of
from tests.report.story import placed, rows
from tests.support.seeds import seeds

HOSTILE = st.text(max_size=60) | st.sampled_from(
    [
        "<script>alert(1)</script>", "</title></style></script><img src=x onerror=alert(1)>", '"><svg onload=alert(1)>',
        "' onmouseover='alert(1)", "<!--", "]]>", "&lt;b&gt;", "\u202egnp.exe", "\x00\x1b[2J", "a\nb\tc", "\ud800",
        "javascript:alert(1)", "x" * 500,
    ]
)  # fmt: skip


def gpu(
    index: int, job: int = 0, state: str = "ok", util: int | None = 50, detail: str = "", since: float | None = None
) -> list[Any]:
    return [index, state, job, 1 if job else 0, util, 1024, 16384, detail, since]


def node(name: str, *gpus: list[Any], **more: Any) -> dict[str, Any]:
    base = {"connected": True, "lost": False, "leaving": False, "until": None, "reason": "", "kind": "V100"}
    return {"name": name, **base, "gpus": list(gpus), **more}


def row(number: int, **more: Any) -> dict[str, Any]:
    base = {"id": number, "name": f"job{number}", "user": "ada", "state": "QUEUED", "gpus": 0, "gpus_min": 1,
            "gpus_max": 2, "nodes": 1, "nodes_max": 1, "priority": 0, "held": False, "submitted_at": 100.0,
            "reason": "needs 2 GPUs", "on": [], "rate": None}  # fmt: skip
    return base | more


RUNNING = row(1, state="RUNNING", gpus=2, on=["n1"], rate=2.5, step=30, total=120, saved_step=20, eta_s=3600.0,
              eta_low_s=3000.0, eta_high_s=7260.0)  # fmt: skip


_POINTS = {"at": [1.0, 2.0], "step": [1, 2], "mean": [2.0, 1.0], "low": [2.0, 1.0], "high": [2.0, 1.0]}
CURVE = {"name": "<b>", "label": "<b>", "kind": "metric", "unit": "", "samples": 2, "not_finite": 0, "first": 2.0,
         "not_finite_since": None, "last": 1.0, "low": 1.0, "high": 2.0, "mean": 1.5, "points": _POINTS}  # fmt: skip


def answer(**more: Any) -> dict[str, Any]:
    daemon = {"host": "login1", "policy": "adaptive", "objective": "jct", "since_s": 61.0, "pid": 7, "version": "1.0",
              "stopping": False}  # fmt: skip
    notices = {"waiting": 0, "given_up": 0, "failing": []}
    status = {"daemon": daemon, "jobs": {"RUNNING": 1, "DONE": 3}, "pilots": 0, "notices": notices, "batch": None}
    base: dict[str, Any] = {
        "at": 1000.0, "status": status, "nodes": [node("n1", gpu(0, 1), gpu(1, 1), gpu(2), gpu(3, state="avoided"))],
        "nodes_more": 0, "running": [RUNNING], "running_more": 0, "waiting": [row(2)], "waiting_more": 0, "failed": [],
        "notices": [], "notices_more": 0, "names": {"1": "resnet"}, "events": [], "after": 0, "last": 9,
    }  # fmt: skip
    return base | more


def drawn(told: dict[str, Any], **shown: Any) -> str:
    recent = Recent(3600.0)
    recent.take(told)
    stands = PageState(10.0, utc, **shown)
    return now_page(told, recent.history(told), recent.names, stands)


def utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


class Reader(HTMLParser):
    """The elements, their attributes, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.told: list[tuple[str, dict[str, str | None]]] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":
            self.text = self.text.removesuffix("\n")
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.told.append((tag, dict(attrs)))
        self._inside = tag if tag in ("style", "script") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data + "\n"


def test_what_is_told() -> None:
    failed = {"id": 3, "name": "vgg", "finished_at": 940.0, "cause": "out of memory", "exit_code": 137, "detail": "OOM"}
    notice = {"id": 4, "kind": "end", "job": 3, "text": "job 3 is FAILED", "at": 950.0, "destinations": [
        {"destination": "https://hooks.example", "state": "failing", "attempts": 2, "why": "503", "retry_in_s": 9.0}
    ]}  # fmt: skip
    text = Reader(drawn(answer(failed=[failed], notices=[notice], waiting_more=7, running_more=1))).text
    for words in (
        "hpcdl on login1", "adaptive for jct", "as of 1970-01-01 00:16:40", "2 held, 1 free, 1 excluded or unhealthy",
        "1 RUNNING\nfinished: 3 DONE\n", "1 resnet", "25 %", "2.5", "step 20, 10 steps ago",
        "in 1 h 00 min (50 min to 2 h 01 min)",
        "01:16", "1 to 2", "00:01",
        "needs 2 GPUs", "out of memory", "137", "OOM", "https://hooks.example", "503",
        "and 7 more: hpcdl ls", "and 1 more job", "00:15",
    ):  # fmt: skip
        assert words in text, words
    assert "tilisation" not in text, "what GPUs do now is their load; utilisation is that of a whole run"


def test_below_the_unfinished_jobs_are_their_states() -> None:
    told = answer()
    for states, text in (
        ({"DONE": 53, "QUEUED": 3, "FAILED": 11, "RUNNING": 4}, "3 QUEUED, 4 RUNNING<br/>finished: 53 DONE, 11 FAILED"),
        ({"DONE": 2}, "finished: 2 DONE"),
        ({}, "none yet"),
    ):
        told["status"]["jobs"] = states
        assert f"unfinished jobs<small>{text}</small>" in drawn(told)


def test_the_last_metric_has_a_column_where_there_is_one() -> None:
    assert "Metric" not in Reader(drawn(answer())).text
    text = drawn(answer(running=[RUNNING | {"metric": 0.03125}, RUNNING | {"id": 2}]))
    assert '<td data-label="Metric" class="right" data-v="0.03125">0.03125</td>' in text
    assert '<td data-label="Metric" class="right none">–</td>' in text


def test_running_jobs_have_a_column_of_reasons_where_one_has_some() -> None:
    def why(reason: str) -> str:
        text = drawn(answer(running=[RUNNING | {"reason": reason}]))
        return text[text.index('<section id="running">') : text.index('<section id="waiting">')]

    assert "Why" not in why("")
    assert '<td data-label="Why">held back</td>' in why("held back")


def test_numbers_of_jobs_break_after_commas_only() -> None:
    array = {"array": 13, "state": "QUEUED"}
    jobs = [row(number, name=f"sweep[{number}]", **array) for number in (13, 14, 15, 17)]
    arrays = {"13": {"waiting": 4, "ids": "13-15,17", "varies": []}}
    text = drawn(answer(waiting=jobs, arrays=arrays))
    assert '<span class="kept">13-15</span>,<wbr/><span class="kept">17</span>' in text


def test_a_node_that_came_back_with_fewer_gpus() -> None:
    events = rows([(900.0, ev.StartRequested(1, 1, ("n1",), placed([0, 1, 2])))])
    told = answer(nodes=[node("n1", gpu(0, 1))], events=events, last=len(events))
    assert "GPU 2" in Reader(drawn(told)).text, "its job was there in the last hours"
    gone = answer(nodes=[], events=events, last=len(events))
    assert "GPU 2" in Reader(drawn(gone)).text


def test_it_says_when_it_is_old() -> None:
    fresh = Reader(drawn(answer()))
    refresh = [attrs for tag, attrs in fresh.told if tag == "meta" and attrs.get("http-equiv") == "refresh"]
    assert [attrs["content"] for attrs in refresh] == ["10"]
    assert fresh.told[0][1] == {"lang": "en", "data-at": "1000.000", "data-every": "10", "data-job-href": "#job-"}
    away = Reader(drawn(answer(), note="no daemon is running: hpcdl daemon start"))
    assert away.told[0][1]["class"] == "stale"
    assert "This is how it was at 1970-01-01 00:16:40." in away.text
    assert "no daemon is running" in away.text
    over = Reader(drawn(answer(), over=True))
    assert over.told[0][1]["class"] == "stale"
    assert "Nobody writes this page any more" in over.text
    assert over.told[0][1]["data-every"] == "0"
    assert not [attrs for tag, attrs in over.told if attrs.get("http-equiv") == "refresh"]


@pytest.mark.parametrize("nodes", [[], [node("n1")], [node("n1", gpu(0), lost=True)], [node("n1", gpu(0, util=None))]])
def test_little_or_nothing_to_show(nodes: list[dict[str, Any]]) -> None:
    told = answer(nodes=nodes, running=[], waiting=[], names={})
    told["status"]["jobs"] = {}
    assert "No job holds a GPU." in drawn(told)


@settings(max_examples=seeds(25))
@given(HOSTILE, HOSTILE, HOSTILE)
def test_names_and_reasons_are_only_text(name: str, other: str, reason: str) -> None:
    """Whatever they are, the page has the same elements and attributes, and nothing from elsewhere."""

    def page(name: str, other: str, reason: str) -> Reader:
        hostile = RUNNING | {"name": name, "reason": reason or "x", "on": [other]}
        failed = {"id": 3, "name": name, "finished_at": 940.0, "cause": reason, "detail": other}
        notice = {"id": 4, "kind": name, "text": reason, "at": 950.0, "destinations": [
            {"destination": other, "state": name, "attempts": 2, "why": reason}
        ]}  # fmt: skip
        bad = gpu(1, state=reason or "x", detail=reason)
        told = answer(
            nodes=[node(other, gpu(0, 1), bad, kind=name or "k")], running=[hostile],
            waiting=[row(2, name=name, reason=reason)], failed=[failed], notices=[notice], names={"1": name},
        )  # fmt: skip
        told["status"]["daemon"] |= {"host": name, "policy": other, "version": reason}
        return Reader(drawn(told, note=reason or "x"))

    tame, found = page("a" * 50, "b" * 300, "c" * 300), page(name, other, reason)
    unlike = {"span", "text", "tspan", "title", "wbr"}  # where a text is cut, the rest is in a title
    assert [tag for tag in found.tags if tag not in unlike] == [tag for tag in tame.tags if tag not in unlike]
    assert found.attributes <= tame.attributes
    assert not found.attributes & {"src", "style", "onload", "onerror", "onmouseover"}
    assert {attrs["href"] for _, attrs in found.told if "href" in attrs} == {"#job-1"}
    assert found.tags.count("script") == found.tags.count("style") == 1


def test_nothing_else_may_run_or_be_fetched() -> None:
    import base64
    import hashlib

    text = drawn(answer())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
    rest = text.replace(asset("page.js"), "").replace(policy[1], "")  # a hash may hold anything
    assert re.search(r"https?://|//\w|url\(\s*['\"]?[^#'\"]", rest) is None
    assert text.index("Content-Security-Policy") < text.index("<title>") < text.index("<style>")


@given(HOSTILE)
def test_every_letter_is_seen(name: str) -> None:
    assert visible(name, 1000).isprintable()
    assert len(visible("y" * 100, 10)) == 11
    assert not set("<>\"'") & set(html(name))


def test_a_large_cluster_is_folded() -> None:
    nodes = [node(f"n{number}", *(gpu(index, number % 300 + 1) for index in range(8))) for number in range(1500)]
    running = [RUNNING | {"id": number} for number in range(1, 61)]
    text = drawn(
        answer(nodes=nodes, running=running, running_more=1940, names={str(n): f"j{n}" for n in range(1, 301)})
    )
    assert "476 more nodes: hpcdl ls nodes" in text
    assert "and 1940 more jobs that hold fewer GPUs" in text
    assert len(text) < 1_000_000
    assert text.count('<div class="cell">') == grid.MOST_NODES
    middle = drawn(answer(nodes=nodes[:100]))
    assert "<span>n42</span>" in middle


def test_states_of_nodes_and_gpus() -> None:
    away = node("n2", gpu(0), connected=False)
    going = node("n3", gpu(0), gpu(1, 1), leaving=True)
    text = drawn(answer(nodes=[away, going, node("n1", gpu(0, state="lost", detail="Xid 79"))]))
    for words in ('<span class="alarm">away</span>', '<span class="alarm">leaving</span>', "lost Xid 79", "2 away"):
        assert words in text, words


def told(*stamped: tuple[float, ev.Event], **more: Any) -> dict[str, Any]:
    return answer(**({"events": rows(stamped), "last": len(stamped)} | more))


def test_what_was_before_is_cut_and_what_is_not_known_is_held_since() -> None:
    start = ev.StartRequested(1, 1, ("n1",), placed([0]))
    recent = Recent(600.0)
    first = told((100.0, start), (110.0, ev.TrainerReady(1, 1, 1, "n1")), names={"1": "resnet", "9": "old"})
    first["nodes"] = [node("n1", gpu(0, 1), gpu(1, 9, since=300.0), gpu(2, 8, since=700.0))]
    recent.take(first)
    history = recent.history(first)
    assert (history.begin, history.end) == (400.0, 1000.0)
    assert sorted((span.gpu, span.name, span.start_at, span.end_at) for span in history.spans) == [
        (0, "resnet", 400.0, 1000.0),
        (1, "old", 400.0, 1000.0),
        (2, "job 8", 700.0, 1000.0),
    ]
    (span,) = (span for span in history.spans if span.gpu == 0)
    assert [(piece.begin, piece.end) for piece in span.pieces] == [(400.0, 1000.0)]
    second = answer(at=1100.0, after=2, last=3, nodes=[node("n1", gpu(0), gpu(1))])
    second["events"] = rows([(1050.0, ev.IncarnationEnded(1, 1, Cause.DONE))])
    recent.take(second)
    assert [(span.start_at, span.end_at) for span in recent.history(second).spans] == [(500.0, 1050.0)]
    third = answer(at=9000.0, after=3, last=3, nodes=[node("n1", gpu(0), gpu(1))])
    recent.take(third)
    assert recent.history(third).spans == ()
    assert recent.names == {}


def test_another_ledger_begins_anew() -> None:
    recent = Recent(600.0)
    recent.take(told((990.0, ev.StartRequested(1, 1, ("n1",), placed([0])))))
    assert recent.after == 1
    recent.take(answer(after=0, last=0, names={}, nodes=[]))
    assert recent.history(answer(nodes=[])).spans == ()


@pytest.mark.parametrize(
    "begin, length, texts",
    [
        (1000.0, 40.0, ["00:16:40", "00:16:50", "00:17:00", "00:17:10", "00:17:20"]),
        (1000.0, 3600.0, ["00:20", "00:30", "00:40", "00:50", "01:00", "01:10"]),
        (80_000.0, 3 * 3600.0, ["1 Jan 22:30", "23:00", "23:30", "2 Jan 00:00", "00:30", "01:00"]),
        (1000.0, 3 * 86400.0, ["1 Jan 12:00", "2 Jan 00:00", "12:00", "3 Jan 00:00", "12:00", "4 Jan 00:00"]),
        (1000.0, 0.0, ["00:16:40"]),
    ],
)
def test_the_axis_has_round_times_of_day(begin: float, length: float, texts: list[str]) -> None:
    marks = clock_marks(begin, length, utc)
    assert [text for _, text in marks] == texts
    assert all(0 <= x <= 100 for x, _ in marks)


@pytest.mark.parametrize(
    "at, text", [(86_399.0, "23:59"), (86_400.0, "00:00"), (-1.0, "1969-12-31 23:59"), (3e6, "4 Feb 17:20")]
)
def test_a_time_of_another_day_has_its_date(at: float, text: str) -> None:
    now = 86_399.0 if at < 86_400 else 86_500.0
    assert clock_text(at, now, utc) == text


def test_long_names_keep_what_distinguishes_them() -> None:
    names = ["train-resnet50-lr=0.1-bs=32", "train-resnet50-lr=0.1-bs=64", "train-resnet50-lr=0.01-bs=64", "vgg"]
    shown = short_names(names, 14)
    assert list(shown.values()) == ["…lr=0.01-bs=64", "…lr=0.1-bs=32", "…lr=0.1-bs=64", "vgg"]
    swept = short_names(["train.py[lr=0.05,bs=64]", "train.py[lr=0.01,bs=64]"], 12)
    assert list(swept.values()) == ["[0.01,64]", "[0.05,64]"]
    one, other = "sweep[lr=0.1,bs=16]", "sweep[lr=0.001,bs=128]"
    assert short_names([one, other, "sweep"], 20) == {one: "[0.1,16]", other: "[0.001,128]", "sweep": "sweep"}
    alone = short_names(["a-very-long-name-without-any-neighbour-7"], 14)
    assert set(map(len, alone.values())) == {14}
    assert all(text.endswith("-7") for text in alone.values())
    assert breakable("a_b/c=<d>") == "a_<wbr/>b/<wbr/>c=<wbr/>&lt;d&gt;"
    assert stem(["train.py[1]", "train.py[12]"]) == "train.py"
    assert stem(["t-0.1-32", "t-0.1-64"]) == "t-0.1"
    assert stem(["resnet50[lr=0.1]", "resnet50[lr=0.2]"]) == "resnet50", "these digits are the name's"


def test_a_job_has_one_colour_everywhere() -> None:
    text = drawn(told((900.0, ev.StartRequested(17, 1, ("n1",), placed([0]))), nodes=[node("n1", gpu(0, 17))],
                      running=[RUNNING | {"id": 17}]))  # fmt: skip
    looks = re.findall(r'class="(?:gpu|bar|progress) (c\d)"', text)
    assert looks.count("c7") >= 4, "its tile, its bar, its row and its progress"
    assert "c1" not in looks


def test_members_of_an_array_are_told_by_what_differs() -> None:
    sweep = [RUNNING | {"id": number, "name": f"net[lr={lr}]", "array": 5, "sweep": {"lr": lr}}
             for number, lr in ((5, "0.1"), (6, "0.03"))]  # fmt: skip
    waits = [row(number, name=f"net[lr={lr}]", array=5) for number, lr in ((7, "0.01"), (8, "0.003"))]
    arrays = {"5": {"waiting": 40, "ids": "7-46", "varies": [["lr", "0.01", "0.0001"]]}}
    text = Reader(drawn(answer(running=sweep, waiting=[*waits, row(99)], waiting_more=38, arrays=arrays))).text
    for words in ("array 5: 2 hold GPUs, 40 wait", "7-46", "40 jobs"):
        assert words in text, words
    joined = text.replace("\n", "")
    for words in ("lr=0.03", "netlr=0.01..0.0001"):
        assert words in joined.replace(" ", ""), words
    assert "more: hpcdl ls lists" not in text, "all of them are in the folded row"
    again = [RUNNING | {"id": number, "name": f"net[{number},lr=0.1]", "array": 5, "sweep": {"lr": "0.1"}}
             for number in (5, 6)]  # fmt: skip
    text = Reader(drawn(answer(running=again))).text
    assert "net[5,lr=0.1]" in text, "values that are alike tell nobody apart"


def test_notifications_that_fail_alike_are_one_row() -> None:
    notices = [
        {"id": number, "kind": "end", "job": number, "text": f"job {number} is DONE", "at": 600.0 + 60 * number,
         "destinations": [{"destination": "cat", "state": "failing", "attempts": 2, "why": "cat ended with 1"}]}
        for number in range(1, 14)
    ]  # fmt: skip
    text = Reader(drawn(answer(notices=notices))).text
    assert text.count("cat ended with 1") == 1
    for words in ("13 times", "1-13", "00:11", "00:23"):
        assert words in text, words


def test_windows_that_are_alike_count_each() -> None:
    """The shares of nodes are what they were when each GPU was spread by itself."""
    start = ev.StartRequested(1, 1, ("n1",), placed([0, 1]))
    stamped: list[tuple[float, ev.Event]] = [(0.0, start), (50.0, ev.GpusFreed(1, 1, 1, "n1")), (100.0, start)]
    found = history_of([ev.Recorded(seq, at, seq, event) for seq, (at, event) in enumerate(stamped, 1)])
    levels = shares_of(found, [["n1"]], 100.0, {})
    assert levels[0][0] == 5
    assert levels[0][COLUMNS - 2] == 0


def test_tags_and_links_stand_below_the_name() -> None:
    links = {"wandb": 'https://wandb.ai/x?a="><script>', "<b>": "http://h/", "odd": "javascript:alert(1)"}
    text = drawn(answer(running=[RUNNING | {"tags": ["base", "<i>"], "links": links}]))
    assert "base &lt;i&gt;" in text
    anchors = re.findall('<a href="[^#][^>]*>', text)
    assert [re.search('href="([^"]*)"', each)[1] for each in anchors] == [  # type: ignore[index]
        "https://wandb.ai/x?a=&quot;&gt;&lt;script&gt;", "http://h/",
    ]  # fmt: skip
    assert all('rel="noopener noreferrer"' in each for each in anchors)
    assert "javascript:" not in text


def test_rows_have_their_state_and_what_is_no_number_is_shown() -> None:
    failed = {"id": 3, "name": "vgg", "finished_at": 940.0, "cause": "user error", "exit_code": 1, "detail": "x"}
    nan = RUNNING | {"metric": None, "not_finite_since": 7, "step": 120}
    text = drawn(answer(running=[nan], failed=[failed]))
    assert '<tr id="job-1" data-state="RUNNING">' in text
    assert '<tr id="job-3" data-state="FAILED">' in text
    assert '<td data-label="State">FAILED</td>' in text, "what the filter looks for"
    assert '<b class="alarm" title="since about step 7">nan</b>' in text
    assert 'class="progress alarm"' in text, "a run that is lost has no full bar in its colour"
    assert "nan</b>" not in drawn(answer())


def test_curves_of_a_job_that_runs() -> None:
    text = drawn(answer(curves={"1": [CURVE], "99": [CURVE]}))
    assert text.count("<figure") == 1, "of the jobs that are listed"
    assert "&lt;b&gt;: from 2 to 1" in text
    assert 'id="curves"' in text
    assert 'id="curves"' not in drawn(answer())
