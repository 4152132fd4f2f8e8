"""The variables of a Keras model, its optimizers and its metrics, in one file of arrays.

Some come into being late: TensorFlow's trainer makes those of the optimizer and the metrics, and of layers that were
given no input's shape, at the first batch. Under a `tf.distribute` strategy a variable has a value on each replica.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ARRAYS = "variables.npz"
REPLICAS = ".replicas"  # after the name of a variable: its values on all replicas, where they differ


def groups(model: Any) -> dict[str, list[Any]]:
    """The variables by what they are of: `model`, `optimizer`, `metrics`, `random`, and one for each further optimizer
    that the model has as an attribute."""
    own = [*model.variables]
    found = {"model": own, "optimizer": [*model.optimizer.variables] if model.optimizer is not None else []}
    found["metrics"] = [each for each in model.metrics_variables if not any(each is other for other in own)]
    for name, optimizer in _further_optimizers(model):
        found[f"optimizer {name}"] = [*optimizer.variables]
    generator = global_generator()
    found["random"] = [] if generator is None else [generator.state]
    return found


def _further_optimizers(model: Any) -> Iterator[tuple[str, Any]]:
    import keras

    # The one that was compiled, and the one that a LossScaleOptimizer may hold, are in `optimizer` already.
    seen = [model.optimizer, getattr(model.optimizer, "inner_optimizer", None)]
    for name, value in sorted(vars(model).items()):
        several = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for part, each in [("", value), *((f".{key}", each) for key, each in several)]:
            if isinstance(each, keras.optimizers.Optimizer) and not any(each is other for other in seen):
                seen.append(each)
                yield f"{name}{part}", each


def global_generator() -> Any:
    """Keras' own random generator, if anybody has used it; to ask for it would make it."""
    state = sys.modules.get("keras.src.backend.common.global_state")
    get = getattr(state, "get_global_attribute", None)
    return None if get is None else get("global_seed_generator")


def build(model: Any, data: Any) -> None:
    """Make what can be made before the first batch, from the shapes of the batches of `data`, a dataset."""
    import keras

    if type(model).train_step is not keras.Model.train_step:
        return  # which variables an optimizer is for is that step's to say
    strategy = getattr(model, "distribute_strategy", None)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        if data is not None and hasattr(model, "_symbolic_build"):
            # What a model of one's own needs may not be known from the shapes: then the first batch makes it.
            with contextlib.suppress(Exception):
                model._symbolic_build(data_batch=data.element_spec)
        if model.built and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def check(folder: Path) -> None:
    """Reads it all: the archive's checksums show a torn file. Raises what numpy raises."""
    import numpy

    with numpy.load(folder / ARRAYS, allow_pickle=False) as arrays:
        for name in arrays.files:
            arrays[name]


def save(model: Any, folder: Path) -> None:
    """Write all of them."""
    import numpy

    arrays: dict[str, Any] = {}
    for group, variables in groups(model).items():
        for number, variable in enumerate(variables):
            values = _values(variable)
            arrays[f"{group}.{number}"] = _whole(variable, values)
            if any(not numpy.array_equal(each, values[0]) for each in values[1:]):
                arrays[f"{group}.{number}{REPLICAS}"] = numpy.stack(values)
    with open(folder / ARRAYS, "wb") as file:
        numpy.savez(file, **arrays)


def fits(model: Any, folder: Path, without: Collection[str] = ()) -> bool:
    """Whether the model has as many variables of each group as the checkpoint, but for the groups `without`."""
    import numpy

    with numpy.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return all(_saved(arrays, group) == len(found) for group, found in _chosen(model, arrays, without))


def load(model: Any, folder: Path, without: Collection[str] = ()) -> None:
    """Give all variables, but for those of the groups `without`, what was saved. Raises ValueError, before any is
    changed, where they are not the checkpoint's in number and shape."""
    import numpy

    with numpy.load(folder / ARRAYS, allow_pickle=False) as arrays:
        chosen = _chosen(model, arrays, without)
        for group, variables in chosen:
            saved = _saved(arrays, group)
            if saved != len(variables):
                raise ValueError(f"the checkpoint has {saved} variables of the {group}, this model {len(variables)}")
            for number, variable in enumerate(variables):
                shape = arrays[f"{group}.{number}"].shape
                if shape != tuple(variable.shape):
                    name = getattr(variable, "path", number)
                    raise ValueError(
                        f"{name} of the {group} is {shape} in the checkpoint, {variable.shape} in the model"
                    )
        for group, variables in chosen:
            for number, variable in enumerate(variables):
                name = f"{group}.{number}"
                replicas = arrays[name + REPLICAS] if name + REPLICAS in arrays.files else None
                _assign(variable, arrays[name], replicas)


def _saved(arrays: Any, group: str) -> int:
    names = [name.rpartition(".") for name in arrays.files if not name.endswith(REPLICAS)]
    return sum(each[0] == group for each in names)


def _chosen(model: Any, arrays: Any, without: Collection[str]) -> list[tuple[str, list[Any]]]:
    found = groups(model)
    for name in arrays.files:  # a group of which the model has nothing
        variable = name[: -len(REPLICAS)] if name.endswith(REPLICAS) else name
        found.setdefault(variable.rpartition(".")[0], [])
    chosen = [(group, found[group]) for group in found if group not in without]
    # Keras' own generator is made when somebody draws from it, in whatever part of the script that is; a checkpoint of
    # an earlier version has no such group.
    return [each for each in chosen if each[0] != "random" or _saved(arrays, "random") == len(each[1])]


def _values(variable: Any) -> list[Any]:
    import keras

    value = variable.value
    parts = getattr(value, "values", None)  # of each replica; callable where it is another thing, a sparse tensor's
    replicas = [value] if parts is None or callable(parts) else [*parts]
    arrays = [keras.ops.convert_to_numpy(each) for each in replicas]
    # NumPy has no bfloat16 and its like of its own; all of them fit into float32 exactly.
    return [each if each.dtype.kind in "biufc" else each.astype("float32") for each in arrays]


def _whole(variable: Any, values: list[Any]) -> Any:
    """One value for all replicas."""
    if len(values) == 1 or getattr(variable, "aggregation", "none") not in ("sum", "mean"):
        return values[0]
    import numpy

    if all(numpy.array_equal(each, values[0]) for each in values[1:]):
        return values[0]
    whole = sum(values[1:], start=values[0])
    return whole if variable.aggregation == "sum" else (whole / len(values)).astype(whole.dtype)


def _assign(variable: Any, whole: Any, replicas: Any) -> None:
    parts = getattr(variable.value, "values", None)
    if parts is None or callable(parts):
        variable.assign(whole)
        return
    if replicas is not None and len(replicas) == len(parts):
        values = list(replicas)
    elif replicas is not None and getattr(variable, "aggregation", "none") == "sum":
        values = [whole, *[whole * 0] * (len(parts) - 1)]
    else:
        values = [whole] * len(parts)
    for part, value in zip(parts, values):
        part.assign(value.astype(part.dtype.as_numpy_dtype))
