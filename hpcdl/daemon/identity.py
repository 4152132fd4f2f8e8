"""What an instance keeps for its life: its name, token, certificate and key, below `$HPCDL_HOME/tls` (0700).

Nothing of it is in a message or a log but the name. Beside it is where the home was at its last start, by which a home
that was moved is told from a copy. Neighbours: `wire/access` has what clients read of it, `wire/tls` makes the
certificate.
"""

import errno
import json
import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.daemon.birth_time import birth_time_ns
from hpcdl.wire.access import NAME as ACCESS
from hpcdl.wire.access import folder_marks
from hpcdl.wire.private_files import NotPrivate, atomic_write, make_private_folder, read_private
from hpcdl.wire.tls import make_certificate

LIMIT = 64 * 1024
PLACE = "place.json"
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True)
class Identity:
    """`instance` names this HPCDL_HOME to agents and in the tags of processes; it is no secret, `token` is."""

    instance: str
    token: str = field(repr=False)
    certificate: str = field(repr=False)
    certificate_path: Path
    key_path: Path


def load_identity(home: Path, now: float) -> Identity:
    """The identity of a home, made at the first start. Raises NotPrivate where others could write it, and OSError."""
    folder = home / "tls"
    make_private_folder(folder)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not certificate.exists() or not key.exists():
        made_certificate, made_key = make_certificate((socket.gethostname(), socket.getfqdn()), now=now)
        atomic_write(key, made_key)
        atomic_write(certificate, made_certificate)
    return Identity(
        instance=_kept(folder / "instance", 6),
        token=_kept(folder / "token", 32),
        certificate=read_private(certificate, LIMIT).decode(),
        certificate_path=certificate,
        key_path=key,
    )


@dataclass(frozen=True, slots=True)
class Original:
    """Where the home was at its last start of which this folder is a copy. `host`: "" where it was on this one.
    `in_place`: it was here, so that the copy was put back."""

    path: Path
    host: str = ""
    in_place: bool = False

    def __str__(self) -> str:
        return f"{self.path} on {self.host}" if self.host else str(self.path)


def original_of(home: Path) -> Original | None:
    """The home of which this folder is a copy; None where it is the one that it was at its last start, moved or mounted
    elsewhere maybe, or where nobody knows.

    What is moved keeps its inodes, and files the times of their last changes, whichever inodes a mount shows; nothing
    that copies can set these times. Three inodes, for one that was freed is soon another's; at the path where it was
    all of them may be, and the times alone count: of last changes several, since a chmod changes one; a chmod of all
    leaves those when they were made.
    """
    with suppress(OSError, NotPrivate, ValueError, KeyError, TypeError, RecursionError):
        if not (home / "tls" / PLACE).exists():
            beside = _original_beside(home)
            return None if beside is None else Original(beside)
        place = json.loads(read_private(home / "tls" / PLACE, LIMIT))
        (inodes, changed), here = _marks(home), (place["host"], place["machine"]) == _machine()
        in_place = here and place["home"] == os.path.realpath(home)
        anew = all(now != before for now, before in zip(changed, place["changed"], strict=True))
        kept = bool(place.get("born")) and _born(home) == place["born"]
        if anew and not (inodes == place["inodes"] and (kept or not in_place)):
            return Original(Path(place["home"]), "" if here else str(place["host"]), in_place)
    return None


def keep_place(home: Path) -> None:
    """Note where the home is, whose lease is held, for the next start. Raises OSError."""
    (inodes, changed), (host, machine) = _marks(home), _machine()
    body = {"v": 1, "home": os.path.realpath(home), "inodes": inodes, "changed": changed, "host": host}
    body |= {"machine": machine, "born": _born(home)}
    atomic_write(home / "tls" / PLACE, json.dumps(body).encode() + b"\n")


def _marks(home: Path) -> tuple[list[int], list[int]]:
    """Inodes, and times of last changes in ns."""
    inode, changed = folder_marks(home)
    inodes = [inode, *((home / name).stat().st_ino for name in ("tls", "tls/instance"))]
    return inodes, [changed, *((home / "tls" / name).stat().st_ctime_ns for name in ("token", "key.pem"))]


def _born(home: Path) -> list[int]:
    """When the files were made whose inodes count, in ns; empty where that is not known of all."""
    times = [birth_time_ns(home / name) for name in (".", "tls", "tls/instance")]
    return [time for time in times if time is not None] if None not in times else []


def _machine() -> tuple[str, str]:
    """This machine's name and id: two clusters may each have a login1, and an image may have come to many nodes."""
    with suppress(OSError):
        return socket.gethostname(), _MACHINE_ID.read_text(encoding="ascii", errors="replace").strip()
    return socket.gethostname(), ""


def _original_beside(home: Path) -> Path | None:
    """Of a home that an earlier version has left, or that came without `tls`: that of which it is a copy, where that is
    still there and both have one instance's name, or this one has none."""
    with suppress(OSError, NotPrivate, ValueError, KeyError, TypeError, RecursionError):
        body = json.loads(read_private(home / ACCESS, LIMIT))
        original = Path(body["home"])
        # By inode alone: one folder that is mounted twice may be shown on two devices.
        if home.stat().st_ino == original.stat().st_ino or _are_one(home, original):
            return None
        if not (home / "tls" / "instance").exists():
            return original
        same = [read_private(each / "tls" / "instance", LIMIT) for each in (home, original)]
        return original if same[0] == same[1] else None
    return None


def _are_one(home: Path, other: Path) -> bool:
    """Whether two paths lead to one folder that is shown with two inodes, as FUSE and re-exports do: what is written by
    one path is there by the other. Raises OSError."""
    mark = f".{secrets.token_hex(8)}"
    (home / mark).touch(mode=0o600)
    try:
        return (other / mark).exists()
    finally:
        (home / mark).unlink()


def forget_agents(home: Path) -> None:
    """Of a copied home, whose lease is held: what the agents of the original kept leads to processes of theirs."""
    with suppress(FileNotFoundError):
        shutil.rmtree(home / "run")


def begin_apart(home: Path) -> None:
    """Make a copied home one of its own, whose lease is held: with the original's name it would end what runs there. It
    is not known as a copy any more: at once, for what is killed in between would keep the name alone."""
    away = home / f".tls-{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        (home / "tls").rename(away)
        shutil.rmtree(away)


def node_name(home: Path, given: str | None, default: str) -> str:
    """This machine's node name: `given` (kept for the next start), else what was given here last, else `default`.

    Jobs wait for the node by its name, so a restart must not change it. Raises as `load_identity`.
    """
    path = home / "node.json"
    host = socket.gethostname()
    if given is not None:
        atomic_write(path, json.dumps({"host": host, "node": given}).encode() + b"\n")
        return given
    try:
        kept = json.loads(read_private(path, LIMIT))
    except (FileNotFoundError, ValueError, RecursionError):
        return default
    of_this_host = isinstance(kept, dict) and kept.get("host") == host and isinstance(kept.get("node"), str)
    return str(kept["node"]) if of_this_host else default


def _kept(path: Path, size: int) -> str:
    if not path.exists():
        atomic_write(path, secrets.token_hex(size).encode())
    text = read_private(path, LIMIT).strip()
    if re.fullmatch(rb"[0-9a-f]+", text) is None or len(text) < 2 * size:
        raise OSError(errno.EINVAL, "it is damaged (remove it, and the start makes a new one)", str(path))
    return text.decode()
