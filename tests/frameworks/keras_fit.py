# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A fit of the kind that is named: `python keras_fit.py KIND OUT`. OUT gets the sha256 of all that was trained, and of
what its callbacks wrote. KILL: the epoch at whose end, before it is saved, the first attempt is killed."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from hpcdl.trainer.keras import suspendable
from tests.frameworks.stops import stop

KIND, OUT = sys.argv[1], sys.argv[2]
SAMPLES, BATCH = 250, 32  # 8 batches an epoch, the last one smaller
EPOCHS = 14 if KIND.startswith("callbacks") else 3

keras.utils.set_random_seed(3)
data = np.random.default_rng(3)
x = data.normal(size=(SAMPLES, 12)).astype("float32")
y = data.integers(0, 4, SAMPLES)
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


def network(*first: Any) -> Any:
    return keras.Sequential(
        [
            *first,
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(4, activation="softmax"),
        ]
    )


def compiled(model: Any, optimizer: Any = "adam", **more: Any) -> Any:
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"], **more)
    return model


class OwnStep(keras.Model):
    """Two optimizers, and layers that are made when they are first called; nothing tells their shapes before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.loss_mean = keras.metrics.Mean(name="own_loss")
        self.second = keras.optimizers.SGD(0.01, momentum=0.9)

    def train_step(self, batch: Any) -> Any:
        import tensorflow as tf

        images, labels = batch
        with tf.GradientTape() as tape:
            predicted = self.inner(tf.reshape(images, (-1, 12)), training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, predicted))
        weights = self.inner.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients[:2], weights[:2], strict=True))
        self.second.apply_gradients(zip(gradients[2:], weights[2:], strict=True))
        self.loss_mean.update_state(loss)
        return {"loss": self.loss_mean.result()}


class Augmented(keras.utils.PyDataset):
    """It draws by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(7)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        batch = slice(index * BATCH, (index + 1) * BATCH)
        return x[batch] + self.generator.normal(size=x[batch].shape).astype("float32"), y[batch]


def resume_step() -> int:
    found = hpcdl.resume()
    return 0 if found is None else found.step


def make() -> tuple[Any, dict[str, Any]]:
    """The model, and what fit is given."""
    shaped = layers.Input((12,))
    arrays = {"x": x, "y": y, "batch_size": BATCH}
    if KIND == "mirrored":
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return compiled(network(shaped)), arrays
    if KIND == "mirrored-lazy":
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return compiled(network()), {"x": pipeline()}
    if KIND == "lazy":
        return compiled(network()), arrays
    if KIND == "own":
        model = OwnStep()
        model.compile(keras.optimizers.Adam(0.01))
        return model, arrays
    if KIND == "augmented":
        return compiled(network(shaped)), {"x": Augmented()}
    if KIND == "pipeline":
        return compiled(network(shaped)), {"x": pipeline()}
    if KIND == "endless":
        return compiled(network(shaped)), {"x": pipeline().repeat(), "steps_per_epoch": 7}
    if KIND == "several":
        return compiled(network(shaped), steps_per_execution=3), arrays
    if KIND == "scaled":
        keras.config.set_dtype_policy("mixed_float16")
        schedule = keras.optimizers.schedules.CosineDecay(0.01, 24)
        inner = keras.optimizers.AdamW(schedule, use_ema=True, ema_overwrite_frequency=5)
        return compiled(network(shaped), keras.optimizers.LossScaleOptimizer(inner, 16.0, 5)), arrays
    if KIND == "bfloat16":
        keras.config.set_dtype_policy("bfloat16")
        return compiled(network(shaped), keras.optimizers.Adam(gradient_accumulation_steps=3)), arrays
    if KIND == "changed" and resume_step():
        return compiled(network(shaped, layers.Dense(12))), arrays
    if KIND.startswith("callbacks"):
        held_out = (
            data.normal(size=(64, 12)).astype("float32"),
            data.integers(0, 4, 64),
        )  # labels by chance: it overfits
        return compiled(network(shaped), keras.optimizers.Adam(0.03, use_ema=True)), {
            **arrays,
            "validation_data": held_out,
        }
    assert KIND in ("plain", "changed"), KIND
    return compiled(network(shaped)), arrays


def pipeline() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=5).batch(BATCH).prefetch(2)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not resume._skip:
            stop(resume._step + batch + 1 - resume._batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if str(epoch) == os.environ.get("KILL") and not Path(f"{OUT}.killed").exists():
            Path(f"{OUT}.killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Patience(keras.callbacks.EarlyStopping):
    """One of the script's own, of which hpcdl saves what Keras' own part of it keeps; the rest by `state_dict`."""

    def __init__(self) -> None:
        super().__init__(patience=6, restore_best_weights=True)
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


class Losses(keras.callbacks.Callback):
    """It keeps what nothing is saved of."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


patience = Patience()


def callbacks() -> Any:
    if not KIND.startswith("callbacks"):
        return [Stop(), resume]
    keras_own: list[Any] = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ModelCheckpoint(f"{OUT}.keras", save_best_only=True),
        patience,
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.97),
        keras.callbacks.ModelCheckpoint(f"{OUT}.{{epoch}}.{{batch}}.weights.h5", save_weights_only=True, save_freq=11),
        keras.callbacks.CSVLogger(f"{OUT}.csv"),
        keras.callbacks.BackupAndRestore(f"{OUT}.backup"),
        Losses(),
    ]
    if KIND == "callbacks-list":
        whole = [*keras_own, resume, Stop()]
        return keras.callbacks.CallbackList(whole, add_history=True, model=model, epochs=EPOCHS, steps=8, verbose=0)
    return [resume, keras.callbacks.CallbackList(keras_own), Stop()]


def digest_of(variables: Any) -> None:
    for variable in variables:
        replicas = getattr(variable.value, "values", None)  # PyTorch's tensors have a method of that name
        value = variable.value if replicas is None or callable(replicas) else replicas[0]
        digest.update(np.array(keras.ops.convert_to_numpy(value)).tobytes())


model, given = make()
resume = suspendable(model, every=10 if "KILL" in os.environ else None)
history = model.fit(**given, epochs=EPOCHS, initial_epoch=resume.initial_epoch, callbacks=callbacks(), verbose=0)
digest = hashlib.sha256()
digest_of([*model.variables, *model.optimizer.variables])
digest.update(repr([sorted(history.history.items()), history.epoch]).encode())
if KIND.startswith("callbacks"):
    digest_of(keras.models.load_model(f"{OUT}.keras").variables)
    for path in sorted(Path(OUT).parent.glob("*.weights.h5")):
        model.load_weights(path)
        digest.update(path.name.encode())
        digest_of(model.variables)
    digest.update(Path(f"{OUT}.csv").read_bytes())
    assert not Path(f"{OUT}.backup").exists()
    print(f"best epoch {patience.best_epoch}, stopped at {patience.stopped_epoch} after {patience.batches} batches")
Path(OUT).write_text(digest.hexdigest())
