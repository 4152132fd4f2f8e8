"""Several ranks on a node: `python -m hpcdl.trainer.ranks N -- command ...` starts the command N times.

Each gets HPCDL_LOCAL_RANK (0 to N-1), HPCDL_LOCAL_RANKS, HPCDL_RANK, and its own equal part of the GPUs. N may be
`gpu`: one rank for each GPU, and one where there is none. On a fixed number of nodes, where the agent makes one group
of them, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE count all nodes' ranks, N on each; and as under torchrun each
sees all GPUs of its node, for its LOCAL_RANK is the number of its own. With `--tf-config` after N each gets TF_CONFIG,
too, for TensorFlow's MultiWorkerMirroredStrategy, over all nodes where their number is fixed, and sees its own GPU.
With `--horovod` they get what horovodrun would give them, and see all the GPUs. With `--parameter-servers P` the N are
workers of TensorFlow's ParameterServerStrategy, which P servers and a coordinator join. When one fails the others are
ended, and the exit code is that of the first that failed. No rank outlives this process. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType

from hpcdl.trainer import session, tf_config
from hpcdl.trainer.group.process_groups import LOCAL_STORE
from hpcdl.trainer.horovod_rendezvous import HOST, INTERFACE, NODE, Rendezvous, sizes, slot

TF_CONFIG, HOROVOD, SERVERS = "--tf-config", "--horovod", "--parameter-servers"
WORDS = {"": 1, TF_CONFIG: 2, HOROVOD: 2, SERVERS: 3}  # before the --, with that option
USAGE = f"usage: python -m hpcdl.trainer.ranks N|gpu [{TF_CONFIG} | {HOROVOD} | {SERVERS} P] -- command ..."
RANKS_LIMIT = 1024
KILL_S = 10.0  # from the SIGTERM that follows a failure
POLL_S = 0.02
NOT_FOUND = 127  # exit codes as a shell gives them
NOT_EXECUTABLE = 126
PR_SET_PDEATHSIG = 1
GROUP = "HPCDL_RDZV_ENDPOINT"  # set by the agent where the ranks of all nodes are one group

# Loaded now: between fork and exec nothing may be looked up.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Usage(ValueError):
    """The command line, or what it asks for, makes no sense here; the message says why."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str, list[str]]:
    """How many ranks, the option or "", and the command. Raises Usage."""
    end = argv.index("--") if "--" in argv else 0
    command = list(argv[end + 1 :])
    option = argv[1] if end > 1 else ""
    if not command or end != WORDS.get(option):
        raise Usage(USAGE)
    if argv[0] == "gpu":
        ranks = max(1, len(listed(environ, "HPCDL_GPUS") or listed(environ, "CUDA_VISIBLE_DEVICES")))
    else:
        ranks = _number(argv[0], "ranks", ", or gpu")
    return ranks, option, command


def _number(text: str, what: str, more: str = "") -> int:
    if text.isdigit() and 1 <= int(text) <= RANKS_LIMIT:
        return int(text)
    raise Usage(f"{text!r} {what}: say a number from 1 to {RANKS_LIMIT}{more}")


def listed(environ: Mapping[str, str], name: str) -> list[str]:
    """The entries of a variable with commas."""
    return [each for each in environ.get(name, "").split(",") if each]


def environment(
    environ: Mapping[str, str], local_rank: int, ranks: int, store: str, *, own_gpus: bool = False
) -> dict[str, str]:
    """One rank's. `own_gpus`: it sees no others, also in a group of several nodes. Raises Usage where the GPUs cannot
    be shared out equally."""
    mine = dict(environ)
    mine["HPCDL_LOCAL_RANK"] = mine["HPCDL_RANK"] = str(local_rank)
    mine["HPCDL_LOCAL_RANKS"] = str(ranks)
    mine[LOCAL_STORE] = store
    nodes = len(listed(environ, "HPCDL_NODES"))
    grouped = bool(environ.get(GROUP)) and nodes > 1
    if grouped:
        mine["RANK"] = mine["HPCDL_RANK"] = str(int(environ.get("HPCDL_NODE_RANK") or 0) * ranks + local_rank)
        mine["LOCAL_RANK"] = str(local_rank)
        mine.update(WORLD_SIZE=str(nodes * ranks), LOCAL_WORLD_SIZE=str(ranks))
    for name in ("HPCDL_GPUS", "CUDA_VISIBLE_DEVICES"):
        gpus = listed(environ, name)
        if not gpus:
            continue
        if len(gpus) % ranks:
            raise Usage(f"{len(gpus)} GPUs in {name} cannot be shared out equally among {ranks} ranks")
        part = len(gpus) // ranks
        if grouped and not own_gpus and name == "CUDA_VISIBLE_DEVICES" and part == 1:
            continue
        mine[name] = ",".join(gpus[local_rank * part : (local_rank + 1) * part])
        if name == "HPCDL_GPUS":
            mine["HPCDL_GPU_COUNT"] = str(part)
    if environ.get("NVIDIA_VISIBLE_DEVICES") == environ.get("CUDA_VISIBLE_DEVICES") is not None:  # the agent's
        mine["NVIDIA_VISIBLE_DEVICES"] = mine["CUDA_VISIBLE_DEVICES"]
    return mine


def with_tf_config(environments: Sequence[dict[str, str]], addresses: Sequence[str], first: int) -> None:
    """Gives the ranks of this node TF_CONFIG, and their number among those of all nodes; `first`: of the first one."""
    for rank, mine in enumerate(environments, first):
        mine["TF_CONFIG"] = tf_config.config(addresses, rank)
        mine["HPCDL_RANK"] = str(rank)
        if "RANK" in mine:  # of the node, where nothing had started ranks yet
            mine.update(RANK=str(rank), WORLD_SIZE=str(len(addresses)))
            mine.update(LOCAL_RANK=mine["HPCDL_LOCAL_RANK"], LOCAL_WORLD_SIZE=str(len(environments)))


def with_servers(environ: Mapping[str, str], workers: int, servers: int, store: str) -> list[dict[str, str]]:
    """The environments of a ParameterServerStrategy's coordinator, workers and servers. The coordinator alone is a
    trainer to hpcdl; the workers alone have GPUs. Raises Usage."""
    if len(listed(environ, "HPCDL_NODES")) > 1:
        raise Usage(f"{SERVERS} is for one node")
    without = {**environ, "CUDA_VISIBLE_DEVICES": ""}
    coordinator = {**without, "HPCDL_LOCAL_RANK": "0", "HPCDL_RANK": "0", "HPCDL_LOCAL_RANKS": "1"}
    others = [environment(environ, each, workers, store, own_gpus=True) for each in range(workers)]
    others += [without.copy() for _ in range(servers)]
    for each in others:
        each.pop("HPCDL_SOCKET", None)  # to attach there, as the coordinator does, is to run outside hpcdl
    environments = [coordinator, *others]
    for each, config in zip(environments, tf_config.parameter_servers(workers, servers)):
        each["TF_CONFIG"] = config
    return environments


class RankProcesses:
    """The processes, from their start until none is left. `led`: when the first one ends, the others are ended."""

    def __init__(self, led: bool = False) -> None:
        self._led = led
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        """Raises OSError where the command cannot be started."""
        # One in the middle would miss the rank that runs and is not in the list yet: it waits until all are.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            for each in environments:
                self._children.append(subprocess.Popen(command, env=each, preexec_fn=_tied(os.getpid(), before)))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def terminate(self) -> None:
        """SIGTERM to all that are left."""
        for child in self._children:
            if child.returncode is None:  # not reaped, so the number is still its own
                child.send_signal(signal.SIGTERM)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """As a handler of SIGTERM: passes it on, to the one that leads alone, for it may need the others to save."""
        leader = self._children[0] if self._led and self._children else None
        if leader is None:
            self.terminate()
        elif leader.returncode is None:
            leader.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code of the first that failed, 0 if none did; 128 and the signal's number for a signal."""
        failed: int | None = None
        kill_at = 0.0
        while None in [child.poll() for child in self._children]:
            if failed is None:
                failed = self._failure()
                if failed is not None:
                    self.terminate()
                    kill_at = time.monotonic() + KILL_S
            elif time.monotonic() > kill_at:
                self.kill()
            time.sleep(POLL_S)
        if failed is None:
            failed = self._failure() or 0
        return 128 - failed if failed < 0 else failed

    def _failure(self) -> int | None:
        """Of those that have failed; whoever loses a rank that was killed fails, too, perhaps before anybody looks.
        0: the one that leads is done."""
        if self._led and self._children[0].returncode == 0:
            return 0
        codes = [child.returncode for child in self._children if child.returncode]
        return -signal.SIGKILL if -signal.SIGKILL in codes else next(iter(codes), None)

    def kill(self) -> None:
        """SIGKILL to all that are left, which are then reaped."""
        for child in self._children:
            if child.returncode is None:
                child.kill()
                child.wait()


def _tied(parent: int, mask: Iterable[signal.Signals | int]) -> Callable[[], None]:
    def prepare() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # one that comes before the exec is the rank's end, not lost
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    try:
        ranks, option, command = parse(argv, os.environ)
        if option == HOROVOD:
            return _run_horovod(command, ranks)
        folder = tempfile.mkdtemp(prefix="hpcdl-ranks-")
        try:
            store, own = f"{folder}/store", option == TF_CONFIG
            if option == SERVERS:
                servers = _number(argv[2], "parameter servers")
                return _run(command, with_servers(os.environ, ranks, servers, store), led=True)
            environments = [environment(os.environ, each, ranks, store, own_gpus=own) for each in range(ranks)]
            if option == TF_CONFIG:
                with_tf_config(environments, *tf_config.workers(os.environ, ranks))
            return _run(command, environments)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except Usage as error:
        sys.stderr.write(f"ranks: {error}\n")
        return os.EX_USAGE
    except OSError as error:  # as where another program has the port to meet at
        sys.stderr.write(f"ranks: {error}\n")
        return os.EX_TEMPFAIL


def _run_horovod(command: Sequence[str], ranks: int) -> int:
    """They choose a GPU by `hvd.local_rank()`, so each sees all."""
    with Rendezvous(HOST, sizes([NODE], [ranks])) as rendezvous:
        environments = []
        for each in range(ranks):
            numbers = {"HPCDL_LOCAL_RANK": str(each), "HPCDL_RANK": str(each), "HPCDL_LOCAL_RANKS": str(ranks)}
            horovod = slot([ranks], 0, each).environment(NODE, HOST, rendezvous.server_address[1], INTERFACE)
            environments.append({**os.environ, **numbers, **horovod})
        return _run(command, environments, rendezvous.start)


def _run(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    started: Callable[[], None] = lambda: None,
    *,
    led: bool = False,
) -> int:
    """`started` is called once all ranks are: no thread may run while they are forked."""
    ranks = RankProcesses(led)
    # A suspend goes to the ranks themselves, which attach. What ends this process must end them, and not before they
    # have done what they do at a SIGTERM; a Ctrl-C comes to them anyway.
    signal.signal(signal.SIGTERM, ranks.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.environ.get("HPCDL_ALLOCATION"):
        session.heed(lambda: True, signal.SIGTERM)
    try:
        ranks.start(command, environments)
    except OSError as error:
        ranks.kill()
        sys.stderr.write(f"ranks: cannot start {command[0]}: {error.strerror}\n")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    started()
    return ranks.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
