"""The policy `elastic-letter`: Algorithms 1 and 2 of the SideCar paper to the letter, where `elastic` deviates.

```
Algorithm 1   9   N_remove ranges from N_min to N_max     the giver's least and most optional number
             15   if N_idle >= N_opt ... else             GPUs are removed only where no node has N_opt idle
         18, 28   if MS_predict < MS_min                  of equals the first: fewer GPUs, then the older giver
Algorithm 2  11   MS_min = infinity                       any addition is better than none
             12   N_add ranges from 1 to N_idle           the outer loop; the running jobs are the inner one
             17   if MS_predict < MS_min                  of equals the first: fewer GPUs added, then the older job
```
MS_predict is the latest predicted end, as in `elastic` (`MakespanForecast`), with all terms of section III-C: also the
checkpoint before the termination, and the terminations of process and job.
"""

from collections.abc import Iterator

from hpcdl.core.model.plan import JobView
from hpcdl.sidecar.policy import Addition, Scheme, SideCar, additions, schemes
from hpcdl.sidecar.predict import PoolForecast


def incoming_to_the_letter(outlook: PoolForecast, job: JobView) -> Scheme | None:
    """Algorithm 1, lines 12 to 31."""
    return min(_allowed(list(schemes(outlook, job))), key=lambda scheme: scheme.forecast.makespan_s, default=None)


def _allowed(found: list[Scheme]) -> Iterator[Scheme]:
    """Lines 9, 14 and 15."""
    idle = {scheme.gpus for scheme in found if scheme.giver is None}
    for scheme in found:
        if scheme.giver is None:
            yield scheme
        elif scheme.gpus not in idle:
            giver = scheme.giver.job
            if scheme.removed >= (giver.counts or (giver.gpus_min,))[0]:  # N_max: nobody holds more than that
                yield scheme


def running_to_the_letter(outlook: PoolForecast) -> Addition | None:
    """Algorithm 2, lines 10 to 20."""
    by_number = sorted(additions(outlook), key=lambda found: found.gpus - found.held.gpus)
    return min(by_number, key=lambda found: found.forecast.makespan_s, default=None)


class SideCarLetter(SideCar):
    """The policy `elastic-letter`. What triggers the algorithms, and what the paper leaves open, is as in `elastic`."""

    name = "elastic-letter"
    end_terms = True
    incoming = staticmethod(incoming_to_the_letter)
    running = staticmethod(running_to_the_letter)
