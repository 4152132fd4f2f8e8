"""What `hpcdl doctor --security` looks at: who could read, write, reach or overhear this installation.

It tries what a stranger would try, with its own rights: it changes nothing and sends no secret. This file: folders and
files, viewers, the machine; `daemonchecks`: what runs.
"""

import contextlib
import os
import re
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

from hpcdl.agent.folder import is_local
from hpcdl.cli import daemonchecks as running
from hpcdl.cli.checks import Check, fail, ok, warn
from hpcdl.cli.daemonchecks import some
from hpcdl.config import Config, ConfigError, load_config
from hpcdl.core.units import count, fold_nodes
from hpcdl.daemon.viewers import group_id
from hpcdl.wire.access import NAME
from hpcdl.wire.private import NotPrivate, open_private_folder
from hpcdl.wire.viewer import folder_of

FILES_LIMIT = 50_000


def security_checks(home: Path) -> Iterator[Check]:
    """All of them."""
    yield from _home(home)
    try:
        config = load_config(home)
    except (ConfigError, OSError) as error:
        yield fail("settings", str(error), "correct it, then look again")
        return
    around, said = running.look_around(home)
    yield said
    yield _sockets(home)
    yield from running.listeners(around)
    yield running.certificate(around)
    yield _viewers(config)
    yield running.checkpoints(around)
    yield running.ports(around)
    yield running.arguments(around)
    yield from machine(around.access.pid if around.access is not None else None)


# --- files ------------------------------------------------------------------------------------------------------------


def _home(home: Path) -> Iterator[Check]:
    try:
        os.close(open_private_folder(home))
    except FileNotFoundError:
        yield ok("home", f"{home} is made at the first start, for you alone (mode 0700)")
        return
    except (NotPrivate, OSError) as error:
        yield fail("home", str(error), f"chmod 700 {home}, or name another folder with --home")
        return
    above = [str(each) for each in home.resolve().parents if _open_to_writers(each)]
    if above:
        detail = f"others may rename what is on the way to it: {some(above)}"
        yield fail("home", detail, f"chmod go-w {above[0]}, or set its sticky bit")
    else:
        yield ok("home", f"{home}, yours alone, and so is the way to it")
    yield files_below(home)


def _open_to_writers(folder: Path) -> bool:
    """Whether somebody else than its owner may put another folder in the place of one in it."""
    info = folder.stat()
    others = info.st_uid not in (0, os.geteuid())
    return others or (bool(info.st_mode & 0o022) and not info.st_mode & stat.S_ISVTX)


def files_below(home: Path) -> Check:
    """Every file below, whose it is and who may do what with it; checkpoints and logs are the jobs' own."""
    wrong, open_, seen = list[str](), list[str](), 0
    for path, info in _below(home):
        seen += 1
        mode = stat.S_IMODE(info.st_mode)
        inside = path.relative_to(home).parts[0]
        link = stat.S_ISLNK(info.st_mode)
        if info.st_uid != os.geteuid():
            wrong.append(f"{path} belongs to uid {info.st_uid}")
        elif link and inside not in ("checkpoints", "sites", "profiles"):
            wrong.append(f"{path} is a link")
        elif inside in (NAME, "tls") and not stat.S_ISDIR(info.st_mode) and info.st_nlink > 1:
            wrong.append(f"{path} has another name elsewhere")
        elif not link and mode & 0o022 and not stat.S_ISSOCK(info.st_mode):
            wrong.append(f"{path} may be written by others (mode {mode:04o})")
        elif not link and mode & 0o055 and inside not in ("checkpoints",) and not stat.S_ISSOCK(info.st_mode):
            open_.append(f"{path} (mode {mode:04o})")
        if seen >= FILES_LIMIT:
            break
    if wrong:
        return fail("files", some(wrong), "move away what is not yours; chmod go= what is")
    if open_:
        return warn("files", f"open to readers but for the folder round them: {some(open_)}", f"chmod -R go= {home}")
    more = f" (the first {FILES_LIMIT} of them)" if seen >= FILES_LIMIT else ""
    return ok("files", f"{count(seen, 'file')} below it{more}: yours, and nobody else may write one")


def _below(home: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder, names, others in os.walk(home):
        for name in (*names, *others):
            path = Path(folder, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue  # gone since


def _sockets(home: Path) -> Check:
    """Where agents keep their sockets."""
    folder = home / "run"
    if not is_local(home):
        below = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  as the agent does
        folder = Path(below) / f"hpcdl-{os.geteuid()}"
    try:
        os.close(open_private_folder(folder))
    except FileNotFoundError:
        return ok("sockets", f"{folder} is made by the first agent of a node, for you alone")
    except (NotPrivate, OSError) as error:
        return fail("sockets", str(error), "move it away: the agent makes another")
    return ok("sockets", f"in {folder}, yours alone; peers are known by their uid")


def _viewers(config: Config) -> Check:
    path = folder_of(Path(config.viewers_folder), os.geteuid())
    try:
        info = path.lstat()
    except OSError:
        pass
    else:
        if info.st_uid != os.geteuid() or not stat.S_ISDIR(info.st_mode):
            detail = f"{path} belongs to uid {info.st_uid}: viewers do not see your daemons on this node"
            return warn("viewers", detail, "tell the admins: somebody took that name")
        if info.st_mode & 0o022:
            return fail("viewers", f"{path} may be written by others", f"chmod 755 {path}")
    name = config.viewers_group
    if name is None:
        return ok("viewers", "root alone may look, and sees no commands and no environments")
    try:
        group_id(name, config.origin("viewers_group"))
    except ConfigError as error:
        return fail("viewers", str(error), "name another group, or none")
    import grp

    members = grp.getgrnam(name).gr_mem
    detail = (
        f"the group {name} ({count(len(members), 'member')} by name: {fold_nodes(members[:20]) or 'none'}) may look"
    )
    return ok("viewers", f"{detail}, as root may; no commands, no environments")


# --- the machine ------------------------------------------------------------------------------------------------------


def machine(daemon: int | None) -> Iterator[Check]:
    """What the machine's admins decide. `daemon`: its pid here, None without one."""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope:
        yield ok("ptrace", f"processes of yours cannot read each other's memory (ptrace_scope {scope})")
    else:
        detail = "any process of yours, a job too, can read the daemon's memory and its token (ptrace_scope 0)"
        yield warn("ptrace", detail, "run only jobs that you trust; admins can set ptrace_scope to 1")
    hidden = _hidepid(Path("/proc/self/mountinfo"))
    if hidden:
        yield ok("processes", "others do not see yours (hidepid)")
    else:
        step = "keep secrets out of arguments; admins can mount /proc with hidepid=2"
        yield warn("processes", "others see the command lines of your jobs, as on most machines", step)
    yield core_dumps(daemon)


def _hidepid(mounts: Path) -> bool:
    with contextlib.suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            if left.split()[4:5] == ["/proc"] and re.search(r"hidepid=([12]|invisible|noaccess)\b", right):
                return True
    return False


def core_dumps(daemon: int | None) -> Check:
    """Whether a crash would write the daemon's memory, with its token, to disk."""
    soft = resource.getrlimit(resource.RLIMIT_CORE)[0] if daemon is None else _core_limit(daemon)
    if soft == 0:
        return ok("core dumps", "off")
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    except OSError:
        pattern = "?"
    where = f"to {pattern}" if pattern.startswith(("|", "/")) else "into the folder that a process is in"
    detail = f"on, {where}: a crash would write the token there"
    return warn("core dumps", detail, "ulimit -c 0 before hpcdl daemon start, unless you need them")


def _core_limit(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max core file size"):
                soft = line.split()[4]
                return -1 if soft == "unlimited" else int(soft)
    return 0
