"""When a job leaves GPUs idle: a pure decision from what agents measured, and its words for people.

Once of each incarnation. An agent that is away measures nothing, so nothing is concluded from its last heartbeat.
"""

from collections.abc import Iterable, Sequence

from hpcdl.core.model.commands import IdleMeasurement
from hpcdl.core.model.events import GpusIdle
from hpcdl.core.model.incarnation import IncarnationState
from hpcdl.core.model.units import count
from hpcdl.core.model.world import World

NAMED = 4
"""Of more GPUs than this only the first are named."""


def idle_gpu_events(world: World, measured: Iterable[IdleMeasurement]) -> list[GpusIdle]:
    """What is news of these."""
    found = []
    for each in measured:
        job = world.jobs.get(each.job)
        incarnation = None if job is None else job.incarnation(each.incarnation)
        if incarnation is None or incarnation.placement is None or incarnation.idle_noted:
            continue
        if incarnation.state is not IncarnationState.RUNNING or incarnation.stop is not None:
            continue
        if incarnation.training_start is None or incarnation.rescale_at is not None:
            continue
        held, idle = incarnation.placement.gpus, frozenset(each.gpus)
        away = any(name not in world.nodes or not world.nodes[name].connected for name in incarnation.placement.nodes)
        if not away and idle < frozenset(held) and idle:
            found.append(GpusIdle(each.job, each.incarnation, len(held), tuple(map(str, sorted(idle)))))
    return found


def idle_text(held: int, gpus: Sequence[str]) -> str:
    """In words: `uses 2 of its 4 GPUs: nothing runs on n1:2, n1:3; --gpus 2 does as well, or its program ...`."""
    used = held - len(gpus)
    names = ", ".join(gpus[:NAMED]) + (", ..." if len(gpus) > NAMED else "")
    return (
        f"uses {used} of its {count(held, 'GPU')}: nothing runs on {names}; "
        f"--gpus {used} does as well, or its program has to use them all"
    )
