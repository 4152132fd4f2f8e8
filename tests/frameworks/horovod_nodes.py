"""A rank of Horovod, with PyTorch or TensorFlow, that trains until it is suspended, and then says how often it has
asked the others anything: at its beginning and at its end, not at each step."""

import hpcdl.trainer as hpcdl

hpcdl.attach()  # before the heavy imports

import sys  # noqa: E402

import hpcdl.trainer.horovod as suspendable  # noqa: E402


class Counted(suspendable.HorovodRanks):
    """Counts its collectives."""

    gathers = 0

    def gather(self, text: str) -> list[str]:
        Counted.gathers += 1
        return super().gather(text)


suspendable.HorovodRanks = Counted  # type: ignore[misc]
if sys.argv[1] == "torch":
    import horovod.torch as hvd
    import torch

    hvd.init()
    weight = torch.zeros(1)
    parts = {"model": torch.nn.Linear(1, 1)}

    def train() -> None:
        weight.add_(hvd.allreduce(torch.ones(1)))
else:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    weight = tf.Variable([0.0])
    parts = {"weight": weight}

    def train() -> None:
        weight.assign_add(hvd.allreduce(tf.constant([1.0])))


trained = 0
try:
    for _ in suspendable.steps(10**9, **parts):
        train()
        trained += 1
finally:
    print(f"trained {trained} gathered {Counted.gathers}", flush=True)
