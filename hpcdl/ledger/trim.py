"""Removal of files below HPCDL_HOME that nothing needs any more: only such as hpcdl wrote, by name, and is done with.

It runs while no daemon does, but for `remove_unsaved`, and follows no link. What a job may still need is never removed:
checkpoints, scripts of jobs that are not long over, nor the claim by which a folder refuses attempts that are not the
newest.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdl.core.model.world import Job
from hpcdl.wire.private_files import NotPrivate, open_private_folder

_DAY = 86_400.0
COPY = "ledger-copy-"
"""How copies begin that a daemon makes for whoever verifies or exports."""

_COPY = re.compile(r"ledger-copy-[0-9a-f]{16}\.sqlite(-wal|-shm|-journal)?")
_UNFINISHED = re.compile(r"\.(ledger-archive-\d{12,}-\d{12,}\.jsonl\.gz|ledger\.sqlite\.version-\d+)\.tmp")
_CLAIM = re.compile(r"claim\.json")
_SCRIPT = re.compile(r"[0-9a-f]{64}\.sh")
_LOG = re.compile(r"\d+\.[A-Za-z0-9:._%-]+\.(log|times|streams)")
_PILOT = re.compile(r"[A-Za-z0-9._-]+\.(log|out|err|sh)")
_REFUSED = re.compile(r"[A-Za-z0-9._-]+\.json(\.[A-Za-z0-9]+)?(\.reason)?")


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What was removed, in words, with numbers of files and bytes."""

    what: str
    files: int
    bytes: int


def trim(home: Path, jobs: Iterable[Job], now: float, *, keep_days: float, log_days: float | None) -> list[TrimReport]:
    """Remove what is older than `keep_days`, and job logs of jobs that finished `log_days` ago; None: keep all logs.

    `jobs`: all of the ledger, also those that have left the world; they are gone through once.

    No daemon runs, so copies and unfinished files of any age are orphans. Raises NotPrivate and OSError.
    """
    old, before = now - keep_days * _DAY, None if log_days is None else now - log_days * _DAY
    named, ended, unsaved = _named_in_spool(home), list[int](), list[Path]()
    for job in jobs:
        if job.finished_at is None or job.finished_at >= old:  # not long over: what it runs stays
            named.update(os.path.basename(word) for word in job.spec.command if word.endswith(".sh"))
        elif job.spec.checkpoint_dir is None:
            unsaved.append(home / "checkpoints" / str(job.id))
        if before is not None and job.finished_at is not None and job.finished_at < before:
            ended.append(job.id)
    unsaved = [folder for folder in unsaved if is_unsaved(folder)]
    found = [
        _freed("copies of the ledger", _files(home, _COPY)),
        _freed("unfinished files", _files(home, _UNFINISHED)),
        _freed("refused submits", _older(_files(home / "spool" / "refused", _REFUSED), old)),
        _freed("output of pilots", _older(_files(home / "logs" / "pilots", _PILOT), old)),
        _freed(
            "batch scripts", (each for each in _older(_files(home / "scripts", _SCRIPT), old) if each.name not in named)
        ),
        _freed("checkpoint folders without a checkpoint", (path for each in unsaved for path in _files(each, _CLAIM))),
    ]
    for folder in unsaved:
        _remove_empty(folder)
    if before is not None:
        found.append(
            _freed("logs of jobs", (path for number in ended for path in _files(home / "logs" / str(number), _LOG)))
        )
        for number in ended:
            _remove_empty(home / "logs" / str(number))
    return [each for each in found if each.files]


def _named_in_spool(home: Path) -> set[str]:
    """Batch scripts that a spooled submit runs."""
    named = set[str]()
    for path in _files(home / "spool", re.compile(r"[^/]+\.json")):
        named.update(re.findall(r"[0-9a-f]{64}\.sh", path.read_text(encoding="utf-8", errors="replace")))
    return named


def _files(folder: Path, form: re.Pattern[str]) -> Iterator[Path]:
    """Regular files of ours in that folder of ours whose names have the form; a link is never followed."""
    try:
        fd = open_private_folder(folder)
    except (FileNotFoundError, NotPrivate):
        return
    try:
        for name in sorted(os.listdir(fd)):
            if form.fullmatch(name):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
                    yield folder / name
    finally:
        os.close(fd)


def is_unsaved(folder: Path) -> bool:
    """Whether a job's checkpoint folder has nothing in it but the claim of its last attempt."""
    try:
        return os.listdir(folder) == ["claim.json"]
    except OSError:
        return False


def remove_unsaved(folder: Path) -> None:
    """Remove such a folder, and no other. Raises OSError."""
    if is_unsaved(folder):
        for claim in list(_files(folder, _CLAIM)):
            claim.unlink()
        _remove_empty(folder)


def _older(paths: Iterable[Path], than: float) -> Iterator[Path]:
    return (path for path in paths if path.lstat().st_mtime < than)


def _freed(what: str, paths: Iterable[Path]) -> TrimReport:
    files, total = 0, 0
    for path in list(paths):
        total += path.lstat().st_size
        path.unlink()
        files += 1
    return TrimReport(what, files, total)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # it holds what is not ours, or is gone
