"""PyTorch state that is spread over the ranks (FSDP, DTensor), by torch.distributed.checkpoint.

Each rank writes its shards, and reads what it needs of all of them: on as many ranks as before, or on others. Models
and optimizers go through `torch.distributed.checkpoint.state_dict`, so that plain modules and DistributedDataParallel
can be among them; what is neither is rank 0's. Nothing that is read is unpickled beyond plain values and the classes
that PyTorch's own index is made of. `torch.py` calls this. PyTorch is imported where it is used.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcdl.trainer.boundaries import require
from hpcdl.trainer.parts import capture_own, is_own, restore_own, shared_parts
from hpcdl.trainer.session import attach
from hpcdl.trainer.torch import copied, disk_errors, write_values

STATE = "state"  # the folder of what is spread
INDEX = ".metadata"  # PyTorch's name for the file in it that says where each shard is

_INDEX_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class Parts:
    """The parts of a training by name: modules and optimizers, which may be spread, and others with a `state_dict`.

    `group`: a process group of gloo with all ranks for the exchange of plans, None for the default one.
    """

    def __init__(self, parts: Mapping[str, Any], group: Any = None) -> None:
        import torch

        self._group = group
        self._modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        self._optimizers = {name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
        self._owners = {name: self._owner(name, part.param_groups) for name, part in self._optimizers.items()}
        known = {*self._modules, *self._optimizers}
        self._others = {name: part for name, part in shared_parts(parts).items() if name not in known}
        self._own = {name: part for name, part in parts.items() if is_own(part)}
        self._stager: Any = None
        self._staged: set[str] = set()

    def _owner(self, name: str, groups: Any) -> Any:
        """The module whose parameters an optimizer has."""
        mine = {id(each) for group in groups for each in group["params"]}
        for module in self._modules.values():
            if mine <= {id(each) for each in module.parameters()}:
                return module
        raise ValueError(f"{name} has parameters of no model that is a part: give the model, too, as steps(model=...)")

    def save(self, folder: Path) -> None:
        """Write this rank's shards into the folder, which all ranks were given. Collective."""
        self._write(folder, self._state(), self._values())

    def snapshots(self) -> Callable[[], Callable[[Path], None]]:
        """`snapshot`. Raises RuntimeError, before a step is trained, where PyTorch has not what it takes."""
        from torch.distributed.checkpoint import staging

        require("torch", staging, ("BlockingAsyncStager",))
        return self.snapshot

    def snapshot(self) -> Callable[[Path], None]:
        """Copy the state to host memory; what is returned writes the copy as `save` does. Collective."""
        state, values = self._stage(self._state()), copied(self._values())
        return lambda folder: self._write(folder, state, values)

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as states

        found: dict[str, Any] = {name: states.get_model_state_dict(each) for name, each in self._modules.items()}
        for name, each in self._optimizers.items():
            unused = not each.state
            found[name] = states.get_optimizer_state_dict(self._owners[name], each)
            if unused:  # PyTorch gives an optimizer that was not used yet the state of one that made a step
                each.state.clear()
                found[name]["state"] = {}
        return found

    def _values(self) -> dict[str, Any]:
        values = {name: part.state_dict() for name, part in self._others.items()} if attach().rank == 0 else {}
        return {"random": json.dumps(capture_own(self._own)), "others": values}

    def _stage(self, state: dict[str, Any]) -> dict[str, Any]:
        import torch
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        # The memory is kept for the next copy of what has the same names: new memory costs more than copying.
        names = set(_names(state))
        if self._stager is None or names != self._staged:
            self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
            self._staged = names
        staged: dict[str, Any] = self._stager.stage(state)
        self._stager.cache_staged_state_dict, self._stager.state_dict_cache = True, staged
        return staged

    def _write(self, folder: Path, state: dict[str, Any], values: dict[str, Any]) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException

        # hpcdl makes all files durable at once, before it marks the checkpoint.
        writer = _writer(folder / STATE)
        try:
            dcp.save(state, storage_writer=writer, process_group=self._group)
        except CheckpointException as error:
            for failure, _ in error.failures.values():
                if isinstance(failure, OSError):
                    raise OSError(failure.errno, failure.strerror, failure.filename) from error
            raise
        (folder / f"random.{attach().rank}.json").write_text(values["random"])
        for name, value in values["others"].items():
            write_values(value, folder / f"{name}.pt")

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, on any number of ranks. The random state is that of the rank of the same number; a
        rank that did not exist then keeps the one it has. Collective."""
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import state_dict as states

        reader = _reader(folder / STATE)
        names = reader.read_metadata().state_dict_metadata.keys()
        state = self._state_to_load(names)
        dcp.load(state, storage_reader=reader, planner=_planner(), process_group=self._group)
        for name, each in self._modules.items():
            states.set_model_state_dict(each, state[name])
        lenient = states.StateDictOptions(strict=False)  # a parameter that got no gradient yet has no state
        for name, optimizer in self._optimizers.items():
            states.set_optimizer_state_dict(self._owners[name], optimizer, state[name], options=lenient)
        for name, part in self._others.items():
            part.load_state_dict(torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True))
        random = folder / f"random.{attach().rank}.json"
        if random.exists():
            restore_own(self._own, json.loads(random.read_text()))

    def _state_to_load(self, names: Any) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as states

        state = {name: states.get_model_state_dict(each) for name, each in self._modules.items()}
        for name, each in self._optimizers.items():
            state[name] = states.get_optimizer_state_dict(self._owners[name], each)
            there = {key for key in names if key.startswith(f"{name}.state.")}
            of_each = state[name]["state"]
            kept = {key for key in of_each if any(found.startswith(f"{name}.state.{key}.") for found in there)}
            state[name]["state"] = {key: of_each[key] for key in of_each if key in kept}
        return state


def _names(state: Any, name: str = "") -> list[str]:
    if isinstance(state, dict):
        return [each for key, value in state.items() for each in _names(value, f"{name}.{key}")]
    return [name]


class _Unpickler(pickle.Unpickler):
    """Makes nothing but what an index is made of."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if name in _INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return value
        raise pickle.UnpicklingError(f"an index of shards holds no {module}.{name}")


def _writer(folder: Path) -> Any:
    import torch.distributed.checkpoint as dcp

    class ShardWriter(dcp.FileSystemWriter):
        def write_data(self, *args: Any, **kwargs: Any) -> Any:
            with disk_errors(folder):
                return super().write_data(*args, **kwargs)

    return ShardWriter(folder, sync_files=False)


def _reader(folder: Path) -> Any:
    import torch.distributed.checkpoint as dcp

    class ShardReader(dcp.FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            metadata = _Unpickler(io.BytesIO((folder / INDEX).read_bytes())).load()
            if getattr(metadata, "storage_meta", None) is None:
                metadata.storage_meta = dcp.metadata.StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return ShardReader(folder)


def _planner() -> Any:
    import torch
    import torch.distributed.checkpoint as dcp

    class ShardPlanner(dcp.DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            torch.load(value, weights_only=True)  # raises where there is more in it than values
            value.seek(0)
            super().load_bytes(read_item, value)

    # PyTorch's planner takes a tensor of which this rank has no shard, of FSDP1, for one that is missing; what it
    # flattens is FSDP1 of parameters that are sharded already.
    return ShardPlanner(flatten_sharded_tensors=False)
