"""What heartbeats tell of GPUs, handed to the ledger once a second: a thousand agents do not wake its thread each."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from hpcdl.ledger.samples import Sample
from hpcdl.wire.messages import HeartbeatMessage

log = logging.getLogger("hpcdl.daemon")

GATHER_S = 1.0


class Telemetry:
    """Samples that wait to be kept. Its methods are called in the event loop's thread."""

    def __init__(self, now: Callable[[], float], keep: Callable[[Sequence[Sample]], object]) -> None:
        """`now`: seconds since the epoch. `keep` is called in the event loop and must not wait."""
        self._now = now
        self._keep = keep
        self._waiting: list[Sample] = []

    def heard(self, node: str, heartbeat: HeartbeatMessage) -> None:
        """Takes what a heartbeat says of GPUs that say anything."""
        at = self._now()
        lines = [line for line in heartbeat.gpus if line.util is not None or line.memory_mib is not None]
        try:
            samples = [Sample(at, node, line.index, line.util, line.memory_mib, line.power_w) for line in lines]
        except ValueError as error:
            log.warning("samples of %s are dropped: %s", node, error)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(GATHER_S, self._hand_over)
        self._waiting += samples

    def _hand_over(self) -> None:
        samples, self._waiting = self._waiting, []
        self._keep(samples)
