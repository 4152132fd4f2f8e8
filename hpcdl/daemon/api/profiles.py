"""The API's routes about profiles (docs/api.md), and the files that are read anew while the daemon runs."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import Request

from hpcdl.controller import Controller
from hpcdl.core import commands as cmd
from hpcdl.core.plan import Profiles
from hpcdl.core.profile import Profile, ProfileError
from hpcdl.daemon.answering import Problem
from hpcdl.daemon.loop import Loop
from hpcdl.daemon.profilerows import profile_row, profile_rows
from hpcdl.profiles import conf_folder, load_profiles


class Known(Mapping[str, Profile]):
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

    def read_anew(self, profiles: dict[str, Profile]) -> "Known":
        """From now on these; another one that shows the same."""
        self._read[0] = profiles
        return Known(self._read)


def read_known(home: Path) -> dict[str, Profile]:
    """The project's profiles and those of `home`. Raises ProfileError and OSError."""
    found = load_profiles([conf_folder() / "profiles", home / "profiles"])
    return {alias.lower(): profile for profile in found.values() for alias in profile.aliases} | found


class ProfileRoutes:
    """Handlers of requests; each answers one JSON object."""

    def __init__(self, loop: Loop, profiles: Profiles, home: Path) -> None:
        self._loop = loop
        self._profiles = profiles
        self._home = home

    async def known(self, request: Request) -> dict[str, Any]:
        """`GET /v1/profiles`."""
        world, name = self._loop.world, request.query_params.get("name")
        if name is None:
            return {"profiles": await asyncio.to_thread(profile_rows, world, self._profiles)}
        row = await asyncio.to_thread(profile_row, world, self._profiles, name)
        if row is None:
            from difflib import get_close_matches

            near = get_close_matches(
                name.strip().lower(), [*self._profiles.by_name, *map(str.lower, world.observed)], 1
            )
            hint = f"did you mean {near[0]!r}?" if near else "hpcdl profile ls lists them"
            raise Problem(404, f"there is no profile {name[:100]!r}: {hint}", "unknown-profile")
        return {"profiles": [row]}

    async def read(self, request: Request) -> dict[str, Any]:
        """`POST /v1/profiles/read`: the files again; jobs are decided by the new ones at once."""
        try:
            found = await asyncio.to_thread(read_known, self._home)
        except (ProfileError, OSError) as error:
            raise Problem(400, f"nothing was changed: {error}", "bad-profile") from error

        def take(controller: Controller) -> dict[str, Any]:
            known = controller.profiles.by_name
            if not isinstance(known, Known):
                raise Problem(409, "this daemon's profiles are fixed: start it again", "fixed")
            before = {profile.name: profile for profile in known.values()}
            after = {profile.name: profile for profile in found.values()}
            controller.profiles = replace(controller.profiles, by_name=known.read_anew(found))
            return {
                "added": sorted(after.keys() - before.keys()),
                "changed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
                "removed": sorted(before.keys() - after.keys()),
            }

        answer = await asyncio.wrap_future(self._loop.call(take))
        self._loop.send(cmd.Tick())
        return answer
