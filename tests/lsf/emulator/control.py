"""bkill, bstop, bresume, brequeue: they leave a request with the job, and the scheduler acts."""

import sys

from tests.lsf.emulator.options import Options, Refused, parse
from tests.lsf.emulator.records import UNFINISHED, Config, Job, State
from tests.lsf.emulator.select_jobs import by_id, matching, me
from tests.lsf.emulator.store import Store

SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 9: "KILL", 10: "USR1", 12: "USR2", 15: "TERM", 18: "CONT", 19: "STOP",
           20: "TSTP", 23: "URG"}  # fmt: skip


def bkill(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    given = parse(argv, ("r", "b", "d"), ("s", "u", "q", "J", "m", "g", "C"), command="bkill")
    if given.has("s"):
        name = _signal(store.config(), given.get("s"))
        return _act(store, given, f"signal {name}", "being signaled")
    return _act(store, given, "remove" if given.has("r") else "kill", "being terminated")


def bstop(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    return _act(store, parse(argv, ("a",), ("u", "q", "J", "C"), command="bstop"), "stop", "being stopped")


def bresume(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    return _act(store, parse(argv, (), ("u", "q", "J", "C"), command="bresume"), "resume", "being resumed")


def brequeue(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    given = parse(argv, ("a", "d", "e", "r", "p", "H"), ("u", "q", "J"), command="brequeue")
    return _act(store, given, "requeue", "being requeued")


def _signal(config: Config, text: str) -> str:
    name = text.upper().removeprefix("SIG")
    if name.isdigit():
        name = SIGNALS.get(int(name), "")
    if name not in SIGNALS.values() or (config.openlava and name == "URG"):
        raise Refused(f"{text}: Illegal signal value")
    return name


def _act(store: Store, given: Options, request: str, reply: str) -> int:
    code = 0
    with store.change() as state:
        for name, jobs in _meant(state, given):
            if not jobs:
                print(f"Job <{name}>: No matching job found", file=sys.stderr)
                code = 255
            for job in jobs:
                if error := _refused(job, request):
                    print(f"Job <{name if len(jobs) == 1 else job.key}>: {error}", file=sys.stderr)
                    code = 255
                else:
                    job.requests = (*job.requests, request)
                    tail = " " if request == "requeue" else ""
                    print(f"Job <{name if len(jobs) == 1 else job.key}> is {reply}{tail}")
    return code


def _meant(state: State, given: Options) -> list[tuple[str, list[Job]]]:
    if [name for name in given.rest if name != "0"]:
        return [(name, by_id(state, name)) for name in given.rest]
    if not given.rest and not given.has("J") and not given.has("q"):
        raise Refused("Job ID, -J or -q is needed")
    jobs = [job for job in matching(state, given) if job.status in UNFINISHED]
    if not jobs:
        raise Refused("No matching job found")
    return [(job.key, [job]) for job in jobs]


def _refused(job: Job, request: str) -> str:
    if job.user != me():
        return "User permission denied"
    if job.status not in UNFINISHED:
        return "Job has already finished"
    if request == "requeue" and job.status in ("PEND", "PSUSP"):
        return "Job has not started"
    return ""
