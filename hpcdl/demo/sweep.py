"""Processes of the demo's own daemons: found by their tag or by the folder that they were started for, and ended."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from hpcdl.agent.processes import Process, commands, described, kill_all, tagged

_POLL_S = 0.1


def find(home: Path, instance: str) -> list[Process]:
    """This user's processes that bear the tag of `instance`, or are modules of hpcdl that were given `home`."""
    found = {each.pid: each for each in tagged(instance)} if instance else {}
    for process, words in commands():
        # A pager that the user opened on the daemon's log names the folder, too, but runs no module of ours.
        module = any(flag == "-m" and name.startswith("hpcdl.") for flag, name in pairwise(words))
        if module and any(word == str(home) or word.startswith(f"{home}/") for word in words):
            found.setdefault(process.pid, process)
    return list(found.values())


def await_none(home: Path, instance: str, wait_s: float) -> list[Process]:
    """What is left after at most `wait_s` seconds; empty as soon as nothing is."""
    end = time.monotonic() + wait_s
    while (left := find(home, instance)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return left


def end(home: Path, instance: str, say: Callable[[str], None], wait_s: float) -> None:
    """Kills what is left, and what that may have started meanwhile; tells of what it finds."""
    for process in find(home, instance):
        say(f"ending process {described(process.pid)}, which was left")
    kill_all(lambda: find(home, instance), wait_s)
