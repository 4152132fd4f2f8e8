"""The parts of a supervisor by themselves: escalation, clock, claims, start.json, clients that misbehave."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

import pytest

from hpcdl.agent.start_request import job_environment
from hpcdl.agent.supervisor import claim, side_channel, start_file
from hpcdl.agent.supervisor.claim import Stale, write_claim
from hpcdl.agent.supervisor.clients import STUCK_S, AgentLink
from hpcdl.agent.supervisor.packets import AttachPacket, MalformedPacket, SuspendPacket, WrongVersion, encode, parse
from hpcdl.agent.supervisor.side_channel import QUEUE_LIMIT, Closed, Listener, RunningClock, SideChannelClient
from hpcdl.agent.supervisor.start_file import BadStart, Start, decode
from hpcdl.agent.supervisor.termination import END, SUSPEND, Escalation, EscalationStep, TrainerStatus
from hpcdl.core.model.arrays import Array, expand
from hpcdl.core.model.job import SIGNAL_PRESETS, JobSpec, StagePlan
from hpcdl.trainer import burst, session

NOBODY = TrainerStatus(answerable=False, expected=False, saving=False, heard=False)
SOMEBODY = TrainerStatus(answerable=True, expected=False, saving=False, heard=False)
SOON = TrainerStatus(answerable=False, expected=True, saving=False, heard=False)
SAVING = TrainerStatus(answerable=True, expected=False, saving=True, heard=True)
SAVED = TrainerStatus(answerable=True, expected=False, saving=False, heard=True)


def story(ending: Escalation, *steps: tuple[float, TrainerStatus]) -> list[EscalationStep | None]:
    return [ending.next(now, lambda seen=seen: seen) for now, seen in steps]  # type: ignore[misc]


def test_the_timeline_of_one_that_never_answers() -> None:
    steps = [(now, SOMEBODY) for now in (0, 9.9, 10, 11, 23.9, 24, 25, 29.9, 30, 30.1, 30.6)]
    actions = story(Escalation(SUSPEND, 0, 30, True), *steps)
    ask, term, kill = EscalationStep.ASK, EscalationStep.TERMINATE, EscalationStep.KILL
    assert actions == [ask, None, ask, None, None, term, None, None, kill, None, kill]


def test_one_that_was_heard_is_not_asked_again() -> None:
    actions = story(Escalation(SUSPEND, 0, 30, True), (0, SOMEBODY), (10, SAVED), (12, SAVED), (24, SAVED))
    assert actions == [EscalationStep.ASK, None, None, EscalationStep.TERMINATE]


def test_a_save_has_the_whole_grace() -> None:
    actions = story(
        Escalation(SUSPEND, 0, 30, True), (0, SOMEBODY), (10, SAVING), (24, SAVING), (29, SAVING), (30, SAVING)
    )
    assert actions == [EscalationStep.ASK, None, None, None, EscalationStep.KILL]


def test_nobody_to_ask() -> None:
    assert story(Escalation(SUSPEND, 0, 30, True), (0, NOBODY), (24, NOBODY)) == [EscalationStep.TERMINATE, None]
    assert story(Escalation(SUSPEND, 0, 30, True), (0, SOON), (5, SOMEBODY)) == [None, EscalationStep.ASK]
    assert story(Escalation(SUSPEND, 0, 30, True), (0, SOON), (10, SOON)) == [None, EscalationStep.TERMINATE]
    assert story(Escalation(SUSPEND, 0, 30, False), (0, SOMEBODY)) == [EscalationStep.TERMINATE]
    assert story(Escalation(END, 0, 30, True), (0, SAVING), (1, SAVING), (30, SAVING)) == [
        EscalationStep.TERMINATE,
        None,
        EscalationStep.KILL,
    ]


def test_a_grace_of_nothing_kills() -> None:
    assert story(Escalation(SUSPEND, 5, 0, True), (5, SOMEBODY)) == [EscalationStep.KILL]


def test_nobody_looks_where_nothing_may_be_due() -> None:
    ending = Escalation(SUSPEND, 0, 30, True)
    looks = 0

    def look() -> TrainerStatus:
        nonlocal looks
        looks += 1
        return SOMEBODY

    counts = []
    for now in (0, 1, 9, 10, 11, 24, 25):
        ending.next(now, look)
        counts.append(looks)
    assert counts == [1, 1, 1, 2, 2, 3, 3]


def test_a_grace_only_gets_shorter() -> None:
    ending = Escalation(SUSPEND, 0, 30, True)
    assert not ending.hasten(10, 25)
    assert ending.hasten(10, 5)
    assert (ending.deadline, ending.left(12), ending.left(20)) == (15, 3, 0)


def test_time_in_which_the_supervisor_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    clock = RunningClock()
    began = clock.now()
    seconds[0] += 4
    assert clock.turn(1.0) == 0
    seconds[0] += 3601
    assert clock.turn(1.0) == 3600
    assert clock.now() - began == 5


def test_claims(tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    write_claim(folder, 7, 2, "i:7:2")
    write_claim(folder, 7, 2, "i:7:2")  # the other node of the same incarnation
    write_claim(folder, 7, 3, "i:7:3")
    with pytest.raises(Stale, match=r"attempt 3 \(i:7:3\) has claimed"):
        write_claim(folder, 7, 2, "i:7:2")
    found = json.loads(Path(folder, "claim.json").read_text())
    assert found == {"v": 1, "job": 7, "incarnation": 3, "tag": "i:7:3"}
    assert os.listdir(folder) == ["claim.json"]


@pytest.mark.parametrize("other", ["i:8:2:n1", "j:7:2:n1", "", "i"])
def test_claims_of_others(tmp_path: Path, other: str) -> None:
    folder = str(tmp_path)
    write_claim(folder, 8, 2, other)
    with pytest.raises(Stale, match=rf"another job \({other}\) has claimed .*; this is i:7:2:n1"):
        write_claim(folder, 7, 2, "i:7:2:n1")
    write_claim(folder, 7, 3, "i:7:3:n1")  # a job that goes on from the folder of one that is over
    write_claim(folder, 7, 3, "i:7:3:n2")
    with pytest.raises(Stale, match=r"attempt 3 \(i:7:3:n2\)"):
        write_claim(folder, 8, 2, other)
    assert json.loads((tmp_path / "claim.json").read_text())["tag"] == "i:7:3:n2"


def test_a_job_is_known_by_its_identity_under_a_new_instance(tmp_path: Path) -> None:
    """Its ledger was restored to another home, or its home lost the folder `tls`."""
    folder, identity = str(tmp_path), "ab" * 16
    write_claim(folder, 7, 2, "old:7:2:n1", identity)
    marker = tmp_path / "step-000000000004.i2" / "COMPLETE"
    marker.parent.mkdir()
    marker.write_text(json.dumps({"owner": "old:7", "identity": identity}))
    for another in ("cd" * 16, ""):
        with pytest.raises(claim.Foreign, match=r"a job of another HPCDL_HOME \(old:7:2:n1\)"):
            write_claim(folder, 7, 3, "new:7:3:n1", another)
    with pytest.raises(Stale, match=r"attempt 2 \(old:7:2:n1\) has claimed"):
        write_claim(folder, 7, 1, "new:7:1:n1", identity)
    write_claim(folder, 7, 3, "new:7:3:n1", identity)
    assert json.loads((tmp_path / "claim.json").read_text())["tag"] == "new:7:3:n1"


def test_a_claim_does_not_wait_for_ever_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "LOCK_WAIT_S", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        write_claim(str(tmp_path), 7, 2, "t")
    finally:
        os.close(folder)
    assert (tmp_path / "claim.json").exists()


def order(**changed: object) -> bytes:
    start = Start("i:7:2", 7, 2, 1, "n1", ("true",), "/", {"A": "b"}, "/log")
    return json.dumps(json.loads(start.encode()) | changed).encode()


def test_a_start_file_round_trip() -> None:
    start = decode(order(gpu_env={"CUDA_VISIBLE_DEVICES": "GPU-1"}, more="ignored"))
    assert decode(start.encode()) == start
    environment = start.environment("/run/s")
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert (environment["A"], environment["HPCDL_TAG"], environment["HPCDL_SOCKET"]) == ("b", "i:7:2", "/run/s")
    gated = decode(order(gpu_env={"CUDA_VISIBLE_DEVICES": "GPU-1"}, gate=True)).environment("/run/s")
    assert (gated["CUDA_VISIBLE_DEVICES"], gated["HPCDL_GPU_COUNT"]) == ("", "0")


@pytest.mark.parametrize(
    "changed,why",
    [
        ({"v": 2}, "version 1"),
        ({"argv": []}, "no command"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"signal": "loud"}, "none of hpcdl"),
        ({"grace_s": -1}, "grace_s"),
        ({"grace_s": float("nan")}, "NaN is no number"),
        ({"grace_s": 10**400}, "too large"),
        ({"steps": 1 << 64}, "too large"),
        ({"env": {"A": 1}}, "env: expected str"),
        ({"gate": 1}, "gate: expected bool"),
        ({"job": True}, "job: expected int, got bool"),
        ({"cwd": None}, "cwd: expected str"),
        ({"tag": ""}, "tag"),
    ],
)
def test_bad_start_files(changed: dict[str, object], why: str) -> None:
    with pytest.raises(BadStart, match=why):
        decode(order(**changed))


def test_start_files_that_are_no_orders() -> None:
    for content in (b"", b"[]", b"{", b"[" * 100_000, b'{"v": 1}'):
        with pytest.raises(BadStart):
            decode(content)


def test_packets_are_parsed_or_refused() -> None:
    attach = encode("attach", pid=5, rank=0, incarnation=2, membership=1, handler=True, more=[])
    assert parse(attach) == AttachPacket(5, 0, 2, 1, True)
    assert parse(encode("suspend")) == SuspendPacket(None, "daemon")
    assert parse(encode("made up")) is None
    with pytest.raises(WrongVersion):
        parse(b'{"v": "1", "type": "done"}')
    for body in ({"pid": True}, {"rank": -1}, {"handler": 1}, {"incarnation": 2**60}, {"membership": "1"}):
        with pytest.raises(MalformedPacket):
            parse(json.dumps(json.loads(attach) | body).encode())
    for bad in (encode("suspend", by="me"), encode("end", grace_s=-1), encode("open", gpu_env=[]), encode("saved")):
        with pytest.raises(MalformedPacket):
            parse(bad)


def pair() -> tuple[SideChannelClient, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return SideChannelClient(ours), theirs


def test_a_peer_that_does_not_read_is_given_up() -> None:
    connection, peer = pair()
    with peer:
        with pytest.raises(Closed, match="does not read"):
            for _ in range(100_000):
                connection.send(b"x" * 1000)
        assert len(connection._queue) == QUEUE_LIMIT
        connection.close()


def test_what_a_peer_sent_is_read_although_it_is_gone() -> None:
    connection, peer = pair()
    connection.send(b"never read")
    peer.send(b"final")
    peer.close()
    connection.send(b"to nobody")
    assert connection.receive() == b"final"
    with pytest.raises(Closed):
        connection.receive()
    connection.close()


def test_an_empty_packet_is_not_the_end() -> None:
    connection, peer = pair()
    with peer:
        peer.send(b"")
        peer.send(b"more")
        assert [connection.receive(), connection.receive(), connection.receive()] == [b"", b"more", None]
        connection.close()


def test_an_agent_that_is_stuck_counts_as_absent() -> None:
    connection, peer = pair()
    with peer:
        records = [b"x" * 1000] * 10_000
        link = AgentLink(connection, records, 0)
        link.push(0.0)
        link.push(STUCK_S - 1)
        assert link.waiting
        with pytest.raises(BlockingIOError):
            while True:
                peer.recv(2000, socket.MSG_DONTWAIT)
        link.push(STUCK_S)  # it reads: patience begins anew
        link.push(STUCK_S + 1)
        with pytest.raises(Closed):
            link.push(2 * STUCK_S + 1)
        connection.close()


def test_another_uid_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    listener = Listener(folder)
    monkeypatch.setattr(side_channel, "is_ours", lambda uid: uid == os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(f"/proc/self/fd/{folder}/s")
        assert listener.accept() is None
        assert client.recv(10) == b""
    listener.close()
    assert os.listdir(tmp_path) == []
    os.close(folder)


def test_core_supervisor_and_trainer_have_the_same_presets() -> None:
    """Each has a table of its own: the supervisor and the trainer import nothing of the others."""
    for presets in (start_file.PRESETS, session.PRESETS):
        assert {name: number and number.name for name, number in presets.items()} == SIGNAL_PRESETS


def test_a_burst_parallel_job_finds_its_plans_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec(("train",), "j", burst=(StagePlan(1, 9.0, (1, 1)), StagePlan(4, 3.0, (4, 2))))
    found = job_environment({}, spec)
    monkeypatch.setenv("HPCDL_BURST_PLANS", found["HPCDL_BURST_PLANS"])
    assert [burst.widths(None, 2, ranks) for ranks in (1, 3, 4, 5)] == [[1, 1], [1, 1], [4, 2], [4, 2]]
    assert "HPCDL_BURST_PLANS" not in job_environment({}, JobSpec(("train",), "j"))


def test_a_member_of_an_array_finds_what_is_its_own_in_its_environment() -> None:
    template = JobSpec(("train", "{lr}"), "j", env=(("HPCDL_SWEEP_LR", "spoof"), ("A", "b")))
    spec = expand(template, Array(((3, 4, 1),), (("lr", ("a b\n\udcff",)), ("my.x-y", ("1",)))), 12)[1]
    found = job_environment({}, spec)
    told = {name: value for name, value in found.items() if name.startswith(("HPCDL_ARRAY", "HPCDL_SWEEP"))}
    assert told == {
        "HPCDL_ARRAY_JOB": "12", "HPCDL_ARRAY_INDEX": "4", "HPCDL_SWEEP_LR": "a b\n\udcff", "HPCDL_SWEEP_MY_X_Y": "1"
    }  # fmt: skip
