"""The viewer file: what root, or a group that the user named, needs to look at a daemon, and nothing that acts on it.

It lies in `HPCDL_HOME/viewer.json` (0600), and on the daemon's node in `SHARED/hpcdl-viewers-UID/INSTANCE.json`, 0640
where there is a group of viewers. Who reads them may be root, and who wrote them may be hostile: every check is made on
an open descriptor, nothing is followed, waited for or written, and no field is believed that the file's owner could not
have had anyway. Standard library only.
"""

import errno
import ipaddress
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.wire.private_files import atomic_write, unlink_if_there

NAME = "viewer.json"
VERSION = 1
LIMIT = 64 * 1024  # bytes
FOLDERS_LIMIT = 4096
FILES_LIMIT = 64
"""So many users, and daemons of one user, are looked at; there are no more on one machine, unless somebody means it."""
LOWEST_PORT = 1024
"""Below it only root listens, and a daemon never does: nobody is to have root dial other services."""

_PREFIX = "hpcdl-viewers-"
_FOLDER = re.compile(r"hpcdl-viewers-(0|[1-9][0-9]{0,9})")
_FILE = re.compile(r"[A-Za-z0-9_-]{1,64}\.json")
_INSTANCE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


class NotViewable(Exception):
    """A viewer file that cannot be used; one line says why."""


@dataclass(frozen=True, slots=True)
class ViewerFile:
    """What a reader needs to ask one daemon. Raises ValueError where a field cannot be right."""

    instance: str
    address: str  # a number, never a name: nothing is looked up
    port: int
    certificate: str = field(repr=False)  # PEM
    token: str = field(repr=False)
    pid: int
    uid: int
    home: str
    node: str  # the host's name; the pid means something there only
    version: int = VERSION

    def __post_init__(self) -> None:
        for name, form in (("instance", _INSTANCE), ("token", _TOKEN)):
            text: object = getattr(self, name)
            if not isinstance(text, str) or form.fullmatch(text) is None:
                raise ValueError(f"{name} is not one of hpcdl's")
        for name, longest in (("home", 4096), ("node", 255), ("certificate", LIMIT), ("address", 64)):
            text = getattr(self, name)
            if not isinstance(text, str) or not 0 < len(text) <= longest:
                raise ValueError(f"{name} must be a text of 1 to {longest} characters")
        for name, least, most in (
            ("port", LOWEST_PORT, 65535),
            ("pid", 1, 2**31 - 1),
            ("uid", 0, 2**32),
            ("version", 1, 2**31),
        ):
            number: object = getattr(self, name)
            if type(number) is not int or not least <= number <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}")
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:
            raise ValueError("address must be a number, not a name") from None
        if address.is_multicast or address.is_unspecified:
            raise ValueError("address is nobody's")
        if "-----BEGIN CERTIFICATE-----" not in self.certificate:
            raise ValueError("certificate must be PEM")


@dataclass(frozen=True, slots=True)
class ViewerFilePlace:
    """One place where a viewer file may be: the file, or one line that says why it cannot be used.

    `path`: of the file; `uid`: its owner, or its folder's, None where that is not known.
    """

    path: str
    uid: int | None
    viewer: ViewerFile | None
    problem: str = ""


def folder_of(shared: Path, uid: int) -> Path:
    """Where the daemons of one user publish on this node."""
    return shared / f"{_PREFIX}{uid}"


# --- the daemon's side ------------------------------------------------------------------------------------------------


def keep(home: Path, viewer: ViewerFile) -> None:
    """Put it beside access.json, for whoever may read the user's files anyway. Raises OSError."""
    atomic_write(home / NAME, _content(viewer))


def publish(shared: Path, viewer: ViewerFile, gid: int | None) -> None:
    """Put it where others find it: `gid` reads it, without one nobody but its owner and root. Raises OSError."""
    try:
        _publish(shared, viewer, gid)
    except FileNotFoundError:
        _publish(shared, viewer, gid)  # another daemon of ours ended just now, and took the empty folder away


def _publish(shared: Path, viewer: ViewerFile, gid: int | None) -> None:
    path = folder_of(shared, os.geteuid())
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    folder = _open_folder(path)
    try:
        info = os.fstat(folder)
        if info.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to uid {info.st_uid}, who took the name", str(path))
        os.fchmod(folder, 0o755)  # that there is a daemon anybody may know; each file says who may read it
        for name in _names(folder):
            if _stale(folder, name):
                unlink_if_there(name, folder)
        name, temporary = f"{viewer.instance}.json", f".{viewer.instance}.{os.getpid()}-{os.urandom(6).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(_content(viewer))
                if gid is not None:
                    os.fchown(out.fileno(), -1, gid)
                    os.fchmod(out.fileno(), 0o640)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            unlink_if_there(temporary, folder)
            raise
    finally:
        os.close(folder)


def withdraw(home: Path, shared: Path, viewer: ViewerFile) -> None:
    """Take both away at the daemon's end, unless they are another daemon's by now. Raises OSError."""
    places = ((home, NAME), (folder_of(shared, os.geteuid()), f"{viewer.instance}.json"))
    for path, name in places:
        try:
            folder = _open_folder(path)
        except FileNotFoundError:
            continue
        try:
            if os.fstat(folder).st_uid == os.geteuid() and _viewer_in(folder, name) == viewer:
                unlink_if_there(name, folder)
        finally:
            os.close(folder)
    try:
        os.rmdir(places[1][0])
    except OSError:
        pass  # others of ours run on, or it was never made


def _content(viewer: ViewerFile) -> bytes:
    return json.dumps({name: getattr(viewer, name) for name in ViewerFile.__dataclass_fields__}).encode() + b"\n"


def _stale(folder: int, name: str) -> bool:
    viewer = _viewer_in(folder, name)
    return viewer is not None and gone(viewer)


def _viewer_in(folder: int, name: str) -> ViewerFile | None:
    """What the file holds; None where it is not there, or not ours to judge."""
    try:
        return _parsed(_read(folder, name, os.geteuid(), None))
    except (NotViewable, OSError):
        return None


# --- the reader's side ------------------------------------------------------------------------------------------------


def gone(viewer: ViewerFile) -> bool:
    """Whether its daemon is surely gone: it was on this machine, and nobody has its pid."""
    if viewer.node != os.uname().nodename:
        return False
    try:
        os.kill(viewer.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def users(shared: Path) -> list[int]:
    """The users whose daemons are published on this node, by the names of their folders. Raises OSError, but not where
    there is no such folder."""
    try:
        names = os.listdir(shared)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _FOLDER.fullmatch(name)))[:FOLDERS_LIMIT]


def of_user(shared: Path, uid: int) -> Iterator[ViewerFilePlace]:
    """Every viewer file of this user that may be read; never raises OSError.

    One that may not be read is no problem but its owner's wish, and left out. Nobody can speak for another: the folder,
    the files and what they say must be of this uid. May hang where the user mounted a file system that does.
    """
    base = os.open(shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _of_user(base, folder_of(shared, uid), uid, os.fstat(base).st_dev)
    finally:
        os.close(base)


def _of_user(base: int, path: Path, uid: int, device: int) -> Iterator[ViewerFilePlace]:
    try:
        folder = _open_folder(path, base)
    except PermissionError:
        return
    except (OSError, NotViewable) as error:
        yield ViewerFilePlace(str(path), None, None, f"{path} is no folder of viewer files: {_words(error)}")
        return
    try:
        info = os.fstat(folder)
        if info.st_uid != uid:
            yield ViewerFilePlace(
                str(path), info.st_uid, None, f"{path} belongs to uid {info.st_uid}, not to uid {uid}"
            )
        elif info.st_dev != device:
            yield ViewerFilePlace(str(path), None, None, f"something is mounted on {path}")
        elif info.st_mode & 0o022:
            yield ViewerFilePlace(
                str(path), uid, None, f"{path} can be written by others (mode {info.st_mode & 0o7777:04o})"
            )
        else:
            for name in _names(folder):
                yield from _file(folder, path / name, uid, device)
    finally:
        os.close(folder)


def in_home(home: Path) -> Iterator[ViewerFilePlace]:
    """The viewer file of one HPCDL_HOME, nothing where there is none; never raises OSError.

    The home may be a link, which is its user's wish; whose the folder behind it is, counts.
    """
    path = Path(os.path.realpath(home))
    try:
        folder = _open_folder(path)
    except FileNotFoundError:
        return
    except (OSError, NotViewable) as error:
        yield ViewerFilePlace(str(path), None, None, f"{path} cannot be read: {_words(error)}")
        return
    try:
        info = os.fstat(folder)
        if info.st_mode & 0o022:
            yield ViewerFilePlace(str(path), info.st_uid, None, f"{path} can be written by others")
        else:
            yield from _file(folder, path / NAME, info.st_uid, None, problem=True)
    finally:
        os.close(folder)


def _file(folder: int, path: Path, uid: int, device: int | None, problem: bool = False) -> Iterator[ViewerFilePlace]:
    """`problem`: one that may not be read is one."""
    try:
        viewer = _parsed(_read(folder, path.name, uid, device))
    except FileNotFoundError:
        return
    except PermissionError as error:
        if problem:
            yield ViewerFilePlace(str(path), uid, None, f"{path} cannot be read: {_words(error)}")
    except (OSError, NotViewable) as error:
        yield ViewerFilePlace(str(path), uid, None, f"{path} is not used: {_words(error)}")
    else:
        if viewer.uid == uid:
            yield ViewerFilePlace(str(path), uid, viewer)
        else:
            yield ViewerFilePlace(str(path), uid, None, f"{path} is not used: it says that it is of uid {viewer.uid}")


def _open_folder(path: Path, base: int | None = None) -> int:
    """Raises NotViewable for what is no folder, a link to one included, and OSError."""
    name: str | Path = path if base is None else path.name
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotViewable("it is a link, or no folder") from None
        raise


def _entries(folder: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name
    except OSError:
        return


def _names(folder: int) -> list[str]:
    """Names of viewer files in a folder, as many as are looked at."""
    found = []
    for name in _entries(folder):
        if _FILE.fullmatch(name):
            found.append(name)
        if len(found) == FILES_LIMIT:
            break
    return sorted(found)


def _read(folder: int, name: str, uid: int, device: int | None) -> bytes:
    """The content of a regular file with one name, of this uid, that only it can write. Raises NotViewable, OSError."""
    try:
        # O_NONBLOCK: a FIFO must not hold us up; O_NOCTTY: nor a terminal become ours.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotViewable("it is a link, or no file") from None
        raise
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise NotViewable("it is no file")
        if info.st_uid != uid or info.st_nlink > 1 or device not in (None, info.st_dev):
            raise NotViewable("it is somebody else's, or has another name too")
        if info.st_mode & 0o133:
            raise NotViewable(f"others can write it (mode {info.st_mode & 0o7777:04o})")
        if info.st_size > LIMIT:
            raise NotViewable(f"it is over {LIMIT} bytes")
        content = b""
        while len(content) <= LIMIT and (piece := os.read(file, LIMIT + 1 - len(content))):
            content += piece
    finally:
        os.close(file)
    if len(content) > LIMIT:
        raise NotViewable(f"it is over {LIMIT} bytes")
    return content


def _parsed(content: bytes) -> ViewerFile:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise NotViewable("it is not JSON") from None
    if not isinstance(body, dict):
        raise NotViewable("it is no JSON object")
    if body.get("version") != VERSION:
        raise NotViewable(f"it has version {body.get('version')!r:.20}, this hpcdl reads {VERSION}")
    try:
        return ViewerFile(**{name: body[name] for name in ViewerFile.__dataclass_fields__ if name in body})
    except TypeError:
        raise NotViewable("it lacks a field") from None
    except ValueError as error:
        raise NotViewable(str(error)) from None


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
