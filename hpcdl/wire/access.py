"""The access file: where a daemon listens, what its certificate is, and the token that opens it.

It is checked at every read, for whoever can write it can have a client send the token, and commands, elsewhere.
Standard library only: the command line reads it at each start.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.wire.private_files import NotPrivate, atomic_write, make_private_folder, open_private_folder, read_private

NAME = "access.json"
VERSION = 1
LIMIT = 64 * 1024  # bytes; a certificate has under 1 KiB
_START = "start a daemon with: hpcdl daemon start"
_AGAIN = "a daemon that runs writes it anew within 10 s; where none does, hpcdl daemon start does"


class AccessError(Exception):
    """No access: the message is one line that says why and names the next step."""


class NoAccessFile(AccessError):
    """There is no access file at the moment of the read: no daemon was started, or it has ended in order."""


class CopiedHome(AccessError):
    """The folder is a copy of a home: its access file leads to the daemon of the original; none runs on the copy."""


@dataclass(frozen=True, slots=True)
class AccessFile:
    """What a client needs to speak to the daemon of one HPCDL_HOME. Raises ValueError where a field cannot be right."""

    instance: str  # names this HPCDL_HOME's daemon across its restarts
    host: str
    port: int
    certificate: str = field(repr=False)  # PEM
    token: str = field(repr=False)
    pid: int
    fence: int
    version: int = VERSION

    def __post_init__(self) -> None:
        for name in ("instance", "host", "token"):
            text: object = getattr(self, name)
            if not isinstance(text, str) or not text.isascii() or not text.isprintable() or not text or " " in text:
                raise ValueError(f"{name} must be visible ASCII characters")
        for name, most in (("port", 65535), ("pid", 2**31 - 1), ("fence", 2**63), ("version", 2**31)):
            number: object = getattr(self, name)
            if type(number) is not int or not 1 <= number <= most:
                raise ValueError(f"{name} must be a whole number from 1 to {most}, not {number!r:.40}")
        if len(self.token) < 32:
            raise ValueError(f"token must have 32 characters or more, not {len(self.token)}")
        certificate: object = self.certificate
        if not isinstance(certificate, str) or "-----BEGIN CERTIFICATE-----" not in certificate:
            raise ValueError("certificate must be PEM")


def write_access(home: Path, access: AccessFile) -> None:
    """Put the access file in place, durably and at once. Raises NotPrivate for an open folder, OSError from writing."""
    make_private_folder(home)
    body = {name: getattr(access, name) for name in AccessFile.__dataclass_fields__}
    body["home"] = os.path.realpath(home)
    body["inode"], body["changed"] = folder_marks(home)
    atomic_write(home / NAME, json.dumps(body, indent=1).encode() + b"\n")


def folder_marks(home: Path) -> tuple[int, int]:
    """What a home keeps where it is moved, of which a copy has another: its inode, and when the file with its name was
    last changed, in ns (0 where there is none). A mount may show another inode of the same folder. Raises OSError."""
    try:
        changed = os.stat(home / "tls" / "instance").st_ctime_ns
    except FileNotFoundError:
        changed = 0
    return os.stat(home).st_ino, changed


def read_access(home: Path) -> AccessFile:
    """The access file of the daemon of `home`, all checks made. Raises AccessError, whatever is wrong:
    NoAccessFile where there is none, so that nobody has to look again, when a daemon may just have written it.

    That of a copied folder is still the original's: its daemon would be stopped by who means the copy. A folder that
    was moved, or that a node mounts elsewhere, has another path, but one of its `folder_marks`.
    """
    path = home / NAME
    try:
        folder = open_private_folder(home)
        try:
            content = read_private(path, LIMIT, dir_fd=folder)
            marks = folder_marks(home)
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise NoAccessFile(f"no daemon has been started on {home}: {_START}") from None
    except NotPrivate as error:
        raise AccessError(str(error)) from None
    except OSError as error:
        raise AccessError(f"cannot read {path}: {error.strerror}") from None
    return _parse(content, path, marks)


def _parse(content: bytes, path: Path, marks: tuple[int, int]) -> AccessFile:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise AccessError(f"{path} is damaged (not JSON): {_AGAIN}") from None
    if not isinstance(body, dict):
        raise AccessError(f"{path} is damaged (not a JSON object): {_AGAIN}")
    if body.get("version") != VERSION:
        raise AccessError(
            f"{path} has version {body.get('version')!r:.20}, this hpcdl reads {VERSION}: use the hpcdl of its daemon"
        )
    inode, changed = marks
    elsewhere, was = body.get("home") != os.path.realpath(path.parent), body.get("changed")
    if body.get("inode", inode) != inode and (was != changed if was and changed else elsewhere):
        whose, other = "the home that was here, or is on another host", ""
        if elsewhere:
            whose, other = f"{str(body.get('home'))!r:.300}", "; for the other, name its folder with --home"
        raise CopiedHome(
            f"{path.parent} is a copy of {whose}, whose daemon is not this one's: hpcdl daemon start starts one "
            f"here{other}"
        )
    known = {name: body[name] for name in AccessFile.__dataclass_fields__ if name in body}
    try:
        return AccessFile(**known)
    except TypeError:
        missing = ", ".join(name for name in AccessFile.__dataclass_fields__ if name not in body)
        raise AccessError(f"{path} is damaged (it has no {missing}): {_AGAIN}") from None
    except ValueError as error:
        raise AccessError(f"{path} is damaged ({error}): {_AGAIN}") from None
