"""PyTorch over the epochs of a DataLoader ends with the weights and random states of a run that nothing happened to."""

import json

import pytest

from tests.frameworks.trained import HERE, Trained

SCRIPT = str(HERE / "epochs_fit.py")
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)
HELD = ("suspend, resume bit-exact", "kill -9")


@pytest.mark.parametrize(
    "argv,stops,began,env",
    [
        # 15 batches an epoch. Stops are at a batch of an epoch (1 x 100 + 7), and 115 is the last of one.
        ((SCRIPT,), (7, 115), [0, 7, 30, 32], {"KILL": "205"}),
        ((SCRIPT,), (107,), [0, 22, 28], {"KILL": "201", "WORKERS": "2"}),
        # 3 steps of 4 batches, and 3 batches that end none.
        ((SCRIPT,), (8, 103), [0, 2, 4, 4], {"KILL": "111", "ACCUMULATE": "4"}),
        ((SCRIPT,), (9, 115), [0, 9, 30], {"DATA": "stream"}),
        # 8 batches an epoch for each rank.
        (RANKS, (3, 106), [0, 3, 14, 16], {"KILL": "203"}),
        pytest.param(
            RANKS,
            (3,),
            [0, 3, 8],
            {"KILL": "102", "SPREAD": "1"},
            marks=[pytest.mark.smoke, pytest.mark.holds("PyTorch, sharded (FSDP)", *HELD)],
        ),
    ],
    ids=["plain", "workers", "accumulate", "stream", "ranks", "spread"],
)
@pytest.mark.holds("PyTorch, epochs of a DataLoader", *HELD)
def test_bit_for_bit(
    trained: Trained, argv: tuple[str, ...], stops: tuple[int, ...], began: list[int], env: dict[str, str]
) -> None:
    whole, _ = trained.run(argv, (), **{name: value for name, value in env.items() if name != "KILL"})
    parts, steps = trained.run(argv, stops, **env)
    assert json.loads(parts) == json.loads(whole)
    assert len(steps) == len(began)
    for step, expected in zip(steps, began, strict=True):
        assert expected <= step <= expected + (argv == RANKS), "ranks may agree on the next step"
