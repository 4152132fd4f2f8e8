"""What is checked out where a job is submitted: asked of git, safely and not for long."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdl.cli.submit import git as worktree
from hpcdl.cli.submit.git import WorkTrees
from hpcdl.core.model.job import GitState, JobSpec
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="there is no git here")


@pytest.fixture(autouse=True)
def no_variables_of_git(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("GIT_")]:
        monkeypatch.delenv(name)


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    assert GIT is not None
    done = subprocess.run(
        [GIT, "-C", str(folder), *who, *words], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clean work tree with one commit, and a folder in it."""
    folder = tmp_path / "project"
    (folder / "below").mkdir(parents=True)
    (folder / "train.py").write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@needs_git
def test_commit_branch_and_changes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(tree, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert WorkTrees().of(str(tree)) == WorkTrees().of(str(tree / "below")) == GitState(head, "main", False)
    (tree / "new.py").write_text("not known to git")
    assert WorkTrees().of(str(tree)) == GitState(head, "main", False)
    (tree / "train.py").write_text("x = 2\n")
    assert WorkTrees().of(str(tree)) == GitState(head, "main", True)
    monkeypatch.delenv("GIT_DIR")
    git(tree, "checkout", "-q", "--detach")
    assert WorkTrees().of(str(tree)) == GitState(head, "", True)


@needs_git
def test_nothing_of_the_repository_is_run_or_written(tree: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o700)
    git(tree, "config", "core.fsmonitor", str(trap))
    shutil.copy(trap, tree / ".git" / "hooks" / "post-index-change")
    os.utime(tree / "train.py", (1, 1))  # git looks into the file, and would keep what it finds
    before = (tree / ".git" / "index").read_bytes()
    found = WorkTrees().of(str(tree))
    assert found is not None
    assert (found.dirty, (tmp_path / "sprung").exists()) == (False, False)
    assert (tree / ".git" / "index").read_bytes() == before


def test_where_there_is_no_repository_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_spawn", lambda *_: pytest.fail("git was asked"))
    monkeypatch.setattr(worktree, "_repository", lambda folder: None if folder != "/gone" else True)
    assert WorkTrees().of(str(tmp_path)) is None
    assert WorkTrees({"PATH": f"relative:{tmp_path}"}).of("/gone") is None, "no git on absolute folders of PATH"


@needs_git
def test_without_a_commit_nothing_is_known(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert WorkTrees().of(str(tmp_path)) is None


def pretended(folder: Path, script: str) -> dict[str, str]:
    """An environment with such a git on PATH."""
    folder.mkdir()
    program = folder / "git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


HEAD = f"echo {'ab' * 20}; echo topic"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo refused >&2; exit 128", None),
        ("echo rubbish", None),
        ("exit 1", None),
        (f'case "$*" in *status*) exit 129;; *) {HEAD};; esac', GitState("ab" * 20, "topic")),
        (f"echo '# branch.oid {'ab' * 20}'; echo '# branch.head (detached)'", GitState("ab" * 20, "", False)),
        (f"echo '# branch.oid {'zz' * 20}'; echo '# branch.head main'", None),
        (f"echo '# branch.oid {'ab' * 20}'; echo '# branch.head x'; echo '1 .M N'; sleep 600",
         GitState("ab" * 20, "x", True)),
    ],
)  # fmt: skip
def test_what_git_says(tmp_path: Path, script: str, found: GitState | None) -> None:
    (tmp_path / ".git").mkdir()
    assert WorkTrees(pretended(tmp_path / "bin", script)).of(str(tmp_path)) == found


def test_a_tree_that_takes_long_has_a_commit_and_unknown_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worktree, "STATUS_S", 0.05)
    (tmp_path / ".git").mkdir()
    env = pretended(tmp_path / "bin", f'case "$*" in *status*) sleep 600;; *) {HEAD};; esac')
    assert WorkTrees(env).of(str(tmp_path)) == GitState("ab" * 20, "topic", None)
    monkeypatch.setattr(worktree, "HEAD_S", 0.05)
    assert WorkTrees(pretended(tmp_path / "hangs", "sleep 600")).of(str(tmp_path)) is None


def test_all_folders_of_a_submit_have_a_limit_and_each_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    env = pretended(tmp_path / "bin", f"echo asked >>{tmp_path}/asked; {HEAD}")
    trees = WorkTrees(env)
    monkeypatch.setattr(worktree, "ALL_S", 1e-9)
    assert [trees.of(str(tmp_path)) for _ in range(3)] == [GitState("ab" * 20, "topic")] * 3
    assert trees.of(str(tmp_path / "bin")) is None
    asked = (tmp_path / "asked").read_text()
    assert asked == "asked\nasked\n", "the status that is none, and the commit"


def test_of_another_users_repository_only_the_commit_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    env = pretended(tmp_path / "bin", f'case "$*" in *status*) touch {tmp_path}/sprung;; *) {HEAD};; esac')
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert WorkTrees(env).of(str(tmp_path)) == GitState("ab" * 20, "topic")
    assert not (tmp_path / "sprung").exists()


@needs_git
def test_a_submit_records_it_and_can_be_told_not_to(
    fake: FakeDaemon, hpcdl: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {"commit": git(tree, "rev-parse", "HEAD"), "branch": "main", "dirty": False}
    (tree / "jobs.yaml").write_text(f"jobs: [{{command: 'true'}}, {{command: 'true', cwd: {tmp_path}}}]")
    monkeypatch.chdir(tree)
    for words in (("--", "true"), ("--no-git", "--", "true"), ("--cwd", tmp_path, "--", "true")):
        assert hpcdl("submit", *words).code == 0
    assert hpcdl("submit", "--file", "jobs.yaml").code == 0
    monkeypatch.setenv("HPCDL_SUBMIT_GIT", "off")
    assert hpcdl("submit", "--", "true").code == 0
    bodies = [body for method, path, body in fake.requests if (method, path) == ("POST", "/v1/jobs")]
    assert [[job.get("git") for job in body["jobs"]] for body in bodies] == [
        *([expected], [None], [None], [expected, None], [None]),
    ]


def test_show_tells_it(fake: FakeDaemon, hpcdl: Run) -> None:
    state = {"commit": "0123456789abcdef" * 2 + "01234567", "branch": "main", "dirty": True}
    shown = []
    for more in ({}, {"branch": "", "dirty": False}, {"dirty": None}):
        fake.world.jobs = {1: row(1, spec={"git": state | more})}
        shown += [line for line in hpcdl("show", 1).out.splitlines() if line.startswith("git ")]
    assert [line.removeprefix("git").strip() for line in shown] == [
        "0123456789ab on main, with changed files",
        "0123456789ab",
        "0123456789ab on main, changed files not looked for in time",
    ]


@pytest.mark.parametrize("values", [("abc", ""), ("AB" * 20, ""), ("ab" * 20, "a\nb"), ("ab" * 20, "x" * 501)])
def test_what_is_no_state_is_refused(values: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"commit|branch"):
        JobSpec(("true",), "j", git=GitState(*values))
