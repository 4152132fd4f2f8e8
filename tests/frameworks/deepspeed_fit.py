# ruff: noqa: E402 (attaching comes before the heavy imports)
"""A loop on DeepSpeed: `python deepspeed_fit.py OUT`. OUT gets the number of steps and the sha256 of the weights. ZERO:
the stage; KILL: a step at which the first attempt to reach it is killed."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

import hpcdl.trainer.deepspeed as suspendable
from tests.frameworks.stops import stop

out, stage, total = Path(sys.argv[-1]), int(os.environ["ZERO"]), 12
# Ranks on CPUs exchange by gloo alone: DeepSpeed would compile an extension for that, for a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.manual_seed(3)
layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": total, "warmup_num_steps": 3}},
    "zero_optimization": {"stage": stage},
}
model = torch.nn.Sequential(*layers)
deepspeed.init_distributed("gloo")
engine: Any
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
torch.manual_seed(100 + engine.global_rank)
for step in suspendable.steps(engine, total, every=4):
    for _ in range(2):
        x = torch.randn(8, 12)
        loss = (engine(x) - x.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
    if str(step + 1) == os.environ.get("KILL") and not out.with_suffix(".killed").exists():
        torch.distributed.barrier()
        if engine.global_rank == 0:
            out.with_suffix(".killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    stop(step + 1)
digest = hashlib.sha256()
for tensor in model.parameters():
    with deepspeed.zero.GatheredParameters([tensor], enabled=stage == 3):
        digest.update(tensor.detach().float().numpy().tobytes())
if engine.global_rank == 0:
    out.write_text(f"{engine.global_steps} {digest.hexdigest()}")
