"""The API's routes about profiles (docs/api.md), and the files that are read anew while the daemon runs."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from starlette.requests import Request

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.controller.controller import Controller
from hpcdl.core.fold.observations import observations_of, observations_of_type
from hpcdl.core.model import commands as cmd
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import Observations, Profile, ProfileError, find_profile
from hpcdl.core.model.units import meant
from hpcdl.core.model.world import World
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import ApiProblem
from hpcdl.daemon.api.rows import Json


class ProfileNames(Mapping[str, Profile]):
    """Profiles by name and alias, in lower case, as they were read last. Two of them are equal only if they are one:
    what was made with an earlier one is made again.
    """

    def __init__(self, read: list[dict[str, Profile]]) -> None:
        """`read`: the profiles, shared by all that show the same."""
        self._read = read

    def __getitem__(self, name: str) -> Profile:
        return self._read[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read[0])

    def __len__(self) -> int:
        return len(self._read[0])

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def read_anew(self, profiles: dict[str, Profile]) -> "ProfileNames":
        """From now on these; another one that shows the same."""
        self._read[0] = profiles
        return ProfileNames(self._read)


def read_known(home: Path) -> dict[str, Profile]:
    """The project's profiles and those of `home`. Raises ProfileError and OSError."""
    found = load_profiles([conf_folder() / "profiles", home / "profiles"])
    return {alias.lower(): profile for profile in found.values() for alias in profile.aliases} | found


@route("GET", "/v1/profiles")
async def known(api: ApiContext, request: Request) -> Json:
    """All profiles, or with `name` that one with its points."""
    world, name = api.world, request.query_params.get("name")
    if name is None:
        return {"profiles": await asyncio.to_thread(profile_rows, world, api.profiles)}
    row = await asyncio.to_thread(profile_row, world, api.profiles, name)
    if row is None:
        there = [*api.profiles.by_name, *map(str.lower, world.observed)]
        hint = meant(name.strip().lower(), there, "hpcdl profile ls lists them", text=repr)
        raise ApiProblem(404, f"there is no profile {name[:100]!r}: {hint}", "unknown-profile")
    return {"profiles": [row]}


@route("POST", "/v1/profiles/read")
async def read(api: ApiContext, request: Request) -> Json:
    """Reads the files again; jobs are decided by the new ones at once."""
    try:
        found = await asyncio.to_thread(read_known, Path(api.about.home))
    except (ProfileError, OSError) as error:
        raise ApiProblem(400, f"nothing was changed: {error}", "bad-profile") from error

    def take(controller: Controller) -> Json:
        known = controller.profiles.by_name
        if not isinstance(known, ProfileNames):
            raise ApiProblem(409, "this daemon's profiles are fixed: start it again", "fixed")
        before = {profile.name: profile for profile in known.values()}
        after = {profile.name: profile for profile in found.values()}
        controller.profiles = replace(controller.profiles, by_name=known.read_anew(found))
        return {
            "added": sorted(after.keys() - before.keys()),
            "changed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
            "removed": sorted(before.keys() - after.keys()),
        }

    answer = await api.call(take)
    api.loop.send(cmd.Tick())
    return answer


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
    """What was learnt under a name; of a type of which only jobs of known batch sizes were seen, GENIE's model."""
    seen, of_type = observations_of(world, key), world.observed.get(key)
    if seen is not None:
        profile = None if profiles.learn is None else profiles.learn(key, seen)
        metric = of_type.metric if profile is not None and of_type is not None else None
        return profile if profile is None or metric is None else replace(profile, accuracy=metric.points)
    if of_type is None or not of_type.batches or profiles.predict is None:
        return None
    batches = observations_of_type(world, key)
    return profiles.predict(key, max(batch for batch, _ in batches), batches, not of_type.infers) if batches else None


def _row(profile: Profile, seen: Observations | None) -> Json:
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
        "batches": [] if seen is None else sorted(seen.batches),
        "spread": profile.spread,
        "accuracy": [{"step": step, "metric": metric} for step, metric in profile.accuracy],
        "source": profile.source,
    }
