# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A fit of the kind that is named: `python keras_fit.py KIND OUT`. OUT gets the sha256 of all that was trained."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from hpcdl.trainer.keras import suspendable
from tests.frameworks.stops import stop

KIND, OUT = sys.argv[1], sys.argv[2]
SAMPLES, BATCH, EPOCHS = 250, 32, 3  # 8 batches an epoch, the last one smaller

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
    assert KIND in ("plain", "changed"), KIND
    return compiled(network(shaped)), arrays


def pipeline() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=5).batch(BATCH).prefetch(2)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not resume._skip:
            stop(resume._step + batch + 1 - resume._batch)


model, given = make()
resume = suspendable(model)
history = model.fit(**given, epochs=EPOCHS, initial_epoch=resume.initial_epoch, callbacks=[Stop(), resume], verbose=0)
digest = hashlib.sha256()
for variable in [*model.variables, *model.optimizer.variables]:
    replicas = getattr(variable.value, "values", None)  # PyTorch's tensors have a method of that name
    value = variable.value if replicas is None or callable(replicas) else replicas[0]
    digest.update(np.array(keras.ops.convert_to_numpy(value)).tobytes())
digest.update(repr({name: values[-1:] for name, values in sorted(history.history.items())}).encode())
Path(OUT).write_text(digest.hexdigest())
