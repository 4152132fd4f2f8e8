"""jsrun: resource sets over the job's hosts, each rank with its GPUs; steps wait until what they ask for is free."""

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable

from tests.lsf.emulator.launch import allocated, environment, granted, save, spawn, wait_all
from tests.lsf.emulator.options import Options, Refused, parse
from tests.lsf.emulator.store import Store

LONG = {
    "nrs": "n", "tasks_per_rs": "a", "cpu_per_rs": "c", "gpu_per_rs": "g", "rs_per_host": "r", "np": "p", "bind": "b",
    "launch_distribution": "d", "latency_priority": "l", "env": "E", "stdio_stdout": "o", "stdio_stderr": "k",
    "smpiargs": "M", "exit_on_error": "X", "chdir": "h",
}  # fmt: skip
NEVER = "Error: Requested job constraints cannot be met"
PAUSE_S = 0.05


class ResourceSet:
    """One resource set's place."""

    def __init__(self, host: str, cpus: int, gpus: list[int]) -> None:
        self.host, self.cpus, self.gpus = host, cpus, gpus


def jsrun(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    """`jsrun -n SETS -r SETS_PER_HOST -a RANKS -c CPUS -g GPUS COMMAND`; CPUs and GPUs may be ALL_CPUS, ALL_GPUS."""
    given = _parse(argv)
    if not given.rest:
        raise Refused("jsrun: no command is given")
    config = store.config()
    hosts = {name: slots for name, slots in allocated().items() if name != config.launch_node}
    gpus = {name: granted(store, name) for name in hosts}
    path = store.path("jobs", f"{os.environ['LSB_BATCH_JID']}.steps")
    while (sets := _take(path, given, hosts, gpus)) is None:
        time.sleep(PAUSE_S)
    try:
        return _run(store, given, sets)
    finally:
        _with_steps(path, lambda steps: [step for step in steps if step["pid"] != os.getpid()])


def _parse(argv: list[str]) -> Options:
    words = []
    for number, word in enumerate(argv):
        if not word.startswith("--"):
            words.append(word)
            if not word.startswith("-") and number and not argv[number - 1].startswith("-"):
                words.extend(argv[number + 1 :])
                break
            continue
        name, _, value = word[2:].partition("=")
        if name == "immediate":
            words.append("-immediate")
        elif name in LONG:
            words += ["-" + LONG[name], value] if value else ["-" + LONG[name]]
        else:
            raise Refused(f"jsrun: unrecognized option '--{name}'")
    return parse(words, ("immediate",), tuple(LONG.values()), command="jsrun", mixed=False)


def _count(given: Options, name: str, default: int, everything: int) -> int:
    text = given.get(name)
    return everything if text.startswith("ALL") else int(text or default)


def _take(path: str, given: Options, hosts: dict[str, int], gpus: dict[str, list[int]]) -> list[ResourceSet] | None:
    """Places for all sets, None while they are in use. Raises Refused where they never fit."""
    empty = _fit(given, hosts, gpus, [])
    if empty is None:
        raise Refused(NEVER)
    found: list[ResourceSet] | None = None

    def take(steps: list[dict]) -> list[dict]:
        nonlocal found
        alive = [step for step in steps if os.path.exists(f"/proc/{step['pid']}")]
        found = _fit(given, hosts, gpus, alive)
        mine = [{"pid": os.getpid(), "host": one.host, "cpus": one.cpus, "gpus": one.gpus} for one in found or []]
        return alive + mine

    _with_steps(path, take)
    return found


def _fit(
    given: Options, hosts: dict[str, int], gpus: dict[str, list[int]], steps: list[dict]
) -> list[ResourceSet] | None:
    per_host = int(given.get("r") or 0)
    wanted = int(given.get("n") or 0) or (per_host * len(hosts)) or int(given.get("p") or 1)
    found: list[ResourceSet] = []
    for name, cpus in hosts.items():
        used = [step for step in steps if step["host"] == name]
        free = cpus - sum(step["cpus"] for step in used)
        left = [index for index in gpus[name] if index not in {g for step in used for g in step["gpus"]}]
        need_cpus, need_gpus = _count(given, "c", 1, cpus), _count(given, "g", 0, len(gpus[name]))
        here = 0
        while (
            len(found) < wanted and free >= need_cpus and len(left) >= need_gpus and (not per_host or here < per_host)
        ):
            found.append(ResourceSet(name, need_cpus, left[:need_gpus]))
            free, left, here = free - need_cpus, left[need_gpus:], here + 1
    return found if len(found) == wanted else None


def _with_steps(path: str, change: Callable[[list[dict]], list[dict]]) -> None:
    """Replaces the list of steps that hold places, under a lock."""
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(path) as file:
                steps = json.load(file)
        except FileNotFoundError:
            steps = []
        save(path, change(steps))


def _run(store: Store, given: Options, sets: list[ResourceSet]) -> int:
    per_set = int(given.get("a") or 0) or max(1, int(given.get("p") or 0) // len(sets))
    size = per_set * len(sets)
    out = given.get("o") or (os.devnull if given.has("immediate") else "")
    if out:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 1)
        os.dup2(os.open(given.get("k") or out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
    pids, rank, local = [], 0, dict.fromkeys((one.host for one in sets), 0)
    on_host = {name: per_set * sum(one.host == name for one in sets) for name in local}
    for one in sets:
        for _ in range(per_set):
            env = environment(store, one.host, rank + 1)
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in one.gpus)
            if not one.gpus:
                env.pop("CUDA_VISIBLE_DEVICES")
            numbers = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local[one.host], "LOCAL_SIZE": on_host[one.host]}
            for name, number in numbers.items():
                env[f"JSM_NAMESPACE_{name}"] = env[f"OMPI_COMM_WORLD_{name}"] = str(number)
            env |= {"PMIX_RANK": str(rank), "PMIX_NAMESPACE": "1"}
            if "=" in (pair := given.get("E")):
                name, _, value = pair.partition("=")
                env[name] = value
            pids.append(spawn(given.rest, env))
            rank, local[one.host] = rank + 1, local[one.host] + 1
    sys.stdout.flush()
    return wait_all(pids)
