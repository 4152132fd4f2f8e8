"""The claim in a checkpoint folder: it says which incarnation of which job may write there; others must not."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

NAME = "claim.json"
LIMIT = 65536  # bytes
LOCK_WAIT_S = 2.0
LOCK_POLL_S = 0.02


class Stale(Exception):
    """A newer incarnation, or another job, has claimed the folder; the message names it."""


class NotClaimed(NamedTuple):
    """Why a folder could not be claimed. `stale`: a newer incarnation has; else `errno` of what failed."""

    stale: bool
    why: str
    errno: int | None


def claim(directory: str, job: int, incarnation: int, tag: str) -> NotClaimed | None:
    """As `write_claim`; None: the folder is claimed."""
    try:
        write_claim(directory, job, incarnation, tag)
    except Stale as error:
        return NotClaimed(True, str(error), None)
    except OSError as error:
        return NotClaimed(False, f"cannot write the claim in {directory}: {error.strerror}", error.errno)
    return None


def write_claim(directory: str, job: int, incarnation: int, tag: str) -> None:
    """Claim the folder, made if it is missing, durably. Raises Stale if a higher incarnation of the job has, or an
    incarnation of another job (or of another instance's) that is as high or higher; and OSError.

    A membership in the same incarnation's claim stays there: it is its ranks' to raise, and nobody's to lower."""
    os.makedirs(directory, exist_ok=True)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _locked(folder):
            newest, owner, membership = _read(folder)
            if newest > incarnation:
                raise Stale(
                    f"incarnation {newest} ({owner}) has claimed {directory}; this is incarnation {incarnation}"
                )
            if newest == incarnation and _job_of(owner) != _job_of(tag):
                raise Stale(f"another job ({owner}) has claimed {directory}; this is {tag}")
            body = {"v": 1, "job": job, "incarnation": incarnation, "tag": tag}
            if newest == incarnation and membership:
                body["membership"] = membership
            _replace(folder, json.dumps(body).encode())
    finally:
        os.close(folder)


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


def _read(folder: int) -> tuple[int, str, int]:
    """The claim's incarnation, tag and membership (0: none); (-1, "", 0) where there is none that is understood."""
    try:
        file = os.open(NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return -1, "", 0
    try:
        content = os.read(file, LIMIT)
    finally:
        os.close(file)
    try:
        claim = json.loads(content)
        return int(claim["incarnation"]), str(claim.get("tag", ""))[:200], int(claim.get("membership") or 0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return -1, "", 0


def _replace(folder: int, content: bytes) -> None:
    # A name that nobody else, where others may write in the folder, can have put a FIFO or a file of theirs at.
    temporary = f".tmp-{NAME}-{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            os.write(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, NAME, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)
