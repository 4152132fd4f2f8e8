"""The pages of `hpcdl web` in this process: what they draw of a daemon's answers."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdl.cli.web.pages import Pages
from hpcdl.client import Client
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from tests.cli.fake import row as full_row
from tests.report.story import placed, rows
from tests.report.test_live import answer, gpu, node

NOW = 10_000.0


class Answers(Client):
    """A client that knows its answers."""

    def __init__(self, home: Path, answers: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(home)
        self.answers = answers

    def get(self, path: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        return dict(self.answers[path])


def pages(home: Path, job: dict[str, Any], *events: tuple[float, ev.Event]) -> Pages:
    """Of one job."""
    overview = answer(
        at=NOW, nodes=[node("n1", gpu(0))], running=[], waiting=[], names={"1": "vgg"}, events=rows(events),
        last=len(events),
    )  # fmt: skip
    found = {
        "/v1/overview?after=0": overview,
        "/v1/jobs?all=1&last=500": {"jobs": [job]},
        "/v1/jobs/1": {"job": job},
        "/v1/jobs/1/why": {},
        "/v1/jobs/1/series": {"series": []},
    }
    return Pages(lambda: Answers(home, found), home)


def axis(page: str) -> str:
    """The timeline of a page."""
    match = re.search('<section id="timeline">.*?</section>', page, re.DOTALL)
    assert match is not None
    return match[0]


def test_the_timeline_of_a_finished_job_ends_with_it(tmp_path: Path) -> None:
    held = [(NOW - 7200, ev.StartRequested(1, 1, ("n1",), placed([0]))), (NOW - 7190, ev.TrainerReady(1, 1, 1, "n1"))]
    ended = (NOW - 6600, ev.IncarnationEnded(1, 1, Cause.DONE))
    job = full_row(1, state="DONE", finished_at=NOW - 6600)
    done = axis(pages(tmp_path, job, *held, ended).job(1))
    waits = axis(pages(tmp_path, full_row(1), *held, ended).job(1))
    bar = r'<svg x="0\.000%" y="\d+" width="([\d.]+)%" height="\d+" class="bar c1"'
    assert re.findall(bar, done) == ["100.000"]
    assert re.findall(bar, waits) == ["8.333"], "of a job that goes on the time runs until now"


def test_the_last_metric_has_a_column_in_the_list_of_jobs(tmp_path: Path) -> None:
    text = pages(tmp_path, full_row(1, metric=0.5, step=None)).jobs()
    assert '<td data-label="Metric" class="right" data-v="0.5">0.5</td>' in text
    assert "Metric" not in pages(tmp_path, full_row(1, step=None)).jobs()


def facts(page: str) -> list[tuple[str, str]]:
    return re.findall(r"<dt>([^<]*)</dt><dd>(.*?)</dd>", page)


def test_the_end_of_an_attempt_is_not_the_end_of_its_job(tmp_path: Path) -> None:
    ended = {"cause": "suspended", "detail": "saved at step 5", "exit_code": 0}
    goes_on = dict(facts(pages(tmp_path, full_row(1, finished_at=None, **ended)).job(1)))
    assert goes_on["Last ended by"] == "suspended, saved at step 5"
    assert not goes_on.keys() & {"Cause", "What happened", "Exit code"}
    over = {"state": "FAILED", "finished_at": NOW, "cause": "user error", "detail": "exit code 1", "exit_code": 1}
    failed = dict(facts(pages(tmp_path, full_row(1, **over)).job(1)))
    assert (failed["Cause"], failed["What happened"], failed["Exit code"]) == ("user error", "exit code 1", "1")
    told = dict(facts(pages(tmp_path, full_row(1, **over | {"reason": "exit code 1"})).job(1)))
    assert "What happened" not in told, "it stands among the reasons"


def test_it_knows_why_the_pages_are_empty(tmp_path: Path) -> None:
    assert "hpcdl daemon start" in Pages(lambda: Client(tmp_path, patience_s=0.0), tmp_path).trouble()
    assert pages(tmp_path, full_row(1)).trouble() == ""
