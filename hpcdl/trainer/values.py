"""What a training loop keeps beside its parts, as plain values: in text that JSON can hold.

No class of a script's own is ever made from a checkpoint: numbers, text, lists, tuples, dicts, sets, arrays and tensors
come back, and nothing else. `torch.py` and its neighbours have `Values` among their parts, `keras_callbacks.py` what
callbacks keep.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

PLAIN = (type(None), bool, int, float, str)


class Values:
    """A part with whatever attributes a loop gives it, saved and loaded with the others:

        sums = suspendable.Values(running=0.0)
        for step in suspendable.steps(1000, model=model, sums=sums):
            sums.running += train(step)

    Numbers, text, lists, tuples, dicts, sets, NumPy's arrays and PyTorch's tensors. Each rank keeps its own.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def state_dict(self) -> dict[str, Any]:
        """All of them, for JSON. Raises TypeError, by name, for what cannot be saved."""
        return {name: encode(value, name, _encode_array) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what `state_dict` gave. Lists, dicts, sets, and tensors that an optimizer may have, stay the objects that
        they are."""
        for name, saved in state.items():
            value, before = decode(saved, _decode_array), vars(self).get(name)
            if isinstance(before, list) and isinstance(value, list):
                before[:] = value
            elif isinstance(before, (dict, set)) and isinstance(value, (dict, set)):
                before.clear()
                before.update(value)
            elif before is not None and _is_tensor(before) and before.requires_grad and _is_tensor(value):
                before.detach().copy_(value)
            else:
                device = before.device if before is not None and _is_tensor(before) else "cpu"
                setattr(self, name, value.to(device) if _is_tensor(value) else value)


def encode(value: Any, name: str, array: Callable[[Any], Any]) -> Any:
    """What JSON can hold. `array(value)`: the same of anything else, an array say, or None where it is none. Raises
    TypeError, with the name, for what is neither."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list):
        return [encode(each, name, array) for each in value]
    if isinstance(value, (tuple, set)):
        return {"tuple" if isinstance(value, tuple) else "set": [encode(each, name, array) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(each, name, array) for each in pair] for pair in value.items()]}
    kept = array(value)
    if kept is None:
        raise TypeError(f"{name} is of {type(value).__name__}, which is no plain value: hpcdl cannot save it")
    return {"array": kept}


def decode(value: Any, array: Callable[[Any], Any]) -> Any:
    """What `encode` was given. `array`: of what its own has kept."""
    if isinstance(value, list):
        return [decode(each, array) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, kept),) = value.items()
    if kind == "array":
        return array(kept)
    if kind == "dict":
        return {decode(key, array): decode(each, array) for key, each in kept}
    return {"tuple": tuple, "set": set}[kind](decode(each, array) for each in kept)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _encode_array(value: Any) -> dict[str, Any] | None:
    kind = "numpy"
    if _is_tensor(value):
        import torch

        kind, name, shape = "torch", str(value.dtype).rpartition(".")[2], list(value.shape)
        # NumPy has not all of PyTorch's types.
        value = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    else:
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.kind in "OV":
            return None
        name, shape = value.dtype.str, list(value.shape)
    return {kind: base64.b64encode(value.tobytes()).decode(), "type": name, "shape": shape}


def _decode_array(kept: dict[str, Any]) -> Any:
    if "torch" in kept:
        import torch

        data = torch.tensor(list(base64.b64decode(kept["torch"])), dtype=torch.uint8)
        return data.view(getattr(torch, kept["type"])).reshape(kept["shape"])
    import numpy

    return numpy.frombuffer(base64.b64decode(kept["numpy"]), kept["type"]).reshape(kept["shape"]).copy()[()]
