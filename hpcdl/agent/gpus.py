"""The node's GPUs as the agent answers for them: which may be granted, which are lost or dirty, and what they do.

A GPU is dirty while something holds it that should not: processes that an incarnation left, or somebody else's.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcdl.agent.processes import look, matches
from hpcdl.agent.reports import Key, ReportLog
from hpcdl.core.events import GpuChanged
from hpcdl.core.model import GpuInfo
from hpcdl.gpu import Gpu, GpuSample, GpuSource, GpuState, cuda_visible_devices, visible
from hpcdl.wire.messages import GpuLine

log = logging.getLogger("hpcdl.agent")

OK, LOST, DIRTY = "ok", "lost", "dirty"
UNKNOWN: GpuState = "unknown"
EMULATED = "emulated"
RESIDENT = frozenset({"Xorg", "Xwayland", "gnome-shell", "nvidia-persiste", "nvidia-cuda-mps"})
"""Programs that hold a GPU for as long as the machine runs, and that others share it with (names cut to 15 bytes)."""


class Gpus:
    """All methods belong to the event loop's thread; the source is asked in another one, once at a time."""

    def __init__(self, source: GpuSource, mask: str | None, node: str, reports: ReportLog) -> None:
        """`mask`: the agent's own CUDA_VISIBLE_DEVICES; emulated GPUs are not CUDA's, and not masked by it."""
        self._source = source
        self._mask = None if source.name == EMULATED else mask
        self._node = node
        self._reports = reports
        self._asking = asyncio.Lock()
        self._gpus: dict[int, Gpu] = {}
        self._samples: dict[str, GpuSample] = {}
        self._states: dict[int, tuple[str, str]] = {}
        self._holders: dict[int, Key] = {}
        self._stuck: dict[int, dict[Key, str]] = {}
        self._announced = False

    @property
    def emulated(self) -> bool:
        """Whether there are no real ones here."""
        return self._source.name == EMULATED

    # --- grants ----------------------------------------------------------------------------------------------------

    def indices(self, uuids: Iterable[str]) -> tuple[int, ...]:
        """The indices of those that are known."""
        wanted = set(uuids)
        return tuple(sorted(index for index, gpu in self._gpus.items() if gpu.uuid in wanted))

    def named(self, indices: Sequence[int]) -> tuple[list[str], str]:
        """UUIDs and CUDA_VISIBLE_DEVICES. Raises ValueError for a GPU that this node does not have."""
        missing = [index for index in indices if index not in self._gpus]
        if missing:
            raise ValueError(f"{self._node} has no GPU {missing[0]}")
        gpus = [self._gpus[index] for index in indices]
        return [gpu.uuid for gpu in gpus], cuda_visible_devices(gpus)

    def claim(self, key: Key, indices: Iterable[int]) -> str | None:
        """Notes that these are the incarnation's now; or why not."""
        for index in indices:
            holder = self._holders.get(index)
            if holder is not None and holder != key:
                return f"GPU {index} is still held by job {holder[0]}.{holder[1]}"
        self._holders.update(dict.fromkeys(indices, key))
        return None

    def release(self, key: Key) -> None:
        """The incarnation is gone, and its GPUs were seen free."""
        for index in [index for index, holder in self._holders.items() if holder == key]:
            del self._holders[index]

    async def in_the_way(self, indices: Iterable[int], own_tag: str) -> dict[int, str]:
        """What makes GPUs impossible to grant now: by index, why."""
        await self._ask()
        found = {}
        for index in indices:
            gpu = self._gpus.get(index)
            if gpu is None:
                found[index] = "there is no such GPU"
                continue
            sample = self._samples.get(gpu.uuid)
            if sample is not None and sample.state != OK:
                found[index] = sample.detail or sample.state
            elif others := self._others(sample, own_tag):
                found[index] = others
        return found

    async def held_by(self, indices: Iterable[int], tag: str) -> list[str]:
        """The processes of an incarnation, by its tag, that GPUs still name; of emulated ones whoever has the lock."""
        if not indices:
            return []
        await self._ask()
        found = []
        for index in indices:
            gpu = self._gpus.get(index)
            sample = None if gpu is None else self._samples.get(gpu.uuid)
            if sample is None or sample.state == LOST:
                continue  # of one that is lost nothing is left to be held; of one without samples only the tags tell
            if sample.state != OK:
                found.append(f"GPU {index} cannot be seen: {sample.detail}")
            if self.emulated and sample.pids is None:
                found.append(f"GPU {index}: {sample.detail}")
            for pid in sample.pids or ():
                process = look(pid)
                if self.emulated or (process is not None and matches(process.tag, tag)):
                    found.append(f"GPU {index}: process {pid}")
        return found

    def _others(self, sample: GpuSample | None, own_tag: str) -> str:
        """Processes on a GPU besides those with that tag, or "" (also where the GPU does not tell)."""
        if sample is None or sample.state != OK:
            return ""
        if sample.pids is None:
            return sample.detail if self.emulated else ""
        pids = []
        for pid in sample.pids:
            process = look(pid)
            ours = process is not None and bool(own_tag) and matches(process.tag, own_tag)
            if not ours and (self.emulated or _program(pid) not in RESIDENT):
                pids.append(str(pid))
        return f"held by process {', '.join(pids)}" if pids else ""

    # --- states ----------------------------------------------------------------------------------------------------

    def stick(self, key: Key, indices: Iterable[int], detail: str) -> None:
        """The incarnation should have left these and has not: dirty until `unstick`."""
        for index in indices:
            self._stuck.setdefault(index, {})[key] = detail
        self._judge(indices)

    def unstick(self, key: Key) -> None:
        """It has left them."""
        indices = [index for index, by in self._stuck.items() if by.pop(key, None) is not None]
        self._judge(indices)

    def found_held(self, found: dict[int, str]) -> None:
        """What was in the way of a grant: dirty (or lost) at least until the next refresh."""
        for index, why in found.items():
            if index in self._gpus:
                state = LOST if self._is_lost(index) else DIRTY
                self._set(index, state, why)

    async def refresh(self) -> None:
        """Looks at all GPUs again, and reports those whose state changed."""
        await self._ask()
        self._judge(self._gpus)

    def _judge(self, indices: Iterable[int]) -> None:
        for index in list(indices):
            gpu = self._gpus.get(index)
            if gpu is None:
                continue
            sample = self._samples.get(gpu.uuid)
            if sample is not None and sample.state == LOST:
                self._set(index, LOST, sample.detail)
            elif stuck := self._stuck.get(index):
                self._set(index, DIRTY, "; ".join(stuck.values()))
            elif index not in self._holders and (others := self._others(sample, "")):
                self._set(index, DIRTY, others)
            elif sample is None or sample.state == OK:
                self._set(index, OK, "")

    def _is_lost(self, index: int) -> bool:
        sample = self._samples.get(self._gpus[index].uuid)
        return sample is not None and sample.state == LOST

    def _set(self, index: int, state: str, detail: str) -> None:
        old = self._states.get(index, (OK, ""))
        self._states[index] = (state, detail)
        # The first inventory tells how things are; from then on changes are reported.
        if self._announced and (old[0] != state or (state == DIRTY and old[1] != detail)):
            log.info("GPU %d is %s %s", index, state, detail)
            self._reports.report(GpuChanged(self._node, index, state, detail))

    # --- what the daemon is told -----------------------------------------------------------------------------------

    def inventory(self) -> tuple[GpuInfo, ...]:
        """Every GPU as it was seen last."""
        self._announced = True
        found = []
        for index, gpu in sorted(self._gpus.items()):
            state, detail = self._states.get(index, (OK, ""))
            found.append(GpuInfo(index, gpu.uuid, gpu.name, gpu.memory_mib, state, detail))
        return tuple(found)

    def lines(self) -> tuple[GpuLine, ...]:
        """The newest samples."""
        found = []
        for index, gpu in sorted(self._gpus.items()):
            sample = self._samples.get(gpu.uuid)
            if sample is None:
                found.append(GpuLine(index, None, None, None))
            else:
                found.append(GpuLine(index, sample.util, sample.memory_used_mib, sample.power_w))
        return tuple(found)

    async def _ask(self) -> None:
        async with self._asking:
            try:
                gpus, samples = await asyncio.to_thread(self._look)
            except Exception:  # a source must not raise, and if it does the agent lives on with what it knew
                log.exception("the GPU source %s failed", self._source.name)
                why = f"the GPU source {self._source.name} failed"
                self._samples = {
                    gpu.uuid: GpuSample(gpu.uuid, state=UNKNOWN, detail=why) for gpu in self._gpus.values()
                }
                return
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._samples = {sample.uuid: sample for sample in samples}

    def _look(self) -> tuple[Sequence[Gpu], Sequence[GpuSample]]:
        samples = self._source.sample()
        return visible(self._source.list(), self._mask), samples


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
