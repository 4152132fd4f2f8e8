"""Two ranks of DeepSpeed, suspended and killed, end with the weights of a run that nothing happened to."""

import pytest

from tests.frameworks.trained import HERE, Trained

SCRIPT = str(HERE / "deepspeed_fit.py")
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)
HOLDS, EXACT = pytest.mark.holds, "suspend, resume bit-exact"


@pytest.mark.parametrize(
    "zero,stops,saved,kill",
    [
        # The checkpoint of every 4 steps is what a kill leaves.
        pytest.param("1", (), (8,), {"KILL": "10"}, marks=HOLDS("DeepSpeed", "kill -9")),
        pytest.param("2", (5,), (), {}, marks=[HOLDS("DeepSpeed", EXACT), pytest.mark.smoke]),
        pytest.param("3", (5,), (8,), {"KILL": "10"}, marks=HOLDS("DeepSpeed", EXACT, "kill -9")),
    ],
)
def test_bit_for_bit(
    trained: Trained, zero: str, stops: tuple[int, ...], saved: tuple[int, ...], kill: dict[str, str]
) -> None:
    whole, _ = trained.run(RANKS, (), ZERO=zero)
    parts, began = trained.run(RANKS, stops, ZERO=zero, **kill)
    assert len(began) == 1 + len(stops) + len(saved)
    for step, asked in zip(began[1:], stops, strict=False):
        assert asked <= step <= asked + 1, "ranks may agree on the next step"
    assert tuple(began[1 + len(stops) :]) == saved
    assert parts == whole
    assert whole.startswith("12 ")
