"""Horovod's ranks started by hpcdl: their environment, and the store in which they meet. No Horovod is needed."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from hpcdl.trainer.horovod_rendezvous import HOST, VALUE_LIMIT, Rendezvous
from tests.trainer.test_ranks import run


@pytest.fixture
def store() -> Iterator[Rendezvous]:
    with Rendezvous(2) as made:
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
