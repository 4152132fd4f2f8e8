"""The trainer guide's scripts for frameworks, as they stand, are suspended and go on where they were."""

import pytest

from tests.frameworks.trained import HERE, Trained

HOLDS = "the guide's script"


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        pytest.param("accelerate_train.py", 11, marks=pytest.mark.holds("accelerate", HOLDS)),
        pytest.param("hf_train.py", 5, marks=pytest.mark.holds("Hugging Face Trainer", HOLDS)),
        pytest.param("lightning_train.py", 5, marks=pytest.mark.holds("Lightning", HOLDS)),
    ],
)
def test_suspended_and_resumed(trained: Trained, name: str, stop: int) -> None:
    answer, began = trained.run([str(HERE / "guide.py"), name], (stop,))
    assert began == [0, stop]
    assert answer == name


EXACT = (HOLDS, "suspend, resume bit-exact")


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        pytest.param("epochs_train.py", 30, marks=pytest.mark.holds("PyTorch, epochs of a DataLoader", *EXACT)),
        pytest.param(
            "jax_train.py", 7, marks=[pytest.mark.holds("JAX with optax and orbax", *EXACT), pytest.mark.smoke]
        ),
        pytest.param("numpy_train.py", 33, marks=pytest.mark.holds("NumPy", *EXACT)),
        pytest.param("tf_train.py", 25, marks=[pytest.mark.holds("TensorFlow", *EXACT), pytest.mark.smoke]),
    ],
)
def test_bit_for_bit(trained: Trained, name: str, stop: int) -> None:
    whole, _ = trained.run([str(HERE / "guide.py"), name])
    parts, began = trained.run([str(HERE / "guide.py"), name], (stop,))
    assert began == [0, stop]
    assert parts == whole != name


@pytest.mark.smoke
@pytest.mark.holds("submitit", "its own checkpoint: suspend, resume bit-exact")
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
