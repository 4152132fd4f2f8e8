"""Whose a checkpoint folder is while an attempt lives there: two homes have one job where one was copied."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.agent.supervisor import claim, processes
from hpcdl.agent.supervisor.claim import LIVE_S, ClaimBeat, Foreign, Stale, supervisor_here, write_claim
from hpcdl.trainer import checkpoints
from tests.support.waiting import until

IDENTITY = "a" * 32


def claimed_by(folder: Path, holder: dict[str, object] | None, incarnation: int = 2) -> Path:
    write_claim(str(folder), 7, incarnation, f"first:7:{incarnation}:n1", IDENTITY, holder=holder)
    return folder / "claim.json"


def take(folder: Path, continue_from: str = "") -> None:
    write_claim(str(folder), 7, 3, "second:7:3:n1", IDENTITY, continue_from, supervisor_here())


def tag_of(path: Path) -> str:
    return str(json.loads(path.read_text())["tag"])


@pytest.mark.parametrize("continue_from", ["", "any"])
def test_who_lives_here_keeps_the_folder_from_a_copy_of_its_home(tmp_path: Path, continue_from: str) -> None:
    path = claimed_by(tmp_path, supervisor_here())
    os.utime(path, (0, 0))  # its process is seen: nothing depends on the time
    before = path.read_bytes()
    with pytest.raises(Stale) as refused:
        take(tmp_path, continue_from)
    said = str(refused.value)
    assert said.startswith("attempt 2 of a job of another HPCDL_HOME (first:7:2:n1) lives in the checkpoint folder")
    assert said.endswith("this job is tried again")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["claim.json"]
    claimed_by(tmp_path, supervisor_here(), 3)  # its own daemon's next attempt may


def test_nor_does_another_job_that_may_go_on_from_it_take_it(tmp_path: Path) -> None:
    """Whatever the numbers of their attempts: these compare within one job only."""
    path = claimed_by(tmp_path, supervisor_here())
    before = path.read_bytes()

    def take_as_another_job() -> None:
        write_claim(str(tmp_path), 8, 3, "first:8:3:n1", "b" * 32, "7", supervisor_here())

    with pytest.raises(Stale, match=r"^attempt 2 of another job \(first:7:2:n1\) lives in the checkpoint folder"):
        take_as_another_job()
    assert path.read_bytes() == before
    claimed_by(tmp_path, None)  # it has ended, and left no one behind
    take_as_another_job()
    assert tag_of(path) == "first:8:3:n1"


def test_who_is_gone_here_does_not(tmp_path: Path) -> None:
    """Whatever the file's time: a restore under a new name need not wait."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    holder = supervisor_here() | {"pid": child.pid, "start": processes.start_ticks(child.pid)}
    path = claimed_by(tmp_path, holder)
    with pytest.raises(Stale):
        take(tmp_path)
    child.communicate(b"\n")
    take(tmp_path)
    assert tag_of(path) == "second:7:3:n1"


def test_of_another_machine_the_time_of_the_claim_counts(tmp_path: Path) -> None:
    elsewhere = supervisor_here() | {"boot": "another"}
    path = claimed_by(tmp_path, elsewhere)
    with pytest.raises(Stale):
        take(tmp_path)
    assert os.listdir(tmp_path) == ["claim.json"]
    now = path.stat().st_mtime
    os.utime(path, (now, now - LIVE_S - 1))
    take(tmp_path)
    assert tag_of(path) == "second:7:3:n1"


@pytest.mark.parametrize("holder", [None, {}, {"pid": "x"}, [], {"pid": 1, "start": None}])
def test_a_claim_that_names_no_process_is_taken_as_before(tmp_path: Path, holder: object) -> None:
    """Of an earlier version, or damaged."""
    path = claimed_by(tmp_path, None)
    body = json.loads(path.read_text()) | {"holder": holder}
    path.write_text(json.dumps(body))
    os.utime(path, (0, 0))
    take(tmp_path)
    assert tag_of(path) == "second:7:3:n1"


def test_a_claim_is_renewed_until_its_attempt_is_over(tmp_path: Path) -> None:
    path = claimed_by(tmp_path, supervisor_here())
    written = path.stat().st_mtime
    os.utime(path, (0, 0))
    beat = ClaimBeat(str(tmp_path), "first:7:2:n2")  # of another node of the same attempt
    beat._renew()
    assert path.stat().st_mtime >= written - 1
    beat._renew(over=True)
    assert path.stat().st_mtime >= written - 1, "the node that claimed last goes on"
    ClaimBeat(str(tmp_path), "first:7:2:n1")._renew(over=True)
    assert path.stat().st_mtime < written - LIVE_S
    for other in ("first:7:3:n1", "second:7:2:n1"):
        ClaimBeat(str(tmp_path), other)._renew()
        assert path.stat().st_mtime < written - LIVE_S, "it is not theirs"
    path.unlink()
    ClaimBeat(str(tmp_path), "first:7:2:n1")._renew()
    assert not path.exists()


def test_a_claim_that_somebody_removed_or_spoiled_is_put_back_while_its_attempt_lives(tmp_path: Path) -> None:
    path = claimed_by(tmp_path, supervisor_here())
    before = path.read_bytes()
    beat = ClaimBeat(str(tmp_path), tag_of(path))
    beat._renew()
    path.unlink()
    for spoiled in (b"", b"{", b"null", b"[" * 60_000):
        path.write_bytes(spoiled)
        beat._renew()
        assert path.read_bytes() == before
    path.unlink()
    beat._renew()
    assert path.read_bytes() == before
    with pytest.raises(Stale):
        take(tmp_path)
    path.unlink()
    take(tmp_path)  # it was faster
    beat._renew()
    assert tag_of(path) == "second:7:3:n1"
    path.unlink()
    beat._renew(over=True)
    assert os.listdir(tmp_path) == []
    tmp_path.rename(tmp_path.with_name("away"))
    beat._renew()
    assert not tmp_path.exists()


def test_the_thread_renews_it_and_says_when_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "BEAT_S", 0.01)
    path = claimed_by(tmp_path, supervisor_here())
    written = path.stat().st_mtime
    os.utime(path, (0, 0))
    beat = ClaimBeat(str(tmp_path), tag_of(path))
    beat.begin()
    until(lambda: path.stat().st_mtime >= written - 1, "it is renewed")
    beat.end()
    until(lambda: path.stat().st_mtime < written - LIVE_S, "it is over")
    assert tag_of(path) == "first:7:2:n1", "only its time is another"


def test_ranks_that_form_anew_keep_who_holds_the_claim(tmp_path: Path) -> None:
    holder = supervisor_here()
    path = claimed_by(tmp_path, holder)
    checkpoints.claim(tmp_path, 7, 2, 4, "first:7:2:n1", IDENTITY)
    body = json.loads(path.read_text())
    assert (body["membership"], body["holder"]) == (4, holder)


# --- starts that the ledger of this home has, and others --------------------------------------------------------------

MINE, OTHER = "1" * 16, "2" * 16


def claim_as(folder: Path, incarnation: int, nonce: str, known: tuple[str, ...] = (), node: str = "n1") -> str:
    """By a supervisor of this process, for an attempt of one job in homes of one name."""
    tag = f"first:7:{incarnation}:{node}:{IDENTITY}:{nonce}".rstrip(":")
    return write_claim(str(folder), 7, incarnation, tag, IDENTITY, "", supervisor_here(node), nonce, known)


@pytest.mark.parametrize("incarnation", [1, 2, 3])
def test_a_start_that_the_ledger_does_not_have_keeps_the_folder_while_it_lives(
    tmp_path: Path, incarnation: int
) -> None:
    claim_as(tmp_path, 2, OTHER)
    before = (tmp_path / "claim.json").read_bytes()
    with pytest.raises(Stale) as refused:
        claim_as(tmp_path, incarnation, MINE, ("3" * 16,))
    said = "attempt 2 of this job, started from another copy of this HPCDL_HOME (first:7:2:n1) lives in the checkpoint "
    assert str(refused.value).startswith(said)
    assert refused.value.claimed == 2
    assert (tmp_path / "claim.json").read_bytes() == before


def test_a_start_that_it_has_is_replaced_as_ever(tmp_path: Path) -> None:
    """The next attempt after a silent agent's, or a further node of the same one."""
    claim_as(tmp_path, 2, OTHER)
    assert claim_as(tmp_path, 2, OTHER, (OTHER,), node="n2") == ""
    assert claim_as(tmp_path, 3, MINE, (OTHER, MINE)) == ""
    assert json.loads((tmp_path / "claim.json").read_text())["nonce"] == MINE


def test_one_that_lives_no_more_is_taken_over_and_that_is_said(tmp_path: Path) -> None:
    claim_as(tmp_path, 2, OTHER)
    path = tmp_path / "claim.json"
    body = json.loads(path.read_text())
    body["holder"]["pid"] = 0
    path.write_text(json.dumps(body))
    for number in (1, 2):
        with pytest.raises(Stale) as refused:
            claim_as(tmp_path, number, MINE)
        assert refused.value.claimed == 2, "the next attempt has a number that nobody had"
    assert claim_as(tmp_path, 3, MINE).startswith(
        "attempt 2 of this job had claimed the checkpoint folder, and the led"
    )
    assert json.loads(path.read_text())["nonce"] == MINE


@pytest.mark.parametrize("nonces", [("", MINE), (OTHER, "")])
def test_without_a_nonce_it_is_as_before(tmp_path: Path, nonces: tuple[str, str]) -> None:
    claim_as(tmp_path, 2, nonces[0])
    assert claim_as(tmp_path, 3, nonces[1]) == ""


def test_one_start_in_two_homes_is_carried_out_once(tmp_path: Path) -> None:
    """It was recorded, and its home copied before it was made: both know its nonce."""
    claim_as(tmp_path, 2, MINE, (MINE,))
    path = tmp_path / "claim.json"
    body = json.loads(path.read_text())
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    body["holder"] |= {"pid": child.pid, "start": processes.start_ticks(child.pid)}
    path.write_text(json.dumps(body))
    with pytest.raises(Stale, match="the very start that this one is, from another copy of this HPCDL_HOME"):
        claim_as(tmp_path, 2, MINE, (MINE,))
    now = path.stat().st_mtime
    os.utime(path, (now, now - 2 * LIVE_S))  # its node has left the attempt, and joins it again
    assert claim_as(tmp_path, 2, MINE, (MINE,)) == ""
    path.write_text(json.dumps(body))
    child.communicate(b"\n")
    assert claim_as(tmp_path, 2, MINE, (MINE,)) == ""


def test_the_claim_of_another_start_is_not_renewed(tmp_path: Path) -> None:
    claim_as(tmp_path, 2, OTHER)
    path = tmp_path / "claim.json"
    os.utime(path, (0, 0))
    ClaimBeat(str(tmp_path), f"first:7:2:n2:{IDENTITY}:{MINE}", MINE)._renew()
    assert path.stat().st_mtime == 0
    ClaimBeat(str(tmp_path), f"first:7:2:n2:{IDENTITY}:{OTHER}", OTHER)._renew()
    assert path.stat().st_mtime > 0


def test_a_number_that_no_attempt_has_is_not_gone_on_from(tmp_path: Path) -> None:
    claim_as(tmp_path, 10**12, OTHER)
    with pytest.raises(Foreign, match="where the number of an attempt or a membership should be"):
        claim_as(tmp_path, 2, MINE, (OTHER,))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("incarnation", value) for value in ("Infinity", "NaN", "1e30", str(10**30), "-1", '"3"', "null", "true")),
        *(("membership", value) for value in ("Infinity", str(10**18), '"x"', "[]")),
    ],
)
def test_numbers_that_nobody_counted_to_are_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    path = claimed_by(tmp_path, None)
    body = json.loads(path.read_text()) | {key: "HERE"}
    path.write_text(json.dumps(body).replace('"HERE"', value))
    before = path.read_bytes()
    if value != "[]":
        with pytest.raises(Foreign, match=rf"^{path} has .* where the number of an attempt or a membership should be"):
            take(tmp_path)
        assert path.read_bytes() == before
    with pytest.raises(OSError, match=r"the claim cannot be read \(.* is no number of ours\)"):
        checkpoints.check_claim(tmp_path, 2, "first:7:2:n1", 0, IDENTITY)
    assert isinstance(claim.another_jobs(str(tmp_path), "first", ""), str), "a submit looks at it, too"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another uid")
def test_a_claim_of_another_user_is_refused_by_name(tmp_path: Path) -> None:
    path = claimed_by(tmp_path, None)
    os.chown(path, 12345, 12345)
    with pytest.raises(Foreign, match=rf"^{path} belongs to uid 12345, so nothing was loaded or changed: remove it"):
        take(tmp_path)
    with pytest.raises(OSError, match=r"the claim cannot be read \(it belongs to uid 12345\)"):
        checkpoints.check_claim(tmp_path, 2, "first:7:2:n1", 0, IDENTITY)
