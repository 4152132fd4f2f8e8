"""`hpcdl avoid` and `hpcdl notices`."""

import json
import os
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

AVOIDED = {
    "node": "n1", "gpu": 0, "since": 1.0, "until": 3600.0, "left_s": 600.0, "times": 2,
    "reason": "Xid 79: \x1b[31mlost", "moves": True,
}  # fmt: skip
NOTICE = {
    "id": 7, "kind": "end", "job": 3, "text": "job 3 (a) is DONE", "at": 5.0,
    "destinations": [
        {"destination": "https://h/…", "state": "failing", "attempts": 2, "why": "answered 500", "retry_in_s": 3.0},
        {"destination": "mailto:a@b.org", "state": "waiting", "attempts": 0, "why": "", "retry_in_s": None},
    ],
}  # fmt: skip


def answer(**body: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"schema": 1, **body}).encode()


def test_what_is_avoided_is_listed(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {"/v1/avoided": answer(avoided=[AVOIDED])}
    table = hpcdl("avoid").out.splitlines()
    assert table[0].split() == ["WHAT", "UNTIL", "LEFT", "TIMES", "REASON"]
    assert table[1].startswith("n1:0 ")
    assert table[1].endswith("Xid 79: \\x1b[31mlost")
    assert hpcdl("avoid", "--quiet").out == "n1:0\n"
    assert json.loads(hpcdl("avoid", "--json").out)["avoided"] == [AVOIDED]
    fake.answers = {"/v1/avoided": answer(avoided=[])}
    done = hpcdl("avoid")
    assert (done.out, done.err) == ("", "hpcdl: nothing is excluded\n")


def test_a_gpu_or_a_node_is_avoided_and_lifted(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {f"/v1/nodes/{name}": answer(avoided=[]) for name in ("n1/avoid", "a%2Fb%3Ax/avoid", "n1/lift")}
    hpcdl("avoid", "n1:3", "--for", "2h", "--reason", "loud", "--move")
    hpcdl("avoid", "a/b:x")
    assert hpcdl("avoid", "--lift", "n1:3").out == "n1:3 may be granted again\n"
    bodies = [body for method, _, body in fake.requests if method == "POST"]
    assert bodies == [
        {"gpu": 3, "for_s": 7200.0, "reason": "loud", "moves": True},
        {"gpu": None, "for_s": 3600.0, "reason": "", "moves": False},
        {"gpu": 3},
    ]


@pytest.mark.parametrize(
    "args", [("--for", "2h"), ("--lift",), ("n1", "--for", "soon"), ("n1", "--lift", "--reason", "x"), ("--move",)]
)
def test_what_makes_no_sense_is_wrong_usage(fake: FakeDaemon, hpcdl: Run, args: tuple[str, ...]) -> None:
    assert hpcdl("avoid", *args).code == 2
    assert not [method for method, _, _ in fake.requests if method == "POST"]


def test_notices(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {
        path: answer(notices=[NOTICE]) for path in ("/v1/notices", "/v1/notices/retry", "/v1/notices/7/drop")
    }
    title, line = hpcdl("notifications").out.splitlines()
    assert title.split() == ["ID", "AT", "KIND", "STATE", "DESTINATION", "TRIES", "TEXT", "WHY"]
    assert "https://h/… +1" in line
    assert line.split()[4] == "failing"
    assert line.endswith("answered 500")
    assert hpcdl("notifications", "-q").out == "7\n"
    assert json.loads(hpcdl("notifications", "--retry", "--json").out)["notices"] == [NOTICE]
    assert hpcdl("notifications", "--drop", "7").out == "notification 7 is dropped\n"
    assert hpcdl("notifications", "--drop", "7", "--retry").code == 2
    assert [path for method, path, _ in fake.requests if method == "POST"] == [
        "/v1/notices/retry",
        "/v1/notices/7/drop",
    ]
    fake.answers = {"/v1/notices": answer(notices=[])}
    done = hpcdl("notifications")
    assert (done.out, done.err) == ("", "hpcdl: no notifications wait: each was delivered or dropped\n")


def test_a_destination_is_tested(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.answers = {"/v1/notices/test": answer(destination="cat …", delivered=True, why="", folder="/jobs")}
    done = hpcdl("notifications", "--test", "cat >> told")
    assert (done.code, done.out, done.err) == (0, "delivered to cat …, run in /jobs\n", "")
    assert fake.requests[-1] == ("POST", "/v1/notices/test", {"destination": "cat >> told", "folder": os.getcwd()})
    fake.answers = {"/v1/notices/test": answer(destination="cat …", delivered=False, why="cat ended with 1")}
    done = hpcdl("notifications", "--test", "cat >> /no/such")
    assert (done.code, done.out, done.err) == (1, "", "hpcdl: not delivered to cat …: cat ended with 1\n")
    assert hpcdl("notifications", "--test", "true", "--json").value["delivered"] is False
    assert hpcdl("notifications", "--test", "true", "--retry").code == 2


def test_one_that_is_not_there_is_one_line(fake: FakeDaemon, hpcdl: Run) -> None:
    error = {"schema": 1, "error": "no notification 9 waits: hpcdl notifications lists them", "code": "unknown-notice"}
    fake.answers = {"/v1/notices/9/drop": (404, json.dumps(error).encode())}
    done = hpcdl("notifications", "--drop", "9")
    assert (done.code, done.err) == (1, "hpcdl: no notification 9 waits: hpcdl notifications lists them\n")


def test_the_status_names_destinations_that_take_nothing(fake: FakeDaemon, hpcdl: Run) -> None:
    daemon = {
        "pid": 1, "host": "h", "version": "0", "fence": 1, "since_s": 1.0, "home": "/h", "policy": "p",
        "objective": "o",
    }  # fmt: skip
    body: dict[str, Any] = {"daemon": daemon, "agents": [], "trainers": [], "jobs": {}, "events": 0, "pilots": 0}
    notices = {"waiting": 3, "given_up": 2, "failing": ["https://h/…: answered 500"]}
    fake.answers = {"/v1/status?fresh=1": answer(**body, notices=notices)}
    assert (
        "notifications  https://h/…: answered 500; 2 given up (hpcdl notifications)\n" in hpcdl("daemon", "status").out
    )
    fake.answers = {"/v1/status?fresh=1": answer(**body, notices={"waiting": 3, "given_up": 0, "failing": []})}
    assert "notices" not in hpcdl("daemon", "status").out
