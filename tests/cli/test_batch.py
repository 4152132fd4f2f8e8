"""`hpcdl holes` and `hpcdl pilots`, with a daemon and without."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli.events import body_text
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, Pilot, PilotSpec
from hpcdl.daemon.api.pilots import pilot_row
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

NOW = 1_800_000_000.0
BATCH = {"kind": "slurm", "interval_s": 30.0, "polled_at": NOW, "commands": 7, "troubles": [], "pilots_max": 4}
HOLES = [
    to_json(
        Hole("killable", 3, ("n1", "n2", "n4"), 4, "v100", NOW + 600, "batch job 12 is expected on n[1-4]", 3600.0)
    ),
    to_json(Hole("", 2)),
]
SPEC = PilotSpec(2, 3600.0, "killable", 4, ("n1", "n2"), "2 idle nodes")
SEEN = BatchJob("101", BatchState.RUNNING, nodes=("n1", "n2"), queue="killable", started_at=NOW - 100, until=NOW + 200)
PILOTS = [
    pilot_row(Pilot(1, SPEC, NOW, NOW), NOW),
    pilot_row(Pilot(2, SPEC, NOW, NOW, "101", SEEN), NOW),
    pilot_row(Pilot(3, SPEC, NOW, NOW, "102", SEEN, cancelled="the daemon stops"), NOW),
    pilot_row(Pilot(4, SPEC, NOW, NOW, how="invalid partition", refused=True), NOW),
]


def answer(fake: FakeDaemon, path: str, **body: Any) -> None:
    fake.answers[path] = (200, json.dumps({"schema": 1, **body}).encode())


def test_holes(fake: FakeDaemon, hpcdl: Run) -> None:
    answer(fake, "/v1/holes", holes=HOLES, at=NOW, notes=[], batch=BATCH)
    lines = hpcdl("holes").out.splitlines()
    assert lines[0].split() == ["QUEUE", "NODES", "GPUS", "UNTIL", "WHY"]
    assert lines[1].startswith("killable  n[1-2,4]  4 v100  2027-")
    assert lines[1].endswith("batch job 12 is expected on n[1-4]")
    assert lines[2].split() == ["-", "2", "nodes", "-", "nobody", "knows"]
    assert hpcdl("holes", "--json").value["holes"][0]["nodes"] == ["n1", "n2", "n4"]
    assert hpcdl("holes", "--quiet").out == "n[1-2,4]\n2 nodes\n"


def test_holes_while_the_batch_system_is_away(fake: FakeDaemon, hpcdl: Run) -> None:
    answer(fake, "/v1/holes", holes=[], at=None, notes=[], batch={**BATCH, "troubles": ["holes: no answer"]})
    done = hpcdl("holes")
    assert done.out == ""
    assert done.err == (
        "hpcdl: the batch system does not answer as it should (holes: no answer): "
        "hpcdl doctor says what it can do here\n"
    )
    answer(fake, "/v1/holes", holes=[], at=NOW, notes=[], batch=BATCH)
    assert (
        hpcdl("holes").err
        == "hpcdl: no backfill holes: no node is idle, or a batch job is about to start on each that is\n"
    )


def test_holes_without_a_daemon_and_a_batch_system(hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDL_BATCH", "none")
    done = hpcdl("holes")
    assert (done.code, done.out) == (0, "")
    assert done.err == "hpcdl: no batch system was found here: hpcdl doctor says what it looked for\n"
    assert hpcdl("holes", "--json").value["batch"] is None


def test_holes_without_a_daemon_ask_the_batch_system(
    hpcdl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    for name in ("sinfo", "squeue", "scontrol"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} >> {asked}\necho slurm is on fire >&2\nexit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    done = hpcdl("holes")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("hpcdl: slurm does not answer (sinfo: slurm is on fire): hpcdl doctor says")
    assert asked.read_text().startswith("sinfo")


def test_pilots(fake: FakeDaemon, hpcdl: Run) -> None:
    answer(
        fake, "/v1/pilots", pilots=PILOTS[:3], notes=["the site allows 4 pilots, and there are as many"], batch=BATCH
    )
    answer(fake, "/v1/pilots?all=1", pilots=PILOTS, notes=[], batch=BATCH)
    done = hpcdl("pilots")
    assert [line.split()[:5] for line in done.out.splitlines()] == [
        ["PILOT", "BATCH", "JOB", "STATE", "QUEUE"],
        ["p1", "-", "REQUESTED", "killable", "n[1-2]"],
        ["p2", "101", "RUNNING", "killable", "n[1-2]"],
        ["p3", "102", "RUNNING", "killable", "n[1-2]"],
    ]
    assert "3 min 20 s" in done.out
    assert "being cancelled: the daemon stops" in done.out
    assert done.err == "hpcdl: no more pilots: the site allows 4 pilots, and there are as many\n"
    assert "REFUSED" in hpcdl("pilots", "--all").out
    assert "invalid partition" in hpcdl("pilots", "--all").out
    assert [row["id"] for row in hpcdl("pilots", "--json").value["pilots"]] == [1, 2, 3]
    assert hpcdl("pilots", "--quiet").out == "p1\np2\np3\n"
    assert [row["id"] for row in hpcdl("pilots", "4", "--json").value["pilots"]] == [4]
    done = hpcdl("pilots", "p4", "p9")
    assert (done.code, len(done.out.splitlines())) == (1, 2)
    assert done.err == "hpcdl: there is no pilot p9: hpcdl pilots --all lists them\n"


def test_no_pilots(fake: FakeDaemon, hpcdl: Run) -> None:
    answer(fake, "/v1/pilots", pilots=[], notes=[], batch=BATCH)
    assert hpcdl("pilots").err.startswith("hpcdl: no pilots: nothing idles, or nothing waits")


def test_pilots_are_cancelled(fake: FakeDaemon, hpcdl: Run) -> None:
    answer(fake, "/v1/pilots?all=1", pilots=PILOTS, notes=[], batch=BATCH)
    answer(fake, "/v1/pilots/2/cancel", pilots=PILOTS[1:2])
    done = hpcdl("pilots", "--cancel", "p2")
    assert (done.code, done.out) == (0, "pilot p2 is being cancelled\n")
    assert ("POST", "/v1/pilots/2/cancel", {}) in fake.requests
    fake.answers["/v1/pilots/9/cancel"] = (
        404,
        b'{"schema": 1, "error": "there is no pilot p9", "code": "unknown-pilot"}',
    )
    done = hpcdl("pilots", "--cancel", "2", "9", "--json")
    assert done.code == 1
    assert done.value["errors"] == [{"pilot": 9, "error": "there is no pilot p9", "code": "unknown-pilot"}]


@pytest.mark.parametrize("argv, told", [(("--cancel",), "--cancel needs"), (("px",), "'px' is not a pilot's number")])
def test_wrong_usage(hpcdl: Run, argv: tuple[str, ...], told: str) -> None:
    done = hpcdl("pilots", *argv)
    assert done.code == 2
    assert told in done.err


def test_the_events_of_pilots_are_told_in_a_line() -> None:
    asked = {"pilot": 1, "spec": {"nodes": 2, "walltime_s": 3600.0, "queue": "killable", "why": "2 idle nodes"}}
    assert body_text({"stream": "pilot/1", "body": asked}) == 'spec="2 nodes for 1 h 00 min in killable: 2 idle nodes"'
    seen = {"pilot": 1, "job": {"id": "9", "state": "ENDED", "nodes": ["n1", "n2"], "preempted": True, "reason": "x"}}
    assert body_text({"stream": "pilot/1", "body": seen}) == 'job="ENDED on n[1-2], preempted: x"'
