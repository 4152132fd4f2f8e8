"""A submit on its way: to the daemon, or into the spool while none runs."""

from pathlib import Path
from typing import Any

from hpcdl.cli.output import say
from hpcdl.client import ApiError, Client, ClientError, DaemonAway
from hpcdl.core.units import count
from hpcdl.wire.spool import put

Answer = dict[str, Any]


def send(client: Client, request_id: str, jobs: list[Any], *, spool: bool) -> Answer:
    """The daemon's answer; without a daemon `{"jobs": [], "spooled": ...}`, and a line on stderr that says so.

    Raises ClientError, SpoolError, NotPrivate and OSError.
    """
    try:
        return client.request("POST", "/v1/jobs", {"request_id": request_id, "jobs": jobs})
    except ClientError as error:
        stops = isinstance(error, ApiError) and error.code == "stopping"  # at the end of its allocation, say
        if not spool or not (stops or isinstance(error, DaemonAway)):
            raise
        why = str(error).partition(": ")[0]
    home: Path = client.home
    path = put(home, request_id, jobs)
    say(
        f"{why}: {count(len(jobs), 'job')} spooled as {path}, "
        f"which the next daemon of {home} takes in (hpcdl daemon start)"
    )
    return {"jobs": [], "spooled": {"request_id": request_id, "path": str(path), "jobs": len(jobs)}}
