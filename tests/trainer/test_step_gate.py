"""The step gate of a background: open, closed, by a duty, and what gets through it; with real trainers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcdl.trainer import step_gate
from hpcdl.trainer.group import step_counters
from hpcdl.trainer.session import Session
from hpcdl.trainer.step_gate import COUNT, HEARTBEAT, SharePage, StepGate
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.trainer.preloaded import Preloaded
from tests.trainer.supervisor import EXAMPLES, Supervisor, supervisor

PLAIN = [str(EXAMPLES / "plain_python.py"), "--steps", "100000", "--every", "100000", "--pace", "0.002"]


class Controller:
    """Writes a page as an agent does, until it dies."""

    def __init__(self, page: SharePage) -> None:
        self.page, self.duty, self.lives = page, 0.0, True
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while self.lives:
            self.page.control(self.duty, (1, 1))
            time.sleep(0.05)

    def die(self) -> None:
        self.lives = False
        self.thread.join()


@contextmanager
def controller(folder: Path) -> Iterator[Controller]:
    folder.mkdir(parents=True, exist_ok=True)
    found = Controller(SharePage(folder))
    try:
        yield found
    finally:
        found.die()


def steps(page: SharePage) -> int:
    return page.words[COUNT]


def moves(page: SharePage) -> bool:
    """Steps are made; raises where none come."""
    before = steps(page)
    return bool(until(lambda: steps(page) > before + 3, "steps"))


def stands(page: SharePage) -> bool:
    """No step is made from some time on: one may be on its way when the gate closes. Raises where they go on."""
    return bool(until(lambda: quiet(page), "a closed gate"))


def quiet(page: SharePage) -> bool:
    before = steps(page)
    time.sleep(1.0)  # that no step is made can only be seen in time; on a slow machine fewer are, which is no failure
    return steps(page) == before


def starts(parent: Supervisor, *more: str, role: str = "background", **env: str) -> SharePage:
    parent.start([*PLAIN, "--out", str(parent.run / "out.json"), *more], HPCDL_SHARE=role, **env)
    return SharePage(parent.run)


def test_a_gate_opens_closes_and_dies_with_its_controller(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent, controller(tmp_path / "run") as agent:
        page = starts(parent)
        parent.wait("ready")
        assert stands(page)  # a controller that has not judged yet
        agent.duty = 1.0
        assert moves(page)
        agent.duty = 0.0
        assert stands(page)
        agent.duty = 0.5
        assert moves(page)
        agent.die()
        assert stands(page)
        page.control(0.0, None)
        assert moves(page)  # nobody shares its GPUs: nobody needs to live for that
        page.words[HEARTBEAT] = 0
        assert moves(page)


@pytest.mark.parametrize("how", ["signal", "packet"])
def test_a_suspend_gets_through_a_closed_gate(tmp_path: Path, how: str) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        page = starts(parent)  # without a controller: closed
        parent.wait("ready")
        until(lambda: steps(page), "the first boundary")
        if how == "signal":
            parent.children[0].send_signal(signal.SIGTSTP)
        else:
            parent.send("suspend", grace_s=30)
        assert parent.end(parent.children[0]) == 0
        assert [each["step"] for each in parent.of("saved")] == [0, 0]
        assert steps(page) == 1


def test_a_foreground_is_never_held_and_writes_its_steps(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        page = starts(parent, role="foreground")
        moves(page)
        count, ends = page.ends(0)
        assert len(ends) == min(count, step_gate.STEPS // 2) >= 4
        assert ends == sorted(ends)
        assert page.ends(count - 1) == (count, ends[-1:]) or steps(page) > count


def test_without_a_share_there_is_no_page(tmp_path: Path) -> None:
    session = Session({}, 0, None)
    assert not session.should_suspend()
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start([*PLAIN[:1], "--steps", "5", "--out", str(tmp_path / "out.json")])
        assert parent.end(child) == 0
        assert not (tmp_path / "run" / step_gate.PAGE_FILE).exists()


def test_ends_are_the_newest_ones(tmp_path: Path) -> None:
    page = SharePage(tmp_path)
    for _ in range(3 * step_gate.STEPS):
        page.record()
    count, ends = page.ends(0)
    assert count == 3 * step_gate.STEPS
    assert len(ends) == step_gate.STEPS // 2
    assert ends == sorted(ends)
    assert page.ends(count) == (count, [])
    again = SharePage(tmp_path)  # another process maps what is there
    assert again.ends(count - 2)[1] == ends[-2:]
    assert os.stat(tmp_path / step_gate.PAGE_FILE).st_mode & 0o777 == 0o600


def rank(folder: Path, number: int, **env: str) -> StepGate:
    session = Session({"HPCDL_SOCKET": str(folder / "s"), "HPCDL_INCARNATION": "1", **env}, number, None)
    return StepGate(session, folder, step_gate.BACKGROUND, 2)


def test_ranks_are_held_at_the_same_boundary(tmp_path: Path) -> None:
    """One that saw the gate open takes the other along; then both are held at the next one."""
    with controller(tmp_path) as agent:
        agent.duty = 1.0
        until(lambda: agent.page.duty == 1.0, "the first heartbeat")
        ranks = [rank(tmp_path, each) for each in range(2)]
        passed = [0, 0]
        ranks[0].boundary()
        passed[0] += 1
        agent.duty = 0.0
        until(lambda: agent.page.duty == 0.0, "the closed gate")

        def run(number: int) -> None:
            while passed[number] < 3:
                ranks[number].boundary()
                passed[number] += 1

        threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: passed[1] == 1, "the rank that was behind")
        time.sleep(0.3)
        assert passed == [1, 1]
        agent.duty = 1.0
        for thread in threads:
            thread.join(60)
        assert passed == [3, 3]


def test_what_a_launcher_wants_of_a_rank_gets_through(tmp_path: Path) -> None:
    gate = rank(tmp_path, 0)
    thread = threading.Thread(target=gate.boundary, daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    gate._session.terminated = True
    thread.join(60)
    assert not thread.is_alive()


def test_ranks_of_a_new_membership_count_alike(tmp_path: Path) -> None:
    old = rank(tmp_path, 0, HPCDL_RESCALE="in-process", HPCDL_LOCAL_RANK="0")
    SharePage(tmp_path).control(0.0, None)
    for _ in range(5):
        old.boundary()
    new = rank(tmp_path, 1, HPCDL_RESCALE="in-process", HPCDL_LOCAL_RANK="1")
    assert new._passes is not None
    assert new._passes.behind()
    old.adopt(2)
    new.adopt(2)
    new.boundary()
    assert old._passes is not None
    assert not new._passes.behind()
    assert old._passes.behind()


def test_a_rank_of_several_is_held_for_no_longer_than_collectives_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_gate, "HOLD_S", 0.05)
    gate = rank(tmp_path, 0)  # nobody writes a heartbeat: closed
    for _ in range(3):
        gate.boundary()
    assert steps(gate.page) == 3


def test_nodes_with_gates_of_their_own_do_not_wait_for_each_others_waits(tmp_path: Path) -> None:
    """Step times with a peer's wait in them would make each wait four times as long with every step."""
    barrier = threading.Barrier(2, timeout=600)
    folders = [tmp_path / "a", tmp_path / "b"]
    with controller(folders[0]) as one, controller(folders[1]) as other:
        one.duty, other.duty = 0.2, 0.15
        until(lambda: one.page.duty and other.page.duty, "the first heartbeats")
        gates = [rank(each, number) for number, each in enumerate(folders)]
        slept: list[list[float]] = [[], []]

        def train(number: int) -> None:
            for _ in range(15):
                time.sleep(0.002)
                barrier.wait()
                began = time.monotonic()
                gates[number].boundary()
                slept[number].append(time.monotonic() - began)

        threads = [threading.Thread(target=train, args=(each,), daemon=True) for each in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert [len(each) for each in slept] == [15, 15]
        assert max(map(max, slept)) < step_gate.HOLD_S


def test_ranks_with_collectives_are_held_together(tmp_path: Path, origin: Preloaded) -> None:
    """Two of DistributedDataParallel, by Gloo: none passes a gate at which the other is held, and both suspend."""
    with (
        supervisor(tmp_path / "run", tmp_path / "ckpt", origin=origin) as parent,
        controller(tmp_path / "run") as agent,
    ):
        agent.duty = 0.5
        argv = [str(EXAMPLES / "pytorch_ddp.py"), "--steps", "1000000", "--every", "1000000"]
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
        for number in range(2):
            own = {"RANK": str(number), "LOCAL_RANK": str(number), "HPCDL_SHARE": "background"}
            parent.start(argv, **group, **own)
        parent.wait("ready", 2)
        moves(agent.page)
        agent.duty = 0.0
        stands(agent.page)
        until(lambda: len(set(boundaries(tmp_path / "run"))) == 1, "ranks at one boundary")
        parent.send("suspend", grace_s=60)
        assert [parent.end(child) for child in parent.children] == [0, 0]
        assert parent.of("saved")


def boundaries(folder: Path) -> list[int]:
    """How many each of the two ranks has passed."""
    words = memoryview((folder / "passes.1").read_bytes()).cast("Q")
    return [words[step_counters.FIRST + step_counters.WORDS * number] for number in range(2)]
