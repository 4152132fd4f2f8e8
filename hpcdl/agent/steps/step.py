"""One step of a batch script: its tasks on this node, and those that other nodes start for it.

The command that a script calls (srun, jsrun) runs on the first node, holds the step's GPUs, starts the tasks there, and
leaves a file for each other node in the attempt's folder of steps, where `script.serve` of that node finds it. Files
and no sockets: all nodes of a job share its checkpoint folder. Others may write there too, and what a file says is run
with the script's environment in it: so the folder and its files are closed to others, and read only where they are.

The suspend handshake passes this by: ranks attach to the supervisor of their node, which signals them by pid. So the
signals that srun passes on are blocked here, not caught: nobody takes this process for one that would save.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcdl.agent.steps.layout import BadStep, StepOptions, Task, filled, gpus_of, spread
from hpcdl.agent.steps.mpi import MpiWatch
from hpcdl.batch.mpi import certain
from hpcdl.wire.child import dies_with
from hpcdl.wire.private_files import FILE_MODE, open_private_folder, read_private

FOLDER = "HPCDL_STEP_FOLDER"
"""The variable with the folder in which the nodes of an attempt meet."""
PYTHON = "HPCDL_STEP_PYTHON"
"""The variable with the Python that runs this."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that go on to all tasks, as srun's do."""
BLOCKED = frozenset({*PASSED_ON, signal.SIGTSTP, signal.SIGURG, signal.SIGXCPU, signal.SIGCHLD})
"""Signals that a batch system sends to all that runs in it: they are for the tasks, and do not end this process."""
POLL_S = 0.2
KILL_S = 10.0
"""From the SIGTERM that ends the others of a task that failed."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
MPI = 256
"""In place of the code of a task that is a rank of MPI's without a PMI: no process exits with it."""
REFUSED = "refused"
"""The file by which a step that cannot be run here ends the script, whatever that would make of its exit code."""
REFUSED_S = 2.0
"""For the script to be ended, before it goes on with its next command."""
OF_THE_NODE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""With HPCDL_*: what each node says itself to the tasks that it starts."""


def nodes_of(environ: Mapping[str, str]) -> list[str]:
    """The attempt's nodes, the first of which runs the script."""
    return [name for name in environ.get("HPCDL_NODES", "").split(",") if name] or [environ.get("HPCDL_NODE", "here")]


def reachable(node: str, environ: Mapping[str, str]) -> str:
    """The node's name, or of this one its address where nobody resolves the name that hpcdl calls it by."""
    address = environ.get("HPCDL_ADDRESS", "")
    if node != environ.get("HPCDL_NODE") or not address:
        return node
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        return address
    return node


def run_folder(environ: Mapping[str, str]) -> Path:
    """The attempt's own folder on this node. Raises BadStep."""
    path = environ.get("HPCDL_SOCKET")
    if not path:
        raise BadStep("this is no process of a job of hpcdl: HPCDL_SOCKET is not set")
    return Path(path).parent


def write_json(path: Path, body: object) -> None:
    """Write a file, closed to others, that is whole as soon as it is there. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with open(file, "w", encoding="ascii") as stream:
        json.dump(body, stream)
    os.replace(temporary, path)


class NodeTasks:
    """The tasks of a step on one node, from their start until the last has ended."""

    def __init__(self, step: Mapping[str, Any], node: int, own: Mapping[str, str], out: int = 1, err: int = 2) -> None:
        """`step`: as `Step.body` has it. `own`: the environment of this node. `out`, `err`: descriptors of its
        output."""
        self._step = step
        self._out, self._err = out, err
        self._base = dict(step["env"])
        self._base.update((name, own[name]) for name in own if name.startswith("HPCDL_"))
        if node:  # the first node's are as the script has them
            self._base.update((name, own[name]) for name in OF_THE_NODE if name in own)
        self._node = node
        self._tasks = [task for task in step["tasks"] if task["node"] == node]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self._files: dict[str, int] = {}
        self._watch = MpiWatch() if step["mpi"] else None
        self.codes: dict[int, int] = {}

    def start(self) -> None:
        """Start all of them. One that cannot be started has ended with a shell's code."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED) - BLOCKED
        for place, task in enumerate(self._tasks):
            rank = task["rank"]
            try:
                out = self._file(self._step["output"], task, self._out)
                err = self._file(self._step["error"] or self._step["output"], task, self._err)
                label = self._step["label"] and out == self._out
                child = subprocess.Popen(
                    self._step["argv"],
                    env=self._environment(task),
                    cwd=self._step["cwd"],
                    stdin=None if place == 0 and self._node == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if label else out,
                    stderr=subprocess.PIPE if label else err,
                    preexec_fn=dies_with(os.getpid(), partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask)),
                )
            except OSError as error:
                what = error.filename if error.filename == self._step["cwd"] else self._step["argv"][0]
                self._say(f"task {rank}: cannot start {what}: {error.strerror}")
                self.codes[rank] = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
                continue
            self._running[rank] = child
            if label:
                for stream, into in ((child.stdout, self._out), (child.stderr, self._err)):
                    reader = threading.Thread(target=_labelled, args=(stream, rank, into), daemon=True)
                    reader.start()
                    self._readers.append(reader)

    @property
    def look_s(self) -> float:
        """How long to wait for the next `look`."""
        return POLL_S if self._watch is None else self._watch.wait_s

    def look(self) -> bool:
        """Whether there are ranks of MPI, which are ended with the code MPI."""
        if self._watch is None or not self._watch.library(child.pid for child in self._running.values()):
            return False
        self.signal(signal.SIGKILL)
        self.codes = dict.fromkeys((task["rank"] for task in self._tasks), MPI)
        self._running.clear()
        return True

    def poll(self) -> bool:
        """Take the codes of those that have ended; whether all have."""
        for rank, child in list(self._running.items()):
            code = child.poll()
            if code is not None:
                del self._running[rank]
                self.codes[rank] = 128 - code if code < 0 else code
                if code:
                    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with exit code {code}"
                    self._say(f"task {rank}: {how}")
        if self._running:
            return False
        for reader in self._readers:
            reader.join(1.0)
        return True

    def signal(self, number: int) -> None:
        """Signal those that run."""
        for child in self._running.values():
            child.send_signal(number)

    def _environment(self, task: Mapping[str, Any]) -> dict[str, str]:
        mine = {**self._base, **task["variables"]}
        visible = mine.get(OF_THE_NODE[0], "")
        granted = [each for each in mine.get("HPCDL_GPUS", "").split(",") if each]
        # A script that says 0,1 means the first two of its job, as where the batch system hides all others.
        seen = [
            granted[int(each)] if each not in granted and each.isdecimal() and int(each) < len(granted) else each
            for each in visible.split(",")
            if each
        ]
        if task["gpus"] is not None and seen:
            seen = [seen[index] for index in task["gpus"] if index < len(seen)]
        if (chosen := ",".join(seen)) != visible:
            mine.update((name, chosen) for name in OF_THE_NODE if name in mine)
        return mine

    def _file(self, pattern: str, task: Mapping[str, Any], usual: int) -> int:
        if not pattern or pattern == "all":
            return usual
        path = os.path.join(self._step["cwd"], filled(pattern, {**self._step["values"], **task["values"]}))
        if pattern == "none":
            path = os.devnull
        if path not in self._files:
            shared = os.O_TRUNC if not self._step["append"] and "%t" in pattern else 0
            self._files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | shared, 0o666)
        return self._files[path]

    def _say(self, text: str) -> None:
        line = f"{self._step['name']}: error: {self._step['nodes'][self._node]}: {text}\n"
        os.write(self._err, line.encode("utf-8", "surrogateescape"))


def _signal_of(steps: Sequence[NodeTasks]) -> int | None:
    """Wait for a signal, or the end of a task; for POLL_S at most, or until ranks of MPI are seen."""
    until = time.monotonic() + POLL_S
    while (left := until - time.monotonic()) > 0:
        came = signal.sigtimedwait(BLOCKED, min(left, *(each.look_s for each in steps), POLL_S))
        if came is not None:
            return came.si_signo
        if any(each.look() for each in steps):
            return None
    return None


def _labelled(stream: Any, rank: int, into: int) -> None:
    for line in stream:
        os.write(into, b"%d: %s" % (rank, line if line.endswith(b"\n") else line + b"\n"))


class Step:
    """A step as the command that a script called starts it."""

    def __init__(self, name: str, options: StepOptions, environ: Mapping[str, str]) -> None:
        """Raises BadStep."""
        self._name = name
        self._options = options
        self._environ = environ
        self._nodes = nodes_of(environ)
        self._folder = Path(environ[FOLDER]) if environ.get(FOLDER) else run_folder(environ)
        self._local = run_folder(environ)
        self._held: list[int] = []
        self.number = self._count()

    def _count(self) -> int:
        number = 0
        while True:
            try:
                os.close(os.open(self._local / f"step.{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                number += 1
            else:
                return number

    def tasks(self) -> list[Task]:
        """Its tasks with their GPUs, which are held from now on. Raises BadStep."""
        options, found = self._options, spread(self._options)
        number = int(self._environ.get("HPCDL_GPU_COUNT") or 0)
        if options.gpus_node is not None and options.gpus_node > number:
            raise BadStep(f"it asks for {options.gpus_node} GPUs on a node, and the job has {number}")
        taken = {node: list(range(number)) for node in options.nodes}
        if options.gpus_node is not None:
            taken = self._hold(options.gpus_node, number)
        return [
            Task(each.rank, each.local, each.node, gpus_of(options, each, taken[each.node]) if number else None)
            for each in found
        ]

    def _hold(self, many: int, number: int) -> dict[int, list[int]]:
        """So many GPUs of each node that no other step holds; waits for them."""
        waits = False
        while True:
            found: dict[int, list[int]] = {node: [] for node in self._options.nodes}
            for node, chosen in found.items():
                for index in range(number):
                    if len(chosen) < many and (self._options.overlap or self._lock(node, index)):
                        chosen.append(index)
            if all(len(chosen) == many for chosen in found.values()):
                return found
            for file in self._held:
                os.close(file)
            self._held.clear()
            if not waits:
                waits = True
                sys.stderr.write(f"{self._name}: step {self.number} waits for GPUs of other steps\n")
            time.sleep(POLL_S)

    def _lock(self, node: int, index: int) -> bool:
        file = os.open(self._local / f"gpu.{node}.{index}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._held.append(file)
        return True

    def body(
        self, tasks: Sequence[Task], variables: Callable[[Task, Sequence[Task]], dict[str, str]]
    ) -> dict[str, Any]:
        """The step for all of its nodes. `variables`: of a task, among all."""
        options, environ = self._options, dict(self._environ)
        kept = environ
        if options.only is not None:
            kept = {name: environ[name] for name in environ if name in options.only or name.startswith(_KEPT)}
            kept["PATH"] = environ.get("PATH", os.defpath)
        kept = {**kept, **(options.export or {})}
        job = environ.get("SLURM_JOB_ID") or environ.get("LSB_JOBID", "")
        index = environ.get("SLURM_ARRAY_TASK_ID") or environ.get("LSB_JOBINDEX") or "4294967294"
        values = {
            "j": job,
            "J": f"{job}.{self.number}",
            "s": str(self.number),
            "u": environ.get("USER", ""),
            "A": environ.get("SLURM_ARRAY_JOB_ID", job),
            "a": index,
            "x": environ.get("SLURM_JOB_NAME", ""),
        }
        per_node = {node: sum(each.node == node for each in tasks) for node in options.nodes}
        return {
            "id": self.number,
            "name": self._name,
            "nodes": self._nodes,
            "argv": list(options.command),
            "cwd": options.cwd or os.getcwd(),
            "env": kept,
            "label": options.label,
            "output": options.output,
            "error": options.error,
            "append": options.append or environ.get("HPCDL_INCARNATION", "1") != "1",
            "values": values,
            "mpi": len(tasks) > 1 and not options.no_mpi,  # whether ranks of MPI are looked for, to end them
            "tasks": [
                {
                    "rank": each.rank,
                    "node": each.node,
                    "gpus": each.gpus,
                    "values": {"t": str(each.rank), "n": str(each.node), "N": self._nodes[each.node]},
                    "variables": {
                        "HPCDL_RANK": str(each.rank),
                        "HPCDL_LOCAL_RANKS": str(per_node[each.node]),
                        **variables(each, tasks),
                    },
                }
                for each in tasks
            ],
        }

    def run(self, body: Mapping[str, Any]) -> int:
        """Start its tasks on all nodes and wait; the highest of their exit codes."""
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        path = body["env"].get("PATH", os.defpath)
        if body["mpi"] and (why := certain(body["argv"], body["cwd"], path)):
            return self._refuse(why, len(body["tasks"]))
        away = [node for node in self._options.nodes if node and any(each["node"] == node for each in body["tasks"])]
        for node in away:
            write_json(self._folder / f"{self.number}.{node}.step", body)
        here = NodeTasks(body, 0, self._environ)
        here.start()
        began = time.monotonic()
        codes: dict[int, int] = {}
        signals: list[int] = []
        ended_at: float | None = None
        while True:
            over = here.poll()
            codes.update(here.codes)
            for node in list(away):
                if (done := _read(self._folder / f"{self.number}.{node}.done")) is not None:
                    codes.update((int(rank), code) for rank, code in done.items())
                    away.remove(node)
            if MPI in codes.values():
                here.signal(signal.SIGKILL)
                return self._refuse("a task has loaded its library", len(body["tasks"]))
            if over and not away:
                return max(codes.values(), default=0)
            now, limit = time.monotonic(), self._options.time_s
            failed = self._options.kill_on_bad_exit and any(codes.values())
            sent: list[signal.Signals] = []
            if ended_at is None and (failed or (limit is not None and now - began > limit)):
                ended_at = now
                sent.append(signal.SIGTERM)
            elif ended_at is not None and now - ended_at > KILL_S:
                ended_at = now
                sent.append(signal.SIGKILL)
            if not sent and (came := _signal_of([here])) is not None:
                sent += [each for each in PASSED_ON if each == came]
            for number in sent:
                here.signal(number)
                signals.append(int(number))
                for node in away:
                    write_json(self._folder / f"{self.number}.{node}.signals", signals)

    def _refuse(self, why: str, tasks: int) -> int:
        """End the script, whose tasks are ranks of MPI's; the step's exit code."""
        off = "--smpiargs=off" if self._name == "jsrun" else "--mpi=none"
        sys.stderr.write(
            f"hpcdl: {self._name}: its {tasks} tasks are ranks of MPI ({why}), and have no PMI inside a job of hpcdl: "
            "each would be rank 0 of 1: start them by mpirun on one node, or leave the script to the batch system "
            f"({self._name} {off}: they are no ranks of MPI)\n"
        )
        (self._local / REFUSED).touch()
        time.sleep(REFUSED_S)
        return 1


_KEPT = ("SLURM_", "HPCDL_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HOME", "USER", "LSB_", "LS_")
"""Beginnings of variables that every task gets, however little it is to get."""


LIMIT = 64 << 20  # bytes of a file of `write_json`


def names_in(folder: Path) -> set[str]:
    """The names in the folder of steps, none where it is not there. It is opened and listed each time, for a network
    file system answers from its cache whether a file is there. Raises NotPrivate."""
    try:
        file = open_private_folder(folder)
    except OSError:
        return set()
    try:
        return set(os.listdir(file))
    except OSError:
        return set()
    finally:
        os.close(file)


def _read(path: Path) -> Any:
    """What is in a file of `write_json`, None where there is none. Raises NotPrivate."""
    if path.name not in names_in(path.parent):
        return None
    try:
        folder = open_private_folder(path.parent)
        try:
            return json.loads(read_private(path, LIMIT, dir_fd=folder))
        finally:
            os.close(folder)
    except (OSError, ValueError):
        return None


def serve(folder: Path, node: int, own: Mapping[str, str], out: int, err: int) -> None:
    """Start the tasks of steps on a node that is not the first, until the first one's script has ended, or a SIGTERM
    comes and no task is left. Tasks that outlive the script are ended, as batch systems do. Raises NotPrivate."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    running: dict[str, tuple[NodeTasks, list[int]]] = {}
    taken: set[str] = set()
    leaving = False
    ended_at: float | None = None
    while True:
        names = names_in(folder)
        for name in sorted(names - taken):
            number, _, rest = name.partition(".")
            if rest == f"{node}.step" and (body := _read(folder / name)) is not None:
                taken.add(name)
                running[number] = (NodeTasks(body, node, own, out, err), [])
                running[number][0].start()
        for number, (tasks, signals) in list(running.items()):
            for each in (_read(folder / f"{number}.{node}.signals") or [])[len(signals) :]:
                signals.append(each)
                tasks.signal(each)
            if tasks.poll():
                del running[number]
                write_json(folder / f"{number}.{node}.done", tasks.codes)
        if not running and (leaving or "end" in names):
            return
        if "end" in names:
            now = time.monotonic()
            if ended_at is None or now - ended_at > KILL_S:
                for tasks, _ in running.values():
                    tasks.signal(signal.SIGTERM if ended_at is None else signal.SIGKILL)
                ended_at = now
        leaving = _signal_of([tasks for tasks, _ in running.values()]) == signal.SIGTERM or leaving
