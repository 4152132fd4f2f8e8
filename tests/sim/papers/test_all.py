"""Every paper's tables side by side: one study that fails costs its own tables only."""

import pytest

from hpcdl.sim.papers import marble, unknown
from hpcdl.sim.papers.all import all_tables
from hpcdl.sim.papers.table import PaperRow, PaperTable


def test_a_study_that_fails_is_told_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    row = PaperRow("set 1", "adaptive", 490.0, 300.0, {"over_optimum": 0.01})
    theirs = PaperRow("set 1", "marble", 496.0, 376.0)
    # The studies run in processes that are forked, so they see what is put in place here.
    monkeypatch.setattr(marble, "tables", lambda seeds: (PaperTable("MARBLE sets 1 to 3", (row, theirs)),))
    monkeypatch.setattr(unknown, "tables", None)
    said: list[str] = []
    tables, problems = all_tables(("marble", "unknown"), 1, said.append)
    assert [table.name for table in tables] == ["Figures to reach", "MARBLE sets 1 to 3"]
    assert len(problems) == 1
    assert problems[0].startswith("unknown: ")
    assert said[-1].endswith("0 to go")
    reached = {each.more["figure"]: each.more for each in tables[0].rows}
    assert reached["MARBLE sets 1 to 3: makespan below MARBLE's"]["met"] is True
    assert reached["MARBLE sets 1 to 3: makespan above the offline optimum"]["reached"] == 0.01
