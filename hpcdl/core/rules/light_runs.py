"""When a run of a light profiling (`JobSpec.light_steps`) is over: a pure decision from what it showed.

Where it runs is decided in `controller/light_runs.py`; what it showed is learnt as of any job.
"""

from hpcdl.core.fold.observations import SHORTEST_S
from hpcdl.core.fold.trials import shows_rate
from hpcdl.core.model.units import count
from hpcdl.core.model.world import Job


def measured(job: Job) -> str:
    """That it has shown its rate for long enough, in words; "" until then, and for any other job."""
    if job.spec.light_steps is None or job.cancelling or job.running is None or job.running.progress is None:
        return ""
    rate = job.running.progress.rate
    if rate is None or rate.counted.steps < job.spec.light_steps or not shows_rate(rate):
        return ""
    if rate.counted.seconds < SHORTEST_S:
        return ""  # too short to be learnt of
    return f"measured over {count(round(rate.counted.steps), 'step')}"
