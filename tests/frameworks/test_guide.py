"""The trainer guide's scripts for frameworks, as they stand, are suspended and go on where they were."""

import pytest

from tests.frameworks.trained import HERE, Trained


@pytest.mark.parametrize("name,stop", [("accelerate_train.py", 11), ("hf_train.py", 5), ("lightning_train.py", 5)])
def test_suspended_and_resumed(trained: Trained, name: str, stop: int) -> None:
    answer, began = trained.run([str(HERE / "guide.py"), name], (stop,))
    assert began == [0, stop]
    assert answer == name


@pytest.mark.parametrize(
    ("name", "stop"), [("epochs_train.py", 30), ("jax_train.py", 7), ("numpy_train.py", 33), ("tf_train.py", 25)]
)
def test_bit_for_bit(trained: Trained, name: str, stop: int) -> None:
    whole, _ = trained.run([str(HERE / "guide.py"), name])
    parts, began = trained.run([str(HERE / "guide.py"), name], (stop,))
    assert began == [0, stop]
    assert parts == whole != name


def test_submitits_own_checkpoint(trained: Trained) -> None:
    """Its class does not know of hpcdl: submitit's handler of SIGUSR2 writes the task, and the next start reads it."""
    command = [str(HERE / "guide.py"), "submitit_train.py"]
    options = ("--signal", "submitit", "--resumes", f"{trained.folder}/*/checkpoints/*_submitted.pkl")
    whole, _ = trained.run(command)
    parts, _ = trained.run(command, (23,), *options)
    assert parts == whole
    ended = [event["body"] for event in trained.cluster.events(trained.job) if event["kind"] == "IncarnationEnded"]
    assert [each["cause"] for each in ended] == ["suspended", "done"]
    assert "_submitted.pkl by itself" in ended[0]["detail"]
    log = trained.log(trained.job)
    assert "step 24/60" in log
    assert log.count("step 23/60") == 1, "it goes on, and does not start over"
