"""Checkpoint folders of jobs that saved nothing: which go, and which claims stay."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import JobState
from hpcdl.daemon import unsaved_folders
from hpcdl.daemon.unsaved_folders import UnsavedFolders, all_gone
from hpcdl.ledger.trim import remove_unsaved
from tests.report.story import placed
from tests.support.model_cluster import Cluster
from tests.support.model_parts import Conduct


class Loop:
    """The controller's thread, in this one. `before_call`: what it does before its turn comes to a call."""

    def __init__(self, model: Cluster) -> None:
        self.model = model
        self.before_call: list[cmd.Command] = []
        self.busy = False

    @property
    def world(self) -> Any:
        return self.model.world

    def events(self, after: int, limit: int, job: int) -> list[ev.Recorded]:
        return self.model.journal.read(after, limit, job)

    def call(self, function: Any) -> "Future[Any]":
        if self.busy:
            raise TimeoutError
        if self.before_call:
            self.model.send(*self.before_call)
        done: Future[Any] = Future()
        done.set_result(function(self.model.controller))
        return done


def submitted(model: Cluster, *specs: JobSpec) -> None:
    model.send(cmd.Submit(specs, "r", nonce="n"))


def claimed(home: Path, job: int, identity: str, *more: str) -> Path:
    folder = home / "checkpoints" / str(job)
    folder.mkdir(mode=0o700, parents=True)
    for each in (home / "checkpoints", home):
        each.chmod(0o700)
    for name in ("claim.json", *more):
        (folder / name).touch(mode=0o600)
    (folder / "claim.json").write_text(json.dumps({"identity": identity}))
    return folder


@pytest.fixture
def model() -> Cluster:
    return Cluster({"n1": 4})


def test_what_ended_without_a_checkpoint_leaves_no_folder(tmp_path: Path, model: Cluster) -> None:
    submitted(model, JobSpec(("a",), "a"), JobSpec(("b",), "b"), JobSpec(("c",), "c", checkpoint_dir="/mine"))
    one, two, three = (model.job(number).identity for number in (1, 2, 3))
    folders = [
        claimed(tmp_path, 1, one),
        claimed(tmp_path, 2, two, "step-000000000001.i1"),
        claimed(tmp_path, 3, three),
    ]
    elsewhere = claimed(tmp_path, 77, one)
    unsaved = UnsavedFolders(tmp_path, Loop(model))  # type: ignore[arg-type]
    unsaved.look()
    assert all(folder.exists() for folder in folders), "they are not finished"
    model.run_to_end()
    unsaved.look()
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert (folders[1] / "claim.json").exists()
    assert (elsewhere / "claim.json").exists(), "of a job that nobody knows"


@pytest.mark.parametrize("claim", ["another's", "of an earlier version", "damaged", "a link"])
def test_a_claim_that_is_not_the_jobs_stays(tmp_path: Path, model: Cluster, claim: str) -> None:
    """As of a job that was given this folder by --checkpoint-dir, and has saved nothing yet."""
    submitted(model, JobSpec(("a",), "a"))
    model.run_to_end()
    own = model.job(1).identity
    folder = claimed(tmp_path, 1, "another" if claim == "another's" else "" if claim != "a link" else own)
    if claim == "damaged":
        (folder / "claim.json").write_text("[" * 60_000)
    elif claim == "a link":
        (folder / "claim.json").rename(tmp_path / "kept.json")
        (folder / "claim.json").symlink_to(tmp_path / "kept.json")
    UnsavedFolders(tmp_path, Loop(model)).look()  # type: ignore[arg-type]
    assert (folder / "claim.json").exists()


def test_a_folder_that_is_a_link_stays(tmp_path: Path, model: Cluster) -> None:
    submitted(model, JobSpec(("a",), "a"))
    model.run_to_end()
    folder = claimed(tmp_path, 1, model.job(1).identity)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    UnsavedFolders(tmp_path, Loop(model)).look()  # type: ignore[arg-type]
    assert (folder / "claim.json").exists()


def test_what_cannot_be_listed_is_left(tmp_path: Path, model: Cluster) -> None:
    """Else a tick fails every ten seconds, with a traceback in the log."""
    (tmp_path / "checkpoints").touch()
    UnsavedFolders(tmp_path, Loop(model)).look()  # type: ignore[arg-type]
    assert (tmp_path / "checkpoints").is_file()


def test_without_any_folder_nothing_is_done(tmp_path: Path, model: Cluster) -> None:
    UnsavedFolders(tmp_path, Loop(model)).look()  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_retry_that_comes_first_keeps_the_folder_for_its_attempt(tmp_path: Path, model: Cluster) -> None:
    submitted(model, JobSpec(("a",), "a"))
    model.conduct[1] = Conduct(fails=[3])
    model.run_to_end()
    assert model.job(1).outcome is JobState.FAILED
    folder, loop = claimed(tmp_path, 1, model.job(1).identity), Loop(model)
    unsaved = UnsavedFolders(tmp_path, loop)  # type: ignore[arg-type]
    loop.before_call = [cmd.Retry(1)]
    unsaved.look()
    assert not model.job(1).finished
    assert (folder / "claim.json").exists()
    loop.before_call = []
    model.run_to_end()
    unsaved.look()
    assert not folder.exists()


def test_what_could_not_be_removed_is_removed_at_the_next_look(tmp_path: Path, model: Cluster) -> None:
    submitted(model, JobSpec(("a",), "a"))
    model.run_to_end()
    folder, loop = claimed(tmp_path, 1, model.job(1).identity), Loop(model)
    unsaved = UnsavedFolders(tmp_path, loop)  # type: ignore[arg-type]
    loop.busy = True
    unsaved.look()
    assert folder.exists()
    loop.busy = False
    unsaved.look()
    assert not folder.exists()


def test_one_folder_that_stays_keeps_no_other(
    tmp_path: Path, model: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    submitted(model, JobSpec(("a",), "a"), JobSpec(("a",), "a"))
    model.run_to_end()
    folders = [claimed(tmp_path, number, model.job(number).identity) for number in (1, 2)]

    def refuse(folder: Path) -> None:
        if folder.name == "1":
            raise PermissionError("it is another's")
        remove_unsaved(folder)

    monkeypatch.setattr(unsaved_folders, "remove_unsaved", refuse)
    UnsavedFolders(tmp_path, Loop(model)).look()  # type: ignore[arg-type]
    assert [folder.exists() for folder in folders] == [True, False]
    assert "job 1 is looked at again later: it is another's" in caplog.text


def test_a_part_that_nobody_saw_end_keeps_the_claim(tmp_path: Path) -> None:
    model = Cluster({"n1": 1, "n2": 1})
    submitted(model, JobSpec(("a",), "a", nodes=1))
    model.run(5.0)
    running = model.job(1).running
    assert running is not None
    model.disconnect(running.nodes[0])
    model.run_to_end()
    assert (model.job(1).outcome, model.job(1).last_incarnation) == (JobState.DONE, 2)
    folder = claimed(tmp_path, 1, model.job(1).identity)
    UnsavedFolders(tmp_path, Loop(model)).look()  # type: ignore[arg-type]
    assert (folder / "claim.json").exists(), "the first attempt may live on where nobody sees it"


def test_all_nodes_of_all_attempts_must_have_seen_the_end() -> None:
    def start(number: int, *nodes: str) -> ev.Event:
        return ev.StartRequested(1, number, nodes, None)

    def ended(number: int, node: str) -> ev.Event:
        return ev.Exited(1, number, 1, node)

    assert not all_gone([])
    assert all_gone([start(1, "n1", "n2"), ended(1, "n2"), ended(1, "n1")])
    assert not all_gone([start(1, "n1", "n2"), ended(1, "n2")])
    assert not all_gone([start(1, "n1"), start(2, "n2"), ended(2, "n2")])
    join = ev.JoinRequested(1, 1, placed([0], name="n2"))
    assert not all_gone([start(1, "n1"), join, ended(1, "n1")])
    assert all_gone([start(1, "n1"), join, ended(1, "n1"), ended(1, "n2")])
    assert not all_gone([start(1, "n1"), join, ended(1, "n2"), join, ended(1, "n1")]), "it came again"
