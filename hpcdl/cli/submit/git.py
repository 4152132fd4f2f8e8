"""What is checked out where a job is submitted: its commit and branch, and whether files were changed.

Asked of git, in milliseconds, or not at all: without hooks and monitors, without writing anything, and never for long.
No git, a git that refuses (`safe.directory`), a folder in no work tree: then nothing is known, and nothing is said.
`subprocess` takes longer to import than git takes to answer, so the process is started by hand.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence

from hpcdl.core.model.job import GitState
from hpcdl.wire.readable import readable

STATUS_S = 0.25
"""A big work tree takes longer to be looked through: whether it is dirty is then unknown."""

HEAD_S = 0.25
"""The same for its commit."""

ALL_S = 1.0
"""So long all folders of one submit are looked at; of the rest nothing is known."""

MOST_BYTES = 1 << 16
REFUSED = 128
"""git's exit code for what it will not do: no repository, no commit yet, or one of somebody else."""

_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.bareRepository=explicit")
_STATUS = ("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--no-renames", "--untracked-files=no",
           "--ignore-submodules=all")  # fmt: skip
_HEAD = ("rev-parse", "HEAD", "--abbrev-ref", "HEAD")


class WorkTrees:
    """The work trees of one submit: each folder is looked at once."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._known: dict[str, GitState | None] = {}
        self._spent_s = 0.0

    def of(self, folder: str) -> GitState | None:
        """What is checked out in a folder; None where that is not known."""
        if folder not in self._known:
            began = time.monotonic()
            self._known[folder] = None if self._spent_s >= ALL_S else self._look(folder)
            self._spent_s += time.monotonic() - began
        return self._known[folder]

    def _look(self, folder: str) -> GitState | None:
        ours = _repository(folder)
        git = None if ours is None else _program("git", self._environ.get("PATH") or os.defpath)
        if git is None:
            return None
        env = {name: value for name, value in self._environ.items() if _kept(name)}
        env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
        try:
            if ours:  # what another user configured there could run programs of his as us, in an old git
                code, lines = _ask((git, "-C", folder, *_SAFE, *_STATUS), env, STATUS_S)
                found = _from_status(lines)
                if found is not None or code == REFUSED:
                    return found
            code, lines = _ask((git, "-C", folder, *_SAFE, *_HEAD), env, HEAD_S)
            return GitState(lines[0], _branch(lines[1])) if code == 0 and len(lines) == 2 else None
        except (OSError, ValueError):
            return None


def _kept(name: str) -> bool:
    """Whether git may see a variable: what names another repository, or has it trace, is not for it."""
    return not name.startswith("GIT_") or name.startswith("GIT_CONFIG")


def _repository(folder: str) -> bool | None:
    """Whether the repository that a folder is in is ours; None where it is in none."""
    here = os.path.abspath(folder)
    while True:
        try:
            return os.lstat(os.path.join(here, ".git")).st_uid == os.geteuid()
        except OSError:
            above = os.path.dirname(here)
            if above == here:
                return None
            here = above


def _program(name: str, path: str) -> str | None:
    """The program of that name on an absolute folder of PATH."""
    for folder in path.split(os.pathsep):
        found = os.path.join(folder, name)
        if os.path.isabs(folder) and os.access(found, os.X_OK) and not os.path.isdir(found):
            return found
    return None


def _from_status(lines: Sequence[str]) -> GitState | None:
    told = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and line.count(" ") > 1)
    commit, branch = told.get("branch.oid", ""), told.get("branch.head")
    if branch is None or commit == "(initial)":
        return None
    return GitState(commit, _branch(branch), any(not line.startswith("#") for line in lines))


def _branch(name: str) -> str:
    return "" if name in ("HEAD", "(detached)") else name


def _ask(argv: tuple[str, ...], env: Mapping[str, str], limit_s: float) -> tuple[int | None, list[str]]:
    """git's exit code (None: not waited for), and its output as far as it matters; nothing where it was late."""
    until = time.monotonic() + limit_s
    read, write = os.pipe()
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        try:
            pid = os.posix_spawn(argv[0], argv, env, file_actions=actions, setpgroup=0)
        finally:
            os.close(write)
        code, said = None, b""
        try:
            ended = False
            while not (ended or _changes(said) or len(said) > MOST_BYTES):
                if not readable([read], max(0.0, until - time.monotonic())):
                    return None, []
                piece = os.read(read, 1 << 14)
                said, ended = said + piece, not piece
            code = _end_of(pid, until) if ended else None
        finally:
            if code is None:
                os.killpg(pid, signal.SIGKILL)  # ours, and not reaped
                os.waitpid(pid, os.WNOHANG)  # one that hangs in the kernel is not waited for
        return code, said.decode("utf-8", "replace").splitlines()
    finally:
        os.close(read)


def _changes(said: bytes) -> bool:
    """Whether a status has come to the changed files: the first one says it all."""
    return said.startswith(b"#") and any(line and line[:1] != b"#" for line in said.split(b"\n")[:-1])


def _end_of(pid: int, until: float) -> int | None:
    while True:
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.0005)
