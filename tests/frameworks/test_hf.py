"""Hugging Face's Trainer ends with the weights, losses and callbacks of a run that nothing happened to."""

import json

import pytest

from tests.frameworks.trained import HERE, OLDER, ROOT, Trained, check_stops

SCRIPT = str(HERE / "hf_fit.py")
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)
HELD = pytest.mark.holds("Hugging Face Trainer", "suspend, resume bit-exact")


@pytest.mark.parametrize(
    "argv,stops,env",
    [
        ([SCRIPT], (3, 8, 13), {}),  # 8 steps an epoch
        ([SCRIPT], (13,), {"HF_DATA": "workers"}),
        pytest.param(
            [SCRIPT], (5,), {"HF_DATA": "stream", "HF_CALLBACK": "1", "HF_EVERY": "4"}, marks=pytest.mark.smoke
        ),
        (RANKS, (6,), {}),  # 4 steps an epoch
    ],
    ids=["plain", "workers", "stream", "ranks"],
)
@HELD
def test_bit_for_bit(trained: Trained, argv: tuple[str, ...], stops: tuple[int, ...], env: dict[str, str]) -> None:
    whole, _ = trained.run(argv, (), **env)
    parts, began = trained.run(argv, stops, **env)
    check_stops(began, stops, ranks=2 if argv is RANKS else 1)
    assert json.loads(parts) == json.loads(whole)
    answer = json.loads(whole)
    assert answer["steps"] == 12 if argv is RANKS else 24
    assert len(answer["losses"]) >= 4
    assert answer["kept"], "what the script saves by itself is there"
    trained.until_curve("loss")


@pytest.mark.holds("Hugging Face Trainer", "older versions")
@pytest.mark.parametrize("version", ["5.17.0", "4.57.6"])
def test_older_versions_resume_bit_for_bit(trained: Trained, version: str) -> None:
    """They keep the losses that they log under other names, or in variables of their loop."""
    # transformers 4 asks for tf_keras where it sees TensorFlow.
    env = {"PYTHONPATH": f"{OLDER / f'transformers-{version}'}:{ROOT}", "USE_TF": "0"}
    whole, _ = trained.run([SCRIPT], (), **env)
    parts, began = trained.run([SCRIPT], (3, 8, 13), **env)
    assert began == [0, 3, 8, 13]
    assert json.loads(parts) == json.loads(whole)
    assert json.loads(whole)["version"] == version
    trained.until_curve("loss")
