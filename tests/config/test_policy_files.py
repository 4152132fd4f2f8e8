"""Policies of one's own: files that are read when they are only their owner's, and told of when they cannot be."""

import os
from pathlib import Path

import pytest

from hpcdl.config.policy_files import BadPolicyFile, register_files
from hpcdl.core.model.plan import Policies
from hpcdl.policies import all_policies
from hpcdl.wire.private_files import NotPrivate

MINE = """
from dataclasses import dataclass
from hpcdl.policy import Plan, pool_of

@dataclass(frozen=True)
class Setting:
    limit: int = 1

class Mine:
    name = "mine"

    def decide(self, view):
        return pool_of(view).plan()
"""


def put(home: Path, text: str, name: str = "mine.py") -> Path:
    folder = home / "policies"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_a_policy_of_ones_own_is_one_of_all(tmp_path: Path) -> None:
    assert register_files(Policies(), tmp_path) == ()
    put(tmp_path, MINE)
    put(tmp_path, "this is no Python", "_not_loaded.py")
    policies = all_policies(home=tmp_path)
    assert "mine" in policies.names()
    assert policies.make("mine").name == "mine"
    assert not (tmp_path / "policies" / "__pycache__").exists()


def test_a_policy_written_for_an_earlier_version_is_still_read(tmp_path: Path) -> None:
    before = MINE.replace(
        "from hpcdl.policy import Plan, pool_of",
        "from hpcdl.core.model import Role\nfrom hpcdl.core.plan import Plan, View\n"
        "from hpcdl.core.units import count\nfrom hpcdl.placing import impossible, pool_of",
    )
    assert before != MINE
    put(tmp_path, before)
    assert register_files(Policies(), tmp_path) == ("mine",)


@pytest.mark.parametrize(
    "text, told",
    [
        ("x = 1\nclass A:\n    pass\n", "no class in it has"),
        ("class A:\n    name = 'Not so'\n    def decide(self, view): ...\n", "A.name must be"),
        ("class A:\n    name = 'marble'\n    def decide(self, view): ...\n", "there is a policy 'marble' already"),
        ("import os\n\nx = (\n", "mine.py:3: SyntaxError"),
        ("import os\n\nx = 1 / 0\n", "mine.py:3: ZeroDivisionError"),
        ("import nothing_of_this_name\n", "mine.py:1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_is_no_policy_is_told_of_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    put(tmp_path, text)
    with pytest.raises(BadPolicyFile, match=told) as error:
        all_policies(home=tmp_path)
    assert "\n" not in str(error.value)


def test_what_others_can_write_is_not_run(tmp_path: Path) -> None:
    path = put(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\n{MINE}")
    path.chmod(0o666)
    with pytest.raises(NotPrivate, match="nobody else can write"):
        all_policies(home=tmp_path)
    path.chmod(0o600)
    path.parent.chmod(0o755)
    with pytest.raises(NotPrivate, match="open to others"):
        all_policies(home=tmp_path)
    path.parent.chmod(0o700)
    target = tmp_path / "elsewhere.py"
    os.rename(path, target)
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        all_policies(home=tmp_path)
    assert not (tmp_path / "ran").exists()
