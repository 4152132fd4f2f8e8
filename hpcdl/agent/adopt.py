"""What an agent finds on its node when it starts: run folders of an earlier one, and processes that nobody holds."""

import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.agent import processes, processfile, start
from hpcdl.agent.processes import Process
from hpcdl.agent.reports import Key, ReportLog
from hpcdl.core.units import count
from hpcdl.wire.messages import RequestMessage

SWEEP_S = 2.0
"""Seconds of one attempt to end what nobody answers for."""


def never_started(found: start.Found, tag: str) -> bool:
    """Whether the run folder was made, and its maker died before there was a trainer. `tag`: the part's."""
    folder = found.folder
    if not start.is_free(folder) or start.has_records(folder):
        return False
    return not processes.kin(processfile.read(folder).below) and not processes.tagged(tag)


def left_over(found: start.Found, order: RequestMessage | None) -> bool:
    """Whether the run folder is of an earlier start in the same incarnation, of which nothing is left: its node left
    the incarnation, and was asked to join it again."""
    if order is None or found.start is None or not found.start.request:
        return False
    if found.start.request == order.request.id or not start.is_free(found.folder):
        return False
    return not processes.kin(processfile.read(found.folder).below)


def sweep(instance: str, node: str, known: Collection[Key]) -> int:
    """Kills what carries our instance's tag for this node and has no run folder; how many processes there were.

    Own uid, tag and start time are checked again at the signal. What has a run folder is left to its part: a living
    supervisor goes on with it, and what a dead one left is killed there.
    """

    def unknown() -> list[Process]:
        found = processes.tagged(instance)
        return [each for each in found if (key := _key(each.tag, instance, node)) is not None and key not in known]

    return len(processes.kill_all(lambda: processes.kin(unknown()), SWEEP_S))


@dataclass(slots=True)
class Stock:
    """`living`: run folders that a part is to follow. `free`: those of which nothing is left, and all is reported.
    `troubles`: what people should know."""

    living: list[start.Found] = field(default_factory=list)
    free: set[Key] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)


def take_stock(run: Path, reports: ReportLog, tag_of: Callable[[Key], str]) -> Stock:
    """Looks through the run folders of an earlier agent; those that never were more than folders go."""
    stock = Stock()
    if lost := end_lost_supervisors(run):
        stock.troubles.append(f"{count(lost, 'supervisor')} without a run folder: killed, with all that was below")
    for found in start.find(run):
        order, marks = reports.requests.get(found.key, {}).get("start"), reports.unreported(found.key)
        if found.damage:
            stock.troubles.append(f"run folder {found.folder}: {found.damage}: it is kept in {run / start.DAMAGED}")
        if left_over(found, order) or never_started(found, tag_of(found.key)):
            start.put_away(found.folder, found.damage)  # no trainer was started: to start it (again) is harmless
        elif marks.exited and marks.freed:
            stock.free.add(found.key)  # it goes when the daemon says so, or does not expect it
        else:
            stock.living.append(found)
    return stock


def end_lost_supervisors(run: Path) -> int:
    """Kills supervisors whose run folders were removed, and all that is below them; how many there were.

    Nobody can tell them anything any more, and nobody would know whose GPUs they hold.
    """
    lost = [each for name, each in start.supervisors(run).items() if not (run / name).is_dir()]
    for supervisor in lost:
        processes.signal_process(supervisor, signal.SIGSTOP)
        below = processes.descendants(supervisor.pid, tags=False)
        processes.signal_process(supervisor, signal.SIGKILL)
        processes.kill_all(lambda: processes.kin(below), SWEEP_S)  # noqa: B023
    return len(lost)


def _key(tag: str, instance: str, node: str) -> Key | None:
    """The job and incarnation of a tag of ours, None for another's."""
    parts = tag.removeprefix(f"{instance}:").split(":", 2)
    if len(parts) != 3 or not processes.matches(parts[2], node) or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])
