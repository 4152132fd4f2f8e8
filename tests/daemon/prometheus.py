"""A reader of Prometheus' text format, version 0.0.4, that refuses whatever the format does not say."""

import re
from dataclasses import dataclass, field

_NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
_LINE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL},)*{_LABEL})\}})? (\S+)\Z")
_KINDS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Read:
    """A family: its help, kind, and numbers by the sample's name and labels."""

    help: str
    kind: str = ""
    samples: dict[Key, float] = field(default_factory=dict)


def read(text: str) -> dict[str, Read]:
    """The families by name, in their order. Raises AssertionError."""
    assert text == "" or text.endswith("\n"), "the last line must end with a line feed"
    found: dict[str, Read] = {}
    now = ""
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name, _, told = line.removeprefix("# HELP ").partition(" ")
            assert re.fullmatch(_NAME, name), line
            assert name not in found, line
            assert re.fullmatch(r"(?:[^\\\n]|\\[\\n])*", told), line
            found[name] = Read(told)
            now = name
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert (name, found[name].kind) == (now, ""), line
            assert kind in _KINDS, line
            found[name].kind = kind
        else:
            matched = _LINE.match(line)
            assert matched is not None, line
            family = found[now]
            assert matched[1].removeprefix(now) in _KINDS[family.kind], line
            assert family.kind != "counter" or now.endswith("_total"), f"{now} is a counter"
            labels = tuple((name, _plain(value)) for name, value in re.findall(_LABEL, matched[2] or ""))
            assert len({name for name, _ in labels}) == len(labels), line
            assert (matched[1], labels) not in family.samples, f"twice: {line}"
            family.samples[matched[1], labels] = float(matched[matched.lastindex or 0])
    assert all(family.kind and family.samples for family in found.values())
    return found


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)
