"""When a file was made."""

import os
import time
from pathlib import Path

import pytest

from hpcdl.daemon import birth_time
from hpcdl.daemon.birth_time import birth_time_ns


def test_a_chmod_leaves_it_and_another_file_has_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    made = birth_time_ns(path)
    if made is None:
        pytest.skip("this file system does not tell")
    assert abs(made - path.stat().st_ctime_ns) < 10**9
    time.sleep(0.02)
    path.chmod(0o600)
    os.utime(path, (1, 1))
    assert birth_time_ns(path) == made
    (tmp_path / "other").touch()
    assert (birth_time_ns(tmp_path / "other") or 0) > made
    monkeypatch.setattr(birth_time, "_statx", None)
    assert birth_time_ns(path) is None


def test_what_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        birth_time_ns(tmp_path / "nothing")
