"""What a model is made of, for the estimates of its rate: kinds of layers, parameters, bytes of activations.

Said once an attempt, by the first rank: `watch(model)` looks at the first forward pass of a PyTorch module, or at a
Keras model that is built. By it hpcdl finds the type of job that is most like a new one (GENIE, section 6). It imports
no framework, changes nothing of the training, and says nothing where it does not know.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from hpcdl.trainer.session import attach, log

MOST_KINDS = 64
"""Kinds of layers that are said, those that there are most of."""


def watch(model: Any) -> None:
    """Report the structure of a model, once it is known: of a PyTorch module after its next forward pass. Of anything
    else than a module of PyTorch, or a built model of Keras, nothing is said."""
    session = attach()
    if not session.inside or not session.writer:
        return
    try:
        torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
        if keras is not None and isinstance(model, keras.Model):  # with PyTorch below it is a module, too
            if model.built:
                _say(*_of_keras(model))
        elif torch is not None and isinstance(model, torch.nn.Module):
            _Pass(torch, model)
    except Exception as error:  # of a framework that is otherwise: training must not end by it
        log.debug("the structure of the model is not known: %s", error)


def watch_largest(models: Iterable[Any]) -> None:
    """As `watch`, of the module of PyTorch among these that has most parameters."""
    torch = sys.modules.get("torch")
    modules = [] if torch is None else [each for each in models if isinstance(each, torch.nn.Module)]
    if modules and attach().inside:
        watch(max(modules, key=_parameters))


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
        bare = model.module if hasattr(model, "module") and isinstance(model.module, torch.nn.Module) else model
        if any(type(each).__name__ == "FullyShardedDataParallel" for each in bare.modules()):
            return  # no rank has all of it
        layers = [each for each in bare.modules() if not any(True for _ in each.children())]
        self._kinds = Counter(type(each).__name__ for each in layers)
        self._parameters = _parameters(bare)
        self._bytes = self._samples = 0
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
        first = next(self._tensors([given, named]), None)
        self._bytes, self._samples = 0, 0
        if first is not None and first.dim():
            self._samples = int(first.shape[0])

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
