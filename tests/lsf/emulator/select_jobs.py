"""Which jobs a command means: ids, arrays, names, users, queues."""

import os
import pwd

from tests.lsf.emulator.options import Options, Refused
from tests.lsf.emulator.records import Job, State


def me() -> str:
    """LSFEMU_USER, which makes somebody else of us, or who we are."""
    if name := os.environ.get("LSFEMU_USER"):
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def by_id(state: State, text: str) -> list[Job]:
    """`113` are all of an array, `113[2]` is one; [] where there is none."""
    number, _, index = text.strip("\"'").rstrip("]").partition("[")
    if not number.isdigit() or (index and not index.isdigit()):
        raise Refused(f"{text}: Illegal job ID.")
    return [job for job in state.jobs if job.id == int(number) and (not index or job.index == int(index))]


def matching(state: State, given: Options) -> list[Job]:
    """Those of a user (this one, unless -u says otherwise), a queue, a name."""
    user = given.get("u", me())
    name = given.get("J").strip("\"'")
    return [
        job
        for job in state.jobs
        if user in (job.user, "all") and given.get("q", job.queue) == job.queue and (not name or _like(name, job))
    ]


def _like(pattern: str, job: Job) -> bool:
    if pattern.endswith("*"):
        return job.name.startswith(pattern[:-1])
    return pattern in (job.name, job.array)
