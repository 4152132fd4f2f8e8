import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.wire.viewer_file import ViewerFile
from tests.cli.fake import FakeDaemon
from tests.security.stranger import WHY_NOT
from tests.system.cluster import Cluster


@pytest.fixture(scope="session")
def as_root() -> None:
    """For tests that become another uid."""
    if os.geteuid() != 0:
        pytest.skip(WHY_NOT)


@pytest.fixture(scope="module")
def _open_base() -> Iterator[Path]:
    # pytest's own folders are closed to others, and would hide what ours allow.
    base = Path(tempfile.mkdtemp(prefix="hpcdl-security-"))
    base.chmod(0o755)
    yield base
    shutil.rmtree(base)


@pytest.fixture
def reachable(_open_base: Path) -> Path:
    """A folder whose way is open to every uid."""
    folder = Path(tempfile.mkdtemp(dir=_open_base))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def victim(_open_base: Path) -> Iterator[Cluster]:
    """A daemon, its agent and a job that runs; strangers can reach the folder round its home."""
    shared = _open_base / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    cluster = Cluster(_open_base / "victim", 2, viewers_folder=str(shared))
    cluster.start()
    cluster.hold()
    yield cluster
    cluster.release()
    cluster.stop()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's folder of viewer files, for this test alone."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("HPCDL_VIEWERS_FOLDER", str(folder))
    return folder


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    home = tmp_path / "fake"
    home.mkdir(mode=0o700)
    daemon = FakeDaemon(home).start()
    yield daemon
    daemon.close()


def viewer_of(fake: FakeDaemon, **changes: Any) -> ViewerFile:
    """The viewer file that the fake daemon would publish; its token opens everything there."""
    access = json.loads((fake.home / "access.json").read_text())
    values: dict[str, Any] = {
        "instance": access["instance"],
        "address": access["host"],
        "port": access["port"],
        "certificate": access["certificate"],
        "token": access["token"],
        "pid": os.getpid(),
        "uid": os.geteuid(),
        "home": str(fake.home),
        "node": os.uname().nodename,
    }
    return ViewerFile(**values | changes)
