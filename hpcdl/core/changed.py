"""A frozen value with some fields changed: `dataclasses.replace` for what is replaced a hundred thousand times."""

from collections.abc import Callable, Hashable
from dataclasses import fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


def changed(value: T, **changes: Any) -> T:
    """A copy of a frozen, slotted dataclass with other values in these fields.

    Its `__post_init__` is not called: only for kinds that have none, and for values that are known to be good.
    TypeError for a name that is no field.
    """
    access = _access(cast(Hashable, type(value)))
    if access.checks:
        raise TypeError(f"{type(value).__name__} checks its values: use dataclasses.replace")
    return _changed(value, access, changes)


def unchecked(value: T, **changes: Any) -> T:
    """As `changed`, also of kinds that check their values: the caller knows that they are good."""
    return _changed(value, _access(cast(Hashable, type(value))), changes)


class _Access(NamedTuple):
    """How values of a class are copied.

    `names`, `read`: its fields, and what reads them all at once. `thawed`: the same class, but not frozen. To write
    past the guard of a frozen class takes a call for each field; `thawed` has the same slots, so that what it makes can
    become one of the frozen class. `checks`: whether the class has a `__post_init__`.
    """

    names: frozenset[str]
    read: Callable[[Any], tuple[Any, ...]]
    thawed: Callable[..., Any]
    checks: bool


def _changed(value: T, access: _Access, changes: dict[str, Any]) -> T:
    new = access.thawed(*access.read(value))
    for name, wanted in changes.items():
        if name not in access.names:
            raise TypeError(f"{type(value).__name__} has no field {name!r}")
        setattr(new, name, wanted)
    new.__class__ = type(value)  # from here on it is frozen
    return cast(T, new)


@cache
def _access(kind: Any) -> _Access:
    names = [field.name for field in fields(kind)]
    if len(names) < 2:
        raise TypeError(f"{kind.__name__} has too few fields: use dataclasses.replace")
    thawed = make_dataclass(kind.__name__, names, slots=True, eq=False)
    return _Access(frozenset(names), attrgetter(*names), thawed, hasattr(kind, "__post_init__"))
