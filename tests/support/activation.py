"""The environment that the tests run in, activated as users do: Debian without one has no `python`."""

import os
import sys
from pathlib import Path

import pytest


def activate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `source .venv/bin/activate`."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))
