"""GENIE's database: the profile of a job at a batch size that nobody saw, from other jobs of its type.

What was seen is in the world (`fold/observations.py`), so nothing is stored here, and one that starts anew says the
same. `view_builder.py` shows it to policies, the API to users; `Profiles.predict` has the model.
"""

from dataclasses import dataclass

from hpcdl.core.fold.observations import observations_of_type
from hpcdl.core.model.job import JobSpec, observed_as
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Observations, Profile, Timing
from hpcdl.core.model.world import World


@dataclass(frozen=True, slots=True)
class _Predicted:
    """A profile, None where there is none, and what it is of."""

    of: tuple[Observations | None, ...]
    usual: tuple[Timing, ...]
    profile: Profile | None


class TypeProfiles:
    """Profiles by type and batch size. Only a cache."""

    def __init__(self) -> None:
        self._predicted: dict[str, _Predicted] = {}

    def profile(self, world: World, spec: JobSpec, profiles: Profiles) -> Profile | None:
        """The profile of a job of which, at its batch size, nothing was seen; None where its type does not say it."""
        if spec.batch_size is None or profiles.predict is None:
            return None
        key, of = spec.learns_as, _seen_of(world, spec.type_name)
        known = self._predicted.get(key)
        if known is not None and known.usual is world.usual_times and _same(known.of, of):
            return known.profile
        seen = observations_of_type(world, spec.type_name)
        found = profiles.predict(key, spec.batch_size, seen, True) if seen else None
        self._predicted[key] = _Predicted(of, world.usual_times, found)
        return found


def _seen_of(world: World, type_name: str) -> tuple[Observations | None, ...]:
    of_type = world.observed.get(type_name)
    batches = () if of_type is None else of_type.batches
    return tuple(world.observed.get(observed_as(type_name, batch)) for batch in batches)


def _same(before: tuple[Observations | None, ...], now: tuple[Observations | None, ...]) -> bool:
    """Whether they are the very same objects: to compare values takes longer than to look what changed."""
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))
