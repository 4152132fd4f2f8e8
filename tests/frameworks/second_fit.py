# ruff: noqa: E402 (attaching comes before the heavy imports)
"""Two trainings in one process, the second of another model: `python second_fit.py NAME`, of those below. It says when
each begins."""

import hpcdl.trainer as hpcdl

hpcdl.attach()

import os
import sys
import tempfile
from typing import Any

import torch

NAME = sys.argv[1]
QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def loader(width: int) -> Any:
    return torch.utils.data.DataLoader(torch.ones(4, width), batch_size=2)


def hf_trainer(width: int) -> Any:
    import transformers

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(width, 1)

        def forward(self, x: Any) -> Any:
            return {"loss": self.layer(x).sum()}

    args = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, num_train_epochs=1, per_device_train_batch_size=2, report_to=[]
    )
    return transformers.Trainer(Network(), args, train_dataset=[{"x": torch.ones(width)}] * 4)


def module(width: int) -> Any:
    import lightning

    class Network(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Network()


def hf(widths: tuple[int, int]) -> Any:
    from hpcdl.trainer import hf

    return lambda width: hf.train(hf_trainer(width), every=1)


def hf_callbacks(widths: tuple[int, int]) -> Any:
    from hpcdl.trainer.hf import suspendable

    trainers = {width: hf_trainer(width) for width in widths}
    resumes = {width: suspendable(trainer, every=1) for width, trainer in trainers.items()}
    return lambda width: trainers[width].train(resume_from_checkpoint=resumes[width].checkpoint)


def hf_again(widths: tuple[int, int]) -> Any:
    from hpcdl.trainer.hf import suspendable

    trainer = hf_trainer(widths[0])
    resume = suspendable(trainer, every=1)
    return lambda width: trainer.train(resume_from_checkpoint=resume.checkpoint)


def lightning_fit(widths: tuple[int, int]) -> Any:
    import lightning

    from hpcdl.trainer.lightning import fit

    return lambda width: fit(lightning.Trainer(max_epochs=1, **QUIET), module(width), loader(width), every=1)


def lightning_callbacks(widths: tuple[int, int]) -> Any:
    import lightning

    from hpcdl.trainer.lightning import suspendable

    resumes = {width: suspendable(every=1) for width in widths}

    def train(width: int) -> None:
        resume = resumes[width]
        trainer = lightning.Trainer(max_epochs=1, callbacks=[resume], **QUIET)
        trainer.fit(module(width), loader(width), ckpt_path=resume.ckpt_path)

    return train


def accelerate(widths: tuple[int, int]) -> Any:
    from accelerate import Accelerator

    from hpcdl.trainer.accelerate import epochs

    def train(width: int) -> None:
        accelerator, model = Accelerator(cpu=True), torch.nn.Linear(width, 1)
        model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader(width))
        for _, of_epoch in epochs(accelerator, batches, 1, every=1):
            for batch in of_epoch:
                accelerator.backward(model(batch).sum())
                optimizer.step()

    return train


def deepspeed(widths: tuple[int, int]) -> Any:
    import deepspeed

    from hpcdl.trainer.deepspeed import steps

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    config = {"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}

    def train(width: int) -> None:
        model = torch.nn.Linear(width, 1)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        for _ in steps(engine, 3, every=1):
            engine.backward(engine(torch.ones(2, width)).sum())
            engine.step()

    return train


begin = globals()[NAME]((2, 3))
for width in (2, 3):
    print("begins", width, flush=True)
    begin(width)
