"""Checks of `hpcdl doctor --security`: who could read, write, reach or overhear this installation.

They try what a stranger would try, with its own rights: they change nothing and send no secret. First files and
viewers, then a running daemon with its processes and jobs, then what the machine's admins decide.
"""

import contextlib
import os
import re
import resource
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.agent.folder import is_local
from hpcdl.agent.supervisor.processes import tagged
from hpcdl.cli.doctor.machine import Check, fail, ok, warn
from hpcdl.client import Client, ClientError
from hpcdl.config.layers import ConfigError
from hpcdl.config.settings import Config, load_config
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.daemon.api.viewers import group_id
from hpcdl.daemon.clock import WallClock
from hpcdl.wire.access import NAME, AccessError, AccessFile, read_access
from hpcdl.wire.http_client import HttpConnection, HttpError
from hpcdl.wire.private_files import NotPrivate, open_private_folder
from hpcdl.wire.tls import client_context
from hpcdl.wire.viewer_file import folder_of

FILES_LIMIT = 50_000


def security_checks(home: Path) -> Iterator[Check]:
    """All security checks, each by itself."""
    yield from _home(home)
    try:
        config = load_config(home)
    except (ConfigError, OSError) as error:
        yield fail("settings", str(error), "correct it, then look again")
        return
    around, said = look_around(home)
    yield said
    yield _sockets(home)
    yield from listeners(around)
    yield certificate(around)
    yield _viewers(config)
    yield checkpoints(around)
    yield ports(around)
    yield arguments(around)
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
    """Whether somebody else than its owner could replace a folder in it."""
    info = folder.stat()
    others = info.st_uid not in (0, os.geteuid())
    return others or (bool(info.st_mode & 0o022) and not info.st_mode & stat.S_ISVTX)


def files_below(home: Path) -> Check:
    """The check of every file below HPCDL_HOME: its owner and mode. Checkpoints and logs are the jobs' own."""
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
    """The check of the folder of the agents' sockets."""
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
    """The checks of what the machine's admins decide. `daemon`: its pid here, None without one."""
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
    """The check of whether a crash would write the daemon's memory, with its token, to disk."""
    step = "ulimit -c 0 before hpcdl daemon start, unless you need them"
    try:
        soft, _ = resource.prlimit(daemon or 0, resource.RLIMIT_CORE)
    except ProcessLookupError:
        soft = 0  # it has ended
    except OSError as error:  # it runs under another group of ours, say
        return warn("core dumps", f"the daemon's limit may not be read: {error.strerror}", step)
    if soft == 0:
        return ok("core dumps", "off")
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    except OSError:
        pattern = "?"
    where = f"to {pattern}" if pattern.startswith(("|", "/")) else "into the folder that a process is in"
    detail = f"on, {where}: a crash would write the token there"
    return warn("core dumps", detail, step)


JOBS_LIMIT = 200

TRY_S = 5.0

EXPIRES_S = 30 * 86400.0

SHOWN = 3
"""Of many that are wrong, so many are named."""

_SECRET = re.compile(r"(?i)(pass(word|wd)|secret|api[-_]?key|(access|auth)[-_]?token|private[-_]?key)[=: ]\S{4,}")


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What several checks need. `access`: None without a daemon; `pids`: what each process is; `folders`: by job."""

    home: Path
    access: AccessFile | None
    pids: Mapping[int, str]
    folders: Mapping[int, str]


def some(found: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    return "; ".join(found[:SHOWN]) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


# --- the daemon -------------------------------------------------------------------------------------------------------
def look_around(home: Path) -> tuple[CheckContext, Check]:
    """The context of the checks, and the check of whether a daemon answers."""
    nobody = CheckContext(home, None, {}, {})
    try:
        access = read_access(home)
    except AccessError as error:
        if (home / NAME).exists():
            return nobody, fail("access", str(error), "hpcdl daemon stop, then hpcdl daemon start")
        return nobody, ok("access", "no daemon was started here: what concerns one is not looked at")
    try:
        with Client(home, patience_s=0.0) as client:
            status, rows = client.get("/v1/status"), client.get("/v1/jobs")["jobs"]
            details = [client.get(f"/v1/jobs/{row['id']}")["job"] for row in rows[:JOBS_LIMIT]]
    except ClientError as error:
        return nobody, warn("access", str(error), "start the daemon, then look again")
    pids = _processes(home, status, access.instance)
    folders = {
        int(row["id"]): str(row["spec"]["checkpoint_dir"]) for row in details if row["spec"].get("checkpoint_dir")
    }
    detail = f"{home / NAME}, yours alone; a token of {len(access.token)} characters"
    return CheckContext(home, access, pids, folders), ok("access", detail)


def _processes(home: Path, status: Mapping[str, Any], instance: str) -> dict[int, str]:
    """The processes of this daemon on this machine: what each pid is."""
    found = {process.pid: "a trainer" for process in tagged(instance)}
    if status["daemon"]["host"] == socket.gethostname():
        found[int(status["daemon"]["pid"])] = "the daemon"
    for line in status["trainers"]:
        if int(line["pid"]) in found:
            found[int(line["supervisor"])] = "a supervisor"
    for line in status["agents"]:
        if f"-m hpcdl.agent --home {home} " in _arguments_of(int(line["pid"])):
            found[int(line["pid"])] = "an agent"
    return {pid: what for pid, what in found.items() if _owner(pid) == os.geteuid()}


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def listeners(around: CheckContext) -> Iterator[Check]:
    """The check of where the daemon listens, and what a stranger gets there."""
    access = around.access
    if access is None:
        return
    where = f"{access.host}:{access.port}"
    troubles = [trouble for trouble in (_plain(access), _without_token(access)) if trouble]
    others = [
        f"{what} (pid {pid}) on {address}:{port}"
        for pid, what in around.pids.items()
        if what != "a trainer"
        for address, port in listening(pid)
        if port != access.port
    ]
    if troubles:
        yield fail("listener", f"{where}: {'; '.join(troubles)}", "stop the daemon, and report it")
    elif others:
        yield warn("listener", f"beside {where}: {some(others)}", "see what they are, with ss -ltnp")
    elif access.host in ("127.0.0.1", "::1", "localhost"):
        yield ok("listener", f"{where}, this machine alone; TLS 1.3, and nothing without the token")
    else:
        yield ok("listener", f"{where}, from other machines too; TLS 1.3, and nothing without the token")


def _status(access: AccessFile, path: str, headers: dict[str, str], context: ssl.SSLContext | None) -> int:
    """The status that these headers get from the API, without TLS if `context` is None. Raises OSError, HttpError."""
    with closing(HttpConnection(access.host, access.port, TRY_S, context)) as connection:
        connection.send("GET", f"/v1/{path}", None, headers)
        return connection.receive_status()


def _plain(access: AccessFile) -> str:
    """What is wrong with the answer to a client without TLS; "" for nothing."""
    try:
        _status(access, "status", {}, None)
    except (OSError, HttpError):
        return ""
    return "it answers without TLS"


def _without_token(access: AccessFile) -> str:
    """What is wrong with the answers to clients without the token, or with a wrong one; "" for nothing."""
    told = []
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "c2VjdXJpdHktZG9jdG9yLg==",
    }
    wrong = {"Authorization": f"Bearer {'0' * len(access.token)}"}
    for path, headers in (("status", {}), ("status", wrong), ("agent", upgrade), ("agent", upgrade | wrong)):
        try:
            status = _status(access, path, headers, client_context(access.certificate))
        except (OSError, HttpError) as error:
            told.append(f"/v1/{path}: {error}")
        else:
            if status not in (401, 403):
                told.append(f"/v1/{path} answers {status} to a stranger")
    return some(told)


def certificate(around: CheckContext) -> Check:
    """The check of how long the daemon's certificate is valid."""
    if around.access is None:
        return ok("certificate", "made at the daemon's first start")
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(around.access.certificate.encode())
    except ValueError as error:
        return fail("certificate", f"it is damaged: {error}", "hpcdl daemon stop, then start")
    left_s = found.not_valid_after_utc.timestamp() - WallClock(0.0).now()
    step = f"hpcdl daemon stop, remove {around.home / 'tls' / 'certificate.pem'}, hpcdl daemon start"
    if left_s < 0:
        return warn("certificate", "it is out of date: hpcdl takes it all the same, others do not", step)
    if left_s < EXPIRES_S:
        return warn("certificate", f"it is valid for another {seconds_text(left_s)}", step)
    return ok("certificate", f"its own, trusted by nobody else; valid for {left_s / 86400:.0f} days")


# --- jobs -------------------------------------------------------------------------------------------------------------
def checkpoints(around: CheckContext) -> Check:
    """The check of checkpoint folders that jobs named; those in the daemon's folder are closed by it."""
    wrong, shared, open_ = list[str](), list[str](), list[str]()
    for job, folder in around.folders.items():
        try:
            info = os.stat(folder)
        except OSError:
            continue
        told = f"job {job}: {folder} (uid {info.st_uid}, mode {stat.S_IMODE(info.st_mode):04o})"
        if info.st_mode & 0o002:
            wrong.append(told)
        elif info.st_mode & 0o020 or info.st_uid not in (0, os.geteuid()):
            shared.append(told)
        elif info.st_mode & 0o005:
            open_.append(told)
    if wrong:
        step = "chmod o-w them: who can change a checkpoint can change what a job loads, pickles included"
        return fail("checkpoints", f"anybody may write: {some(wrong)}", step)
    if shared:
        step = "see that all who can write there are to be trusted: a checkpoint may hold code"
        return warn("checkpoints", f"a group, or their owner, may write: {some(shared)}", step)
    if open_:
        return warn("checkpoints", f"anybody may read: {some(open_)}", "chmod o-rx them, if they are private")
    named = f"; {count(len(around.folders), 'job')} named a folder of its own, closed too" if around.folders else ""
    return ok("checkpoints", f"in the daemon's folder{named}")


def ports(around: CheckContext) -> Check:
    """The check of frameworks' ports, which authenticate nobody."""
    found = [
        f"pid {pid} on {address}:{port}"
        for pid, what in around.pids.items()
        if what == "a trainer"
        for address, port in listening(pid)
        if not address.startswith("127.") and address != "::1"
    ]
    if found:
        step = "torchrun, gloo and NCCL authenticate nobody: see docs/security.md, and firewall the nodes' network"
        return warn("ports", f"trainers can be reached from other machines: {some(found)}", step)
    return ok("ports", "no trainer here can be reached from another machine")


def arguments(around: CheckContext) -> Check:
    """The check of secrets in arguments, which everybody on the machine can read."""
    token = around.access.token if around.access is not None else None
    leaks, risky = list[str](), list[str]()
    for pid, what in around.pids.items():
        line = _arguments_of(pid)
        if token is not None and token in line:
            leaks.append(f"{what} (pid {pid})")
        elif _SECRET.search(line):
            risky.append(f"{what} (pid {pid})")
    if leaks:
        return fail("arguments", f"the token is in the arguments of {some(leaks)}", "report it")
    if risky:
        step = "anybody on the machine can read arguments: give secrets in the environment, or in a file"
        return warn("arguments", f"what looks like a secret is in those of {some(risky)}", step)
    return ok("arguments", f"no secret in those of the {len(around.pids)} processes of this daemon here")


def _arguments_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def listening(pid: int) -> Iterator[tuple[str, int]]:
    """The addresses and ports of TCP on which a process of ours listens."""
    sockets = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path)):
                    sockets.add(match[1])
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in sockets:  # LISTEN
                    number, _, port = fields[1].partition(":")
                    # Words of four bytes, each in the machine's own order.
                    words = [bytes.fromhex(number[at : at + 8])[::-1] for at in range(0, len(number), 8)]
                    yield socket.inet_ntop(family, b"".join(words)), int(port, 16)
