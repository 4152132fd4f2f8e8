"""Two users on one machine, each with a daemon of a real uid of their own; root and a group look at them."""

import grp
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdl.config.layers import ConfigError
from hpcdl.daemon.api.viewers import group_id
from hpcdl.wire.access import read_access, write_access
from tests.cli.fake import FakeDaemon
from tests.security.stranger import OTHER_UID, UID, as_uid, attempt, python_for_others
from tests.security.test_looking import Hostile
from tests.support.waiting import until

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def _python(as_root: None) -> tuple[str, dict[str, str]]:
    found = python_for_others()
    if found is None:
        pytest.skip("no Python that another uid can run has hpcdl's requirements")
    return found


@pytest.fixture
def user(_python: tuple[str, dict[str, str]], reachable: Path) -> Iterator[Call]:
    """Runs a command as a uid with a home folder of its own; daemons are stopped after the test."""
    python, path = _python
    shared = reachable / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    started = set[int]()

    def run(uid: int, *argv: str, groups: tuple[int, ...] = (), **environment: str) -> Any:
        home = reachable / str(uid)
        home.mkdir(exist_ok=True)
        os.chown(home, uid, uid)
        plain = {"PATH": "/usr/bin:/bin", "HOME": str(home), "HPCDL_VIEWERS_FOLDER": str(shared), **path}
        done = subprocess.run(
            [python, "-m", "hpcdl", *argv],
            user=uid,
            group=uid,
            extra_groups=groups,
            env=plain | environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{argv}: {done.returncode} {done.stdout} {done.stderr}"
        if argv[:2] == ("daemon", "start"):
            started.add(uid)
        return json.loads(done.stdout) if "--json" in argv else done.stderr + done.stdout

    yield run
    for uid in started:
        run(uid, "daemon", "stop", "--now")
    assert list(shared.iterdir()) == [], "nothing is left for viewers"


def test_root_and_a_group_look_at_anothers_daemon(user: Call, reachable: Path) -> None:
    group = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, UID, OTHER_UID))
    user(UID, "daemon", "start", "--emulate-gpus", "2", groups=(group.gr_gid,), HPCDL_VIEWERS_GROUP=group.gr_name)
    user(UID, "submit", "--gpus", "1", "--env", "PASSPHRASE=correct-horse", "--", "sleep", "3600")
    told = user(0, "ls", "--all-users", "--json")
    (daemon,) = told["daemons"]
    assert (told["problems"], daemon["uid"], daemon["gpus"]) == ([], UID, 2)
    assert (daemon["home"], sum(daemon["states"].values())) == (f"{reachable}/{UID}/.hpcdl", 1)
    for secret in ("correct-horse", "PASSPHRASE", "3600"):
        assert secret not in json.dumps(daemon["jobs"])
    by_home = user(0, "ls", "--all-users", "--json", "--homes", str(reachable))
    assert [row["uid"] for row in by_home["daemons"]] == [UID]
    assert user(OTHER_UID, "ls", "--all-users", "--json") == {"schema": 1, "daemons": [], "problems": []}
    of_group = user(OTHER_UID, "ls", "--all-users", "--json", groups=(group.gr_gid,))
    assert [row["uid"] for row in of_group["daemons"]] == [UID]
    checks = {check["name"]: check["state"] for check in user(UID, "doctor", "--security", "--json")["checks"]}
    assert {name for name, state in checks.items() if state == "FAIL"} == set()
    victim = reachable / str(UID) / ".hpcdl" / "access.json"
    assert as_uid(OTHER_UID, lambda: attempt(victim.read_bytes)) == "PermissionError"


def test_a_group_that_cannot_be_is_refused_at_the_start(as_root: None) -> None:
    assert group_id(None, "default") is None
    with pytest.raises(ConfigError, match="flag: viewers_group: there is no group 'no-such-group'"):
        group_id("no-such-group", "flag")

    def of_root() -> str:
        try:
            return str(group_id("root", "flag"))
        except ConfigError as error:
            return str(error)

    assert "you are not in the group 'root'" in as_uid(UID, of_root)
    assert as_uid(UID, of_root, groups=(0,)) == "0"


def test_an_agent_that_is_led_to_an_impostor_says_nothing(fake: FakeDaemon, tmp_path: Path) -> None:
    """Its access file is right but for the port, where another listens: it has no key, and is not obeyed."""
    access = read_access(fake.home)
    impostor = Hostile(lambda peer: None, None)
    home = tmp_path / "home"
    log = home / "run" / "n7" / "agent.log"
    write_access(home, replace(access, port=impostor.port))
    agent = subprocess.Popen(
        [sys.executable, "-m", "hpcdl.agent", "--home", str(home), "--node", "n7", "--emulate-gpus", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        until(lambda: impostor.heard, "the agent's words")
        until(lambda: log.exists() and "no daemon: ConnectionResetError" in log.read_text(), "its log")
        assert access.token.encode() not in impostor.heard
        assert agent.poll() is None
    finally:
        agent.terminate()
        said, _ = agent.communicate(timeout=60)
        impostor.close()
    assert b"Traceback" not in said
    assert access.token not in log.read_text()
