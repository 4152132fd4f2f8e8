"""Metrics in the text format of Prometheus (version 0.0.4), which node_exporter's textfile collector reads too."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KINDS = ("counter", "gauge", "histogram")
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One number. `suffix`: what follows the family's name, `_bucket`, `_sum` and `_count` of a histogram."""

    value: float
    labels: Labels = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name. Raises ValueError for a name, label or kind that the format does not know."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if not NAME.match(self.name) or self.kind not in KINDS:
            raise ValueError(f"no metric can be called {self.name!r:.80} or be a {self.kind!r:.20}")
        names = {label for sample in self.samples for label, _ in sample.labels}
        wrong = next((name for name in names if not LABEL.match(name)), None)
        if wrong is not None:
            raise ValueError(f"{self.name}: no label can be called {wrong!r:.80}")


def gauge(name: str, told: str, value: float | None) -> Family:
    """A family of one number without labels; of none where it is not known."""
    return Family(name, "gauge", told, () if value is None else (Sample(value),))


def counter(name: str, told: str, value: float) -> Family:
    """As `gauge`, of what only grows."""
    return Family(name, "counter", told, (Sample(value),))


def by_label(name: str, kind: str, told: str, label: str, values: Mapping[str, float]) -> Family:
    """A family with a number for each value of one label."""
    return Family(name, kind, told, tuple(Sample(value, ((label, each),)) for each, value in values.items()))


def histogram(name: str, told: str, buckets: Iterable[tuple[float, int]], total: float, number: int) -> Family:
    """`buckets`: upper bounds, ascending, and how many were up to there; `total`: the sum of all `number` of them."""
    bounds = [Sample(many, (("le", _number(bound)),), "_bucket") for bound, many in buckets]
    last = Sample(number, (("le", "+Inf"),), "_bucket")
    return Family(name, "histogram", told, (*bounds, last, Sample(total, (), "_sum"), Sample(number, (), "_count")))


def text_of(families: Iterable[Family], labels: Labels = ()) -> str:
    """The text, its last line ended as the format wants it. `labels`: put before those of every sample.

    Text of any kind may be in a label's value: what would end it or its line is escaped, and what is no UTF-8 replaced.
    """
    lines = []
    for family in families:
        if not family.samples:
            continue
        lines += [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
        for sample in family.samples:
            told = ",".join(f'{name}="{_quoted(value)}"' for name, value in (*labels, *sample.labels))
            braced = f"{{{told}}}" if told else ""
            lines.append(f"{family.name}{sample.suffix}{braced} {_number(sample.value)}")
    return "".join(f"{line}\n" for line in lines)


def to_json(families: Iterable[Family]) -> list[dict[str, Any]]:
    """Families as plain JSON values, for `from_json`."""
    return [
        {
            "name": family.name,
            "kind": family.kind,
            "help": family.help,
            "samples": [
                {"value": sample.value if math.isfinite(sample.value) else _number(sample.value)}
                | ({"labels": dict(sample.labels)} if sample.labels else {})
                | ({"suffix": sample.suffix} if sample.suffix else {})
                for sample in family.samples
            ],
        }
        for family in families
    ]


def from_json(rows: Iterable[Mapping[str, Any]]) -> list[Family]:
    """What `to_json` wrote. Raises KeyError, TypeError and ValueError for anything else."""
    return [
        Family(
            row["name"],
            row["kind"],
            row["help"],
            tuple(
                Sample(float(each["value"]), tuple(each.get("labels", {}).items()), each.get("suffix", ""))
                for each in row["samples"]
            ),
        )
        for row in rows
    ]


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escaped(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    if text.isalnum() and text.isascii():  # nearly all
        return text
    return _escaped(text).replace('"', '\\"')
