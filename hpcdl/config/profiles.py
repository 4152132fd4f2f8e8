"""Scaling profiles from YAML files: conf/profiles of the project, and the user's own.

`hpcdl.core.model.profile` has the values and checks them; a wrong file is refused in a line with file and key.
"""

from collections.abc import Iterable
from pathlib import Path

from hpcdl.config.layers import constructed, yaml_file
from hpcdl.core.model.profile import Profile, ProfileError


def load_profiles(folders: Iterable[Path]) -> dict[str, Profile]:
    """Every profile in the *.yaml files of the folders, by name in lower case; see `find_profile`.

    A file holds `profiles:` (name -> see `Profile.from_mapping`) and may hold a `source:` for those that have none. A
    profile in a later folder replaces one of the same name in an earlier folder; twice in one folder is an error. A
    folder that does not exist holds none. ProfileError names file, profile and key; OSError passes through.
    """
    profiles: dict[str, Profile] = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        names: dict[str, Path] = {}
        for path in sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml") and path.is_file()):
            for profile in read_profiles(path):
                for name in dict.fromkeys(known.casefold() for known in (profile.name, *profile.aliases)):
                    if name in names:
                        first = names[name]
                        raise ProfileError(f"{path}: profile {profile.name}: {name!r} is already used in {first}")
                    names[name] = path
                # Taken out first, so that the order of the dict is the order of precedence.
                profiles.pop(profile.name.casefold(), None)
                profiles[profile.name.casefold()] = profile
    return profiles


def read_profiles(path: Path) -> list[Profile]:
    """The profiles of one file, in its order. Raises as `load_profiles` does."""
    with yaml_file(path, ProfileError, "file of profiles", pipes=True) as root:
        data = constructed(root)
    listed = data.get("profiles") if isinstance(data, dict) else None
    if not isinstance(listed, dict):
        raise ProfileError(f"{path}: profiles: expected names and their profiles, got {type(listed).__name__}")
    profiles = []
    for name, mapping in listed.items():
        if not isinstance(name, str):
            raise ProfileError(f"{path}: profiles: a name must be text, got {name!r}: put it in quotes")
        if isinstance(mapping, dict):
            mapping = {"source": data.get("source", "")} | mapping
        try:
            profiles.append(Profile.from_mapping(name, mapping))
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from error
    return profiles
