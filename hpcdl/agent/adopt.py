"""What an agent finds on its node when it starts: run folders of an earlier one, and processes that nobody holds."""

import signal
from collections.abc import Collection

from hpcdl.agent import processes, start
from hpcdl.agent.reports import Key
from hpcdl.wire.messages import RequestMessage


def never_started(found: start.Found) -> bool:
    """Whether the run folder was made, and its maker died before there was a trainer."""
    return start.is_free(found.folder) and not start.read_records(found.folder)


def left_over(found: start.Found, order: RequestMessage | None) -> bool:
    """Whether the run folder is of an earlier start in the same incarnation, of which nothing is left: its node left
    the incarnation, and was asked to join it again."""
    if order is None or found.start is None or not found.start.request:
        return False
    return found.start.request != order.request.id and start.is_free(found.folder)


def sweep(instance: str, node: str, known: Collection[Key]) -> int:
    """Kills what carries our instance's tag for this node and has no run folder; how many processes there were.

    Own uid, tag and start time are checked again at the signal. What has a run folder is left to its part: a living
    supervisor goes on with it, and what a dead one left is killed there.
    """
    killed = 0
    for process in processes.tagged(instance):
        key = _key(process.tag, instance, node)
        if key is not None and key not in known:
            killed += processes.signal_process(process, signal.SIGKILL)
    return killed


def _key(tag: str, instance: str, node: str) -> Key | None:
    """The job and incarnation of a tag of ours, None for another's."""
    parts = tag.removeprefix(f"{instance}:").split(":", 2)
    if len(parts) != 3 or parts[2] != node or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])
