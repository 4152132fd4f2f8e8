"""`hpcdl config show`: every setting, where it comes from, and what the running daemon uses."""

from pathlib import Path

import pytest

from hpcdl.config.settings import SETTINGS, Config
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return here


def test_without_a_daemon(hpcdl: Run, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("\npoison_limit: 7\n")
    (folder / "hpcdl.yaml").write_text("submit:\n  gpus: 1:4\n")
    (folder / "hpcdl.yaml").chmod(0o644)
    monkeypatch.setenv("HPCDL_POLICY", "marble")
    done = hpcdl("config", "show", "--origin", "--json")
    assert done.code == 0
    rows = {row["name"]: row for row in done.value["settings"]}
    assert list(rows) == list(SETTINGS)
    assert rows["poison_limit"] == {
        "name": "poison_limit", "value": 7, "unit": "failures", "default": 3,
        "origin": f"{home}/config.yaml:2", "running": None, "differs": False,
    }  # fmt: skip
    assert (rows["policy"]["value"], rows["policy"]["origin"]) == ("marble", "HPCDL_POLICY")
    assert {row["origin"] for row in rows.values()} == {"default", "HPCDL_POLICY", f"{home}/config.yaml:2"}
    assert rows["agent_lease_s"]["unit"] == "s"
    assert done.value["submit"] == [{"option": "gpus", "value": "1:4", "origin": f"{folder}/hpcdl.yaml:2"}]
    assert (done.value["daemon"], done.value["config"]) == (False, None)
    assert [each["layer"] for each in done.value["files"] if each["there"]] == ["project", "home"]
    table = hpcdl("config", "show", "--origin").out
    assert f"{home}/config.yaml:2" in table
    assert "--gpus" in table
    assert "FROM" not in hpcdl("config", "show").out
    assert hpcdl("config", "show", "--quiet").out.splitlines() == list(SETTINGS)


def test_it_fits_a_terminal_of_80_columns(hpcdl: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700)
    for module in ("config", "output"):
        monkeypatch.setattr(f"hpcdl.cli.{module}.stdout_takes", lambda: (80, False))
    plain = hpcdl("config", "show").out.splitlines()
    assert "log_limit_bytes              1073741824 bytes" in plain
    assert [line for line in plain if len(line) > 80] == [f"notify_on                    {Config().notify_on}"], "whole"
    monkeypatch.setenv("HPCDL_POISON_LIMIT_INFRASTRUCTURE", "40")
    origins = hpcdl("config", "show", "--origin").out.splitlines()
    assert "poison_limit_infrastructure  40 failures               HPCDL_POISON_LIMIT_INFRASTRUCTURE" in origins
    assert "notify_on                    end,failure,poison,pree…  default" in origins


def test_where_the_daemon_uses_another_value(fake: FakeDaemon, hpcdl: Run, home: Path) -> None:
    (home / "config.yaml").write_text("poison_limit: 7\n")
    started_with = Config().values()
    fake.world.settings = {name: {"value": value, "origin": "default"} for name, value in started_with.items()}
    rows = {row["name"]: row for row in hpcdl("config", "show", "--json").value["settings"]}
    assert {name for name, row in rows.items() if row["differs"]} == {"poison_limit", "policy", "objective"}
    assert (rows["poison_limit"]["value"], rows["poison_limit"]["running"]) == (7, 3)
    assert rows["policy"]["running"] == "marble"
    assert "THE DAEMON'S" in hpcdl("config", "show").out


def test_a_wrong_file_is_told(hpcdl: Run, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("poisonlimit: 7\n")
    done = hpcdl("config", "show")
    assert (done.code, done.out) == (1, "")
    assert f"{home}/config.yaml:1: 'poisonlimit' is not a setting: did you mean poison_limit?" in done.err
