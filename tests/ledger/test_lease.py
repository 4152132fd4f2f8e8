import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpcdl.ledger.lease import Holder, Lease, LeaseError, LeaseHeld, _myself
from hpcdl.wire.private_files import NotPrivate, atomic_write

ROOT = Path(__file__).parents[2]
BOOT_ID = "/proc/sys/kernel/random/boot_id"
NOW = 1_700_000_000.0
RACER = """
import sys
from pathlib import Path
from hpcdl.ledger.lease import Lease, LeaseHeld
lease = None
print("ready", flush=True)
for line in sys.stdin:
    if line == "release\\n":
        lease.release()
        print("released", flush=True)
        continue
    try:
        lease = Lease.acquire(Path(sys.argv[1]), now=1.7e9)
        print(f"won {lease.fence}", flush=True)
    except LeaseHeld as error:
        print(f"held by {error.holder.pid}", flush=True)
"""


class Racer:
    """A real process that acquires when told, and lives until it is killed."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RACER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.answer() == "ready"

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def racers() -> Iterator[list[Racer]]:
    racers: list[Racer] = []
    yield racers
    for racer in racers:
        racer.kill()


def put(home: Path, fence: int, holder: Holder) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    path = home / f"lease.{fence}"
    atomic_write(path, json.dumps({"v": 1, "fence": fence, **asdict(holder)}).encode())
    atomic_write(home / "fence", b"%d\n" % fence)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_second_is_refused_and_told_who_holds_it(home: Path) -> None:
    lease = Lease.acquire(home, now=NOW, batch_job="slurm:4242:1795328157:alpha")
    assert lease.fence == 1
    assert lease.holds()
    with pytest.raises(LeaseHeld) as caught:
        Lease.acquire(home, now=NOW)
    said = str(caught.value)
    assert f"process {os.getpid()} on {socket.gethostname()} in batch job 4242 since 2023-11-1" in said
    assert "hpcdl daemon stop" in said
    assert "\n" not in said
    assert caught.value.holder == lease.holder
    lease.release()
    assert not lease.holds()


def test_the_fence_grows_with_each_acquisition_and_above_the_hint(home: Path) -> None:
    fences = []
    for hint in (0, 0, 10, 3):
        lease = Lease.acquire(home, now=NOW, fence_hint=hint)
        fences.append(lease.fence)
        lease.release()
        lease.release()  # again: no harm
    assert fences == [1, 2, 11, 12]
    assert os.listdir(home) == ["fence"]


def test_renew_touches_the_file_and_nothing_else(home: Path) -> None:
    lease = Lease.acquire(home, now=NOW)
    path = home / "lease.1"
    content = path.read_bytes()
    os.utime(path, (1.0, 1.0))
    assert lease.renew()
    assert path.stat().st_mtime > 1.0
    assert path.read_bytes() == content
    path.unlink()
    assert not lease.renew()
    assert not path.exists()


def test_a_lease_that_was_removed_or_replaced_is_not_held(home: Path) -> None:
    lease = Lease.acquire(home, now=NOW)
    path = home / "lease.1"
    path.rename(home / "aside")
    assert not lease.holds()
    put(home, 1, replace(lease.holder, nonce="0" * 32))
    assert not lease.holds()
    lease.release()
    assert path.exists()  # it is not ours to remove


def test_a_child_does_not_hold_and_cannot_release(home: Path) -> None:
    lease = Lease.acquire(home, now=NOW)
    pid = os.fork()
    if pid == 0:
        lease.release()
        os._exit(int(lease.holds() or lease.renew()))
    assert os.waitpid(pid, 0)[1] == 0
    assert lease.holds()


def test_a_killed_holder_is_succeeded(home: Path, racers: list[Racer]) -> None:
    racer = Racer(home)
    racers.append(racer)
    racer.tell("acquire")
    assert racer.answer() == "won 1"
    os.kill(racer.process.pid, signal.SIGSTOP)  # stopped is not gone, however long it lasts
    with pytest.raises(LeaseHeld, match=f"process {racer.process.pid} "):
        Lease.acquire(home, now=NOW * 2)
    os.kill(racer.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, racer.process.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie until the fixture reaps it
    lease = Lease.acquire(home, now=NOW)
    assert lease.fence == 2
    assert sorted(os.listdir(home)) == ["fence", "lease.2"]


def test_a_pid_that_was_given_to_another_process_is_gone(home: Path) -> None:
    me = _myself(None, NOW)
    put(home, 5, replace(me, start=me.start - 1))
    assert Lease.acquire(home, now=NOW).fence == 6


@pytest.mark.parametrize("machine", ["4f2c", ""])
def test_an_earlier_boot_of_this_machine_is_gone_where_it_can_be_told(
    home: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdl.ledger.lease._text", {"/etc/machine-id": machine, BOOT_ID: "now"}.__getitem__)
    put(home, 5, replace(_myself(None, NOW), boot="before"))
    if machine:
        assert Lease.acquire(home, now=NOW).fence == 6
    else:
        with pytest.raises(LeaseHeld, match="if you know that it is gone"):
            Lease.acquire(home, now=NOW)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "n9", "boot": "other"},
        {"machine": "other", "boot": "other"},  # another cluster's node of the same name, on the same file system
        {"pid_namespace": "pid:[1]"},  # another container: its pids mean nothing here
    ],
)
def test_what_this_machine_cannot_judge_is_for_the_batch_system_to_say(home: Path, elsewhere: dict[str, str]) -> None:
    holder = Holder(**{**asdict(_myself(None, NOW)), "pid": 1, "start": 1, **elsewhere})
    path = put(home, 5, holder)
    asked: list[str] = []

    def ended(job: str) -> bool:
        asked.append(job)
        return len(asked) > 1

    with pytest.raises(LeaseHeld, match=f"if you know that it is gone, remove {path}"):
        Lease.acquire(home, now=NOW, batch_ended=ended)  # in no batch job: nobody can say
    assert asked == []
    put(home, 5, replace(holder, batch_job="77"))
    with pytest.raises(LeaseHeld, match="in batch job 77"):
        Lease.acquire(home, now=NOW)
    with pytest.raises(LeaseHeld, match="in batch job 77"):
        Lease.acquire(home, now=NOW, batch_ended=ended)
    assert Lease.acquire(home, now=NOW, batch_ended=ended).fence == 6
    assert asked == ["77", "77"]


def test_a_live_process_holds_whatever_the_batch_system_says(home: Path) -> None:
    Lease.acquire(home, now=NOW, batch_job="77")
    with pytest.raises(LeaseHeld):
        Lease.acquire(home, now=NOW, batch_ended=lambda _: True)


def test_a_holder_wrongly_thought_gone_holds_no_more(home: Path, racers: list[Racer]) -> None:
    lease = Lease.acquire(home, now=NOW)
    (home / "lease.1").unlink()  # by hand, against the advice
    racer = Racer(home)
    racers.append(racer)
    racer.tell("acquire")
    assert racer.answer() == "won 2"
    assert not lease.holds()
    lease.release()
    assert (home / "lease.2").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"v": 1, "fence": 5}', b"\xff", b'{"v": 2}'])
def test_a_damaged_lease_is_not_taken_for_a_free_one(home: Path, content: bytes) -> None:
    home.mkdir(mode=0o700)
    atomic_write(home / "lease.5", content)
    with pytest.raises(LeaseHeld, match=r"is damaged, .*remove it if no daemon runs"):
        Lease.acquire(home, now=NOW)


@pytest.mark.parametrize("content", [b"", b"x", b"-5", b"3.5", b"5 6", b"1_0", b"\x00\x01", b"9" * 26, b"9" * 4_000])
def test_a_damaged_fence_is_refused_and_made_anew_once_it_is_gone(home: Path, content: bytes) -> None:
    home.mkdir(mode=0o700)
    atomic_write(home / "fence", content)
    with pytest.raises(LeaseError, match="fence is damaged: remove it"):
        Lease.acquire(home, now=NOW)
    assert os.listdir(home) == ["fence"]
    (home / "fence").unlink()
    assert Lease.acquire(home, now=NOW, fence_hint=6).fence == 7, "the ledger remembers"


@pytest.mark.parametrize("change", [{"pid": "1"}, {"start": None}, {"since": "x"}, {"since": 1e300}, {"batch_job": 7}])
def test_a_lease_with_a_bad_field_is_damaged(home: Path, change: dict[str, object]) -> None:
    body = {"v": 1, "fence": 5, **asdict(_myself(None, NOW)), **change}
    home.mkdir(mode=0o700)
    atomic_write(home / "lease.5", json.dumps(body).encode())
    with pytest.raises(LeaseHeld, match="is damaged"):
        Lease.acquire(home, now=NOW)


def test_a_folder_open_to_others_is_refused(home: Path) -> None:
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    with pytest.raises(NotPrivate, match="run chmod 700"):
        Lease.acquire(home, now=NOW)


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_disk_that_fails_leaves_nothing_in_the_way(home: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises((OSError, LeaseError), match="No space left"):
            Lease.acquire(home, now=NOW)
    assert os.listdir(home) == []
    assert Lease.acquire(home, now=NOW).fence == 1


def test_a_disk_that_fails_at_any_write_leaves_nothing_in_the_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    for good in range(10):
        left = good

        def failing(fd: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "Input/output error")
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            try:
                lease = Lease.acquire(home, now=NOW)
            except OSError:
                assert set(os.listdir(home)) <= {"fence"}
            else:
                break
    assert good == 5  # file, folder, fence and its folder, cleared folder: each failed once
    assert lease.holds()


def test_a_link_that_succeeded_but_was_said_to_fail_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def repeated(*args: str, **options: int) -> None:
        real(*args, **options)  # type: ignore[arg-type]
        real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", repeated)
    assert Lease.acquire(home, now=NOW).holds()


def test_of_many_racing_processes_one_wins_and_a_dead_holder_changes_nothing(home: Path, racers: list[Racer]) -> None:
    racers.extend(Racer(home) for _ in range(6))
    last = 0
    for turn in range(20):
        for racer in racers:
            racer.tell("acquire")
        answers = [racer.answer() for racer in racers]
        won = [index for index, answer in enumerate(answers) if answer.startswith("won")]
        assert len(won) == 1, answers
        fence = int(answers[won[0]].split()[1])
        assert fence > last
        last = fence
        winner = racers[won[0]]
        if turn % 3 == 2:
            winner.tell("release")
            assert winner.answer() == "released"
        else:
            winner.kill()
            racers[won[0]] = Racer(home)


def test_threads_of_one_process_race_as_processes_do(home: Path) -> None:
    won: list[Lease] = []
    held: list[LeaseHeld] = []
    ready = threading.Barrier(8)

    def race() -> None:
        ready.wait(60)
        try:
            won.append(Lease.acquire(home, now=NOW))
        except LeaseHeld as error:
            held.append(error)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(won), len(held)) == (1, 7)
    assert won[0].holds()


@pytest.mark.timeout(3600)
def test_a_process_killed_or_stopped_at_any_line_of_it_does_no_harm(tmp_path: Path) -> None:
    """At lines of acquire: killed there, the next one succeeds; stopped there, still exactly one of two holds it."""
    script = Path(__file__).with_name("lease_at_each_line.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=3600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bad"] == []
    assert result["lines"] > 100
