"""Which models are alike, by what they are made of."""

import math

import pytest

from hpcdl.core.model.structure import ModelStructure, most_alike

RESNET = ModelStructure((("BatchNorm2d", 53), ("Conv2d", 53), ("Linear", 1), ("ReLU", 17)), 25_600_000, 90_000_000)


def like(
    layers: dict[str, int] | None = None, parameters: float = 1.0, activations: float | None = 1.0
) -> ModelStructure:
    changed = {**dict(RESNET.layers), **(layers or {})}
    return ModelStructure(
        tuple(sorted(changed.items())),
        round(RESNET.parameters * parameters),
        None if activations is None else round(90_000_000 * activations),
    )


def test_the_same_is_nearest_and_the_order_is_that_of_the_distance() -> None:
    others = [("c", like(parameters=1.9)), ("b", like(parameters=1.1)), ("a", like(parameters=1.1)), ("same", RESNET)]
    assert [name for _, name, _ in most_alike(RESNET, others)] == ["same", "a", "b", "c"]
    assert RESNET.distance(RESNET) == 0
    assert RESNET.distance(like(parameters=0.6, activations=1.5)) == pytest.approx(
        math.hypot(math.log(0.6), math.log(1.5))
    )


def test_a_deeper_one_of_the_same_kinds_is_like_it() -> None:
    twice = ModelStructure(tuple((kind, 2 * number) for kind, number in RESNET.layers), 40_000_000, 150_000_000)
    assert RESNET.common(twice) == pytest.approx(1.0)
    assert RESNET.distance(twice) == twice.distance(RESNET)
    assert RESNET.text(twice) == (
        "100 % of its layers are of the same kinds, with 1.6 x the parameters and 1.7 x the bytes of activations"
    )


@pytest.mark.parametrize(
    "other",
    [
        like(parameters=2.1),
        like(parameters=0.4),
        like(activations=2.1),
        like(activations=None),
        like({"LSTM": 60}),
        ModelStructure((("Linear", 1), ("LSTM", 2)), RESNET.parameters, RESNET.activation_bytes),
    ],
)
def test_what_is_not_like_it(other: ModelStructure) -> None:
    assert RESNET.distance(other) is None
    assert other.distance(RESNET) is None
    assert most_alike(RESNET, [("other", other)]) == []


@pytest.mark.parametrize(
    "layers, parameters, activations",
    [((), 1, 1), ((("Conv2d", 0),), 1, 1), ((("", 1),), 1, 1), ((("Conv2d", 1),), 0, 1), ((("Conv2d", 1),), 1, 0),
     (tuple((f"k{number}", 1) for number in range(65)), 1, 1)],
)  # fmt: skip
def test_what_is_no_model(layers: tuple[tuple[str, int], ...], parameters: int, activations: int) -> None:
    with pytest.raises(ValueError, match=r"kinds of layers|must be 1 or more"):
        ModelStructure(layers, parameters, activations)
