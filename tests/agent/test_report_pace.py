"""How often a trainer's progress is reported."""

from hpcdl.agent.part import FIRST_REPORTS_S, ReportPace


def reports(pace: ReportPace, begin: float, seconds: float, interval_s: float = 10.0) -> list[float]:
    """When it is reported, where there is news every tenth of a second."""
    found = []
    for tenth in range(round(10 * seconds)):
        now = begin + tenth / 10
        if pace.due(now, interval_s):
            pace.reported(now)
            found.append(now)
    return found


def test_often_at_first_and_again_on_other_nodes() -> None:
    pace = ReportPace()
    first = reports(pace, 100.0, 60.0)
    assert len([at for at in first if at < 102.0]) == 4
    assert first[-1] - first[-2] >= 9.9
    assert reports(pace, 161.0, 2.0) == []
    pace.begins()
    again = reports(pace, 163.0, 2.0)
    assert len(again) == 4
    assert again[1] - again[0] >= FIRST_REPORTS_S
    assert len(reports(ReportPace(), 0.0, 3.0, interval_s=0.2)) > 10
