"""Whose state the ranks of a new membership go on with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcdl.trainer.group.in_place import InPlace
from hpcdl.trainer.group.peers import RankAgreement


class Training:
    """What one rank holds, and what it is asked for."""

    def __init__(self, held: bool) -> None:
        self.held = held
        self.session = SimpleNamespace(local_rank=1)
        self.loads = 0
        self.spreads: list[tuple[int, bool, str]] = []
        self.over = False

    def load(self) -> str:
        self.loads += 1
        return "random states"

    def ranks(self) -> RankAgreement:
        return RankAgreement()

    def spread(self, source: int, take: bool, random: str) -> None:
        self.spreads.append((source, take, random))


def about(step: int, *, held: bool = True, broken: bool = False) -> dict[str, Any]:
    return {"step": step, "held": held, "broken": broken}


def agree(rank: int, everybody: list[dict[str, Any]]) -> tuple[bool, Training]:
    training = Training(everybody[rank]["held"])
    return InPlace(training, 1.0)._agree_on_state(everybody, rank), training  # type: ignore[arg-type]


NEW = about(0, held=False)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_where_nobody_has_trained_rank_0_loads_for_all(rank: int) -> None:
    fresh, training = agree(rank, [NEW, NEW, NEW])
    assert fresh
    assert training.loads == (rank == 0)
    assert training.spreads == [(0, rank != 0, "random states" if rank == 0 else "")]


def test_one_rank_spreads_nothing() -> None:
    fresh, training = agree(0, [NEW])
    assert (fresh, training.loads, training.spreads) == (True, 1, [])


@pytest.mark.parametrize(
    ("everybody", "source", "takers"),
    [
        pytest.param([about(8), about(8)], None, [], id="all hold the same"),
        pytest.param([about(8), NEW, about(8)], 0, [1], id="one came"),
        pytest.param([NEW, about(8), about(8)], 1, [0], id="rank 0 came"),
        pytest.param([about(7), about(8), about(7)], 1, [0, 2], id="one is a step ahead"),
        pytest.param([about(8), about(7), NEW], 0, [1, 2], id="one is behind, and one came"),
        pytest.param([about(8), about(8, broken=True)], 0, [1], id="one lost the others in its step"),
        pytest.param([about(8, broken=True), about(8, broken=True)], 0, [1], id="all lost each other"),
    ],
)
def test_the_furthest_state_goes_to_those_that_differ(
    everybody: list[dict[str, Any]], source: int | None, takers: list[int]
) -> None:
    for rank in range(len(everybody)):
        fresh, training = agree(rank, everybody)
        assert not fresh
        assert training.loads == 0
        assert training.spreads == ([] if source is None else [(source, rank in takers, "")])
