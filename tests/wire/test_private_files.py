import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.wire.private_files import (
    NotPrivate,
    atomic_write,
    make_private_folder,
    open_private,
    open_private_folder,
    read_private,
)


def test_make_private_folder_makes_missing_parents_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        make_private_folder(folder)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o7777 for path in (folder, folder.parent)] == [0o700, 0o700]
    make_private_folder(folder)  # again: no harm


def test_folder_open_to_others_is_refused_with_the_next_step(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    folder.chmod(0o750)
    with pytest.raises(NotPrivate, match=r"mode 0750.*run chmod 700 .*home"):
        make_private_folder(folder)


def test_folder_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NotPrivate, match="symbolic link"):
        make_private_folder(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(NotPrivate, match="not a folder: move it away"):
        make_private_folder(tmp_path / "file")


def test_a_foreign_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home"
    make_private_folder(folder)
    atomic_write(folder / "x", b"1")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotPrivate, match="belongs to uid"):
        open_private_folder(folder)
    with pytest.raises(NotPrivate, match="belongs to uid"):
        open_private(folder / "x")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "target").touch(0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("fifo", "folder", "link", "socket"):
            with pytest.raises(NotPrivate, match="move it away"):
                open_private(tmp_path / name)


def test_a_readable_file_is_refused_and_a_large_one_too(tmp_path: Path) -> None:
    path = tmp_path / "x"
    atomic_write(path, b"12345")
    assert read_private(path, 5) == b"12345"
    with pytest.raises(NotPrivate, match="larger than 4 bytes"):
        read_private(path, 4)
    path.chmod(0o640)
    with pytest.raises(NotPrivate, match=r"mode 0640.*run chmod 600"):
        read_private(path, 5)


def test_atomic_write_replaces_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "x"
    before = os.umask(0)
    try:
        atomic_write(path, b"old")
    finally:
        os.umask(before)
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_atomic_write_that_fails_keeps_the_old_content(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    atomic_write(path, b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_atomic_write_that_fails_names_the_file_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        atomic_write(path, b"new")
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["x"]


def test_the_client_side_imports_the_standard_library_only() -> None:
    code = (
        "import sys; import hpcdl.wire.access, hpcdl.wire.tls, hpcdl.wire.private_files\n"
        "names = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'hpcdl', '__main__'}\n"
        "print(sorted(name for name in names if not name.startswith(('_', 'sitecustomize'))))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"
