"""The claim in a checkpoint folder: which attempt of which job may write there.

No checkpoint of another job is ever taken unless its user named that job, and an older attempt never replaces the claim
of a newer one. Numbers of attempts compare within a job only, and where a home was copied, two daemons have the same
job, each with newer attempts than the other: while an attempt of one lives, that of the other does not take the folder.
A claim names its supervisor for that, which renews the file's time (`ClaimBeat`), and the nonce of its start, which
only the home that made that has in its ledger. A trainer reads the claim again before each rename (hpcdl/trainer/).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from hpcdl.agent.supervisor import processes
from hpcdl.wire.private_files import write_all

NAME = "claim.json"
LIMIT = 65536  # bytes
MARKER_LIMIT = 64 << 20
LOCK_WAIT_S = 2.0
LOCK_POLL_S = 0.02
BEAT_S = 20.0
LIVE_S = 120.0
"""A claim that was not renewed for so long is that of a supervisor that is gone, on whichever machine it was."""
ANY = "any"
MARKER = "COMPLETE"
MARKERS_READ = 64  # of checkpoints, which are two in most folders
MOST = 10**9  # no attempt has a number that high
_CHECKPOINT = re.compile(r"step-\d{12,}\.i\d+")
_ALL_JOBS = re.compile(r"\.tmp-.*|claim\.json|from-start-\d+")  # what is no checkpoint of whoever claimed the folder


class Stale(Exception):
    """A newer incarnation, or another job, has claimed the folder, or one of another home's lives there; the message
    names it. Another attempt may do better, with a number above `claimed`, that of who has the folder."""

    def __init__(self, message: str, claimed: int) -> None:
        super().__init__(message)
        self.claimed = claimed


class Foreign(Exception):
    """The folder has checkpoints of another job, which this one may not take; the message is for the user."""


class ClaimOwner(NamedTuple):
    """Whose a folder is, as its claim or its checkpoints say. `tag`: instance:job:..., `identity`: of the job, `nonce`:
    of the start; "" where none is known."""

    tag: str
    identity: str = ""
    nonce: str = ""

    @property
    def job(self) -> str:
        """Its number, "" where it is not known."""
        return self.tag.split(":")[1] if ":" in self.tag else ""

    def is_of(self, other: ClaimOwner) -> bool:
        """Whether both are one job, also where its ledger was restored under a new instance; what was written by
        earlier versions has no identity, and its instance and number count."""
        if self.identity and other.identity:
            return self.identity == other.identity
        return _job_of(self.tag) == _job_of(other.tag)

    def may_take(self, other: ClaimOwner, continue_from: str) -> bool:
        """Whether this job may go on from that one's checkpoints."""
        if not other.tag or continue_from == ANY or self.is_of(other):
            return True
        same = self.tag.split(":")[0] == other.tag.split(":")[0]
        return same and bool(continue_from) and continue_from == other.job


def supervisor_here(node: str = "") -> dict[str, object]:
    """What names this process in a claim, on this machine, which is `node`."""
    pid = os.getpid()
    namespace = os.readlink("/proc/self/ns/pid")
    here: dict[str, object] = {"boot": processes.boot_id(), "namespace": namespace, "pid": pid}
    return here | {"start": processes.start_ticks(pid), "node": node}


def write_claim(
    directory: str,
    job: int,
    incarnation: int,
    tag: str,
    identity: str = "",
    continue_from: str = "",
    holder: Mapping[str, object] | None = None,
    nonce: str = "",
    known: Collection[str] = (),
) -> str:
    """Claim the folder, made if it is missing, durably; what its user should know of that, "" for nothing. `holder`: as
    `supervisor_here`. `nonce`: of this start; `known`: those of the job's starts that this home's ledger has.

    Raises Foreign if what it holds is another job's, and `continue_from` does not name that one; Stale if a higher
    incarnation of the job has claimed it, or an incarnation of another job, another instance's or a start that is not
    known here that is as high or higher, or while such an attempt, or this very start under another supervisor of this
    node's name, lives there; and OSError.

    A membership in the same incarnation's claim stays there: it is its ranks' to raise, and nobody's to lower."""
    os.makedirs(directory, exist_ok=True)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _locked(folder):
            if why := _not_ours(folder):
                raise Foreign(
                    f"{os.path.join(directory, NAME)} {why}, so nothing was loaded or changed: remove it if no other "
                    "job writes there, or choose another --checkpoint-dir"
                )
            newest, membership, owner = _read(folder)
            me = ClaimOwner(tag, identity, nonce)
            other = _stranger(folder, me, continue_from)
            if other is not None:
                raise Foreign(
                    f"the checkpoint folder is {_whose(me, other)}: nothing was loaded or changed; begin beside it: "
                    f"hpcdl retry {job} --from-start, or go on from it: hpcdl submit --continue-from "
                    f"{_word(me, other)} --checkpoint-dir {directory}"
                )
            same = me.is_of(owner)
            unknown = same and bool(nonce and owner.nonce) and owner.nonce not in {nonce, *known}
            if whose := _living_stranger(folder, me, owner, unknown, {} if holder is None else holder):
                who = ":".join(owner.tag.split(":")[:4])
                raise Stale(
                    f"attempt {newest} of {whose} ({who}) lives in the checkpoint folder {directory}: nothing was "
                    "loaded or changed, and this job is tried again",
                    newest,
                )
            if newest > incarnation or (newest == incarnation and unknown):
                said = f"attempt {newest} ({owner.tag}) has claimed {directory}; this is attempt {incarnation}"
                raise Stale(said, newest)
            if newest == incarnation and not same:
                raise Stale(f"another job ({owner.tag}) has claimed {directory}; this is {tag}", newest)
            body = {"v": 1, "job": job, "incarnation": incarnation, "tag": tag}
            if identity:
                body["identity"] = identity
            if nonce:
                body["nonce"] = nonce
            if holder is not None:
                body["holder"] = dict(holder)
            if newest == incarnation and membership:
                body["membership"] = membership
            _replace(folder, json.dumps(body).encode())
            if not unknown:
                return ""
            return (
                f"attempt {newest} of this job had claimed the checkpoint folder, and the ledger has no record of that "
                "start (a backup was restored, or HPCDL_HOME was copied): it lives no more, and this one goes on there"
            )
    finally:
        os.close(folder)


class ClaimBeat:
    """Renews the time of a claim for as long as its supervisor lives, and puts it back where somebody has emptied the
    folder or spoiled it: another home's attempt would take that. In a thread: the file system may hang."""

    def __init__(self, directory: str, tag: str, nonce: str = "") -> None:
        self._path = os.path.join(directory, NAME)
        self._tag = tag
        self._nonce = nonce
        self._seen = b""  # the claim as it was last
        self._over = threading.Event()

    def begin(self) -> None:
        """Renew it from now on, for as long as it is this incarnation's."""
        threading.Thread(target=self._run, name="claim", daemon=True).start()

    def end(self) -> None:
        """The attempt is over: nobody needs to wait until the claim is old."""
        self._over.set()

    def _run(self) -> None:
        self._renew()
        while not self._over.wait(BEAT_S):
            self._renew()
        self._renew(over=True)

    def _renew(self, over: bool = False) -> None:
        with contextlib.suppress(OSError):
            try:
                file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                with open(file, "rb") as opened:
                    self._renew_open(opened.read(LIMIT), file, over)
            except (FileNotFoundError, ValueError, AttributeError, RecursionError):
                if self._seen and not over:
                    self._put_back()

    def _renew_open(self, content: bytes, file: int, over: bool) -> None:
        claim = json.loads(content)
        owner = str(claim.get("tag", ""))
        if over and owner == self._tag:
            written = os.fstat(file)
            os.utime(file, (written.st_atime, written.st_mtime - 2 * LIVE_S))
        elif not over and owner.split(":")[:3] == self._tag.split(":")[:3]:
            if claim.get("nonce", "") == self._nonce:
                self._seen = content
                os.utime(file)

    def _put_back(self) -> None:
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _locked(folder):
                if _read(folder)[0] < 0:  # nobody was faster
                    _replace(folder, self._seen)
        finally:
            os.close(folder)


def _living_stranger(
    folder: int, me: ClaimOwner, owner: ClaimOwner, unknown: bool, holder: Mapping[str, object]
) -> str:
    """Whose attempt lives in the folder, where that keeps this one from it; "" where none does. `unknown`: it is of the
    same job, by a start that its ledger does not have. `holder`: this supervisor."""
    if not owner.tag:
        return ""
    if _instance(owner.tag) != _instance(me.tag):
        whose = "a job of another HPCDL_HOME"
    elif not me.is_of(owner):
        whose = "another job"
    elif unknown:
        whose = "this job, started from another copy of this HPCDL_HOME"
    elif me.nonce and me.nonce == owner.nonce and _is_twin(folder, holder):
        whose = "this job, the very start that this one is, from another copy of this HPCDL_HOME"
    else:
        return ""
    return whose if _lives(folder) else ""


def _is_twin(folder: int, holder: Mapping[str, object]) -> bool:
    """Whether the claim is lately of another supervisor of the same node's name than this one, `holder`: a home was
    copied after it had recorded the start, and both carry it out."""
    try:
        other = json.loads(_content(folder, NAME, LIMIT))["holder"]
        # A node that left an attempt may join it again while the supervisor of its first time still ends.
        return bool(other["node"]) and other["node"] == holder["node"] and other != holder and _age_s(folder) < LIVE_S
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _lives(folder: int) -> bool:
    """Whether the supervisor that the claim names is there; of one on another machine, whether it was lately."""
    try:
        holder = json.loads(_content(folder, NAME, LIMIT)).get("holder")
        pid, start = holder["pid"], holder["start"]
        me = supervisor_here()
        if all(holder.get(key) == me[key] for key in ("boot", "namespace")):
            return type(pid) is int and start is not None and processes.start_ticks(pid) == start
        return _age_s(folder) < LIVE_S
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _age_s(folder: int) -> float:
    """Of the claim, by the clock of its file system."""
    return _fresh(folder).st_mtime - os.stat(NAME, dir_fd=folder, follow_symlinks=False).st_mtime


def _fresh(folder: int) -> os.stat_result:
    """What the file system says of a file that we make there now."""
    name = f".tmp-{NAME}-{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        return os.fstat(file)
    finally:
        os.close(file)
        os.unlink(name, dir_fd=folder)


def another_jobs(directory: str, instance: str, continue_from: str) -> str:
    """Why a job that is to be submitted may not take this folder, in one line with the option; "" where it may, or
    nobody knows here."""
    me = ClaimOwner(f"{instance}:new")
    try:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        other = _stranger(folder, me, continue_from)
    except OSError:
        return ""
    finally:
        os.close(folder)
    if other is None:
        return ""
    return (
        f"the checkpoint folder {directory} is {_whose(me, other)}: --continue-from {_word(me, other)} goes on from "
        "it, or choose another --checkpoint-dir"
    )


def _whose(me: ClaimOwner, other: ClaimOwner) -> str:
    if me.tag.split(":")[0] != other.tag.split(":")[0]:
        return f"that of a job of another HPCDL_HOME ({other.tag[:80]})"
    return f"that of another job {other.job}" if me.job == other.job else f"that of job {other.job}"


def _word(me: ClaimOwner, other: ClaimOwner) -> str:
    return other.job if me.tag.split(":")[0] == other.tag.split(":")[0] and other.job.isdigit() else ANY


def _stranger(folder: int, me: ClaimOwner, continue_from: str) -> ClaimOwner | None:
    """The other job whose folder it is: who claimed it, or, where nobody has, whose all its checkpoints are. None where
    it has nothing, or what this one may load. Raises OSError."""
    names = os.listdir(folder)
    if all(_ALL_JOBS.fullmatch(name) for name in names):
        return None
    _, _, owner = _read(folder)
    if owner.tag and not me.may_take(owner, continue_from):
        return owner
    markers = [f"{name}/{MARKER}" for name in sorted(names, reverse=True) if _CHECKPOINT.fullmatch(name)]
    found = [each for name in markers[:MARKERS_READ] if (each := _marked(folder, name)) is not None]
    return found[0] if found and not any(me.may_take(each, continue_from) for each in found) else None


def _marked(folder: int, name: str) -> ClaimOwner | None:
    """Whose checkpoint it is; one that names no job is nobody's, and anybody's. None where it is torn."""
    try:
        marker = json.loads(_content(folder, name, MARKER_LIMIT))
        return ClaimOwner(str(marker.get("owner") or "")[:200], str(marker.get("identity") or "")[:200])
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _instance(tag: str) -> str:
    return tag.split(":")[0]


def _job_of(tag: str) -> list[str]:
    return tag.split(":")[:2]  # instance and job


@contextlib.contextmanager
def _locked(folder: int) -> Iterator[None]:
    # Two supervisors on two nodes may claim at once; the lock keeps the lower from replacing the higher. Where the
    # file system has no such locks, or the holder hangs, we go on without: the trainer reads the claim again itself.
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                break
            time.sleep(LOCK_POLL_S)
        except OSError:
            break
    yield


def _content(folder: int, name: str, limit: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(file, "rb") as content:
        return content.read(limit)


def _read(folder: int) -> tuple[int, int, ClaimOwner]:
    """The claim's incarnation, membership (0: none) and owner; -1, 0 and nobody where there is none that is
    understood."""
    try:
        claim = json.loads(_content(folder, NAME, LIMIT) or b"")
        membership = int(claim.get("membership") or 0)
        identity, nonce = (each if isinstance(each := claim.get(key), str) else "" for key in ("identity", "nonce"))
        return int(claim["incarnation"]), membership, ClaimOwner(str(claim.get("tag", ""))[:200], identity, nonce)
    except (FileNotFoundError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return -1, 0, ClaimOwner("")


def _not_ours(folder: int) -> str:
    """What is wrong with the claim, where it can be read and is none that hpcdl wrote for this user: the folder may be
    one in which others may write. "" where nothing is."""
    try:
        claim = json.loads(_content(folder, NAME, LIMIT))
        numbers = [claim.get("incarnation", 0), claim.get("membership") or 0]
        wrong = [repr(each) for each in numbers if type(each) is not int or not 0 <= each < MOST]
        if wrong:
            return f"has {wrong[0]:.40} where the number of an attempt or a membership should be"
        owners = {os.stat(NAME, dir_fd=folder, follow_symlinks=links).st_uid for links in (False, True)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    others = owners - {0, os.geteuid()}
    # Some file systems, and servers of them, say that all is somebody else's.
    return f"belongs to uid {max(others)}" if others and owners != {_fresh(folder).st_uid} else ""


def _replace(folder: int, content: bytes) -> None:
    # A name that nobody else, where others may write in the folder, can have put a FIFO or a file of theirs at.
    temporary = f".tmp-{NAME}-{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            write_all(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, NAME, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)
