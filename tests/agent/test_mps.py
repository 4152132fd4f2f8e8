"""What clients of an MPS server are started with: by side, by memory, and nothing where none runs."""

import logging
import os
from pathlib import Path

import pytest

from hpcdl.agent.gpus import Side
from hpcdl.agent.mps import client_environment
from hpcdl.config.settings import Config


@pytest.fixture
def pipes(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "control")
    return str(tmp_path)


@pytest.mark.parametrize("side", Side)
def test_nothing_is_set_unless_the_site_says_where(pipes: str, side: Side) -> None:
    assert client_environment(Config(), side, 2, 2048) == {}


def test_a_foreground_has_the_usual_priority_and_its_memory(pipes: str) -> None:
    settings = Config(mps_pipe_directory=pipes, mps_background_percent=30)
    assert client_environment(settings, Side.ALONE, 2, 2048) == {}
    assert client_environment(settings, Side.FOREGROUND, 2, 2048) == {
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        "CUDA_MPS_CLIENT_PRIORITY": "0",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M,1=2048M",
    }


def test_a_background_has_the_lower_one_and_a_part_of_the_processors(pipes: str) -> None:
    settings = Config(mps_pipe_directory=pipes)
    low = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_CLIENT_PRIORITY": "1"}
    assert client_environment(settings, Side.BACKGROUND, 1, None) == low
    settings = Config(mps_pipe_directory=pipes, mps_background_percent=30)
    assert client_environment(settings, Side.BACKGROUND, 1, None) == low | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}


def test_without_a_server_it_starts_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Config(mps_pipe_directory=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert client_environment(settings, Side.BACKGROUND, 1, 2048) == {}
    assert "no MPS server" in caplog.text
    (tmp_path / "control").touch()  # no pipe
    assert client_environment(settings, Side.BACKGROUND, 1, 2048) == {}
