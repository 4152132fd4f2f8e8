"""A training that has ended says so in its last checkpoint, however it ended; one that was ended does not."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpcdl.trainer import completion

SCRIPT = """
import os, signal, sys
import hpcdl.trainer as hpcdl

weights = []

def save(folder):
    (folder / "weights").write_text(" ".join(map(str, weights)))

def load(folder):
    weights[:] = map(int, (folder / "weights").read_text().split())

def steps(total):
    for_all = dict(save=save, load=load, every=2)
    return hpcdl.steps(total, **for_all)

hpcdl.attach(checkpoint_dir="checkpoints")
total = int(sys.argv[1])

def train():
    for step in steps(total):
        weights.append(step)
        if step == 4 and len(sys.argv) > 2:
            {way}

try:
    train()
finally:
    print(*weights)
"""

EARLY = [0, 1, 2, 3, 4]
WAYS_TO_END = ["break", "return"]
WAYS_TO_BE_ENDED = [
    "raise ValueError",
    "sys.exit(0)",
    "sys.exit(3)",
    "os.kill(os.getpid(), signal.SIGINT)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os._exit(0)",
]


def trained(folder: Path, way: str, *argv: str) -> list[int]:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT.format(way=way)))
    done = subprocess.run([sys.executable, "train.py", *argv], cwd=folder, capture_output=True, text=True)
    assert "Exception ignored" not in done.stderr
    return [int(each) for each in done.stdout.split()]


@pytest.mark.parametrize("way", WAYS_TO_END)
def test_after_an_early_end_no_step_is_trained(tmp_path: Path, way: str) -> None:
    assert trained(tmp_path, way, "9", "early") == EARLY
    assert trained(tmp_path, way, "9") == EARLY, "it is complete"
    assert trained(tmp_path, way, "7") == EARLY, "a smaller total leaves less to do"
    assert trained(tmp_path, way, "12") == list(range(12)), "a larger one trains on"
    assert trained(tmp_path, way, "12") == list(range(12))


@pytest.mark.parametrize("way", WAYS_TO_BE_ENDED)
def test_what_was_ended_is_not_complete(tmp_path: Path, way: str) -> None:
    trained(tmp_path, way, "9", "early")
    found = sorted((tmp_path / "checkpoints").glob("step-*"))
    assert [each for each in found if (each / completion.FILE).exists()] == []
    assert trained(tmp_path, way, "9") == list(range(9)), "it goes on from step 4"


def test_a_last_checkpoint_that_cannot_be_written_is_no_end(tmp_path: Path) -> None:
    code = SCRIPT.replace("def save(folder):\n", "def save(folder):\n    assert len(weights) != 5, 'no room'\n")
    (tmp_path / "train.py").write_text(code.format(way="break"))
    done = subprocess.run(
        [sys.executable, "train.py", "9", "early"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "the last checkpoint, of step 5, failed, and training is not complete: no room" in done.stderr
    assert "Traceback" not in done.stderr
    assert trained(tmp_path, "break", "9") == list(range(9))


@pytest.mark.parametrize(
    ("identity", "now", "complete"),
    [("a", (9,), True), ("a", (8,), True), ("a", (10,), False), ("b", (9,), False), ("", (9,), False),
     ("a", (None,), False), ("a", (9, 9), False)],
)  # fmt: skip
def test_of_whom_and_how_far(tmp_path: Path, identity: str, now: tuple[float | None, ...], complete: bool) -> None:
    assert not completion.is_complete(tmp_path, identity, now)
    completion.mark(tmp_path, "a", (9,))
    assert completion.is_complete(tmp_path, identity, now) is complete


def test_no_limit_is_no_reason_to_go_on(tmp_path: Path) -> None:
    completion.mark(tmp_path, "a", (None, 5))
    assert completion.is_complete(tmp_path, "a", (None, 5))
    assert completion.is_complete(tmp_path, "a", (7, 5))


@pytest.mark.parametrize(
    "wrong", ["", "[]", "{}", '{"identity": "a", "limits": ["x"]}', '{"identity": "a", "limits": 3}']
)
def test_a_damaged_word_is_none(tmp_path: Path, wrong: str) -> None:
    (tmp_path / completion.FILE).write_text(wrong)
    assert not completion.is_complete(tmp_path, "a", (3,))
