# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A TensorFlow training loop of its own: `python tensorflow_loop.py KIND OUT`. OUT gets the sha256 of all that was
trained; of further workers OUT.1 and so on do."""

import hpcdl.trainer as hpcdl

session = hpcdl.attach()

import hashlib
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hpcdl.trainer.tensorflow as suspendable
from tests.frameworks.stops import stop

KIND, OUT = sys.argv[1], sys.argv[2]
STEPS, EVERY = 24, 10

cpus = [tf.config.LogicalDeviceConfiguration()] * (2 if KIND == "mirrored" else 1)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
keras.utils.set_random_seed(3)
strategy = tf.distribute.get_strategy()
if KIND == "mirrored":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
elif KIND == "workers":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

with strategy.scope():
    layers = keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)
    model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

data = np.random.default_rng(3).normal(size=(60, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((data, data.sum(1, keepdims=True))).shuffle(60).batch(8)
whole = tf.data.Options()
whole.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
distributed = strategy.experimental_distribute_dataset(dataset.with_options(whole))
batches = suspendable.batches(distributed if KIND in ("mirrored", "workers") else dataset)
# TensorFlow saves an iterator of its own by itself.
own = iter(tf.data.Dataset.range(100).shuffle(100).repeat())
noise = tf.random.get_global_generator()
noise.reset_from_seed(4)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, batches=batches, own=own)


@tf.function
def train(batch: Any, more: Any) -> None:
    def on_replica(batch: Any) -> None:
        features, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features, training=True) - labels + more) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    strategy.run(on_replica, args=(batch,))


def killed_once(step: int) -> None:
    """`TEST_KILLS_AT=FOLDER:RANK:STEP`: that rank dies there, the first time."""
    folder, rank, at = (os.environ.get("TEST_KILLS_AT") or "::").split(":")
    mark = Path(folder, "killed")
    if (rank, at) == (str(session.rank), str(step)) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


for step in suspendable.steps(STEPS, checkpoint=checkpoint, every=EVERY):
    drawn = random.random() + np.random.normal() + tf.random.normal([]) + noise.normal([])
    train(next(batches), tf.cast(drawn, tf.float32) + tf.cast(next(own), tf.float32) / 100)
    stop(step + 1)
    killed_once(step + 1)

digest = hashlib.sha256()
for variable in [*model.variables, *optimizer.variables]:
    value = variable.value
    for part in value.values if isinstance(value, tf.distribute.DistributedValues) else [value]:
        digest.update(part.numpy().tobytes())
Path(f"{OUT}.{session.rank}" if session.rank else OUT).write_text(digest.hexdigest())
