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
    assert not (home / "last-start").exists()


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
