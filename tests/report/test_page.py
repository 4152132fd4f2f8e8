"""The page: well-formed, self-contained, escaped, the same for the same events."""

import re
from html.parser import HTMLParser

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.world import JobState
from hpcdl.report import HtmlTable, ReportedRun, read_history, render, timeline_page
from hpcdl.report.timeline import SECONDS_UP_TO, ticks
from tests.report.story import node, placed, rows, set_three, submitted
from tests.report.test_history import rescaled

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_well_formed_and_self_contained() -> None:
    page = timeline_page(rows(set_three()), "set 3")
    checked = Checker(page)
    assert "svg" in checked.tags
    assert not {"link", "img", "iframe"} & set(checked.tags)
    assert checked.tags.count("script") == 1, "the page's own, whose hash the policy names"
    assert not [value for name, value in checked.attributes if name in ("src", "href", "xlink:href")]
    assert "://" not in page
    assert "prefers-color-scheme" in page
    text = " ".join(checked.text).replace("- ", "-")
    for expected in ("set 3", "ResNet-50", "3 → 4", "Makespan 501 s", "n1", "GPU 5", "GPU-hours of 6 GPUs"):
        assert expected in text
    bars = re.findall(r'class="bar c\d" data-job="\d+"><title>', page)
    assert len(bars) == 4, "one bar per incarnation: neighbours are one"


def test_the_same_events_give_the_same_page() -> None:
    assert timeline_page(rows(set_three()), "x") == timeline_page(rows(set_three()), "x")


def test_every_place_lies_inside_the_drawing() -> None:
    page = timeline_page(rows(set_three()), "x")
    places = [float(x) for x in re.findall(r'x="([0-9.e-]+)%"', page)]
    assert places
    assert all(0 <= x <= 100.001 for x in places)
    for x, width in re.findall(r'<svg x="([0-9.]+)%" y="\d+" width="([0-9.]+)%"', page):
        assert float(x) + float(width) <= 100.01


def test_a_bar_has_as_much_of_its_name_as_is_whole() -> None:
    told: list[tuple[float, ev.Event]] = [(0, node("n1", 1)), (0, submitted(1, "resnet-50"))]
    for number, (begin, end) in enumerate(((0, 2), (10, 22), (30, 100)), 1):
        told += [
            (begin, ev.StartRequested(1, number, ("n1",), placed([0]))),
            (begin, ev.Started(1, number, 1, "n1")),
            (end, ev.IncarnationEnded(1, number, Cause.INFRASTRUCTURE)),
        ]
    page = timeline_page(rows([*told, (100, ev.JobEnded(1, JobState.DONE))]), "bars")
    assert re.findall(r'class="name">(.*?)</text>', page) == [
        "resnet-50", 'resnet-50<tspan class="count"> · 1 GPU</tspan>'
    ]  # fmt: skip
    assert "1 → 1" not in page


def test_names_are_escaped() -> None:
    evil = '<script>alert("1")</script>&"\''
    told: list[tuple[float, ev.Event]] = [
        (0, node("n<1>", 1)),
        (0, submitted(1, evil)),
        (1, ev.StartRequested(1, 1, ("n<1>",), placed([0], name="n<1>"))),
        (2, ev.StartRequested(1, 2, ("n<1>",), None)),
        (9, ev.IncarnationEnded(1, 1, Cause.DONE)),
        (9, ev.JobEnded(1, JobState.DONE)),
    ]
    table = HtmlTable(evil, (evil,), ((evil,),))
    page = render([ReportedRun(evil, read_history(rows(told)))], evil, [evil], [table])
    checked = Checker(page)
    assert checked.tags.count("script") == page.count("<script") == 1, "the page's own"
    assert evil in "".join(checked.text)


def test_runs_share_the_time_scale() -> None:
    history = read_history(rows(set_three()))
    page = render([ReportedRun("fast", history), ReportedRun("slow", history, factor=2.0)], "both")
    assert page.index("<svg width") < page.index("<table>"), "the picture comes first"
    drawings = page.split("<section>")[1:]
    ends = [
        max(float(x) + float(w) for x, w in re.findall(r'<svg x="([0-9.]+)%" y="\d+" width="([0-9.]+)%"', each))
        for each in drawings
    ]
    assert ends == [pytest.approx(50, abs=0.01), pytest.approx(100, abs=0.01)]
    assert "makespan 1002 s" in drawings[1]


def test_nothing_happened_yet() -> None:
    assert "No job was submitted" in "".join(Checker(timeline_page([], "empty")).text)
    waiting = timeline_page(rows([(5.0, submitted(1, "a"))]), "waiting")
    assert "No GPU has joined" in "".join(Checker(waiting).text)
    instant = timeline_page(rows([(5.0, node("n1", 1)), (5.0, submitted(1, "a"))]), "instant")
    assert "not finished" in "".join(Checker(instant).text)


@pytest.mark.parametrize("length", [0.0, 0.4, 1.0, 7.0, 99.0, 706.0, SECONDS_UP_TO, 1600.0, 86_400.0, 5e6])
def test_ticks_are_few_and_inside(length: float) -> None:
    times = ticks(length)
    assert times[0] == 0
    assert 1 <= len(times) <= 10
    assert all(0 <= each <= length for each in times)


def test_the_legend_names_the_jobs_that_were_drawn_as_long_as_colours_tell_them_apart() -> None:
    def page(jobs: int) -> str:
        told: list[tuple[float, ev.Event]] = [(0, node("n1", jobs)), (0, submitted(99, "waits"))]
        told += [(0, submitted(job, f"job-{job}-x")) for job in range(1, jobs + 1)]
        told += [(1, ev.StartRequested(job, 1, ("n1",), placed([job - 1]))) for job in range(1, jobs + 1)]
        told += [(9, ev.NodeSilent("n1"))]
        return timeline_page(rows(told), "x").partition('<ul class="legend">')[2].partition("</ul>")[0]

    assert page(10).count("-x") == 10
    assert "waits" not in page(10)
    assert page(11).count("-x") == 0
    assert "11 jobs in 10 colours" in page(11)


def test_a_rescale_in_place_is_drawn_and_told() -> None:
    page = timeline_page(rows(rescaled()), "x")
    Checker(page)
    assert page.count('fill="url(#rescaling)"') >= 4  # three bars, and the legend
    assert "rescaling in place" in page
    assert "rescaling on 2 GPUs: 1" in page
    assert len(re.findall(r'class="bar c\d" data-job="\d+"><title>', page)) == 3  # n1 comes twice
    assert "rescaling in place" not in timeline_page(rows(set_three()), "x")
