"""A daemon on a copy of a home: what the original has under way is neither carried out nor taken back."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcdl.allocation.daemon import DaemonProcess
from hpcdl.config.settings import load_config
from hpcdl.core.model import events as ev
from hpcdl.core.model.commands import Request
from hpcdl.core.model.incarnation import Cause, Placement, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.pilot import PilotSpec
from hpcdl.core.model.world import GpuInfo, validate
from hpcdl.daemon.daemon import Daemon
from hpcdl.daemon.identity import keep_place, load_identity
from hpcdl.ledger import SqliteJournal

ON_N1 = Placement((Share("n1", (0,)),))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Job 1 is to start on n1, whose agent has not taken that; a pilot waits, and another is to be submitted."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    spec = PilotSpec(1, 600.0, "killable", 1, ("n7",), "an idle node")
    events: tuple[ev.Event, ...] = (
        ev.DaemonStarted(1, "1", 1, "h", "a" * 32),
        ev.NodeJoined("n1", (GpuInfo(0, "GPU-0"),), log_id="x"),
        ev.JobSubmitted(1, JobSpec(("true",), "j"), "r"),
        ev.StartRequested(1, 1, ("n1",), ON_N1, "b" * 16),
        ev.PilotRequested(1, spec),
        ev.PilotSubmitted(1, "771"),
        ev.PilotRequested(2, spec),
    )
    with SqliteJournal(home / "ledger.sqlite") as journal:
        journal.append([(1.7e9, event) for event in events], [Request("start", "n1", 1, 1, nodes=("n1",))])
    load_identity(home, 1.7e9)
    keep_place(home)
    return home


@contextmanager
def opened(home: Path, moved: bool = False) -> Iterator[Daemon]:
    daemon = Daemon(home, load_config(home), None, local_agent=False, moved=moved)
    try:
        yield daemon
        validate(daemon.controller.world)
    finally:
        daemon.journal.close()
        daemon.lease.release()


def test_a_copy_gives_up_what_the_original_has_under_way(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    with opened(copy) as daemon:
        world = daemon.controller.world
        job = world.jobs[1]
        assert (job.held, job.held_after, job.live) == (True, f"this home was copied from {home}", ())
        assert job.last.cause is Cause.NODE_LOST
        assert daemon.journal.pending() == []
        assert world.nodes["n1"].lost
        assert all(pilot.over for pilot in world.pilots.values())
        assert job.nonces == ("b" * 16,)
    with opened(copy, moved=True) as daemon:
        assert not daemon.controller.world.jobs[1].held


@pytest.mark.parametrize("how", ["moved", "said to be", "put back"])
def test_what_goes_on_carries_it_out(home: Path, tmp_path: Path, how: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    if how == "moved":
        shutil.rmtree(copy)
        home.rename(copy)
    elif how == "put back":
        shutil.rmtree(home)
        shutil.copytree(copy, home)
        copy = home
    with opened(copy, moved=how == "said to be") as daemon:
        world = daemon.controller.world
        assert [each.nonce for each in world.jobs[1].live] == ["b" * 16]
        assert not world.jobs[1].held
        assert [each.kind for each in daemon.journal.pending()] == ["start"]
        assert not any(pilot.over for pilot in world.pilots.values())
        assert world.nonce not in ("", "a" * 32), "each daemon has its own"
        raised = [each.event for each in daemon.journal.read(0, 99) if isinstance(each.event, ev.IdsRaised)]
        assert [each.detail for each in raised] == (
            [f"{home} was put back from a copy: its ledger ends with event 7"] if how == "put back" else []
        )


def test_a_daemon_of_an_allocation_says_so_and_goes_on_where_it_is_told(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for moved in (False, True):
        shutil.copytree(home, copy)
        said: list[str] = []
        daemon = DaemonProcess(copy, None, said.append, moved=moved)
        daemon.start()
        try:
            apart = f"{copy} is a copy of {home}, and begins apart from it; 1 unfinished job is held: hpcdl resume JOB"
            assert [each[: len(apart)] for each in said] == ([] if moved else [apart])
        finally:
            daemon.kill()
        shutil.rmtree(copy)
