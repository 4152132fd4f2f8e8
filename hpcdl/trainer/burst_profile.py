"""What the layers of a model cost by samples on a GPU: the half of `hpcdl burst profile` that runs where it trains.

    python -m hpcdl.trainer.burst_profile --out FILE [--gpus N] [--batch N] ... [-m] SCRIPT [ARGS ...]

runs the script up to its first training step: to `burst.run`, whose stages are the layers; else to the first call of a
model, whose layers are its modules, a Sequential's one by one. Each layer is then timed alone, forward and backward,
and the script is left. FILE gets a planning problem, as `hpcdl burst plan` reads it. PyTorch is imported late.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcdl.trainer import burst

REPEATS = 10  # timed runs at least
LEAST_S = 0.02  # of timed runs, within REPEATS_MOST
REPEATS_MOST = 50
WARM_UP = 2
NOTHING = 3  # exit code of a script in which nothing was trained


class CalledLayer:
    """A layer as it was called: its name, module, first input and output, and the layers whose outputs it reads."""

    def __init__(self, name: str, module: Any, given: Any) -> None:
        self.name = name
        self.module = module
        self.given = given
        self.output: Any = None
        self.inputs: list[str] = []


class Profiled(BaseException):
    """Leaves the script, with what went wrong or ""; no `except Exception` of its own catches it."""


def main(argv: Sequence[str]) -> int:
    """The exit code, unless the script itself ends with another."""
    parser = argparse.ArgumentParser(prog="python -m hpcdl.trainer.burst_profile")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--batch", type=int, help="the global batch; the script's first one, if left out")
    parser.add_argument("--bytes-per-s", type=float, default=1e10)
    parser.add_argument("--latency-s", type=float, default=1e-5)
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    try:
        import torch
    except ImportError as error:
        sys.stderr.write(f"the layers of a model of PyTorch are measured, and {error}\n")
        return NOTHING

    def finish(layers: list[CalledLayer], samples: int) -> None:
        try:
            measures = [measured(layer, batches(given.batch or samples)) for layer in layers]
        except RuntimeError as error:
            raise Profiled(str(error)) from None
        if not measures:
            raise Profiled("its model calls no module on a tensor")
        problem = {
            "schema": 1,
            "gpus": given.gpus,
            "global_batch": given.batch or samples,
            "limit": None,
            "budget": None,
            "widths": "powers-of-two",
            "network": {"bytes_per_s": given.bytes_per_s, "latency_s": given.latency_s},
            "layers": measures,
        }
        partial = given.out.with_name(given.out.name + ".new")
        partial.write_text(json.dumps(problem, indent=1) + "\n")
        os.replace(partial, given.out)
        raise Profiled("")

    def of_stages(model: Any, inputs: Any, amp: Any) -> None:
        hook.remove()
        device = next((each.device for each in model.parameters()), torch.device("cpu"))
        x = inputs[: len(inputs)].to(device)
        with torch.autocast(device.type, dtype=amp, enabled=amp is not None):
            finish(called(model, x, list(model.named_children()), in_sequence), len(x))

    def of_first_call(module: Any, args: tuple[Any, ...]) -> None:
        model = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
        trains = module.training and torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters())
        if not trains or not args or not isinstance(args[0], torch.Tensor) or args[0].dim() < 1:
            return
        hook.remove()
        finish(called(model, args[0], list(layers_of(model)), model), len(args[0]))

    burst.profiler = of_stages
    hook = torch.nn.modules.module.register_module_forward_pre_hook(of_first_call)
    if not given.module:
        sys.path[0] = str(Path(given.script).resolve().parent)
    sys.argv = [given.script, *given.args]
    try:
        if given.module:
            runpy.run_module(given.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(given.script, run_name="__main__")
    except Profiled as profiled:
        if not str(profiled):
            return 0
        said = f"{given.script}: {profiled}"
    else:
        said = f"{given.script} ended, and no model of PyTorch was trained on a tensor"
    sys.stdout.flush()  # what the script said comes first
    sys.stderr.write(f"{said}\n")
    return NOTHING


def layers_of(model: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The modules that count as layers: a Sequential's own ones, and what its forward calls of any other model; a block
    that is no Sequential is one layer. A model of a single module is that module's."""
    import torch

    children = list(model.named_children())
    for child, module in children:
        path = f"{name}.{child}" if name else child
        holds = type(module) in (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
        opens = holds or (not name and len(children) == 1)
        if opens and list(module.children()):
            yield from layers_of(module, path)
        else:
            yield path, module
    if not name and not children:
        yield type(model).__name__, model


def called(model: Any, x: Any, named: list[tuple[str, Any]], forward: Callable[..., Any]) -> list[CalledLayer]:
    """The layers in the order in which a forward pass calls them, with what they read and give: by torch's hooks."""
    import torch

    found: list[CalledLayer] = []
    made: dict[Any, str] = {}  # the node of autograd that gave a layer's output

    def begin(name: str, module: Any, args: tuple[Any, ...]) -> None:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if tensors and all(each.module is not module for each in found):
            layer = CalledLayer(name, module, tensors[0])
            for each in tensors:
                layer.inputs += [before for before in sources(each.grad_fn, made) if before not in layer.inputs]
            if found and not layer.inputs:
                layer.inputs = [found[-1].name]  # what is not trained leaves no trace
            found.append(layer)

    def end(module: Any, output: Any) -> None:
        for layer in found:
            if layer.module is module and layer.output is None:
                for tensor in tensors_of(output):
                    layer.output = tensor if layer.output is None else layer.output
                    if tensor.grad_fn is not None:
                        made[tensor.grad_fn] = layer.name

    hooks = []
    for name, module in named:
        text = f"{name} {type(module).__name__}"
        hooks.append(module.register_forward_pre_hook(lambda module, args, name=text: begin(name, module, args)))
        hooks.append(module.register_forward_hook(lambda module, args, output: end(module, output)))
    try:
        forward(model, x) if forward is in_sequence else forward(x)
    finally:
        for hook in hooks:
            hook.remove()
    whole = [layer for layer in found if layer.output is not None]
    names = {layer.name for layer in whole}
    for layer in whole:
        layer.inputs = [name for name in layer.inputs if name in names]
    return whole


def tensors_of(output: Any) -> Iterator[Any]:
    """The tensors of what a module gives: one, or several in tuples, lists and dicts. The first is its activation."""
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list, dict)):
        for each in output.values() if isinstance(output, dict) else output:
            yield from tensors_of(each)


def in_sequence(model: Any, x: Any) -> None:
    """The stages of `burst.run`, one after another."""
    for stage in model.children():
        x = stage(x)


def sources(node: Any, made: dict[Any, str]) -> list[str]:
    """The layers whose outputs lead to this node of autograd, with no other layer between."""
    found: list[str] = []
    ahead, known = [node], {node}
    while ahead:
        each = ahead.pop()
        if each in made:
            found.append(made[each])
        elif each is not None:
            more = {before for before, _ in each.next_functions} - known
            known |= more
            ahead.extend(more)
    return found


def batches(batch: int) -> list[int]:
    """The samples on a GPU, ascending, where the width is a power of two."""
    return sorted({-(-batch // (1 << power)) for power in range(batch.bit_length() + 1)})


def measured(layer: CalledLayer, sizes: Sequence[int]) -> dict[str, Any]:
    """A layer of the problem. What a layer does not take (BatchNorm: one value), or the GPU has no memory for, is left
    out. Raises RuntimeError where no batch can be measured."""
    compute: dict[str, float] = {}
    failure: Exception | None = None
    for samples in sizes:
        try:
            compute[str(samples)] = round(milliseconds(layer.module, rows(layer.given, samples)), 6)
        except (RuntimeError, ValueError) as error:
            failure = error
    if not compute:
        raise RuntimeError(f"layer {layer.name} cannot be run alone: {failure}") from failure
    parameters = [each for each in layer.module.parameters() if each.requires_grad]
    return {
        "name": layer.name,
        "inputs": layer.inputs,
        "compute_ms": compute,
        "parameter_bytes": sum(each.numel() * each.element_size() for each in parameters),
        "activation_bytes_per_sample": layer.output.numel() * layer.output.element_size() / len(layer.given),
    }


def rows(x: Any, samples: int) -> Any:
    """So many samples like those of `x`."""
    import torch

    x = x.detach()
    again = torch.cat([x] * -(-samples // len(x)))[:samples].clone()
    return again.requires_grad_(again.is_floating_point())


def milliseconds(module: Any, x: Any) -> float:
    """The time of a forward and a backward pass: the least of several, for other processes only ever add to it."""
    import torch

    version = x._version
    with torch.no_grad():
        module(x)
    in_place = x._version != version  # autograd lets nothing change a leaf: such a layer has a copy

    def once() -> None:
        x.grad = None
        for each in module.parameters():
            each.grad = None
        output = next(tensors_of(module(x.clone() if in_place else x)))
        if output.requires_grad:
            output.backward(torch.ones_like(output))

    if x.device.type == "cuda":
        try:
            return milliseconds_on_gpu(once)
        finally:  # gradients keep the memory of their graph, and PyTorch all that was ever taken: others train here
            for each in (x, *module.parameters()):
                each.grad = None
            torch.cuda.empty_cache()
    for _ in range(WARM_UP):
        once()
    times: list[float] = []
    while len(times) < REPEATS or (sum(times) < LEAST_S and len(times) < REPEATS_MOST):
        began = time.perf_counter()
        once()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def milliseconds_on_gpu(once: Callable[[], None]) -> float:
    """By events, of a replayed CUDA graph: without the time that Python takes to launch. A layer that cannot be
    captured is launched as it is."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP + 1):
            once()
    torch.cuda.current_stream().wait_stream(side)
    run = once
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        run = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < REPEATS or (sum(times) < 1000 * LEAST_S and len(times) < REPEATS_MOST):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
