"""PyTorch loops: ranks that agree on the step to suspend at, and the training state in a checkpoint folder.

PyTorch is imported at the first use, so that a script can attach first. What is saved is read back with
`weights_only=True`; random states are JSON, one for each rank, so ranks with dropout or data of their own resume
exactly. Every rank calls `save`; only the writer's rank writes.
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import io
import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcdl.trainer import loop
from hpcdl.trainer.group.peers import JoinedRanks, RankAgreement
from hpcdl.trainer.parts import capture_own, check_parts, restore_own, shared_parts
from hpcdl.trainer.session import attach
from hpcdl.trainer.structure import report_largest
from hpcdl.trainer.values import Values as Values  # `suspendable.Values` of a script

RANDOM = "random.json"
EXIT_PAUSE_S, EXIT_PAUSES = 0.01, 10  # see _let_gloo_finish
_backends: list[Any] = []  # of gloo, never to be destroyed
_barrier: list[Any] = []  # the newest, done or not


class Ranks(JoinedRanks):
    """By torch.distributed (gloo, NCCL); one rank alone if no process group was made."""

    def __init__(self, every: int = 1, group: Any = None) -> None:
        """`group`: of all ranks, None for the default one."""
        import torch.distributed as dist

        self._dist: Any = dist if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 else None
        super().__init__(1 if self._dist is None else dist.get_world_size(), every)
        self._group = group
        self._backend = "" if self._dist is None else self._dist.get_backend(group)
        if self._backend == "gloo":
            keep_gloo(group)

    def _tensor(self, values: list[int]) -> Any:
        import torch

        # NCCL takes only tensors on the rank's own GPU.
        return torch.tensor(values, dtype=torch.int64, device="cuda" if self._backend == "nccl" else "cpu")

    def any(self, flag: bool) -> bool:
        if self._dist is None:
            return flag
        tensor = self._tensor([int(flag)])
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self._group)
        return bool(tensor.item())

    def barrier(self) -> None:
        if self._dist is None:
            return
        if self._backend != "gloo":
            self._dist.barrier(self._group)
            return
        # What is under way at a barrier belongs to it. While we hold that, no thread of gloo's has any of it to
        # destroy, which takes the GIL: too late for it, in an interpreter that is on its way down, is SIGABRT.
        work = self._dist.barrier(self._group, async_op=True)
        work.wait()
        _barrier[:] = [work]

    def own_group(self) -> Any:
        """A new group of all ranks, by gloo, for another thread than the training's; None for one rank alone."""
        return None if self._dist is None else self._dist.new_group(backend="gloo")

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks."""
        if self._dist is None:
            return [text]
        import torch

        mine = self._tensor(list(text.encode()))
        lengths = [self._tensor([0]) for _ in range(self.size)]
        self._dist.all_gather(lengths, self._tensor([len(mine)]), group=self._group)
        longest = max(int(each.item()) for each in lengths)
        parts = [self._tensor([0] * longest) for _ in lengths]
        padded = torch.nn.functional.pad(mine, (0, longest - len(mine)))
        self._dist.all_gather(parts, padded, group=self._group)
        both = zip(parts, lengths)
        return [bytes(part[: int(length.item())].tolist()).decode() for part, length in both]


def keep_gloo(group: Any = None) -> None:
    """Keeps a process group's connections and threads for as long as this process lives, whoever destroys the group.

    A DistributedDataParallel that goes after its group, as at the end of a function, would else destroy them, and wait
    for gloo's threads with the GIL held: for ever, where one of them waits for the GIL to let go of a tensor.
    """
    import torch
    import torch.distributed as dist

    backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    if not _backends:
        atexit.register(_let_gloo_finish)
    if not any(each is backend for each in _backends):
        _backends.append(backend)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))  # not even the interpreter's teardown destroys it


def _let_gloo_finish() -> None:
    """Gives gloo's threads the GIL, and time, before the interpreter's teardown. One that lets go of the tensors of the
    last collective needs the GIL; one that asks for it in the teardown ends the whole process (SIGABRT).

    Many short pauses, so that on a loaded machine, where this thread waits for a processor, the others get theirs.
    """
    for _ in range(EXIT_PAUSES):
        time.sleep(EXIT_PAUSE_S)


def save(folder: Path, **parts: Any) -> None:
    """Write each part (model, optimizer, scheduler, scaler, anything with `state_dict`; `Values` and random generators
    of each rank) and the random states of all ranks into the folder. Collective: every rank calls it at the same step.
    """
    save_parts(folder, parts, Ranks())


def save_parts(folder: Path, parts: Mapping[str, Any], ranks: RankAgreement) -> None:
    """As `save`, of ranks that agree in a way of their own."""
    _captured(parts, lambda state: state, ranks)(folder)


def _captured(parts: Mapping[str, Any], keep: Callable[[Any], Any], ranks: RankAgreement) -> Callable[[Path], None]:
    """What writes the state of now, as `keep` made it of each `state_dict`. PyTorch is imported, so that its random
    state is captured in any case."""
    states = ranks.gather(json.dumps(capture_own(parts)))
    present = {name: _bare(part) for name, part in shared_parts(parts).items()}
    values = {name: keep(part.state_dict()) for name, part in present.items()} if attach().writer else {}

    def write(folder: Path) -> None:
        if not attach().writer:
            return
        for name, value in values.items():
            write_values(value, folder / f"{name}.pt")
        (folder / RANDOM).write_text(json.dumps([json.loads(state) for state in states]))

    return write


def copied(value: Any) -> Any:
    """A `state_dict` whose tensors are copies in host memory."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        whole = copy.copy(value)  # of the same class, with what a module says of its version
        whole.update((key, copied(each)) for key, each in value.items())
        return whole
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return copy.deepcopy(value)


def write_values(state: Any, path: Path) -> None:
    """`torch.save` into a file; raises OSError for what the disk refuses."""
    import torch

    with open(path, "wb") as file, disk_errors(path):
        torch.save(state, file)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """PyTorch's own words for a full disk are "unexpected pos"; what the file said is more use: raises that."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__context__
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def load(folder: Path, **parts: Any) -> None:
    """Read back what `save` wrote into the same parts. The random state comes last, and is the rank's own; a rank
    that did not exist then keeps the one it has."""
    import torch

    for name, part in shared_parts(parts).items():
        state = torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
        _bare(part).load_state_dict(state)
    states = json.loads((folder / RANDOM).read_text())
    rank = attach().rank
    if rank < len(states):
        restore_own(parts, states[rank])


def check(parts: Mapping[str, Any]) -> None:
    """Raises TypeError for what could not be saved, or not be loaded again: before a step is trained."""
    import torch

    check_parts(parts)
    for name, part in shared_parts(parts).items():
        if isinstance(part, (torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader)):
            continue  # PyTorch's own; and the state of a loader is made by beginning an epoch
        buffer = io.BytesIO()
        try:
            torch.save(_without_tensors(part.state_dict()), buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except (pickle.PickleError, AttributeError):
            raise TypeError(
                f"the state of {name} could be saved, but not loaded again: let {type(part).__name__}.state_dict() "
                "give numbers, text, lists, dicts and tensors alone"
            ) from None


def _without_tensors(state: Any) -> Any:
    import torch

    if isinstance(state, torch.Tensor):
        return None
    if isinstance(state, Mapping):
        return {key: _without_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_without_tensors(each) for each in state)
    return state


def _bare(part: Any) -> Any:
    # The names in a wrapped model begin with "module."; without them it resumes with any number of ranks.
    import torch

    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part


def steps(
    total: int,
    *,
    every: int | str | None = None,
    agree_every: int = 1,
    sharded: bool | None = None,
    asynchronous: bool = False,
    **parts: Any,
) -> Iterator[int]:
    """`loop.steps` for PyTorch: `for step in steps(1000, model=model, optimizer=optimizer, scheduler=scheduler)`.
    Call it on every rank, after the process group was made.

    `sharded`: every rank writes its part of models and optimizers, by torch.distributed.checkpoint; None: where one of
    them is spread over the ranks (FSDP, DTensor). `asynchronous`: periodic checkpoints are copied to host memory and
    written from there while training goes on. Raises TypeError for a part without a state.
    """
    check(parts)
    ranks = Ranks(agree_every)
    if sharded is None:
        sharded = any(is_spread(part) for part in parts.values())
    if not sharded:
        report_largest(parts.values())

        def write(folder: Path) -> None:
            save(folder, **parts)

        def read(folder: Path) -> None:
            load(folder, **parts)

        def capture() -> Callable[[Path], None]:
            return _captured(parts, copied, Ranks())

        return loop.steps(
            total, save=write, load=read, every=every, ranks=ranks, snapshot=capture if asynchronous else None
        )
    from hpcdl.trainer.sharded import Parts

    group = ranks.own_group()
    state = Parts(parts, group)
    return loop.steps(
        total,
        save=state.save,
        load=state.load,
        every=every,
        ranks=ranks,
        snapshot=state.snapshots() if asynchronous else None,
        together=Ranks(group=group),
    )


def epochs(
    loader: Any, total: int, *, every: int | None = None, accumulate: int = 1, **parts: Any
) -> Iterator[tuple[int, Any]]:
    """Yields (epoch, batches) from 0, or from what was resumed, up to `total` - 1: `for epoch, batches in
    epochs(loader, 10, model=model, optimizer=optimizer)`. `batches`: those still to do of `loader`, PyTorch's
    `DataLoader`, with `len`, and `done`, how many an earlier attempt did: `enumerate(batches, batches.done)`. Call it
    on every rank, after the process group was made.

    A step is one batch, or `accumulate` of them; at the end of the inner loop's body that ends one a checkpoint is
    written every `every` steps, and on a suspend. Workers of the loader load again what is done of the epoch, for what
    they draw at random. A checkpoint is resumed by as many ranks as wrote it; raises RuntimeError for others, and
    TypeError for a part without a state.
    """
    from hpcdl.trainer import torch_epochs

    check(parts)
    if not any(is_spread(part) for part in parts.values()):
        report_largest(parts.values())
    return torch_epochs.epochs(loader, total, every, accumulate, parts)


def is_spread(part: Any) -> bool:
    """Whether no rank alone holds all of a part. Imports nothing that a script of DistributedDataParallel does not."""
    import torch

    if isinstance(part, torch.nn.Module):
        if any(type(each).__name__ == "FullyShardedDataParallel" for each in part.modules()):
            return True
        tensors = list(part.parameters())
    elif isinstance(part, torch.optim.Optimizer):
        tensors = [each for group in part.param_groups for each in group["params"]]
    else:
        return False
    return any(hasattr(each, "device_mesh") and hasattr(each, "placements") for each in tensors)  # DTensor
