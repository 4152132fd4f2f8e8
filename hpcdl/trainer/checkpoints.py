"""The checkpoint folder: writing checkpoints, finding the complete ones, and claiming the folder for one membership.

A checkpoint appears whole or not at all, and counts by its marker and the sizes there. Who is stale
(`StaleIncarnation`) renames nothing into place. Standard library only; the agent's side is
hpcdl/agent/supervisor/claim.py.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.trainer.digest import digests

log = logging.getLogger("hpcdl.trainer")

MARKER = "COMPLETE"

CLAIM = "claim.json"

KEPT = 2

ASIDE = "damaged-"

LIMIT = 64 << 20  # bytes of a marker, which names every file

MOST = 10**9  # attempts and memberships, in a claim

_NAME = re.compile(r"step-(\d{12,})\.i(\d+)")

_TEMPORARY = re.compile(r"\.tmp-step-\d{12,}\.i(\d+)-.*")

_NONCE = re.compile(r":([0-9a-f]{16})\Z")  # at the end of a tag


class StaleIncarnation(SystemExit):
    """The job was started again elsewhere, goes on elsewhere under a newer membership, or another job took the folder:
    this process must write nothing more. Uncaught, it exits with 75."""

    def __init__(
        self, mine: int, newest: int, owner: str = "", membership: int | None = None, twin: bool = False
    ) -> None:
        """`owner`: the tag of another job whose incarnation `newest` is, or of another instance's. `membership`: the
        newer one of the same incarnation. `twin`: it is another start of the job, under the same number."""
        super().__init__(os.EX_TEMPFAIL)
        self.mine = mine
        self.newest = newest
        self.owner = owner
        self.membership = membership
        self.twin = twin

    def __str__(self) -> str:
        if self.membership is not None:
            return f"attempt {self.mine} is stale here: its membership {self.membership} has claimed the folder"
        if self.twin:
            return f"attempt {self.mine} is stale: another start with that number, of a copied home, has the folder"
        whose = f"another job ({self.owner})" if self.owner else "the job"
        return f"attempt {self.mine} is stale: attempt {self.newest} of {whose} has claimed the folder"


class DamagedCheckpoints(SystemExit):
    """There are checkpoints, and none of them is what was written: to begin at step 0 must be the user's wish.
    Uncaught, it exits with 65."""

    def __init__(self, directory: Path, names: list[str], job: str = "") -> None:
        super().__init__(os.EX_DATAERR)
        self.directory = directory
        self.names = names
        self.job = job

    def __str__(self) -> str:
        anew = f"hpcdl retry {self.job} --from-start" if self.job else "choose another folder"
        return (
            f"no checkpoint is left that is whole: {', '.join(self.names[:4])} in {self.directory} "
            f"{'is' if len(self.names) == 1 else 'are'} damaged: put back a copy of one under its old name, or begin "
            f"anew: {anew}"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A durable checkpoint: `step` steps are done in it."""

    step: int
    incarnation: int
    path: Path

    @property
    def order(self) -> tuple[int, int]:
        """The higher, the better: (incarnation, step)."""
        return (self.incarnation, self.step)


def at(directory: Path, step: int, incarnation: int) -> Checkpoint:
    """The checkpoint of that step and incarnation, whether it exists or not."""
    if step < 0 or incarnation < 0:
        raise ValueError(f"step {step} and attempt {incarnation} must not be negative")
    return Checkpoint(step, incarnation, directory / f"step-{step:012d}.i{incarnation}")


def complete(directory: Path, identity: str = "") -> list[Checkpoint]:
    """Those that count, best first: the highest incarnation, then the highest step. `identity`: those of other jobs do
    not count; those that name none are anybody's."""
    return [each for each in _listed(directory) if is_complete(each, identity)]


def is_complete(checkpoint: Checkpoint, identity: str = "") -> bool:
    """The marker is there, is for this step and incarnation, and of this job or of none, and every file has the size
    that it names; and it is ours: whoever may write in the folder, /tmp/checkpoints say, could have us load what runs
    as us."""
    try:
        marker: Any = json.loads(_small(checkpoint.path / MARKER))
        if (marker["v"], marker["step"], marker["incarnation"]) != (1, checkpoint.step, checkpoint.incarnation):
            return False
        if identity and (marker.get("identity") or identity) != identity:
            return False
        if any((checkpoint.path / name).stat().st_size != size for name, size in marker["files"].items()):
            return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return is_ours(checkpoint)


def is_ours(checkpoint: Checkpoint) -> bool:
    """Whether it is no other user's; one that is, is said to be left alone."""
    owner = _stranger(checkpoint.path)
    if owner is not None:
        log.warning("%s belongs to uid %d and is left alone: to go on from it, copy it (cp -r)", checkpoint.path, owner)
    return owner is None


def marked(directory: Path, identity: str = "") -> list[Checkpoint]:
    """Those that were complete once, best first: as `complete`, but whole or not is not looked at."""
    return [
        each
        for each in _listed(directory)
        if os.path.lexists(each.path / MARKER) and (not identity or _marked_by(each.path) in ("", identity))
    ]


def _listed(directory: Path) -> list[Checkpoint]:
    """All that are called like one, whatever is in them, best first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    found = [Checkpoint(int(match[1]), int(match[2]), directory / match[0]) for match in matches]
    return sorted(found, key=lambda each: each.order, reverse=True)


def damage(checkpoint: Checkpoint) -> str:
    """What is not as it was written, "" where all is; reads everything. One of an earlier version has no digests, and
    its sizes count. Raises OSError where that cannot be known."""
    try:
        marker: Any = json.loads(_small(checkpoint.path / MARKER))
        if (marker["step"], marker["incarnation"]) != (checkpoint.step, checkpoint.incarnation):
            return "its marker is another one's"
        sizes = {str(name): int(size) for name, size in marker["files"].items()}
        known = {str(name): str(each) for name, each in (marker.get("digests") or {}).items()}
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return "its marker cannot be read"
    for name, size in sizes.items():
        try:
            there = (checkpoint.path / name).stat().st_size
        except FileNotFoundError:
            return f"{name} is missing"
        except ValueError:
            return f"its marker names {name!r:.80}, which no file can be called"
        if there != size:
            return f"{name} has {there} bytes, not {size}"
    found = digests(checkpoint.path, [name for name in sizes if name in known])
    return next((f"the content of {name} is not what was written" for name in found if found[name] != known[name]), "")


def set_aside(checkpoint: Checkpoint) -> Path:
    """Where a damaged checkpoint is from now on: it is kept, never chosen and never removed. Raises OSError."""
    directory, name = checkpoint.path.parent, f"{ASIDE}{checkpoint.path.name}"
    number = 1
    while os.path.lexists(directory / name):
        number += 1
        name = f"{ASIDE}{checkpoint.path.name}.{number}"
    os.rename(checkpoint.path, directory / name)
    sync_folder(directory)
    return directory / name


def aside(directory: Path) -> list[str]:
    """The names of the checkpoints that were set aside."""
    try:
        return sorted(name for name in os.listdir(directory) if name.startswith(f"{ASIDE}step-"))
    except FileNotFoundError:
        return []


def _stranger(path: Path) -> int | None:
    """Whose it is, or what it links to, where that is neither us nor root; None where it is ours, or gone."""
    try:
        owners = {os.lstat(path).st_uid, os.stat(path).st_uid} - {0, os.geteuid()}
    except OSError:
        return None
    return max(owners) if owners and owners != {_maker(path.parent)} else None


def _maker(directory: Path) -> int | None:
    """Who owns what we make there: some file systems, and servers of them, say that all is somebody else's."""
    try:
        file, name = tempfile.mkstemp(prefix=".tmp-owner-", dir=directory)
    except OSError:
        return None
    try:
        return os.fstat(file).st_uid
    finally:
        os.close(file)
        os.unlink(name)


def _small(path: Path) -> bytes:
    """The content of a file of ours, which is small and no FIFO. Raises OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        return file.read(LIMIT)


def _counted(value: Any) -> int:
    """Raises ValueError for what is no number of an attempt or a membership."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{value!r:.40} is no number of ours")
    return value


def check_claim(directory: Path, incarnation: int, tag: str = "", membership: int = 0, identity: str = "") -> None:
    """Raises StaleIncarnation if another incarnation than that of the tag (instance:job:incarnation:node) has claimed
    the folder, or without a tag a newer one, or a membership of the same incarnation that is newer than `membership`
    (a claim that names none is of membership 0), or another start with its number, by the nonce at the end of the tag;
    OSError if that cannot be known."""
    try:
        claim = json.loads(_small(directory / CLAIM))
        newest, owner = _counted(claim["incarnation"]), str(claim.get("tag", ""))
        formed, known, nonce = _counted(claim.get("membership", 0)), claim.get("identity"), claim.get("nonce")
        if (stranger := _stranger(directory / CLAIM)) is not None:
            raise ValueError(f"it belongs to uid {stranger}")
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"the claim cannot be read ({error})"[:200]
        raise OSError(errno.EBADMSG, why, str(directory / CLAIM)) from error
    ours = not tag or owner.split(":")[:2] == tag.split(":")[:2]  # instance and job
    if not ours or (tag and identity and known and known != identity):
        raise StaleIncarnation(incarnation, newest, owner[:200] or "without a name")
    if newest > incarnation or (tag and newest != incarnation):
        raise StaleIncarnation(incarnation, newest)
    if newest == incarnation and nonce and _nonce(tag) not in ("", nonce):
        raise StaleIncarnation(incarnation, newest, twin=True)
    if newest == incarnation and formed > membership:
        raise StaleIncarnation(incarnation, newest, membership=formed)


def _nonce(tag: str) -> str:
    """Of a start, from its tag; "" where it has none."""
    match = _NONCE.search(tag)
    return match[1] if match else ""


@dataclass(frozen=True)
class Tier:
    """Where checkpoints are written, and by whom: attempt `incarnation`, which has claimed the folder `claimed`.

    `local`: storage of this node, which keeps the newest one and what is being drained. `known`: the digests that the
    files must have, of a copy; `nonce`: of the start that wrote what is copied, None of that of the tag.
    """

    claimed: Path
    incarnation: int
    tag: str = ""
    membership: int = 0
    identity: str = ""
    local: bool = False
    known: Mapping[str, str] | None = None
    nonce: str | None = None

    @property
    def written_by(self) -> str:
        """The nonce of the start that writes, "" where it has none."""
        return _nonce(self.tag) if self.nonce is None else self.nonce

    def check_claim(self) -> None:
        """See `check_claim`."""
        check_claim(self.claimed, self.incarnation, self.tag, self.membership, self.identity)

    def prune(self, newest: Checkpoint) -> None:
        """Remove what `newest` has replaced."""
        if self.local:
            prune_local(newest.path.parent, newest)
        else:
            prune(newest.path.parent, newest, self.identity, self.incarnation - (self.known is not None))


@contextmanager
def write(
    directory: Path,
    step: int,
    incarnation: int,
    replace: bool = False,
    tag: str = "",
    membership: int = 0,
    identity: str = "",
    tier: Tier | None = None,
) -> Iterator[Path]:
    """Yields a temporary folder. When the block ends well, what is in it becomes the checkpoint of `step`; when it
    raises, or the disk is full, the folder is removed and the checkpoints that were there stay as they were.

    One start writes a step once: if that checkpoint is complete already, it is kept and the new files dropped, unless
    `replace` is set, for runs that are not numbered. `tag`, `membership`, `identity`: see `check_claim`.
    """
    tier = tier or Tier(directory, incarnation, tag, membership, identity)
    target = at(directory, step, incarnation)
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".tmp-{target.path.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if os.path.lexists(temporary / MARKER):
            raise ValueError(f"a checkpoint may not hold a file called {MARKER}")
        sizes = _sync(temporary)
        checked = digests(temporary, list(sizes))
        _publish(temporary, target, sizes, checked, replace, tier)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    tier.check_claim()
    tier.prune(target)


@contextmanager
def write_together(
    directory: Path,
    step: int,
    incarnation: int,
    gather: Callable[[str], list[str]],
    rank: int,
    local_rank: int = 0,
    replace: bool = False,
    tag: str = "",
    membership: int = 0,
    identity: str = "",
    tier: Tier | None = None,
) -> Iterator[Path]:
    """As `write`, by every rank of a group at once: all are given one temporary folder, on a file system that they
    share, and each puts files of its own there. Rank 0 marks the checkpoint, after every rank has said that its files
    are durable. What raises on one rank, raises on all (elsewhere as OSError if it was one, StaleIncarnation, or
    RuntimeError), and the checkpoints that were there stay.

    `gather(text)`: every rank's text, in the order of the ranks. `local_rank`: 0 on at least one rank of each node.
    """
    tier = tier or Tier(directory, incarnation, tag, membership, identity)
    target = at(directory, step, incarnation)
    counts: set[int] = set()  # of answers: fewer of them in the middle are not the whole checkpoint's

    def together(act: Callable[[], Any]) -> list[Any]:
        answers = _together(gather, incarnation, act)
        counts.add(len(answers))
        if len(counts) > 1:
            raise RuntimeError(f"a rank ended while {max(counts)} wrote {target.path.name}: its part may be missing")
        return answers

    def make() -> str:
        if rank != 0:
            return ""
        # A name that no rank has looked for before: a network file system may remember that there was none.
        name = f".tmp-{target.path.name}-{os.getpid()}-{os.urandom(6).hex()}"
        (directory / name).mkdir(parents=True)
        return name

    def see() -> None:
        if not temporary.is_dir():
            why = f"rank {rank} does not see what rank 0 made: its file system must be one that all nodes share"
            raise FileNotFoundError(errno.ENOENT, why, str(directory))

    def sync() -> dict[str, int]:
        if os.path.lexists(temporary / MARKER):
            raise ValueError(f"a checkpoint may not hold a file called {MARKER}")
        return _sync(temporary) if local_rank == 0 else {}

    def publish() -> None:
        if rank == 0:
            _publish(temporary, target, sizes, checked, replace, tier)

    named = [name for name in together(make) if name]
    if len(named) != 1:
        raise ValueError(f"rank {rank} is in no group with rank 0, so it cannot write into one checkpoint with it")
    temporary = directory / named[0]
    try:
        size = len(together(see))
        failure: BaseException | None = None
        try:
            yield temporary
        except BaseException as error:
            failure = error
        together(lambda: _raise(failure))
        sizes = _union(together(sync))
        names = sorted(sizes)
        # Every rank reads its share of what all wrote.
        checked = _union(together(lambda: digests(temporary, names[rank::size])))
        together(publish)
    finally:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
    if rank == 0:
        tier.check_claim()
        tier.prune(target)


def _raise(failure: BaseException | None) -> None:
    if failure is not None:
        raise failure


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _together(gather: Callable[[str], list[str]], incarnation: int, act: Callable[[], Any]) -> list[Any]:
    """What `act` returns, JSON, on each rank; raises on all where it raises on one."""
    failure: BaseException | None = None
    answer: dict[str, Any]
    try:
        answer = {"value": act()}
    except BaseException as error:
        failure = error
        answer = {"why": f"{type(error).__name__}: {error}"[:1000], "system": isinstance(error, OSError)}
        answer.update(errno=getattr(error, "errno", None), newest=getattr(error, "newest", None))
    answers = [json.loads(text) for text in gather(json.dumps(answer))]
    if failure is not None:
        raise failure
    for number, each in enumerate(answers):
        if "why" not in each:
            continue
        if each["newest"] is not None:
            raise StaleIncarnation(incarnation, each["newest"])
        why = f"rank {number}: {each['why']}"
        raise OSError(each["errno"] or errno.EIO, why) if each["system"] else RuntimeError(why)
    return [each["value"] for each in answers]


def _publish(
    temporary: Path,
    target: Checkpoint,
    sizes: dict[str, int],
    checked: dict[str, str],
    replace: bool,
    tier: Tier,
) -> None:
    """The temporary folder becomes the checkpoint. It is marked before, so that one which it replaces is missing for no
    longer than a rename takes."""
    if tier.known is not None and checked != tier.known:
        raise OSError(errno.EIO, "the copy is not what was written", str(target.path))
    tier.check_claim()
    if replace or not is_complete(target) or _marked_by(target.path, "nonce") != tier.written_by:
        _mark(Checkpoint(target.step, target.incarnation, temporary), sizes, checked, tier)
        replaced = _put_out_of_sight(target.path)
        os.rename(temporary, target.path)
        sync_folder(target.path.parent)
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)


def prune(directory: Path, newest: Checkpoint, identity: str, over: int) -> None:
    """Keep `newest` and the best other one of this job; remove the rest of it, torn ones and what was left half
    written. `over`: the last attempt that writes nothing there any more, besides `newest`."""
    others = [each for each in complete(directory, identity) if each.path != newest.path]
    kept = {newest.path.name, *(each.path.name for each in others[: KEPT - 1])}
    for name in os.listdir(directory):
        temporary = _TEMPORARY.fullmatch(name)
        if temporary and int(temporary[1]) <= over:
            shutil.rmtree(directory / name, ignore_errors=True)
        elif _NAME.fullmatch(name) and name not in kept and _stranger(directory / name) is None:
            if _marked_by(directory / name) not in ("", identity):
                continue  # another job's, which may go on from it
            _discard(directory / name)


def prune_local(directory: Path, newest: Checkpoint | None) -> None:
    """Keep `newest` and what is being drained; None: remove what is left of all saves. What was set aside stays."""
    for name in os.listdir(directory):
        if (newest is None or name != newest.path.name) and (_NAME.fullmatch(name) or _TEMPORARY.fullmatch(name)):
            with _lock_of(directory / name, fcntl.LOCK_EX) as free:
                if free:
                    _discard(directory / name)


@contextmanager
def _lock_of(path: Path, kind: int) -> Iterator[bool]:
    """Whether nobody else holds a lock of the folder that excludes this one; not waited for, and held meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            free = True
        except OSError as error:
            free = not isinstance(error, BlockingIOError)  # a file system without such locks
        yield free
    finally:
        os.close(descriptor)


def drain(source: Checkpoint, directory: Path, tier: Tier) -> Checkpoint | None:
    """Copy a checkpoint of node-local storage into the folder that `tier` has claimed: temporary name, digests and
    marker as of one that is written there. The copy; None where a newer one is there already.

    Raises FileNotFoundError where the source was replaced meanwhile, StaleIncarnation, and OSError.
    """
    best = next(iter(complete(directory, tier.identity)), None)
    if best is not None and best.order > source.order:
        return None
    with _lock_of(source.path, fcntl.LOCK_SH):
        known = _marker(source.path)["digests"]
        if best is not None and best.order == source.order and _marker(best.path).get("digests") == known:
            return best
        tier = dataclasses.replace(tier, known=known, nonce=_marked_by(source.path, "nonce"))
        # The last one of a training says so, in the place of one of the same step.
        with write(directory, source.step, source.incarnation, replace=True, tier=tier) as temporary:
            _copy(source.path, temporary)
        copy = at(directory, source.step, source.incarnation)
        shutil.copymode(source.path / MARKER, copy.path / MARKER)
    return copy


def _marker(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_small(path / MARKER))
    return found


def _copy(source: Path, to: Path) -> None:
    """All but the marker, with the rights that it has; links stay links."""
    for folder, folders, names in os.walk(source):
        below = to / Path(folder).relative_to(source)
        below.mkdir(exist_ok=True)
        below.chmod(stat.S_IMODE(os.stat(folder).st_mode) | stat.S_IRWXU)
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))):
            if Path(folder, name) != source / MARKER:
                shutil.copy(os.path.join(folder, name), below / name, follow_symlinks=False)


def size(checkpoint: Checkpoint) -> int:
    """Bytes of its files, as its marker says; 0 where that cannot be read."""
    try:
        return sum(json.loads(_small(checkpoint.path / MARKER))["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0


def _marked_by(path: Path, key: str = "identity") -> str:
    """The identity of the job that wrote a checkpoint, or the nonce of the start; "" where it names none."""
    try:
        found = json.loads(_small(path / MARKER)).get(key)
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _discard(path: Path) -> None:
    away = _put_out_of_sight(path)
    if away is not None:
        shutil.rmtree(away, ignore_errors=True)


def _put_out_of_sight(path: Path) -> Path | None:
    """Where it is then, to be removed: a folder that is half removed must never look like a checkpoint. None where
    there is none."""
    away = path.with_name(f".tmp-{path.name}-old-{os.getpid()}")
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return None
    return away


def _mark(target: Checkpoint, sizes: dict[str, int], checked: dict[str, str], tier: Tier) -> None:
    marker: dict[str, Any] = {"v": 1, "step": target.step, "incarnation": target.incarnation, "files": sizes}
    marker["digests"] = checked
    if tier.identity:
        marker.update(owner=":".join(tier.tag.split(":")[:2]), identity=tier.identity)
    if tier.written_by:
        marker["nonce"] = tier.written_by
    content = json.dumps(marker, separators=(",", ":")).encode()
    _put(target.path / MARKER, content, 0o666)


def _put(path: Path, content: bytes, mode: int) -> None:
    """Writes a file that appears whole and durably, or not at all."""
    # A name that nobody else, where others may write in the folder, can have put a FIFO or a file of theirs at.
    staged = path.with_name(f".tmp-{path.name}-{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}")
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(staged, "xb", opener=lambda name, more: os.open(name, more | flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _sync(root: Path) -> dict[str, int]:
    """fsync every file and folder below root, and root; the sizes of the files by their names relative to it."""
    sizes: dict[str, int] = {}
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
                sizes[path.relative_to(root).as_posix()] = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        sync_folder(Path(folder))
    return sizes


def sync_folder(path: Path) -> None:
    """Make renames in the folder durable, where its file system can. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a folder say so thus
            raise
    finally:
        os.close(descriptor)


LOCK_WAIT_S = 2.0

LOCK_POLL_S = 0.02


def claim(directory: Path, job: int, incarnation: int, membership: int, tag: str, identity: str = "") -> None:
    """Claim the folder for this membership, durably: an older one renames nothing into place from then on. Raises
    StaleIncarnation if the folder is claimed by a newer one, a newer incarnation or another job, and OSError. `tag`:
    instance:job:incarnation:node. `identity`: of the job.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        check_claim(directory, incarnation, tag, membership, identity)
        body: dict[str, Any] = {
            "v": 1, "job": job, "incarnation": incarnation, "membership": membership, "tag": tag
        }  # fmt: skip
        if identity:
            body["identity"] = identity
        if _nonce(tag):
            body["nonce"] = _nonce(tag)
        holder = _holder(directory)
        if holder is not None:
            body["holder"] = holder
        _put(directory / CLAIM, json.dumps(body).encode(), 0o600)


def _holder(directory: Path) -> Any:
    """The supervisor that the claim names, which stays the same when the ranks form anew; None without one."""
    try:
        return json.loads(_small(directory / CLAIM)).get("holder")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # The supervisors that start the incarnation's other parts claim, too, under the same lock. Where the file system
    # has no such locks, or the holder hangs, we go on without: a writer reads the claim again before each rename.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_WAIT_S
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_POLL_S)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
