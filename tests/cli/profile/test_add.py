"""`hpcdl profile add` and `plot`: what is put where, what is refused, and what is drawn."""

from pathlib import Path

import pytest

from hpcdl.config.profiles import read_profiles
from hpcdl.core.model.profile import Profile
from hpcdl.report.scaling import scaling_of
from tests.cli.conftest import Run

MINE = ("profile", "add", "--name", "Mine", "--rate", "1=10", "--rate", "2=18.5")


def test_a_profile_by_its_rates(hpcdl: Run, home: Path) -> None:
    more = ("--rate", "2x4=60", "--startup", "5", "--save", "1.5", "--alias", "my", "--source", "by hand", "--json")
    value = hpcdl(*MINE, *more).value
    file = home / "profiles" / "mine.yaml"
    assert value == {"schema": 1, "added": ["Mine"], "files": [str(file)], "daemon": False}
    (profile,) = read_profiles(file)
    assert profile.points == ((1, 1, 10.0), (1, 2, 18.5), (2, 4, 60.0))
    assert (profile.startup_s, profile.save_s, profile.resume_s) == (5.0, 1.5, 5.0)
    assert (profile.aliases, profile.source) == (("my",), "by hand")
    assert file.stat().st_mode & 0o777 == 0o600


def test_one_of_that_name_is_replaced_only_when_asked(hpcdl: Run, home: Path) -> None:
    assert hpcdl(*MINE).code == 0
    file = home / "profiles" / "mine.yaml"
    before = file.read_text()
    for name in ("mine", "ResNet-50"):
        done = hpcdl("profile", "add", "-n", name, "--rate", "1=11")
        assert done.code == 1
        assert f"there is a profile {name.lower()!r} already: --replace puts this one in its place" in done.err
    assert file.read_text() == before
    assert hpcdl("profile", "add", "-n", "MINE", "--rate", "1=11", "--replace").code == 0
    assert [each.rate(1) for each in read_profiles(file)] == [11.0]
    assert hpcdl("profile", "add", "-n", "resnet-50", "--rate", "1=3", "--replace").code == 0
    done = hpcdl("profile", "add", "-n", "other", "--alias", "mine", "--rate", "1=11", "--replace")
    assert done.code == 1
    assert "mine.yaml has 'mine', beside others: change it there" in done.err


def test_a_file_of_profiles(hpcdl: Run, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "source: measured\nprofiles:\n  a: {points: [{gpus: 1, rate: 2}]}\n  b b: {points: [{gpus: 1, rate: 3}]}\n"
    )
    assert hpcdl("profile", "add", file, "--quiet").out == "a\nb b\n"
    assert sorted(path.name for path in (home / "profiles").iterdir()) == ["a.yaml", "b-b.yaml"]
    assert [each.source for each in read_profiles(home / "profiles" / "a.yaml")] == ["measured"]
    (home / "profiles" / "many.yaml").write_text(
        "profiles:\n  c: {points: [{gpus: 1, rate: 2}]}\n  d: {points: [{gpus: 1, rate: 2}]}\n"
    )
    done = hpcdl("profile", "add", "-n", "c", "--rate", "1=1", "--replace")
    assert "many.yaml has 'c', beside others: change it there" in done.err


@pytest.mark.parametrize(
    "argv, code, told",
    [
        ([], 2, "give a FILE, or --name and at least one --rate"),
        (["--name", "x"], 2, "give a FILE, or --name and at least one --rate"),
        (["--name", "x", "--rate", "2:3"], 2, "'2:3': write GPUS=RATE, like 2=18.5"),
        (["--name", "x", "--rate", "2=fast"], 2, "'2=fast': write GPUS=RATE"),
        (["--name", "x", "--rate", "2=-1"], 2, "'2=-1': RATE must be steps/s, a number above 0"),
        (["--name", "x\n", "--rate", "1=1"], 2, "a profile's name must be printable"),
        (["--name", "x", "--rate", "1=nan"], 2, "1=nan"),
        (["nothing.yaml"], 1, "there is no file nothing.yaml"),
    ],
)
def test_wrong_input(hpcdl: Run, home: Path, argv: list[str], code: int, told: str) -> None:
    done = hpcdl("profile", "add", *argv)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert not home.exists()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00profiles", b"profiles: [\n", b"profiles:\n  \xc3\x28: 1\n", b"", b"a: 1\n"]
)
def test_rubbish_in_a_file(hpcdl: Run, home: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "rubbish.yaml"
    file.write_bytes(content)
    done = hpcdl("profile", "add", file)
    assert (done.code, done.out) == (1, "")
    assert str(file) in done.err
    assert done.err.count("\n") == 1
    assert not (home / "profiles").exists()


def test_plot(hpcdl: Run, home: Path, tmp_path: Path) -> None:
    hpcdl(*MINE, "--rate", "4=30")
    out = hpcdl("profile", "plot", "mine", "resnet50").out
    assert "Mine" in out
    assert "resnet-50" in out
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[2:6]] == [
        ["1", "10", "100"],
        ["2", "18.5", "92"],
        ["3", "24.25", "81"],
        ["4", "30", "75"],
    ]
    assert [("#" in line, "=" in line) for line in lines[2:6]] == [
        (True, False),
        (True, False),
        (False, True),
        (True, False),
    ]
    page = tmp_path / "curves.html"
    value = hpcdl("profile", "plot", "mine", "-o", page, "--json").value
    assert value["file"] == str(page)
    assert value["profiles"][0]["points"][2] == {
        "nodes": 1, "gpus": 3, "rate": 24.25, "low": 24.25, "high": 24.25,
        "efficiency": pytest.approx(24.25 / 30), "measured": False,
    }  # fmt: skip
    html = page.read_text()
    assert html.count("<polyline") == 2
    assert html.count("<circle") == 6
    done = hpcdl("profile", "plot", "resnet51")
    assert (done.code, done.err) == (1, "hpcdl: there is no profile 'resnet51' in a file: did you mean 'resnet-50'?\n")


def test_bands_are_of_what_was_not_seen() -> None:
    profile = Profile("learnt", ((1, 1, 10.0), (1, 2, 20.0), (1, 4, 30.0)), spread=0.1)
    (curve,) = scaling_of(profile, {(1, 2)})
    assert [(at.gpus, at.low, at.high, at.measured) for at in curve.points] == [
        (1, 9.0, 11.0, False), (2, 20.0, 20.0, True), (3, 22.5, 27.500000000000004, False), (4, 27.0, 33.0, False),
    ]  # fmt: skip
    two = Profile("kinds", ((1, 1, 1.0),), kinds=(("v100", ((1, 1, 2.0),)),))
    assert [each.name for each in scaling_of(two)] == ["kinds", "kinds on v100"]


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        (("0=1",), "'0=1': GPUS must be from 1 to 1024"),
        (("0x2=1",), "'0x2=1': NODES must be from 1 to 100000"),
        (("2=0",), "'2=0': RATE must be steps/s, a number above 0"),
        (("2=1e999",), "'2=1e999': RATE must be steps/s, a number above 0"),
        (("2=5", "1x2=6"), "'1x2=6': '2=5' is of as many GPUs: give one of them"),
    ],
)
def test_a_rate_that_makes_no_sense_is_told_as_it_was_typed(hpcdl: Run, rates: tuple[str, ...], why: str) -> None:
    done = hpcdl("profile", "add", "-n", "a", *(part for rate in rates for part in ("--rate", rate)))
    assert (done.code, done.out) == (2, "")
    assert done.err == f"hpcdl: Invalid value for '--rate': {why} (see hpcdl profile add --help)\n"
