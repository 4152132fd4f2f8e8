"""What these tests' clusters are judged by: a GPU that two incarnations had at once is seen in the agents' files."""

import json
from pathlib import Path

import pytest

from tests.system.cluster import granted_twice

Line = tuple[str | None, int, int, str]


@pytest.mark.parametrize(
    ("lines", "twice"),
    [
        ([("A", 1, 1, "granted"), ("A", 1, 1, "freed"), ("A", 2, 1, "granted")], 0),
        ([("A", 1, 1, "granted"), ("A", 1, 1, "granted"), ("B", 2, 1, "granted")], 0),
        ([("A", 1, 1, "granted"), ("A", 2, 1, "granted")], 1),
        ([("A", 1, 1, "granted"), ("A", 1, 2, "granted")], 1),
        ([("A", 1, 1, "granted"), ("A", 2, 1, "freed"), ("A", 2, 1, "granted")], 1),
        ([("A", 1, 1, "granted"), (None, 1, 1, "freed"), ("A", 2, 1, "granted")], 0),
        ([("A", 1, 1, "granted"), (None, 3, 1, "freed"), ("A", 2, 1, "granted")], 1),
    ],
)
def test_grants_at_once(tmp_path: Path, lines: list[Line], twice: int) -> None:
    folder = tmp_path / "home" / "run" / "n1"
    folder.mkdir(parents=True)
    names = ("uuid", "job", "incarnation", "what")
    entries = [{"boot": number, **dict(zip(names, line, strict=True))} for number, line in enumerate(lines)]
    text = [f"{json.dumps(entry)}\n" for entry in entries]
    (folder / "grants.jsonl.1").write_text(text[0])
    (folder / "grants.jsonl").write_text("".join(text[1:]))
    assert len(granted_twice(tmp_path / "home")) == twice
