"""The agent's log, written and read back; and the small pure parts of the agent."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent import agent, folder, supervisor_link
from hpcdl.agent.report_log import SLACK, Marks, ReportLog
from hpcdl.agent.start_request import scrubbed
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import Exited, GpusFreed, Noted, Progressed, Started
from hpcdl.core.model.incarnation import Cause
from hpcdl.wire.messages import RequestMessage
from tests.support.power import Syncs
from tests.support.waiting import until_async

KEY = (7, 2)


def with_log(path: Path, act: Callable[[ReportLog], Awaitable[None]]) -> ReportLog:
    """Opens the log, runs its writer beside `act`, and lets everything be written."""

    async def main() -> ReportLog:
        log = ReportLog(path)
        writer = asyncio.create_task(log.run())
        await act(log)
        await log._added({})
        writer.cancel()
        return log

    return asyncio.run(main())


def read(path: Path) -> ReportLog:
    async def main() -> ReportLog:
        return ReportLog(path)

    return asyncio.run(main())


async def three(log: ReportLog) -> None:
    log.report(Started(7, 2, 1, "n1", pid=9), KEY, 3)
    log.report(Noted(7, 2, 1, "n1", text="x"), KEY, 4)
    log.report(Exited(7, 2, 1, "n1", code=0), KEY, 5)
    await log.take(RequestMessage(4, Request("suspend", "n1", 7, 2, id=11)))
    await log.see(4, 30.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports.jsonl"


def test_everything_is_there_again(path: Path) -> None:
    before = with_log(path, three)
    after = read(path)
    assert after.log_id == before.log_id
    assert [(e.number, e.kind) for e in after.pending(0)] == [(1, "Started"), (2, "Noted"), (3, "Exited")]
    assert after.marks == {KEY: Marks(5, True, False)}
    assert after.requests[KEY]["suspend"].request.id == 11
    assert (after.fence, after.lease_s, after.last) == (4, 30.0, 3)


def test_what_is_taken_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)

    async def act(log: ReportLog) -> None:
        await log.take(RequestMessage(4, Request("suspend", "n1", 7, 2, id=11)))
        assert syncs.holds(path)
        log.report(Started(7, 2, 1, "n1", pid=9), KEY, 3)
        await log._added({})
        assert syncs.holds(path)

    with_log(path, act)
    assert syncs.torn == []


def test_a_torn_line_is_left_out_and_written_over(path: Path) -> None:
    with_log(path, three)
    with path.open("ab") as file:
        file.write(b'{"n":4,"kind":"Not')
    with_log(path, lambda log: log.see(9, 30.0))
    again = read(path)
    assert (again.last, again.fence) == (3, 9)
    assert b'"Not\n' not in path.read_bytes()


def test_a_damaged_line_costs_only_itself(path: Path) -> None:
    with_log(path, three)
    lines = path.read_bytes().splitlines(keepends=True)
    position = next(number for number, line in enumerate(lines) if b"Noted" in line)
    lines[position] = b"\xff\xfe rubbish\n"
    path.write_bytes(b"".join(lines))
    assert [each.kind for each in read(path).pending(0)] == ["Started", "Exited"]


def test_a_log_without_its_beginning_is_put_aside(path: Path) -> None:
    old = with_log(path, three).log_id
    path.write_bytes(b"\0" * 100)
    assert read(path).log_id != old
    assert path.with_name("reports.jsonl.damaged").exists()


def test_what_is_recorded_goes_and_numbers_go_on(path: Path) -> None:
    async def act(log: ReportLog) -> None:
        await three(log)
        for number in range(3000):
            log.report(Noted(7, 2, 1, "n1", text="y" * 200), KEY, 6)
            if number % 100 == 0:
                await log._added({})
        await log._added({})
        log.recorded(3002)
        await log._added({})

    with_log(path, act)
    assert path.stat().st_size < SLACK
    after = read(path)
    assert [each.number for each in after.pending(0)] == [3003]
    assert after.report(GpusFreed(7, 2, 1, "n1"), KEY) == 3004
    assert after.requests[KEY]["suspend"].request.id == 11
    assert after.marks[KEY].exited


def test_of_memberships_the_newest_is_kept(path: Path) -> None:
    async def act(log: ReportLog) -> None:
        for number, membership in ((11, 1), (12, 3), (13, 2), (12, 3)):
            await log.take(RequestMessage(4, Request("rescale", "n1", 7, 2, membership, ("n1",), id=number)))

    with_log(path, act)
    assert read(path).requests[KEY]["rescale"].request.id == 12


def test_a_start_after_nothing_was_left_begins_anew(path: Path) -> None:
    def asked(number: int) -> RequestMessage:
        return RequestMessage(4, Request("start", "n1", 7, 2, id=number))

    async def act(log: ReportLog) -> None:
        await log.take(asked(11))
        await log.take(RequestMessage(4, Request("leave", "n1", 7, 2, id=12)))
        log.report(Exited(7, 2, 1, "n1", code=0), KEY, 5)
        await log.take(asked(13))  # its GPUs are not seen free yet: the daemon would not ask
        assert log.requests[KEY]["start"].request.id == 11
        log.report(GpusFreed(7, 2, 1, "n1"), KEY, 5)
        await log.take(asked(11))  # the first one, delivered again
        assert log.unreported(KEY).freed
        await log.take(asked(14))
        assert not log.unreported(KEY).exited

    with_log(path, act)
    found = read(path)
    assert {kind: message.request.id for kind, message in found.requests[KEY].items()} == {"start": 14}
    assert found.unreported(KEY) == Marks()
    assert [entry.kind for entry in found.entries.values()] == ["Exited", "GpusFreed"]


def test_a_daemon_that_has_seen_more_moves_the_numbers(path: Path) -> None:
    async def act(log: ReportLog) -> None:
        log.recorded(50)
        assert log.report(Noted(7, 2, 1, "n1"), KEY, 1) == 51

    assert [each.number for each in with_log(path, act).pending(0)] == [51]


def test_a_full_disk_delays_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdl.agent.report_log.RETRY_S", 0.01)
    real, full = os.write, True

    def write(fd: int, data: Any) -> int:
        if not full:
            return real(fd, data)
        real(fd, bytes(data)[:5])  # as much as there was room for
        raise OSError(errno.ENOSPC, "No space left on device")

    async def act(log: ReportLog) -> None:
        nonlocal full
        monkeypatch.setattr(os, "write", write)
        log.report(Noted(7, 2, 1, "n1", text="kept"), KEY, 1)
        await until_async(lambda: log._failing_since is not None, "the failure")
        assert log.pending(0) == [], "what is not on the disk is not sent"
        assert not log.settled
        full = False
        await log._added({})  # with it comes the news of the trouble, which is written next

    with_log(path, act)
    kinds = [each.kind for each in read(path).pending(0)]
    assert kinds[:2] == ["Noted", "TroubleSeen"]


def test_age_is_of_this_boot(path: Path) -> None:
    async def act(log: ReportLog) -> None:
        log.report(Noted(7, 2, 1, "n1"), KEY, 1, at=0.5)
        log.report(Noted(7, 2, 1, "n1"), KEY, 2, at=-1.0)

    ages = [each.body["age_s"] for each in with_log(path, act).pending(0)]
    assert ages[0] > 1
    assert ages[1] == 0


NAMES = supervisor_link.Names(job=7, incarnation=2, membership=1, node="n1")


@pytest.mark.parametrize(
    ("record", "gate", "hint"),
    [
        ({"code": 0, "signal": None}, False, None),
        ({"code": 1, "signal": None, "oom": True}, False, Cause.OUT_OF_MEMORY),
        ({"code": 78, "signal": None, "attached": True}, False, Cause.INFRASTRUCTURE),
        ({"code": 78, "signal": None, "attached": False}, False, None),
        ({"code": 75, "signal": None, "stale": True}, False, Cause.INFRASTRUCTURE),
        ({"code": 1, "signal": None, "save_failed": True, "save_errno": errno.ENOSPC}, False, Cause.INFRASTRUCTURE),
        ({"code": 1, "signal": None, "save_failed": True, "save_errno": errno.EACCES}, False, None),
        ({"code": 1, "signal": None, "save_failed": True, "save_errno": errno.EBADMSG}, False, Cause.INFRASTRUCTURE),
        ({"code": 0, "signal": None, "save_failed": True, "save_errno": errno.ENOSPC}, False, None),
        ({"code": 73, "signal": None, "save_failed": False, "save_errno": errno.EIO}, False, Cause.INFRASTRUCTURE),
        ({"code": 1, "signal": None, "save_failed": True, "save_errno": errno.ESTALE}, False, Cause.INFRASTRUCTURE),
        ({"code": 126, "signal": None, "node_fault": True}, False, Cause.INFRASTRUCTURE),
        ({"code": 0, "signal": None}, True, Cause.INFRASTRUCTURE),
        ({"code": 0, "signal": None, "ended_by": "suspend"}, True, None),
        ({"code": None, "signal": "SIGKILL"}, False, None),
    ],
)
def test_what_an_exit_says(record: dict[str, Any], gate: bool, hint: Cause | None) -> None:
    event = supervisor_link.exit_of({"type": "exit", **record}, NAMES, None, gate)
    assert (event.code, event.signal, event.hint) == (record["code"], record["signal"], hint)
    ours = supervisor_link.exit_of({"type": "exit", **record}, NAMES, (Cause.INFRASTRUCTURE, "ours"), gate)
    assert (ours.hint, ours.detail) == (Cause.INFRASTRUCTURE, "ours")
    stale = record.get("node_fault", False) or record.get("save_errno") in (errno.EIO, errno.ESTALE)
    assert event.node_fault == stale, "of a full disk nobody knows whose it is"


def test_progress_is_told_once() -> None:
    progress = supervisor_link.LatestProgress()
    assert progress.report(NAMES) is None
    progress.take({"type": "progress", "step": 4, "total": 9})
    assert progress.report(NAMES) == Progressed(7, 2, 1, "n1", step=4, total=9)
    assert progress.report(NAMES) is None
    with pytest.raises(ValueError, match="step"):
        progress.take({"type": "progress", "step": "4"})


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("SLURM_JOB_ID", True),
        ("LSB_JOBID", True),
        ("PMI_RANK", True),
        ("PMIX_NAMESPACE", True),
        ("OMPI_COMM_WORLD_RANK", True),
        ("HPCDL_HOME", True),
        ("PATH", False),
        ("PMAP", False),
        ("LSF_BINDIR", False),
    ],
)
def test_what_is_kept_from_trainers(name: str, gone: bool) -> None:
    assert scrubbed(name) is gone


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:30 / /home rw - nfs4 server:/home rw
24 23 0:31 / /home/scratch rw - tmpfs tmpfs rw
25 22 0:32 / /lustre\\040fs rw - lustre x rw
26 22 0:33 / /fuse rw - fuse.sshfs x rw
"""


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/var/x", True),
        ("/home/me", False),
        ("/home/scratch/me", True),
        ("/homes", True),
        ("/lustre fs/me", False),
        ("/fuse/a", False),
    ],
)
def test_which_file_systems_are_local(path: str, local: bool) -> None:
    assert folder.is_local(Path(path), MOUNTS) is local


def test_tags_of_ours() -> None:
    assert agent._key("i:7:2:n1", "i", "n1") == KEY
    assert agent._key("i:7:2:n1:0a1b", "i", "n1") == KEY, "with the job's identity"
    assert agent._key("i:7:2:n1x", "i", "n1") is None
    assert agent._key("i:7:2:n2", "i", "n1") is None
    assert agent._key("i:a:2:n1", "i", "n1") is None
    assert agent._key("i:7", "i", "n1") is None
