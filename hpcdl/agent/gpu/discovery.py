"""Which source of GPUs a node uses: emulated ones, NVML, nvidia-smi or none.

Unless emulated ones are asked for, what this machine has decides; `detail` says what was tried.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hpcdl.agent.gpu.device import GpuSource, GpuSourceError, NoGpus
from hpcdl.agent.gpu.emulated import EmulatedSource
from hpcdl.agent.gpu.nvml import NvmlSource
from hpcdl.agent.gpu.smi import SmiSource


def discover(emulate: int | None, emulated_folder: Path) -> GpuSource:
    """Emulated GPUs if a number of them is asked for; else NVML; else nvidia-smi on PATH; else none, with why."""
    if emulate is not None:
        return EmulatedSource(emulated_folder, emulate)
    try:
        return NvmlSource()
    except GpuSourceError as error:
        why = str(error)
    program = shutil.which("nvidia-smi")
    if program is None:
        return NoGpus(f"{why}; nvidia-smi is not on PATH")
    try:
        return SmiSource(program)
    except GpuSourceError as error:
        return NoGpus(f"{why}; {error}")
