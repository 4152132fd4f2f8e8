"""`hpcdl allocate`: the question in, the answer out, in three forms; errors are one line and nothing on stdout."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Outcome, Run
from tests.milp.made import faults, problem

KEYS = ["schema", "solver", "optimal", "objective", "bound", "seconds", "allocation", "why"]


@pytest.fixture
def allocate(hpcdl: Run, tmp_path: Path) -> Run:
    """Writes a problem to a file, and runs the command on it."""

    def run(asked: Any, *options: object) -> Outcome:
        file = tmp_path / "problem.json"
        file.write_text(asked if isinstance(asked, str) else json.dumps(asked))
        return hpcdl("allocate", file, *options)

    return run


def named() -> dict[str, Any]:
    """Ten nodes in two racks, one of which has left; a trainer that grows, one that shrinks, one that waits."""
    curve = [[1, 10.0], [4, 36.0], [8, 60.0]]
    return {
        "horizon_s": 120,
        "nodes": [f"h{rack}n{number}" for rack in (1, 2) for number in range(1, 6)],
        "trainers": [
            {"id": "grows", "current": ["h2n3", "h9n9"], "max": 8, "scale_up_s": 20, "curve": curve},
            {"id": "shrinks", "current": ["h1n2", "h1n1", "h2n1"], "max": 2, "scale_down_s": 5, "curve": curve},
            {"id": "waits", "current": [], "min": 40, "max": 64, "curve": curve},
        ],
    }


def test_the_answer_in_json(allocate: Run) -> None:
    done = allocate(named(), "--json")
    assert (done.code, done.err) == (0, "")
    value = done.value
    assert list(value) == KEYS
    assert faults(named(), value) == []
    assert value["solver"] == "exact"
    assert value["optimal"] is True
    assert value["bound"] == value["objective"]
    assert 0 <= value["seconds"] < 60
    assert value["allocation"]["shrinks"] == ["h1n2", "h1n1"]
    assert value["allocation"]["grows"][:5] == ["h2n3", "h2n1", "h2n2", "h2n4", "h2n5"]
    assert len(value["allocation"]["grows"]) == 8
    assert value["allocation"]["waits"] == []
    assert value["why"]["grows"] == (
        "grows from 1 to 8 nodes: throughput 10 to 60, worth 7,200 in 2 min 00 s, less 200 for the rescale"
    )
    assert value["why"]["shrinks"].startswith("shrinks from 3 to 2 nodes (at most 2 are allowed): throughput 27.33 to")
    assert value["why"]["waits"] == "waits: it needs 40 nodes, and there are 10"


def test_numbers_in_numbers_out(allocate: Run) -> None:
    asked = {"horizon_s": 60, "nodes": 700, "trainers": [{"id": "a", "current": 3, "max": 64, "curve": [[64, 640]]}]}
    value = allocate(asked, "--json").value
    assert value["allocation"] == {"a": 64}
    assert value["objective"] == pytest.approx(60 * 640)
    assert "groups" not in value


def test_groups_are_named(allocate: Run) -> None:
    rows = [
        {"id": "a", "group": "old", "current": 2, "max": 4, "curve": {"old": [[4, 4]], "new": [[4, 40]]}},
        {"id": "b", "current": [], "curve": {"old": [[4, 4]]}},
        {"id": "c", "min": 9, "curve": [[9, 9]]},
    ]
    asked = {"horizon_s": 60, "groups": {"old": 4, "new": ["m1", "m2", "m3", "m4", "m5"]}, "trainers": rows}
    done = allocate(asked, "--json")
    value = done.value
    assert list(value) == [*KEYS[:-1], "groups", "why"]
    assert value["groups"] == {"a": "new", "b": "old"}
    assert value["allocation"] == {"a": ["m1", "m2", "m3", "m4"], "b": 4, "c": 0}
    assert value["why"]["a"].startswith("moves from 2 nodes of old to 4 of new: throughput 2 to 40, worth 2,400")
    assert faults(asked, value) == []
    table = allocate(asked)
    assert table.out.splitlines()[3].split() == ["TRAINER", "HAS", "GETS", "GROUP", "NODES", "WHY"]
    assert "m[1-4]" in table.out


@pytest.mark.parametrize("solver", ["exact", "dp", "counts-highs", "highs", "cbc", "gurobi"])
def test_every_solver(allocate: Run, solver: str) -> None:
    for asked in (named(), problem(11), problem(12, groups=True)):
        done = allocate(asked, "--json", "--solver", solver)
        assert (done.code, done.err) == (0, "")
        assert done.value["solver"] == solver
        assert done.value["optimal"] is True
        assert faults(asked, done.value) == []


def test_a_limit_is_said_to_be_one(allocate: Run) -> None:
    rows = [{"id": f"t{n}", "max": 40, "current": 3, "curve": [[1, 3 + n], [8, 20], [40, 60]]} for n in range(20)]
    asked = {"horizon_s": 120, "nodes": 100, "trainers": rows}
    done = allocate(asked, "--json", "--solver", "highs", "--seconds", "1e-3", "--work", "0")
    assert done.value["optimal"] is False
    assert done.value["bound"] > done.value["objective"]
    assert set(done.value["allocation"].values()) == {3}


def test_a_licence_that_is_too_small_is_one_line_on_stderr(allocate: Run) -> None:
    rows = [{"id": f"t{n}", "max": 40, "current": 3, "curve": [[1, n + 1.0], [40, 60.0]]} for n in range(10)]
    done = allocate({"horizon_s": 120, "nodes": 250, "trainers": rows}, "--json", "--solver", "gurobi")
    assert done.code == 0
    assert done.value["solver"] == "highs"
    assert done.err.count("\n") == 1
    assert done.err.startswith("hpcdl: gurobi cannot be used, highs is instead: the licence of gurobipy is too small")


def test_table_and_ids(allocate: Run) -> None:
    done = allocate(named())
    lines = done.out.splitlines()
    assert lines[0].startswith("objective  ")
    assert lines[0].endswith(", optimal")
    assert lines[1].startswith("solver     exact, ")
    assert lines[3].split() == ["TRAINER", "HAS", "GETS", "NODES", "WHY"]
    assert lines[4].split()[:3] == ["grows", "1", "8"]
    assert "h1n[1-2]" in lines[5]
    assert allocate(named(), "--quiet").out == "grows\nshrinks\n"


def test_from_stdin(hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + json.dumps(named()).encode())))
    assert hpcdl("allocate", "-", "--json").value["optimal"] is True
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"nodes": \xff}')))
    done = hpcdl("allocate", "-", "--json")
    assert (done.code, done.out) == (1, "")
    assert done.err == "hpcdl: stdin is not UTF-8: invalid start byte at byte 10\n"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("{", "problem.json: the problem is not JSON"),
        ({**named(), "horizon_s": -1}, "problem.json: horizon_s is -1: it must be from 0 to 1e+100"),
        ({**named(), "trainers": [{"id": "a\x1b[2J\n", "curve": 3}]}, "problem.json: trainers[0].curve is a number"),
    ],
)
def test_a_problem_that_makes_no_sense(allocate: Run, asked: Any, why: str) -> None:
    for form in ("--json", "--quiet"):
        done = allocate(asked, form)
        assert (done.code, done.out) == (1, "")
        assert why in done.err
        assert done.err.count("\n") == 1


def test_what_cannot_be_read(hpcdl: Run, tmp_path: Path) -> None:
    done = hpcdl("allocate", tmp_path / "none.json", "--json")
    assert (done.code, done.out) == (1, "")
    assert (
        done.err
        == f"hpcdl: there is no file {tmp_path / 'none.json'}: correct its name, or the folder that you are in\n"
    )
    assert hpcdl("allocate", tmp_path, "--json").err.endswith("is a folder: name a file\n")
    lost = hpcdl("allocate", tmp_path / "gone" / "none.json", "--json")
    assert lost.err.endswith(f"nor a folder {tmp_path / 'gone'}: correct the path\n")
    assert hpcdl("allocate", tmp_path / "x", "--solver", "simplex").code == 2


def test_limits_that_are_no_numbers_are_wrong_usage(hpcdl: Run) -> None:
    done = hpcdl("allocate", "problem.json", "--seconds", "nan")
    assert (done.code, done.out) == (2, "")
    assert "nan is not a number" in done.err
