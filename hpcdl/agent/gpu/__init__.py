"""The GPUs of this node: which there are, what they do, and which processes hold them.

Three sources give the same answers: NVML, `nvidia-smi` where NVML cannot be loaded, and emulated GPUs for machines
that have none. A source is asked from one thread at a time, and an answer may take seconds when a driver is ill.
"""

from hpcdl.agent.gpu.device import Gpu, GpuSample, GpuSource, GpuSourceError, GpuState, NoGpus
from hpcdl.agent.gpu.discovery import discover
from hpcdl.agent.gpu.emulated import EmulatedSource
from hpcdl.agent.gpu.nvml import NvmlSource
from hpcdl.agent.gpu.smi import SmiSource
from hpcdl.agent.gpu.visible import cuda_visible_devices, visible

__all__ = [
    "EmulatedSource",
    "Gpu",
    "GpuSample",
    "GpuSource",
    "GpuSourceError",
    "GpuState",
    "NoGpus",
    "NvmlSource",
    "SmiSource",
    "cuda_visible_devices",
    "discover",
    "visible",
]
