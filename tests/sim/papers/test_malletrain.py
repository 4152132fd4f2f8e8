"""The table about MalleTrain: its sets of jobs are fixed, and what is learnt is worth more than what is guessed."""

from dataclasses import replace

import pytest

from hpcdl.sim.papers import malletrain
from hpcdl.sim.papers.malletrain import BELIEFS, CASES, NODES, guessed, linear, run_one, searched, sets, tables
from hpcdl.sim.replay import ScalingModel, idle_of, table2
from hpcdl.sim.replay.idle import IdleTrace
from hpcdl.sim.workload import NodeSpell

STEEP = ScalingModel("steep", tuple((nodes, 1000.0 * nodes) for nodes in NODES))
FLAT = ScalingModel("flat", tuple((nodes, 1000.0 * nodes**0.5) for nodes in NODES))


def trace() -> IdleTrace:
    """Sixteen nodes for four hours; eight of them come and go every quarter of an hour."""
    spells = [NodeSpell(f"a{at}", 1, "", 0.0, 14400.0) for at in range(8)]
    for number in range(8):
        spells += [NodeSpell(f"b{at}", 1, "", 1800.0 * number, 1800.0 * number + 900.0) for at in range(8)]
    return idle_of(spells)


def test_the_sets_are_the_same_each_time() -> None:
    assert sets(0) == sets(0)
    assert searched(0) != searched(1)
    found = sets(0)
    assert [*found] == ["architectures", "hyperparameters", "both in turn"]
    assert len({model.name for model in found["architectures"]}) == malletrain.ARCHITECTURES
    assert {model.name for model in found["both in turn"][:4]} == {
        "architecture 1", "architecture 2", *(model.name for model in found["hyperparameters"])
    }  # fmt: skip
    for model in found["architectures"]:
        speedup = model.points[-1][1] / model.points[0][1]
        assert 8.7 < speedup < 58.6  # 64 / (1 + 63 x 0.1) and 64 / (1 + 63 x 0.0015)


def test_guesses() -> None:
    alex = table2()[0]
    assert linear(alex).points[-1] == (64, 64 * alex.points[0][1])
    drawn = guessed(alex)
    assert drawn == guessed(alex) != guessed(alex, 1)
    rates = [rate for _, rate in drawn.points]
    assert rates == sorted(rates)
    assert drawn.points[0][1] / alex.points[0][1] == pytest.approx(1.0, abs=1.0)


def test_what_is_learnt_closes_the_gap_on_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malletrain, "SAMPLES", 10**12)
    runs = {case: run_one((STEEP, FLAT), case, trace()) for case in CASES}
    told, learnt, naive = runs["told"], runs["learnt"], runs["guessed, linear"]
    assert naive.U < told.U
    assert (learnt.U - naive.U) / (told.U - naive.U) > 0.9


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"two": (STEEP, FLAT), "one": (replace(FLAT, name="other"),)}
    monkeypatch.setattr(malletrain, "sets", lambda seed: few)
    monkeypatch.setattr(malletrain, "read_idle", lambda path, hours: idle_of(trace().spells, 2.0))
    (table,) = tables([0])
    assert [(row.workload, row.policy) for row in table.rows] == [(name, case) for name in few for case in CASES]
    by_case = {row.policy: row.more for row in table.rows if row.workload == "two"}
    assert by_case["told"]["throughput_vs_told"] == 0
    for case in CASES:
        assert (by_case[case]["learnt_gains"] is not None) == (case in BELIEFS)
