"""Files and folders that only their owner may read: everything that hpcdl keeps on disk.

Every check is made on an open descriptor, so what was checked is what is read. A folder on the way to the private one
may be a symbolic link; the private folder and what lies in it may not.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_OTHERS = 0o077


class NotPrivate(Exception):
    """A file or folder that is not what, or whose, it should be; the message is one line and names the next step."""


def check_private(info: os.stat_result, path: Path, *, folder: bool) -> None:
    """Raises NotPrivate unless `info` is of a folder, or a regular file, that is ours and closed to others."""
    kind = "folder" if folder else "file"
    if not (stat.S_ISDIR(info.st_mode) if folder else stat.S_ISREG(info.st_mode)):
        raise NotPrivate(f"{path} is not a {kind}: move it away")
    if info.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to uid {info.st_uid}, not to you (uid {os.geteuid()}): move it away")
    mode = stat.S_IMODE(info.st_mode)
    if mode & _OTHERS:
        wanted = FOLDER_MODE if folder else FILE_MODE
        raise NotPrivate(f"{path} is open to others (mode {mode:04o}): run chmod {wanted:o} {path}")


def check_way(path: Path) -> None:
    """Raises NotPrivate where anybody could put something else in the place of a folder on the way to `path`.

    What is written by its path would then go where they want. A group's folders are the group's affair.
    """
    for folder in Path(os.path.realpath(path)).parents:
        mode = os.stat(folder).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise NotPrivate(
                f"anybody could put another folder in the place of {path}, for {folder} has mode "
                f"{stat.S_IMODE(mode):04o}: run chmod o-w {folder}, or name another folder with --home"
            )


def open_private_folder(path: Path) -> int:
    """A descriptor of the folder, which is ours and closed to others.

    Raises NotPrivate where it is not, FileNotFoundError where there is none, and OSError as open(2) does.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            if path.is_symlink():
                raise NotPrivate(f"{path} is a symbolic link: name the folder that it points to") from None
            raise NotPrivate(f"{path} is not a folder: move it away") from None
        raise
    try:
        check_private(os.fstat(fd), path, folder=True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private_folder(path: Path) -> None:
    """Make the folder (0700, missing parents too) or check the one that is there. Raises as `open_private_folder`."""
    if not path.parent.is_dir():
        make_private_folder(path.parent)
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        pass
    os.close(open_private_folder(path))


def open_private(path: Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file of ours that is closed to others; with O_CREAT it is made so (0600).

    With `dir_fd` the file is the last part of `path` in that folder. Raises NotPrivate where it is not such a file, and
    OSError as open(2) does.
    """
    name: str | Path = path if dir_fd is None else path.name
    try:
        # O_NONBLOCK: a FIFO in the file's place must not hold us up.
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivate(f"{path} is a symbolic link: move it away") from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise NotPrivate(f"{path} is not a file: move it away") from None
        raise
    try:
        check_private(os.fstat(fd), path, folder=False)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: Path, limit: int, *, dir_fd: int | None = None) -> bytes:
    """The content of a private file of at most `limit` bytes. Raises NotPrivate (too large, too) and OSError."""
    fd = open_private(path, dir_fd=dir_fd)
    try:
        content = b""
        while len(content) <= limit and (piece := os.read(fd, limit + 1 - len(content))):
            content += piece
    finally:
        os.close(fd)
    if len(content) > limit:
        raise NotPrivate(f"{path} is larger than {limit} bytes: it is not ours, move it away")
    return content


def write_all(fd: int, content: bytes) -> None:
    """All of it, in as many writes as that takes. Raises OSError, and then some of it may be written."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def write_new(path: Path, content: bytes, *, dir_fd: int | None = None) -> None:
    """Write a file that is not there yet (0600) and make it durable. Raises OSError, and then leaves no file."""
    name: str | Path = path if dir_fd is None else path.name
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=dir_fd)
    try:
        try:
            write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        os.unlink(name, dir_fd=dir_fd)
        raise


def unlink_if_there(name: str, folder: int) -> None:
    """Remove the file of that name in the folder, which is open. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def atomic_write(path: Path, content: bytes) -> None:
    """Replace the file, or make it (0600), so that a reader or a crash sees the old content or the new, durably.

    Raises OSError (disk full, no such folder), which names the path; the old content is then still there.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(6).hex()}.tmp")
        write_new(temporary, content, dir_fd=folder)
        try:
            os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary.name, dir_fd=folder)
            raise
        os.fsync(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(folder)
