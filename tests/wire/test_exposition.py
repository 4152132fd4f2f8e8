"""The text format of metrics, read back by a reader that knows nothing but its grammar."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.wire.exposition import Family, Sample, by_label, counter, from_json, gauge, histogram, text_of, to_json
from tests.wire.prometheus import read

ANY = st.text(max_size=30) | st.sampled_from(
    ['"} 1\nevil_total 7', "\\", '\\"', "a\\nb", "\r\n# TYPE x counter", "\x00", "\u2028", "\ud800", "µ ✓"]
)


def test_what_it_looks_like() -> None:
    families = [
        gauge("a_ratio", "Of all.", 0.25),
        counter("b_total", 'Two\nlines and a \\ and "quotes".', 3.0),
        by_label("c", "gauge", "By state.", "state", {"ON": 2, 'o"ff\\\n': 0}),
        gauge("unknown", "Not told.", None),
    ]
    assert text_of(families, (("user", "ada"),)) == (
        '# HELP a_ratio Of all.\n# TYPE a_ratio gauge\na_ratio{user="ada"} 0.25\n'
        '# HELP b_total Two\\nlines and a \\\\ and "quotes".\n# TYPE b_total counter\nb_total{user="ada"} 3\n'
        '# HELP c By state.\n# TYPE c gauge\nc{user="ada",state="ON"} 2\nc{user="ada",state="o\\"ff\\\\\\n"} 0\n'
    )


def test_a_histogram_is_cumulative_and_ends_at_infinity() -> None:
    found = read(text_of([histogram("t_seconds", "Times.", [(0.1, 1), (1.0, 3)], 2.5, 4)]))
    assert found["t_seconds"].samples == {
        ("t_seconds_bucket", (("le", "0.1"),)): 1,
        ("t_seconds_bucket", (("le", "1"),)): 3,
        ("t_seconds_bucket", (("le", "+Inf"),)): 4,
        ("t_seconds_sum", ()): 2.5,
        ("t_seconds_count", ()): 4,
    }


@settings(max_examples=40)
@given(st.lists(st.tuples(ANY, st.floats()), max_size=4), ANY, ANY)
def test_whatever_a_label_says_stays_in_its_label(values: list[tuple[str, float]], told: str, extra: str) -> None:
    family = Family("x", "gauge", told, tuple(Sample(value, (("node", name),)) for name, value in dict(values).items()))
    text = text_of([family, gauge("last", "The end.", 1)], (("user", extra),))
    found = read(text)
    assert list(found) == (["x", "last"] if values else ["last"])

    def shown(name: str) -> str:
        return name.encode("utf-8", "replace").decode()

    if len({shown(name) for name, _ in values}) == len(dict(values)):
        for name, value in dict(values).items():
            read_back = found["x"].samples["x", (("user", shown(extra)), ("node", shown(name)))]
            assert read_back == value or (math.isnan(read_back) and math.isnan(value))


@given(ANY, st.floats())
def test_json_says_the_same(name: str, value: float) -> None:
    family = Family("x", "gauge", "Told.", (Sample(value, (("node", name),)), Sample(1.0, (), "_sum")))
    assert text_of(from_json(to_json([family]))) == text_of([family])


@pytest.mark.parametrize(
    ("name", "kind", "label"), [("a b", "gauge", "l"), ("a", "summary", "l"), ("a", "gauge", "__l")]
)
def test_names_that_there_cannot_be(name: str, kind: str, label: str) -> None:
    with pytest.raises(ValueError):
        Family(name, kind, "", (Sample(1.0, ((label, ""),)),))
