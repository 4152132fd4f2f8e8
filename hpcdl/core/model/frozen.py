"""Records (frozen dataclasses, msgspec's Structs): to plain JSON values and back by their type hints; copies of
dataclasses with some fields changed.

Unknown keys are ignored when they are read: old code reads new data. All that is stored or sent goes through here.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from dataclasses import fields, make_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

Json = Any

T = TypeVar("T")

_Decoder = Callable[[Json], Any]


class CodecError(ValueError):
    """The data does not have the shape of the type; the message names the field."""


def to_json(value: Any) -> Json:
    """A record, tuple, dict, enum or scalar as values that `json.dumps` takes."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [item if type(item) in _SCALARS else to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return {name: to_json(getattr(value, name)) for name in _names(typing.cast(Hashable, kind))}


def from_json(kind: type[T], data: Json) -> T:
    """The record `kind` from plain values. Raises CodecError that names the field."""
    try:
        decoded: T = _decoder(typing.cast(Hashable, kind))(data)
    except CodecError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise CodecError(f"{kind.__name__}: {error}") from error
    return decoded


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _is_struct(kind: Any) -> bool:
    """Asked without msgspec: all of this runs where nothing is installed, too."""
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__")


@cache
def _names(kind: Hashable) -> tuple[str, ...]:
    if _is_struct(kind):
        names: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
        return names
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        raise CodecError(f"cannot write a {kind!r}")
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


@cache
def _decoder(kind: Hashable) -> _Decoder:
    if isinstance(kind, types.GenericAlias) or typing.get_origin(kind) is not None:
        return _composite(kind)
    if kind is Any:
        return lambda data: data
    if kind is None:  # as `dict[int, None]` has it
        return _scalar(type(None))
    if isinstance(kind, type) and kind in _SCALARS:
        return _scalar(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if isinstance(kind, type) and (_is_struct(kind) or dataclasses.is_dataclass(kind)):
        return _record(kind)
    raise CodecError(f"cannot read a {kind!r}")


def _scalar(kind: type) -> _Decoder:
    allowed: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def decode(data: Json) -> Any:
        if type(data) not in allowed:
            raise CodecError(f"expected {kind.__name__}, got {type(data).__name__}")
        return float(data) if kind is float else data

    return decode


def _composite(kind: Any) -> _Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        rest = [_decoder(argument) for argument in arguments if argument is not type(None)]
        if len(rest) != 1 or len(arguments) != 2:
            raise CodecError(f"cannot read the union {kind}")
        only = rest[0]
        return lambda data: None if data is None else only(data)
    if kind == tuple[tuple[str, str], ...]:
        return _pairs
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _decoder(arguments[0])
        return lambda data: tuple([item(entry) for entry in _listed(data)])
    if origin is tuple:
        items = [_decoder(argument) for argument in arguments]
        return lambda data: tuple(item(entry) for item, entry in zip(items, _listed(data), strict=True))
    if origin is dict:
        key, value = _key_decoder(arguments[0]), _decoder(arguments[1])
        return lambda data: {key(name): value(entry) for name, entry in _object(data).items()}
    raise CodecError(f"cannot read a {kind}")


def _pairs(data: Json) -> tuple[tuple[str, str], ...]:
    """Of texts: the environment of a job, which is most of a submit."""
    found = []
    for entry in _listed(data):
        key, value = _listed(entry)
        if type(key) is not str or type(value) is not str:
            raise CodecError(f"expected two str, got {type(key).__name__} and {type(value).__name__}")
        found.append((key, value))
    return tuple(found)


def _key_decoder(kind: Any) -> Callable[[str], Any]:
    """How a key is read back from the text that JSON makes of it: `str` of the key."""
    if kind in (str, int):
        return typing.cast(Callable[[str], Any], kind)
    if isinstance(kind, type) and hasattr(kind, "parse"):
        return typing.cast(Callable[[str], Any], kind.parse)
    raise CodecError(f"cannot read keys of {kind!r}")


def _object(data: Json) -> dict[str, Any]:
    if type(data) is not dict:
        raise CodecError(f"expected an object, got {type(data).__name__}")
    return data


def _listed(data: Json) -> Any:
    if not isinstance(data, list | tuple):
        raise CodecError(f"expected a list, got {type(data).__name__}")
    return data


def _record(kind: type) -> _Decoder:
    hints = typing.get_type_hints(kind)
    names = _names(typing.cast(Hashable, kind))
    decoders = {name: _decoder(hints[name]) for name in names}

    def decode(data: Json) -> Any:
        if type(data) is not dict:  # not _object: this is the path of every event, and names its kind
            raise CodecError(f"{kind.__name__}: expected an object, got {type(data).__name__}")
        values = {}
        for key, value in data.items():
            decoder = decoders.get(key)
            if decoder is not None:
                try:
                    values[key] = decoder(value)
                except CodecError as error:
                    raise CodecError(f"{kind.__name__}.{key}: {error}") from error
                except ValueError as error:
                    raise CodecError(f"{kind.__name__}.{key}: {error}") from error
        return kind(**values)

    return decode


def changed(value: T, **changes: Any) -> T:
    """A copy of a frozen, slotted dataclass with other values in these fields: a fast `dataclasses.replace`.

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
