"""`hpcdl submit --container`: the command as the trainer library runs it in an image."""

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


def test_the_command_is_run_in_the_image(
    fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for image, named in (("torch.sif", f"{tmp_path}/torch.sif"), ("docker://a/b", "docker://a/b")):
        assert hpcdl("submit", "--container", image, "--", "python", "train.py", "--lr", "1").code == 0
        (spec,) = fake.requests[-1][2]["jobs"]
        words = [sys.executable, "-m", "hpcdl.trainer.container", named, "--", "python", "train.py", "--lr", "1"]
        assert (spec["command"], spec["name"]) == (words, "train.py")


@pytest.mark.parametrize("option", ["--gate", "--signal=lightning", "--rescale=torchrun", "--nodes=1:2"])
def test_what_does_not_go_with_it(fake: FakeDaemon, hpcdl: Run, option: str) -> None:
    done = hpcdl("submit", "--container", "a.sif", option, "--", "python", "train.py")
    assert done.code == 2
    assert "--container does not go with --" in done.err
    assert "start the container in your own script" in done.err
    assert not fake.world.jobs
