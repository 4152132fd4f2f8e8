"""A burst-parallel plan carried out: each stage of a model on the first `width` ranks of the process group.

One step: forward, the exchange of activations where the width changes, backward, and the sum of the gradients over a
stage's own ranks while the backward pass goes on. The result is that of one process with the whole batch, up to the
order of summation. `burst.py` has the training around it. PyTorch is imported at the first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SHAPE_NUMBERS = 16  # what rank 0 says of an activation: its type, the number of its dimensions, and those
DTYPES = ("float32", "float16", "bfloat16", "float64")


def rows(batch: int, width: int, rank: int) -> tuple[int, int]:
    """First sample and the one after the last of a rank's block, in a stage on `width` ranks. The blocks' sizes differ
    by one at most, larger ones first; a rank that has no part in the stage has an empty one."""
    if rank >= width:
        return batch, batch
    size, larger = divmod(batch, width)
    start = rank * size + min(rank, larger)
    return start, start + size + (rank < larger)


def overlaps(batch: int, mine: int, theirs: int, rank: int) -> Iterator[tuple[int, int, int]]:
    """Of a rank's block in width `mine`, what each peer has in width `theirs`: peer, and first and end within the
    block."""
    first, end = rows(batch, mine, rank)
    for peer in range(theirs):
        start, stop = rows(batch, theirs, peer)
        if max(first, start) < min(end, stop):
            yield peer, max(first, start) - first, min(end, stop) - first


class Stages:
    """The stages of a model under one plan, on one process group; `close` leaves the modules as they were.

    `group(width)` gives the process group of ranks 0 to width-1, made on all ranks at the first call for a width.
    `loss(output, target)` is the mean over the samples that it gets. `amp`: the dtype of autocast, None for none.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        widths: Sequence[int],
        loss: Callable[[Any, Any], Any],
        group: Callable[[int], Any],
        device: Any,
        amp: Any = None,
    ) -> None:
        import torch.distributed as dist

        self.rank, self.size = int(dist.get_rank()), int(dist.get_world_size())
        if len(widths) != len(stages) or not all(1 <= width <= self.size for width in widths):
            raise ValueError(
                f"plan {list(widths)}: say a number of ranks from 1 to {self.size} for each of {len(stages)} stages"
            )
        self.widths = tuple(int(width) for width in widths)
        self.whole = min(self.widths)
        """Ranks 0 to whole-1 have had a part in everything so far: they hold all of the training's state."""
        self._stages = list(stages)
        self._loss = loss
        self._group = group
        self._device = device
        self._amp = amp
        self._together = device.type == "cuda"  # an exchange is a collective, as NCCL wants it; by gloo, messages
        self._parameters = [[each for each in stage.parameters() if each.requires_grad] for stage in stages]
        by_stage = [(module, index) for index, stage in enumerate(stages) for module in stage.modules()]
        self._norms = [(module, index) for module, index in by_stage if _is_batch_norm(module)]
        of_stage = [(index, each) for each, index in self._norms]
        of_stage += [(index, each) for index, stage in enumerate(stages) for each in stage.parameters()]
        of_stage += [(index, each) for index, stage in enumerate(stages) for each in stage.buffers()]
        if len({id(each) for _, each in of_stage}) < len({(index, id(each)) for index, each in of_stage}):
            raise ValueError("a parameter, a buffer or a BatchNorm is in two stages: what shares one must be one stage")
        self._shapes: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        self._batch = 0
        self._effective: tuple[int, ...] = ()  # widths in this step: no more ranks than there are samples
        self._key: Any = None  # what the shapes of this step depend on
        self._summed: list[bool] = []  # by stage: the sum of its gradients is under way, or done
        self._pending: list[tuple[Any, list[Any], Any]] = []
        self._before: list[tuple[Any, Any]] = []  # BatchNorm's running statistics, and what they were before the step
        for module, index in self._norms:
            module.forward = functools.partial(self._batch_norm, module, index)
        for width in sorted({*self.widths} - {1}):
            group(width)

    def commit(self) -> None:
        """The step that `backward` was of is done; without this it is undone by `close`, in what it changed already."""
        self._before = []

    def close(self) -> None:
        """BatchNorm is PyTorch's own again."""
        import torch

        with torch.no_grad():
            for buffer, value in self._before:
                buffer.copy_(value)
        for module, _ in self._norms:
            module.__dict__.pop("forward", None)

    def backward(self, inputs: Any, targets: Any, scaler: Any = None) -> Any:
        """One forward and backward pass over the global batch; the gradients, scaled by the GradScaler, are in the
        parameters of the stages that this rank has a part in, and None in the others. Collective over all ranks.

        `inputs` and `targets` are the whole batch, or what gives `len` and rows by a slice. Returns this rank's part of
        the mean loss, a tensor; the sum over the ranks is the loss.
        """
        import torch

        self._batch = len(inputs)
        if self._batch < 1 or len(targets) != self._batch:
            raise ValueError(f"a batch of {self._batch} inputs and {len(targets)} targets")
        self._effective = tuple(min(width, self._batch) for width in self.widths)
        self.whole = min(self.whole, *self._effective)
        for width in sorted({*self._effective} - {1}):
            self._group(width)
        self._summed = [False] * len(self._stages)
        self._before = [(each, each.clone()) for module, _ in self._norms for each in module.buffers()]
        for parameters in self._parameters:
            for each in parameters:
                each.grad = None
        value = torch.ones((), device=self._device)
        scale = 1.0 if scaler is None else float(scaler.scale(value))
        with torch.autocast(self._device.type, dtype=self._amp, enabled=self._amp is not None):
            output = self._forward(inputs)
            if self.rank < self._effective[-1]:
                first, end = rows(self._batch, self._effective[-1], self.rank)
                value = self._loss(output, targets[first:end].to(self._device))
                if value.numel() != 1:
                    raise ValueError(f"the loss must give the mean over its samples, not {tuple(value.shape)} numbers")
                value = value * ((end - first) / self._batch)
        if self.rank < self._effective[-1]:
            (value * scale).backward()
        else:
            value = torch.zeros(())
            if output.requires_grad:
                output.backward(torch.zeros_like(output))  # the others wait for this rank in their exchanges
        for stage in reversed(range(len(self._stages))):
            self._sum_gradients(stage)
        self._finish_gradients()
        return value.detach().to(self._device, torch.float64)

    def _forward(self, inputs: Any) -> Any:
        first, end = rows(self._batch, self._effective[0], self.rank)
        x = inputs[first:end].to(self._device)
        self._key = (x.dtype, tuple(x.shape[1:]))
        trains = False
        for index, stage in enumerate(self._stages):
            if index:
                x = self._move(x, index, trains)
            trains = trains or bool(self._parameters[index])
            if self.rank >= self._effective[index]:
                continue
            x = stage(x)
            first, end = rows(self._batch, self._effective[index], self.rank)
            shape = getattr(x, "shape", None)
            if shape is None or len(shape) < 1 or shape[0] != end - first:
                raise ValueError(f"stage {index} must give one tensor with a row for each of its {end - first} samples")
        return x

    # activations

    def _move(self, x: Any, index: int, trains: bool) -> Any:
        """The input of stage `index`, of the output of the one before; `trains`: something before it has gradients."""
        import torch

        source, target = self._effective[index - 1], self._effective[index]
        dtype, shape = x.dtype, tuple(x.shape[1:])
        if target > source:
            dtype, shape = self._shape(x, index)
        elif self.rank >= source:  # no part in either stage
            dtype, shape = torch.float32, ()
        if not trains:
            return self._exchange(x.detach(), source, target, dtype, shape)
        # Its gradient is wanted by nobody: with it the output is in the graph on all ranks, though the input is not.
        anchor = torch.empty(0, requires_grad=True)
        return _functions()[0].apply(x, anchor, self, index, dtype, shape)

    def _shape(self, x: Any, index: int) -> tuple[Any, tuple[int, ...]]:
        """Type and shape of a sample's activation. Ranks that come into the training at this stage have them from rank
        0, which has a part in all stages, at the first step with inputs of this shape."""
        import torch
        import torch.distributed as dist

        key = (index, self._key)
        if key not in self._shapes:
            numbers = torch.zeros(SHAPE_NUMBERS, dtype=torch.int64)
            if self.rank == 0:
                about = [DTYPES.index(str(x.dtype).rpartition(".")[2]), x.dim() - 1, *x.shape[1:]]
                numbers[: len(about)] = torch.tensor(about)
            dist.broadcast(numbers, src=0)
            code, dimensions, *sizes = numbers.tolist()
            self._shapes[key] = getattr(torch, DTYPES[code]), tuple(sizes[:dimensions])
        return self._shapes[key]

    def _exchange(self, x: Any, source: int, target: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """This rank's rows in width `target`, of rows that the ranks hold in width `source`."""
        import torch
        import torch.distributed as dist

        if source == target:
            return x.detach()  # the same memory, but no view: the stage may begin with an operation in place
        first, end = rows(self._batch, target, self.rank)
        moved = torch.empty((end - first, *shape), dtype=dtype, device=self._device)
        sends = list(overlaps(self._batch, source, target, self.rank))
        receives = list(overlaps(self._batch, target, source, self.rank))
        x = x.contiguous()
        if self._together:
            width = max(source, target)
            if self.rank < width:
                given, taken = [0] * width, [0] * width
                for peer, start, stop in sends:
                    given[peer] = stop - start
                for peer, start, stop in receives:
                    taken[peer] = stop - start
                out = x if sends else moved.new_empty((0, *shape))
                dist.all_to_all_single(moved, out, taken, given, group=self._group(width))
            return moved
        works = []
        for peer, start, stop in receives:
            if peer != self.rank:
                works.append(dist.irecv(moved[start:stop], peer))
        for peer, start, stop in sends:
            if peer != self.rank:
                works.append(dist.isend(x[start:stop], peer))
        own = [(start, stop) for peer, start, stop in sends if peer == self.rank]
        for (start, stop), (_, to, until) in zip(own, [each for each in receives if each[0] == self.rank]):
            moved[to:until] = x[start:stop]
        for work in works:
            work.wait()
        return moved

    # gradients

    def _sum_gradients(self, stage: int) -> None:
        """Begin to add up a stage's gradients over its ranks. The autograd engine runs what came later in the forward
        pass first, so at the backward pass of a stage's input all gradients of its parameters are there, and the order
        of the collectives is the same on all ranks."""
        import torch
        import torch.distributed as dist

        width, parameters = self.widths[stage], self._parameters[stage]
        if self._summed[stage] or not parameters:
            return
        self._summed[stage] = True
        if width == 1 or self.rank >= width:
            return
        by_dtype: dict[Any, list[Any]] = {}
        for each in parameters:
            by_dtype.setdefault(each.dtype, []).append(each)
        for dtype, alike in by_dtype.items():
            # How many ranks have a gradient comes at the end: where none has, there is none, as in one process.
            has = torch.tensor([each.grad is not None for each in alike], dtype=dtype, device=self._device)
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in alike]
            flat = torch.cat([*(each.reshape(-1) for each in parts), has])
            self._pending.append((dist.all_reduce(flat, group=self._group(width), async_op=True), alike, flat))

    def _finish_gradients(self) -> None:
        pending, self._pending = self._pending, []
        for work, parameters, flat in pending:
            work.wait()
            start = 0
            for each, has in zip(parameters, flat[-len(parameters) :].tolist()):
                each.grad = flat[start : start + each.numel()].view(each.shape) if has else None
                start += each.numel()

    # BatchNorm

    def _batch_norm(self, module: Any, stage: int, x: Any) -> Any:
        """`forward` of a BatchNorm: over the samples of all ranks of its stage, in float32 at least."""
        import torch

        width = self._effective[stage] if self._effective else 1
        if width == 1 or not (module.training or module.running_mean is None):
            return type(module).forward(module, x)
        module._check_input_dim(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        over = [0, *range(2, x.dim())]
        channels, spread = x.shape[1], (1, -1, *[1] * (x.dim() - 2))
        variance, mean = torch.var_mean(wide, over, correction=0)
        count = wide.new_tensor([x.numel() / channels])
        mine = torch.cat([mean, variance * count, count])[None]
        others = mine.new_zeros(width - 1, mine.shape[1])
        table = torch.cat([others[: self.rank], mine, others[self.rank :]])
        table = _functions()[1].apply(table, self._group(width))  # a row for each rank
        means, squares, counts = table[:, :channels], table[:, channels:-1], table[:, -1:]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = (squares + counts * (means - mean).square()).sum(0) / total
        if module.training and module.running_mean is not None:
            with torch.no_grad():
                module.num_batches_tracked.add_(1)
                momentum = module.momentum
                if momentum is None:
                    momentum = 1.0 / float(module.num_batches_tracked)
                module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
                unbiased = variance * (total / (total - 1))
                module.running_var.lerp_(unbiased.to(module.running_var.dtype), momentum)
        normal = (wide - mean.view(spread)) * (variance + module.eps).rsqrt().view(spread)
        if module.affine:
            normal = normal * module.weight.view(spread) + module.bias.view(spread)
        return normal.to(x.dtype)


def _is_batch_norm(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm)


@functools.lru_cache(maxsize=None)
def _functions() -> tuple[Any, Any]:
    """The two autograd functions: a boundary between stages, and a sum over a group's ranks."""
    import torch
    import torch.distributed as dist

    class Boundary(torch.autograd.Function):
        """The output of a stage to the ranks of the next one, and its gradient back."""

        @staticmethod
        def forward(ctx: Any, x: Any, anchor: Any, stages: Stages, index: int, dtype: Any, shape: Any) -> Any:
            ctx.stages, ctx.index = stages, index
            ctx.dtype, ctx.shape = x.dtype, x.shape
            source, target = stages._effective[index - 1], stages._effective[index]
            if source == target and not x.dtype.is_floating_point:
                return torch.empty(0, device=x.device)  # of a rank that has no part in either stage
            return stages._exchange(x, source, target, dtype, shape)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            stages, index = ctx.stages, ctx.index
            stages._sum_gradients(index)
            source, target = stages._effective[index - 1], stages._effective[index]
            back = stages._exchange(gradient, target, source, gradient.dtype, ctx.shape[1:])
            if stages.rank >= source:
                back = torch.zeros(ctx.shape, dtype=ctx.dtype, device=gradient.device)
            return (back if ctx.needs_input_grad[0] else None), None, None, None, None, None

    class Sum(torch.autograd.Function):
        """All-reduce, forward and backward."""

        @staticmethod
        def forward(ctx: Any, x: Any, group: Any) -> Any:
            ctx.group = group
            x = x.clone()
            dist.all_reduce(x, group=group)
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gradient = gradient.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(gradient, group=ctx.group)
            return gradient, None

    return Boundary, Sum
