"""Horovod loops, with PyTorch or TensorFlow: ranks that agree on the step to suspend at, and one checkpoint of them.

Horovod is the script's own: it imports it and calls `init`, after this was imported, and nothing here does before.
Only rank 0 writes; random states are kept for each rank. A rank that loses another one raises what Horovod raises: the
job then goes on from its last checkpoint. `torch.py` has what a checkpoint of PyTorch's holds, `loop.py` the loop.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdl.trainer import loop
from hpcdl.trainer.group.peers import JoinedRanks
from hpcdl.trainer.horovod_rendezvous import MPIRUN_SIZE, meet_under_mpirun
from hpcdl.trainer.parts import capture_own, restore_own, shared_parts
from hpcdl.trainer.session import attach
from hpcdl.trainer.values import Values as Values  # `suspendable.Values` of a script

MODULES = ("horovod.torch", "horovod.tensorflow")
RANDOM = "random.json"
TENSORS = "tensorflow"  # how the names of TensorFlow's files begin
END = "\n"  # of one rank's text, which is JSON in one line

meet_under_mpirun()


class HorovodRanks(JoinedRanks):
    """By Horovod's own collectives, of whichever framework `init` was called for. Raises RuntimeError before `init`,
    and where each of several ranks of mpirun or jsrun would train alone."""

    def __init__(self, every: int = 1) -> None:
        found = [sys.modules[name] for name in MODULES if name in sys.modules]
        self._hvd: Any = next((module for module in found if module.is_initialized()), None)
        if self._hvd is None:
            raise RuntimeError("call hvd.init() first: import horovod.torch as hvd, or horovod.tensorflow")
        if self._hvd.size() == 1 and os.environ.get(MPIRUN_SIZE, "1") != "1":
            raise RuntimeError(
                "mpirun or jsrun started several ranks, and Horovod knows of one alone: use mpirun on one node, import "
                "hpcdl.trainer.horovod before hvd.init(), or build Horovod with MPI"
            )
        super().__init__(self._hvd.size(), every)
        self.by_torch = self._hvd.__name__ == MODULES[0]

    def gather(self, text: str) -> list[str]:
        mine = bytearray((text + END).encode())
        if self.by_torch:
            import torch

            gathered = self._hvd.allgather(torch.frombuffer(mine, dtype=torch.uint8), name="hpcdl")
        else:
            import tensorflow as tf

            gathered = self._hvd.allgather(tf.constant(list(mine), dtype=tf.uint8), name="hpcdl")
        return bytes(gathered.numpy()).decode().split(END)[:-1]


def steps(total: int, *, every: int | None = None, agree_every: int = 1, **parts: Any) -> Iterator[int]:
    """`loop.steps` for Horovod: `for step in steps(1000, every=100, model=model, optimizer=optimizer)`. Call it on
    every rank, after `hvd.init()`.

    Parts, of PyTorch: whatever has `state_dict`. Of TensorFlow: what `tf.train.Checkpoint` takes (models, optimizers,
    variables); a `tf.random.Generator` is each rank's own. Of both: `Values` and other random generators, each rank's
    own, too. Raises TypeError or ValueError for what is neither.
    """
    ranks = HorovodRanks(agree_every)
    if ranks.by_torch:
        from hpcdl.trainer import torch

        torch.check(parts)
    else:
        _checkpoint(parts)
    save, load = (_save_torch, _load_torch) if ranks.by_torch else (save_tensorflow, load_tensorflow)
    return loop.steps(
        total,
        save=lambda folder: save(folder, parts, ranks),
        load=lambda folder: load(folder, parts),
        every=every,
        ranks=ranks,
    )


def _save_torch(folder: Path, parts: Mapping[str, Any], ranks: HorovodRanks) -> None:
    from hpcdl.trainer import torch

    torch.save_parts(folder, parts, ranks)


def _load_torch(folder: Path, parts: Mapping[str, Any]) -> None:
    from hpcdl.trainer import torch

    torch.load(folder, **parts)


def save_tensorflow(folder: Path, parts: Mapping[str, Any], ranks: HorovodRanks) -> None:
    """What `tf.train.Checkpoint` takes, and the random states of all ranks. Collective; rank 0 writes."""

    generators, _ = _generators(parts)
    own = {name: generator.state.numpy().tolist() for name, generator in generators.items()}
    states = ranks.gather(json.dumps({"random": capture_own(parts), "generators": own}))
    if not attach().writer:
        return
    _checkpoint(parts).write(str(folder / TENSORS))
    (folder / RANDOM).write_text(json.dumps([json.loads(state) for state in states]))


def load_tensorflow(folder: Path, parts: Mapping[str, Any]) -> None:
    """What `save_tensorflow` wrote, and this rank's random states."""

    generators, shared = _generators(parts)
    _build(shared)
    _checkpoint(parts).read(str(folder / TENSORS)).assert_existing_objects_matched()
    states = json.loads((folder / RANDOM).read_text())
    if (rank := attach().rank) < len(states):  # one that did not exist then keeps the states that it has
        for name, generator in generators.items():
            generator.state.assign(states[rank]["generators"][name])
        restore_own(parts, states[rank]["random"])


def _checkpoint(parts: Mapping[str, Any]) -> Any:
    """TensorFlow's, of the parts that are not each rank's own. Raises ValueError for what it does not take."""
    import tensorflow as tf

    return tf.train.Checkpoint(**_generators(parts)[1])


def _generators(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The random generators among the parts, and the others."""
    import tensorflow as tf

    found = {name: part for name, part in parts.items() if isinstance(part, tf.random.Generator)}
    return found, {name: part for name, part in shared_parts(parts).items() if name not in found}


def _build(parts: Mapping[str, Any]) -> None:
    """The variables of Keras's optimizers are there before what they held is read."""
    optimizers = [part for part in parts.values() if hasattr(part, "apply_gradients") and hasattr(part, "build")]
    variables = [
        variable
        for part in parts.values()
        if not any(part is optimizer for optimizer in optimizers)
        for variable in getattr(part, "trainable_variables", ())
    ]
    for optimizer in optimizers:
        if not getattr(optimizer, "built", True):
            optimizer.build(variables)
