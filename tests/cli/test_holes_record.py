"""`hpcdl holes --record`: a stand-in for sinfo whose changes are known, and what is recorded of it."""

import json
import signal
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hpcdl.batch.record.pieces import read_record
from tests.cli.conftest import Run
from tests.support.waiting import until

POLLS = ("n[1-2]", "n[1-2]", "n[2-4]", "", "n1", "n1")
"""What idles at each call of the stand-in, whose last answer holds for good."""


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in on PATH, alone of all commands of Slurm; the file with what idles at each of its calls."""
    answers, asked, program = tmp_path / "answers", tmp_path / "asked", tmp_path / "bin" / "sinfo"
    answers.write_text("".join(f"{idle}\n" for idle in POLLS))
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        f"answers, asked = open({str(answers)!r}).read().split('\\n')[:-1], open({str(asked)!r}, 'a+')\n"
        "asked.write('.'); asked.seek(0)\n"
        "idle = answers[min(len(asked.read()), len(answers)) - 1]\n"
        "assert idle != 'away', 'Unable to contact slurm controller (connect failure)'\n"
        "print('NODELIST|STATE|GRES_USED|')\n"
        "if idle: print(f'{idle}|idle|gpu:0|')\n"
        "print('n[5-8]|allocated|gpu:4|')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return answers


def test_what_changes_is_recorded(hpcdl: Run, sinfo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    done = hpcdl("holes", "--record", folder, "--every", 0.1, "--polls", 6, "--json")
    assert (done.code, done.value) == (0, {"schema": 1, "record": str(folder), "polls": 6, "changes": 4, "missed": 0})
    said = f"hpcdl: recording what idles every 0.1 s from slurm into {folder}; hpcdl holes --stats {folder} shows it"
    assert said in done.err.splitlines()
    lines = [json.loads(line) for line in (folder / "idle-000001.jsonl").read_text().splitlines()]
    assert [(line["poll"], line.get("idle"), line.get("in"), line.get("out")) for line in lines] == [
        (1, "n[1-2]", None, None),
        (3, None, "n[3-4]", "n1"),
        (4, None, None, "n[2-4]"),
        (5, None, "n1", None),
    ]
    assert [line.get("nodes") for line in lines] == [6, 7, 4, 5]
    assert json.loads((folder / "last-poll.json").read_text())["poll"] == 6
    pieces = {(piece.node, piece.polls) for piece in read_record(folder).pieces}
    assert pieces == {("n1", 2), ("n2", 3), ("n3", 1), ("n4", 1), ("n1", 2)}


def test_it_goes_on_and_says_what_it_did_not_see(hpcdl: Run, sinfo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    sinfo.write_text("n1\naway\naway\naway\naway\nn1\nn2\n")
    done = hpcdl("holes", "--record", folder, "--every", 0.1, "--polls", 6)
    assert done.out == f"2 polls in {folder}, 2 changes, 4 without an answer\n"
    usual = ("recording what idles", "longer than --every")
    said = [line for line in done.err.splitlines() if not any(words in line for words in usual)]
    assert len(said) == 2, said
    assert "sinfo" in said[0]
    assert said[0].endswith("; polls are missed until it is over, one every 0.1 s")
    assert said[1] == "hpcdl: recording goes on"
    assert hpcdl("holes", "--record", folder, "--every", 0.1, "--polls", 1, "--quiet").out == f"{folder}\n"
    record = read_record(folder)
    assert (record.pieces[0].node, record.pieces[0].left) == ("n1", False)
    assert len(record.spans) >= 2


def last_poll(folder: Path) -> int:
    mark = folder / "last-poll.json"
    return int(json.loads(mark.read_text())["poll"]) if mark.exists() else 0


def polled_since(folder: Path, before: int) -> bool:
    return last_poll(folder) > before


def test_a_killed_recorder_is_followed_by_another(hpcdl: Run, sinfo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    argv = [sys.executable, "-m", "hpcdl", "holes", "--record", str(folder), "--every", "0.1"]
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM)):
        before = last_poll(folder)
        recorder = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(partial(polled_since, folder, before), "a poll")
            refused = hpcdl("holes", "--record", folder, "--polls", 1)
            assert (refused.code, "another recorder writes" in refused.err) == (1, True)
        finally:
            recorder.send_signal(number)
            assert recorder.wait() == code
    record = read_record(folder)
    assert record.nodes is not None
    starts = [line for line in (folder / "idle-000001.jsonl").read_text().splitlines() if "idle" in json.loads(line)]
    assert len(starts) >= 2


def test_a_record_that_ends_in_the_future_goes_on_behind_a_gap(hpcdl: Run, sinfo: Path, tmp_path: Path) -> None:
    """Its clock was wrong: how long nobody looked is not known, so nothing is concluded from what idled then."""
    folder = tmp_path / "record"
    assert hpcdl("holes", "--record", folder, "--polls", 1).code == 0
    mark = json.loads((folder / "last-poll.json").read_text())
    (folder / "last-poll.json").write_text(json.dumps({**mark, "at": 4e9}))
    assert hpcdl("holes", "--record", folder, "--polls", 1).code == 0
    record = read_record(folder)
    assert (len(record.spans), record.spans[1][0] >= 4e9) == (2, True)


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (("--every", 5), 2, "--every is of --record: hpcdl holes --record DIR --every SECONDS"),
        (("--polls", 5), 2, "--polls is of --record"),
        (("--record", "{folder}/a/b", "--polls", 1), 1, "there is no folder {folder}/a: make it first"),
        (("--record", "{folder}/answers", "--polls", 1), 1, "{folder}/answers is a file: name a folder for the record"),
        (("--record", "{folder}", "--polls", 1), 1, "{folder} holds other files (answers): name a folder for"),
        (("--record", "{folder}/r", "--every", "0"), 2, "--every"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    hpcdl: Run, sinfo: Path, tmp_path: Path, argv: tuple[str, ...], code: int, told: str
) -> None:
    done = hpcdl("holes", *(str(part).format(folder=tmp_path) for part in argv))
    assert (done.code, done.out) == (code, "")
    assert told.format(folder=tmp_path) in done.err
    assert len(done.err.splitlines()) == 1


def test_without_a_batch_system_nothing_is_recorded(
    hpcdl: Run, sinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinfo.write_text("away\n")
    done = hpcdl("holes", "--record", tmp_path / "record", "--polls", 3)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("hpcdl: slurm does not answer (sinfo: ")
    assert not (tmp_path / "record").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    done = hpcdl("holes", "--record", tmp_path / "record", "--polls", 3)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("hpcdl: no batch system was found here: run this where sinfo, bhosts or bslots work")


SACCT = (
    "JobIDRaw|Start|End|NodeList\n"
    "1|1795325000|1795325600|n[1-2]\n2|1795325100|Unknown|n3\n3|1795325900|1795326200|n1\n4|1795326200|Unknown|n1\n"
)


def test_past_accounting_makes_a_record(hpcdl: Run, tmp_path: Path) -> None:
    printed = tmp_path / "sacct.txt"
    printed.write_text(SACCT)
    done = hpcdl("holes", "--record", tmp_path / "record", "--from-sacct", printed, "--every", 60)
    assert (done.code, done.out) == (0, f"11 polls in {tmp_path / 'record'}, 2 changes by 4 jobs\n")
    value = hpcdl("holes", "--stats", tmp_path / "record", "--json").value
    assert (value["hours"], value["nodes"], value["pieces"]) == (600 / 3600, 3, 2)
    done = hpcdl("holes", "--record", tmp_path / "record", "--from-sacct", printed)
    assert done.code == 1
    assert done.err.endswith("holds a record already: name another folder for that of the accounting\n")
    assert hpcdl("holes", "--record", tmp_path / "r", "--from-sacct", tmp_path / "no").err.startswith(
        f"hpcdl: there is no file {tmp_path / 'no'}"
    )
    assert hpcdl("holes", "--record", tmp_path / "r", "--from-sacct", printed, "--polls", 3).code == 2
    assert hpcdl("holes", "--from-sacct", printed).code == 2


def test_without_a_file_sacct_is_asked(hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sacct"
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for body, code in (
        (f'echo "$@" >{tmp_path}/asked; printf %s "{SACCT}"', 0),
        ("echo sacct: no storage >&2; exit 1", 1),
    ):
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        done = hpcdl("holes", "--record", tmp_path / f"record{code}", "--from-sacct", "--json")
        assert done.code == code
    assert "--starttime=now-30days" in (tmp_path / "asked").read_text()
    assert done.err == "hpcdl: sacct: no storage; give a file that sacct printed elsewhere: --from-sacct FILE\n"
    assert not (tmp_path / "record1").exists()


def test_bhosts_is_asked_where_slurm_is_installed_and_serves_nothing(
    hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = {"sinfo": "echo nothing configured >&2; exit 1", "squeue": "exit 1"}
    bhosts = (
        "echo 'HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV'; "
        "echo 'h1 ok - 4 0 0 0 0 0'; echo 'h2 closed_Full - 4 4 4 0 0 0'"
    )
    for name, body in {**slurm, "bhosts": bhosts}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    done = hpcdl("holes", "--record", tmp_path / "record", "--every", 0.1, "--polls", 2)
    assert (done.code, done.out) == (0, f"2 polls in {tmp_path / 'record'}, 1 change\n")
    assert "from lsf into" in done.err
    record = read_record(tmp_path / "record")
    assert ([piece.node for piece in record.pieces], record.nodes) == (["h1"], 2)


def test_slow_polls_are_said_once(hpcdl: Run, sinfo: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "sinfo"
    program.write_text(program.read_text().replace("print('NODELIST", "import time; time.sleep(0.2); print('NODELIST"))
    done = hpcdl("holes", "--record", tmp_path / "record", "--every", 0.1, "--polls", 3)
    assert done.err.count("longer than --every 0.1: polls come later than that") == 1
