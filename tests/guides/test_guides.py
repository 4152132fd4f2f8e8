"""Every example in the guides is run, line by line, in the order in which a reader meets them."""

import re
from pathlib import Path

import pytest

from tests.guides.session import Command, File, matches, shell, steps

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}-guide.md" for name in ("policy", "user", "trainer"))]
TYPING_S = 800
"""A guide waits for real trainers."""


@pytest.mark.parametrize(
    "guide", [*GUIDES[:-1], pytest.param(GUIDES[-1], marks=pytest.mark.long)], ids=lambda path: path.stem
)
@pytest.mark.timeout(TYPING_S)
def test_a_guide_does_what_it_shows(guide: Path, tmp_path: Path) -> None:
    (tmp_path / "jobscripts").symlink_to(ROOT / "jobscripts")
    told = list(steps(guide.read_text(encoding="utf-8")))
    assert sum(isinstance(each, Command) for each in told) >= 3
    with shell(tmp_path) as typed:
        for each in told:
            if isinstance(each, File):
                (tmp_path / each.name).write_text(each.text, encoding="utf-8")
                continue
            code, printed = typed.run(each.text)
            where = f"{guide.name}:{each.line}: $ {each.text}\nprinted:\n" + "\n".join(printed)
            assert code == each.code, f"exit {code}: {where}"
            assert not each.output or matches(each.output, printed), f"it shows something else: {where}"


def test_what_a_document_shows_is_compared() -> None:
    shown = ("job 1 queued: train.py", "…", "n1:0  ok   … free")
    assert matches(shown, ["job 12 queued: train.py", "more", "and more", "n1:3   ok   it is free"])
    assert matches(("a", "…"), ["a"])
    assert not matches(shown, ["job 12 queued: train.sh", "n1:3   ok   it is free"])
    assert not matches(("a",), ["a", "b"])
    assert matches(("3.5 s at 12:30",), ["17.25 s at 7:01"])
    assert not matches(("3 s",), ["x s"])


def test_the_steps_of_a_document() -> None:
    text = "# T\n```python\n# train.py\nimport os\n```\n\n"
    text += "```console\n$ ls \\\n>   -l\na\nb\n$ false  # exit 1\n```\n```text\nx\n```\n"
    assert list(steps(text)) == [
        File("train.py", "# train.py\nimport os\n"),
        Command("ls \\\n  -l", ("a", "b"), 0, 8),
        Command("false", (), 1, 12),
    ]
    with pytest.raises(ValueError, match="line 3: a block of python"):
        list(steps("# T\n```python\nimport os\n```\n"))
    with pytest.raises(ValueError, match="begins with a command"):
        list(steps("```console\nls\n```\n"))


def test_a_shell_keeps_its_state(tmp_path: Path) -> None:
    with shell(tmp_path) as typed:
        assert typed.run("x=7; cd /") == (0, [])
        assert typed.run("echo $x; pwd; echo oh >&2; (exit 3)") == (3, ["7", "/", "oh"])
        assert re.fullmatch(r"hpcdl \d.*", typed.run("hpcdl --version")[1][0])
