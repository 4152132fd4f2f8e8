import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpcdl.wire.access import AccessError, AccessFile, read_access, write_access

TOKEN = "s3cret-" * 6
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def access() -> AccessFile:
    return AccessFile("d-1a2b", "127.0.0.1", 40123, PEM, TOKEN, pid=4711, fence=3)


@pytest.fixture
def home(tmp_path: Path, access: AccessFile) -> Path:
    home = tmp_path / "home"
    write_access(home, access)
    return home


def test_what_was_written_is_read(home: Path, access: AccessFile) -> None:
    assert read_access(home) == access
    assert (home / "access.json").stat().st_mode & 0o7777 == 0o600
    write_access(home, replace(access, port=40124))
    assert read_access(home).port == 40124
    assert os.listdir(home) == ["access.json"]


def test_a_copied_folder_does_not_lead_to_the_daemon_of_the_original(home: Path, access: AccessFile) -> None:
    copy = home.parent / "copy"
    shutil.copytree(home, copy)
    copy.chmod(0o700)
    with pytest.raises(AccessError, match=r"copy is a copy of '.*/home', whose daemon is not this one's: hpcdl daemon"):
        read_access(copy)
    assert read_access(home) == access
    write_access(copy, replace(access, instance="d-other"))
    assert read_access(copy).instance == "d-other"


def test_a_folder_that_was_moved_is_the_same(home: Path, access: AccessFile) -> None:
    assert read_access(home.rename(home.parent / "moved")) == access


def test_the_access_file_of_an_older_version_is_read_anywhere(home: Path, access: AccessFile) -> None:
    body = json.loads((home / "access.json").read_text())
    del body["home"], body["inode"]
    (home / "access.json").write_text(json.dumps(body))
    (home / "access.json").chmod(0o600)
    home.rename(home.parent / "moved")
    assert read_access(home.parent / "moved") == access


def test_token_and_certificate_are_not_in_its_repr(access: AccessFile) -> None:
    assert "d-1a2b" in repr(access)
    assert TOKEN not in repr(access)
    assert "BEGIN" not in repr(access)


def test_missing_says_how_to_start_a_daemon(tmp_path: Path, home: Path) -> None:
    with pytest.raises(AccessError, match=r"no daemon has been started on .*: start a daemon with: hpcdl daemon start"):
        read_access(tmp_path / "nowhere")
    (home / "access.json").unlink()
    with pytest.raises(AccessError, match="hpcdl daemon start"):
        read_access(home)


def test_modes_are_checked_at_every_read(home: Path) -> None:
    read_access(home)
    (home / "access.json").chmod(0o604)
    with pytest.raises(AccessError, match=r"mode 0604\): run chmod 600 .*access.json"):
        read_access(home)
    (home / "access.json").chmod(0o600)
    home.chmod(0o701)
    with pytest.raises(AccessError, match=r"mode 0701\): run chmod 700"):
        read_access(home)


def test_a_foreign_owner_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(AccessError, match="belongs to uid"):
        read_access(home)


def test_a_symbolic_link_is_refused_even_to_a_good_file(home: Path) -> None:
    (home / "access.json").rename(home / "other.json")
    (home / "access.json").symlink_to("other.json")
    with pytest.raises(AccessError, match="symbolic link"):
        read_access(home)


def test_too_large_is_refused(home: Path) -> None:
    with open(home / "access.json", "ab") as file:
        file.write(b" " * 70000)
    with pytest.raises(AccessError, match="larger than 65536 bytes"):
        read_access(home)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2, this hpcdl reads 1"),
        ({"version": None}, "version None"),
        ({"port": 0}, "port must be a whole number from 1 to 65535, not 0"),
        ({"port": "80"}, "port must be"),
        ({"pid": True}, "pid must be"),
        ({"fence": 0}, "fence must be"),
        ({"host": "a b"}, "host must be visible"),
        ({"host": ""}, "host must be visible"),
        ({"instance": ["x"]}, "instance must be visible"),
        ({"token": "short"}, "token must have 32 characters or more, not 5"),
        ({"token": TOKEN + "\r\nX: y"}, "token must be visible"),
        ({"certificate": "no"}, "certificate must be PEM"),
        ({"certificate": 7}, "certificate must be PEM"),
    ],
)
def test_bad_fields_are_named_without_the_token(
    change: dict[str, object], said: str, home: Path, access: AccessFile
) -> None:
    (home / "access.json").write_text(json.dumps({**asdict(access), **change}))
    with pytest.raises(AccessError, match=said) as caught:
        read_access(home)
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hpcdl" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b"{", b"[" * 60000, b'{"version": 1}'])
def test_damage_is_one_clear_line(content: bytes, home: Path) -> None:
    (home / "access.json").write_bytes(content)
    with pytest.raises(AccessError, match=r"is damaged \(.*\): a daemon that runs writes it anew"):
        read_access(home)


def test_a_field_of_a_later_version_is_ignored(home: Path, access: AccessFile) -> None:
    (home / "access.json").write_text(json.dumps({**asdict(access), "colour": "red"}))
    assert read_access(home) == access
