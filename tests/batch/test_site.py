"""Site files: what they may hold, and how wrong ones are told."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.site import SiteError, load_site, read_site, site_keys
from hpcdl.config.layers import conf_folder


def test_no_site_limits_nothing_but_the_number_of_pilots() -> None:
    assert load_site(None, 3).site == PilotLimits(pilots_max=3)


def test_the_example_has_every_key_at_its_default() -> None:
    path = conf_folder() / "sites" / "example.yaml"
    assert read_site(path).site == PilotLimits(pilots_max=10_000)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert {line.split(":")[0] for line in lines if line and line[0] not in "# "} == set(site_keys())


@pytest.mark.parametrize("path", sorted((conf_folder() / "sites").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_site_of_the_project_is_read(path: Path) -> None:
    assert read_site(path).kind in ("slurm", "lsf")


def test_the_smaller_of_both_limits_holds(tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    (folder / "ours.yaml").write_text(
        "kind: slurm\npilots_max: 4\nqueues: [gpu]\noptions: [--account=x]\nwithout: [n1]\n"
    )
    site = load_site("ours", 9, tmp_path).site
    assert (site.pilots_max, site.queues, site.options) == (4, ("gpu",), ("--account=x",))
    assert site.without == frozenset({"n1"})
    assert load_site(str(folder / "ours.yaml"), 2).site.pilots_max == 2
    assert load_site("sites/ours.yaml", 2, tmp_path).kind == "slurm"
    assert load_site("summit", 2, tmp_path).kind == "lsf"


@pytest.mark.parametrize(
    "text, told",
    [
        ("kind: slurm\nqueue: [a]\n", ":2: 'queue' is not a key of a site"),
        ("nodes_max: many\n", ":1: nodes_max: must be a whole number from 0 to 1000000000, got 'many'"),
        (f"nodes_max: 1{'0' * 400}\n", ":1: nodes_max: must be a whole number from 0 to 1000000000, got 1000"),
        (f"margin_s: 1{'0' * 400}\n", ":1: margin_s: must be a number up to 1000000000, got 1000"),
        (f"margin_s: 0x1{'0' * 9000}\n", ":1: margin_s: must be a number up to 1000000000, got a number with thou"),
        ("margin_s: .inf\n", ":1: margin_s: must be a number up to 1000000000, got inf"),
        ("kind: slurm\nuseful: 2\n", ":2: useful must be from 0 to below 1, got 2"),
        ("queues: gpu\n", ":1: queues: must be a list of texts, like [a, b], got 'gpu'"),
        ("kind: pbs\n", ":1: kind: must be slurm or lsf, got 'pbs'"),
        ("kind: slurm\nkind: lsf\n", ":2: kind is set already in line 1"),
        ("first_job_id: 0\n", ":1: first_job_id: must be a whole number from 1 to 2000000000, got 0"),
        ("first_job_id: true\n", ":1: first_job_id: must be a whole number"),
        ("margin_s: .nan\n", ":1: margin_s: must be a number up to 1000000000, got nan"),
        ("- a\n", ":1: expected lines of the form `key: value`"),
        ("[a]: 1\n", ":1: 'a list' is not a key of a site: conf/sites/example.yaml lists them"),
        ("useful: x\nmargin_s: x\nstartup_s: x\nnodes_max: x\nqueues: x\nkind: x\n", ":1: useful: must be"),
        ("a: [\n", "not YAML"),
        ("walltime_min_s: 100\nwalltime_max_s: 60\n", "walltimes must be from above 0"),
    ],
)
def test_wrong_files_are_told_by_line_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(SiteError) as error:
        read_site(path)
    assert told in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_site_that_there_is_not() -> None:
    with pytest.raises(SiteError, match=r"no site 'sumit'; there are example, summit.*doctor --site"):
        load_site("sumit", 1)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "here.yaml")
    with pytest.raises(SiteError, match=r"here\.yaml is not a file: .*name another"):
        read_site(tmp_path / "here.yaml")
