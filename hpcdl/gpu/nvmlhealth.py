"""What NVML says of a GPU's health: ECC errors, repairs of memory, slowdowns, and the Xid errors of the driver.

Every call may be missing, refused or not supported; then that is not told. Nothing here ever makes a GPU unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdl.core.health import Health

UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
XID_CRITICAL = 8  # nvmlEventTypeXidCriticalError
SLOWDOWNS = (
    (0x20, "software thermal"),
    (0x40, "hardware thermal"),
    (0x80, "hardware power brake"),
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that are worth a note: heat, and a power supply that complains."""

MOST_XIDS = 64
"""Xid errors that are read at a time; a driver that tells more is not waited for."""

Ask = Callable[..., Any]
"""A function of NVML by its name, with arguments after the handle: None where it is not told."""


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
    """The Xid errors that the driver has told since it was asked last. The driver keeps them meanwhile."""

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
