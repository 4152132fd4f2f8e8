"""As horovod_torch.py, with TensorFlow: a loop of its own, and a random generator of each rank's own."""

import hpcdl.trainer as hpcdl

hpcdl.attach()  # before the heavy imports

import hashlib  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import horovod.tensorflow as hvd  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import hpcdl.trainer.horovod as suspendable  # noqa: E402
from tests.frameworks.stops import stop  # noqa: E402

hvd.init()
keras.utils.set_random_seed(1)
generator = tf.random.Generator.from_seed(hvd.rank())
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
# Horovod knows TensorFlow's own variables, not those of Keras 3 around them.
hvd.broadcast_variables([each.value for each in model.variables], root_rank=0)
weights = [each.value for each in model.trainable_variables]
own, sums = random.Random(hvd.rank()), suspendable.Values(drawn=0.0)
parts = {"model": model, "optimizer": optimizer, "generator": generator, "own": own, "sums": sums}
for step in suspendable.steps(int(sys.argv[1]), every=5, **parts):
    sums.drawn += own.random()
    data = generator.normal((16, 8)) * sums.drawn
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(data, training=True)))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    stop(step + 1)
digest = hashlib.sha256()
for value in model.get_weights():
    digest.update(value.tobytes())
if hvd.rank() == 0:
    Path(sys.argv[2]).write_text(f"{hvd.size()} {digest.hexdigest()}")
