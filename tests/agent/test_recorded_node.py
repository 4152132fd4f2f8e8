"""What agent, supervisor, trainer and daemon of the version before the house left on a node, and said: it is read.

Recorded with commit 35eb605 by that version's own writers: the agent's folder with its report log and one run folder,
a checkpoint folder with its claim, one message of each type, one packet of each type.
"""

import asyncio
import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent import folder, run_folder, supervisor_link
from hpcdl.agent.report_log import Marks, ReportLog
from hpcdl.agent.supervisor import claim, packets, process_file, processes
from hpcdl.core.model.events import decode, encode
from hpcdl.trainer import checkpoints
from hpcdl.trainer.checkpoints import StaleIncarnation, check_claim
from hpcdl.wire.messages import decode_message, encode_message

RECORDED = Path(__file__).parents[1] / "recordings" / "node"
TAG, IDENTITY = "d-1:7:3:n1", "ab" * 16
BOOT = "00000000-0000-4000-8000-000000000001"


def lines(name: str) -> list[str]:
    return (RECORDED / name).read_text().splitlines()


def kept(then: Any, now: Any) -> bool:
    """Whether it is what it was; there may be more keys now, at any depth."""
    if isinstance(then, dict) and isinstance(now, dict):
        return not lost(then, now)
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(map(kept, then, now))
    return bool(then == now)


def lost(then: Any, now: Any) -> list[str]:
    """The keys whose values are not what they were; there may be more keys now."""
    return [key for key, value in then.items() if not kept(value, now.get(key, "nothing"))]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The agent's folder, on the machine and in the boot in which it was written."""
    monkeypatch.setattr(folder, "boot_id", lambda: BOOT)
    monkeypatch.setattr(processes, "boot_id", lambda: BOOT)
    shutil.copytree(RECORDED, tmp_path / "node")
    for path in (tmp_path / "node", *(tmp_path / "node").rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path / "node"


@pytest.mark.parametrize("line", lines("messages.jsonl"), ids=lambda line: json.loads(line)["type"])
def test_a_message_is_understood(line: str) -> None:
    message = decode_message(line)
    assert lost(json.loads(line), json.loads(encode_message(message))) == []
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("line", lines("packets.jsonl"), ids=lambda line: json.loads(line)["type"])
def test_a_packet_is_understood(line: str) -> None:
    packet, body = packets.parse(line.encode()), json.loads(line)
    assert packet is not None
    for field in fields(packet):
        value = getattr(packet, field.name)
        recorded = body.get(field.name, field.default)  # a later version has more fields
        assert recorded == (list(value) if isinstance(value, tuple) else value), field.name


def test_the_report_log(node: Path) -> None:
    async def opened() -> ReportLog:
        return ReportLog(node / "reports.jsonl")

    content = (node / "reports.jsonl").read_bytes()
    log = asyncio.run(opened())
    assert (node / "reports.jsonl").read_bytes() == content, "nothing of it is torn or damaged"
    assert (log.log_id, log.last, log.fence, log.lease_s) == ("f" * 32, 13, 3, 600.0)
    assert log.marks == {(7, 3): Marks(9, True, True), (8, 1): Marks(2, False, False)}
    recorded = [line for line in map(json.loads, lines("reports.jsonl")) if "n" in line]
    for line, entry in zip(recorded, log.entries.values(), strict=True):
        assert (entry.number, entry.kind, entry.at, entry.boot) == (line["n"], line["kind"], line["at"], line["boot"])
        assert lost(line["body"], encode(decode(entry.kind, entry.body))) == []
    assert [report.number for report in log.pending(2)] == list(range(3, 14))
    requests = [each for kinds in log.requests.values() for each in kinds.values()]
    asked = [json.loads(line["request"]) for line in map(json.loads, lines("reports.jsonl")) if "request" in line]
    assert [lost(then, json.loads(encode_message(each))) for then, each in zip(asked, requests, strict=True)] == [
        []
    ] * 3


def test_who_had_the_folder_and_when_it_heard_of_the_daemon(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = folder.read_about(node)
    assert about is not None
    assert (about.pid, about.start, about.node, about.emulate_gpus) == (4711, 777, "n1", 2)
    monkeypatch.setattr(folder, "boottime", lambda: 9000.0)
    assert folder.LastContact(node).at == 4321.125


def test_a_run_folder(node: Path) -> None:
    (found,) = run_folder.find(node)
    assert (found.key, found.folder, found.boot, found.damage) == ((7, 3), node / "7.3", BOOT, "")
    assert found.start is not None
    then = json.loads((node / "7.3" / "start.json").read_bytes())
    assert lost(then, json.loads(found.start.encode()) | {"boot_id": BOOT}) == []
    below = process_file.read_process_file(node / "7.3")
    known = [each for each in (below.supervisor, *below.below) if each is not None]
    assert [(each.pid, each.start_ticks) for each in known] == [(4712, 778), (4713, 779), (4714, 780)]


def test_its_records_are_reported_as_they_were(node: Path) -> None:
    records = run_folder.read_records(node / "7.3")
    assert [record["n"] for record in records] == list(range(1, 20))
    names = supervisor_link.Names(job=7, incarnation=3, membership=2, node="n1")
    events = {
        record["n"]: supervisor_link.exit_of(record, names, None, False)
        if record["type"] == "exit"
        else supervisor_link.event_of(record, names)
        for record in records
    }
    told = {each["n"]: each for each in map(json.loads, lines("reported.jsonl"))}
    assert {number for number, event in events.items() if event is not None} == told.keys()
    for number, then in told.items():
        event = events[number]
        assert event is not None
        assert event.kind == then["kind"]
        assert lost(then["body"], encode(event)) == []


def test_checkpoints_are_found_whole_and_damage_is_seen(node: Path) -> None:
    newest, older = checkpoints.complete(node / "checkpoints", IDENTITY)
    assert (newest.step, older.step, newest.incarnation) == (12, 5, 3)
    assert [checkpoints.damage(each) for each in (newest, older)] == ["", ""]
    assert checkpoints.complete(node / "checkpoints", "another's") == []
    weights = newest.path / "rank0" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "weights.bin" in checkpoints.damage(newest)


def test_the_claim_counts(node: Path) -> None:
    directory = node / "checkpoints"
    check_claim(directory, 3, TAG, 2, IDENTITY)
    for incarnation, tag, membership in ((2, "d-1:7:2:n1", 0), (3, TAG, 1), (4, "d-1:8:4:n1", 0)):
        with pytest.raises(StaleIncarnation):
            check_claim(directory, incarnation, tag, membership, IDENTITY)
    with pytest.raises(claim.Foreign):
        claim.write_claim(str(directory), 8, 4, "d-1:8:4:n1", "cd" * 16)
    with pytest.raises(claim.Stale):
        claim.write_claim(str(directory), 7, 2, "d-1:7:2:n1", IDENTITY)
    claim.write_claim(str(directory), 7, 4, "d-1:7:4:n1", IDENTITY)
    check_claim(directory, 4, "d-1:7:4:n1", 0, IDENTITY)
