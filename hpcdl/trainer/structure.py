"""What a model is made of, for the estimates of its rate: kinds of layers, parameters, bytes of activations.

Said once an attempt, by the first rank; by it hpcdl finds the type of job that is most like a new one (GENIE, section
6). The helpers only look at a model (`report`), and touch nothing: what a PyTorch module's layers put out is known by
hooks alone, and a module with hooks cannot be compiled as one graph, scripted, copied or stored whole. A script may
have them (`watch`). No framework is imported, and nothing is said where it is not known.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hpcdl.trainer.session import attach, log

MOST_KINDS = 64
"""Kinds of layers that are said, those that there are most of."""


def watch(model: Any) -> None:
    """Report the structure of a model with the bytes of its activations: of a PyTorch module after its next forward
    pass, for which it has hooks, of a Keras model at once, if it is built. Of anything else nothing is said.

    Not before the module is compiled, scripted, copied or stored whole.
    """
    _look(model, _Pass)


def report(model: Any) -> None:
    """Report the structure of a model at once: of a PyTorch module without the bytes of its activations."""
    _look(model, lambda torch, module: _say(*_of_module(torch, module), None))


def report_largest(models: Iterable[Any]) -> None:
    """As `report`, of the module of PyTorch among these that has most parameters."""

    def largest() -> Any:
        torch = sys.modules.get("torch")
        modules = [] if torch is None else [each for each in models if isinstance(each, torch.nn.Module)]
        return max(modules, key=_parameters, default=None)

    _safely(lambda: report(largest()))


def _look(model: Any, of_module: Callable[[Any, Any], object]) -> None:
    def look() -> None:
        torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
        if keras is not None and isinstance(model, keras.Model):  # with PyTorch below it is a module, too
            if model.built:
                _say(*_of_keras(model))
        elif torch is not None and isinstance(model, torch.nn.Module):
            of_module(torch, model)

    _safely(look)


def _safely(look: Callable[[], object]) -> None:
    """Looks on the first rank, inside of a job. A framework that is otherwise must not end the training."""
    session = attach()
    if session.inside and session.writer:
        try:
            look()
        except Exception as error:
            log.debug("the structure of the model is not known: %s", error)


def _parameters(module: Any) -> int:
    return sum(each.numel() for each in module.parameters())


def _say(kinds: Counter[str], parameters: int, activation_bytes: int | None) -> None:
    if kinds and parameters:
        layers = [[kind[:100], number] for kind, number in sorted(kinds.most_common(MOST_KINDS))]
        attach().send("model", layers=layers, parameters=parameters, activation_bytes=activation_bytes)


class _Pass:
    """The first forward pass of a PyTorch module: the bytes that its layers put out, for each sample."""

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch = torch
        bare = _unwrapped(torch, model)
        self._kinds, self._parameters = _of_module(torch, model)
        self._bytes = self._samples = 0
        if not self._kinds:
            return
        layers = _layers(bare)
        if _is_compiled(bare):
            self._end()
            return
        self._hooks = [layer.register_forward_hook(self._layer) for layer in layers]
        try:
            self._hooks.append(bare.register_forward_pre_hook(self._begin, with_kwargs=True))
        except TypeError:  # PyTorch 1
            self._hooks.append(bare.register_forward_pre_hook(self._begin))
        self._hooks.append(bare.register_forward_hook(self._done))

    def _begin(self, module: Any, given: Any, named: Any = None) -> None:
        self._bytes, self._samples = 0, 0
        try:
            first = next(self._tensors([given, named]), None)
            if first is not None and first.dim():
                self._samples = int(first.shape[0])
        except Exception as error:  # of a tensor without a shape: the forward pass is the training's
            log.debug("the number of samples is not known: %s", error)

    def _layer(self, module: Any, given: Any, made: Any) -> None:
        try:
            self._bytes += sum(each.numel() * each.element_size() for each in self._tensors(made))
        except Exception as error:  # of a tensor without a size: the forward pass is the training's
            log.debug("the bytes of %s are not known: %s", type(module).__name__, error)

    def _done(self, module: Any, given: Any, made: Any) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self._end()

    def _end(self) -> None:
        _say(self._kinds, self._parameters, self._bytes // self._samples if self._samples else None)

    def _tensors(self, values: Any) -> Iterator[Any]:
        if isinstance(values, self._torch.Tensor):
            yield values
        elif isinstance(values, (list, tuple)):
            for each in values:
                yield from self._tensors(each)
        elif isinstance(values, dict):
            yield from self._tensors(list(values.values()))


def _unwrapped(torch: Any, model: Any) -> Any:
    return model.module if hasattr(model, "module") and isinstance(model.module, torch.nn.Module) else model


def _layers(module: Any) -> list[Any]:
    """The modules that have no others below them."""
    return [each for each in module.modules() if not any(True for _ in each.children())]


def _of_module(torch: Any, model: Any) -> tuple[Counter[str], int]:
    """Kinds of layers and parameters; nothing of a module of which no rank has all."""
    bare = _unwrapped(torch, model)
    if any(type(each).__name__ == "FullyShardedDataParallel" for each in bare.modules()):
        return Counter(), 0
    return Counter(type(each).__name__ for each in _layers(bare)), _parameters(bare)


def _is_compiled(module: Any) -> bool:
    """Whether hooks would be compiled with it, or make it be compiled again."""
    return any(
        type(each).__name__ in ("OptimizedModule", "RecursiveScriptModule", "TopLevelTracedModule")
        or getattr(each, "_compiled_call_impl", None) is not None
        for each in module.modules()
    )


def _of_keras(model: Any) -> tuple[Counter[str], int, int | None]:
    """Kinds of layers, parameters, bytes of the layers' outputs for each sample; None where a shape is not known."""
    flat = [each for each in model._flatten_layers(include_self=False, recursive=True) if not hasattr(each, "layers")]
    layers = [each for each in flat if type(each).__name__ != "InputLayer"]
    activations = 0
    for layer in layers:
        try:
            shapes = [tuple(each.shape) for each in _listed(layer.output)]
        except (AttributeError, ValueError):  # it is called in no graph, or in several
            return Counter(type(each).__name__ for each in layers), int(model.count_params()), None
        for shape in shapes:
            size = _BYTES.get(str(layer.compute_dtype), 4)
            for length in shape[1:]:
                size *= length or 0
            activations += size
    return Counter(type(each).__name__ for each in layers), int(model.count_params()), activations or None


_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8}


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]
