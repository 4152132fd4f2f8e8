"""What changes in the health of GPUs between two looks, and is worth telling the daemon. Pure, but for its memory.

A condition that holds is told again every AGAIN_S, so that what is avoided for it stays so while it lasts. What was so
before this agent came is shown, but for a memory that cannot be repaired no reason to avoid a GPU.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpcdl.core.health import ECC, Action, Health, fault_of

AGAIN_S = 1800.0
KEPT = 8
"""Xids that are shown of a GPU."""

BLAMED_S = 120.0
"""A trainer that fails so soon after a fault of its GPU was not at fault itself."""


@dataclass(frozen=True, slots=True)
class Told:
    """A fault, as `health.fault_of` knows it, and how it was seen."""

    fault: str
    detail: str


class Faults:
    """Of one GPU."""

    def __init__(self) -> None:
        self._xids: tuple[int, ...] = ()
        self._ecc: int | None = None
        self._told_at: dict[str, float] = {}
        self._bad: tuple[float, str] | None = None

    def look(self, health: Health | None, xids: Iterable[int], now: float) -> list[Told]:
        """What is news; `xids`: since the last look."""
        found = []
        for number in xids:
            self._xids = (*self._xids, number)[-KEPT:]
            if fault_of(f"xid {number}") is not None:
                found.append(Told(f"xid {number}", "told by the driver"))
        if health is not None:
            errors = health.ecc_uncorrected
            if errors is not None and self._ecc is not None and errors > self._ecc:
                found.append(Told(ECC, f"{errors} uncorrectable errors, {self._ecc} before"))
            self._ecc = errors if errors is not None else self._ecc
            held = health.conditions
            for name in held:
                if now - self._told_at.get(name, -AGAIN_S) >= AGAIN_S:
                    self._told_at[name] = now
                    found.append(Told(name, "told by the driver"))
            self._told_at = {name: at for name, at in self._told_at.items() if name in held}
        for told in found:
            known = fault_of(told.fault)
            if known is not None and known.action is not Action.NOTE:
                self._bad = now, f"{told.fault}: {known.said}"
        return found

    def shown(self, health: Health | None) -> Health | None:
        """What the daemon is told of its health: with the Xids that were seen here."""
        if health is None:
            return Health(xids=self._xids) if self._xids else None
        return replace(health, xids=self._xids)

    def blamed(self, now: float) -> str:
        """The fault that may have ended a trainer just now, or ""."""
        return self._bad[1] if self._bad is not None and now - self._bad[0] < BLAMED_S else ""
