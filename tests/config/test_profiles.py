"""Loading profiles from files, and whether the fitted ones give what the MARBLE paper prints."""

import json
import os
import sysconfig
from pathlib import Path

import pytest
import yaml

from benchmarks import fit_marble_profiles as fit
from hpcdl.config import layers as loader
from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles, read_profiles
from hpcdl.core.model.profile import ProfileError, find_profile
from hpcdl.sim.papers.table import paper_file

ONE = "profiles:\n  Net:\n    aliases: [net-v1]\n    points: [{gpus: 1, rate: 2}]\n"


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return folder


@pytest.mark.parametrize("number", fit.SETS)
def test_fit_gives_the_printed_totals(number: int) -> None:
    rows = {row["set"]: row for row in fit.compare(load_profiles([conf_folder() / "profiles"]))["sets"]}
    row = rows[number]
    assert row["lsf_s"] == pytest.approx(row["lsf_printed_s"], abs=0.05)
    assert row["marble_s"] == pytest.approx(row["marble_printed_s"], rel=0.001)
    assert row["reduction"] == pytest.approx(row["reduction_printed"], abs=0.001)
    assert row["suspends"] == {1: 0, 2: 1, 3: 1}[number]


def test_fit_has_the_printed_shape() -> None:
    with (conf_folder() / "jobsets" / "marble.yaml").open() as file:
        printed = yaml.safe_load(file)
    profiles = load_profiles([conf_folder() / "profiles"])
    models = {name: find_profile(profiles, name) for name in fit.START}
    best = {}
    for name, profile in models.items():
        assert profile is not None
        best[name] = profile.best_gpus(6)
        speedups = [profile.speedup(gpus) for gpus in range(1, 7)]
        assert max(speedups) <= printed["largest_speedup"]
        assert all(profile.efficiency(gpus) <= 1.0 for gpus in range(1, 7))
        gain = 1 - profile.rate(6) / profile.rate(best[name])
        largest = printed["largest_gain_over_all_gpus"]
        assert 0 < gain <= largest + 1e-4
        assert (abs(gain - largest) < 1e-4) == (name == "VGG-16")
        assert profile.resume_s >= profile.startup_s
        assert "Fit" in profile.source
        assert "not measured" in profile.source
    assert best == {**printed["fastest_gpus"], "ResNet-101": 3}


def test_refit_gives_the_shipped_curves() -> None:
    shipped = load_profiles([conf_folder() / "profiles"])
    for name, profile in fit.refit().items():
        assert profile.points == shipped[name].points
        assert (profile.startup_s, profile.save_s, profile.resume_s) == (
            shipped[name].startup_s,
            shipped[name].save_s,
            shipped[name].resume_s,
        )


def test_curves_from_set_1_are_those_that_predict_the_others() -> None:
    told = paper_file("marble")["from_set_1"]
    assert told == {
        name: {key: getattr(profile, key) for key in ("startup_s", "save_s", "resume_s")}
        | {"rates": [rate for _, _, rate in profile.points]}
        for name, profile in fit.from_set_1().items()
    }


def test_fit_command_prints_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main([]) == 0
    assert [row["set"] for row in json.loads(capsys.readouterr().out)["sets"]] == [1, 2, 3]
    for option in ("--refit", "--set-1"):
        assert fit.main([option]) == 0
        assert set(yaml.safe_load(capsys.readouterr().out)["profiles"]) == {name.casefold() for name in fit.START}


def test_every_model_of_the_job_sets_has_a_profile() -> None:
    profiles = load_profiles([conf_folder() / "profiles"])
    sets = fit.printed_sets()
    assert sorted(sets) == list(range(1, 10))
    for entry in sets.values():
        jobs = fit.job_set(profiles, entry["jobs"])
        assert jobs
        assert all(job.steps > 0 for job in jobs)


def test_names_and_aliases_in_any_case(tmp_path: Path) -> None:
    profiles = load_profiles([write(tmp_path, "a.yaml", ONE)])
    assert list(profiles) == ["net"]
    for name in ("Net", "NET", "net-V1", " net "):
        found = find_profile(profiles, name)
        assert found is not None
        assert found.name == "Net"
    assert find_profile(profiles, "other") is None


def test_later_folders_override_earlier_ones(tmp_path: Path) -> None:
    first = write(tmp_path / "1", "a.yaml", ONE + "  other:\n    points: [{gpus: 1, rate: 9}]\n    aliases: [x]\n")
    second = write(tmp_path / "2", "z.yml", "source: mine\n" + ONE.replace("rate: 2", "rate: 5").replace("net-v1", "x"))
    profiles = load_profiles([first, second, tmp_path / "absent"])
    assert profiles["net"].rate(1) == 5.0
    assert profiles["net"].source == "mine"
    assert profiles["other"].rate(1) == 9.0
    assert find_profile(profiles, "X") == profiles["net"]


def test_same_name_twice_in_a_folder_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", ONE)
    write(tmp_path, "b.yaml", ONE.replace("Net", "NET-V1").replace("[net-v1]", "[]"))
    with pytest.raises(ProfileError, match=r"b\.yaml: profile NET-V1: 'net-v1' is already used in .*a\.yaml"):
        load_profiles([tmp_path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.yaml: profiles: expected names and their profiles, got NoneType"),
        ("profiles: [1]", r"a\.yaml: profiles: expected names and their profiles, got list"),
        ("profiles: {50: {}}", r"a\.yaml: profiles: a name must be text, got 50"),
        ("profiles: {p: 3}", r"a\.yaml: profile p: the profile: expected keys and values, got 3"),
        ("profiles: {p: {points: [{gpus: 1, rate: -1}]}}", r"a\.yaml: profile p: points\[0\]: rate must be positive"),
        ("profiles: {p: {points: [{gpus: 1, rate: .nan}]}}", r"a\.yaml: profile p: points\[0\]: rate must be a finite"),
        ("a: [", r"a\.yaml(:1)?: not YAML: "),
        ("\x00", r"a\.yaml(:1)?: not YAML: "),
        ("profiles: !!python/object/apply:os.system [true]", r"a\.yaml(:1)?: not YAML: "),
        ("#" * (loader.MAX_FILE_BYTES + 1), r"a\.yaml: larger than 1048576 bytes"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        load_profiles([write(tmp_path, "a.yaml", text)])


def test_conf_folder_in_a_checkout_and_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "hpcdl").mkdir(parents=True)
    (checkout / "conf" / "profiles").mkdir(parents=True)
    data = tmp_path / "venv"
    monkeypatch.setattr(loader, "__file__", str(checkout / "hpcdl" / "config" / "layers.py"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme=None: str(data))
    # A folder that happens to be called conf beside an installed package is not ours.
    with pytest.raises(FileNotFoundError, match="is hpcdl installed"):
        conf_folder()
    (data / "share" / "hpcdl" / "conf" / "profiles").mkdir(parents=True)
    assert conf_folder() == data / "share" / "hpcdl" / "conf"
    (checkout / "setup.cfg").touch()
    assert conf_folder() == checkout / "conf"


def test_a_pipe_holds_profiles() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, ONE.encode())
    os.close(theirs)
    try:
        assert [each.name for each in read_profiles(Path(f"/dev/fd/{ours}"))] == ["Net"]
    finally:
        os.close(ours)
