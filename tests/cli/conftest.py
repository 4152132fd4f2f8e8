import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli import main
from hpcdl.cli.submit import git
from tests.cli.fake import FakeDaemon, row
from tests.support.wrapping import Place


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON value on stdout."""
        value = json.loads(self.out)
        assert value["schema"] == 1
        return value


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def patience_with_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine is no big work tree: of two submits here both know what is checked out, or neither does."""
    for name in ("STATUS_S", "HEAD_S", "ALL_S"):
        monkeypatch.setattr(git, name, 60.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def fake(home: Path) -> Iterator[FakeDaemon]:
    home.mkdir(mode=0o700)
    daemon = FakeDaemon(home).start()
    yield daemon
    daemon.close()


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Place:
    return Place(tmp_path, home)


@pytest.fixture
def hpcdl(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, as the console script does, down to the file descriptors."""
    monkeypatch.setenv("HPCDL_HOME", str(home))
    monkeypatch.delenv("HPCDL_DEBUG", raising=False)

    def run(*argv: object) -> Outcome:
        code = main([str(part) for part in argv])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Outcome(code, out, err)

    return run


@pytest.fixture
def jobs(fake: FakeDaemon) -> FakeDaemon:
    fake.world.jobs = {
        1: row(1, name="resnet", state="RUNNING", gpus=4, gpus_max=6, placement={"n1": [0, 1], "n2": [0, 1]}, nodes=2,
               step=120, total=900, eta_s=200.0, reason="primary", can_suspend=True),
        2: row(2, name="vgg\x1b[31m\nx", gpus_max=None),
        3: row(3, state="DONE", exit_code=0),
    }  # fmt: skip
    return fake
