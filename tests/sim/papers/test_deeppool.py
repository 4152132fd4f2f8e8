"""The tables of the DeepPool paper: the models, the searches, and the throughput that follows from the layers."""

import json

import pytest

from hpcdl.sim.papers.deeppool import multiplexing, tables, throughput
from hpcdl.sim.papers.page import papers_page
from hpcdl.sim.papers.table import PaperTable

BRANCHES = "Inception-v3, branches side by side"


@pytest.fixture(scope="module")
def made() -> tuple[PaperTable, ...]:
    return tables()


def test_the_tables_are_the_papers_beside_ours(made: tuple[PaperTable, ...]) -> None:
    models, searches, figures, simulated, sharing = made
    own = {row.workload: row.more for row in models.rows}
    assert [own[name].get("layers") for name in ("VGG-16", "WideResNet-101-2", "Inception-v3")] == [21, None, 119]
    for row in searches.rows:
        assert row.more == {} or (row.more["optimal"] and row.more["limit_kept"]), row
    assert {row.paper.get("search_ms") for row in searches.rows} >= {10, 50, 220, 3230}
    names = ["VGG-16", "WideResNet-101-2", "Inception-v3", BRANCHES]
    assert [row.workload for row in figures.rows] == names
    assert all(row.more == {} for row in sharing.rows), "nothing of ours is made up"
    json.dumps([table.to_json() for table in (models, searches, figures, simulated, sharing)], allow_nan=False)
    page = papers_page((models, searches, figures, simulated, sharing))
    assert "DeepPool table 3" in page
    assert "nan" not in page.lower().replace("finance", "")


def test_vgg_gains_what_the_paper_prints_and_inception_falls_back_to_data_parallelism() -> None:
    rows = {row.workload: row.more for row in throughput().rows}
    assert 1.2 <= rows["VGG-16"]["total_vs_data_parallel"] <= 2.3
    assert rows["VGG-16"]["foreground_vs_data_parallel"] >= 1
    assert rows["VGG-16"]["speedup_gain_over_partition"] >= 0.38
    assert rows["Inception-v3"]["foreground_vs_data_parallel"] >= 1
    assert rows[BRANCHES]["foreground_vs_data_parallel"] >= 1
    assert 1.2 <= rows[BRANCHES]["total_vs_data_parallel"] <= 2.3
    for name in ("VGG-16", "Inception-v3", BRANCHES):
        assert rows[name]["speedup_gain_over_one_partition"] >= rows[name]["speedup_gain_over_partition"]
    assert all(row.makespan_s != row.makespan_s for row in multiplexing().rows)


def test_simulated_pairs_keep_what_the_foreground_agreed_to_and_gain_over_a_partition(
    made: tuple[PaperTable, ...],
) -> None:
    table = made[3]
    rows = {(row.workload, row.more["setting"]): row.more for row in table.rows}
    kept = {"held at 5 %": 1 / 1.05, "held at 10 %": 1 / 1.1, "not held": 0.82}
    pairs = {key: row for key, row in rows.items() if "foreground_vs_burst_parallel" in row}
    assert len(pairs) == 3 * 3 * 3
    for (_, setting), row in pairs.items():
        expected = kept[setting.partition(", ")[2]]
        assert row["foreground_vs_burst_parallel"] == pytest.approx(expected, rel=1e-3)
    assert 1.2 <= rows["VGG-16", "limit 2, held at 10 %"]["total_vs_data_parallel"] <= 2.3
    assert rows["VGG-16", "limit 2, held at 10 %"]["foreground_vs_data_parallel"] > 1
    assert rows["VGG-16", "the best of these"]["speedup_gain_over_partition"] > 0.3
    best = rows["Inception-v3", "the best of these"]
    assert best["speedup_gain_over_partition"] < 0 < best["speedup_gain_over_one_partition"], "and the notes say why"
    assert rows[BRANCHES, "the best of these"]["speedup_gain_over_partition"] > 0.25
    assert rows[BRANCHES, "the best of these"]["speedup_gain_over_one_partition"] > 0.37
    assert {row.paper["speedup_gain_over_partition"] for row in table.rows if "best" in row.more["setting"]} == {
        0.38,
        0.37,
    }
    assert "not measured" in table.notes[0]
