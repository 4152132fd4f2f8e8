"""A real Slurm of four nodes on this machine: munged, slurmctld and four slurmd in a private folder, for tests.

Several run beside each other, each on its own ports. All its processes have its SLURM_CONF in their environment: by
that they are found, and ended by pid. A keeper process ends them too if this process is killed.
"""

import contextlib
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

from tests.slurm import configuration
from tests.slurm.configuration import NODES, Options
from tests.slurm.keeper import carrying, end_all
from tests.support.waiting import until

PATIENCE_S = 180.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel")
PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
KEEPER = Path(configuration.__file__).with_name("keeper.py")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # daemons are not in a user's PATH
NOISE = re.compile("pmix|MPI: Cannot|hardware:|CPUs=8|CPU frequency")
FREEZER = Path("/sys/fs/cgroup/freezer")
FIRST_PORT, LAST_PORT = 20_000, 32_000  # below the ports that srun and others are given by the kernel


def missing() -> str:
    """What keeps a cluster from being started here, in one line with the next step; "" where nothing does."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if not absent:
        return ""
    return f"{', '.join(absent)} not found: sudo apt-get install --no-install-recommends {PACKAGES}"


def no_cgroups() -> str:
    """Why a cluster with Options(cgroups=True) cannot be started here; "" where it can."""
    return "" if os.access(FREEZER / "tasks", os.W_OK) else f"{FREEZER} is not ours to use: root and cgroup v1 needed"


def version() -> str:
    """Slurm's, such as `22.05.8`; "" where it does not run."""
    path = shutil.which("slurmctld", path=SEARCH)
    if path is None:
        return ""
    done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=PATIENCE_S)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    return found[0] if found else done.stdout.strip()


class Ports:
    """Five neighbouring TCP ports that nobody listens on, ours against other clusters until this process ends."""

    def __init__(self) -> None:
        choices = list(range(FIRST_PORT, LAST_PORT, len(NODES) + 1))
        random.shuffle(choices)
        for first in choices:
            claim = socket.socket(socket.AF_UNIX)
            ports = tuple(range(first, first + len(NODES) + 1))
            try:
                claim.bind(f"\0hpcdl-test-ports-{first}")  # abstract: it goes with the process
                for port in ports:
                    with socket.socket() as listener:
                        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        listener.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
            self.ports, self._claim = ports, claim
            return
        raise AssertionError(f"no five free ports from {FIRST_PORT} to {LAST_PORT}")

    def release(self) -> None:
        self._claim.close()


class SlurmCluster:
    """Partitions normal, scavenge (REQUEUE), cancelp (CANCEL), nograce (CANCEL, no grace); nodes n1 to n4, 8 CPUs each.

    `user`: whose processes they all are, None for this process's user (root too).
    """

    def __init__(self, options: Options | None = None, user: str | None = None) -> None:
        self.options = options or Options()
        # Short, for the sockets in it; and open to read, for a user of its own.
        self.folder = Path(tempfile.mkdtemp(prefix="hpcdl-slurm-"))
        self.conf = str(self.folder / "etc" / "slurm.conf")
        kept = {key: value for key, value in os.environ.items() if not re.match("S(LURM|BATCH|RUN|ALLOC)_", key)}
        self.env: dict[str, str] = {**kept, "PATH": SEARCH, "SLURM_CONF": self.conf}
        """For every command of Slurm, and for all that the test starts near it."""
        self._ids = None if user is None else pwd.getpwnam(user)
        self._ports = Ports()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._cgroups = socket.socket(socket.AF_UNIX)
        self._jobs = 0

    # --- starting and ending

    def start(self) -> "SlurmCluster":
        """Returns when all nodes are idle."""
        if self.options.cgroups:  # they are called as the nodes are, so one cluster at a time has them
            self.wait_for(self._has_cgroups, what="cgroups")
        uid = os.getuid() if self._ids is None else self._ids.pw_uid
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        host = socket.gethostname().split(".")[0]
        self.folder.chmod(0o755)
        argv = [sys.executable, str(KEEPER), self.conf, str(self.folder)]
        self._keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
        configuration.write(self.options, self.folder, host, user, self._ports.ports, secrets.token_bytes(128))
        if self._ids is not None:
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, self._ids.pw_uid, self._ids.pw_gid, follow_symlinks=False)
        munge = self.folder / "munge"
        files = [f"--socket={munge}/sock", f"--key-file={munge}/key", f"--seed-file={munge}/seed"]
        run = [f"--pid-file={self.folder}/run/munged.pid", f"--log-file={self.folder}/log/munged.log"]
        self._daemon("munged", "munged", "--foreground", *files, *run)
        self.wait_for((munge / "sock").exists, what="munged's socket")
        self._daemon("slurmctld", "slurmctld", "-D", "-c")
        for node in NODES:
            self.start_slurmd(node)
        self.wait_for(lambda: set(self.node_states().values()) == {"idle"}, what="idle nodes")
        return self

    def _has_cgroups(self) -> bool:
        try:
            self._cgroups.bind("\0hpcdl-test-cgroups")
        except OSError:
            return False
        return True

    def _daemon(self, name: str, *argv: str, env: Mapping[str, str] | None = None, folder: str = ".") -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = self.popen(*argv, stdout=out, env=env, folder=folder)

    def popen(
        self, *argv: str, stdout: IO[bytes] | None = None, env: Mapping[str, str] | None = None, folder: str = "."
    ) -> "subprocess.Popen[bytes]":
        """Starts a process with this cluster's environment and user, in its folder or a `folder` in that. Its output
        goes to `stdout`, else nowhere."""
        return subprocess.Popen(
            [shutil.which(argv[0], path=SEARCH) or argv[0], *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=stdout or subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={**self.env, **(env or {})},
            cwd=self.folder / folder,
            start_new_session=True,
            user=None if self._ids is None else self._ids.pw_uid,
            group=None if self._ids is None else self._ids.pw_gid,
            extra_groups=None if self._ids is None else [],
        )

    def stop(self) -> None:
        """Ends all of it. What jobs and tests left running is killed, and then named in an AssertionError."""
        left: dict[int, str] = {}
        try:
            if self._running("munged"):
                with contextlib.suppress(AssertionError, subprocess.SubprocessError):
                    self.start_missing()
                    self.end_jobs()
            left = self._without_daemons()
        finally:
            for name in [name for name in self._daemons if name != "munged"] + ["munged"]:
                self._end(name)
            for pid in end_all(self.conf):
                print(f"killed with the cluster: {pid}", file=sys.stderr)
            if self._keeper is not None and self._keeper.stdin is not None:
                self._keeper.stdin.close()  # it removes the folder
                self._keeper.wait(PATIENCE_S)
            if self.options.cgroups:
                for path in sorted(FREEZER.glob("slurm_n*/**/"), reverse=True):
                    with contextlib.suppress(OSError):
                        path.rmdir()
            self._cgroups.close()
            self._ports.release()
        assert not left, f"processes were left: {left}"

    def reset(self, moment_s: float = 60.0) -> None:
        """As after `start`: no jobs, all daemons up, all nodes idle. Fails, after killing it, if anything ran on."""
        self.start_missing()
        self.end_jobs()
        for name in re.findall(r"ReservationName=(\S+)", self.run("scontrol", "show", "reservation").stdout):
            self.run("scontrol", "delete", f"ReservationName={name}")
        self.wait_for(self._all_idle, what="idle nodes")
        left = self._without_daemons(moment_s)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes of a job or a test ran on: {left}"

    def start_missing(self) -> None:
        """Whatever of slurmctld and the slurmd does not run."""
        if not self._running("slurmctld"):
            self.start_slurmctld()
        for node in NODES:
            if not self._running(f"slurmd-{node}"):
                self.start_slurmd(node)

    def _all_idle(self) -> bool:
        states = self.node_states()
        for node, state in states.items():
            if state.startswith(("drain", "down", "inval")):  # refused while a slurmctld that is new asks its nodes
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return set(states.values()) == {"idle"}

    def end_jobs(self) -> None:
        """Kills all jobs, and returns when none is left."""

        def none_left() -> bool:
            ids = self.run("squeue", "-h", "-o", "%A").stdout.split()
            if ids:
                self.run("scancel", "--full", "--signal=KILL", *ids, check=False)
                self.run("scancel", *ids, check=False)
            return not ids

        self.wait_for(none_left, what="an empty queue")

    def _without_daemons(self, moment_s: float = 60.0) -> dict[int, str]:
        """What runs on with our SLURM_CONF beside the daemons, though it had a moment to end; pid to command line."""
        found: dict[int, str] = {}

        def look() -> bool:
            found.clear()
            for pid in self.processes():
                with contextlib.suppress(OSError):
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            return not found

        with contextlib.suppress(AssertionError):
            self.wait_for(look, moment_s)
        return found

    # --- single daemons and nodes

    def _running(self, name: str) -> bool:
        return name in self._daemons and self._daemons[name].poll() is None

    def _end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self._daemons.pop(name, None)
        if process is not None:
            process.send_signal(number)
            process.wait(PATIENCE_S)

    def start_slurmd(self, node: str) -> None:
        assert not self._running(f"slurmd-{node}"), f"{node} has its slurmd"
        argv = ("slurmd", "-D", "-N", node)
        self._daemon(f"slurmd-{node}", *argv, env={"HPCDL_TEST_NODE": node}, folder=f"spool/{node}")  # its steps', too

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL. What runs on the node runs on; Slurm takes it for down after slurmd_timeout_s."""
        self._end(f"slurmd-{node}")

    def restart_slurmd(self, node: str) -> None:
        """Also where it does not run; returns when the node answers again."""
        self.kill_slurmd(node)
        self.start_slurmd(node)
        self.wait_for(lambda: not self.node_states()[node].startswith(("down", "unk")), what=f"{node} to answer")

    def kill_node(self, node: str) -> None:
        """All processes of the node at once, as when its power fails: its slurmd, its steps, what they started.

        They are stopped first, so that none of them can do anything about the end of another.
        """
        stopped: set[int] = set()
        while new := set(self.processes(node)) - stopped:
            self._signal(new, signal.SIGSTOP)
            stopped |= new
        self.kill_slurmd(node)
        self._signal(stopped, signal.SIGKILL)

    @staticmethod
    def _signal(pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop_slurmctld(self, *, kill: bool = False) -> None:
        """SIGTERM, upon which it saves its state, or SIGKILL; returns when it is gone."""
        self._end("slurmctld", signal.SIGKILL if kill else signal.SIGTERM)

    def start_slurmctld(self) -> None:
        """With the state that it saved; returns when it answers."""
        assert not self._running("slurmctld"), "slurmctld runs"
        self._daemon("slurmctld", "slurmctld", "-D")
        self.wait_for(lambda: "is UP" in self.run("scontrol", "ping", check=False).stdout, what="slurmctld")

    def drain(self, node: str, reason: str = "by a test") -> None:
        self._update_node(node, "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        self._update_node(node, "State=RESUME")

    def down(self, node: str, reason: str = "by a test") -> None:
        """At once, where `kill_slurmd` takes Slurm half a minute to notice."""
        self._update_node(node, "State=DOWN", f"Reason={reason}")

    def _update_node(self, node: str, *what: str) -> None:
        """A slurmctld that is new refuses this until it has heard of the node."""
        argv = ("scontrol", "update", f"NodeName={node}", *what)
        self.wait_for(lambda: self.run(*argv, check=False).returncode == 0, what=" ".join(argv))

    # --- asking

    def run(
        self, *argv: str, check: bool = True, timeout_s: float = 60.0, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command with this cluster's environment and user, in its folder."""
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.env, **(env or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            user=None if self._ids is None else self._ids.pw_uid,
            group=None if self._ids is None else self._ids.pw_gid,
            extra_groups=None if self._ids is None else [],
        )
        assert not check or done.returncode == 0, (
            f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}"
        )
        return done

    def submit(self, script: str, *options: str, env: Mapping[str, str] | None = None) -> str:
        """Submits the lines of a batch script, `#!/bin/bash` added; the job's id. See `output`.

        One that only sleeps begins with `exec`: proctrack/linuxproc may miss a child that is forked as it kills.
        """
        self._jobs += 1
        path = self.folder / "jobs" / f"{self._jobs}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        output = f"--output={self.folder}/jobs/%j.out"
        return self.run("sbatch", "--parsable", output, *options, str(path), env=env).stdout.strip()

    def output(self, job: str) -> str:
        """What the batch job has printed so far, "" before it began. On a loaded machine the step before is not yet
        over when the next `srun` begins, which then says that it waits: that is left out."""
        path = self.folder / "jobs" / f"{job}.out"
        text = path.read_text(errors="replace") if path.exists() else ""
        return re.sub(r"(?m)^srun: (?:Job \d+ step creation temporarily disabled|Step created for job).*\n", "", text)

    def field(self, job: str, name: str) -> str:
        """One of `scontrol show job`'s, such as JobState, Reason, NodeList; "" where it or the job is not there."""
        done = self.run("scontrol", "--oneliner", "show", "job", job, check=False)
        found = re.search(rf"(?:^|\s){name}=(\S*)", done.stdout)
        return found[1] if found else ""

    def state(self, job: str) -> str:
        """Such as PENDING, RUNNING, COMPLETED; ended jobs are known for some minutes."""
        return self.field(job, "JobState")

    def nodes(self, job: str) -> list[str]:
        """The nodes of a batch job, [] while it has none."""
        names = self.field(job, "NodeList")
        return [] if names in ("", "(null)") else self.run("scontrol", "show", "hostnames", names).stdout.split()

    def node_states(self) -> dict[str, str]:
        """Node to state as sinfo says it: idle, mixed, allocated, planned, draining, down*, …; {} where it is away."""
        rows = self.run("sinfo", "-h", "-N", "-p", "normal", "-o", "%N %T", check=False).stdout.split("\n")
        return dict(row.split() for row in rows if row.strip())

    def processes(self, node: str = "") -> list[int]:
        """Steps and what they started (of a node: those on it), and whatever else has our SLURM_CONF; no daemons."""
        daemons = {process.pid for process in self._daemons.values()}
        wanted = {f"{name}={node}".encode() for name in ("SLURMD_NODENAME", "HPCDL_TEST_NODE")}
        found = []
        for pid in set(carrying(self.conf)) - daemons:
            with contextlib.suppress(OSError):
                daemons_own = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) in daemons
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                here = os.readlink(f"/proc/{pid}/cwd") == f"{self.folder}/spool/{node}"  # a slurmstepd; see `carrying`
                if not daemons_own and (not node or here or wanted & set(environ)):
                    found.append(pid)
        return sorted(found)

    def wait_for(self, condition: Callable[[], object], seconds: float = PATIENCE_S, what: str = "luck") -> None:
        until(condition, what, seconds, folders=[self.folder])

    def until_state(self, job: str, *states: str, seconds: float = PATIENCE_S) -> None:
        self.wait_for(lambda: self.state(job) in states, seconds, f"{' or '.join(states)} of job {job}")

    def logs(self) -> str:
        """The ends of all logs and outputs, for a failure's message."""
        text = []
        for path in [*sorted(self.folder.glob("log/*.log")), *sorted(self.folder.glob("jobs/*.out"))]:
            lines = [line for line in path.read_text(errors="replace").split("\n") if not NOISE.search(line)]
            text += [f"--- {path.name}", *lines[-25:]]
        return "\n".join(text)
