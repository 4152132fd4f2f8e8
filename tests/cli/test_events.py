"""`hpcdl events`, `timeline` and `logs`."""

import json
import os
from pathlib import Path

import pytest

from hpcdl.cli import main
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row


def test_events(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {number: row(number) for number in (1, 2)}
    fake.world.events = [
        {"seq": n, "at": 1000.0 + n, "stream": f"job/{n % 2}", "version": 1, "kind": "Ticked", "body": {"n": n}}
        for n in range(1, 2501)
    ]
    assert [event["seq"] for event in hpcdl("events", "--json").value["events"]] == list(range(1, 2501))
    assert hpcdl("events", "--quiet", "--after", 2498).out == "2499\n2500\n"
    assert hpcdl("events", "--quiet", "--limit", 2, "--job", 1).out == "1\n3\n"
    assert len(hpcdl("events", "--quiet", "--limit", 1200).out.split()) == 1200
    assert hpcdl("events", "--quiet", "-n", 2).out == "2499\n2500\n"
    assert hpcdl("events", "--quiet", "-n", 2, "--job", 1).out == "2497\n2499\n"
    assert len(hpcdl("events", "--quiet", "-n", 9999).out.split()) == 2500
    assert hpcdl("events", "--quiet", "-n", 9999, "--after", 2499).out == "2500\n"
    assert hpcdl("events", "-n", 2, "--limit", 2).code == 2
    lines = hpcdl("events", "--limit", 1).out.splitlines()
    assert lines[0].split() == ["SEQ", "AT", "STREAM", "KIND", "BODY"]
    assert lines[1].split()[-2:] == ["Ticked", "n=1"]
    assert hpcdl("events", "--follow", "--limit", 2, "--quiet", "--after", 7).out == "8\n9\n"
    assert hpcdl("events", "--after", 2500, "--json").value == {"schema": 1, "events": [], "last": 2500}
    done = hpcdl("events", "--after", 2500)
    assert (done.code, done.out, done.err) == (0, "", "hpcdl: no events after 2500\n")
    assert hpcdl("events", "--job", 2, "--after", 2500).err == "hpcdl: no events of job 2 after 2500\n"
    done = hpcdl("events", "--job", 9)
    assert (done.code, done.err) == (1, "hpcdl: there is no job 9: hpcdl ls --all lists them\n")


def test_logs(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    monkeypatch.setenv("HPCDL_HOME", str(fake.home))
    folder = fake.home / "logs" / "1"
    folder.mkdir(parents=True)
    fake.world.jobs[1] = row(1)
    (folder / "10.n1.log").write_bytes(b"ten\n")
    (folder / "2.n1.log").write_bytes(b"two caf\xe9")
    (folder / "2.n2.x.log").write_bytes(b"other\n")
    (folder / "notes.txt").write_bytes(b"no log")
    assert main(["logs", "1"]) == 0
    assert capfdbinary.readouterr().out == (
        b"==> attempt 2 on n1 <==\ntwo caf\xe9\n==> attempt 2 on n2.x <==\nother\n==> attempt 10 on n1 <==\nten\n"
    )
    assert main(["logs", "1", "--incarnation", "2", "--node", "n1"]) == 0
    assert capfdbinary.readouterr().out == b"two caf\xe9"
    assert main(["logs", "1", "--json"]) == 0
    logs = json.loads(capfdbinary.readouterr().out)["logs"]
    assert [(each["incarnation"], each["node"], each["text"]) for each in logs] == [
        (2, "n1", "two caf\\xe9"), (2, "n2.x", "other\n"), (10, "n1", "ten\n")
    ]  # fmt: skip
    assert main(["logs", "1", "--quiet", "--node", "n2.x"]) == 0
    assert capfdbinary.readouterr().out == os.fsencode(folder / "2.n2.x.log") + b"\n"
    assert fake.requests == []  # the files are enough, with or without a daemon


def test_logs_of_a_job_without_any(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs[1] = row(1)
    done = hpcdl("logs", 1)
    assert (done.code, done.out) == (0, "")
    assert done.err == "hpcdl: job 1 is QUEUED and has printed nothing: hpcdl why 1 says why\n"
    done = hpcdl("logs", 9)
    assert (done.code, done.err) == (1, "hpcdl: there is no job 9: hpcdl ls --all lists them\n")
    assert hpcdl("logs", "-f", 9).code == 1


def test_timeline(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    gpus = [{"index": n, "uuid": f"GPU-{n}"} for n in range(2)]
    spec = {"command": ["x"], "name": "<resnet>", "env": ["PATH"]}
    bodies = [
        (
            "node/n1",
            "NodeJoined",
            {"node": "n1", "gpus": gpus, "cpus": 1, "memory_mib": 1, "agent_pid": 1, "boot_id": "b"},
        ),
        ("job/1", "JobSubmitted", {"job": 1, "spec": spec, "request_id": "r"}),
        ("job/2", "JobSubmitted", {"job": 2, "spec": {**spec, "name": "other"}, "request_id": "s"}),
    ]
    fake.world.events = [
        {"seq": n, "at": 1000.0 + n, "stream": stream, "version": 1, "kind": kind, "body": body}
        for n, (stream, kind, body) in enumerate(bodies, 1)
    ]
    target = tmp_path / "t.html"
    done = hpcdl("timeline", "-o", target)
    assert (done.code, done.out, done.err) == (0, f"wrote {target}\n", "")
    page = target.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "&lt;resnet&gt;" in page
    assert "other" in page
    assert hpcdl("timeline", "-o", target, "--job", 1, "--json").value["events"] == 2
    assert ">other<" not in target.read_text()
    assert hpcdl("timeline", "-o", target, "--quiet").out == f"{target}\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["t.html"]
    done = hpcdl("timeline", "-o", target, "--job", 9)
    assert (done.code, done.err) == (1, "hpcdl: there is no job 9: hpcdl ls --all lists them\n")
    done = hpcdl("timeline", "-o", tmp_path / "no" / "t.html")
    assert done.code == 1
    assert done.err.endswith(f"there is no folder {tmp_path / 'no'}: make it first, or name another one\n")


def test_the_gist_of_events(fake: FakeDaemon, hpcdl: Run) -> None:
    placement = {"shares": [{"node": "n1", "gpus": [0, 1]}], "role": "primary", "layout": None}
    told: list[tuple[str, str, dict[str, object]]] = [
        ("job/1", "JobSubmitted", {"job": 1, "spec": {"command": ["python", "a b.py"]}, "request_id": "r"}),
        ("job/1", "ArraySubmitted", {
            "job": 1, "spec": {"command": ["x", "{lr}"]}, "request_id": "r", "sweep": [["lr", ["0.1", "1"]]],
            "indices": [[1, 9, 2], [11, 12, 1], [7, 7, 1]], "max_parallel": 0, "held": False,
        }),
        ("job/1", "StartRequested", {"job": 1, "incarnation": 1, "nodes": ["n1", "n2"], "placement": placement}),
        ("job/1", "Progressed", {"job": 1, "incarnation": 1, "node": "n1", "step": 0, "total": None, "age_s": 0.00123}),
        ("node/n1", "NodeJoined", {"node": "n1", "gpus": [{"index": 0}, {"index": 1}], "emulated": False, "cpus": 2}),
        ("daemon", "PlanAdopted", {
            "policy": "marble", "bound": 0.1234567891, "targets": [
                {"job": 1, "placement": placement, "reason": "primary"}, {"job": 2, "placement": None, "reason": "held"}
            ],
        }),
        ("daemon", "TroubleSeen", {"where": "tick", "detail": "it\x1b[31m \"failed\""}),
    ]  # fmt: skip
    fake.world.events = [
        {"seq": number, "at": 1000.0, "stream": stream, "version": 1, "kind": kind, "body": body}
        for number, (stream, kind, body) in enumerate(told, 1)
    ]
    assert [line.split(maxsplit=5)[-1] for line in hpcdl("events").out.splitlines()[1:]] == [
        "spec=\"python 'a b.py'\"",
        'spec="x \'{lr}\'" sweep="lr=0.1,1" indices=1-9:2,11-12,7',
        "incarnation=1 nodes=n1,n2 placement=n1:0,1 (primary)",
        "incarnation=1 node=n1 step=0",
        "gpus=2 emulated=false cpus=2",
        "policy=marble bound=0.123457 targets=job 1 n1:0,1 (primary): primary; job 2 no GPUs: held",
        'where=tick detail="it\\u001b[31m \\"failed\\""',
    ]
