"""The states of the random generators that a training script uses, as plain values that JSON can hold.

Only libraries that are loaded already are asked: Python's own, NumPy's global one, PyTorch's on the CPU, and on the
GPUs if CUDA is initialised. A generator that the script made itself is the script's own to save.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """The state now, for `restore`."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(internal), gauss]}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    if torch is not None:
        state["torch"] = bytes(torch.get_rng_state().tolist()).hex()
        if torch.cuda.is_initialized():
            state["cuda"] = [bytes(each.tolist()).hex() for each in torch.cuda.get_rng_state_all()]
    return state


def restore(state: dict[str, Any]) -> None:
    """Set what `capture` gave, as far as the libraries are loaded. GPUs beyond those in the state are left alone."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if torch is not None and "torch" in state:
        torch.set_rng_state(_bytes(torch, state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(_bytes(torch, each), device)


def _bytes(torch: Any, text: str) -> Any:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
