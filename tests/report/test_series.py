"""A series as SVG: well formed, within its frame, in words too, and names in it are only names."""

import math
import re
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from hpcdl.core.model.series import Series, sample, series_json
from hpcdl.report.series import ACROSS, HEIGHT, curves_html, series_figure, series_svg


def answer(name: str, *values: float, steps: bool = True) -> dict[str, Any]:
    series = Series()
    for number, value in enumerate(values, 1):
        series.add(sample(100.0 + number, number if steps else None, value))
    return series_json(name, series.points)


@given(st.lists(st.floats() | st.floats(-1, 1), min_size=1, max_size=400), st.booleans())
def test_every_curve_lies_within_its_frame(values: list[float], steps: bool) -> None:
    for name in ("loss", "gpu_util", "cpu"):
        drawn = series_svg(answer(name, *values, steps=steps))
        root = ElementTree.fromstring(drawn)
        for path in root.iter("path"):
            numbers = [float(each) for each in re.findall(r"-?[0-9.]+(?:e[+-]?\d+)?", path.attrib["d"])]
            assert all(0 <= x <= ACROSS for x in numbers[::2])
            assert all(0 <= y <= HEIGHT for y in numbers[1::2])
            assert "nan" not in path.attrib["d"]


def test_it_says_in_words_what_it_shows() -> None:
    root = ElementTree.fromstring(series_svg(answer("loss", 2.0, 1.0, 0.5)))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "loss: from 2 to 0.5, lowest 0.5, highest 2, mean 1.167, 3 samples"
    line = [path.attrib["d"] for path in root.iter("path") if path.attrib["class"] == "curve"]
    assert line == ["M0 2.0L500 47.3L1000 70.0"]
    figure = series_figure(answer("gpu_power", 50.0, 100.0, steps=False))
    assert "last 100 W, 50 W to 100 W, mean 75 W" in figure
    assert "<b>GPU power</b>" in figure
    assert "over 1.0 s" in figure


def test_a_curve_that_diverged_has_a_gap_and_says_so() -> None:
    drawn = series_figure(answer("loss", 2.0, math.nan, 1.0, math.nan))
    line = re.search('<path d="([^"]*)" class="curve"', drawn)
    assert line is not None
    assert line[1].count("M") == 2
    assert "not finite since about step 4" in drawn
    assert "none of them a finite number" in series_svg(answer("loss", math.nan))


def test_names_are_only_names() -> None:
    drawn = series_figure(answer('<b>"x"', 1.0, 2.0))
    assert "<b>&quot;" not in drawn
    assert "&lt;b&gt;&quot;x&quot;" in drawn


def test_metrics_that_stay_the_same_are_one_line() -> None:
    changes, level = answer("loss", 2.0, 1.0), [answer("lr", 0.1, 0.1, 0.1), answer("<width>", 32, 32)]
    drawn = curves_html([changes, *level, answer("gpu_util", 50.0, 50.0, steps=False)])
    assert drawn.count("<figure") == 2
    assert "Constant: lr 0.1, &lt;width&gt; 32" in drawn
    assert "<figure" not in curves_html(level)
    for other in (answer("loss", 2.0), answer("loss", 2.0, math.nan), answer("loss", math.nan, math.nan)):
        assert "Constant" not in curves_html([other])
