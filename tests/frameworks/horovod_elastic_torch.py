"""Elastic Horovod: says each step, its loss and the number of ranks, and who is in it."""

import hpcdl.trainer as hpcdl

hpcdl.attach()  # before the heavy imports

import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

from hpcdl.trainer import horovod_elastic  # noqa: E402

total, pace = int(sys.argv[1]), float(sys.argv[2])
hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, seen=0)


@horovod_elastic.run(total=total, every=20)
def train(state: Any) -> None:
    while state.step < total:
        # The same data on each rank: what is trained does not depend on how many there are.
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(state.step))
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(pace)
        if hvd.rank() == 0:
            print(f"step {state.step + 1} loss {loss.item():.6g} ranks {hvd.size()} {os.getpid()}", flush=True)
        state.step += 1
        state.seen += 1
        state.commit()


train(state)
