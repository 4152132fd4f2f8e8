"""GPUs through NVML (module `pynvml` of nvidia-ml-py), which loads the driver's libnvidia-ml.so.1.

Also their health: ECC errors, repairs of memory, slowdowns, and the Xid errors of the driver. Every call may be
missing, refused or not supported: then that value is not known. What is asked for health never makes a GPU unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hpcdl.agent.gpu.device import (
    ACROSS,
    MIG_INDEX_STEP,
    NVLINK,
    ONE_BOARD,
    ONE_HOST_BRIDGE,
    ONE_NUMA_NODE,
    ONE_SWITCH,
    SWITCHES,
    Gpu,
    GpuSample,
    GpuSourceError,
    GpuState,
)
from hpcdl.core.model.health import Health

T = TypeVar("T")

# NVML's numbers, so that a fault can be judged without the library.
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND, NO_DATA = 3, 4, 6, 7, 13, 21
OTHER_VERSION = 25  # of a structure than the driver knows

GPU_IS_LOST, RESET_REQUIRED = 15, 16

SILENT = {NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND, NO_DATA, OTHER_VERSION}

LOST = {GPU_IS_LOST, RESET_REQUIRED}


class _Fault(Exception):
    """An error of NVML, by its number and in words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class _Look:
    """One look over all devices: handles by UUID, those of whole GPUs and what went wrong by NVML's index, and the Xid
    errors since the last look."""

    handles: dict[str, Any] = field(default_factory=dict)
    whole: dict[int, Any] = field(default_factory=dict)
    xids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    faults: dict[int, _Fault] = field(default_factory=dict)


class NvmlSource:
    """The GPUs that NVML sees, by UUID; where MIG is on, the MIG devices instead of their GPU.

    A GPU that cannot be read says so, and the others are still read. When NVML itself dies (driver reloaded, unknown
    error) it is initialised again, once a sample; a GPU that stays broken is not worth another start of NVML.
    """

    name = "nvml"

    def __init__(self) -> None:
        """GpuSourceError if there is no NVML here."""
        try:
            import pynvml
        except ImportError as error:
            raise GpuSourceError(f"NVML: module pynvml (nvidia-ml-py) cannot be imported: {error}") from error
        self._nvml: Any = pynvml
        self._up = False
        self._known: dict[str, Gpu] = {}
        self._at: dict[str, int] = {}  # index of NVML's at which a GPU was last seen; a driver may renumber
        self._broken: set[str] = set()
        self._unnamed: dict[int, str] = {}
        self._events: XidEvents | None = None
        self._placed: frozenset[str] = frozenset()  # the GPUs for which it was asked where they are
        try:
            self._start()
            self._look()
        except _Fault as fault:
            self.close()
            raise GpuSourceError(f"NVML: {fault}") from fault

    @property
    def detail(self) -> str:
        parts = [f"GPU {index} has no name that is known: {why}" for index, why in sorted(self._unnamed.items())]
        return "; ".join(parts) or ("" if self._known else "NVML sees no GPU")

    def list(self) -> tuple[Gpu, ...]:
        return tuple(sorted(self._known.values(), key=lambda gpu: gpu.index))

    def sample(self) -> tuple[GpuSample, ...]:
        try:
            samples = self._read() if self._up else None
            why = "NVML is not initialised"
        except _Fault as fault:
            samples, why = None, str(fault)
        if samples is None or {each.uuid for each in samples if each.state == "unknown"} - self._broken:
            try:
                self._stop()
                self._start()
                samples = self._read()
            except _Fault as fault:
                why = str(fault)
                self._stop()
                samples = None
        if samples is None:
            return tuple(GpuSample(gpu.uuid, state="unknown", detail=f"NVML: {why}") for gpu in self.list())
        self._broken = {each.uuid for each in samples if each.state == "unknown"}
        return samples

    def close(self) -> None:
        self._stop()

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            raise _Fault(int(error.value), str(error)) from error
        except UnicodeDecodeError as error:
            raise _Fault(NOT_SUPPORTED, f"{function} gave no text") from error

    def _field(self, read: Callable[[], T]) -> T | None:
        """None where this GPU, driver or user cannot have it; a _Fault is about the GPU itself."""
        try:
            return read()
        except _Fault as fault:
            if fault.code in SILENT:
                return None
            raise

    def _start(self) -> None:
        self._call("nvmlInit")
        self._up = True

    def _stop(self) -> None:
        if self._up:
            self._up = False
            if self._events is not None:
                self._events.close()
                self._events = None
            try:
                self._call("nvmlShutdown")
            except _Fault:
                pass  # a dead NVML has nothing to give back

    def _look(self) -> _Look:
        look = _Look()
        for index in range(int(self._call("nvmlDeviceGetCount"))):
            try:
                handle = look.whole[index] = self._call("nvmlDeviceGetHandleByIndex", index)
                for number, device in self._devices(index, handle):
                    uuid = str(self._call("nvmlDeviceGetUUID", device))
                    self._at[uuid] = index
                    look.handles[uuid] = device
                    self._remember(uuid, number, device)
            except _Fault as fault:
                look.faults[index] = fault
        if self._placed != look.handles.keys():
            self._placed = frozenset(look.handles)
            self._locate(look.handles)
        named = set(self._at.values())
        self._unnamed = {index: str(fault) for index, fault in look.faults.items() if index not in named}
        look.xids = self._xids(look.whole)
        return look

    def _locate(self, handles: Mapping[str, Any]) -> None:
        """Where the GPUs are: their processors, and how far they are from each other. A driver that does not say it of
        one says nothing of it: that keeps nobody from training there."""

        def ask(function: str, *arguments: Any) -> Any:
            try:
                return self._call(function, *arguments)
            except _Fault:
                return None

        for uuid, device in handles.items():
            words = ask("nvmlDeviceGetCpuAffinity", device, CPU_WORDS) or ()
            cpus = tuple(64 * at + bit for at, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)
            found = [(other, _distance(ask, device, there)) for other, there in handles.items() if other != uuid]
            known = tuple((other, far) for other, far in found if far is not None)
            self._known[uuid] = replace(
                self._known[uuid], cpus=cpus, distances=known if len(known) == len(found) else ()
            )

    def _xids(self, whole: dict[int, Any]) -> dict[int, tuple[int, ...]]:
        """The Xid errors since the last look; from the first one on, and anew for a GPU that was not there before."""
        if self._events is None or not self._events.indices.issuperset(whole):
            xids = {} if self._events is None else self._events.read()
            if self._events is not None:
                self._events.close()
            self._events = XidEvents(self._nvml, whole)
            return xids
        return self._events.read()

    def _devices(self, index: int, handle: Any) -> Iterator[tuple[int, Any]]:
        """The GPU itself, or its MIG devices, each with its number on the node."""
        mode = self._field(lambda: self._call("nvmlDeviceGetMigMode", handle))
        if mode is None or mode[0] == 0:
            yield index, handle
            return
        for part in range(int(self._field(lambda: self._call("nvmlDeviceGetMaxMigDeviceCount", handle)) or 0)):
            device = self._field(lambda part=part: self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, part))  # type: ignore[misc]
            if device is not None:
                yield MIG_INDEX_STEP * (index + 1) + part, device

    def _remember(self, uuid: str, number: int, device: Any) -> None:
        known = self._known.get(uuid)
        if known is None:
            taken = {gpu.index for gpu in self._known.values()}
            known = Gpu(number if number not in taken else max(taken) + 1, uuid, "", 0)
        self._known[uuid] = known
        if not known.name or not known.memory_mib:
            name = self._field(lambda: self._call("nvmlDeviceGetName", device))
            memory = self._memory(device)
            total = 0 if memory is None else int(memory.total) >> 20
            self._known[uuid] = replace(known, name=str(name or known.name), memory_mib=total or known.memory_mib)

    def _read(self) -> tuple[GpuSample, ...]:
        look = self._look()
        return tuple(self._sample(gpu, look) for gpu in self.list())

    def _sample(self, gpu: Gpu, look: _Look) -> GpuSample:
        handle = look.handles.get(gpu.uuid)
        fault = None if handle is not None else look.faults.get(self._at[gpu.uuid])
        if handle is None and fault is None:
            return GpuSample(gpu.uuid, state="lost", detail="NVML no longer lists it")
        xids = look.xids.get(self._at[gpu.uuid], ())
        try:
            if fault is not None:
                raise fault
            return replace(self._measure(gpu, handle), health=self._health(gpu, look), xids=xids)
        except _Fault as error:
            state: GpuState = "lost" if error.code in LOST else "unknown"
            return GpuSample(gpu.uuid, state=state, detail=f"NVML: {error}", xids=xids)

    def _health(self, gpu: Gpu, look: _Look) -> Health:
        """Of a MIG device, that of its GPU."""

        def ask(function: str, *arguments: Any) -> Any:
            try:
                return self._call(function, look.whole[self._at[gpu.uuid]], *arguments)
            except _Fault:
                return None  # whether the GPU itself can be read is known from what is measured

        return health_of(ask)

    def _measure(self, gpu: Gpu, handle: Any) -> GpuSample:
        def ask(function: str, *arguments: Any) -> Any:
            return self._field(lambda: self._call(function, handle, *arguments))

        rates = ask("nvmlDeviceGetUtilizationRates")
        memory = self._memory(handle)
        power = ask("nvmlDeviceGetPowerUsage")
        return GpuSample(
            gpu.uuid,
            util=None if rates is None else int(rates.gpu),
            memory_used_mib=None if memory is None else int(memory.used) >> 20,
            memory_total_mib=None if memory is None else int(memory.total) >> 20,
            power_w=None if power is None else power / 1000,
            temperature_c=ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            **self._processes(ask),
        )

    def _memory(self, handle: Any) -> Any:
        """Of a device, in bytes: `total`, and `used` by processes. None where it cannot be had.

        Drivers before 510 have the first version of the call only, which counts what the driver keeps for itself as
        used (615 MiB of an H200 on which nothing runs).
        """
        memory = self._field(lambda: self._call("nvmlDeviceGetMemoryInfo", handle, self._nvml.nvmlMemory_v2))
        return self._field(lambda: self._call("nvmlDeviceGetMemoryInfo", handle)) if memory is None else memory

    @staticmethod
    def _processes(ask: Callable[[str], Any]) -> dict[str, Any]:
        """`pids` and `process_mib` of compute processes; drivers older than 510 have only the second version of the
        call.

        Clients of MPS, and processes that also draw, may be on a list of their own.
        """
        compute = ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if compute is None:
            compute = ask("nvmlDeviceGetComputeRunningProcesses_v2")
        if compute is None:
            return {"pids": None}
        mps = ask("nvmlDeviceGetMPSComputeRunningProcesses_v3") or []
        graphics = ask("nvmlDeviceGetGraphicsRunningProcesses_v3") or []
        found: dict[int, int | None] = {}
        for process in (*graphics, *mps, *compute):  # of one on several lists the last that says counts
            used = process.usedGpuMemory
            found[int(process.pid)] = found.get(int(process.pid)) if used is None else int(used) >> 20
        known = tuple((pid, mib) for pid, mib in sorted(found.items()) if mib is not None)
        return {"pids": tuple(sorted(found)), "process_mib": known}


CPU_WORDS = 64  # of 64 processors each

P2P_NVLINK, P2P_OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK

LEVELS = {
    0: ONE_BOARD,
    10: ONE_SWITCH,
    20: SWITCHES,
    30: ONE_HOST_BRIDGE,
    40: ONE_NUMA_NODE,
    50: ACROSS,
}
"""By nvmlGpuTopologyLevel_t."""


def _distance(ask: Callable[..., Any], one: Any, other: Any) -> int | None:
    """How far two GPUs are from each other; None where the driver does not say."""
    if ask("nvmlDeviceGetP2PStatus", one, other, P2P_NVLINK) == P2P_OK:
        return NVLINK
    return LEVELS.get(ask("nvmlDeviceGetTopologyCommonAncestor", one, other))


UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC

XID_CRITICAL = 8  # nvmlEventTypeXidCriticalError

SLOWDOWNS = (
    (0x20, "software thermal"),
    (0x40, "hardware thermal"),
    (0x80, "hardware power brake"),
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that are worth a note: heat, and a power supply that complains."""

MOST_XIDS = 64
"""Xid errors that are read at a time; a driver that has more is not waited for."""

Ask = Callable[..., Any]
"""A function of NVML by its name, with arguments after the handle: None where it is not known."""


def health_of(ask: Ask) -> Health:
    """What one device says. `ask(function, *arguments)`."""
    rows = ask("nvmlDeviceGetRemappedRows")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    retired = ask("nvmlDeviceGetRetiredPagesPendingStatus")
    errors = ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE)
    return Health(
        ecc_uncorrected=None if errors is None else int(errors),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        retired_pending=None if retired is None else bool(retired),
        slowdown=() if reasons is None else tuple(name for bit, name in SLOWDOWNS if int(reasons) & bit),
    )


class XidEvents:
    """The Xid errors that the driver has had since it was read last. The driver keeps them meanwhile."""

    def __init__(self, nvml: Any, handles: Mapping[int, Any]) -> None:
        """Registers these GPUs, by NVML's index; those that cannot be are left out."""
        self._nvml = nvml
        self.indices = frozenset(handles)
        self._set: Any = None
        if not handles:
            return
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for handle in handles.values():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, XID_CRITICAL, self._set)
            except nvml.NVMLError:
                continue  # not supported, or not allowed here

    def read(self) -> dict[int, tuple[int, ...]]:
        """Numbers by NVML's index, oldest first. Waits for nothing."""
        found: dict[int, tuple[int, ...]] = {}
        for _ in range(MOST_XIDS if self._set is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                index = int(self._nvml.nvmlDeviceGetIndex(event.device))
            except self._nvml.NVMLError:
                break  # the timeout: there is nothing more
            if int(event.eventType) & XID_CRITICAL:
                found[index] = (*found.get(index, ()), int(event.eventData))
        return found

    def close(self) -> None:
        """Gives the set back."""
        if self._set is not None:
            try:
                self._nvml.nvmlEventSetFree(self._set)
            except self._nvml.NVMLError:
                pass  # a dead NVML has nothing to give back
            self._set = None
