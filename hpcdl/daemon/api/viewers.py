"""Who may look without acting: the viewer token, where it is put, and what of the answers a viewer sees.

What is shown is named here; whatever else an answer has, now or later, is not. No commands, arguments, environments,
folders of jobs, logs or texts that may quote them.
"""

import grp
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from hpcdl.config.layers import ConfigError
from hpcdl.config.settings import Config
from hpcdl.daemon.identity import Identity
from hpcdl.wire import viewer_file as files
from hpcdl.wire.viewer_file import NotViewable, ViewerFile

log = logging.getLogger("hpcdl.daemon")

Json = dict[str, Any]

ONLY = "a viewer may read /v1/status, /v1/jobs, /v1/nodes and /v1/metrics only: ask the daemon's user for more"


_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""A listener on all addresses is reached on this one, from the node that it is on."""


class AccessRole(Enum):
    """Who asks, by the token."""

    OWNER = "owner"
    VIEWER = "viewer"


def group_id(name: str | None, where: str) -> int | None:
    """The number of the group that the user named. `where`: the setting stands there. Raises ConfigError.

    A file can only be given to a group that its owner is in, so any other is refused at the start.
    """
    if name is None:
        return None
    try:
        gid = grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise ConfigError(f"{where}: viewers_group: there is no group {name!r} here: getent group lists them") from None
    if os.geteuid() != 0 and gid not in (os.getegid(), *os.getgroups()):
        raise ConfigError(f"{where}: viewers_group: you are not in the group {name!r}: id -Gn lists yours")
    return gid


class Viewers:
    """The viewer token and the files that hold it, from a daemon's start to its end.

    Each start makes a token of its own, so a restart shuts out who was a viewer and is not any more.
    """

    def __init__(self, home: Path, config: Config) -> None:
        """Raises ConfigError for a group that there is not, or that its user is not in."""
        self.token = secrets.token_hex(32)
        self._home = home
        self._shared = Path(config.viewers_folder)
        self._gid = group_id(config.viewers_group, config.origin("viewers_group"))
        self._viewer: ViewerFile | None = None

    def publish(self, identity: Identity, listener: socket.socket, on_trouble: Callable[[str, str], None]) -> None:
        """Puts the files in place. Where that fails it is recorded as a trouble, and the daemon runs."""
        address, port = listener.getsockname()[:2]
        try:
            self._viewer = ViewerFile(
                identity.instance,
                _EVERYWHERE.get(address, address),
                port,
                identity.certificate,
                self.token,
                os.getpid(),
                os.geteuid(),
                str(self._home),
                os.uname().nodename,
            )
            files.keep(self._home, self._viewer)
            files.publish(self._shared, self._viewer, self._gid)
        except (OSError, ValueError, NotViewable) as error:
            on_trouble("viewers", f"this daemon is not shown to viewers on this node: {error}")

    def withdraw(self) -> None:
        """Takes them away."""
        if self._viewer is None:
            return
        try:
            files.withdraw(self._home, self._shared, self._viewer)
        except (OSError, NotViewable) as error:
            log.warning("the viewer file stays: %s", error)


# --- what viewers see -------------------------------------------------------------------------------------------------

_JOB = (
    *("id", "name", "user", "state", "gpus_min", "gpus_max", "nodes", "nodes_max", "weight", "placement", "gpus"),
    *("role", "incarnation", "step", "total", "submitted_at", "started_at", "finished_at", "wait_s", "jct_s"),
    *("suspends", "failures", "retries_used", "held", "cause", "exit_code", "eta_s"),
)
_NODE = ("name", "connected", "lost", "leaving", "until", "allocation", "cpus", "memory_mib", "emulated")
_GPU = ("index", "name", "state", "holder", "background", "memory_mib", "util", "used_mib", "power_w")
_DAEMON = ("pid", "host", "since_s", "cpu_s", "version", "home", "policy", "objective", "stopping")


def _only(row: Mapping[str, Any], names: Sequence[str]) -> Json:
    return {name: row[name] for name in names if name in row}


def jobs_seen(answer: Json) -> Json:
    """Of `GET /v1/jobs`: its rows, or its columns."""
    if "columns" in answer:
        return {"count": answer["count"], "columns": _only(answer["columns"], _JOB)}
    return {"jobs": [_only(row, _JOB) for row in answer["jobs"]]}


def job_seen(answer: Json) -> Json:
    """Of `GET /v1/jobs/ID`."""
    return {"job": _only(answer["job"], _JOB)}


def nodes_seen(answer: Json) -> Json:
    """Of `GET /v1/nodes`."""
    return {
        "nodes": [_only(row, _NODE) | {"gpus": [_only(gpu, _GPU) for gpu in row["gpus"]]} for row in answer["nodes"]]
    }


def metrics_seen(answer: Json) -> Json:
    """Of `GET /v1/metrics`: all of it, which names states, nodes and GPUs, and no job."""
    return answer


def status_seen(answer: Json) -> Json:
    """Of `GET /v1/status`."""
    agents = [_only(agent, ("node", "connected")) for agent in answer["agents"]]
    return {"daemon": _only(answer["daemon"], _DAEMON), "agents": agents} | _only(answer, ("jobs", "events", "pilots"))
