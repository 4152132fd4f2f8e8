"""Horovod's ranks started by hpcdl: their environment, and the store in which they meet. No Horovod is needed."""

from __future__ import annotations

import ast
import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcdl.trainer import horovod_rendezvous
from hpcdl.trainer.group.membership import Membership
from hpcdl.trainer.horovod_rendezvous import (
    HOST,
    NODE,
    VALUE_LIMIT,
    Rendezvous,
    Slot,
    StoreClient,
    StoreLost,
    meet,
    sizes,
    slot,
)
from tests.trainer.test_ranks import run


@pytest.fixture
def store() -> Iterator[Rendezvous]:
    with Rendezvous(HOST, sizes([NODE], [2])) as made:
        made.start()
        yield made
        made.shutdown()


def asked(store: Rendezvous, method: str, path: str, body: bytes | None = None, length: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, store.server_address[1], timeout=60)
    try:
        connection.request(method, path, body, {"Content-Length": length} if length else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_what_a_rank_puts_the_others_get(store: Rendezvous) -> None:
    assert asked(store, "GET", "/global/0") == (404, b"")
    assert asked(store, "PUT", "/global/0", b"\0address") == (200, b"")
    assert asked(store, "GET", "/global/0") == (200, b"\0address")
    assert asked(store, "GET", "/local_localhost/0") == (404, b"")
    assert asked(store, "GET", "/nothing") == (404, b"")


def test_a_scope_goes_when_all_of_its_ranks_have_met(store: Rendezvous) -> None:
    for scope, size in (("global", 2), ("local_localhost", 2), ("cross_1", 1)):
        asked(store, "PUT", f"/{scope}/0", b"address")
        for rank in range(size):
            assert asked(store, "GET", f"/{scope}/0") == (200, b"address"), "somebody may still need it"
            assert asked(store, "DELETE", f"/{scope}/{rank}") == (200, b"")
        assert asked(store, "GET", f"/{scope}/0") == (404, b""), "they may meet again"
    asked(store, "PUT", "/a_process_set/0", b"address")
    assert asked(store, "DELETE", "/a_process_set/0") == (200, b"")
    assert asked(store, "GET", "/a_process_set/0") == (404, b"")


def test_a_value_that_is_none_is_refused(store: Rendezvous) -> None:
    assert asked(store, "PUT", "/global/0", length=str(VALUE_LIMIT + 1))[0] == 400
    assert asked(store, "PUT", "/global/0", length="x")[0] == 400
    assert asked(store, "GET", "/global/0") == (404, b"")


def test_ranks_have_what_horovodrun_would_give_them() -> None:
    script = (
        'echo "$HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HPCDL_RANK $HPCDL_LOCAL_RANK'
        ' $HOROVOD_CONTROLLER $HOROVOD_GLOO_RENDEZVOUS_ADDR $CUDA_VISIBLE_DEVICES";'
        ' [ "$HOROVOD_GLOO_RENDEZVOUS_PORT" -gt 0 ]'
    )
    code, output = run("2", "--horovod", "--", "sh", "-c", script, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b")
    assert code == 0
    assert sorted(output.splitlines()) == [
        "0/2 0/2 0 0 gloo 127.0.0.1 GPU-a,GPU-b",
        "1/2 1/2 1 1 gloo 127.0.0.1 GPU-a,GPU-b",
    ]
    assert run("--horovod", "2", "--", "true")[0] == 64


def test_slots_count_over_nodes() -> None:
    ranks = [2, 1, 3]
    places = [slot(ranks, index, local) for index, here in enumerate(ranks) for local in range(here)]
    assert [place.rank for place in places] == list(range(6))
    assert places[2] == Slot(rank=2, size=6, local_rank=0, local_size=1, cross_rank=1, cross_size=3)
    assert places[4] == Slot(rank=4, size=6, local_rank=1, local_size=3, cross_rank=1, cross_size=2)
    scopes = {"global": 6, "local_a": 2, "local_b": 1, "local_c": 3, "cross_0": 3, "cross_1": 2, "cross_2": 1}
    assert sizes("abc", ranks) == scopes


def test_a_slot_is_found_when_horovod_begins_again(store: Rendezvous) -> None:
    slot([1, 1], 1, 0).put("n2", HOST, store.server_address[1])
    assert asked(store, "GET", "/rank_and_size/n2:0") == (200, b"1,2,0,1,1,2")


def overtaken_at_the_third() -> Callable[[], None]:
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise StoreLost("overtaken")

    return check


def test_ranks_of_a_membership_meet_at_a_store_without_pytorch(store: Rendezvous) -> None:
    wanted = Membership(3, ("n1", "n2"), (1, 2), store.address)
    with ThreadPoolExecutor(3) as pool:
        coming = [pool.submit(meet, wanted, rank, "1", {"step": rank}, lambda: None) for rank in (2, 0)]
        with pytest.raises(StoreLost, match="overtaken"):  # who waits for rank 1 may leave
            meet(wanted, 2, "1", {"step": 2}, overtaken_at_the_third())
        met = [meet(wanted, 1, "1", {"step": 1}, lambda: None), *(each.result(timeout=60) for each in coming)]
    assert [about for _, about in met] == [[{"step": 0}, {"step": 1}, {"step": 2}]] * 3
    first, last = met[0][0], met[-1][0]
    first.set("horovod", "4711")
    assert last.get("horovod") == "4711"
    assert StoreClient(HOST, store.server_address[1], "hpcdl.1.4").find("horovod") is None, "another membership's"


def test_a_store_that_has_nothing_or_is_gone(store: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    client = StoreClient(HOST, store.server_address[1], "hpcdl.1.1")
    with monkeypatch.context() as patched, pytest.raises(StoreLost, match="has no horovod"):
        patched.setattr(horovod_rendezvous, "COMES_S", 0.1)
        client.get("horovod")
    with Rendezvous(HOST, {}) as other:
        gone = StoreClient(HOST, other.server_address[1], "hpcdl.1.1")
    with pytest.raises(StoreLost, match="does not answer"):
        gone.get("horovod")


RANK_OF_MPIRUN = """
import os, sys
import hpcdl.trainer.horovod
print({name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}, flush=True)
sys.stdin.read()
"""


def rank_of_mpirun(folder: Path, rank: int, **more: str) -> subprocess.Popen[str]:
    """A script that imports what Horovod's scripts import, as mpirun would start it in a job."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HPCDL_SOCKET": str(folder / "socket"),
        "PMIX_NAMESPACE": "451346433",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(rank),
    }
    argv = [sys.executable, "-c", RANK_OF_MPIRUN]
    return subprocess.Popen(argv, env=env | more, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def said(rank: subprocess.Popen[str]) -> dict[str, str]:
    """Its variables of Horovod."""
    assert rank.stdout is not None
    found: dict[str, str] = ast.literal_eval(rank.stdout.readline())
    return found


def test_ranks_of_mpirun_meet_at_a_store_that_rank_0_keeps(tmp_path: Path) -> None:
    second = rank_of_mpirun(tmp_path, 1)  # it waits for rank 0
    first = rank_of_mpirun(tmp_path, 0)
    places = [said(first), said(second)]
    assert [(each["HOROVOD_RANK"], each["HOROVOD_LOCAL_RANK"], each["HOROVOD_SIZE"]) for each in places] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    ports = {int(each["HOROVOD_GLOO_RENDEZVOUS_PORT"]) for each in places}
    assert len(ports) == 1
    connection = http.client.HTTPConnection(HOST, ports.pop(), timeout=60)
    connection.request("GET", "/global/0")
    assert connection.getresponse().status == 404, "nobody has put anything"
    connection.close()
    # A Horovod that has MPI chooses it by itself, as long as nothing says otherwise.
    assert not any({"HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"} & set(each) for each in places)
    again = rank_of_mpirun(tmp_path, 1, PMIX_NAMESPACE="7", **places[1])  # what a rank itself starts
    assert said(again) == places[1]
    for each in (first, second, again):
        each.communicate()
        assert each.returncode == 0


@pytest.mark.parametrize(
    "more", [{"PMIX_NAMESPACE": ""}, {"HPCDL_SOCKET": ""}, {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}], ids=str
)
def test_other_ranks_get_nothing(tmp_path: Path, more: dict[str, str]) -> None:
    rank = rank_of_mpirun(tmp_path, 1, **more)
    assert said(rank) == {}
    rank.communicate()
    assert list(tmp_path.iterdir()) == []
