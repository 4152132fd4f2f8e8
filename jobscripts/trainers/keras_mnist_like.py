# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A suspendable Keras 3 fit, on the PyTorch or TensorFlow backend, with synthetic images of the size of MNIST's.

hpcdl submit --checkpoint-dir ckpt --env KERAS_BACKEND=torch -- python keras_mnist_like.py
"""

import hpcdl.trainer as hpcdl

hpcdl.attach()  # before the heavy imports: from here on a suspend is noticed

import argparse
import time

import keras
import numpy as np

from hpcdl.trainer.keras import suspendable

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=2048)
parser.add_argument(
    "--every", type=int, default=None, help="batches between checkpoints; one at each epoch's end anyway"
)
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a batch takes at least")
parser.add_argument("--out", help="write the final weights here")
given = parser.parse_args()

keras.utils.set_random_seed(3)
data = np.random.default_rng(3)
labels = data.integers(0, 10, given.samples)
images = (data.normal(0, 0.5, (given.samples, 28, 28, 1)) + labels[:, None, None, None] / 10).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((28, 28, 1)),
        keras.layers.AveragePooling2D(4),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
resume = suspendable(model, every=given.every)
pace = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(given.pace))
history = model.fit(
    images,
    labels,
    batch_size=32,
    epochs=given.epochs,
    initial_epoch=resume.initial_epoch,
    callbacks=[pace, resume],
    verbose=0,
)
print(history.history)
if given.out:
    np.savez(given.out, *model.get_weights(), loss=history.history.get("loss", [0.0])[-1:])
