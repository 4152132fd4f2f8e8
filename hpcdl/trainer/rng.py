"""The states of the random generators that a training script uses, as plain values that JSON can hold.

Only libraries that are loaded already are asked: Python's own, NumPy's global one, PyTorch's on the CPU, and on the
GPUs if CUDA is initialised, TensorFlow's. A generator that the script made itself is the script's own to save.
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
    generator, seeds = _of_tensorflow()
    if generator is not None:
        state["tensorflow"] = [int(each) for each in generator.state.numpy()]
    if seeds is not None:
        version, internal, gauss = seeds.getstate()
        state["tensorflow_seeds"] = [version, list(internal), gauss]
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
    generator, seeds = _of_tensorflow()
    if generator is not None and "tensorflow" in state:
        generator.state.assign(state["tensorflow"])
    if seeds is not None and "tensorflow_seeds" in state:
        version, internal, gauss = state["tensorflow_seeds"]
        seeds.setstate((version, tuple(internal), gauss))


def _of_tensorflow() -> tuple[Any, Any]:
    """Its global generator, and what `tf.random.set_seed` draws the seeds of operations from; each None where nobody
    has used it. To ask for them by TensorFlow's own functions would make them."""
    generators = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    generator = getattr(generators, "global_generator", None)
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    seed = getattr(context, "global_seed", None)  # not TensorFlow's public name, and no save is to fail for want of it
    if seed is None or seed() is None:
        return generator, None
    return generator, getattr(context.context(), "_rng", None)


def _bytes(torch: Any, text: str) -> Any:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
