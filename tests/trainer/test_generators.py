"""Random generators of a script's own: their states, and where a data set has them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from hpcdl.trainer import generators
from hpcdl.trainer.generators import HeldGenerators

numpy = pytest.importorskip("numpy")


def drawn(generator: Any) -> float:
    if isinstance(generator, random.Random):
        return generator.gauss(0, 1)
    if hasattr(generator, "normal"):
        return float(generator.normal())
    import torch

    return float(torch.randn(1, generator=generator))


def torch_generator() -> Any:
    return pytest.importorskip("torch").Generator().manual_seed(5)


KINDS: dict[str, Callable[[], Any]] = {
    "python": lambda: random.Random(5),
    "pcg64": lambda: numpy.random.default_rng(5),
    "mt19937": lambda: numpy.random.Generator(numpy.random.MT19937(5)),
    "philox": lambda: numpy.random.Generator(numpy.random.Philox(5)),
    "sfc64": lambda: numpy.random.Generator(numpy.random.SFC64(5)),
    "legacy": lambda: numpy.random.RandomState(5),
    "torch": torch_generator,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_generator_goes_on_where_it_was(make: Callable[[], Any]) -> None:
    generator, other = make(), make()
    drawn(generator)  # of two that are drawn at once one is kept
    state = json.loads(json.dumps(generators.state_of(generator)))
    wanted = [drawn(generator) for _ in range(5)]
    generators.set_state(other, state)
    assert [drawn(other) for _ in range(5)] == wanted
    new = generators.made(state)
    assert type(new) is type(generator)
    assert [drawn(new) for _ in range(5)] == wanted


def test_the_state_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="a Random cannot go on from the state of another kind"):
        generators.set_state(random.Random(), generators.state_of(numpy.random.default_rng()))


def test_what_has_no_state_is_no_generator() -> None:
    assert not generators.is_generator(random.SystemRandom())
    assert not generators.is_generator(random)
    assert not generators.is_generator(5)


own = random.Random(1)


def augment(x: float) -> float:
    return x + own.random()


class Shift:
    __slots__ = ("generator",)

    def __init__(self) -> None:
        self.generator = random.Random(2)


class Crop:
    shared = random.Random(3)

    def __init__(self) -> None:
        self.of_legacy = numpy.random.RandomState(4)

    def __call__(self, x: float) -> float:
        return x


class Data:
    lazily: Any = None

    def __init__(self) -> None:
        inner = random.Random(6)
        self.transforms: list[Any] = [Shift(), Crop(), {"by name": Crop().__call__}]
        self.closed: Callable[[], float] = lambda: inner.random() + augment(0)
        self.partial = functools.partial(max, key=numpy.random.default_rng(8))
        self.samples = [random.Random(number) for number in range(generators.ENTRIES + 1)]  # data, not looked into
        self.itself = self

    def __getitem__(self, index: int) -> float:
        return augment(index)


def all_drawn(data: Data) -> list[float]:
    crop, other = data.transforms[1], data.transforms[2]["by name"].__self__
    held = [own, data.transforms[0].generator, Crop.shared, crop.of_legacy, other.of_legacy]
    return [*map(drawn, held), data.closed(), drawn(data.partial.keywords["key"])]


def test_generators_are_where_a_data_set_has_them() -> None:
    data = Data()
    state = json.loads(json.dumps(HeldGenerators(lambda: {"data": data}).capture()))
    assert len(state[generators.HELD]) == 7, list(state[generators.HELD])
    wanted = all_drawn(data)
    other = Data()  # as another attempt makes it
    HeldGenerators(lambda: {"data": other}).restore(state)
    assert all_drawn(other) == wanted


def test_one_that_is_made_at_its_first_use_is_made() -> None:
    data, other = Data(), Data()
    data.lazily = numpy.random.default_rng(9)
    drawn(data.lazily)
    state = HeldGenerators(lambda: {"data": data}).capture()
    wanted = drawn(data.lazily)
    HeldGenerators(lambda: {"data": other}).restore(state)
    assert drawn(other.lazily) == wanted


def test_one_that_is_nowhere_is_refused_by_name() -> None:
    data, other = Data(), Data()
    data.transforms.append(Shift())
    state = HeldGenerators(lambda: {"data": data}).capture()
    with pytest.raises(RuntimeError, match=r"a random generator, data.transforms\[3\].generator, that is not there"):
        HeldGenerators(lambda: {"data": other}).restore(state)


def test_only_what_is_looked_at_again_has_what_is_new() -> None:
    data = Data()
    held = HeldGenerators(lambda: {"data": data})
    before = len(held.capture()[generators.HELD])
    data.lazily = random.Random(1)
    assert len(held.capture(again=False)[generators.HELD]) == before
    assert len(held.capture()[generators.HELD]) == before + 1


def test_what_is_apart_is_not_looked_into() -> None:
    data = Data()
    apart = HeldGenerators(lambda: {"data": [data]}, apart=(data,))
    assert apart.capture()[generators.HELD] == {}


def test_the_libraries_own_are_restored_too_and_counted_once() -> None:
    held = HeldGenerators(lambda: {"data": [random._inst, numpy.random.mtrand._rand]})
    state = held.capture()
    assert state[generators.HELD] == {}
    wanted = random.random(), numpy.random.rand()
    held.restore(state)
    assert (random.random(), numpy.random.rand()) == wanted


def test_a_checkpoint_of_an_earlier_version_has_the_libraries_own_alone() -> None:
    data = Data()
    state = HeldGenerators(lambda: {"data": data}).capture()
    del state[generators.HELD]
    wanted = random.random()
    HeldGenerators(lambda: {"data": data}).restore(state)
    assert random.random() == wanted
