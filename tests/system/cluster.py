"""A daemon, agents and trainers of one test: real processes, ended by pid, checked when the test is over."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdl.client import ApiError, Client, DaemonAway
from hpcdl.core.model.world import validate
from hpcdl.ledger import SqliteJournal
from hpcdl.wire.readable import readable
from tests.support.waiting import until
from tests.system.trainer import final

TRAINER = Path(__file__).with_name("trainer.py")
PATIENCE_S = 180.0
TIER = os.environ.get("HPCDL_TEST_LOCAL_CHECKPOINTS", "")
"""A folder on a disk of this node: every job saves there first."""


ANOTHER_MODEL = ("--model", "another")
"""Options of a job that is held before another one is promoted: what is learnt of its rates, uneven while it was held,
says nothing of the other one's."""


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        readable([descriptor], PATIENCE_S)
    finally:
        os.close(descriptor)


def granted_twice(home: Path) -> list[str]:
    """By the agents' own records (of this home and of those beside it): GPUs that two incarnations had at once, other
    than a background beside its foreground."""
    found = []
    for path in home.parent.glob("*/run/*/grants.jsonl"):
        held: dict[tuple[str, tuple[int, int]], str | None] = {}
        older = path.with_name("grants.jsonl.1")
        text = (older.read_text() if older.exists() else "") + path.read_text()
        boot = 0.0
        for line in filter(None, text.split("\n")):
            entry = json.loads(line)
            key = (entry["job"], entry["incarnation"])
            if entry["boot"] < boot:
                found.append(f"{path}: not in order: {line}")
            boot = entry["boot"]
            if entry["what"] == "granted":
                share = entry.get("share")
                for (uuid, other), its in held.items():
                    if uuid == entry["uuid"] and other != key and {share, its} != {"foreground", "background"}:
                        found.append(f"{path}: job {other} still had it: {line}")
                held[entry["uuid"], key] = share
            else:
                for uuid, owner in list(held):
                    if owner == key and entry["uuid"] in (None, uuid):
                        del held[uuid, owner]
    return found


def kill_node(cluster: "Cluster", node: str) -> None:
    """The node is gone, from one moment to the next: its agent, its supervisors, its ranks."""
    agent = cluster.agent_pid(node)
    kill(agent)
    for pid in cluster.tagged():
        with contextlib.suppress(OSError):
            # HPCDL_TAG=instance:job:incarnation:node:identity
            if f":{node}:".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                kill(pid)


class Cluster:
    """One HPCDL_HOME. `agents`: more nodes than the daemon's own, each with so many emulated GPUs."""

    def __init__(self, home: Path, gpus: int = 4, **settings: Any) -> None:
        self.home = home
        self._pause = home.parent / f"{home.name}.pause"
        self.gpus = gpus
        self.client = Client(home, patience_s=20.0)
        self.daemon_pid = 0
        self.agents: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "HPCDL_HOME": str(home)}
        home.mkdir(mode=0o700, exist_ok=True)
        plain = {"monitor_interval_s": 1, "stop_grace_s": 20, "node_name": "n1"}
        if TIER:
            plain["local_checkpoints"] = TIER
        values = plain | {"policy": "marble"} | settings  # its placements are easy to foretell
        (home / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
        (home / "config.yaml").chmod(0o600)

    def add_profile(self, name: str, **values: Any) -> None:
        """A scaling profile for the daemon that is to be started."""
        folder = self.home / "profiles"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps({"profiles": {name: values}}))
        path.chmod(0o600)

    # --- starting and killing

    def start(self) -> "Cluster":
        answer = self.cli("daemon", "start", "--emulate-gpus", str(self.gpus), "--json")
        self.daemon_pid = self.status()["daemon"]["pid"]
        assert answer is not None
        return self

    def add_agent(self, node: str, gpus: int) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "hpcdl.agent", "--home", str(self.home), "--node", node]
        with (self.home / f"agent-{node}.out").open("ab") as out:
            process = subprocess.Popen([*argv, "--emulate-gpus", str(gpus)], stdout=out, stderr=out)
        self.agents.append(process)
        self.until(lambda: any(agent["node"] == node and agent["connected"] for agent in self.status()["agents"]))
        return process

    def kill_daemon(self) -> None:
        kill(self.daemon_pid)

    def agent_pid(self, node: str = "n1") -> int:
        return next(agent["pid"] for agent in self.status()["agents"] if agent["node"] == node)

    def trainer_pid(self, job: int) -> int:
        def find() -> int:
            return next((t["pid"] for t in self.status()["trainers"] if t["job"] == job), 0)

        return until(find, f"a trainer of job {job}", ignores=(DaemonAway, ApiError), story=self.story)

    # --- asking

    def cli(self, *args: str, code: int = 0) -> Any:
        """Runs the command line; its JSON value where it printed one."""
        argv = [sys.executable, "-m", "hpcdl", *args]
        done = subprocess.run(argv, capture_output=True, text=True, env=self.environment, timeout=PATIENCE_S * 3)
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "--json" in args else done.stdout

    def hold(self) -> None:
        """Test trainers come no further than some 30 steps, however slow all else is; until `release`."""
        self._pause.touch()

    def release(self) -> None:
        self._pause.unlink(missing_ok=True)

    def status(self) -> dict[str, Any]:
        return self.client.request("GET", "/v1/status")

    def submit(self, *trainer: object, gpus: str = "1", options: tuple[str, ...] = (), steps: int = 100) -> int:
        """Submits the test trainer; returns the job's id."""
        argv = [sys.executable, str(TRAINER), str(steps), "--pause", str(self._pause), *map(str, trainer)]
        answer = self.cli("submit", "--json", "--gpus", gpus, "--steps", str(steps), *options, "--", *argv)
        return int(answer["jobs"][0]["id"])

    def job(self, job: int) -> dict[str, Any]:
        row: dict[str, Any] = self.client.request("GET", f"/v1/jobs/{job}")["job"]
        return row

    def events(self, job: int | None = None) -> list[dict[str, Any]]:
        where = "" if job is None else f"&job={job}"
        rows: list[dict[str, Any]] = self.client.request("GET", f"/v1/events?limit=10000{where}")["events"]
        return rows

    def kinds(self, job: int) -> list[str]:
        return [event["kind"] for event in self.events(job)]

    def until(
        self,
        condition: Callable[[], object],
        seconds: float = PATIENCE_S,
        what: str = "what stands where this was called",
    ) -> None:
        """A daemon that is away, or refuses to say, is asked again."""
        until(condition, what, seconds, ignores=(DaemonAway, ApiError), story=self.story, folders=[self.home])

    def until_state(self, job: int, *states: str, seconds: float = PATIENCE_S) -> None:
        self.until(lambda: self.job(job)["state"] in states, seconds, f"{' or '.join(states)} of job {job}")

    def until_step(self, job: int, step: int) -> None:
        self.until(lambda: (self.job(job)["step"] or 0) >= step, what=f"step {step} of job {job}")

    def until_done(self, *jobs: int, seconds: float = 240.0) -> None:
        ended = {"DONE", "FAILED", "CANCELLED"}
        self.until(lambda: all(self.job(job)["state"] in ended for job in jobs), seconds, f"the end of jobs {jobs}")
        for job in jobs:
            assert self.job(job)["state"] == "DONE", self.story()

    def check_weights(self, job: int, steps: int) -> None:
        """The final weights are those of a run that nothing ever happened to."""
        folder = self.job(job)["spec"]["checkpoint_dir"] or self.home / "checkpoints" / str(job)
        assert (Path(folder) / "final").read_text() == final(steps)

    def check_checkpoints(self, job: int) -> None:
        """The weights in each checkpoint that is kept are those of a run that nothing ever happened to. A job that
        trains on replaces them meanwhile."""
        found: list[dict[str, Any]] = []

        def read() -> bool:
            for path in self.home.glob(f"checkpoints/{job}/step-*/state.json"):
                with contextlib.suppress(FileNotFoundError):
                    found.append(json.loads(path.read_text()))
            return bool(found)

        self.until(read)
        for state in found:
            assert state["weights"] == final(state["step"])

    def logs(self) -> str:
        paths = [self.home / "daemon.log", *sorted(self.home.glob("run/*/agent.log")), *self.home.glob("agent*.out")]
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in paths if path.exists())

    def story(self) -> str:
        """What has happened to jobs, as far as the daemon tells it."""
        with Client(self.home) as client:  # no waiting for a daemon that is away
            rows = client.get("/v1/events?limit=10000")["events"]
        return "\n".join([json.dumps(event) for event in rows if event["kind"] != "PlanAdopted"][-60:])

    # --- the end

    def tagged(self) -> list[int]:
        """Processes of this instance's trainers."""
        path = self.home / "tls" / "instance"
        if not path.exists():
            return []
        tag = f"HPCDL_TAG={path.read_text()}:".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if tag in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def ours(self) -> list[int]:
        """Daemon, agents and supervisors: processes that name this home in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if b"-m" in words and any(word.startswith(str(self.home).encode()) for word in words):
                        found.append(int(entry.name))
        return found

    def _granted(self) -> bool:
        """Whether the agents wrote down any grant at all: nothing written proves nothing."""
        return any(path.stat().st_size for path in self.home.parent.glob("*/run/*/grants.jsonl"))

    def tidied(self) -> bool:
        """Cancels what there is; whether all is then as after the start, but for jobs that have ended."""
        self.release()
        with contextlib.suppress(DaemonAway, ApiError, AssertionError):
            active = [row["id"] for row in self.client.get("/v1/jobs")["jobs"]]
            if active:
                self.cli("cancel", *map(str, active))
                self.until_state(active[-1], "CANCELLED")
            self.until(lambda: not self.client.get("/v1/jobs")["jobs"] and not self.tagged())
            nodes = self.client.get("/v1/nodes")["nodes"]
            good = [gpu["state"] == "ok" and not gpu["holder"] for node in nodes for gpu in node["gpus"]]
            return [node["name"] for node in nodes if node["connected"]] == ["n1"] and good == [True] * self.gpus
        return False

    def stop(self) -> None:
        """Ends everything; nothing of it may be left, and the ledger must not contradict itself."""
        self.client.close()
        with contextlib.suppress(DaemonAway, ApiError):
            with Client(self.home) as client:  # no waiting for a daemon that the test killed
                client.get("/v1/status")
            self.cli("daemon", "stop", "--now")
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(PATIENCE_S)
        try:
            until(lambda: not self.tagged() + self.ours(), "the end of its processes", folders=[self.home])
        finally:
            for pid in self.tagged() + self.ours():
                kill(pid)
        journal = SqliteJournal(self.home / "ledger.sqlite", lease_check=None)
        try:
            world = journal.load()
            validate(world)
            twice = [record for record in journal.read(0, 100_000) if "GPU HELD TWICE" in str(record.event)]
            assert not twice
            assert not granted_twice(self.home)
            assert self._granted() or not any(record.event.kind == "Started" for record in journal.read(0, 100_000))
            logs = list(self.home.glob("logs/*/*.log"))
            assert not [log for log in logs if "GPU HELD TWICE" in log.read_text(errors="replace")]
        finally:
            journal.close()
