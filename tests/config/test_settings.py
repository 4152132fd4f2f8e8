import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdl.config.layers import ConfigError
from hpcdl.config.settings import SETTINGS, SITE_FILE, Config, load_config
from hpcdl.core.rules.endings import Rules
from hpcdl.core.rules.intake import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTED = ROOT / "conf" / "hpcdl.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def load(home: Path, text: str = "", overrides: dict[str, Any] | None = None, site: str = "", **environ: str) -> Config:
    (home / "config.yaml").write_text(text)
    (home / "site.yaml").write_text(site)
    return load_config(home, overrides, environ=environ, site=home / "site.yaml")


def test_the_file_documents_every_setting_and_nothing_else() -> None:
    text = DOCUMENTED.read_text()
    documented = yaml.safe_load(text)
    defaults = Config().values()
    assert documented == defaults
    assert list(documented) == list(dict.fromkeys(documented))
    lines = text.splitlines()
    for setting in defaults:
        (number,) = (n for n, line in enumerate(lines) if line.startswith(f"{setting}:"))
        comment = []
        while lines[number - 1].startswith("#"):
            number -= 1
            comment.append(lines[number])
        assert comment, f"{setting} has no words"
        limits = SETTINGS[setting]
        if math.isfinite(limits.low):
            said = " ".join(comment)
            assert f"{limits.low:g}".removesuffix(".0") in said, f"{setting}: its lowest value is not said"
            assert f"{limits.high:.0f}" in said, f"{setting}: its highest value is not said"
    assert str(SITE_FILE) in text


def test_the_documented_file_is_a_settings_file(home: Path) -> None:
    config = load(home, DOCUMENTED.read_text())
    assert config == Config()
    assert config.origin("policy").startswith(f"{home / 'config.yaml'}:")


def test_every_field_is_a_setting() -> None:
    assert [each.name for each in dataclasses.fields(Config)] == [*SETTINGS, "origins"]


def test_layers_and_their_origins(home: Path) -> None:
    site = "policy: a\nobjective: a\nlisten_host: a\npoison_limit: 9\n"
    own = "# mine\npolicy: b\n\nobjective: b\nlisten_host: b\n"
    config = load(home, own, {"policy": "d", "snapshot_every": None}, site, HPCDL_OBJECTIVE="c", HPCDL_POLICY="c")
    assert (config.policy, config.objective, config.listen_host, config.poison_limit) == ("d", "c", "b", 9)
    assert config.origin("policy") == "flag"
    assert config.origin("objective") == "HPCDL_OBJECTIVE"
    assert config.origin("listen_host") == f"{home}/config.yaml:5"
    assert config.origin("poison_limit") == f"{home}/site.yaml:4"
    assert config.origin("snapshot_every") == "default"


def test_without_any_file(tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing" / "here"
    assert load_config(nowhere, environ={}, site=nowhere / "site.yaml") == Config()
    assert load_config(tmp_path, environ={}, site=tmp_path / "none").values() == Config().values()


def test_an_empty_file_sets_nothing(home: Path) -> None:
    assert load(home, "# only words\n") == Config()


def test_text_becomes_the_type_of_the_setting(home: Path) -> None:
    config = load(home, "monitor_interval_s: 2\n", {"listen_port": "8443"}, HPCDL_DEBOUNCE_S="1e-1", HPCDL_NODE_NAME="")
    assert (config.monitor_interval_s, config.listen_port, config.debounce_s) == (2.0, 8443, 0.1)
    assert type(config.monitor_interval_s) is float
    assert config.node_name is None


def test_seconds_may_have_units(home: Path) -> None:
    config = load(home, "monitor_interval_s: 1m30s\nagent_lease_s: 2h\n", {"stall_s": "10min"}, HPCDL_DEBOUNCE_S="0.5s")
    assert (config.monitor_interval_s, config.agent_lease_s, config.stall_s, config.debounce_s) == (90, 7200, 600, 0.5)
    for text in ("5x", "m", "10 minutes"):
        with pytest.raises(ConfigError, match="stall_s: must be a number of seconds from 0 to 2592000, got"):
            load(home, f"stall_s: {text}\n")
    with pytest.raises(ConfigError, match="snapshot_every: must be a whole number"):
        load(home, "snapshot_every: 5m\n")


def test_what_stands_for_null(home: Path) -> None:
    config = load(home, "monitor_interval_s: 3")
    assert (config.heartbeat, config.heartbeat_s) == (3.0, None)
    assert config.node
    assert "." not in config.node
    config = load(home, "heartbeat_s: 0.5\nnode_name: n3.cluster")
    assert (config.heartbeat, config.node) == (0.5, "n3.cluster")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "policy: marble\nmonitor_intervall_s: 3",
            ":2: 'monitor_intervall_s' is not a setting: did you mean monitor_i",
        ),
        ("zzz: 1", ":1: 'zzz' is not a setting: conf/hpcdl.yaml lists them"),
        ("\n\nmonitor_interval_s: 0.5", ":3: monitor_interval_s: must be a number of seconds from 1 to 3600, got 0.5"),
        ("monitor_interval_s: 3601", ":1: monitor_interval_s: must be"),
        ("monitor_interval_s: .nan", ":1: monitor_interval_s: must be"),
        ("monitor_interval_s: .inf", ":1: monitor_interval_s: must be"),
        ("monitor_interval_s: true", ":1: monitor_interval_s: must be .* got True"),
        ("monitor_interval_s: null", ":1: monitor_interval_s: must be .* got None"),
        ("monitor_interval_s: '10'", ":1: monitor_interval_s: must be .* got '10'"),
        ("monitor_interval_s: [1]", ":1: monitor_interval_s: must be .* not a list or a mapping"),
        ("poison_limit: 2.0", ":1: poison_limit: must be a whole number of failures from 1 to 1000, got 2.0"),
        ("policy: 7", ":1: policy: must be a policy's name, got 7"),
        ("policy: 'a b'", ":1: policy: must be a policy's name, got 'a b'"),
        ("listen_host: ''", ":1: listen_host: must be a host name or address"),
        ("listen_port: 65536", ":1: listen_port: must be a whole number from 0 to 65535, got 65536"),
        ("policy: a\npolicy: b", ":2: policy is set already in line 1"),
        ("- policy", ":1: expected lines of the form"),
        ("policy: [", "not YAML"),
        ("policy: 2020-99-99", ":1: policy: must be|month must be"),
        ("policy: !!python/object/apply:os.system [ls]", ":1: policy: must be"),
        ("policy: !!python/name:os.system ''", "not YAML: could not determine a constructor"),
        ("retry_pause_s: 100", "retry_pause_s \\(100, .*:1\\) must not be above retry_pause_max_s \\(30, default\\)"),
        ("heartbeat_s: 600\nagent_lease_s: 500", "heartbeat_s .* must not be above agent_lease_s"),
        ("\x00", "not YAML"),
        ("policy: a\n" + "#" * (1 << 20), "larger than"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(home: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        load(home, text)
    assert str(home / "config.yaml") in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "environ", "said"),
    [
        ({"listen_port": "http"}, {}, "flag: listen_port: must be a whole number from 0 to 65535, got 'http'"),
        ({"listen_port": 70000}, {}, "flag: listen_port: must be"),
        ({"port": "1"}, {}, "flag: 'port' is not a setting"),
        ({}, {"HPCDL_LISTEN_PORT": "-1"}, "HPCDL_LISTEN_PORT: listen_port: must be"),
        ({}, {"HPCDL_STOPPED_S": ""}, "HPCDL_STOPPED_S: stopped_s: must be"),
        ({}, {"HPCDL_STOPPED_S": "inf"}, "HPCDL_STOPPED_S: stopped_s: must be"),
    ],
)
def test_wrong_flags_and_variables(home: Path, overrides: dict, environ: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(home, "", overrides, **environ)


def test_variables_that_trainers_get_are_no_settings() -> None:
    told = {"HOME", "JOB", "NODE", "NODES", "GPUS", "STEPS", "SIGNAL", "SOCKET", "GRACE_S", "RANK", "INCARNATION"}
    assert not told & {setting.upper() for setting in SETTINGS}


def test_the_defaults_are_those_of_the_core() -> None:
    config, settings, rules = Config(), Settings(), Rules()
    assert (config.agent_lease_s, config.lease_margin_s) == (settings.agent_lease_s, settings.lease_margin_s)
    assert config.max_jobs_a_submit == settings.max_jobs_a_submit
    assert (config.poison_limit, config.retry_pause_s) == (rules.poison_limit, rules.pause_s)
    assert config.poison_limit_infrastructure == rules.poison_limit_infrastructure
    assert config.retry_pause_max_s == rules.pause_max_s


def test_yaml_is_not_imported_where_there_is_no_file(tmp_path: Path) -> None:
    code = "import sys, pathlib; from hpcdl.config.settings import load_config; home = pathlib.Path(sys.argv[1])"
    code += "; load_config(home, site=home / 'none')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('yaml' in sys.modules)", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.stdout == "False\n", done
