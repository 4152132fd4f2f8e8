"""What goes wrong besides kills: full disks, clocks, a stalled process, wrong callers, and too many of them."""

import contextlib
import errno
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from hpcdl.client import ApiError, Client
from hpcdl.core.model.events import KINDS, Report, TroubleSeen
from hpcdl.ledger import SqliteJournal
from hpcdl.wire.access import AccessFile, read_access
from hpcdl.wire.messages import MAX_MESSAGE, VERSION
from hpcdl.wire.tls import client_context
from tests.system.cluster import Cluster

MakeCluster = Callable[..., Cluster]
HOUR_S = 3600.0


# --- full disks ------------------------------------------------------------------------------------------------------


class SmallDisk:
    """A file system of a few MiB that can be filled up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Until not one page is left."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "small"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "hpcdl-test", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield SmallDisk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def full_home(small_disk: SmallDisk) -> Iterator[tuple[Cluster, SmallDisk]]:
    """A cluster whose home is on the small disk."""
    cluster = Cluster(small_disk.path / "home", 2, retry_pause_max_s=1)
    yield cluster.start(), small_disk
    cluster.stop()


def test_the_disk_of_the_ledger_is_full(full_home: tuple[Cluster, SmallDisk]) -> None:
    """Ledger, agents' logs, job logs and checkpoints are all on it: one clear line, nothing changed, and it goes on."""
    cluster, disk = full_home
    cluster.hold()
    job = cluster.submit("--save-every", 50, steps=300)
    cluster.until_step(job, 10)
    trainer = cluster.trainer_pid(job)
    disk.fill()
    with pytest.raises(ApiError) as refused:
        _submit(cluster, "true")
    assert (refused.value.status, refused.value.code) == (503, "not-recorded")
    assert "full" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [row["id"] for row in cluster.client.get("/v1/jobs?all=1")["jobs"]] == [job]
    pid = cluster.status()["daemon"]["pid"]
    cluster.release()
    cluster.until(lambda: not Path(f"/proc/{trainer}").exists())  # its first checkpoint finds the full disk
    disk.free()
    second = cluster.submit(steps=20)
    assert second == job + 1
    cluster.until_done(job, second)
    cluster.check_weights(job, 300)
    assert cluster.status()["daemon"]["pid"] == pid


def test_an_agent_that_goes_while_the_disk_is_full_is_missed(full_home: tuple[Cluster, SmallDisk]) -> None:
    """That it went could not be recorded then; it is once there is room."""
    cluster, disk = full_home
    with _join(read_access(cluster.home), "n9"):
        cluster.until(lambda: _connected(cluster, "n9"))
        disk.fill()
        with pytest.raises(ApiError):
            _submit(cluster, "true")
    cluster.until(lambda: all(each["node"] != "n9" or not each["connected"] for each in cluster.status()["agents"]))
    assert _connected(cluster, "n9")
    disk.free()
    cluster.until(lambda: not _connected(cluster, "n9"))


def _connected(cluster: Cluster, name: str) -> bool:
    """As the ledger has it."""
    nodes = cluster.client.get("/v1/nodes")["nodes"]
    return any(node["name"] == name and node["connected"] for node in nodes)


@pytest.mark.long
def test_a_daemon_killed_while_its_disk_is_full(full_home: tuple[Cluster, SmallDisk]) -> None:
    cluster, disk = full_home
    cluster.hold()  # its own end needs the disk, and must not come before there is room
    job = cluster.submit("--save-every", 10000, steps=300)
    cluster.until_step(job, 10)
    disk.fill()
    with pytest.raises(ApiError):
        _submit(cluster, "true")
    cluster.kill_daemon()
    said = subprocess.run(
        [sys.executable, "-m", "hpcdl", "daemon", "start", "--emulate-gpus", "2"],
        env={**os.environ, "HPCDL_HOME": str(cluster.home)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if said.returncode:  # it may find the space that the dead one had
        assert len(said.stderr.strip().splitlines()) == 1, said.stderr
    disk.free()
    cluster.start()
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 300)
    assert cluster.job(job)["incarnation"] == 1


def test_the_disk_of_the_checkpoints_is_full(make_cluster: MakeCluster, small_disk: SmallDisk) -> None:
    """The save fails, its trainer with it; the job goes on from the checkpoint before, once there is room again."""
    cluster = make_cluster(gpus=1, retry_pause_s=0.2, retry_pause_max_s=1).start()
    folder = small_disk.path / "checkpoints"
    cluster.hold()
    job = cluster.submit("--save-every", 20, steps=200, options=("--checkpoint-dir", str(folder)))
    cluster.until(lambda: (cluster.job(job)["saved_step"] or 0) >= 20)
    small_disk.fill()
    cluster.release()
    cluster.until(lambda: cluster.job(job)["failures"] >= 2)
    assert "No space left on device" in cluster.cli("logs", str(job))
    small_disk.free()
    cluster.until_done(job)
    cluster.check_weights(job, 200)
    assert cluster.job(job)["retries_used"] == 0


def test_the_disk_of_the_log_is_full(make_cluster: MakeCluster, small_disk: SmallDisk) -> None:
    """Output is dropped, and the job does not even notice."""
    cluster = make_cluster(gpus=1).start()
    (cluster.home / "logs").mkdir(mode=0o700, exist_ok=True)
    (small_disk.path / "logs").mkdir(mode=0o700)
    subprocess.run(["mount", "--bind", str(small_disk.path / "logs"), str(cluster.home / "logs")], check=True)
    try:
        full = cluster.home.parent / "full"
        script = (
            "import os, sys, time\n"
            "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
            "for n in range(60): print('line', n, 'x' * 5000, flush=True); time.sleep(0.01)"
        )
        job = cluster.cli("submit", "--json", "--", sys.executable, "-c", script, str(full))["jobs"][0]["id"]
        cluster.until_state(job, "RUNNING")
        small_disk.fill()
        full.touch()
        cluster.until(lambda: "Exited" in cluster.kinds(job))
        small_disk.free()
        cluster.until_done(job)
        notes = [event["body"]["text"] for event in cluster.events(job) if event["kind"] == "Noted"]
        assert any("dropped" in note for note in notes), notes
    finally:
        subprocess.run(["umount", "--lazy", str(cluster.home / "logs")], check=True)


# --- the side channel ------------------------------------------------------------------------------------------------

FLOOD = """
import sys
import hpcdl.trainer as hpcdl
from hpcdl.trainer import session
attached = hpcdl.attach()
hpcdl.ready(0)
for step in range(1, 20001):
    attached.send("progress", step=step, total=20000, samples=None)
    attached.send("nonsense", text="x" * 1000)
hpcdl.progress(20000, 20000)
hpcdl.done(20000)
"""


def test_a_trainer_that_floods_the_side_channel(kept_cluster: Cluster) -> None:
    other = kept_cluster.submit(steps=60)
    job = kept_cluster.cli("submit", "--json", "--", sys.executable, "-c", FLOOD)["jobs"][0]["id"]
    kept_cluster.until_done(job, other)
    assert len(kept_cluster.events(job)) < 200
    kept_cluster.check_weights(other, 60)


def test_a_supervisor_that_is_stopped_for_a_while(kept_cluster: Cluster, tmp_path: Path) -> None:
    """Its trainer goes on without it: what it says is dropped, or waits."""
    kept_cluster.hold()
    job = kept_cluster.submit("--record", tmp_path, "--save-every", 10000, "--step-s", 0.005, steps=400)
    kept_cluster.until_step(job, 10)
    (record,) = tmp_path.glob(f"{job}.1.0.*")
    supervisor = next(line["supervisor"] for line in kept_cluster.status()["trainers"] if line["job"] == job)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        before = json.loads(record.read_text())["step"]
        kept_cluster.release()
        kept_cluster.until(lambda: json.loads(record.read_text())["step"] > before + 100)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    kept_cluster.until_done(job)
    kept_cluster.check_weights(job, 400)
    assert kept_cluster.job(job)["incarnation"] == 1


# --- time ------------------------------------------------------------------------------------------------------------


def test_the_clock_was_stepped_back(cluster: Cluster) -> None:
    """The newest event lies an hour ahead: everything still works, and times never run backwards."""
    job = cluster.submit("--save-every", 10000, steps=400)
    cluster.until_step(job, 5)
    cluster.kill_daemon()
    journal = SqliteJournal(cluster.home / "ledger.sqlite", lease_check=None)
    journal.append([(time.time() + HOUR_S, TroubleSeen("test", "the clock was right, or not"))], [], [])
    journal.close()
    cluster.start()
    held = cluster.submit(steps=30)
    cluster.until_done(held, job)
    cluster.check_weights(job, 400)
    failing = cluster.submit("--fail-at", 5, steps=20, options=("--retries", "1"))
    cluster.until_state(failing, "FAILED")
    times = [event["at"] for event in cluster.events()]
    ahead = [at for at in times if at > time.time() + HOUR_S / 2]
    assert len(ahead) > 10
    told = [event["at"] for event in cluster.events() if event["kind"] not in REPORTED]
    assert told == sorted(told)
    row = cluster.job(held)
    assert 0 <= row["wait_s"] < HOUR_S / 2
    assert 0 < row["jct_s"] < HOUR_S / 2
    assert cluster.job(job)["incarnation"] == 1


REPORTED = frozenset(name for name, kind in KINDS.items() if issubclass(kind, Report))
"""Reports carry the time of what they report, which is before the time at which they are recorded."""


# --- who else calls --------------------------------------------------------------------------------------------------


def test_a_daemon_starts_while_the_agent_is_stopped(cluster: Cluster) -> None:
    job = cluster.submit(steps=300)
    cluster.until_step(job, 5)
    agent = cluster.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    cluster.kill_daemon()
    starting = threading.Thread(target=cluster.start)
    starting.start()
    try:
        cluster.until(lambda: not cluster.status()["agents"][0]["connected"])
        second = _submit(cluster, "true")
        cluster.until(lambda: "next scheduling decision" not in cluster.job(second)["reason"])
        assert cluster.job(second)["state"] == "QUEUED"
    finally:
        os.kill(agent, signal.SIGCONT)
    starting.join()
    cluster.until_done(job, second)
    cluster.check_weights(job, 300)
    assert cluster.job(job)["incarnation"] == 1
    assert cluster.agent_pid() == agent


def test_wrong_callers_are_told_in_one_line(kept_cluster: Cluster) -> None:
    access = read_access(kept_cluster.home)
    before = kept_cluster.events()[-1]["seq"]
    status, answer = _request(access, "GET", "/v1/status", token="0" * 43)
    assert (status, answer["code"]) == (401, "token")
    status, _ = _request(access, "GET", "/v1/status", token="é" * 10)
    assert status == 401
    with pytest.raises(ssl.SSLCertVerificationError):
        _request(access, "GET", "/v1/status", context=ssl.create_default_context())
    bodies: list[tuple[bytes, int]] = [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b"[" * 100_000, 400),
        (b'{"request_id": 7, "jobs": []}', 400),
        (b'{"request_id": "a", "jobs": [{}]}', 400),
        (b'{"request_id": "a", "jobs": [{"command": ["true"], "name": "x", "grace_s": NaN}]}', 400),
        (b'{"request_id": "a", "jobs": [{"command": ["true"], "name": "x", "gpus_min": 1e400}]}', 400),
        (b'{"request_id": "a", "jobs": [{"command": ["\\ud800"], "name": "x"}]}', 400),
        (b'{"request_id": "\\ud800", "jobs": [{"command": ["true"], "name": "x"}]}', 400),
        (b'{"request_id": "a", "jobs": [{"command": ["true"], "name": "x", "steps": 9999999999999999999999}]}', 400),
        (b'{"request_id": "a", "jobs": [{"command": ["true"], "name": "x", "after": [99999]}]}', 404),
        (b"x" * (9 << 20), 413),
        (b"\xff\xfe", 400),
    ]
    for body, expected in bodies:
        status, answer = _request(access, "POST", "/v1/jobs", body)
        assert status == expected, (body[:100], status, answer)
        assert len(answer["error"].splitlines()) == 1, answer
        assert len(answer["error"]) < 600
    for method, path in (("GET", "/v1/jobs/99999999999999999999"), ("POST", "/v1/jobs/1/explode"), ("PUT", "/x")):
        assert _request(access, method, path, b"{}")[0] == 404
    for path in ("/v1/events?after=-1", "/v1/events?after=1e9", "/v1/wait?ids=x", "/v1/jobs?ids=%00", "/v1/wait"):
        assert _request(access, "GET", path)[0] == 400
    after = {event["kind"] for event in kept_cluster.events() if event["seq"] > before}
    assert after <= {"PlanAdopted"}, "of what was before"
    kept_cluster.until_done(kept_cluster.submit(steps=5))


def test_wrong_agents_change_nothing(kept_cluster: Cluster) -> None:
    access = read_access(kept_cluster.home)
    kept_cluster.hold()
    job = kept_cluster.submit(steps=200)
    kept_cluster.until_state(job, "RUNNING")
    with pytest.raises(InvalidHandshake), _dial(access, token="0" * 43):
        pass
    hello = {"v": VERSION, "type": "hello", "node": "n9", "log_id": "l", "instance": access.instance, "fence": 0}
    wrong: list[str | bytes] = [
        "",
        "{",
        "[" * 100_000,
        "7",
        json.dumps({**hello, "v": 99}),
        json.dumps({**hello, "type": "x"}),
        json.dumps({**hello, "node": 7}),
        json.dumps({**hello, "node": "../n1"}),
        json.dumps({**hello, "instance": "of another"}),
        json.dumps({**hello, "fence": 99}),
        json.dumps({"v": VERSION, "type": "heartbeat", "gpus": [], "trainers": []}),
        json.dumps(hello).encode(),
    ]
    for frame in wrong:
        code, reason = _closed(access, frame)
        assert code == 4001, (frame[:80], code, reason)
        assert len(reason.splitlines()) == 1
    with _dial(access) as far_too_much, pytest.raises(ConnectionClosed):
        far_too_much.send("x" * (MAX_MESSAGE + 1))
        while True:
            far_too_much.recv(timeout=120)
    assert [agent["node"] for agent in kept_cluster.status()["agents"]] == ["n1"]
    kept_cluster.release()
    kept_cluster.until_done(job)
    assert kept_cluster.job(job)["incarnation"] == 1


def test_a_second_connection_of_a_node_replaces_the_first(cluster: Cluster) -> None:
    """And the end of the first one, which comes later, says nothing about the node."""
    access = read_access(cluster.home)
    with _join(access, "n9") as first, _join(access, "n9"):
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                first.recv(timeout=120)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4000
        here = {"node": "n9", "pid": 1, "connected": True}
        cluster.until(lambda: here in cluster.status()["agents"])
        for _ in range(20):  # as many turns of the daemon's loop, in which the first one ends
            assert here in cluster.status()["agents"]
        node = next(each for each in cluster.client.get("/v1/nodes")["nodes"] if each["name"] == "n9")
        assert node["connected"]
    cluster.until(lambda: {"node": "n9", "pid": 1, "connected": False} in cluster.status()["agents"])


def test_silent_and_many_connections(cluster: Cluster) -> None:
    """Connections that say nothing hold up nobody, not even the end; 200 requests at once are all answered."""
    access = read_access(cluster.home)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(socket.create_connection((access.host, access.port)))
            stack.enter_context(_dial(access))
        job = cluster.submit(steps=20)
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(lambda n: _request(access, "GET", f"/v1/jobs/{job}"), range(200)))
        assert [status for status, _ in answers] == [200] * 200
        cluster.until_done(job)
        cluster.cli("daemon", "stop")  # while they are all open
        cluster.start()


def _submit(cluster: Cluster, *command: str) -> int:
    body = {"request_id": f"r{time.monotonic_ns()}", "jobs": [{"command": command, "name": "x"}]}
    with Client(cluster.home) as client:
        return int(client.request("POST", "/v1/jobs", body)["jobs"][0]["id"])


def _request(
    access: AccessFile,
    method: str,
    path: str,
    body: bytes | None = None,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, dict[str, Any]]:
    """One request as a stranger would make it: status and answer."""
    import http.client

    tls = context or client_context(access.certificate)
    connection = http.client.HTTPSConnection(access.host, access.port, context=tls, timeout=180)
    try:
        headers = {"Authorization": f"Bearer {token or access.token}".encode()}
        try:
            connection.request(method, path, body, headers)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert answer["schema"] == 1
        return response.status, answer
    finally:
        connection.close()


def _dial(access: AccessFile, token: str | None = None) -> AbstractContextManager[ClientConnection]:
    return connect(
        f"wss://{access.host}:{access.port}/v1/agent",
        ssl=client_context(access.certificate),
        additional_headers={"Authorization": f"Bearer {token or access.token}"},
        max_size=MAX_MESSAGE,
        compression=None,
        proxy=None,
        open_timeout=60,
        close_timeout=1,
    )


def _closed(access: AccessFile, frame: str | bytes) -> tuple[int, str]:
    """Why the daemon closes a connection that begins with this frame."""
    with _dial(access) as socket_, pytest.raises(ConnectionClosed) as closed:
        socket_.send(frame)
        while True:
            socket_.recv(timeout=120)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


@contextlib.contextmanager
def _join(access: AccessFile, node: str) -> Iterator[ClientConnection]:
    """A node that is nothing but its connection."""
    with _dial(access) as socket_:
        hello = {"v": VERSION, "type": "hello", "node": node, "log_id": "l", "instance": access.instance, "fence": 0}
        socket_.send(json.dumps(hello))
        assert json.loads(socket_.recv(timeout=120))["type"] == "welcome"
        inventory = {"gpus": [], "cpus": 1, "memory_mib": 1, "pid": 1, "boot_id": "b", "emulated": True}
        socket_.send(json.dumps({"v": VERSION, "type": "inventory", **inventory}))
        yield socket_


# --- lost GPUs -------------------------------------------------------------------------------------------------------


def test_a_gpu_lost_under_a_job(make_cluster: MakeCluster) -> None:
    """Whoever trains on is left alone; whoever fails for it goes on elsewhere, and is no user error."""
    cluster = make_cluster(gpus=1).start()
    cluster.hold()
    stays = cluster.submit(steps=100_000)
    cluster.until_step(stays, 5)
    cluster.add_agent("n2", 1)
    job = cluster.submit("--save-every", 10, steps=300)
    cluster.until_step(job, 15)
    pid = cluster.trainer_pid(job)
    locks = [next(cluster.home.glob(f"run/{node}/emulated/*.lock")) for node in ("n1", "n2")]
    for lock in locks:
        lock.unlink()
    kept = "keeps its 1 GPU of n1, whose GPUs are lost, dirty, excluded or drained"
    cluster.until(lambda: cluster.job(stays)["reason"] == kept)

    def lost() -> list[str]:
        return [node["name"] for node in cluster.client.get("/v1/nodes")["nodes"] if node["gpus"][0]["state"] == "lost"]

    cluster.until(lambda: len(lost()) == 2)
    os.kill(pid, signal.SIGABRT)  # as a library does that cannot reach its GPU
    cluster.until(lambda: "IncarnationEnded" in cluster.kinds(job))
    ended = next(event["body"] for event in cluster.events(job) if event["kind"] == "IncarnationEnded")
    assert ended["cause"] == "infrastructure"
    assert f"GPU 0 ({locks[1].stem}) is lost" in ended["detail"]
    waits = "needs 1 GPU; all GPUs of n[1-2] are lost, dirty, excluded or drained"
    cluster.until(lambda: cluster.job(job)["reason"] == waits)
    assert cluster.job(job)["state"] == "QUEUED"
    assert (cluster.job(stays)["state"], cluster.job(stays)["incarnation"]) == ("RUNNING", 1)
    locks[1].touch(0o600)
    cluster.release()
    cluster.until_done(job)
    cluster.check_weights(job, 300)
    cluster.cli("cancel", str(stays))
    cluster.until_state(stays, "CANCELLED")
