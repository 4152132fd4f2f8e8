"""Profiles as the API answers with them (docs/api.md): those of files, and those that were learnt."""

from typing import Any

from hpcdl.core.model import World
from hpcdl.core.observing import seen_of
from hpcdl.core.plan import Profiles
from hpcdl.core.profile import Profile, Seen, find_profile

Json = dict[str, Any]


def profile_rows(world: World, profiles: Profiles) -> list[Json]:
    """All profiles: those of files by name, then those that were learnt, the one that was seen last at the end.

    Takes a while where many were learnt.
    """
    known = {profile.name: profile for profile in profiles.by_name.values()}
    rows = [_row(known[name], None) for name in sorted(known)]
    for key in [*world.observed]:
        seen = world.observed.get(key)
        profile = _learnt(world, profiles, key)
        if profile is not None and seen is not None:
            rows.append(_row(profile, seen))
    return rows


def profile_row(world: World, profiles: Profiles, name: str) -> Json | None:
    """One of them, with all its points; None where there is none of that name."""
    profile = find_profile(profiles.by_name, name)
    seen = None
    if profile is None:
        key = name.strip().lower()
        keys = [each for each in world.observed if key in (each.lower(), each.lower().partition(" @ ")[0])]
        if not keys:
            return None
        exact = [each for each in keys if each.lower() == key]
        seen = world.observed.get((exact or keys)[-1])
        profile = _learnt(world, profiles, (exact or keys)[-1])
    return None if profile is None else _row(profile, seen) | {"profile": profile.to_mapping()}


def _learnt(world: World, profiles: Profiles, key: str) -> Profile | None:
    seen = seen_of(world, key)
    return None if seen is None or profiles.learn is None else profiles.learn(key, seen)


def _row(profile: Profile, seen: Seen | None) -> Json:
    if seen is None:
        curves = [*profile.kinds] or [("", profile.points)]
        points: list[tuple[str, int, int, float, float | None]]
        points = [(kind, nodes, gpus, rate, None) for kind, points in curves for nodes, gpus, rate in points]
    else:
        rates = sorted(seen.rates, key=lambda each: (each.kind, each.nodes, each.gpus))
        points = [(each.kind, each.nodes, each.gpus, each.steps / each.seconds, each.seconds) for each in rates]
    keys = ("kind", "nodes", "gpus", "rate", "seen_s")
    return {
        "name": profile.name,
        "learnt": seen is not None,
        "aliases": list(profile.aliases),
        "points": [dict(zip(keys, point, strict=True)) for point in points],
        "times": {} if seen is None else {each.what: each.seconds / each.times for each in seen.times},
        "spread": profile.spread,
        "source": profile.source,
    }
