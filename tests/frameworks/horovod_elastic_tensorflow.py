"""As horovod_elastic_torch.py, with TensorFlow: a step that is compiled once for all memberships."""

import hpcdl.trainer as hpcdl

hpcdl.attach()  # before the heavy imports

import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import horovod.tensorflow as hvd  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpcdl.trainer import horovod_elastic  # noqa: E402

total, pace = int(sys.argv[1]), float(sys.argv[2])
hvd.init()
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, kernel_initializer="zeros")])
optimizer = keras.optimizers.SGD(learning_rate=0.0005, momentum=0.5)
optimizer.build(model.trainable_variables)
weights = [each.value for each in model.trainable_variables]
variables = [each.value for each in (*model.variables, *optimizer.variables)]
state = hvd.elastic.TensorFlowState(variables=variables, step=0, seen=0)


@tf.function
def train_step(x: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - tf.reduce_sum(x, 1, keepdims=True)))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@horovod_elastic.run(total=total, every=20)
def train(state: Any) -> None:
    while state.step < total:
        # The same data on each rank: what is trained does not depend on how many there are.
        loss = train_step(tf.constant(np.random.default_rng(state.step).normal(size=(16, 8)), tf.float32))
        time.sleep(pace)
        if hvd.rank() == 0:
            print(f"step {state.step + 1} loss {float(loss):.6g} ranks {hvd.size()} {os.getpid()}", flush=True)
        state.step += 1
        state.seen += 1
        state.commit()


train(state)
