"""The tables of the DeepPool paper: the models, the searches, and the throughput that follows from the layers."""

import json

import pytest

from hpcdl.sim.papers.deeppool import multiplexing, shared, tables, throughput
from hpcdl.sim.papers.page import papers_page


def test_the_tables_are_the_papers_beside_ours() -> None:
    models, searches, figures, simulated, sharing = tables()
    own = {row.workload: row.more for row in models.rows}
    assert [own[name].get("layers") for name in ("VGG-16", "WideResNet-101-2", "Inception-v3")] == [21, None, 119]
    for row in searches.rows:
        assert row.more == {} or (row.more["optimal"] and row.more["limit_kept"]), row
    assert {row.paper.get("search_ms") for row in searches.rows} >= {10, 50, 220, 3230}
    assert [row.workload for row in figures.rows] == ["VGG-16", "WideResNet-101-2", "Inception-v3"]
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
    assert all(row.makespan_s != row.makespan_s for row in multiplexing().rows)


def test_simulated_backgrounds_raise_the_total_as_much_as_the_paper_prints() -> None:
    rows = {(row.workload, row.more["setting"]): row.more for row in shared().rows}
    for row in rows.values():
        assert 1.2 <= row["total_vs_data_parallel"] <= 2.3
        assert row["foreground_vs_burst_parallel"] == pytest.approx(1 / 1.1, rel=1e-3), "its limit, which is held"
    assert rows["VGG-16", "limit 2"]["foreground_vs_data_parallel"] > 1
    assert "not measured" in shared().notes[0]
