"""Curves in a line of a terminal, and their numbers."""

import io
import math
import sys
from typing import Any

import pytest

from hpcdl.cli import show
from hpcdl.cli.sparkline import curve_line, numbers_text, sparkline
from hpcdl.core.model.series import Series, sample, series_json
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


@pytest.fixture
def utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


@pytest.mark.usefixtures("utf8")
def test_bars_go_from_the_least_to_the_largest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0, None, 7]) == "█▁×█"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([50, 100], low=0, high=100) == "▅█"
    assert sparkline([-1, 200], low=0, high=100) == "▁█", "what is outside stays within the line"
    assert sparkline([None]) == "×"


@pytest.mark.usefixtures("utf8")
def test_many_values_become_means_of_equal_parts() -> None:
    line = sparkline([each // 10 for each in range(80)], 8)
    assert line == "▁▂▃▄▅▆▇█"
    assert len(sparkline([float(each) for each in range(1000)], 32)) == 32
    assert sparkline([None, None, 1.0, 2.0], 2) == "×▄"


def test_no_letters_for_it_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert sparkline([1.0, 2.0]) == ""


@pytest.mark.usefixtures("utf8")
def test_numbers_of_metrics_and_of_use() -> None:
    def told(name: str, *values: float) -> str:
        series = Series()
        for step, value in enumerate(values, 1):
            series.add(sample(float(step), step, value))
        answer = series_json(name, series.points)
        assert curve_line(answer)
        return numbers_text(answer)

    assert told("loss", 2.5, 0.25) == "0.25 (0.25 to 2.5)"
    assert told("loss", 2.5, math.nan, math.inf) == "not finite since about step 2 (2.5 to 2.5)"
    assert told("loss", math.nan) == "not finite since about step 1"
    assert told("gpu_util", 90, 100) == "100 % (mean 95, peak 100)"
    assert told("cpu", 3.5, 120.4) == "120 % (mean 62, peak 120)"
    assert told("gpu_power", math.nan) == "-"


def test_show_has_the_curves_of_a_job(jobs: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def curve(name: str, *values: float) -> dict[str, Any]:
        series = Series()
        for step, value in enumerate(values, 1):
            series.add(sample(float(step), step, value))
        return series_json(name, series.points)

    jobs.world.series[1] = [curve("loss", 7.0, 6.0, 0.0), curve("gpu_util", 100.0, 50.0)]
    lines = [line.split(maxsplit=1) for line in hpcdl("show", 1).out.splitlines()]
    assert ["loss", "0 (0 to 7)"] in lines, "in a pipe numbers alone"
    assert "GPU utilisation  50 % (mean 75, peak 100)" in hpcdl("show", 1).out
    job = hpcdl("show", 1, "--json").value["job"]
    assert [each["name"] for each in job["series"]] == ["loss", "gpu_util"]
    assert job["series"][0]["points"]["mean"] == [7.0, 6.0, 0.0]
    assert jobs.requests[-1][1] == "/v1/jobs/1/series?points=64"
    assert "series" not in hpcdl("show", 3).out
    monkeypatch.setattr(show, "stdout_takes", lambda: (80, False))
    monkeypatch.setattr(show, "curve_line", lambda series, width: "#" * min(3, width))
    (line,) = [line for line in hpcdl("show", 1).out.splitlines() if line.startswith("loss")]
    assert line == f"{'loss':<15}  {'###':<32}  0 (0 to 7)"
