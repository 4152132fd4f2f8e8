"""Random generators that a training script made itself: their states, and which of them a data set holds.

NumPy's `Generator` and `RandomState`, Python's `random.Random`, PyTorch's `Generator`. The libraries' global ones are
`rng.py`'s. A state is plain values that JSON can hold.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcdl.trainer import rng

HELD = "held"  # beside the libraries' states
LIMIT = 20_000  # objects that are looked at, and
ENTRIES = 1_000  # entries of a list or dict: what has more is data
LIBRARIES = ("site-packages", "dist-packages")
STANDARD = os.path.dirname(os.__file__) + os.sep


def is_generator(value: Any) -> bool:
    """Whether it is one whose state can be saved."""
    return bool(_kind(value))


def state_of(generator: Any) -> dict[str, Any]:
    """Its state now, for `set_state`."""
    kind = _kind(generator)
    if kind == "python":
        version, internal, gauss = generator.getstate()
        return {kind: [version, list(internal), gauss]}
    if kind == "torch":
        return {kind: bytes(generator.get_state().tolist()).hex(), "device": str(generator.device)}
    state = generator.get_state(legacy=False) if kind == "numpy-legacy" else generator.bit_generator.state
    return {kind: _lists(state)}


def set_state(generator: Any, state: dict[str, Any]) -> None:
    """Set what `state_of` gave. Raises ValueError where that was of another kind of generator."""
    kind = _kind(generator)
    if kind not in state:
        raise ValueError(f"a {type(generator).__name__} cannot go on from the state of another kind of generator")
    if kind == "python":
        version, internal, gauss = state[kind]
        generator.setstate((version, tuple(internal), gauss))
    elif kind == "torch":
        import torch

        generator.set_state(torch.tensor(list(bytes.fromhex(state[kind])), dtype=torch.uint8))
    elif kind == "numpy-legacy":
        generator.set_state(_arrays(state[kind], generator.get_state(legacy=False)))
    else:
        generator.bit_generator.state = _arrays(state[kind], generator.bit_generator.state)


def made(state: dict[str, Any]) -> Any:
    """A new generator that goes on from what `state_of` gave."""
    generator: Any
    if "python" in state:
        generator = random.Random()
    elif "torch" in state:
        import torch

        generator = torch.Generator(state["device"])
    else:
        import numpy

        kind = "numpy" if "numpy" in state else "numpy-legacy"
        bits = getattr(numpy.random, state[kind]["bit_generator"])()
        generator = numpy.random.Generator(bits) if kind == "numpy" else numpy.random.RandomState(bits)
    set_state(generator, state)
    return generator


def _kind(value: Any) -> str:
    if isinstance(value, random.Random):
        return "" if isinstance(value, random.SystemRandom) else "python"
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.Generator):
        return "numpy"
    if numpy is not None and isinstance(value, numpy.RandomState):
        return "numpy-legacy"
    return "torch" if torch is not None and isinstance(value, torch.Generator) else ""


def _lists(state: Any) -> Any:
    """NumPy's state with lists for its arrays."""
    if isinstance(state, dict):
        return {name: _lists(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def _arrays(state: Any, like: Any) -> Any:
    """NumPy's state with arrays where `like`, another of that kind, has them."""
    if isinstance(state, dict):
        return {
            name: _arrays(value, like.get(name) if isinstance(like, dict) else None) for name, value in state.items()
        }
    import numpy

    return numpy.array(state, dtype=like.dtype) if isinstance(like, numpy.ndarray) else state


class HeldGenerators:
    """The libraries' generators, and those that some objects, a data set say, hold by whatever way: attributes, lists,
    transforms, closures, and variables of the script that their functions name. One has the name of the way to it."""

    def __init__(self, roots: Callable[[], Mapping[str, Any]], apart: Sequence[Any] = ()) -> None:
        """`roots`: gives the objects, by a name that each has in every attempt. `apart`: not looked into."""
        self._roots, self._apart = roots, apart
        self._found: dict[str, Any] = {}

    def capture(self, again: bool = True) -> dict[str, Any]:
        """All states now, for `restore`. `again`: look for the objects' own, else they are those of before."""
        if again:
            self._look()
        return {**rng.capture(), HELD: {name: state_of(generator) for name, generator in self._found.items()}}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Set what `capture` gave, or in an earlier version `rng.capture`. A generator that is made at its first use,
        and is not there yet, is made. Raises RuntimeError for one that is nowhere."""
        self._look()
        for name, state in states.get(HELD, {}).items():
            if name in self._found:
                set_state(self._found[name], state)
            elif not self._make(name, state):
                raise RuntimeError(
                    f"the checkpoint has the state of a random generator, {name}, that is not there: without it the "
                    "data is other data. Let the data set make it as before, or begin anew"
                )
        rng.restore(dict(states))

    def _make(self, name: str, state: dict[str, Any]) -> bool:
        way, _, attribute = name.rpartition(".")
        for there, value in self._reached():
            if there == way and hasattr(value, "__dict__"):
                if getattr(value, attribute, None) is not None:
                    return False
                setattr(value, attribute, made(state))
                return True
        return False

    def _look(self) -> None:
        self._found = {name: value for name, value in self._reached() if is_generator(value)}

    def _reached(self) -> Iterator[tuple[str, Any]]:
        """What can be reached from the roots, nearest first, each by one name, without the libraries' own generators;
        the same in each process that runs the same script."""
        yield from _reached(self._roots(), [*self._apart, *_of_libraries()])


def _reached(roots: Mapping[str, Any], apart: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    waiting = deque(roots.items())
    seen: dict[int, Any] = {id(each): each for each in apart}
    while waiting and len(seen) < LIMIT:
        name, value = waiting.popleft()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, complex, type(None))):
            continue
        seen[id(value)] = value
        yield name, value
        if not is_generator(value):
            with contextlib.suppress(Exception):  # of an object that lets nobody look into it
                waiting.extend(_next(name, value))


def _of_libraries() -> Iterator[Any]:
    yield getattr(random, "_inst", None)
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        yield getattr(numpy.mtrand, "_rand", None)
    if torch is not None:
        yield torch.default_generator


def _next(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", each) for key, each in value.items()] if len(value) <= ENTRIES else []
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{number}]", each) for number, each in enumerate(value)] if len(value) <= ENTRIES else []
    if isinstance(value, functools.partial):
        return [(f"{name}.func", value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [(f"{name}.__self__", value.__self__), (f"{name}.__func__", value.__func__)]
    if isinstance(value, types.FunctionType):
        return _named_in(value.__code__, value) if _of_script(value.__code__.co_filename) else []
    if isinstance(value, type):
        file = getattr(sys.modules.get(value.__module__), "__file__", "" if value.__module__ == "__main__" else None)
        return _attributes(f"{value.__module__}.{value.__qualname__}", value) if _of_script(file) else []
    if isinstance(value, types.ModuleType):
        return []
    if isinstance(value, (staticmethod, classmethod)):
        return [(f"{name}.__func__", value.__func__)]
    if isinstance(value, property):
        return [(f"{name}.fget", value.fget)]
    classes = [(f"{each.__module__}.{each.__qualname__}", each) for each in type(value).__mro__]
    return [*_attributes(name, value), *classes]


def _attributes(name: str, value: Any) -> list[tuple[str, Any]]:
    slots = [slot for each in type(value).__mro__ for slot in _words(vars(each).get("__slots__", ()))]
    found = {slot: getattr(value, slot, None) for slot in slots if isinstance(slot, str) and slot != "__dict__"}
    found.update(getattr(value, "__dict__", {}))
    return [(f"{name}.{attribute}", each) for attribute, each in found.items()]


def _words(slots: Any) -> Iterable[Any]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _named_in(code: types.CodeType, function: types.FunctionType) -> list[tuple[str, Any]]:
    """What a function holds, and what of the script's variables it, and those that are within it, name."""
    module = function.__globals__
    found = [("", each) for each in (function.__defaults__, function.__kwdefaults__)]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # nothing is in it yet
            continue
    codes = [code]
    for each in codes:  # which grows
        codes += [inner for inner in each.co_consts if isinstance(inner, types.CodeType)]
    names = {name: None for each in codes for name in each.co_names}
    for name in names:
        value = module.get(name)
        if isinstance(value, types.ModuleType) and _of_script(getattr(value, "__file__", None)):
            found += [(f"{name}.{each}", vars(value)[each]) for each in names if each in vars(value)]
        elif value is not None:
            found.append((name, value))
    return [(f"{function.__module__}.{function.__qualname__}:{name}", value) for name, value in found]


def _of_script(file: str | None) -> bool:
    """Whether code is the script's own or of a package beside it, and no library's."""
    if file is None:  # built in
        return False
    file = os.path.abspath(file)
    return not file.startswith(STANDARD) and not any(f"{os.sep}{name}{os.sep}" in file for name in LIBRARIES)
