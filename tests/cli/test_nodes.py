"""`hpcdl drain`, `undrain`, and how an elastic job is submitted."""

import json
from typing import Any

import pytest

from hpcdl.cli.job_row import asked_text
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


def answer(name: str) -> tuple[int, bytes]:
    return 200, json.dumps({"schema": 1, "nodes": [{"name": name}]}).encode()


def test_nodes_are_drained_one_by_one(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {"/v1/nodes/n1/drain": answer("n1"), "/v1/nodes/a%2Fb/drain": answer("a/b")}
    done = hpcdl("drain", "n1", "a/b", "n1", "--reason", "maintenance")
    assert (done.code, done.out) == (0, "node n1 is being left\nnode a/b is being left\n")
    bodies = [body for method, path, body in fake.requests if method == "POST"]
    assert bodies == [{"now": True, "until": None, "reason": "maintenance"}] * 2


def test_nodes_are_named_as_ls_prints_them(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {f"/v1/nodes/{name}/drain": answer(name) for name in ("n1", "n2", "n3", "vm")}
    assert hpcdl("drain", "n[1-2],vm", "n3", "--quiet").out.split() == ["n1", "n2", "vm", "n3"]


def test_a_node_goes_at_a_time(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {"/v1/nodes/n1/drain": answer("n1")}
    assert hpcdl("drain", "n1", "--at", "2050-01-01T00:00:00+00:00", "--quiet").out == "n1\n"
    assert fake.requests[-1][2] == {"now": False, "until": 2524608000.0, "reason": ""}
    assert hpcdl("undrain", "n1").out == "node n1 may have jobs again\n"
    assert fake.requests[-1][2] == {"now": False, "until": None, "reason": ""}


def test_a_node_without_a_name(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("undrain", "n1", "")
    assert (done.code, fake.requests) == (2, [])
    assert "'' is not a node's name: hpcdl nodes lists them" in done.err


def test_an_unknown_node_is_one_line_and_exit_1(fake: FakeDaemon, hpcdl: Run) -> None:
    error = {"schema": 1, "error": "there is no node 'n9'", "code": "unknown-node"}
    fake.answers = {"/v1/nodes/n9/drain": (404, json.dumps(error).encode()), "/v1/nodes/n1/drain": answer("n1")}
    done = hpcdl("drain", "n9", "n1", "--json")
    assert done.code == 1
    assert "there is no node 'n9'" in done.err
    assert [row["name"] for row in json.loads(done.out)["nodes"]] == ["n1"]
    assert hpcdl("drain", "n1", "--at", "whenever").code == 2


@pytest.mark.parametrize(
    ("options", "means"),
    [
        ((), "restart"),
        (("--nodes", "2"), "restart"),
        (("--nodes", "1:4"), "torchrun"),
        (("--nodes", "1:4", "--rescale", "in-process"), "in-process"),
        (("--nodes", "1:4", "--rescale", "restart"), "restart"),
    ],
)
def test_a_range_of_nodes_is_started_by_torchrun(
    fake: FakeDaemon, hpcdl: Run, options: tuple[Any, ...], means: str
) -> None:
    done = hpcdl("submit", *options, "--weight", "2.5", "--", "python", "train.py")
    assert done.code == 0, done.err
    spec = next(body for method, path, body in fake.requests if method == "POST")["jobs"][0]
    assert (spec["rescale"], spec["weight"]) == (means, 2.5)
    assert hpcdl("submit", "--weight", "0", "--", "true").code == 2


def test_a_time_that_is_past_is_wrong_usage(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("drain", "n1", "--at", "1999-01-01")
    assert (done.code, fake.requests) == (2, [])
    assert "'1999-01-01' is past: without --at they are left now" in done.err


def test_nodes_that_are_left_or_go_say_so(fake: FakeDaemon, hpcdl: Run) -> None:
    gpu = {"index": 0, "state": "ok", "detail": "", "holder": None, "name": "V100"}
    base = {"connected": True, "lost": False, "gpus": [gpu]}
    nodes = [
        {"name": "n1", **base, "leaving": True, "until": None, "reason": "maintenance"},
        {"name": "n2", **base, "leaving": False, "until": 2524608000.0, "reason": ""},
        {"name": "n3", **base, "leaving": True, "until": None, "reason": "", "gpus": [gpu | {"detail": "Xid 79"}]},
        {"name": "n4", **base, "leaving": False, "until": None, "reason": ""},
    ]
    fake.answers = {"/v1/nodes": (200, json.dumps({"schema": 1, "nodes": nodes}).encode())}
    lines = hpcdl("nodes").out.splitlines()[1:]
    assert lines[0].endswith("V100  drained: maintenance")
    assert "V100  goes 20" in lines[1]
    assert lines[2].endswith("V100  Xid 79; drained")
    assert lines[3].endswith("V100")


def test_what_an_elastic_job_asked_for() -> None:
    assert asked_text({"gpus_min": 1, "gpus_max": 1, "nodes": 1, "nodes_max": 3}) == "1:3x1"
    assert asked_text({"gpus_min": 2, "gpus_max": None, "nodes": 2, "nodes_max": 4}) == "2:4x2:"
    assert asked_text({"gpus_min": 4, "gpus_max": 4, "nodes": 2, "nodes_max": 2}) == "2x4"
    assert asked_text({"gpus_min": 1, "gpus_max": 3, "nodes": 1, "nodes_max": 1}) == "1:3"
