"""`hpcdl replay`: its outputs, its files and its errors."""

import gzip
from pathlib import Path

import pytest

from hpcdl.sim.replay import studies
from hpcdl.sim.replay.studies import printed
from tests.cli.conftest import Run

TRACE = """node,idle_from_s,idle_until_s
a,0,7200
b,0,3600
c,100,7200
d,1800,7200
b,4000,7200
"""
CURVES = "# thousand samples/s\nnodes,Net,Slow\n1,10,5\n2,18,10\n4,30,19\n"
FAST = ("--samples", "20e6", "--parallel", 2)
KEYS = {"schema", "U", "bound_U", "events", "decisions", "samples", "rescale_loss", "preemption_loss"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "idle.csv"
    path.write_text(TRACE)
    return path


def test_one_json_value(hpcdl: Run, trace: Path) -> None:
    asked = ("--policy", "bftrainer", "--model", "shufflenet", "--scale-up", 20, "--scale-down", 5, "--t-fwd", 120)
    done = hpcdl("replay", trace, *asked, *FAST, "--hours", 2, "--accounting", "paper", "--json")
    assert (done.code, done.err) == (0, "")
    value = done.value
    assert set(value) >= KEYS
    assert 0 < value["U"] <= value["bound_U"]
    assert value["U"] == pytest.approx(value["samples"] / value["static_samples"])
    assert value["events"] == 4
    assert {"p50_ms", "p99_ms"} <= set(value["decisions"])
    assert value["decisions"]["count"] > 4
    assert (value["hours"], value["parallel"], value["models"]) == (2, 2, ["ShuffleNet"])
    assert value["problems"] == []


def test_a_packed_trace_and_own_curves_give_a_page(hpcdl: Run, trace: Path) -> None:
    packed, curves, page = trace.with_name("idle.csv.gz"), trace.with_name("curves.csv"), trace.with_name("out.html")
    packed.write_bytes(gzip.compress(TRACE.encode()))
    curves.write_text(CURVES)
    asked = ("--curves", curves, "--model", "table2", "--t-fwd", "adaptive", "--nodes", "1:4", "--accounting", "stall")
    done = hpcdl("replay", packed, *asked, *FAST, "--objective", "efficiency", "--report", page)
    assert (done.code, done.err) == (0, "")
    assert "2 trainers (Net, Slow)" in done.out
    assert "by efficiency" in done.out
    assert str(page) in done.out
    drawn = page.read_text()
    assert drawn.startswith("<!DOCTYPE html>")
    assert "U over the time" in drawn
    assert "adaptive" in drawn
    again = hpcdl("replay", packed, *asked, *FAST, "--objective", "efficiency", "--report", page)
    assert [line for line in again.out.splitlines() if "p50" not in line] == [
        line for line in done.out.splitlines() if "p50" not in line
    ]
    assert page.read_text() == drawn


def test_the_check_by_counts(hpcdl: Run, trace: Path) -> None:
    value = hpcdl("replay", trace, *FAST, "--check", "--json").value
    assert value["check"]["bound_U"] == pytest.approx(value["bound_U"])
    assert value["check"]["U"] == pytest.approx(value["U"], abs=0.01)
    table = hpcdl("replay", trace, *FAST, "--check", "--policy", "equal-share")
    assert "by counts" in table.out


def test_studies_stand_beside_the_paper(hpcdl: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "FACTORS", (1, 8))
    monkeypatch.setattr(studies, "PARALLEL", (5,))
    monkeypatch.setattr(studies, "T_FWDS", (120.0,))
    page = trace.with_name("out.html")
    done = hpcdl("replay", trace, "--samples", "20e6", "--study", "t-fwd,parallel,costs", "--json", "--report", page)
    assert (done.code, done.err) == (0, "")
    found = {each["study"]: each for each in done.value["studies"]}
    assert list(found) == ["t-fwd", "parallel", "costs"]
    assert [row["factor"] for row in found["costs"]["rows"]] == [1, 8]
    assert [(row["policy"], row["t_fwd_s"]) for row in found["t-fwd"]["rows"]] == [
        ("bftrainer", 120.0),
        ("bftrainer", None),
        ("equal-share", None),
    ]
    assert found["t-fwd"]["rows"][0]["windows"][0]["U"] > 0
    assert found["t-fwd"]["rows"][0]["paper"] == {"U": 0.8}
    assert found["t-fwd"]["rows"][2]["paper"]["U"] == 0.75
    throughput, efficiency = found["parallel"]["rows"]
    assert throughput["paper"]["runtime_h"]["DenseNet"] == 4.1
    assert efficiency["paper"]["runtime_h"]["DenseNet"] == 2.58
    assert set(throughput["runtime_h"]) <= set(throughput["paper"]["runtime_h"])
    drawn = page.read_text()
    assert "figure 10" in drawn
    assert "paper 75.0 %" in drawn


def test_a_study_as_a_table_and_by_name(hpcdl: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "FACTORS", (1,))
    done = hpcdl("replay", trace, *FAST, "--study", "costs", "--hours", 1)
    assert done.code == 0
    assert "Dearer rescales" in done.out
    assert "FACTOR" in done.out
    assert hpcdl("replay", trace, *FAST, "--study", "costs", "--hours", 1, "--quiet").out == "costs\n"


def test_what_the_paper_prints_is_there() -> None:
    tables = [each for each in printed() if each.where.startswith("Table")]
    assert len(tables) == 2 * 7 * 7
    assert {each.study for each in printed()} == {"t-fwd", "parallel", "scale"}


@pytest.mark.parametrize(
    "wrong, code, told",
    [
        (("--policy", "bftrainr"), 2, "no policy 'bftrainr'; did you mean bftrainer? (see"),
        (("--objective", "efficency"), 2, "no objective 'efficency'; did you mean efficiency? (see"),
        (("--model", "shufflnet"), 2, "no model 'shufflnet': did you mean ShuffleNet? (see"),
        (("--policy", "best"), 2, "no policy 'best'; there are"),
        (("--model", "GPT"), 2, "no model 'GPT': there are AlexNet"),
        (("--objective", "speed"), 2, "no objective 'speed'; there are"),
        (("--t-fwd", "soon"), 2, "'soon' is neither a number of seconds nor adaptive"),
        (("--t-fwd", "0"), 2, "must be above 0"),
        (("--parallel", "0"), 2, "'--parallel'"),
        (("--scale-up", "-1"), 2, "'--scale-up'"),
        (("--scale-up", "nan"), 2, "nan is not a number"),
        (("--hours", "0"), 2, "'--hours'"),
        (("--hours", "nan"), 2, "nan is not a number"),
        (("--samples", "nan"), 2, "nan is not a number"),
        (("--samples", "1"), 2, "trainers would be done: give"),
        (("--nodes", "8:2"), 2, "the maximum 2 is below the minimum 8"),
        (("--nodes", "9:64"), 1, "can never fit"),
        (("--samples", "1.5"), 2, "is not a whole number"),
        (("--accounting", "free"), 2, "'--accounting'"),
        (("--study", "everything"), 2, "there are t-fwd"),
        (("--study", "costs", "--check"), 2, "--check is of one replay"),
        (("--check", "--objective", "jct"), 1, "the check knows the policies"),
        (("--report", "no/such/folder/out.html"), 1, "there is no folder"),
        (("--curves", "no.csv"), 1, "there is no file no.csv: correct its name"),
    ],
)
def test_one_line_for_what_makes_no_sense(
    hpcdl: Run, trace: Path, wrong: tuple[str, ...], code: int, told: str
) -> None:
    done = hpcdl("replay", trace, *FAST, *wrong)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "is empty"),
        ("node,idle_from_s,idle_until_s\n", "names no idle node"),
        ("node,idle_from_s\na,1\n", "idle_until_s: missing"),
        ("node,idle_from_s,idle_until_s\na,5,5\n", "must be after idle_from_s"),
        ("node,idle_from_s,idle_until_s\na,0,10\na,5,20\n", "idle.csv:3: idle_from_s"),
        ("node,idle_from_s,idle_until_s\na,x,10\n", "expected a number"),
        ("node,idle_from_s,idle_until_s\na,inf,inf\n", "idle.csv:2"),
    ],
)
def test_one_line_for_a_damaged_trace(hpcdl: Run, trace: Path, text: str, told: str) -> None:
    trace.write_text(text)
    done = hpcdl("replay", trace, *FAST, "--json")
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_trace_that_begins_after_the_hours(hpcdl: Run, trace: Path) -> None:
    trace.write_text("node,idle_from_s,idle_until_s\na,7200,9000\n")
    done = hpcdl("replay", trace, "--hours", 1)
    assert (done.code, done.err) == (1, "hpcdl: no node is idle in the first 1 hours\n")
    assert hpcdl("replay", trace.with_name("none.csv")).code == 1
