"""The parts of a training that a script gives by name: what can be one, and what each rank keeps of them as its own.

Random generators and `Values` differ from rank to rank: their states go where a rank's random states go, as text that
JSON can hold. All other parts have `state_dict` and `load_state_dict`, and are the writer's to save.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdl.trainer import generators, rng
from hpcdl.trainer.session import log
from hpcdl.trainer.values import Values

OWN = "own"  # beside a rank's random states


def is_own(part: Any) -> bool:
    """Whether each rank keeps its own state of it."""
    return isinstance(part, Values) or generators.is_generator(part)


def shared_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the writer saves for all."""
    return {name: part for name, part in parts.items() if part is not None and not is_own(part)}


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raises TypeError where a part has no state that could be saved: before a step is trained, not at a save."""
    for name, part in parts.items():
        if isinstance(part, Values):
            part.state_dict()
        elif part is not None and not is_own(part) and not has_state(part):
            raise TypeError(
                f"{name} has no state that hpcdl can save: {type(part).__name__} lacks state_dict or load_state_dict. "
                "A part is a model, an optimizer, a random generator of NumPy, Python or PyTorch, or, for numbers, "
                "lists and tensors, suspendable.Values(...)"
            )


def has_state(part: Any) -> bool:
    """Whether it can be saved and loaded as PyTorch does."""
    if isinstance(part, type):
        return False
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


def capture_own(parts: Mapping[str, Any]) -> dict[str, Any]:
    """This rank's random states, and the states of its own parts, for `restore_own`."""
    return {**rng.capture(), OWN: own_states(parts)}


def restore_own(parts: Mapping[str, Any], states: dict[str, Any]) -> None:
    """Set what `capture_own` gave."""
    set_own_states(parts, states.get(OWN, {}))
    rng.restore(states)


def own_states(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The states of this rank's own parts."""
    return {
        name: part.state_dict() if isinstance(part, Values) else generators.state_of(part)
        for name, part in parts.items()
        if is_own(part)
    }


def set_own_states(parts: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Set what `own_states` gave. A part that the checkpoint has not begins anew, and is named."""
    for name, part in parts.items():
        if not is_own(part):
            continue
        if name not in own:
            log.warning("the checkpoint has nothing of the part %s, which begins anew", name)
        elif isinstance(part, Values):
            part.load_state_dict(own[name])
        else:
            generators.set_state(part, own[name])
