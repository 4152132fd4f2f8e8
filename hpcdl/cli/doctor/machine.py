"""Checks of `hpcdl doctor` that concern this machine: Python, packages, HPCDL_HOME, GPUs, the daemon, the clock.

Each is OK, WARN or FAIL, with what was found and the next step. What they try in HPCDL_HOME they remove again.
"""

import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from hpcdl import __version__
from hpcdl.agent.folder import mount_of
from hpcdl.agent.gpu.discovery import discover
from hpcdl.agent.mps import listens
from hpcdl.cli.doctor.file_system import meaning_of
from hpcdl.client import Client, ClientError, DaemonAway
from hpcdl.config.layers import conf_folder
from hpcdl.config.settings import Config
from hpcdl.core.model.units import count, seconds_text
from hpcdl.daemon.clock import WallClock
from hpcdl.wire.access import NAME
from hpcdl.wire.last_start import start_command
from hpcdl.wire.private_files import NotPrivate, open_private_folder

SKEW_S = 5.0
"""Clocks that are further apart confuse people who compare times; nothing in hpcdl is decided by another's clock."""

FREE_MIB = 1024
OLDEST = 1_704_067_200.0  # 2024: a clock before it was never set


class CheckState(StrEnum):
    """The verdict of a check. FAIL: hpcdl cannot work. WARN: it works, at a cost."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, verdict, what was found, and the next step ("" where none is needed)."""

    name: str
    state: CheckState
    detail: str
    next: str = ""


def ok(name: str, detail: str, next: str = "") -> Check:
    """A check that found nothing wrong."""
    return Check(name, CheckState.OK, detail, next)


def warn(name: str, detail: str, next: str) -> Check:
    """A check of something that works at a cost."""
    return Check(name, CheckState.WARN, detail, next)


def fail(name: str, detail: str, next: str) -> Check:
    """A check of something that hpcdl cannot work with."""
    return Check(name, CheckState.FAIL, detail, next)


def local_checks(home: Path) -> Iterator[Check]:
    """The checks of this machine, in the order in which one depends on the other."""
    yield python()
    yield packages()
    yield from folder(home)
    yield gpus()
    yield daemon(home)
    yield clock(home)


def python() -> Check:
    """The check of this interpreter; hpcdl does not install on one that is too old."""
    return ok("python", f"{platform.python_version()} ({sys.executable})")


def packages() -> Check:
    """The check of hpcdl and the packages that it needs."""
    try:
        needed = metadata.requires("hpcdl") or []
    except metadata.PackageNotFoundError:
        needed = []
    names = [match[0] for each in needed if "extra ==" not in each and (match := re.match(r"[\w.-]+", each))]
    versions, missing = [], []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        step = f"{sys.executable} -m pip install {' '.join(missing)}"
        return fail("packages", f"missing: {', '.join(missing)}", step)
    try:
        conf_folder()
    except FileNotFoundError as error:
        return fail("packages", str(error), "install hpcdl with pip, or run it from its checkout")
    return ok("packages", f"hpcdl {__version__}: {', '.join(versions) or 'requirements not recorded'}")


def folder(home: Path) -> Iterator[Check]:
    """The checks of HPCDL_HOME: whose it is, how full, on what file system."""
    other = "name another folder with --home or HPCDL_HOME"
    try:
        descriptor = open_private_folder(home)
    except FileNotFoundError:
        above = next(parent for parent in home.parents if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            yield fail("home", f"{home} cannot be made: {above} is not writable", other)
            return
        yield ok("home", f"{home} is made at the first start")
    except (NotPrivate, OSError) as error:
        yield fail("home", str(error), other)
        return
    else:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.close(descriptor)
        if not os.access(home, os.W_OK | os.X_OK):
            yield fail("home", f"{home} is not writable (mode {mode:04o})", f"chmod 700 {home}")
            return
        yield ok("home", f"{home}, yours alone (mode {mode:04o})")
    yield file_system(home)


def file_system(home: Path) -> Check:
    """The check of what the file system of HPCDL_HOME means for the ledger and the lease."""
    mount = mount_of(home)
    place = next(each for each in (home, *home.parents) if each.exists())
    free_mib = shutil.disk_usage(place).free >> 20
    where = f"{mount.kind} on {mount.point}, {free_mib / 1024:.1f} GiB free"
    if not _links(home):
        return fail("file system", f"{where}: no hard links, which the lease is made of", "set HPCDL_HOME elsewhere")
    if free_mib < FREE_MIB:
        return warn("file system", f"{where}: submits are refused when it is full", "free some of it")
    if mount.kind in ("tmpfs", "ramfs"):
        return warn("file system", f"{where}: all is lost when the machine boots", "set HPCDL_HOME elsewhere")
    meaning = meaning_of(mount)
    if meaning is not None:
        state = CheckState.OK if meaning.fine else CheckState.WARN
        return Check("file system", state, f"{where}: {meaning.text}", meaning.step)
    return ok(
        "file system",
        f"{where} (this machine's alone: a daemon whose agents are on other nodes needs a folder that all see)",
    )


def local_checkpoints(root: str | None) -> Iterator[Check]:
    """The check of the folder in which jobs on this machine save first, where there is to be one."""
    if root is None:
        return
    name, path = "local_checkpoints", Path(os.path.expandvars(root))
    if not path.is_absolute() or not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        why = f"{path} is no folder here that you may write in: jobs on this machine save straight to their folders"
        yield warn(name, why, "make it on the nodes that have GPUs, or name another one; elsewhere it does no harm")
    elif (mount := mount_of(path)).shared:
        yield warn(name, f"{path} is on {mount.kind}, which other nodes share", "name a folder on a disk of the node")
    else:
        free = shutil.disk_usage(path).free >> 20
        yield ok(name, f"{path}, on {mount.kind}, {free} MiB free")


def sharing(config: Config) -> Check:
    """The check of what jobs that share GPUs have here; all that only a GPU can show is said to be untried."""
    where = "on" if config.sharing or config.policy == "deeppool" else "off"
    untried = "MPS, stream priorities, bounded launches and bans have not yet run on a GPU (docs/deeppool.md)"
    pipes = config.mps_pipe_directory
    if pipes is None:
        return ok("sharing", f"{where}, without MPS; {untried}")
    if listens(pipes):
        return ok("sharing", f"{where}; an MPS server listens in {pipes}; {untried}")
    step = "start nvidia-cuda-mps-control -d on the nodes that have GPUs; elsewhere it does no harm"
    return warn("sharing", f"{where}; no MPS server listens in {pipes} here; {untried}", step)


def _links(home: Path) -> bool:
    """Whether hard links can be made there; True where there is no folder yet to try it in."""
    if not home.is_dir():
        return True
    one, two = (home / f".doctor-{os.getpid()}-{number}" for number in (1, 2))
    try:
        os.close(os.open(one, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.link(one, two)
    except OSError:
        return False
    finally:
        for path in (one, two):
            path.unlink(missing_ok=True)
    return True


def gpus() -> Check:
    """The check of this machine's GPUs."""
    with closing(discover(None, Path())) as source:
        found = source.list()
        detail = source.detail
    if not found:
        step = "on a login node that is right; hpcdl daemon start --emulate-gpus N tries hpcdl out without any"
        return warn("gpus", f"none: {detail}", step)
    names = sorted({gpu.name for gpu in found})
    return ok("gpus", f"{count(len(found), 'GPU')} by {source.name}: {', '.join(names)}")


def daemon(home: Path) -> Check:
    """The check of whether a daemon answers, and of which version."""
    try:
        with Client(home, patience_s=0.0) as client:
            answer = client.get("/v1/status")["daemon"]
    except DaemonAway as error:
        if (home / NAME).exists():
            return warn("daemon", str(error), f"{start_command(home)}, or go on in the next allocation")
        return ok("daemon", f"none runs for {home}", start_command(home))
    except ClientError as error:
        return fail("daemon", str(error), f"hpcdl daemon stop, then remove {home / NAME}")
    version = "" if answer["version"] == __version__ else f", of hpcdl {answer['version']}"
    up = f"up for {seconds_text(answer['since_s'])}"
    detail = f"pid {answer['pid']} on {answer['host']}, {up}{version}"
    if version:
        return warn("daemon", detail, "use the same hpcdl: stop it and start it again")
    return ok("daemon", detail)


def clock(home: Path) -> Check:
    """The check of this machine's clock against that of the folder's file server."""
    now = WallClock(0.0).now()
    if now < OLDEST:
        return fail("clock", "it was never set", "have the time set: certificates depend on it")
    if not home.is_dir():
        return ok("clock", "set")
    path = home / f".doctor-{os.getpid()}-clock"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        skew = path.stat().st_mtime - WallClock(0.0).now()
    except OSError as error:
        return warn("clock", f"{home}: {error.strerror}", "see the check `home`")
    finally:
        path.unlink(missing_ok=True)
    if abs(skew) > SKEW_S:
        detail = f"the file server's clock is {seconds_text(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
        return warn("clock", detail, "tell the admins; hpcdl goes by durations, only shown times differ")
    return ok("clock", "set, and like that of the file system")
