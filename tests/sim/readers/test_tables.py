"""Traces of idle nodes, and tables of measured throughputs."""

import gzip
import math
from pathlib import Path

import pytest

from hpcdl.sim.readers import read_idle_trace, read_throughputs
from hpcdl.sim.workload import NodeSpell, Workload, WorkloadError, overlapping

TRACE = "node,idle_from_s,idle_until_s\n10,0,1123\n28,0,172\n10,1123,1200\n10,1300.5,1400\n"


def write(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_idle_trace_is_nodes_that_come_and_go(tmp_path: Path) -> None:
    spells = read_idle_trace(write(tmp_path, TRACE), 6, "V100")
    assert spells[0] == NodeSpell("10", 6, "v100", 0, 1123)
    assert [(spell.name, spell.from_s) for spell in spells] == [("10", 0), ("28", 0), ("10", 1123), ("10", 1300.5)]
    assert Workload("w", (), spells).nodes == spells
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(TRACE.encode()))
    assert read_idle_trace(packed, 6, "v100") == spells


@pytest.mark.parametrize(
    "rows, told",
    [
        ("", " names no idle node"),
        ("1,0,10\n1,5,20\n", "3: idle_from_s: node 1 is idle from 5, but until 10 already by line 2"),
        ("1,0,10\n2,0,3\n1,9,12\n", "4: idle_from_s: node 1 is idle from 9, but until 10 already by line 2"),
        ("1,5,10\n2,4,6\n", "3: idle_from_s: 4 is before that of an earlier row, 5"),
        ("1,-5,10\n", "2: idle_from_s: must be 0 or more, got '-5'"),
        ("1,nan,10\n", "2: idle_from_s: expected a number, got 'nan'"),
        ("1,0,NaN\n", "2: idle_until_s: expected a number"),
        ("1,0,inf\n", "2: idle_until_s: must be"),
        ("1,7,7\n", "2: idle_until_s: 7 must be after idle_from_s, 7"),
        ("1,7,5\n", "2: idle_until_s: 5 must be after"),
        ("1,,5\n", "2: idle_from_s: expected a number, got ''"),
        (",0,5\n", "2: node: a node's name must have"),
        ("1,0\n", "2: has 2 cells"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, rows: str, told: str) -> None:
    path = write(tmp_path, "node,idle_from_s,idle_until_s\n" + rows)
    with pytest.raises(WorkloadError) as caught:
        read_idle_trace(path, 4)
    assert str(caught.value).removeprefix(f"{path}:").startswith(told)


def test_a_trace_of_other_columns_or_without_gpus_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "node,idle_from_s,idle_till_s\n1,0,5\n")
    with pytest.raises(
        WorkloadError, match=r"table.csv:1: 'idle_till_s': an unknown column; did you mean idle_until_s"
    ):
        read_idle_trace(path, 4)
    with pytest.raises(WorkloadError, match="GPUs must be from 1"):
        read_idle_trace(write(tmp_path, TRACE), 0)


def test_a_week_of_a_thousand_nodes_is_read_in_seconds(tmp_path: Path) -> None:
    rows = [f"{node},{at},{at + 900}" for at in range(0, 50_000, 1000) for node in range(1000)]
    spells = read_idle_trace(write(tmp_path, "node,idle_from_s,idle_until_s\n" + "\n".join(rows) + "\n"), 6)
    assert len(spells) == 50_000
    assert overlapping(spells) is None


HEAD = "model_and_batch_per_gpu,gpu,gpus,steps_per_s\n"
RATES = HEAD + "A3C,k80,1,3.4\nNet (batch size 8),P100,1,2.0\nNet (batch size 8),p100,4,6.0\n"
RATES += "Net (batch size 8),v100,1,3.0\nNet (batch size 8),v100,2,0.0\nNet (batch size 8),v100,8,12.0\n"


def test_throughputs_are_profiles_with_a_curve_for_each_type(tmp_path: Path) -> None:
    found = read_throughputs(write(tmp_path, RATES))
    assert list(found) == ["a3c", "net (batch size 8)"]
    net = found["net (batch size 8)"]
    assert (net.name, net.rate(1), net.rate(4)) == ("Net (batch size 8)", 2.0, 6.0)
    assert net.on("v100").points == ((1, 1, 3.0), (1, 8, 12.0))  # a rate of 0 was not measured
    assert net.on("h100").rate(1) == 2.0
    assert "table.csv" in net.source
    one = found["a3c"]
    assert [one.rate(gpus) for gpus in (1, 2, 8)] == [3.4, 3.4, 3.4]


def test_the_default_curve_is_that_of_the_type_asked_for(tmp_path: Path) -> None:
    found = read_throughputs(write(tmp_path, RATES), "V100", gpus_per_node=4)
    net = found["net (batch size 8)"]
    assert net.rate(1) == 3.0
    assert net.rate(4, nodes=2) == 12.0
    assert net.on("p100").rate(4, nodes=2) == 6.0
    assert found["a3c"].rate(1) == 3.4


def test_curves_with_equal_or_falling_points_are_kept_as_they_are(tmp_path: Path) -> None:
    text = HEAD + "flat,v100,1,2\nflat,v100,2,2\nfalling,v100,1,5\nfalling,v100,2,4\nfalling,v100,4,1\n"
    found = read_throughputs(write(tmp_path, text))
    assert [found["flat"].rate(gpus) for gpus in (1, 2, 3)] == [2, 2, 2]
    assert [found["falling"].rate(gpus) for gpus in (1, 2, 3, 4, 9)] == [5, 4, 2.5, 1, 1]
    assert found["flat"].best_gpus(4) == found["falling"].best_gpus(4) == 1


@pytest.mark.parametrize(
    "text, told",
    [
        (HEAD, " holds no measurement"),
        (HEAD.replace("gpus", "gpu_count") + "a,v100,1,1\n", "1: 'gpu_count': an unknown column"),
        (HEAD + "a,v100,1,nan\n", "2: steps_per_s: expected a number, got 'nan'"),
        (HEAD + "a,v100,1,-1\n", "2: steps_per_s: must be 0 or more"),
        (HEAD + "a,v100,1,1\nA,V100,1,2\n", "3: gpus: A on 1 v100 is in line 2 already"),
        (HEAD + "a,v100,0,1\n", "2: gpus: must be 1 or more"),
        (HEAD + "a,v100,1.5,1\n", "2: gpus: expected a whole number"),
        (HEAD + ",v100,1,1\n", "2: model_and_batch_per_gpu: must not be empty"),
        (HEAD + "a,,1,1\n", "2: gpu: must not be empty"),
        (HEAD + "a,v100,1,0\n", " steps_per_s: a has no rate above 0"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(WorkloadError) as caught:
        read_throughputs(path)
    assert str(caught.value).removeprefix(f"{path}:").startswith(told)


def test_the_same_node_twice_at_once_is_no_workload() -> None:
    spells = (NodeSpell("a", 1, "", 0, 10), NodeSpell("b", 1), NodeSpell("a", 1, "", 9))
    with pytest.raises(WorkloadError, match="node a is there twice at 9: 0 to 10 and 9 to inf"):
        Workload("w", (), spells)
    assert overlapping(spells[1:]) is None


@pytest.mark.parametrize("begin, end", [(-1, 5), (5, 5), (math.nan, 5), (0, math.nan), (math.inf, math.inf)])
def test_a_spell_has_a_beginning_and_an_end(begin: float, end: float) -> None:
    with pytest.raises(WorkloadError, match="needs 0 <= from < to"):
        NodeSpell("a", 1, "", begin, end)
