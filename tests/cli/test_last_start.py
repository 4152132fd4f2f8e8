"""What is advised where no daemon runs: what started the last one."""

import stat
from pathlib import Path

import pytest

from hpcdl.client import Client, DaemonAway
from hpcdl.wire.last_start import BY_HAND, remember_start, start_command
from tests.cli.conftest import Run

SBATCH = "sbatch jobscripts/hpcdl.slurm"


def test_after_an_allocation_its_batch_script_is_advised(home: Path, hpcdl: Run) -> None:
    home.mkdir(mode=0o700)
    remember_start(home, SBATCH)
    assert stat.S_IMODE((home / "last-start").stat().st_mode) == 0o600
    with Client(home) as client, pytest.raises(DaemonAway, match=f"start one with: {SBATCH}"):
        client.get("/v1/status")
    assert f"start one with: {SBATCH}" in hpcdl("drain", "n1").err
    assert f"takes in ({SBATCH})" in hpcdl("submit", "--", "true").err
    assert f"  {SBATCH}  " in hpcdl().out
    remember_start(home, BY_HAND)
    assert start_command(home) == BY_HAND


def test_where_nothing_started_one_all_that_there_is_is_advised(
    home: Path, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sinfo", "squeue", "bjobs", "bsub", "lsid"):
        (tmp_path / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert f"takes in ({SBATCH}, or {BY_HAND})" in hpcdl("submit", "--", "true").err
    assert f"start one with: {SBATCH}, or {BY_HAND}" in hpcdl("drain", "n1").err
    monkeypatch.delenv("SLURM_CONF")
    assert f"start one with: bsub < jobscripts/hpcdl.lsf, or {BY_HAND}" in hpcdl("drain", "n1").err
    for name in ("bjobs", "bsub"):
        (tmp_path / name).unlink()
    assert f"start one with: {BY_HAND}\n" in hpcdl("drain", "n1").err  # Slurm's commands alone serve no cluster
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    remember_start(home, BY_HAND)
    assert f"start one with: {BY_HAND}\n" in hpcdl("drain", "n1").err


@pytest.mark.parametrize("content", [b"", b"\xff", b"sbatch\x1b[31m\n", b"x" * 300])
def test_a_file_that_is_damaged_or_open_to_others_says_nothing(home: Path, content: bytes) -> None:
    home.mkdir(mode=0o700)
    path = home / "last-start"
    path.write_bytes(content)
    path.chmod(0o600)
    assert start_command(home) == BY_HAND
    path.write_text(SBATCH)
    path.chmod(0o644)
    assert start_command(home) == BY_HAND
