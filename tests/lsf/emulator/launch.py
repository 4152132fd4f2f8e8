"""blaunch: runs a command on hosts of the job. All hosts are this machine, so what differs is the environment."""

import json
import os
import signal
import sys

from tests.lsf.emulator.options import Refused
from tests.lsf.emulator.store import Store


def blaunch(store: Store, argv: list[str], _faults: dict[str, str]) -> int:
    """`blaunch [-n] [-z "H ..." | -u FILE | HOST] COMMAND ...`; without a host once per slot of the allocation."""
    rest, hosts, quiet = list(argv), None, False
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-n":
            quiet = True
        elif option == "-z" and rest:
            hosts = rest.pop(0).split()
        elif option == "-u" and rest:
            with open(rest.pop(0)) as file:
                hosts = file.read().split()
        elif option not in ("-no-shell", "-use-login-shell", "-x", "-q"):
            raise Refused(f"blaunch: illegal option -- {option[1:]}")
    mine = allocated()
    if hosts is None and rest and (rest[0] in mine or store.config().host(rest[0]) is not None):
        hosts = [rest.pop(0)]
    if not rest:
        raise Refused("blaunch: no command is specified")
    names = hosts if hosts is not None else [name for name, slots in mine.items() for _ in range(slots)]
    for name in names:
        if name not in mine:
            raise Refused(f"blaunch: Host {name} is not allocated to job <{os.environ.get('LSB_JOBID')}>")
    if quiet:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if len(names) == 1:
        run(rest, environment(store, names[0], 1))
    return wait_all([spawn(rest, environment(store, name, number)) for number, name in enumerate(names, 1)])


def allocated() -> dict[str, int]:
    """Slots of the job's hosts, in order. Raises Refused outside a job."""
    words = os.environ.get("LSB_MCPU_HOSTS", "").split()
    if not os.environ.get("LSB_JOBID") or not words:
        raise Refused("blaunch: not in an LSF job")
    return {name: int(slots) for name, slots in zip(words[::2], words[1::2], strict=True)}


def granted(store: Store, host: str) -> list[int]:
    """The GPUs of this job on a host."""
    key = os.environ["LSB_BATCH_JID"]
    job = next((job for job in store.read().jobs if job.key == key), None)
    return [] if job is None else list(dict(job.gpu_ids).get(host, ()))


def environment(store: Store, host: str, number: int) -> dict[str, str]:
    """What a command finds on a host."""
    env = {**os.environ, "HOSTNAME": host, "LSF_PM_TASKID": str(number), "LSFEMU_HOST": host}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if ids := granted(store, host):
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in ids)
    return env


def run(argv: list[str], env: dict[str, str]) -> None:
    """Becomes the command."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(127)


def spawn(argv: list[str], env: dict[str, str]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        run(argv, env)
    return pid


def wait_all(pids: list[int]) -> int:
    """The first code that is not 0. INT and TERM go on to all."""
    left = list(pids)

    def pass_on(number: int, _frame: object) -> None:
        for pid in left:
            os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    code = 0
    while left:
        pid, status = os.waitpid(left[0], 0)
        left.remove(pid)
        value = os.waitstatus_to_exitcode(status)
        code = code or (128 - value if value < 0 else value)
    return code


def save(path: str, value: object) -> None:
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)
