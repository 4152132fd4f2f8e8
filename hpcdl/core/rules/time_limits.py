"""When a job has held GPUs for as long as its submit allowed (`--time`): a pure decision from the world and the time.

It is then suspended like any other, so that nothing is lost, and has FAILED once nothing of it is left; `hpcdl retry`
gives it as much time again.
"""

from hpcdl.core.model.events import TimeLimitReached
from hpcdl.core.model.units import seconds_text
from hpcdl.core.model.world import Job, World


def ran_s(job: Job, now: float) -> float:
    """Seconds for which it has held GPUs until `now`, all attempts since its submit or last retry together."""
    running = job.running
    return job.ran_s + (0.0 if running is None else max(0.0, now - running.holds_since))


def reached(world: World, now: float) -> list[TimeLimitReached]:
    """Jobs that hold GPUs, and are past their limit now."""
    found = []
    for number in world.live:
        job = world.jobs[number]
        limit_s = job.spec.time_s
        if limit_s is None or job.out_of_time or job.cancelling or job.running is None:
            continue
        if ran_s(job, now) >= limit_s:
            found.append(TimeLimitReached(job.id))
    return found


def over_text(job: Job) -> str:
    """Why it goes on no more, and the next step."""
    saved = job.progress.saved_step
    kept = "" if saved is None else f", saved at step {saved}"
    time_text = seconds_text(job.spec.time_s or 0.0)
    return f"its time is over (--time {time_text}){kept}: hpcdl retry {job.id} gives it as much again"
