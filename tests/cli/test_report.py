"""`hpcdl report`: through the daemon's API, and from the ledger of one that ended."""

import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from msgspec import structs

from hpcdl.core.model.events import SuspendRequested
from hpcdl.core.model.incarnation import Purpose
from hpcdl.core.model.series import sample
from hpcdl.ledger import Lease, SqliteJournal
from hpcdl.ledger.series import SeriesChange
from hpcdl.report.account import NAMES
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.report.story import rows, set_three

BEGIN = datetime.fromisoformat("2026-03-01T23:58:00").astimezone().timestamp()


@pytest.fixture
def ledger(home: Path) -> Path:
    home.mkdir(mode=0o700)
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append(set_three(BEGIN))
    return home


def test_of_a_ledger_without_a_daemon(ledger: Path, hpcdl: Run) -> None:
    value = hpcdl("report", "--json").value
    measured = ["gpu_utilisation", "gpu_memory_utilisation"]
    assert list(value["total"]) == ["available_gpu_h", *(f"{name}_gpu_h" for name in NAMES), "goodput", *measured]
    assert [value["total"][name] for name in measured] == [None, None]
    assert value["total"]["available_gpu_h"] == pytest.approx(6 * 501 / 3600)
    assert sum(value["total"][f"{name}_gpu_h"] for name in NAMES) == pytest.approx(6 * 501 / 3600)
    assert [(row["key"], row["name"], row["suspends"]) for row in value["rows"]] == [
        ("1", "ResNet-50", 0), ("2", "Inception-v3", 1), ("3", "VGG-16", 0), (None, "no job", 0),
    ]  # fmt: skip
    assert (value["by"], value["gpus"], value["suspends"]) == ("job", 6, {"rescale": 1})
    table = hpcdl("report").out
    assert "1 ResNet-50" in table
    assert "68.4 %" in table
    assert hpcdl("report", "--quiet").out == "1\n2\n3\n"
    days = hpcdl("report", "--by", "day", "--json").value["rows"]
    assert [row["key"] for row in days] == ["2026-03-01", "2026-03-02"]
    assert days[0]["available_gpu_h"] == pytest.approx(6 * 120 / 3600)
    assert not list(ledger.glob("lease.*"))


@pytest.mark.parametrize(
    "purpose, said",
    [
        (Purpose.RESCALE, "to go on with other GPUs"),
        (Purpose.PREEMPT, "for other jobs"),
        (Purpose.HOLD, "by its user"),
        (Purpose.STOP, "since the daemon stopped"),
    ],
)
def test_a_suspend_is_told_in_the_users_words(home: Path, hpcdl: Run, purpose: Purpose, said: str) -> None:
    home.mkdir(mode=0o700)
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append(
            [
                (at, structs.replace(event, purpose=purpose) if isinstance(event, SuspendRequested) else event)
                for at, event in set_three(BEGIN)
            ]
        )
    assert f"\nsuspends: 1 {said}\n" in hpcdl("report").out
    assert hpcdl("report", "--json").value["suspends"] == {purpose.value: 1}


def test_what_jobs_used_of_their_gpus(ledger: Path, hpcdl: Run) -> None:
    with SqliteJournal(ledger / "ledger.sqlite") as journal:
        samples = (sample(BEGIN + 50, None, 40.0), sample(BEGIN + 60, None, 60.0))
        journal.add_series([SeriesChange(1, "gpu_util", 0, samples)])
        journal.flush()
    value = hpcdl("report", "--json").value
    rows = {row["key"]: row["gpu_utilisation"] for row in value["rows"]}
    assert rows == {"1": pytest.approx(0.5), "2": None, "3": None, None: 0.0}
    assert all(row["gpu_memory_utilisation"] in (None, 0.0) for row in value["rows"]), "nobody knows how large they are"
    assert " 50.0 % " in hpcdl("report").out.splitlines()[1]


def test_times_and_jobs(ledger: Path, hpcdl: Run, tmp_path: Path) -> None:
    value = hpcdl("report", "--since", "2026-03-02", "--until", "2026-03-02T00:01:00", "--json").value
    assert value["total"]["available_gpu_h"] == pytest.approx(6 * 60 / 3600)
    mine = hpcdl("report", "2", "--json").value
    assert mine["jobs"] == [2]
    named = hpcdl("report", "Inception*", "ResNet-50", "--json")
    assert (named.value["jobs"], named.err.count("as of")) == ([2, 1], 1)
    assert hpcdl("report", "--state", "done", "-q").out == "1\n2\n3\n"
    assert "no job's name is 'VGG': did you mean VGG-16?" in hpcdl("report", "VGG", "-q").err
    done = hpcdl("report", "--state", "failed")
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("hpcdl: there is no such job: hpcdl ls --all lists them\n")
    assert mine["total"]["idle_gpu_h"] == 0
    assert mine["total"]["available_gpu_h"] == pytest.approx((3 * 167 + 4 * 334) / 3600)
    page = tmp_path / "report.html"
    assert hpcdl("report", "-o", page).out == f"wrote {page}\n"
    assert "Inception-v3" in page.read_text()
    assert "2026-03-02" in page.read_text()


@pytest.mark.parametrize(("room", "left_out"), [(None, []), (80, ["RESCALING", "LOST", "USED", "MEMORY"])])
def test_a_terminal_gets_the_columns_that_say_something(
    ledger: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch, room: int | None, left_out: list[str]
) -> None:
    monkeypatch.setattr("hpcdl.cli.report.stdout_takes", lambda: (room, False))
    shown = hpcdl("report").out.splitlines()[0].split()
    expected = ["JOB", "GPU-H", *(name.upper() for name in NAMES), "USED", "MEMORY"]
    assert shown == [title for title in expected if title not in left_out]


@pytest.mark.parametrize(("room", "drawn"), [(None, 24), (120, 24), (80, 22), (74, 16), (20, 0)])
def test_bars_are_as_long_as_the_terminal_leaves_room_for(
    ledger: Path, hpcdl: Run, monkeypatch: pytest.MonkeyPatch, room: int | None, drawn: int
) -> None:
    monkeypatch.setattr("hpcdl.cli.report.stdout_takes", lambda: (room, False))
    table, under = hpcdl("report").out.split("\n\n")
    bars = [re.sub("[^█▒▓▞×·]", "", line) for line in table.splitlines()[1:]]
    assert max(map(len, bars)) == drawn
    assert under.startswith("█ useful  ▒ starting") == (drawn > 0)
    assert drawn == 0 or room is None or max(map(len, table.splitlines())) <= room


@pytest.mark.parametrize(
    "argv, code, told",
    [
        (["9"], 1, "there is no job 9: hpcdl ls --all lists them"),
        (["--since", "tomorow"], 2, "'tomorow' is no time: give -2h, 18:30, 2026-05-01"),
        (["--since", "2026-03-02", "--until", "2026-03-01"], 2, "--since must be before --until"),
        (["--by", "week"], 2, "week"),
        (["-o", "/nonexistent/a.html"], 1, "there is no folder /nonexistent"),
    ],
)
def test_wrong_usage(ledger: Path, hpcdl: Run, argv: list[str], code: int, told: str) -> None:
    done = hpcdl("report", *argv)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named_as_it_was_typed(ledger: Path, hpcdl: Run) -> None:
    done = hpcdl("report", "-o", "/proc/x.html")  # nobody may make a file there
    assert (done.code, done.err.splitlines()[-1].count("/proc/x.html")) == (1, 1), done.err
    assert ".tmp" not in done.err


def test_through_the_running_daemon(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.events = rows(set_three(time.time() - 3600))
    value = hpcdl("report", "--json").value
    assert value["total"]["useful_gpu_h"] == pytest.approx(2056 / 3600)
    assert value["total"]["idle_gpu_h"] > 6 * 3000 / 3600  # up to now


def test_what_no_job_held_flattens_no_bar(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.events = rows(set_three(time.time() - 7 * 86_400))
    table = hpcdl("report").out.partition("\n\n")[0]
    bars = {line.split()[0]: len(re.sub("[^█▒▓▞×·]", "", line)) for line in table.splitlines()[1:]}
    assert (bars["2"], bars["no"]) == (24, 24)
    assert bars["1"] > 1


def test_where_there_is_no_ledger_or_it_is_held(home: Path, hpcdl: Run) -> None:
    done = hpcdl("report")
    assert (done.code, done.out) == (1, "")
    assert f"there is no ledger in {home}" in done.err
    home.mkdir(mode=0o700)
    SqliteJournal(home / "ledger.sqlite").close()
    lease = Lease.acquire(home, now=1.0)
    try:
        done = hpcdl("report")
    finally:
        lease.release()
    assert (done.code, done.out) == (1, "")
    assert "does not answer: if it is just starting or stopping, try again in a moment" in done.err
    expected = "choose another (--since, --until), or start a daemon (hpcdl daemon start)"
    assert hpcdl("report").err == f"hpcdl: no GPU was there in that time: {expected}\n"
