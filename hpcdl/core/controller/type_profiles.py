"""GENIE's database: the profile of a job at a batch size that nobody saw, from other jobs of its type, else from the
type whose model is most like its own.

What was seen is in the world (`fold/observations.py`), so nothing is stored here, and one that starts anew says the
same. `view_builder.py` shows it to policies, the API to users; `Profiles.predict` has the model of the rates,
`model/structure.py` says which types are alike.
"""

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from hpcdl.core.fold.observations import observations_of_type
from hpcdl.core.model.job import JobSpec, observed_as
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Observations, Profile
from hpcdl.core.model.structure import most_alike
from hpcdl.core.model.units import ranges
from hpcdl.core.model.world import World

_Objects = tuple[object, ...]
_T = TypeVar("_T")

MOST = 16_384
"""Types and batch sizes of which a prediction is remembered; of older ones it is made anew."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What other jobs say of a job's rate. `profile` None: nothing; `words`: which they are, or why none does."""

    profile: Profile | None
    words: str


class TypeProfiles:
    """Predictions by type and batch size. Only a cache."""

    def __init__(self) -> None:
        self._own: dict[str, tuple[_Objects, Profile | None]] = {}
        self._of_others: dict[str, tuple[_Objects, Prediction]] = {}

    def profile(self, world: World, spec: JobSpec, profiles: Profiles) -> Profile | None:
        """The profile of a job of which, at its batch size, nothing was seen; None where nothing says it."""
        found = self.prediction(world, spec, profiles)
        return None if found is None else found.profile

    def prediction(self, world: World, spec: JobSpec, profiles: Profiles) -> Prediction | None:
        """The same in words, too; None of a job that says no batch size."""
        if spec.batch_size is None or profiles.predict is None:
            return None
        key, seen = spec.learns_as, (world.usual_times, *_seen_of(world, spec.type_name))
        known = self._own.get(key)
        if known is None or not _same(known[0], seen):
            known = _kept(self._own, key, (seen, _of_type(world, spec, spec.type_name, profiles)))
        if known[1] is not None:
            return Prediction(known[1], f"its rate at batch size {spec.batch_size} is {known[1].source}")
        last = next(reversed(world.observed.values()), None)  # it is another one whenever anything was seen
        others = self._of_others.get(key)
        if others is None or not _same(others[0], (last, world.usual_times)):
            found = _of_most_alike(world, spec, profiles)
            if others is not None and others[1] == found:
                found = others[1]
            others = _kept(self._of_others, key, ((last, world.usual_times), found))
        return others[1]


def _kept(cache: dict[str, _T], key: str, value: _T) -> _T:
    """Remembers a value as the newest one, and forgets the oldest where there are too many."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > MOST:
        del cache[next(iter(cache))]
    return value


def _seen_of(world: World, type_name: str) -> tuple[Observations | None, ...]:
    of_type = world.observed.get(type_name)
    batches = () if of_type is None else of_type.batches
    return tuple(world.observed.get(observed_as(type_name, batch)) for batch in batches)


def _same(before: _Objects, now: _Objects) -> bool:
    """Whether they are the very same objects: to compare values takes longer than to look what changed."""
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))


def _of_type(world: World, spec: JobSpec, type_name: str, profiles: Profiles) -> Profile | None:
    """By the model of jobs of this type, at the job's batch size."""
    assert spec.batch_size is not None
    assert profiles.predict is not None
    seen = observations_of_type(world, type_name)
    return profiles.predict(spec.learns_as, spec.batch_size, seen, not spec.infers) if seen else None


def _of_most_alike(world: World, spec: JobSpec, profiles: Profiles) -> Prediction:
    """By that of the type whose model is most like the job's own, of those that have one."""
    of_type = world.observed.get(spec.type_name, Observations())
    unknown = f"nothing says its rate at batch size {spec.batch_size}"
    if of_type.batches:
        unknown += f" (of its type {ranges(of_type.batches)} {'was' if len(of_type.batches) == 1 else 'were'} seen)"
    if of_type.structure is None:
        return Prediction(None, f"{unknown}: no trainer of its type has said what its model is made of")
    if of_type.structure.activation_bytes is None:
        return Prediction(
            None,
            f"{unknown}: its trainer did not say the bytes of its activations "
            "(structure.watch(model) of hpcdl.trainer does)",
        )
    others = [
        (name, seen.structure)
        for name, seen in world.observed.items()
        if seen.structure is not None and seen.batches and seen.infers == spec.infers and name != spec.type_name
    ]
    for away, name, structure in most_alike(of_type.structure, others):
        found = _of_type(world, spec, name, profiles)
        if found is not None:
            spread = math.expm1(math.hypot(math.log1p(found.spread), away))
            trials = tuple(replace(each, scale=math.hypot(each.scale, away)) for each in found.trials)
            source = f"that of the most similar type, {name}, {found.source}"
            words = f"its rate at batch size {spec.batch_size} is {source}: {of_type.structure.text(structure)}"
            return Prediction(replace(found, spread=spread, trials=trials, source=source), words)
    return Prediction(None, f"{unknown}: no type that was profiled is like its model")
