"""Lightning with the callback that is shipped: the final weights are those of a run that nothing happened to."""

from tests.frameworks.trained import HERE, Trained

SCRIPT = str(HERE / "lightning_fit.py")


def test_bit_for_bit(trained: Trained) -> None:
    whole, _ = trained.run([SCRIPT])
    parts, began = trained.run([SCRIPT], (3, 12, 16))  # 8 batches an epoch
    assert began == [0, 3, 12, 16]
    assert parts == whole
    assert whole.startswith("24 ")
