"""Lightning with what is shipped: the final weights are those of a run that nothing happened to."""

import pytest

from tests.frameworks.trained import HERE, Trained, check_stops

SCRIPT = str(HERE / "lightning_fit.py")


@pytest.mark.parametrize(
    "stops,saved,env",
    [
        ((3, 12, 16), (3, 12, 17), {}),  # 8 batches an epoch, at whose last one nothing is saved
        ((5, 18), (5, 18), {"LIGHTNING_RANKS": "2"}),
        ((5,), (5,), {"LIGHTNING_STREAM": "1"}),
    ],
    ids=["plain", "ranks", "stream"],
)
def test_bit_for_bit(trained: Trained, stops: tuple[int, ...], saved: tuple[int, ...], env: dict[str, str]) -> None:
    whole, _ = trained.run([SCRIPT], (), **env)
    parts, began = trained.run([SCRIPT], stops, **env)
    check_stops(began, saved, int(env.get("LIGHTNING_RANKS", "1")))
    assert parts == whole
    assert whole.startswith("24 ")
