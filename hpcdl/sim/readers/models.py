"""From the name of a model in a file to its profile, and profiles for jobs that have none."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from hpcdl.core.profile import MAX_GPUS, Point, Profile, find_profile

_BATCH = re.compile(r"\s*\(batch size \d+\)$")
_NODES = 1_024


class ModelUnknown(ValueError):
    """No profile has that name, or several might be meant (`ambiguous`); the message lists the candidates."""

    def __init__(self, message: str, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


def known_model(profiles: Mapping[str, Profile], name: str) -> Profile | None:
    """The profile of that name or alias, whatever its case and spaces; `(batch size N)` may be left out.

    None if there is none, ModelUnknown if there are several that only their batch size tells apart.
    """
    wanted = " ".join(name.split())
    if not wanted:
        return None
    found = find_profile(profiles, wanted)
    if found is not None:
        return found
    same = [profile for key, profile in profiles.items() if _BATCH.sub("", key) == wanted.casefold()]
    if len(same) > 1:
        names = ", ".join(repr(profile.name) for profile in same)
        raise ModelUnknown(f"{name!r} may be any of {names}: write one of them in full", ambiguous=True)
    return same[0] if same else None


def find_model(profiles: Mapping[str, Profile], name: str) -> Profile:
    """As `known_model`, but ModelUnknown with the nearest names where there is none."""
    found = known_model(profiles, name)
    if found is not None:
        return found
    if not name:
        raise ModelUnknown("is empty: name a profile, or give a duration_s instead of steps")
    near = difflib.get_close_matches(name.casefold(), [key.casefold() for key in profiles], n=3, cutoff=0.5)
    listed = near or sorted(profiles)[:8]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(map(repr, listed))}"
    if not profiles:
        hint = "there are no profiles: give some with --profiles, or a duration_s instead of steps"
    raise ModelUnknown(f"no profile is called {name[:80]!r}; {hint}")


@lru_cache(maxsize=4096)
def rigid(name: str, gpus: int, nodes: int = 1) -> Profile:
    """A profile that says only what a log does: 1 step/s on `nodes` x `gpus` GPUs, proportional below, flat above."""
    points: tuple[Point, ...] = ((nodes, gpus, 1.0),)
    source = f"assumed: the run time of a log on {nodes} x {gpus} GPUs, proportional below"
    return Profile(name=name, points=points, source=source)


@lru_cache(maxsize=4096)
def as_inference(profile: Profile) -> Profile:
    """Its rates without a communication penalty (GENIE: Comm = 0): n GPUs are n times one, on any number of nodes."""
    return replace(
        profile,
        name=f"{profile.name}-inference",
        aliases=(),
        points=_linear(profile.rate(1)),
        kinds=tuple((kind, _linear(profile.on(kind).rate(1))) for kind, _ in profile.kinds),
        source=f"{profile.source}; inference: linear from one GPU, no communication".lstrip("; "),
    )


def _linear(one: float) -> tuple[Point, ...]:
    # Between these four corners the interpolation, linear along both axes, gives nodes * gpus * one.
    return tuple((nodes, gpus, one * nodes * gpus) for nodes in (1, _NODES) for gpus in (1, MAX_GPUS))
