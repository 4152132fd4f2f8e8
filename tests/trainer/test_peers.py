"""Ranks that only a socket of their own joins: all of them stop at the same step, however a suspend reaches them."""

import json
import signal
import time
from pathlib import Path

import pytest

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
