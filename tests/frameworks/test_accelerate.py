"""Loops on accelerate end with the weights, learning rate and losses of a run that nothing happened to."""

import json

import pytest

from tests.frameworks.trained import HERE, Trained

SCRIPT = str(HERE / "accelerate_fit.py")
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)


@pytest.mark.parametrize(
    "argv,stops,saved,env",
    [
        # 23 batches and 8 steps an epoch; the checkpoint of every 4 steps is what a kill leaves.
        pytest.param((SCRIPT,), (8,), 12, {"KILL": "13"}, marks=pytest.mark.smoke),
        # 12 batches and 4 steps an epoch for each rank.
        (RANKS, (6,), 8, {"KILL": "10"}),
        # Rank 0 reads for both, and has read the half batch at the epoch's end ahead at step 7.
        (RANKS, (), 7, {"KILL": "8", "EVERY": "7", "DATA": "stream"}),
    ],
    ids=["plain", "ranks", "stream"],
)
@pytest.mark.holds("accelerate", "suspend, resume bit-exact", "kill -9")
def test_bit_for_bit(
    trained: Trained, argv: tuple[str, ...], stops: tuple[int, ...], saved: int, env: dict[str, str]
) -> None:
    data = {name: value for name, value in env.items() if name == "DATA"}
    whole, _ = trained.run(argv, (), **data)
    parts, (first, *suspended, killed) = trained.run(argv, stops, **env)
    assert first == 0
    assert len(suspended) == len(stops)
    for step, asked in zip(suspended, stops, strict=True):
        assert asked <= step <= asked + 1, "ranks may agree on the next step"
    assert killed == saved
    assert json.loads(parts) == json.loads(whole)
    answer = json.loads(whole)
    assert answer["steps"] == (24 if argv == (SCRIPT,) else 12)
    assert len(answer["losses"]) == 3
