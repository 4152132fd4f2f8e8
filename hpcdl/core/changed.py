"""A frozen value with some fields changed: `dataclasses.replace` for what is replaced a hundred thousand times."""

from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from itertools import repeat
from operator import attrgetter, call
from typing import Any, TypeVar, cast

T = TypeVar("T")


def changed(value: T, **changes: Any) -> T:
    """A copy of a frozen, slotted dataclass with other values in these fields.

    Its `__post_init__` is not called: only for kinds that have none, and for values that are known to be good.
    TypeError for a name that is no field.
    """
    if hasattr(value, "__post_init__"):
        raise TypeError(f"{type(value).__name__} checks its values: use dataclasses.replace")
    return unchecked(value, **changes)


def unchecked(value: T, **changes: Any) -> T:
    """As `changed`, also of kinds that check their values: the caller knows that they are good."""
    read, writers, by_name = _access(cast(Hashable, type(value)))
    new = object.__new__(type(value))
    any(map(call, writers, repeat(new), read(value)))  # each gives None, so it goes on to the last: no loop is faster
    for name, wanted in changes.items():
        write = by_name.get(name)
        if write is None:
            raise TypeError(f"{type(value).__name__} has no field {name!r}")
        write(new, wanted)
    return new


@cache
def _access(kind: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """How all its fields are read at once, and how each is written: by its slot, past the guard of a frozen class."""
    names = [field.name for field in fields(kind)]
    if len(names) < 2:
        raise TypeError(f"{kind.__name__} has too few fields: use dataclasses.replace")
    by_name = {name: getattr(kind, name).__set__ for name in names}
    return attrgetter(*names), tuple(by_name.values()), by_name
