"""What a model is made of, as its trainer reports it, and how alike two are: never by their names.

GENIE (Chen et al., section 6) takes, for a type of job that was never profiled, the latency model of the type whose
structure is most like it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

MOST_KINDS = 64

LEAST_COMMON = 0.8
"""The part of the layers of either that must be of the same kinds, in the same proportion, for two to be alike."""

FACTOR = 2.0
"""So many times the parameters, or the bytes of activations, one may have of the other for two to be alike."""


@dataclass(frozen=True, slots=True)
class ModelStructure:
    """Layers by kind, parameters, and bytes of all layers' outputs for each sample. Raises ValueError."""

    layers: tuple[tuple[str, int], ...]  # (kind, number), kinds ascending
    parameters: int
    activation_bytes: int | None = None  # None: not known

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= MOST_KINDS or not all(kind and number >= 1 for kind, number in self.layers):
            raise ValueError(f"a model has 1 to {MOST_KINDS} kinds of layers, and one or more of each")
        if self.parameters < 1 or (self.activation_bytes is not None and self.activation_bytes < 1):
            raise ValueError("parameters and bytes of activations must be 1 or more")

    def common(self, other: "ModelStructure") -> float:
        """The part of the layers that both have: 1 where they have the same kinds in the same proportion."""
        mine, others = (dict(each.layers) for each in (self, other))
        of_mine, of_others = sum(mine.values()), sum(others.values())
        return sum(min(number / of_mine, others.get(kind, 0) / of_others) for kind, number in mine.items())

    def distance(self, other: "ModelStructure") -> float | None:
        """How different two are: the length of the logarithms of the part that is common and of both ratios.

        None where they are not alike, or what one of them has of activations is not known.
        """
        if self.activation_bytes is None or other.activation_bytes is None:
            return None
        common = self.common(other)
        parameters = abs(math.log(self.parameters / other.parameters))
        activations = abs(math.log(self.activation_bytes / other.activation_bytes))
        if common < LEAST_COMMON or max(parameters, activations) > math.log(FACTOR):
            return None
        return math.hypot(math.log(common), parameters, activations)

    def text(self, other: "ModelStructure") -> str:
        """How another one, which is alike, compares: `92 % of its layers are of the same kinds, ...`."""
        parameters = other.parameters / self.parameters
        activations = (other.activation_bytes or 0) / (self.activation_bytes or 1)
        same = f"{100 * self.common(other):.0f} % of its layers are of the same kinds"
        return f"{same}, with {parameters:.2g} x the parameters and {activations:.2g} x the bytes of activations"


def most_alike(
    structure: ModelStructure, others: Iterable[tuple[str, ModelStructure]]
) -> list[tuple[float, str, ModelStructure]]:
    """Those that are alike, with their distances and names: the most similar one first, of equal ones by name."""
    found = [(away, name, each) for name, each in others if (away := structure.distance(each)) is not None]
    return sorted(found, key=lambda each: each[:2])
