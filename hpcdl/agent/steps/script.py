"""The batch script of a job, as its batch system would run it: `script JSON FOLDER COMMAND...`.

On the first node it runs the command with the variables of the batch system; where only the first node runs it, the
other nodes start what its steps want there. What it writes goes to the job's log, and to the files that its options
name. A script that requeues its own job is ended, and runs again from its beginning unless it was to be suspended.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcdl.agent.steps.layout import filled
from hpcdl.agent.steps.step import (
    BLOCKED,
    FOLDER,
    KILL_S,
    POLL_S,
    PYTHON,
    REFUSED,
    names_in,
    nodes_of,
    reachable,
    run_folder,
    serve,
    write_json,
)
from hpcdl.batch.system import system_named
from hpcdl.wire.child import dies_with
from hpcdl.wire.private_files import make_private_folder, write_all

REQUEUE = "requeue"
"""The file by which `scontrol requeue` of the own job asks for that."""
RANKS = re.compile("RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|PET_.*")
"""No batch system sets these: a trainer would take its place from them, and not from its task's variables; and a
torchrun that a step starts, for which PET_NNODES is --nnodes, would wait for one on each node of the job."""
COMMANDS = Path(__file__).with_name("commands")
"""The folder of commands that a script finds first in its PATH."""
MPI_ON_ONE_NODE = {
    **{f"{prefix}_MCA_{part}": "^slurm,lsf" for prefix in ("OMPI", "PRTE") for part in ("plm", "ras")},
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    **{f"{prefix}HYDRA_BOOTSTRAP": "fork" for prefix in ("", "I_MPI_")},
    **{f"{prefix}HYDRA_RMK": "user" for prefix in ("", "I_MPI_")},
}
"""By these Open MPI, MPICH and Intel MPI start as many processes as mpirun is told, here, and ask no batch system."""
OTHERS_S = 30.0
"""For the other nodes to see that the script has ended."""
END_OF_OUTPUT_S = 5.0
RECORDS = "record.jsonl"


def main(words: Sequence[str]) -> int:
    """The exit code; by a signal that ended the script, this process ends, too."""
    batch, folder, command = json.loads(words[0]), Path(words[1]), words[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    nodes = nodes_of(os.environ)
    here = nodes.index(os.environ["HPCDL_NODE"]) if len(nodes) > 1 else 0
    environment = dict(os.environ)
    if batch["first_only"]:
        environment = {name: value for name, value in environment.items() if not RANKS.fullmatch(name)}
    own = dict(environment)
    system = system_named(batch["system"])
    if len(nodes) == 1:
        environment |= MPI_ON_ONE_NODE
    hosts = [reachable(node, environment) for node in nodes] if system.hosts_variables else nodes
    environment |= system.script_variables(batch, environment, hosts, here) | dict(batch["variables"])
    environment |= {FOLDER: str(folder), PYTHON: sys.executable}
    environment["PATH"] = f"{COMMANDS}:{environment.get('PATH') or os.defpath}"
    bash_env = environment.get("BASH_ENV", "")
    if not os.path.exists(os.path.join(os.path.dirname(bash_env), "hpcdl-steps")):  # else of a job that submitted this
        environment["HPCDL_STEP_BASH_ENV"] = bash_env
    environment["BASH_ENV"] = str(COMMANDS / "bash_env")
    local = run_folder(os.environ)
    if system.hosts_variables:
        file = local / "hosts"
        file.write_text("".join(f"{host}\n" for host in system.script_hosts(batch, hosts)))
        environment |= dict.fromkeys(system.hosts_variables, str(file))
    scratch = tempfile.mkdtemp(prefix="hpcdl-") if batch["scratch"] else ""
    if scratch:
        environment[batch["scratch"]] = scratch
    out, err = _files(batch, environment, system.file_values(environment), first=here == 0)
    outputs = [_Copy(1, out), _Copy(2, err if err >= 0 else out)]
    several = batch["first_only"] and len(nodes) > 1
    if several and here:
        serve(folder, here, own, outputs[0].write_end, outputs[1].write_end)
        write_json(folder / f"left.{here}", True)
        code = 0
    else:
        if several:
            _clear(folder)
            make_private_folder(folder)
        code = _run(command, environment, local, outputs)
        if several:
            _end(folder, len(nodes))
    for each in outputs:
        each.close()
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
        code = 128 - code
    return code


def _run(command: Sequence[str], environment: dict[str, str], local: Path, outputs: Sequence[_Copy]) -> int:
    """The code of the script, as Popen has it; it is run again as often as it requeues itself."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) - BLOCKED
    again = int(environment.get("SLURM_RESTART_COUNT") or 0)
    while True:
        out, err = (each.write_end for each in outputs)
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                stdout=out,
                stderr=err,
                process_group=0,
                preexec_fn=dies_with(os.getpid(), partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask)),
            )
        except OSError as error:
            sys.stderr.write(f"hpcdl: cannot start {command[0]}: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        while child.poll() is None and not ((local / REQUEUE).exists() or (local / REFUSED).exists()):
            signal.sigtimedwait(BLOCKED, POLL_S)
        refused = (local / REFUSED).exists()
        if not (refused or (local / REQUEUE).exists()):
            return int(child.returncode)
        (local / REQUEUE).unlink(missing_ok=True)
        _signal_group(child.pid, signal.SIGTERM)
        until = time.monotonic() + KILL_S
        while child.poll() is None and time.monotonic() < until:
            signal.sigtimedwait(BLOCKED, POLL_S)
        _signal_group(child.pid, signal.SIGKILL)  # whatever it leaves is of the run that is over
        child.wait()
        if refused:
            return 1
        if _suspending(local):
            return 0
        again += 1
        environment["SLURM_RESTART_COUNT"] = str(again)


def _signal_group(group: int, number: int) -> None:
    """To what is left of a script's processes: it may have ended by itself once it had asked for its requeue."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _suspending(local: Path) -> bool:
    """Whether the supervisor has asked for a checkpoint: then the daemon starts the script again."""
    try:
        with open(local / RECORDS, encoding="utf-8", errors="replace") as file:
            return any('"suspending"' in line for line in file)
    except OSError:
        return False


def _files(
    batch: Mapping[str, Any], environ: Mapping[str, str], values: Mapping[str, str], *, first: bool
) -> tuple[int, int]:
    """Descriptors of the files for output and errors; -1 where there is none. The `first` node empties them."""
    job = environ["HPCDL_JOB"]
    found: list[int] = []
    for pattern in (batch["output"], batch["error"]):
        path = os.path.expanduser(filled(pattern, values)) if pattern else ""
        if path.endswith("/"):
            path += job
        empties = first and not batch["append"] and environ.get("HPCDL_INCARNATION", "1") == "1"
        mode = os.O_TRUNC if empties else 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
            found.append(os.open(path, flags | mode, 0o666) if path else -1)
        except OSError as error:
            sys.stderr.write(f"hpcdl: cannot write {path}: {error.strerror}: the output is in hpcdl logs {job} only\n")
            found.append(-1)
    return found[0], found[1]


class _Copy:
    """A pipe whose content goes to the job's log and, where there is one, to a file."""

    def __init__(self, log: int, file: int) -> None:
        self._log, self._file = log, file
        self.write_end = log
        self._thread: threading.Thread | None = None
        if file >= 0:
            read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
            self._thread = threading.Thread(target=self._copy, args=(read_end,), daemon=True)
            self._thread.start()

    def _copy(self, read_end: int) -> None:
        files = [self._log, self._file]
        while data := os.read(read_end, 1 << 16):
            for file in list(files):
                try:
                    write_all(file, data)
                except OSError:  # a full disk must not stop the trainer
                    files.remove(file)

    def close(self) -> None:
        """The script has ended: what it wrote is written."""
        if self._thread is not None:
            os.close(self.write_end)
            self._thread.join(END_OF_OUTPUT_S)


def _clear(folder: Path) -> None:
    """Remove what earlier attempts left."""
    for each in folder.parent.glob(f"{folder.name.rpartition('.')[0]}.*"):
        shutil.rmtree(each, ignore_errors=True)


def _end(folder: Path, nodes: int) -> None:
    """Let the other nodes know that the script has ended, and remove the folder once they do."""
    make_private_folder(folder)  # the script may have removed it, with the rest of its checkpoint folder
    write_json(folder / "end", True)
    until = time.monotonic() + OTHERS_S
    while time.monotonic() < until:
        if sum(name.startswith("left.") for name in names_in(folder)) == nodes - 1:
            shutil.rmtree(folder, ignore_errors=True)
            return
        time.sleep(POLL_S)
