"""A GPU, a sample of it, and what every source of GPUs answers.

The sources are nvml.py, smi.py and emulated.py; discovery.py chooses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from hpcdl.core.model.health import Health

GpuState = Literal["ok", "lost", "unknown"]

MIG_INDEX_STEP = 100


NVLINK, ONE_BOARD, ONE_SWITCH, SWITCHES, ONE_HOST_BRIDGE, ONE_NUMA_NODE, ACROSS = range(1, 8)
"""How far one GPU is from another: over NVLink, on one board, below one PCIe switch, below several, and so on."""


class GpuSourceError(Exception):
    """This source cannot be used on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, known by its UUID. `index` is unique on the node: NVML's (PCI order), and 100 * (g + 1) + m for MIG device
    m of GPU g. `memory_mib` is 0 where it cannot be known."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    cpus: tuple[int, ...] = ()  # the processors of its NUMA node, ascending; (): not known
    distances: tuple[tuple[str, int], ...] = ()  # (UUID, how far) of each other GPU of the node; (): not known

    def __post_init__(self) -> None:
        if not self.uuid or self.index < 0 or self.memory_mib < 0:
            raise ValueError(f"a GPU needs a UUID, an index and a memory of 0 or more, not {self}")


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU at one moment. None is 'this GPU (or driver) does not say'.

    util: per cent; power_w: watts; temperature_c: degrees Celsius; pids: processes that hold it, in the numbers of this
    host. `lost`: it fell off the bus or needs a reset; `unknown`: nothing can be said now; `detail` says why. `health`:
    what the driver says of it besides; `xids`: the numbers of the Xid errors since the sample before, oldest first.
    A GPU is seen to be free only if it is ok and its pids are known.
    """

    uuid: str
    util: int | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    pids: tuple[int, ...] | None = None
    state: GpuState = "ok"
    detail: str = ""
    health: Health | None = None
    xids: tuple[int, ...] = ()
    process_mib: tuple[tuple[int, int], ...] = ()  # (pid, memory in MiB) of those of which the driver says it


class GpuSource(Protocol):
    """A source of GPUs: what lists those of this node, and looks at them."""

    @property
    def name(self) -> str:
        """nvml, nvidia-smi, emulated or none."""

    @property
    def detail(self) -> str:
        """What a user should know about this source: why there are no GPUs, which could not be named."""

    def list(self) -> tuple[Gpu, ...]:
        """The GPUs by index, those that were seen once and are lost now included. Does not raise."""

    def sample(self) -> tuple[GpuSample, ...]:
        """One sample for each GPU of `list`, in its order. Does not raise: what fails is unknown."""

    def close(self) -> None:
        """Gives back what the source holds; the source is not asked again."""


@dataclass(frozen=True, slots=True)
class NoGpus:
    """The source of a node where no GPU can be found; `detail` says what was tried."""

    detail: str
    name: str = "none"

    def list(self) -> tuple[Gpu, ...]:
        return ()

    def sample(self) -> tuple[GpuSample, ...]:
        return ()

    def close(self) -> None:
        return None
