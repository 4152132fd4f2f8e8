# ruff: noqa: E402 (attaching comes before the heavy imports)
"""Hugging Face's Trainer: `python hf_fit.py OUT`. OUT gets the sha256 of all that was trained, what was logged,
and the version of transformers.

HF_DATA: workers, stream (an iterable dataset); HF_CALLBACK: the script keeps its own call of `train`; TEST_EPOCHS."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from hpcdl.trainer import hf
from tests.frameworks.stops import stop

DATA, EVERY = os.environ.get("HF_DATA", ""), int(os.environ.get("HF_EVERY") or 0) or None
EPOCHS = int(os.environ.get("TEST_EPOCHS") or 3)
out = Path(sys.argv[-1])
table = torch.randn(90, 12, generator=torch.Generator().manual_seed(1))


generator = numpy.random.default_rng(7)


def sample(index: int) -> dict[str, Any]:
    """Each draws by generators of the libraries' and of its own, as augmentations do."""
    x = table[index] + 0.01 * random.random() + 0.01 * float(numpy.random.rand() + generator.random())
    return {"x": x, "labels": table[index].sum()}


class Numbered(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(index)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (sample(index) for index in range(len(table)))


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    x = torch.stack([each["x"] for each in samples])
    return {"x": x * (torch.rand_like(x) > 0.1), "labels": torch.stack([each["labels"] for each in samples])}


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        found = self.layers(x).squeeze(1)
        return {"loss": (found - labels).square().mean(), "logits": found}


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        stop(state.global_step)


torch.manual_seed(3)
args = TrainingArguments(
    output_dir=f"{out}.trainer",
    use_cpu=True,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=3,  # 23 batches an epoch: 8 steps, the last of 2 batches
    num_train_epochs=EPOCHS,
    max_steps=24 if DATA == "stream" else -1,
    learning_rate=0.01,
    lr_scheduler_type="cosine",
    logging_steps=3,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    load_best_model_at_end=False,
    metric_for_best_model="loss",
    dataloader_num_workers=2 if DATA == "workers" else 0,
    disable_tqdm=True,
    report_to=[],
)
trainer = Trainer(
    Network(),
    args,
    data_collator=collate,
    train_dataset=Stream() if DATA == "stream" else Numbered(),
    eval_dataset=Numbered(),
    callbacks=[Stop(), EarlyStoppingCallback(early_stopping_patience=EPOCHS - 1)],
)
if os.environ.get("HF_CALLBACK"):
    resume = hf.suspendable(trainer, every=EVERY)
    result = trainer.train(resume_from_checkpoint=resume.checkpoint)
else:
    result = hf.train(trainer, every=EVERY)
digest = hashlib.sha256()
for tensor in trainer.model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
names = ("step", "loss", "eval_loss", "grad_norm")
losses = [{name: each[name] for name in names if name in each} for each in trainer.state.log_history]
kept = sorted(each.name for each in Path(args.output_dir).iterdir())
stopper = next(each for each in trainer.callback_handler.callbacks if isinstance(each, EarlyStoppingCallback))
if trainer.is_world_process_zero():
    whole = {"steps": result.global_step, "loss": result.training_loss, "weights": digest.hexdigest(), "losses": losses}
    whole |= {"kept": kept, "patience": stopper.early_stopping_patience_counter, "version": transformers.__version__}
    out.write_text(json.dumps(whole))
