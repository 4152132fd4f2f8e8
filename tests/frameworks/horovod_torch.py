"""Ranks of Horovod with PyTorch, with dropout and random numbers of each rank's own; rank 0 writes what was trained."""

import hpcdl.trainer as hpcdl

hpcdl.attach()  # before the heavy imports

import hashlib  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

import hpcdl.trainer.horovod as suspendable  # noqa: E402
from tests.frameworks.stops import stop  # noqa: E402

hvd.init()
torch.manual_seed(hvd.rank())
random.seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 1))
plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
# Of the optimizer that resumes: another one shares its groups only until the first load.
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)
own = random.Random(hvd.rank())
sums = suspendable.Values(scales=[])
parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "own": own, "sums": sums}
for step in suspendable.steps(int(sys.argv[1]), every=5, **parts):
    sums.scales.append(random.random() + 0.1 * own.random())
    data = torch.randn(16, 8) * sum(sums.scales[-3:])
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    schedule.step()
    stop(step + 1)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
if hvd.rank() == 0:
    Path(sys.argv[2]).write_text(f"{hvd.size()} {digest.hexdigest()}")
