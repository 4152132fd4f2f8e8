"""Ranks that only a socket of their own joins: all of them stop at the same step, however a suspend reaches them, and
say to each other what has to be the same on all."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import agreement
from hpcdl.trainer.checkpoints import at
from hpcdl.trainer.group import peers
from hpcdl.trainer.group.peers import place_of_run_folder
from hpcdl.trainer.group.step_counters import StepCounters
from hpcdl.trainer.session import Session
from tests.support.extent import one_of
from tests.support.waiting import until
from tests.trainer.supervisor import supervisor

TOY = """
import json, os, socket, sys, time
import hpcdl.trainer as hpcdl
session = hpcdl.attach()
rank, path = session.rank, sys.argv[1]
if rank == 0:
    listener = socket.socket(socket.AF_UNIX); listener.bind(path); listener.listen(); peer, _ = listener.accept()
else:
    peer = socket.socket(socket.AF_UNIX)
    while True:
        try: peer.connect(path); break
        except OSError: time.sleep(0.01)
peer.settimeout(60)
state = {"sum": 0}
def reduce(mine):
    peer.sendall(mine.to_bytes(8, "big"))
    other = b""
    while len(other) < 8:
        piece = peer.recv(8 - len(other))
        assert piece, "the other rank has stopped at another step"
        other += piece
    return mine + int.from_bytes(other, "big")
def save(folder): (folder / "state").write_text(json.dumps(state))
def load(folder): state.update(json.loads((folder / "state").read_text()))
for step in hpcdl.steps(10**9, save=save, load=load):
    state["sum"] = reduce(step + rank)
    state["step"] = step + 1
    time.sleep(0.0005)
"""


@pytest.mark.timeout(300)
def test_ranks_of_a_socket_stop_at_one_step(tmp_path: Path) -> None:
    script = tmp_path / "toy.py"
    script.write_text(TOY)
    before = 0
    for number in range(1, 16):
        with supervisor(tmp_path / f"run{number}", tmp_path / "ckpt") as parent:
            name = str(tmp_path / f"s{number}")
            children = [
                parent.start([script, name], number, HOROVOD_RANK=str(rank), HOROVOD_SIZE="2") for rank in range(2)
            ]
            parent.wait("progress", count=2)
            assert [each["step"] for each in parent.of("ready")] == [before, before]
            for child in children[:: 1 if number % 2 else -1]:
                child.send_signal(signal.SIGTSTP)
                time.sleep(0.002 * (number % 3))
            codes = [parent.end(child) for child in children]
            outputs = [child.stdout.read() for child in children if child.stdout]
            assert codes[0] == 0, outputs
            assert not any("another step" in each for each in outputs), outputs
            final = parent.of("saved")[-1]
            assert final["final"]
        state = json.loads((Path(final["path"]) / "state").read_text())
        assert state["step"] == final["step"] > before
        before = final["step"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", one_of(2, 1))
def test_four_ranks_of_short_steps_never_part(nodes: int) -> None:
    """As `python -m benchmarks.agreement`, which does it 1,000 times."""
    found = agreement.measure(suspends=30, ranks=4, pace_s=0.0005, each=30, seed=1, nodes=nodes)
    assert (found["suspends"], found["parted"]) == (30, 0), found


JOINED = """
import json, sys
import hpcdl.trainer as hpcdl
from benchmarks.agreement import Ring, RingRanks
session = hpcdl.attach()
ring = Ring(session.rank, 2, int(sys.argv[1]))
ranks = RingRanks(ring, 2)
state = {"sum": 0}
def save(folder): (folder / "state").write_text(json.dumps(state))
def load(folder): state.update(json.loads((folder / "state").read_text()))
for step in hpcdl.steps(10**9, save=save, load=load, ranks=ranks):
    state["sum"] += ring.reduce(step)
    assert state["sum"] == step * (step + 1), "the other rank is at another step"
    state["collectives"] = not ranks.without_collectives
"""


@pytest.mark.timeout(300)
def test_nodes_that_do_not_reach_each_other_agree_by_collectives(tmp_path: Path) -> None:
    script = tmp_path / "joined.py"
    script.write_text(JOINED)
    with supervisor(tmp_path / "run1", tmp_path / "ckpt") as one, supervisor(tmp_path / "run2", None) as other:
        # TEST-NET-1, which is nobody's address
        variables = {"HOROVOD_SIZE": "2", "HPCDL_ADDRESS": "192.0.2.1", "HPCDL_NODES": "n1,n2"}
        first = one.start([script, "0"], HOROVOD_RANK="0", **variables)
        assert first.stdout is not None
        port = first.stdout.readline().split()[-1]
        second = other.start([script, port], HOROVOD_RANK="1", **variables)
        other.wait("progress")
        second.send_signal(signal.SIGTSTP)
        codes = one.end(first), other.end(second)
        assert codes == (0, 0), first.stdout.read()
        final = one.of("saved")[-1]
    state = json.loads((Path(final["path"]) / "state").read_text())
    assert (state["collectives"], state["sum"]) == (True, final["step"] * (final["step"] - 1))


SAYS = """
import json, os, sys, time
import hpcdl.trainer as hpcdl
from hpcdl.trainer.group import peers
session = hpcdl.attach()
ranks = peers.agreement(session)
found = session.resume() if session.rank == 0 else None
chosen = ranks.choose(found)
one = [ranks.any(session.rank == which) for which in (2, 9)]
texts = [ranks.gather(f"{session.rank} of {number}") for number in range(20)]
if session.rank == 1:
    os._exit(3)  # who has ended is waited for by nobody
ranks.barrier()
print(json.dumps([None if chosen is None else chosen.path.name, one, texts]))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "names",
    [("HOROVOD_RANK", "HOROVOD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")],
)
def test_ranks_of_any_launcher_say_what_must_be_the_same_on_all(tmp_path: Path, names: tuple[str, str]) -> None:
    script = tmp_path / "says.py"
    script.write_text(SAYS)
    saved = Session({}, None, tmp_path / "ckpt")
    with saved.checkpoint(12) as folder:
        (folder / "state").write_text("{}")
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        rank, ranks = names
        children = [parent.start([script], **{rank: str(each), ranks: "3"}) for each in range(3)]
        codes = [parent.end(child) for child in children]
        outputs = [child.stdout.read() for child in children if child.stdout]
        assert codes == [0, 3, 0], outputs
        assert sorted(each["rank"] for each in parent.of("attach")) == [0, 1, 2]
        said = [json.loads(outputs[each].splitlines()[-1]) for each in (0, 2)]
        left = list((tmp_path / "run").glob("said.*"))
    texts = [[f"{rank} of {number}" for rank in range(3)] for number in range(20)]
    assert said == [["step-000000000012.i0", [True, False], texts]] * 2
    assert len(left) <= 6, "what everybody has heard is removed"


def test_a_rank_that_comes_late_hears_what_was_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have gone on without it; it must not wait for what they have removed."""
    monkeypatch.setenv("HPCDL_SOCKET", str(tmp_path / "s"))
    monkeypatch.setattr(peers, "ABSENT_S", 0.0)
    first, late = (Session({"HPCDL_SOCKET": str(tmp_path / "s")}, rank, tmp_path / "ckpt") for rank in range(2))
    saved = at(tmp_path / "ckpt", 12, 0)

    def come(session: Session) -> peers.NodeRanks:
        return peers.NodeRanks(session, StepCounters(tmp_path, 0, session.rank), session.rank, 2)

    ranks = come(first)
    assert (ranks.choose(saved), ranks.any(False)) == (saved, False)
    other = come(late)
    with ThreadPoolExecutor(1) as threads:
        answers = threads.submit(lambda: (other.choose(None), other.any(False)))
        try:
            until(answers.done, "an answer, though what it waits for is no longer there")
        except AssertionError:
            monkeypatch.setattr(StepCounters, "lives", lambda self, rank: False)  # so that the thread ends
            raise
        assert answers.result() == (saved, False)
        texts = threads.submit(ranks.gather, "a")
        assert other.gather("b") == texts.result(60) == ["a", "b"]
    assert len(list(tmp_path.glob("said.*"))) <= 2, "what all have heard is removed"


def test_ranks_without_a_run_folder_share_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the supervisor is gone: they then agree by their collectives."""
    monkeypatch.setenv("HPCDL_SOCKET", str(tmp_path / "run" / "s"))
    places = {place_of_run_folder()}
    monkeypatch.setattr("os.getpid", lambda: 1)
    places.add(place_of_run_folder())
    assert len(places) == 2
    (tmp_path / "run").mkdir()
    place = place_of_run_folder()
    monkeypatch.undo()
    monkeypatch.setenv("HPCDL_SOCKET", str(tmp_path / "run" / "other"))
    assert place_of_run_folder() == place not in places


def test_ranks_of_several_nodes_do_not_agree_by_the_folder_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"HPCDL_SOCKET": str(tmp_path / "s"), "HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    session = Session(variables, None, None)
    assert isinstance(peers.agreement(session), peers.NodeRanks)
    monkeypatch.setenv("HPCDL_NODES", "n1,n2")
    assert type(peers.agreement(session)) is peers.RankAgreement
    assert not list(tmp_path.glob("steps.1"))


def test_a_rank_is_known_by_its_tasks_number_only_in_a_step_of_slurms() -> None:
    """In a batch script there is one, too, on each node alike."""
    script = {"SLURM_PROCID": "0", "HPCDL_NODE_RANK": "2"}
    assert Session(script, None, None).rank == 2
    assert Session(script | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}, None, None).rank == 5
