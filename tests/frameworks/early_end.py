"""A training that stops early, and the end of its script: `python early_end.py HELPER FOLDER [EPOCHS]`.

FOLDER/log gets a line for each step, validation and best model; `weights` what was trained, as the script's end exports
it. With TEST_KILL=end that is where it is killed."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import hpcdl.trainer as hpcdl

HELPER, FOLDER = sys.argv[1], Path(sys.argv[2])
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 6
STOPS_AT = 3  # epochs, of 4 steps each
hpcdl.attach(checkpoint_dir=FOLDER / "checkpoints")


def say(what: str) -> None:
    with (FOLDER / "log").open("a") as file:
        file.write(f"{what}\n")


def network() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Linear(3, 1)


def data() -> Any:
    import torch

    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def digest(model: Any) -> str:
    return " ".join(f"{float(each):.9f}" for tensor in model.state_dict().values() for each in tensor.flatten())


def with_hf() -> str:
    import torch
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    from hpcdl.trainer import hf

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            found = self.layer(x)
            return {"loss": (found - labels).square().mean(), "logits": found}

    class Told(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            say("step")

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            say("epoch")

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            say("validated")

        def on_save(self, *_: Any, **__: Any) -> None:
            say("best")

    args = TrainingArguments(
        output_dir=str(FOLDER / "out"),
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=EPOCHS,
        learning_rate=1e-9,  # it gets no better
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        disable_tqdm=True,
        report_to=[],
    )
    rows = [{"x": x, "labels": y} for x, y in data()]
    stops = EarlyStoppingCallback(STOPS_AT - 1, early_stopping_threshold=0.5)
    trainer = Trainer(Network(), args, train_dataset=rows, eval_dataset=rows, callbacks=[Told(), stops])
    hf.train(trainer)
    return digest(trainer.model)


def with_lightning() -> str:
    import lightning.pytorch as pl
    import torch

    from hpcdl.trainer import lightning as suspendable

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()

        def training_step(self, batch: Any, number: int) -> Any:
            say("step")
            return (self.layer(batch[0]) - batch[1]).square().mean()

        def validation_step(self, batch: Any, number: int) -> None:
            say("validated")
            self.log("val_loss", 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

        def on_train_epoch_start(self) -> None:
            say("epoch")

    class Best(pl.callbacks.ModelCheckpoint):
        def _save_checkpoint(self, trainer: Any, path: str) -> None:
            say("best")
            super()._save_checkpoint(trainer, path)

    module, loader = Module(), torch.utils.data.DataLoader(data(), batch_size=4)
    stops = pl.callbacks.EarlyStopping("val_loss", patience=STOPS_AT - 1)
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[stops, Best(FOLDER / "out", monitor="val_loss")],
    )  # fmt: skip
    suspendable.fit(trainer, module, loader, loader)
    return digest(module)


def with_keras() -> str:
    import keras
    import numpy

    from hpcdl.trainer import keras as suspendable

    class Told(keras.callbacks.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            say("step")

        def on_test_end(self, *_: Any, **__: Any) -> None:
            say("validated")

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            say("epoch")

    class Best(keras.callbacks.ModelCheckpoint):
        def _save_model(self, *given: Any, **named: Any) -> None:
            say("best")
            super()._save_model(*given, **named)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = numpy.random.default_rng(2).normal(size=(16, 3)).astype("float32")
    resume = suspendable.suspendable(model)
    stops = keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=STOPS_AT - 1, restore_best_weights=True)
    callbacks = [resume, Told(), stops, Best(str(FOLDER / "best.keras"), save_best_only=True)]
    model.fit(
        x, x.sum(1), batch_size=4, epochs=EPOCHS, validation_data=(x, x.sum(1)), callbacks=callbacks, verbose=0,
        initial_epoch=resume.initial_epoch,
    )  # fmt: skip
    return " ".join(f"{float(each):.9f}" for array in model.get_weights() for each in array.flatten())


def with_accelerate() -> str:
    import torch
    from accelerate import Accelerator

    from hpcdl.trainer import accelerate

    accelerator = Accelerator(cpu=True)
    model, loader = network(), torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch, batches in accelerate.epochs(accelerator, loader, EPOCHS):
        say("epoch")
        for x, y in batches:
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            say("step")
        say("validated")
        if epoch + 1 == STOPS_AT:
            break
    return digest(model)


def with_epochs() -> str:
    import torch

    from hpcdl.trainer import torch as suspendable

    model, loader = network(), torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch, batches in suspendable.epochs(loader, EPOCHS, model=model, optimizer=optimizer):
        say("epoch")
        for x, y in batches:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            say("step")
        say("validated")
        if epoch + 1 == STOPS_AT:
            break
    return digest(model)


def with_steps() -> str:
    import torch

    from hpcdl.trainer import torch as suspendable

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = data().tensors
    for step in suspendable.steps(4 * EPOCHS, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        say("step")
        if step + 1 == 4 * STOPS_AT:
            break
    return digest(model)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    found = globals()[f"with_{HELPER}"]()
    if os.environ.get("TEST_KILL") == "end":
        (FOLDER / "before").write_text(found)
        os.kill(os.getpid(), signal.SIGKILL)
    (FOLDER / "weights").write_text(found)
