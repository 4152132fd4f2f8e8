"""TensorFlow loops: a `tf.train.Checkpoint` in a checkpoint folder, and workers that agree on the step to suspend at.

TensorFlow is imported at the first use, so that a script can attach first. Saved beside the `tf.train.Checkpoint` are
the random states of all workers, the seeds of Keras' layers, of which TensorFlow itself saves none, and what the
replicas of a variable differ in (the moving averages of a BatchNormalization), where it saves one value for all. Under
MultiWorkerMirroredStrategy every worker calls `save`, which uses collectives; only the chief's checkpoint counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.trainer import loop, rng
from hpcdl.trainer.group.peers import JoinedRanks
from hpcdl.trainer.keras_variables import global_generator
from hpcdl.trainer.session import attach
from hpcdl.trainer.structure import report

CHECKPOINT = "checkpoint"  # the prefix of TensorFlow's own files
STATES = "states.json"  # of each worker: its random states, and its replicas' own values


def steps(total: int, *, checkpoint: Any, every: int | None = None, agree_every: int = 1) -> Iterator[int]:
    """`loop.steps` for a training loop of one's own:

        batches = hpcdl.trainer.tensorflow.batches(dataset)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, batches=batches)
        for step in hpcdl.trainer.tensorflow.steps(1000, checkpoint=checkpoint, every=100):
            train_step(next(batches))

    `checkpoint`: the `tf.train.Checkpoint` of all that is trained. Under MultiWorkerMirroredStrategy it is called on
    every worker. `agree_every`: as `peers.JoinedRanks` has it.
    """
    workers = Workers(_strategy(checkpoint), agree_every)
    report(getattr(checkpoint, "model", None))

    def write(folder: Path) -> None:
        save(folder, checkpoint, workers)

    def read(folder: Path) -> None:
        load(folder, checkpoint, workers)

    return loop.steps(total, save=write, load=read, every=every, ranks=workers)


def batches(dataset: Any) -> Any:
    """The batches of a `tf.data` dataset, one pass after the other without an end, as an iterator that a
    `tf.train.Checkpoint` can hold. It saves how many it gave, and passes over as many when it is restored.

    That serves every dataset, those of `strategy.experimental_distribute_dataset` and `from_generator` too, whose own
    iterators cannot be saved. A shuffle needs a seed (or `tf.random.set_seed`) to come in the same order again.
    """
    import tensorflow as tf

    class Batches(tf.train.experimental.PythonState):
        """See `batches`."""

        def __init__(self) -> None:
            self._passes = 0  # iterators made so far: by their number a dataset shuffles anew
            self._taken = 0  # batches of the newest one
            self._iterator: Any = iter(())

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._begin()
                batch = next(self._iterator)  # StopIteration of a dataset without a batch is the caller's
            self._taken += 1
            return batch

        def _begin(self) -> None:
            self._iterator = iter(dataset)
            self._passes += 1
            self._taken = 0

        def serialize(self) -> str:
            """The place, for TensorFlow."""
            return json.dumps({"passes": self._passes, "taken": self._taken})

        def deserialize(self, text: Any) -> None:
            """Go to that place."""
            place = json.loads(text)
            if place["passes"] < self._passes:
                raise ValueError("these batches are past the place of the checkpoint: make them anew")
            while self._passes < place["passes"]:
                self._begin()
            while self._taken < place["taken"]:
                next(self._iterator)
                self._taken += 1

    return Batches()


class Workers(JoinedRanks):
    """The workers of a MultiWorkerMirroredStrategy, by its collectives; under any other strategy one process alone.

    Every worker calls the same methods in the same order. Raises ValueError where not exactly one of them writes
    checkpoints.
    """

    def __init__(self, strategy: Any = None, every: int = 1) -> None:
        import tensorflow as tf

        self.index, count = 0, 1
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            jobs = strategy.cluster_resolver.cluster_spec().as_dict()
            chiefs = len(jobs.get("chief", ()))
            count = chiefs + len(jobs.get("worker", ())) or 1
            self.index = strategy.cluster_resolver.task_id if count > 1 else 0
            if strategy.cluster_resolver.task_type == "worker":
                self.index += chiefs
        super().__init__(count, every)
        if count == 1:
            return
        self._strategy = strategy
        self._reduce = tf.function(lambda values: strategy.reduce("SUM", values, axis=None), reduce_retracing=True)
        writers = self._sum([int(attach().writer)])[0]
        if writers != 1:
            raise ValueError(
                f"{writers} of {count} workers write checkpoints: start them with python -m hpcdl.trainer.ranks "
                f"--tf-config, or set RANK of each to its index in TF_CONFIG"
            )

    def _sum(self, values: list[int]) -> list[int]:
        import tensorflow as tf

        # Of the replicas of this worker the first brings the values.
        parts = iter([tf.constant(values, tf.int64)])
        zeros = tf.zeros([len(values)], tf.int64)
        mine = self._strategy.experimental_distribute_values_from_function(lambda context: next(parts, zeros))
        return [int(each) for each in self._reduce(mine).numpy()]

    def any(self, flag: bool) -> bool:
        return flag if self.size == 1 else self._sum([int(flag)])[0] > 0

    def barrier(self) -> None:
        if self.size > 1:
            self._sum([1])

    def gather(self, text: str) -> list[str]:
        """Every worker's text, in their order."""
        if self.size == 1:
            return [text]
        mine = list(text.encode())
        lengths = self._sum([len(mine) if each == self.index else 0 for each in range(self.size)])
        begin = sum(lengths[: self.index])
        rest = sum(lengths) - begin - len(mine)
        whole = bytes(self._sum([0] * begin + mine + [0] * rest))
        ends = [sum(lengths[: each + 1]) for each in range(self.size)]
        return [whole[end - length : end].decode() for end, length in zip(ends, lengths)]


def save(folder: Path, checkpoint: Any, workers: Workers) -> None:
    """Write the `tf.train.Checkpoint` and the states of all workers into the folder. Collective."""
    random = rng.capture()
    checkpoint.write(str(folder / CHECKPOINT))
    variables = _variables(checkpoint)
    values = [[each.numpy().tobytes() for each in variable.replicas] for variable in variables]
    digests = [[hashlib.sha256(each).hexdigest() for each in replicas] for replicas in values]
    of_workers = [json.loads(text) for text in workers.gather(json.dumps(digests))]
    apart = {}
    for number, variable in enumerate(variables):
        if not variable.tracked or len({digest for each in of_workers for digest in each[number]}) > 1:
            apart[number] = [each.hex() for each in values[number]]
    state = {"random": random, "variables": len(variables), "values": apart, "keras": _keras_seed()}
    states = [json.loads(text) for text in workers.gather(json.dumps(state))]
    if attach().writer:
        (folder / STATES).write_text(json.dumps(states))
    rng.restore(random)  # TensorFlow draws seeds for its own operations, those of a save, too


def load(folder: Path, checkpoint: Any, workers: Workers) -> None:
    """Read back what `save` wrote. The random states come last and are the worker's own; a worker that did not exist
    then keeps those it has. Raises ValueError, and what TensorFlow raises, where the checkpoint is another model's."""
    import numpy

    states = json.loads((folder / STATES).read_text())
    checkpoint.read(str(folder / CHECKPOINT)).assert_existing_objects_matched()
    if workers.index >= len(states):
        return
    state = states[workers.index]
    variables = _variables(checkpoint)
    if state["values"] and len(variables) != state["variables"]:
        raise ValueError(
            f"the checkpoint has values of {state['variables']} variables beside TensorFlow's, this model "
            f"{len(variables)}: build the model and its optimizer (in strategy.scope()) before the first step"
        )
    for number, values in state["values"].items():
        for replica, content in zip(variables[int(number)].replicas, values):
            kind = replica.dtype.as_numpy_dtype
            replica.assign(numpy.frombuffer(bytes.fromhex(content), kind).reshape(replica.shape))
    if state["keras"] is not None:
        from keras.src.random.seed_generator import global_seed_generator

        global_seed_generator().state.assign(state["keras"])
    rng.restore(state["random"])


@dataclass(frozen=True)
class Variable:
    """One that `tf.train.Checkpoint` saves not at all, or with one value for all replicas.

    replicas: `tf.Variable`, this process's own.
    """

    replicas: list[Any]
    tracked: bool


def _variables(checkpoint: Any) -> list[Variable]:
    """Those of the checkpoint's objects, in its order. What TensorFlow does not track are the seeds of Keras' layers
    that draw random numbers."""
    import tensorflow as tf

    objects = tf.train.TrackableView(checkpoint).descendants()
    known = {id(each) for each in objects}
    candidates = [(each, True) for each in objects]
    for each in objects:
        inner = getattr(each, "variables", ())
        for variable in () if callable(inner) else inner:
            if id(variable) not in known and isinstance(getattr(variable, "value", None), tf.Variable):
                known.add(id(variable))
                candidates.append((variable, False))
    found = []
    for each, tracked in candidates:
        value = each if isinstance(each, tf.distribute.DistributedValues) else getattr(each, "value", None)
        if isinstance(value, tf.distribute.DistributedValues) and hasattr(value, "assign"):
            found.append(Variable([*value.values], tracked))
        elif not tracked:
            found.append(Variable([value], tracked))
    return found


def _keras_seed() -> list[int] | None:
    generator = global_generator()
    return None if generator is None else [int(each) for each in generator.state.numpy()]


def _strategy(checkpoint: Any) -> Any:
    """The tf.distribute strategy in whose scope the variables were made, or None."""
    import tensorflow as tf

    for each in tf.train.TrackableView(checkpoint).descendants():
        for candidate in (each, getattr(each, "value", None)):
            if isinstance(candidate, tf.distribute.DistributedValues) and hasattr(candidate, "distribute_strategy"):
                return candidate.distribute_strategy
    return None
