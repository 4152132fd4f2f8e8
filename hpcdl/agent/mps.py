"""A client of CUDA's Multi-Process Service (MPS): what a job that shares its GPUs is started with where a server runs.

The server is the site's: nothing here starts, ends or configures one. Off unless the setting `mps_pipe_directory` names
where it listens. A client takes these variables when it starts; a background that has its GPUs alone later keeps them.
Not yet run on a GPU.
"""

import logging
from pathlib import Path

from hpcdl.agent.gpus import Side
from hpcdl.config.settings import Config

log = logging.getLogger("hpcdl.agent")

NORMAL, BELOW_NORMAL = "0", "1"
"""Priorities of clients, by CUDA_MPS_CLIENT_PRIORITY: of foregrounds, and of backgrounds."""


def listens(pipe_directory: str) -> bool:
    """Whether a control daemon has made its pipe there."""
    try:
        return (Path(pipe_directory) / "control").is_fifo()
    except OSError:
        return False


def client_environment(settings: Config, side: Side, gpus: int, memory_mib: int | None) -> dict[str, str]:
    """The variables of one trainer, none for one that shares nothing. `gpus`: how many it sees. `memory_mib`: that its
    job takes of each at most (`--gpu-memory`); CUDA refuses it more."""
    pipes = settings.mps_pipe_directory
    if pipes is None or side is Side.ALONE:
        return {}
    if not listens(pipes):
        log.warning("no MPS server listens in %s: a job that shares its GPUs starts without", pipes)
        return {}
    background = side is Side.BACKGROUND
    found = {
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        "CUDA_MPS_CLIENT_PRIORITY": BELOW_NORMAL if background else NORMAL,
    }
    if background and settings.mps_background_percent is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(settings.mps_background_percent)
    if memory_mib is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{number}={memory_mib}M" for number in range(gpus))
    return found
