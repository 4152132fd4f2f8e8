"""Checkpoints in two tiers, by real supervisors and trainers: saved on the node, drained to the folder that all see."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.checkpoint_drain import CheckpointDrain
from hpcdl.agent.supervisor.claim import write_claim
from hpcdl.agent.supervisor.packets import SavedPacket
from hpcdl.agent.supervisor.start_file import Start
from hpcdl.trainer import checkpoints
from tests.agent.conftest import ROOT, Agent
from tests.support.waiting import until
from tests.trainer.preloaded import PLAIN

# The supervisor, whose drain waits between what it has copied and the marker for as long as a file is there.
HELD = """
import os, sys, time
from hpcdl.agent.supervisor.supervisor import main
from hpcdl.trainer import checkpoints
copy = checkpoints._copy
def held(source, to):
    copy(source, to)
    open(os.environ["HELD"] + ".seen", "a").close()
    while os.path.exists(os.environ["HELD"]):
        time.sleep(0.01)
checkpoints._copy = held
sys.exit(main(sys.argv[1:]))
"""

# It stands at STAND until it is to suspend, or the file GO is there; what it saves is what it has counted.
TRAINER = """
import json, os, sys, time
import hpcdl.trainer as hpcdl
total, every, stand = 60, 10, int(os.environ["STAND"])
session = hpcdl.attach()
state = {"sum": 0, "at": None}
def save(folder):
    if os.environ.get("FULL") and os.environ["FULL"] in str(folder):
        raise OSError(28, "No space left on device", str(folder))
    (folder / "state").write_text(json.dumps(state))
def load(folder):
    state.update(json.loads((folder / "state").read_text()))
    print("resumed from", folder, flush=True)
for step in hpcdl.steps(total, save=save, load=load, every=every):
    state["sum"] += step
    if step == stand:
        print("stands", flush=True)
        while not (os.path.exists(os.environ["GO"]) or session.should_suspend()):
            time.sleep(0.01)
print("sum", state["sum"], flush=True)
"""


class Site:
    """A node-local and a shared folder, and attempts of one job on nodes that have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.hold, self.go = folder / "hold", folder / "go"
        self.agents: list[Agent] = []

    def local(self, node: str) -> Path:
        return self.folder / node / f"hpcdl-{os.geteuid()}" / "i-7"

    def attempt(self, number: int, node: str = "n1", script: str = TRAINER, stand: int = 25, **more: Any) -> Agent:
        base = self.folder / f"attempt{number}"
        base.mkdir()
        (self.folder / node).mkdir(exist_ok=True)
        agent = Agent(base)
        self.agents.append(agent)
        agent.tag = f"i{self.folder.name}-{os.getpid()}:7:{number}:{node}"
        agent.program = ("-c", HELD)
        (base / "trainer.py").write_text(script)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HPCDL_JOB": "7", "HPCDL_NODE": node}
        env |= {"HPCDL_INCARNATION": str(number), "HPCDL_MEMBERSHIP": "1", "HPCDL_IDENTITY": "this"}
        env |= {"HPCDL_CHECKPOINT_DIR": str(self.shared), "STAND": str(stand), "GO": str(self.go), **PLAIN}
        order: dict[str, Any] = {"argv": (sys.executable, "-S", str(base / "trainer.py")), "identity": "this"}
        order |= {"checkpoint_dir": str(self.shared), "local_checkpoint_dir": str(self.local(node)), "node": node}
        env |= more.pop("env", {})
        agent.write(incarnation=number, env=env, **(order | more))
        os.environ["HELD"] = str(self.hold)
        agent.spawn()
        return agent

    def held(self) -> None:
        """Returns once a drain has copied, and stands before its marker."""
        until(self.hold.with_suffix(".seen").exists, "a drain")

    def steps(self, folder: Path) -> list[int]:
        return [each.step for each in checkpoints.complete(folder)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        os.environ.pop("HELD", None)
        for agent in site.agents:
            agent.close()


def test_training_goes_on_while_its_checkpoint_is_drained(site: Site) -> None:
    site.hold.touch()
    agent = site.attempt(2)
    agent.printed("stands")  # the saves of steps 10 and 20 have returned
    site.held()
    assert agent.of("saved") == []
    assert site.steps(site.shared) == []
    local = site.local("n1")
    assert 20 in site.steps(local)
    assert stat.S_IMODE(local.stat().st_mode) == stat.S_IMODE(local.parent.stat().st_mode) == 0o700
    site.hold.unlink()
    record = agent.wait("saved", step=20)
    assert record["path"] == str(checkpoints.at(site.shared, 20, 2).path)
    assert site.steps(site.shared)[0] == 20
    site.go.touch()
    assert agent.exit()["code"] == 0
    assert site.steps(site.shared)[0] == 60 == agent.of("saved")[-1]["step"]
    assert not local.exists()
    assert f"sum {sum(range(60))}" in agent.output()


def test_the_exit_of_a_suspended_trainer_waits_for_the_drain(site: Site) -> None:
    agent = site.attempt(2)
    agent.wait("saved", step=20)
    agent.printed("stands")
    site.hold.with_suffix(".seen").unlink()
    site.hold.touch()
    agent.connect().send("suspend", grace_s=600)
    site.held()
    trainer = agent.wait("started")["pid"]
    until(lambda: not os.path.exists(f"/proc/{trainer}"), "the end of the trainer")
    assert agent.of("exit") == []
    site.hold.unlink()
    record = agent.exit()
    assert (record["code"], record["ended_by"], record["save_failed"]) == (0, "suspend", False)
    saved = agent.of("saved")[-1]
    assert saved["final"]
    assert site.steps(site.shared)[0] == saved["step"] == 26
    assert not site.local("n1").exists()
    second = site.attempt(3, "n2")
    site.go.touch()
    assert second.exit()["code"] == 0
    assert f"resumed from {checkpoints.at(site.shared, 26, 2).path}" in second.output()
    assert f"sum {sum(range(60))}" in second.output()


def test_a_drain_that_outlasts_the_grace_period(site: Site) -> None:
    agent = site.attempt(2)
    agent.wait("saved", step=20)
    agent.printed("stands")
    site.hold.touch()
    agent.connect().send("suspend", grace_s=600)
    trainer = agent.wait("started")["pid"]
    until(lambda: not os.path.exists(f"/proc/{trainer}"), "the end of the trainer")
    agent.clients[0].send("suspend", grace_s=0.2)
    record = agent.exit()
    assert (record["code"], record["ended_by"]) == (0, "suspend")
    assert [each["step"] for each in agent.of("saved")][-1] == 20 == site.steps(site.shared)[0]
    assert any("on this node alone" in each["text"] for each in agent.of("note"))
    assert site.steps(site.local("n1"))[0] == 26
    site.hold.unlink()
    site.go.touch()
    second = site.attempt(3)  # here again
    assert second.exit()["code"] == 0
    assert f"resumed from {checkpoints.at(site.local('n1'), 26, 2).path}" in second.output()
    assert f"sum {sum(range(60))}" in second.output()
    assert site.steps(site.shared)[0] == 60


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_kill_9_of_a_supervisor_in_the_middle_of_a_drain(site: Site, node: str) -> None:
    agent = site.attempt(2, stand=15)
    agent.wait("saved", step=10)
    site.hold.with_suffix(".seen").unlink()
    site.hold.touch()
    site.go.touch()
    site.held()  # of step 20 or later
    assert agent.supervisor is not None
    agent.supervisor.kill()
    agent.supervisor.wait()
    until(lambda: not processes.tagged(agent.tag), "the end of its trainer")
    newest = site.steps(site.local("n1"))[0]
    assert newest >= 20
    assert site.steps(site.shared) == [10]
    site.hold.unlink()
    second = site.attempt(3, node)
    assert second.exit()["code"] == 0
    found = checkpoints.at(site.local("n1"), newest, 2) if node == "n1" else checkpoints.at(site.shared, 10, 2)
    assert f"resumed from {found.path}" in second.output()
    assert f"sum {sum(range(60))}" in second.output()
    assert site.steps(site.shared)[0] == 60
    assert not list(site.shared.glob(".tmp-*"))


def test_a_node_that_is_lost_costs_what_was_not_drained(site: Site) -> None:
    agent = site.attempt(2)
    agent.wait("saved", step=20)
    agent.printed("stands")
    assert agent.supervisor is not None
    agent.supervisor.kill()
    agent.supervisor.wait()
    until(lambda: not processes.tagged(agent.tag), "the end of its trainer")
    for path in sorted((site.folder / "n1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    site.go.touch()
    second = site.attempt(3)
    assert second.exit()["code"] == 0
    assert f"resumed from {checkpoints.at(site.shared, 20, 2).path}" in second.output()
    assert f"sum {sum(range(60))}" in second.output()


def test_a_full_disk_of_the_node_means_straight_to_the_shared_folder(site: Site) -> None:
    site.go.touch()
    agent = site.attempt(2, env={"FULL": str(site.local("n1"))})
    assert agent.exit()["code"] == 0
    assert site.steps(site.shared)[0] == 60
    assert agent.output().count("takes none") == 1
    assert [each["step"] for each in agent.of("save_failed")] == [10]
    assert [each["step"] for each in agent.of("saved")] == [10, 20, 30, 40, 50, 60]


def test_no_folder_on_the_node_means_straight_to_the_shared_folder(site: Site) -> None:
    site.go.touch()
    agent = site.attempt(2, local_checkpoint_dir=str(site.folder / "none" / "hpcdl-0" / "i-7"))
    assert agent.exit()["code"] == 0
    assert site.steps(site.shared)[0] == 60
    assert "straight to" in agent.of("note")[0]["text"]


def test_the_end_of_training_that_cannot_be_drained_is_no_success(site: Site) -> None:
    site.go.touch()
    broken = TRAINER + "os.rename(os.environ['HPCDL_CHECKPOINT_DIR'], os.environ['GO'] + '.away')\n"
    broken += "open(os.environ['HPCDL_CHECKPOINT_DIR'], 'w').close()\n"
    site.hold.touch()
    agent = site.attempt(2, script=broken)
    site.held()
    until(site.shared.is_file, "a folder that is none any more")
    site.hold.unlink()
    record = agent.exit()
    assert (record["code"], record["ended_by"], record["save_failed"]) == (73, None, True)
    assert "this node alone" in record["detail"]
    assert site.steps(site.local("n1"))[0] == 60


SHARDS = TRAINER.replace(
    "for step in hpcdl.steps(total, save=save, load=load, every=every):",
    """from hpcdl.trainer.group.peers import agreement
from pathlib import Path
ranks = agreement(session)
def save(folder):
    if os.environ.get("FULL") and os.environ["FULL"] in str(folder) and session.rank == 1:
        raise OSError(28, "No space left on device", str(folder))
    (folder / f"state.{session.rank}").write_text(json.dumps(state))
def load(folder):
    state.update(json.loads((folder / f"state.{session.rank}").read_text()))
    print("resumed from", folder, flush=True)
for step in hpcdl.steps(total, save=save, load=load, every=every, ranks=ranks, together=ranks):""",
)


@pytest.mark.parametrize("full", [False, True])
def test_ranks_of_a_node_write_one_checkpoint_there(site: Site, full: bool) -> None:
    def argv(number: int) -> tuple[str, ...]:
        script = str(site.folder / f"attempt{number}" / "trainer.py")
        return (sys.executable, "-S", "-m", "hpcdl.trainer.ranks", "2", "--", sys.executable, "-S", script)

    env = {"FULL": str(site.local("n1"))} if full else {}
    agent = site.attempt(2, script=SHARDS, argv=argv(2), env=env)
    agent.wait("saved", step=20)
    agent.connect().send("suspend", grace_s=600)
    assert agent.exit()["ended_by"] == "suspend"
    assert agent.output().count("takes none") == int(full)
    newest = checkpoints.complete(site.shared)[0]
    assert newest.step == agent.of("saved")[-1]["step"]
    assert {each.name for each in newest.path.iterdir()} == {"state.0", "state.1", checkpoints.MARKER}
    site.go.touch()
    second = site.attempt(3, "n2", script=SHARDS, argv=argv(3))
    assert second.exit()["code"] == 0
    assert second.output().count(f"resumed from {newest.path}") == 2
    assert second.output().count(f"sum {sum(range(60))}") == 2


# the drain by itself


class Drained:
    """A drain in this process, of a folder that stands for the node's."""

    def __init__(self, folder: Path) -> None:
        site = folder / "local"
        site.mkdir()
        self.local, self.shared = site / "hpcdl-0" / "i-7", folder / "shared"
        self.saved: list[SavedPacket] = []
        self.failed: list[tuple[int, int | None]] = []
        self.notes: list[str] = []
        names: dict[str, Any] = {"tag": "i:7:2:n1", "job": 7, "incarnation": 2, "membership": 1, "node": "n1"}
        names |= {"checkpoint_dir": str(self.shared), "local_checkpoint_dir": str(self.local)}
        start = Start(**names, argv=("true",), cwd="/", env={}, log="")
        failed: Callable[[int, OSError], None] = lambda step, error: self.failed.append((step, error.errno))  # noqa: E731
        self.drain = CheckpointDrain(start, self.saved.append, failed, self.notes.append)
        self.drain.open()
        checkpoints.claim(self.shared, 7, 2, 1, "i:7:2:n1")
        self.now = 0.0

    def save(self, step: int, incarnation: int = 2, final: bool = False) -> Path:
        tier = checkpoints.Tier(self.shared, 2, "i:7:2:n1", 1, local=True)
        with checkpoints.write(self.local, step, incarnation, tier=tier) as folder:
            (folder / "state").write_text(str(step))
        path = checkpoints.at(self.local, step, incarnation).path
        self.drain.add(SavedPacket(2, 1, step, str(path), 0.1, final), self.now)
        return path

    def until_idle(self) -> None:
        def idle() -> bool:
            self.now += 0.1
            self.drain.look(self.now)
            return not self.drain.busy

        until(idle, "the end of the drain")


@pytest.fixture
def drained(tmp_path: Path) -> Drained:
    return Drained(tmp_path)


def test_only_the_newest_is_drained_and_recorded(drained: Drained) -> None:
    drained.save(10)
    drained.save(20)
    assert [each.step for each in checkpoints.complete(drained.local)] == [20]
    drained.until_idle()
    assert [each.step for each in drained.saved] == [20]
    drained.drain.add(SavedPacket(2, 1, 20, str(checkpoints.at(drained.local, 20, 2).path), 0.1, True), drained.now)
    assert [(each.step, each.final) for each in drained.saved] == [(20, False), (20, True)]
    assert drained.saved[-1].path == str(checkpoints.at(drained.shared, 20, 2).path)


def test_what_is_being_drained_stays_when_newer_ones_are_saved(
    drained: Drained, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = checkpoints._copy

    def slow(source: Path, to: Path) -> None:
        if source.name.startswith("step-000000000010"):
            for step in (20, 30, 40):
                drained.save(step)
            assert sorted(each.step for each in checkpoints.complete(drained.local)) == [10, 40]
        copy(source, to)

    monkeypatch.setattr(checkpoints, "_copy", slow)
    drained.save(10)
    drained.until_idle()
    assert [each.step for each in drained.saved] == [10, 40]
    assert [each.step for each in checkpoints.complete(drained.shared)] == [40, 10]
    assert drained.failed == []


def test_a_copy_that_is_not_what_was_written_never_counts(drained: Drained, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = checkpoints._copy

    def wrong(source: Path, to: Path) -> None:
        copy(source, to)
        (to / "state").write_text("99")

    monkeypatch.setattr(checkpoints, "_copy", wrong)
    drained.save(10)
    drained.until_idle()
    assert drained.failed == [(10, errno.EIO)]
    assert checkpoints.complete(drained.shared) == []
    monkeypatch.undo()
    drained.drain.claimed()
    assert not drained.drain.over(drained.now, None)  # at the end it is tried again
    until(lambda: drained.drain.over(drained.now, None), "the last look")
    assert [each.step for each in checkpoints.complete(drained.shared)] == [10]
    drained.drain.close()
    assert not drained.local.exists()


@pytest.mark.parametrize("harm", ["unreadable", "short", "removed"])
def test_one_that_was_saved_and_is_not_there_is_no_success(
    drained: Drained, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    complete = checkpoints.complete
    drained.drain.claimed()
    drained.save(10)
    drained.until_idle()
    path = drained.save(20, final=True)
    if harm == "unreadable":  # as by an error of the disk
        monkeypatch.setattr(checkpoints, "complete", lambda directory: complete(directory)[1:])
    elif harm == "short":
        (path / "state").write_text("")
    else:
        shutil.rmtree(path)

    def over() -> bool:
        drained.now += 0.1
        return drained.drain.over(drained.now, None)

    until(over, "the last try")
    assert set(drained.failed) == {(20, errno.EIO)}
    assert drained.drain.error is not None
    drained.drain.close()
    assert path.exists() == (harm != "removed")
    assert [each.step for each in complete(drained.shared)] == [10]


def test_a_stale_attempt_drains_nothing(drained: Drained) -> None:
    drained.save(10)
    write_claim(str(drained.shared), 7, 3, "i:7:3:n2")
    drained.until_idle()
    assert drained.failed == [(10, errno.ESTALE)]
    assert checkpoints.complete(drained.shared) == []


def test_what_an_earlier_attempt_left_is_drained(drained: Drained) -> None:
    path = drained.local / "step-000000000010.i1"
    with checkpoints.write(drained.local, 10, 1) as folder:
        (folder / "state").write_text("10")
        (folder / "part").mkdir(0o750)
        (folder / "part" / "link").symlink_to("../state")
        (folder / "state").chmod(0o640)
    drained.drain.claimed()
    drained.until_idle()
    copy = checkpoints.at(drained.shared, 10, 1).path
    assert drained.saved == []
    assert len(drained.notes) == 1
    assert checkpoints.damage(checkpoints.at(drained.shared, 10, 1)) == ""
    assert os.readlink(copy / "part" / "link") == "../state"
    assert stat.S_IMODE((copy / "state").stat().st_mode) == 0o640
    assert stat.S_IMODE((copy / "part").stat().st_mode) == 0o750
    assert stat.S_IMODE((copy / "COMPLETE").stat().st_mode) == stat.S_IMODE((path / "COMPLETE").stat().st_mode)


def test_what_an_earlier_attempt_left_half_drained_goes(drained: Drained) -> None:
    with checkpoints.write(drained.local, 60, 1) as folder:  # its last one: nothing is left to train
        (folder / "state").write_text("60")
    half = drained.shared / f".tmp-{checkpoints.at(drained.shared, 50, 1).path.name}-1"
    half.mkdir()
    drained.drain.claimed()
    drained.until_idle()
    assert [each.step for each in checkpoints.complete(drained.shared)] == [60]
    assert not half.exists()


def test_a_newer_one_in_the_shared_folder_is_left_alone(drained: Drained) -> None:
    with checkpoints.write(drained.shared, 20, 2, tag="i:7:2:n1", membership=1) as folder:
        (folder / "state").write_text("20")
    drained.save(10)
    drained.until_idle()
    assert [each.step for each in checkpoints.complete(drained.shared)] == [20]
    assert (drained.saved, drained.failed) == ([], [])


def test_a_save_that_goes_straight_there_meanwhile_is_left_alone(drained: Drained) -> None:
    drained.save(10)
    with checkpoints.write(drained.shared, 20, 2, tag="i:7:2:n1", membership=1) as folder:
        drained.until_idle()
        (folder / "state").write_text("20")
    assert [each.step for each in checkpoints.complete(drained.shared)] == [20, 10]
    assert [each.step for each in drained.saved] == [10]
    assert not list(drained.shared.glob(".tmp-*"))


def test_folders_of_jobs_long_gone_are_removed(drained: Drained) -> None:
    old, new = drained.local.parent / "i-5", drained.local.parent / "i-6"
    old.mkdir()
    new.mkdir()
    (old / "left").write_text("")
    os.utime(old, (0, 0))
    drained.drain.open()
    assert not old.exists()
    assert new.exists()
