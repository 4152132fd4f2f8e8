"""Where settings come from: project, user, site, and the defaults of submit's options."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.site import read_site
from hpcdl.cli.submit.command import _nothing_is_set, submit
from hpcdl.config.layers import ConfigError, project_path
from hpcdl.config.settings import SUBMIT_OPTIONS, load_config, load_submit, mistyped

NOBODY = Path("/nonexistent/site.yaml")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "user" / "project" / "deep"
    folder.mkdir(parents=True)
    return folder


def env(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path / "user"), **more}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_each_layer_wins_over_the_ones_below(home: Path, tmp_path: Path) -> None:
    site = write(home / "sites" / "ours.yaml", "kind: slurm\nsettings:\n  policy: a\n  samples: 1\n  pilots: 1\n")
    machine = write(tmp_path / "etc.yaml", "site: ours\npolicy: b\nsamples: 2\nkeep_events: 2\n")
    user = write(tmp_path / "user/.config/hpcdl/config.yaml", "policy: c\nsamples: 3\nobjective: c\n")
    write(home / "config.yaml", "policy: d\n")
    config = load_config(home, {}, environ=env(tmp_path), site=machine)
    assert (config.policy, config.objective, config.samples, config.keep_events, config.pilots) == ("d", "c", 3, 2, 1)
    assert config.origin("policy") == f"{home}/config.yaml:1"
    assert config.origin("samples") == f"{user}:2"
    assert config.origin("keep_events") == f"{machine}:4"
    assert config.origin("pilots") == f"{site}:5"
    told = load_config(home, {"policy": "f"}, environ=env(tmp_path, HPCDL_POLICY="e", HPCDL_SAMPLES="9"), site=machine)
    assert (told.policy, told.origin("policy"), told.origin("samples")) == ("f", "flag", "HPCDL_SAMPLES")


def test_the_site_is_the_one_that_the_strongest_layer_names(home: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(home / "sites" / f"{name}.yaml", f"settings: {{policy: {name}}}\n")
    write(home / "config.yaml", "site: one\n")
    assert load_config(home, environ={}, site=NOBODY).policy == "one"
    assert load_config(home, environ={"HPCDL_SITE": "two"}, site=NOBODY).policy == "two"
    assert load_config(home, {"site": "two"}, environ={}, site=NOBODY).policy == "two"
    assert load_config(home, environ={"HPCDL_SITE": ""}, site=NOBODY).policy == "adaptive"
    assert read_site(home / "sites" / "one.yaml").kind == ""
    write(home / "sites" / "one.yaml", "kind: slurm\nsettings:\n  site: two\n")
    with pytest.raises(ConfigError, match=r"one.yaml:3: 'site' is not a setting"):
        load_config(home, environ={}, site=NOBODY)


def test_xdg_config_home_moves_the_users_file(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "xdg/hpcdl/config.yaml", "policy: x\n")
    assert load_config(home, environ=env(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "xdg")), site=NOBODY).policy == "x"
    assert load_config(home, environ=env(tmp_path, XDG_CONFIG_HOME="xdg"), site=NOBODY).policy == "adaptive"


def test_a_users_file_that_others_may_write_is_refused(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "user/.config/hpcdl/config.yaml", "policy: x\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match=rf"{path} may be written by others \(mode 0666\).*chmod go-w"):
        load_config(home, environ=env(tmp_path), site=NOBODY)


def test_the_nearest_project_file_is_taken_up_to_the_home_folder(project: Path, tmp_path: Path) -> None:
    environ = env(tmp_path)
    write(tmp_path / "hpcdl.yaml", "submit: {gpus: 9}\n")  # above the home folder
    assert project_path(project, environ) is None
    in_home = write(tmp_path / "user" / "hpcdl.yaml", "")
    assert project_path(project, environ) == in_home
    near = write(project.parent / "hpcdl.yaml", "")
    assert project_path(project, environ) == near
    assert project_path(project, environ | {"HPCDL_PROJECT": "none"}) is None
    assert project_path(project, environ | {"HPCDL_PROJECT": "other.yaml"}) == project / "other.yaml"


def test_submits_defaults(home: Path, project: Path, tmp_path: Path) -> None:
    own = write(home / "config.yaml", "policy: marble\nsubmit:\n  retries: 1\n  grace: 5s\n  gpus: '2'\n")
    text = "# ours\nsubmit:\n  gpus: 1:30\n  checkpoint_dir: out/ckpt\n  env: [A=1, B]\n  nodes: 2\n"
    file = write(project.parent / "hpcdl.yaml", text)
    found = load_submit(home, project, environ=env(tmp_path, HPCDL_SUBMIT_RETRIES="4"), site=NOBODY)
    assert found == {
        "retries": (4, "HPCDL_SUBMIT_RETRIES"),
        "grace": (5.0, f"{own}:4"),
        "gpus": ("1:30", f"{file}:3"),  # to YAML, 1:30 is 90
        "checkpoint_dir": (str(project.parent / "out" / "ckpt"), f"{file}:4"),
        "env": (("A=1", "B"), f"{file}:5"),
        "nodes": ("2", f"{file}:6"),
    }


@pytest.mark.parametrize(
    "text, said",
    [
        ("policy: marble\n", ":1: policy is a setting of the daemon, .*put it into .HPCDL_HOME/config.yaml"),
        ("submit:\n  grase: 3\n", ":2: 'grase' is not an option of submit .*did you mean grace"),
        ("submitt:\n  grace: 3\n", ":1: 'submitt' is not a setting: did you mean submit"),
        ("submit:\n  grace: -1\n", ":2: submit: grace: must be a number of seconds from 0.1 to 86400, got -1"),
        ("submit:\n  retries: many\n", ":2: submit: retries: must be a whole number from 0 to 1000000, got 'many'"),
        ("submit:\n  grace: 1\n  grace: 2\n", ":3: grace is set already in line 2"),
        ("submit:\n  gpus: [1, 2]\n", ":2: gpus: must be N, MIN:MAX, MIN: or N,N, not a list"),
        ("submit:\n  env: {A: 1}\n", ":2: env: must be K=V or K, several in a list, in a flat list"),
        ("submit: 3\n", ":1: expected lines of the form"),
        ("submit:\n  [a]: 3\n", ":2: 'a list' is not a setting"),
        ("submit: {name: \xff\x00}\n", "not YAML"),
        ("\ufffd: [\n", "not YAML"),
    ],
)
def test_wrong_project_files(home: Path, project: Path, tmp_path: Path, text: str, said: str) -> None:
    file = project / "hpcdl.yaml"
    file.write_bytes(text.encode("latin-1", "replace"))
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=said) as raised:
        load_submit(home, project, environ=env(tmp_path), site=NOBODY)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


def test_a_project_file_that_others_may_write_is_refused(home: Path, project: Path, tmp_path: Path) -> None:
    file = write(project / "hpcdl.yaml", "submit: {gpus: 2}\n")
    file.chmod(0o664)
    with pytest.raises(ConfigError, match=rf"{file} may be written by others \(mode 0664\)"):
        load_submit(home, project, environ=env(tmp_path), site=NOBODY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_project_file_of_another_user_is_refused(home: Path, project: Path, tmp_path: Path) -> None:
    file = write(project / "hpcdl.yaml", "submit: {gpus: 2}\n")
    os.chown(file, 65534, 65534)
    with pytest.raises(ConfigError, match=rf"{file} belongs to uid 65534, .*HPCDL_PROJECT=none"):
        load_submit(home, project, environ=env(tmp_path), site=NOBODY)
    file.unlink()
    write(project / "mine.yaml", "submit: {gpus: 2}\n")
    file.symlink_to(project / "mine.yaml")
    os.lchown(file, 65534, 65534)
    with pytest.raises(ConfigError, match=r"belongs to uid 65534"):
        load_submit(home, project, environ=env(tmp_path), site=NOBODY)


def test_variables_with_typing_errors(home: Path, project: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'HPCDL_SUBMIT_GPU' is not an option .*did you mean HPCDL_SUBMIT_GPUS"):
        load_submit(home, project, environ=env(tmp_path, HPCDL_SUBMIT_GPU="2"), site=NOBODY)
    given = {"HPCDL_POLICI": "marble", "HPCDL_HOME": "/h", "HPCDL_JOB": "1", "HPCDL_POLICY": "marble", "PATH": "/"}
    assert mistyped(given) == [("HPCDL_POLICI", "HPCDL_POLICY")]
    trainers = (
        "HOME",
        "JOB",
        "NODE",
        "NODES",
        "GPUS",
        "GPU_COUNT",
        "STEPS",
        "SIGNAL",
        "SOCKET",
        "GRACE_S",
        "RANK",
        "DEBUG",
    )
    assert mistyped({f"HPCDL_{name}": "" for name in trainers}) == []


def test_every_default_is_of_an_option_that_there_is() -> None:
    options: dict[str, Any] = {param.name: param for param in submit.params if param.name}
    assert set(SUBMIT_OPTIONS) <= set(options)
    assert {name for name, limits in SUBMIT_OPTIONS.items() if limits.many} == {
        name for name in SUBMIT_OPTIONS if options[name].multiple
    }


def test_every_such_option_is_documented() -> None:
    told = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    listed = next(line for line in told.split("\n\n") if line.startswith("They are `gpus`"))
    assert set(re.findall(r"`(\w+)`", listed.partition(", written as")[0])) == set(SUBMIT_OPTIONS)


def test_what_is_looked_at_before_settings_are_read(
    home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("HPCDL_", "XDG_CONFIG_HOME"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert _nothing_is_set(home, project)
    for file in (home / "config.yaml", tmp_path / "user/.config/hpcdl/config.yaml", project.parent / "hpcdl.yaml"):
        write(file, "submit: {gpus: 2}\n")
        assert not _nothing_is_set(home, project)
        assert load_submit(home, project, site=NOBODY)["gpus"] == ("2", f"{file}:1")
        file.unlink()
    monkeypatch.setenv("HPCDL_SUBMIT_GPUS", "2")
    assert not _nothing_is_set(home, project)


def test_one_value_where_there_may_be_many(home: Path, project: Path, tmp_path: Path) -> None:
    write(project / "hpcdl.yaml", "submit:\n  notify: mailto:ada@example.org\n  stall: 90\n")
    found = load_submit(home, project, environ=env(tmp_path), site=NOBODY)
    assert (found["notify"][0], found["stall"][0]) == (("mailto:ada@example.org",), "90")


def test_a_whole_submit_takes_them(home: Path, project: Path, tmp_path: Path) -> None:
    write(project / "hpcdl.yaml", "submit:\n  gpus: 1:3\n  retries: 2\n  env: [MINE=1]\n")

    def run(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpcdl", "--home", str(home), "submit", *argv, "--json", "--", "true"]
        environ = {**os.environ, **env(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), **more}
        home.chmod(0o700)
        return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=120)

    done = run("--retries", "5", "--request-id", "one", HPCDL_SUBMIT_GRACE="7")
    assert done.returncode == 0, done.stderr
    (kept,) = (home / "spool").glob("*.json")
    assert '"gpus_min": 1, "gpus_max": 3' in (text := kept.read_text())
    assert '"retries": 5' in text
    assert '"grace_s": 7.0' in text
    assert '["MINE", "1"]' in text
    write(project / "hpcdl.yaml", "submit:\n  gpus: 3:1\n")
    done = run()
    assert done.returncode == 1
    assert f"{project}/hpcdl.yaml:2: submit: gpus: '3:1': the maximum 1 is below the minimum 3" in done.stderr
    write(project / "hpcdl.yaml", "submit:\n  nodes: 4:1\n")
    assert "4:1" not in run("--nodes", "1").stderr
