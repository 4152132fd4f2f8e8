"""YAML files that are small, and would take all memory, or the interpreter with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from hpcdl.batch.site import SiteError, read_site
from hpcdl.cli.submit import jobs_file
from hpcdl.config.layers import MAX_DEPTH, MAX_VALUES
from hpcdl.config.profiles import read_profiles
from hpcdl.core.model.profile import ProfileError
from hpcdl.sim.readers.reader import read_workload


def aliases(levels: int, inside: str) -> str:
    """A mapping in which `inside` stands for 10 ** levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join([*lines, inside.replace("BOMB", f"*a{levels - 1}"), ""])


DEEP = ("[" * 400_000, "- " * 100_000, "? " * 100_000, '{"jobs": ' * 100_000, "jobs: " + "{a: " * 100_000)

Read = Callable[[Path], Any]


def jobs_of(path: Path) -> Any:
    return jobs_file._load(path.name, path.read_text())


def workload_of(path: Path) -> Any:
    return read_workload(path, {})


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
@pytest.mark.parametrize(
    "read,error", [(jobs_of, click.ClickException), (workload_of, ValueError)], ids=["jobs", "workload"]
)
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, read: Read, error: Any, text: str) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(text)
    with pytest.raises(error, match=f"deep.yaml:1: not YAML: more than {MAX_DEPTH} lists or mappings within each"):
        read(path)


@pytest.mark.parametrize(
    "read,error,text",
    [
        (read_profiles, ProfileError, aliases(10, "profiles: {x: BOMB}")),
        (read_profiles, ProfileError, aliases(10, "profiles: {x: {points: BOMB}}")),
        (read_site, SiteError, aliases(10, "nodes_max: BOMB")),
        (jobs_of, click.ClickException, aliases(10, "jobs: BOMB")),
    ],
    ids=["profile", "points", "site", "jobs"],
)
def test_a_file_that_stands_for_too_much_is_refused(tmp_path: Path, read: Read, error: Any, text: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(error, match=f"{MAX_VALUES} values|is not a key of a site"):
        read(path)


def test_a_site_that_stands_for_too_much_under_keys_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    bomb = "&a0 [x, x, x, x, x, x, x, x, x, x]"
    for level in range(1, 9):
        bomb = f"&a{level} [{bomb}, {', '.join([f'*a{level - 1}'] * 9)}]"
    path.write_text(f"queues: {bomb}\n")
    with pytest.raises(SiteError, match=f"{MAX_VALUES} values"):
        read_site(path)
