"""Jobs that hold GPUs and do not use them: what the agents' samples show over minutes, in words for `ls` and `why`.

Only attempts of several GPUs that train count, and only where each GPU says how busy it is. What is recorded and
notified of it, the core decides (`rules.idle_gpus`); no plan depends on it.
"""

from collections.abc import Mapping

from hpcdl.core.model.commands import IdleMeasurement
from hpcdl.core.model.incarnation import Incarnation, IncarnationState
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import World
from hpcdl.core.rules.idle_gpus import idle_text
from hpcdl.wire.messages import HeartbeatMessage

WATCH_S = 120.0
"""A GPU is not used where it has done nothing for so long, while its job trained."""

IDLE_PERCENT = 1
"""Up to this utilisation it does nothing."""


class IdleGpus:
    """What the samples of one daemon show. For the thread of the event loop."""

    def __init__(self) -> None:
        self.notes: Mapping[int, str] = {}  # by job, of those that do not use all that they hold
        self._quiet: dict[tuple[int, int, GpuRef], float] = {}  # since when each GPU of an attempt does nothing

    def look(self, world: World, beats: Mapping[str, HeartbeatMessage], at: float) -> tuple[IdleMeasurement, ...]:
        """What idles, by the newest heartbeats by node. `at`: seconds of a clock that only goes forward."""
        loads = {(name, line.index): line.util for name, beat in beats.items() for line in beat.gpus}
        quiet: dict[tuple[int, int, GpuRef], float] = {}
        notes: dict[int, str] = {}
        measured = []
        for number in world.live:
            running = world.jobs[number].running
            gpus = _trains_on(running)
            found = [loads.get((gpu.node, gpu.number)) for gpu in gpus]
            if running is None or len(gpus) < 2 or any(each is None for each in found):
                continue
            keys = [
                (number, running.number, gpu)
                for gpu, util in zip(gpus, found, strict=True)
                if util is not None and util <= IDLE_PERCENT
            ]
            quiet |= {key: self._quiet.get(key, at) for key in keys}
            idle = tuple(key[2] for key in keys if at - quiet[key] >= WATCH_S)
            if idle and len(keys) < len(gpus):
                notes[number] = idle_text(len(gpus), [str(gpu) for gpu in idle])
                measured.append(IdleMeasurement(number, running.number, idle))
        self._quiet, self.notes = quiet, notes
        return tuple(measured)


def _trains_on(running: Incarnation | None) -> tuple[GpuRef, ...]:
    """The GPUs of an attempt that trains; () of any other."""
    if running is None or running.placement is None or running.state is not IncarnationState.RUNNING:
        return ()
    return tuple(running.placement.gpus) if running.training_start is not None and running.ending is None else ()
