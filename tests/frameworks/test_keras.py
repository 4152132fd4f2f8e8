"""Keras on its real backends: suspended and resumed, the final weights are those of a run that nothing happened to."""

import pytest

from tests.frameworks.trained import HERE, ROOT, Trained

SCRIPT = str(HERE / "keras_fit.py")
TENSORFLOW = [
    ("plain", (3, 12, 16)),  # 8 batches an epoch: in the middle of the first, of a later one, at the end of one
    ("mirrored", (3, 16)),
    ("mirrored-lazy", (12,)),
    ("lazy", (3, 16)),
    ("own", (3, 16)),
    ("pipeline", (3, 12, 16)),
    ("endless", (12, 14)),  # 7 batches an epoch, and the dataset's end within one
    ("several", (3, 12)),
    ("scaled", (12,)),
    ("augmented", (3, 16)),
]
OTHERS = [
    ("torch", "plain", (12,)),
    ("torch", "augmented", (12, 16)),
    ("torch", "scaled", (12,)),
    ("jax", "plain", (3, 16)),
    ("jax", "pipeline", (12,)),
]
SMOKE = (("tensorflow", "scaled"), ("torch", "plain"), ("jax", "pipeline"))
HOLDS, EXACT = pytest.mark.holds, "suspend, resume bit-exact"


def smoke(*backend_and_kind: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.smoke] if backend_and_kind in SMOKE else []


@pytest.mark.parametrize(
    ("backend", "kind", "stops"),
    [
        pytest.param(backend, kind, stops, marks=[HOLDS(f"Keras on {backend}", EXACT), *smoke(backend, kind)])
        for backend, kind, stops in [*(("tensorflow", *each) for each in TENSORFLOW), *OTHERS]
    ],
    ids=lambda value: str(value),
)
def test_bit_for_bit(trained: Trained, backend: str, kind: str, stops: tuple[int, ...]) -> None:
    whole, _ = trained.run([SCRIPT, kind], KERAS_BACKEND=backend)
    parts, began = trained.run([SCRIPT, kind], stops, KERAS_BACKEND=backend)
    assert began == [0, *stops]
    assert parts == whole


@pytest.mark.parametrize(("backend", "kind"), [("tensorflow", "callbacks"), ("torch", "callbacks-list")])
def test_callbacks_keep_what_they_had(trained: Trained, backend: str, kind: str) -> None:
    """Best values, best weights, counters, logs and rates, of an overfitting model that is stopped early: in the middle
    of an epoch, at the end of one, and killed where an epoch's end was logged, and not saved yet."""
    whole, _ = trained.run([SCRIPT, kind], KERAS_BACKEND=backend)
    ended = trained.log(trained.job)
    parts, began = trained.run([SCRIPT, kind], (20, 24), KERAS_BACKEND=backend, KILL="4")
    assert began == [0, 20, 24, 34]
    assert parts == whole
    log = trained.log(trained.job)
    assert "stopped at 0" not in ended, "EarlyStopping has not stopped it"
    assert ended.splitlines()[-1] == log.splitlines()[-1]
    assert "Losses (losses)" in log
    assert "BackupAndRestore does nothing in this fit" in log


@HOLDS("Keras on tensorflow", "the shipped example")
def test_the_shipped_example_on_tensorflow(trained: Trained) -> None:
    example = str(ROOT / "jobscripts" / "trainers" / "keras_mnist_like.py")
    argv = [str(HERE / "stopped.py"), example, "--epochs", "3", "--samples", "256", "--out"]
    whole, _ = trained.run(argv, KERAS_BACKEND="tensorflow")
    parts, began = trained.run(argv, (3, 12), KERAS_BACKEND="tensorflow")
    assert began == [0, 3, 12]
    assert parts == whole


@HOLDS("Keras on tensorflow", "another model is refused")
def test_another_model_than_the_checkpoints_is_refused(trained: Trained) -> None:
    """A checkpoint that is loaded with variables missing would train on from half of its state."""
    log = trained.fails([SCRIPT, "changed"], (3,), KERAS_BACKEND="tensorflow")
    assert "ValueError: the checkpoint has" in log
