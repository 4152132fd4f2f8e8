"""The high-water mark: exact after a kill, never ahead of the ledger, and never below an id that was given."""

import errno
import json
import math
import os
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.controller.journal import JournalError
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Request
from hpcdl.core.model.incarnation import Placement, Share
from hpcdl.ledger import SqliteJournal, high_water_mark, maintenance
from hpcdl.ledger.high_water_mark import NAME, NOW, read_mark
from hpcdl.ledger.integrity import LedgerShrank, UsableLedger, open_resumed, traces_of
from tests.ledger.histories import SPEC

ROOT = Path(__file__).parents[2]
AT = 1_700_000_000.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def opened(home: Path, *, accept_loss: bool = False, first_job: int = 1) -> UsableLedger:
    """As a daemon opens it, and says so."""
    path = home / "ledger.sqlite"
    resumed = open_resumed(home, lambda: SqliteJournal(path), accept_loss=accept_loss, first_job=first_job)
    started = ev.DaemonStarted(max(resumed.fence, resumed.journal.load().fence) + 1, "1", 1, "h")
    resumed.journal.append([(AT, each) for each in (started, resumed.raised) if each is not None])
    return resumed


def raised_next(home: Path) -> ev.IdsRaised | None:
    """By one more opening."""
    resumed = opened(home)
    resumed.journal.close()
    return resumed.raised


def submit(journal: SqliteJournal, jobs: int = 1) -> int:
    """The id of the last one."""
    first = journal.load().next_job
    numbers = range(first, first + jobs)
    journal.append([(AT, ev.JobSubmitted(number, SPEC, f"r{number}")) for number in numbers])
    return numbers[-1]


def killed(journal: SqliteJournal) -> None:
    """As a kill leaves it: nothing is said to the mark."""
    journal.mark = None
    journal.close()


@pytest.mark.timeout(3600)
def test_a_kill_at_any_line_is_no_loss_and_gives_no_id_twice(tmp_path: Path) -> None:
    script = Path(__file__).with_name("mark_at_each_line.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=3600, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bad"] == []
    assert min(found["lines"].values()) > 300
    assert min(found["kills"].values()) > 20


def test_whatever_happens_no_id_is_given_twice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills, power failures, restores and losses, one after the other at random."""
    chance = random.Random(7)
    boot = 0
    monkeypatch.setattr(high_water_mark, "_boot", lambda: f"boot{boot}")
    resumed = opened(home)
    backup, given = back_up_open(resumed, home), 0
    for turn in range(60):
        for _ in range(chance.randrange(4)):
            known = given
            given = submit(resumed.journal, chance.choice((1, 1, 3, 150)))
            assert given > known
        assert resumed.journal.mark is not None
        if chance.random() < 0.5:
            resumed.journal.mark.sync()
        what = chance.choice(("stop", "kill", "power", "restore", "empty", "backup"))
        if what == "backup":
            backup = back_up_open(resumed, home)
            continue
        before = (home / NOW).read_bytes()
        if what != "stop":
            killed(resumed.journal)
        resumed.journal.close()
        if what == "power":
            boot += 1
            torn = chance.choice((before, before[:100] + b"\0" * 412, b""))
            (home / NOW).write_bytes(torn)
        elif what == "restore":
            shutil.copy(backup, home / "ledger.sqlite")
        elif what == "empty":
            os.truncate(home / "ledger.sqlite", 0)
            with pytest.raises(LedgerShrank, match=r"ledger\.sqlite is empty"):
                opened(home)
        resumed = opened(home, accept_loss=what == "empty")
        world = resumed.journal.load()
        assert world.next_job > given, turn
        assert world.next_job <= given + 1 + 100 * boot, turn
        if what in ("stop", "kill", "power"):
            assert resumed.raised is None, turn
            assert not given or world.next_job == given + 1
        given = world.next_job - 1
    resumed.journal.close()


def back_up_open(resumed: UsableLedger, home: Path) -> Path:
    copy = home.with_name("copy") / "ledger.sqlite"
    copy.parent.mkdir(mode=0o700, exist_ok=True)
    resumed.journal.copy(copy)
    folder = home.with_name("backup")
    folder.mkdir(mode=0o700, exist_ok=True)
    maintenance.back_up(copy, folder, lambda text: None)
    return folder / "ledger.sqlite"


def test_an_id_is_not_given_where_it_cannot_be_reserved(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(home).journal as journal:
        submit(journal)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(high_water_mark, "atomic_write", full)
        assert submit(journal, 99) == 100  # of the block that is reserved
        with pytest.raises(JournalError, match=r"mark\.json: No space left on device: its disk is full: make room"):
            submit(journal)
        assert journal.load().next_job == 101
        monkeypatch.undo()
        assert submit(journal) == 101


def test_what_may_have_been_given_is_not_given_again(home: Path) -> None:
    """A power failure may tear the one file, and with that the ledger may be an older one."""
    resumed = opened(home)
    backup = back_up_open(resumed, home)
    last = submit(resumed.journal, 3)
    killed(resumed.journal)
    os.truncate(home / NOW, 10)
    shutil.copy(backup, home / "ledger.sqlite")
    resumed = opened(home)
    assert resumed.raised is not None
    assert submit(resumed.journal) > last
    resumed.journal.close()


def test_a_mark_that_cannot_be_written_lags(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(home).journal
    submit(journal)

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", failing)
    assert submit(journal) == 2
    monkeypatch.undo()
    killed(journal)
    resumed = opened(home)
    assert resumed.raised is None
    assert submit(resumed.journal) == 3
    resumed.journal.close()


def test_requests_go_on_above_those_that_were_made(home: Path) -> None:
    resumed = opened(home)
    submit(resumed.journal)
    backup = back_up_open(resumed, home)
    placement = Placement((Share("n1", (0,)),))
    start = ev.StartRequested(1, 7, ("n1",), placement)
    joined = ev.NodeJoined("n1", (), 8, 1 << 14)
    asked = [Request("start", "n1", 1, 7, nodes=("n1",), placement=placement)]
    _, numbered = resumed.journal.append([(AT, joined), (AT, start)], asked * 3)
    resumed.journal.close()
    shutil.copy(backup, home / "ledger.sqlite")
    resumed = opened(home)
    assert resumed.raised is not None
    assert resumed.raised.incarnation == 7
    assert resumed.journal.load().floor.incarnation == 7
    _, again = resumed.journal.append([(AT, joined)], asked)
    assert again[0].id == numbered[-1].id + 1
    resumed.journal.close()


def test_what_lies_in_a_home_counts(home: Path) -> None:
    opened(home).journal.close()
    for name in (NAME, NOW):
        (home / name).unlink()
    for folder in ("checkpoints/4", "logs/6", "logs/pilots", "logs/x7", "run/n1/9.2"):
        (home / folder).mkdir(parents=True, mode=0o700)
    (home / "logs" / "pilots" / "p3.log").touch()
    (home / "checkpoints" / "77").touch()  # no folder, but who knows
    body = '{"n":4,"kind":"Saved","body":{"job":80,"incarnation":3,"step":1},"at":1.0,"boot":"b"}'
    lines = ['{"log_id":"x","v":1}', '{"last":3,"fence":1,"lease_s":600.0}', '{"mark":[79,1],"rec":1}', body, "rubbish"]
    (home / "run" / "n1" / "reports.jsonl").write_text("\n".join(lines))
    traces = traces_of(home)
    assert (traces.ids.job, traces.ids.pilot, traces.ids.incarnation, traces.heard) == (81, 4, 3, 1)
    resumed = opened(home)
    assert resumed.raised is not None
    assert (resumed.raised.why, resumed.raised.job, resumed.raised.pilot) == ("folders", 81, 4)
    assert "jobs 1 to 80 are not known to the ledger" in resumed.note
    resumed.journal.close()
    assert raised_next(home) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"[" * 60_000, b"\xff", b'{"v": 1, "line": "x"}'])
def test_a_damaged_mark_is_said_and_made_anew(home: Path, damage: bytes) -> None:
    journal = opened(home).journal
    submit(journal)
    journal.close()
    (home / NAME).write_bytes(damage)
    with pytest.raises(JournalError, match=r"mark\.json is damaged, .*: if hpcdl ledger verify finds nothing else"):
        opened(home)
    resumed = opened(home, accept_loss=True)
    assert submit(resumed.journal) == 2
    resumed.journal.close()
    assert raised_next(home) is None


def test_ids_that_nobody_can_have_given_are_damage(home: Path) -> None:
    journal = opened(home).journal
    submit(journal)
    journal.close()
    body = json.loads((home / NAME).read_text())
    for kind, number in (("fence", 10**26), ("job", 10**30), ("incarnation", -1)):
        (home / NAME).write_text(json.dumps(body | {"given": body["given"] | {kind: number}}))
        with pytest.raises(JournalError, match=r"mark\.json is damaged"):
            read_mark(home)


NUMBERS: list[Any] = [math.inf, math.nan, "7", 1e30, -1, 10**15, True, None, []]
IDS: list[Any] = [None, [], 1, {"job": math.inf}, {"job": "1"}]
REASONS: list[Any] = ["", ["x"], ["backup", 1], {}, 7, ["a", "b", "c"]]
DIGESTS: list[Any] = [None, 7, []]
SWITCHES: list[Any] = [None, "no", 1]
WRONG: list[tuple[str, Any]] = [
    *(("seq", value) for value in NUMBERS),
    *(("line", value) for value in NUMBERS),
    *(("resumed", value) for value in REASONS),
    *((key, value) for key in ("given", "reserved") for value in IDS),
    *(("digest", value) for value in DIGESTS),
    *(("clean", value) for value in SWITCHES),
    *((key, ...) for key in ("clean", "seq", "digest", "resumed", "given", "reserved")),
]


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_values_of_the_mark_are_damage(home: Path, key: str, value: object, running: bool) -> None:
    resumed = opened(home)
    submit(resumed.journal)
    killed(resumed.journal) if running else resumed.journal.close()
    body = json.loads((home / NAME).read_text())
    (home / NAME).write_text(
        json.dumps({**body, key: value} if value is not ... else {k: body[k] for k in body if k != key})
    )
    if running:
        (home / NOW).unlink()
    with pytest.raises(JournalError, match=r"mark\.json is damaged.*: if hpcdl ledger verify .* makes it anew"):
        opened(home)
    resumed = opened(home, accept_loss=True)
    assert submit(resumed.journal) >= 2
    resumed.journal.close()
    assert read_mark(home) is not None


def test_wrong_values_of_the_second_file_count_for_nothing(home: Path) -> None:
    journal = opened(home).journal
    submit(journal)
    killed(journal)
    whole = read_mark(home)
    wrong: list[dict[str, Any]] = [{"seq": math.inf}, {"line": "1"}, {"given": []}, {"given": {"job": math.inf}}]
    for changed in wrong:
        body = json.loads((home / NOW).read_text().strip().rpartition(" ")[0]) | changed
        content = json.dumps(body)
        (home / NOW).write_text(f"{content} {zlib.crc32(content.encode()):08x}".ljust(511) + "\n")
        found = read_mark(home)
        assert found is not None
        assert whole is not None
        assert found.given.job >= whole.given.job, "the end of its block counts"


@pytest.mark.parametrize("boot", ["this", "an earlier one"])
def test_one_file_of_the_mark_shows_a_loss_alone(home: Path, boot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of before a submit, and `mark.json` is gone: no fence and no folder tells of it."""
    journal = opened(home).journal
    submit(journal)
    shutil.copytree(home, home.with_name("before"))
    assert submit(journal) == 2
    killed(journal)
    (home / NAME).unlink()
    whole = read_mark(home)
    assert whole is not None
    assert whole.given.job == 3
    for path in home.glob("ledger*"):
        path.unlink()
    for path in home.with_name("before").glob("ledger*"):
        shutil.copy2(path, home)
    if boot != "this":
        monkeypatch.setattr(high_water_mark, "_boot", lambda: "another")
    with pytest.raises(LedgerShrank, match="ids up to job"):
        opened(home)
    resumed = opened(home, accept_loss=True)
    assert submit(resumed.journal) == (3 if boot == "this" else 103)
    resumed.journal.close()
    assert raised_next(home) is None


def test_another_history_is_refused(home: Path, tmp_path: Path) -> None:
    for each in (home, tmp_path / "other"):
        journal = opened(each).journal
        submit(journal, 3)
        if each != home:
            journal.append([(AT + 1, ev.JobHeld(2))])
            journal.append([(AT + 1, ev.JobReleased(2))])
        else:
            journal.append([(AT, ev.JobHeld(1))])
        journal.close()
    shutil.copy(tmp_path / "other" / "ledger.sqlite", home)
    with pytest.raises(LedgerShrank, match="it is of another history"):
        opened(home)


def test_the_copy_before_an_upgrade_is_a_backup(home: Path) -> None:
    journal = opened(home).journal
    submit(journal, 2)
    journal.close()
    from hpcdl.ledger import backup_stamp, migrations
    from hpcdl.ledger.offline import Reader

    copy = home / "copy.sqlite"
    with Reader(home / "ledger.sqlite") as reader, reader.reading() as connection:
        migrations.copy_database(connection, copy, backup_stamp.of_ledger(connection))
    journal = opened(home).journal
    submit(journal, 3)
    journal.close()
    os.replace(copy, home / "ledger.sqlite")
    resumed = opened(home)
    assert resumed.raised is not None
    assert resumed.raised.why == "backup"
    assert submit(resumed.journal) == 6
    resumed.journal.close()


def test_the_log_of_another_ledger_is_not_taken_over(home: Path) -> None:
    resumed = opened(home)
    submit(resumed.journal, 3)
    backup = back_up_open(resumed, home)
    submit(resumed.journal, 3)
    log = (home / "ledger.sqlite-wal").read_bytes()
    killed(resumed.journal)
    shutil.copy(backup, home / "ledger.sqlite")
    (home / "ledger.sqlite-wal").write_bytes(log)
    (home / "ledger.sqlite-wal").chmod(0o600)
    with pytest.raises(JournalError, match=r"is a copy, and ledger.sqlite-wal beside it is of .*: remove .*-wal"):
        opened(home)
    (home / "ledger.sqlite-wal").unlink()
    resumed = opened(home)
    assert submit(resumed.journal) == 7
    resumed.journal.close()


def test_the_mark_is_small_and_ours_alone(home: Path) -> None:
    journal = opened(home, first_job=2_000_000_000).journal
    assert submit(journal) == 2_000_000_000
    assert {path: path.stat().st_mode & 0o777 for path in (home / NAME, home / NOW)} == {
        home / NAME: 0o600,
        home / NOW: 0o600,
    }
    assert (home / NOW).stat().st_size == 512
    found = read_mark(home)
    assert found is not None
    assert (found.seq, found.given.job) == (journal.last_seq, 2_000_000_001)
    journal.close()
    body: dict[str, Any] = json.loads((home / NAME).read_text())
    assert body["clean"]
    assert body["given"] == body["reserved"]
