"""What `hpcdl allocate` is asked: nodes in groups, and trainers that may run on some of them (BFTrainer, section 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcdl.counts import Allotment, Trainer
from hpcdl.counts.allocate import allotment


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are alike. `names`: None where only their number is known; `name`: "" where there are no groups."""

    name: str
    size: int
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a group of {self.size} nodes")
        if self.names is not None and len(self.names) != self.size:
            raise ValueError(f"{len(self.names)} names of {self.size} nodes")


@dataclass(frozen=True, slots=True)
class Problem:
    """Who gets how many nodes. `ids`, `held`: of each trainer its id, and the nodes that it has, in rank order, as far
    as they are there and have names; `grouped`: the groups have names."""

    horizon_s: float
    groups: tuple[Group, ...]
    ids: tuple[str, ...]
    trainers: tuple[Trainer, ...]
    held: tuple[tuple[str, ...], ...]
    grouped: bool = False

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.trainers) == len(self.held):
            raise ValueError(f"{len(self.ids)} ids, {len(self.held)} maps of {len(self.trainers)} trainers")
        for name, trainer in zip(self.ids, self.trainers, strict=True):
            if len(trainer.curves) != len(self.groups):
                raise ValueError(f"{name}: {len(trainer.curves)} curves for {len(self.groups)} groups")

    @property
    def capacities(self) -> list[int]:
        """The number of nodes of each group."""
        return [group.size for group in self.groups]

    def places(self) -> Iterator[tuple[int, int]]:
        """(trainer, group) wherever a trainer may run."""
        for number, trainer in enumerate(self.trainers):
            for group, its in enumerate(self.groups):
                if trainer.reach(group, its.size) is not None:
                    yield number, group

    def stay(self, solver: str) -> Allotment:
        """The current map, without a bound; who has a number that it may not have is shrunk to the next one it may.

        Where trainers have more nodes than there are, those further down the list get what is left.
        """
        left = self.capacities
        chosen = []
        for trainer in self.trainers:
            nodes = 0
            if trainer.now:
                nodes = shrunk(trainer, min(trainer.now, left[trainer.group]))
                left[trainer.group] -= nodes
            chosen.append((nodes, trainer.group))
        return allotment(self.trainers, chosen, float("inf"), solver)


def allowed(trainer: Trainer, most: int) -> Sequence[int]:
    """The numbers of nodes on which a trainer may run, up to `most`, ascending; 0 is not among them."""
    if trainer.sizes:
        return [size for size in trainer.sizes if trainer.fewest <= size <= min(trainer.most, most)]
    return range(trainer.fewest, min(trainer.most, most) + 1)


def shrunk(trainer: Trainer, nodes: int) -> int:
    """The largest number of nodes that a trainer may have, up to `nodes`."""
    return next(reversed(allowed(trainer, nodes)), 0)
