"""An example of any record of the core, from the types of its fields alone."""

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct, structs

T = TypeVar("T")
PLAIN: dict[Any, Any] = {int: 1, float: 0.5, str: "x", bool: True}


def sample(kind: type[T], **given: Any) -> T:
    """One with these fields where it has them, and all others set: ids to 1, texts to `x`, enumerations to their last.

    Values inside of it have only the fields that have no default.
    """
    return _made(kind, _names(kind), given)


def _made(kind: type[T], names: set[str], given: dict[str, Any]) -> T:
    hints = typing.get_type_hints(kind)
    return kind(**{name: given.get(name, _value(hints[name])) for name in names})


def _value(hint: Any) -> Any:
    if hint in PLAIN:
        return PLAIN[hint]
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(each) for each in inner if each is not Ellipsis)
    if isinstance(hint, types.UnionType):
        return _value(next(each for each in inner if each is not type(None)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    return _made(hint, _names(hint, needed=True), {})


def _names(kind: Any, needed: bool = False) -> set[str]:
    """Of its fields; `needed`: that have no default."""
    if issubclass(kind, Struct):
        return {field.name for field in structs.fields(kind) if not needed or field.required}
    assert is_dataclass(kind), f"no example of {kind}"
    plain = [field.default is MISSING and field.default_factory is MISSING for field in fields(kind)]
    return {field.name for field, bare in zip(fields(kind), plain, strict=True) if not needed or bare}
