"""The run folders of a node, as its agent sees them: made with a supervisor in each, found again, read and removed.

Whether a supervisor lives is known from the lock that it holds, never from a pid in a file. What the supervisor itself
writes there is in supervisor/run_folder.py and supervisor/process_file.py.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcdl
from hpcdl.agent import strict_json
from hpcdl.agent.report_log import Key
from hpcdl.agent.supervisor import node_faults, processes, run_folder, start_file
from hpcdl.agent.supervisor.processes import Process
from hpcdl.agent.supervisor.run_folder import LOCK
from hpcdl.agent.supervisor.start_file import Start
from hpcdl.wire.private_files import NotPrivate, make_private_folder, open_private, read_private, write_new

RECORD_LIMIT = 64 << 20
PROGRAM = "hpcdl.agent.supervisor"
DAMAGED, DAMAGED_KEPT = "damaged", 20
Child = subprocess.Popen[bytes]
_NAME = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})")


class CheckpointFolderError(OSError):
    """A job's checkpoint folder cannot be made. `node_fault`: another node may do better. `permanent`: on this one no
    other attempt does."""

    def __init__(self, folder: str, error: OSError) -> None:
        why = error.strerror or str(error)
        if error.errno == errno.EEXIST and os.path.islink(folder):
            why = f"it is a link to {os.readlink(folder)}, where no folder is"
        super().__init__(f"the checkpoint folder {folder} cannot be made: {why}")
        self.node_fault = node_faults.is_of_node(error.errno)
        self.permanent = node_faults.is_lasting(error.errno)


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """A run folder of an earlier agent. `start` is None where the file is missing or damaged; `damage` says how."""

    key: Key
    folder: Path
    start: Start | None
    boot: str
    damage: str = ""


def folder_of(run: Path, key: Key) -> Path:
    """The incarnation's run folder."""
    return run / f"{key[0]}.{key[1]}"


def begin(folder: Path, start: Start, stderr: int, launch: Callable[[Callable[[], Child]], Child]) -> Child:
    """Makes the run folder and starts the supervisor in it, which inherits the lock. `launch`: who starts it.

    Raises FileExistsError where the incarnation was started before, and OSError, NotPrivate where it cannot be started;
    then the folder is gone again.
    """
    os.mkdir(folder, 0o700)
    try:
        held = open_private(folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            body = json.loads(start.encode()) | {"boot_id": processes.boot_id()}
            write_new(folder / start_file.START_FILE, json.dumps(body).encode())
            _make_folders(start)
            return launch(lambda: _spawn(folder, held, stderr))
        finally:
            os.close(held)
    except (OSError, NotPrivate) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, FileExistsError):  # of something below: not the answer that the caller would read in it
            raise OSError(errno.EINVAL, str(error)) from error
        raise


def _make_folders(start: Start) -> None:
    if start.log:
        make_private_folder(Path(start.log).parent)
    if start.checkpoint_dir is not None:
        try:
            os.makedirs(start.checkpoint_dir, mode=0o700, exist_ok=True)
        except OSError as error:
            raise CheckpointFolderError(start.checkpoint_dir, error) from error


def _spawn(folder: Path, held: int, stderr: int) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    # The supervisor runs in /, where a checkout that is not installed would not be found.
    paths = [str(Path(hpcdl.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM, str(folder), "--lock-fd", str(held)],
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
        pass_fds=(held,),
        start_new_session=True,
    )


def find(run: Path) -> Iterator[ExistingRun]:
    """The run folders that are there."""
    for name in sorted(os.listdir(run)):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        folder = run / name
        start, boot, damage = None, "", ""
        try:
            content = read_private(folder / start_file.START_FILE, start_file.LIMIT)
            start = start_file.decode(content)
            boot = str(strict_json.loads(content).get("boot_id", ""))
        except FileNotFoundError:
            damage = f"{start_file.START_FILE} is missing" if (folder / run_folder.RECORD_FILE).exists() else ""
        except (OSError, NotPrivate, ValueError) as error:
            damage = str(error)
        yield ExistingRun((int(match[1]), int(match[2])), folder, start, boot, damage)


def is_free(folder: Path) -> bool:
    """Whether no supervisor lives in this run folder."""
    try:
        fd = open_private(folder / LOCK, os.O_RDWR)
    except (OSError, NotPrivate):
        return supervisor_in(folder) is None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records that are durable; a torn or damaged line is left out."""
    found = []
    try:
        content = read_private(folder / run_folder.RECORD_FILE, RECORD_LIMIT)
    except (OSError, NotPrivate):
        return []
    for line in content.split(b"\n"):
        try:
            record = strict_json.loads(line)
        except ValueError:
            continue
        if is_record(record):
            found.append(record)
    return found


def has_records(folder: Path) -> bool:
    """Whether a supervisor has written here, though it may not be readable any more."""
    try:
        found = os.lstat(folder / run_folder.RECORD_FILE)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return found.st_size > 0 or not stat.S_ISREG(found.st_mode)


def is_record(record: object) -> bool:
    """Whether this is an object with a number and a type."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("n"), int)
        and not isinstance(record.get("n"), bool)
        and isinstance(record.get("type"), str)
    )


def holder(folder: Path, record: Mapping[str, Any]) -> Process | None:
    """The supervisor that wrote this `supervisor` record, if it is still that process.

    It is that process only while it has the lock of this run folder open: a record may be of the last boot, or not be
    what a supervisor wrote, and then it names a process of ours that has nothing to do with it.
    """
    pid, began = record.get("pid"), record.get("start")
    if type(pid) is not int or type(began) is not int or not _has_open(pid, folder / LOCK):
        return None
    return Process(pid, began, "", "S")


def supervisor_in(folder: Path) -> Process | None:
    """The supervisor that was started in this run folder and lives, whatever became of the folder since."""
    return supervisors(folder.parent).get(folder.name)


def supervisors(run: Path) -> dict[str, Process]:
    """The living supervisors of a folder of run folders, by the names of theirs: by their command lines, as `_spawn`
    makes them, and their sessions."""
    return {folder.name: process for folder, process in _supervisors() if folder.parent == run}


def supervisors_of_other_homes(run: Path) -> list[Process]:
    """The living supervisors whose run folders are there, as HOME/run/NODE/JOB.ATTEMPT of another home than that of
    `run`."""
    found = [(folder, process) for folder, process in _supervisors() if folder.parent != run and folder.is_dir()]
    return [process for folder, process in found if (folder / "../../../tls/instance").exists()]


def _supervisors() -> Iterator[tuple[Path, Process]]:
    for process, arguments in processes.commands():
        match arguments:
            case [_, *_, "-m", name, folder, "--lock-fd", _] if name == PROGRAM:
                if processes.session_of(process.pid) == process.pid:
                    yield Path(folder), process


def put_away(folder: Path, damage: str = "") -> None:
    """Removes a run folder of which nothing is left. One that is damaged is kept beside the others; the oldest of these
    go when they are many."""
    try:
        if damage:
            kept = folder.parent / DAMAGED
            make_private_folder(kept)
            for old in sorted(kept.iterdir(), key=lambda each: each.lstat().st_mtime)[: 1 - DAMAGED_KEPT]:
                _remove(old)
            os.rename(folder, kept / f"{folder.name}.{os.urandom(4).hex()}")
            return
    except (OSError, NotPrivate):
        pass  # what cannot be kept must not be found again by the next agent
    _remove(folder)


def kept(run: Path) -> tuple[str, ...]:
    """The damaged run folders that were kept."""
    try:
        return tuple(str(run / DAMAGED / name) for name in sorted(os.listdir(run / DAMAGED)))
    except OSError:
        return ()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process has this file open."""
    try:
        wanted = path.stat()
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed since
        if os.path.samestat(found, wanted):
            return True
    return False
