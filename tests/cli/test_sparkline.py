"""Curves in a line of a terminal, and their numbers."""

import io
import math
import sys

import pytest

from hpcdl.cli.sparkline import curve_line, numbers_text, sparkline
from hpcdl.core.model.series import Series, sample, series_json


@pytest.fixture(autouse=True)
def utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def test_bars_go_from_the_least_to_the_largest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0, None, 7]) == "█▁×█"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([50, 100], low=0, high=100) == "▅█"
    assert sparkline([-1, 200], low=0, high=100) == "▁█", "what is outside stays within the line"
    assert sparkline([None]) == "×"


def test_many_values_become_means_of_equal_parts() -> None:
    line = sparkline([each // 10 for each in range(80)], 8)
    assert line == "▁▂▃▄▅▆▇█"
    assert len(sparkline([float(each) for each in range(1000)], 32)) == 32
    assert sparkline([None, None, 1.0, 2.0], 2) == "×▄"


def test_no_letters_for_it_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert sparkline([1.0, 2.0]) == ""


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
