"""Kills whatever `hpcdl daemon status --json` names, hundreds of times, and looks whether anything was lost.

    python benchmarks/torture.py --kills 200 --seed 1 [--gpus 4] [--short-leases] [--json] [--keep] [--quick]

One JSON value on standard output, progress on standard error; exit code 1 if anything is wrong. `lost`: jobs that lost
more than one interval of checkpoints; `twice`: a job that ran twice at once, or a GPU that two held; `orphans`:
processes that were left; `violations`: these and all else in `wrong` (jobs that are gone, failed, or did not finish,
wrong weights, a ledger that contradicts itself). Two nodes on this machine, emulated GPUs, jobs of every sort, and
users who submit, suspend, resume and cancel meanwhile.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcdl.client import ApiError, Client, ClientError, DaemonAway
from hpcdl.core.model.world import validate
from hpcdl.ledger import SqliteJournal
from tests.system.cluster import TRAINER, Cluster, granted_twice, kill
from tests.system.trainer import final

ROOT = Path(__file__).resolve().parent.parent
SAVE_EVERY = 20
FAR, FAR_GPUS = "n2", 2
ACTIVE = 6
DRAIN_S = 240.0
WEIGHTS = {"daemon": 3, "agent": 3, "trainer": 5, "supervisor": 2}
VICTIM_S = 3.0
"""Seconds that a strike waits for one of the kind it is to hit: a daemon that has just come knows of no trainers."""
SETTINGS = {"poison_limit_infrastructure": 1000, "avoid_failures": 0, "retry_pause_s": 0.2, "retry_pause_max_s": 1.0}

SHORT = {"agent_lease_s": 1.0, "lease_margin_s": 0.5, "agent_absence_s": 1.0}


def say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


@dataclass(frozen=True, slots=True)
class Order:
    """A job that was acknowledged. `steps` None: it does not use the library."""

    id: int
    name: str
    steps: int | None
    cancelled: bool = False


@dataclass(slots=True)
class Users:
    """Submit, suspend, resume and cancel, with a client that rides out restarts."""

    home: Path
    records: Path
    seed: int
    orders: dict[int, Order] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    verbs: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Until `stopping`; then everything that is held is released."""
        rng = random.Random(self.seed)
        held: dict[int, float] = {}
        with Client(self.home, patience_s=120.0) as client:
            while not self.stopping.is_set() or held:
                try:
                    self._once(client, rng, held)
                except ApiError as error:
                    if error.code not in ("finished", "stopping"):
                        self.troubles.append(f"a user was told: {error.status} {error}")
                except ClientError as error:
                    self.troubles.append(f"a user was told: {error}")
                time.sleep(rng.uniform(0.02, 0.3))

    def _once(self, client: Client, rng: random.Random, held: dict[int, float]) -> None:
        due = [job for job, at in held.items() if self.stopping.is_set() or time.monotonic() > at]
        for job in due:
            del held[job]
            self._verb(client, job, "resume")
        if self.stopping.is_set():
            return
        active = [row["id"] for row in client.get("/v1/jobs")["jobs"]]
        if len(active) < ACTIVE:
            self._submit(client, rng)
        elif rng.random() < 0.25:
            job = rng.choice(active)
            if rng.random() < 0.25:
                self._verb(client, job, "cancel")
                self.orders[job] = Order(job, self.orders[job].name, self.orders[job].steps, cancelled=True)
            elif job not in held:
                self._verb(client, job, "suspend")
                held[job] = time.monotonic() + rng.uniform(0.2, 3.0)
        elif rng.random() < 0.05:
            client.request("PUT", "/v1/config", {"policy": rng.choice(["marble", "marble-warm", "adaptive"])})

    def _verb(self, client: Client, job: int, verb: str) -> None:
        client.request("POST", f"/v1/jobs/{job}/{verb}", {})
        self.verbs[verb] += 1

    def _submit(self, client: Client, rng: random.Random) -> None:
        name = f"job-{len(self.orders)}"
        steps: int | None = rng.randrange(60, 300)
        options = ["--save-every", str(SAVE_EVERY), "--record", str(self.records)]
        options += ["--save-s", f"{rng.choice([0, 0, 0.05, 0.3])}"]
        spec: dict[str, Any] = {"name": name, "steps": steps, "grace_s": 20.0}
        trainer = [str(TRAINER), str(steps), *options]
        kind = rng.choice(["one", "one", "1:2", "2:4", "gate", "gate", "nodes", "sleep"])
        if kind == "gate":
            spec |= {"command": [sys.executable, "-m", "hpcdl.trainer.gate", *trainer], "gate": True}
            spec |= {"gpus_min": 1, "gpus_max": rng.choice([2, 3])}
        elif kind == "sleep":
            steps = None
            spec |= {"command": ["sleep", f"{rng.uniform(0.1, 1.5):.2f}"], "steps": None}
        else:
            low, high = {"one": (1, 1), "1:2": (1, 2), "2:4": (2, 4), "nodes": (1, 2)}[kind]
            spec |= {"command": [sys.executable, *trainer], "gpus_min": low, "gpus_max": high}
            spec |= {"nodes": 2 if kind == "nodes" else 1}
        answer = client.request("POST", "/v1/jobs", {"request_id": name, "jobs": [spec]})
        number = int(answer["jobs"][0]["id"])
        if number in self.orders:
            self.troubles.append(f"{name} was given the id of {self.orders[number].name}")
        self.orders[number] = Order(number, name, steps)


class Torture:
    """One run."""

    def __init__(self, home: Path, kills: int, seed: int, gpus: int, leases: Mapping[str, float]) -> None:
        """`leases`: settings of leases, where they are to be other than usual."""
        self.home, self.kills, self.seed, self.gpus = home, kills, seed, gpus
        self.rng = random.Random(seed)
        self.cluster = Cluster(home / "home", gpus, **SETTINGS, **leases)
        self.away_s = 3.0 if leases else 1.5
        self.records = home / "records"
        self.records.mkdir()
        self.users = Users(self.cluster.home, self.records, seed)
        self.by_kind: Counter[str] = Counter()
        self.stalls: Counter[str] = Counter()
        self.stops = 0
        self.wrong: list[str] = []
        self.far: subprocess.Popen[bytes] | None = None

    def run(self) -> dict[str, Any]:
        """The result, with what is wrong in `wrong`."""
        began = time.monotonic()
        self.cluster.start()
        self.cluster.cli("config", "policy", "marble-warm")
        users = threading.Thread(target=self.users.run, daemon=True)
        try:
            self._keep_far()
            users.start()
            while sum(self.by_kind.values()) < self.kills:
                self._keep_far()
                time.sleep(self.rng.choice([0.0, 0.02, 0.1, 0.3, 0.6, 1.0]) * self.rng.random())
                self._strike()
            say("that were the kills")
            self._start_daemon()
            self._drain(users)
        finally:
            self.users.stopping.set()
            orphans = self._stop()
        lost, twice = self._judge()
        return {
            "schema": 1,
            "seed": self.seed,
            "kills": sum(self.by_kind.values()),
            "by_kind": dict(self.by_kind),
            "stalls": dict(self.stalls),
            "stops": self.stops,
            "verbs": dict(self.users.verbs),
            "jobs": len(self.users.orders),
            "lost": lost,
            "twice": twice,
            "orphans": orphans,
            "violations": len(self.wrong) + len(self.users.troubles),
            "seconds": round(time.monotonic() - began, 1),
            "wrong": [*self.wrong, *self.users.troubles],
        }

    # --- killing -----------------------------------------------------------------------------------------------------

    def _victims(self) -> dict[str, list[int]]:
        """Who could be hit now, by kind. Raises ClientError."""
        with Client(self.cluster.home) as client:
            status = client.get("/v1/status")
        found = {"daemon": [status["daemon"]["pid"]]}
        found["agent"] = [agent["pid"] for agent in status["agents"] if agent["connected"]]
        found["trainer"] = [trainer["pid"] for trainer in status["trainers"]]
        found["supervisor"] = [trainer["supervisor"] for trainer in status["trainers"]]
        return {kind: [pid for pid in pids if pid] for kind, pids in found.items()}

    def _strike(self) -> None:
        chosen = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        end = time.monotonic() + VICTIM_S
        try:
            while not (victims := self._victims())[chosen[0]] and time.monotonic() < end:
                self._keep_far()
                time.sleep(0.05)
        except ClientError:
            self._start_daemon()
            return
        kinds = [kind for kind in WEIGHTS if victims[kind]]
        if chosen[0] not in kinds:
            return
        if self.rng.random() < 0.15:
            kind = self.rng.choice(kinds)
            self._stall(kind, self.rng.choice(victims[kind]))
        if self.rng.random() < 0.15:
            chosen.append(self.rng.choice(kinds))
        for kind in dict.fromkeys(chosen):
            self._kill(kind, self.rng.choice(victims[kind]))
        if "daemon" in chosen:
            self._come_back()
        elif self.rng.random() < 0.1:
            self._stop_daemon()

    def _come_back(self) -> None:
        """After the daemon's death."""
        time.sleep(self.rng.choice([0.0, 0.0, 0.2, self.away_s]))
        self._keep_far()
        while self.rng.random() < 0.25:
            self._kill_while_it_starts()
        self._start_daemon()

    def _stop_daemon(self) -> None:
        """As its user may at any time; something may be killed while it stops."""
        argv = [sys.executable, "-m", "hpcdl", "daemon", "stop", *self.rng.choice([[], ["--now"]])]
        environment = {**os.environ, "HPCDL_HOME": str(self.cluster.home)}
        stopping = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.stops += 1
        time.sleep(self.rng.uniform(0.2, 1.0))
        if self.rng.random() < 0.5:
            with contextlib.suppress(ClientError), Client(self.cluster.home) as client:
                status = client.get("/v1/status")
                named = [("agent", agent["pid"]) for agent in status["agents"] if agent["connected"]]
                named += [("trainer", trainer["pid"]) for trainer in status["trainers"]]
                self._kill(*self.rng.choice([("daemon", status["daemon"]["pid"]), *named]))
        began = time.monotonic()
        stopping.communicate()
        if time.monotonic() - began > 60:
            self.wrong.append(f"a stop took {time.monotonic() - began:.0f} s")
        self._come_back()

    def _kill(self, kind: str, pid: int) -> None:
        kill(pid)
        self.by_kind[kind] += 1
        total = sum(self.by_kind.values())
        if total % 20 == 0:
            say(f"{total} kills, {len(self.users.orders)} jobs")

    def _stall(self, kind: str, pid: int) -> None:
        """SIGSTOP for a while: a machine that swaps, a file system that hangs."""
        try:
            descriptor = os.pidfd_open(pid)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        except OSError:
            return
        self.stalls[kind] += 1

        def go_on() -> None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)

        threading.Timer(self.rng.uniform(0.1, 2.5), go_on).start()

    def _kill_while_it_starts(self) -> None:
        starting = self._begin_daemon()
        time.sleep(self.rng.uniform(0.3, 1.5))
        with contextlib.suppress(OSError, ValueError):
            pid = int(json.loads((self.cluster.home / "access.json").read_text())["pid"])
            if str(self.cluster.home) in Path(f"/proc/{pid}/cmdline").read_text():
                self._kill("daemon", pid)
        starting.wait()

    def _begin_daemon(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "hpcdl", "daemon", "start", "--emulate-gpus", str(self.gpus)]
        environment = {**os.environ, "HPCDL_HOME": str(self.cluster.home)}
        return subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def _start_daemon(self) -> None:
        starting = self._begin_daemon()
        _, said = starting.communicate()
        if starting.returncode and b"already" not in said and b"runs" not in said:
            self.wrong.append(f"daemon start: {said.decode().strip()}")

    def _keep_far(self) -> None:
        if self.far is None or self.far.poll() is not None:
            argv = [sys.executable, "-m", "hpcdl.agent", "--home", str(self.cluster.home), "--node", FAR]
            with (self.cluster.home / "agent-far.out").open("ab") as out:
                self.far = subprocess.Popen([*argv, "--emulate-gpus", str(FAR_GPUS)], stdout=out, stderr=out)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _drain(self, users: threading.Thread) -> None:
        self.users.stopping.set()
        users.join(150.0)
        end = time.monotonic() + DRAIN_S
        left: list[str] = []
        while time.monotonic() < end:
            self._keep_far()
            with contextlib.suppress(DaemonAway, ApiError):
                rows = self.cluster.client.get("/v1/jobs")["jobs"]
                left = [f"{row['id']} {row['state']}: {row['reason']}" for row in rows]
                if not left:
                    return
            time.sleep(0.1)
        self.wrong.append(f"not finished after {DRAIN_S:.0f} s: {'; '.join(left)}")

    def _stop(self) -> int:
        """Ends everything; how many processes had to be killed."""
        with contextlib.suppress(ClientError):
            with Client(self.cluster.home) as client:
                rows = client.get("/v1/jobs?all=1")["jobs"]
            self._look_at_rows(rows)
            self.cluster.cli("daemon", "stop", "--now")
        if self.far is not None and self.far.poll() is None:
            self.far.terminate()
            self.far.wait(60)
        end = time.monotonic() + 60
        while (left := {*self.cluster.tagged(), *self.cluster.ours()}) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(OSError):
                self.wrong.append(f"orphan {pid}: {Path(f'/proc/{pid}/cmdline').read_text()!r}")
            kill(pid)
        return len(left)

    def _look_at_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        names = Counter(row["name"] for row in rows)
        self.wrong += [f"{name} is there {times} times" for name, times in names.items() if times > 1]
        found = {row["id"]: row for row in rows}
        for order in self.users.orders.values():
            row = found.get(order.id)
            if row is None or row["name"] != order.name:
                self.wrong.append(f"{order.name} was acknowledged as {order.id}, and is not there")
                continue
            expected = ("CANCELLED", "DONE") if order.cancelled else ("DONE",)
            if row["state"] not in expected:
                self.wrong.append(f"{order.name} ({order.id}) is {row['state']}: {row['cause']} {row['detail']}")
            elif row["state"] == "DONE" and order.steps is not None:
                path = self.cluster.home / "checkpoints" / str(order.id) / "final"
                if not path.exists() or path.read_text() != final(order.steps):
                    self.wrong.append(f"{order.name} ({order.id}) has the wrong weights")

    def _judge(self) -> tuple[int, int]:
        """What the ledger and the trainers' own records say: jobs that lost too much, and GPUs or jobs held twice."""
        journal = SqliteJournal(self.cluster.home / "ledger.sqlite", lease_check=None)
        try:
            journal.verify()
            world = journal.load()
            validate(world)
            for record in journal.read(0, 1_000_000):
                if record.event.kind == "TroubleSeen":
                    self.wrong.append(f"trouble: {record.event}")
        finally:
            journal.close()
        lives = [json.loads(path.read_text()) for path in self.records.iterdir() if path.stat().st_size]
        twice = [f"GPU held twice: {life['busy']} {life}" for life in lives if life["busy"]]
        for what in ("gpus", "job"):
            twice += _overlaps(lives, what)
        twice += granted_twice(self.cluster.home)
        self.wrong += twice
        lost = self._lost([life for life in lives if life["rank"] == 0 and life["step"] is not None])
        self.wrong += lost
        return len(lost), len(twice)

    @staticmethod
    def _lost(lives: list[dict[str, Any]]) -> list[str]:
        found = []
        for before, after in pairwise(sorted(lives, key=lambda life: (life["job"], life["from"]))):
            gap = before["step"] - after["resumed"]
            if before["job"] == after["job"] and gap > SAVE_EVERY:
                found.append(f"job {before['job']}.{after['incarnation']} lost {gap} steps: {before} {after}")
        return found


def _overlaps(lives: list[dict[str, Any]], what: str) -> list[str]:
    spans: dict[Any, list[dict[str, Any]]] = {}
    for life in lives:
        keys = life["gpus"] if what == "gpus" else [(life["job"], life["rank"])]
        for key in keys:
            spans.setdefault(key, []).append(life)
    found = []
    for key, mine in spans.items():
        for before, after in pairwise(sorted(mine, key=lambda life: float(life["from"]))):
            if after["from"] < before["to"]:
                found.append(f"{what} {key} twice at once: {before} {after}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--short-leases", action="store_true", help="1 s without a daemon or an agent is too long")
    parser.add_argument("--json", action="store_true", help="on one line")
    parser.add_argument("--keep", action="store_true", help="keep the home, whatever the result")
    parser.add_argument("--quick", action="store_true", help="20 kills")
    options = parser.parse_args()
    kills = 20 if options.quick else options.kills
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    home = Path(tempfile.mkdtemp(prefix="hpcdl-torture-"))
    torture = Torture(home, kills, options.seed, options.gpus, SHORT if options.short_leases else {})
    result = torture.run()
    wrong = bool(result["wrong"] or result["lost"] or result["twice"] or result["orphans"])
    if wrong or options.keep:
        say(f"everything is kept in {home}")
    else:
        shutil.rmtree(home)
    print(json.dumps(result, indent=None if options.json else 2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
