"""A table of a paper, with ours beside the printed figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FIXED = frozenset({"workload", "policy", "makespan_s", "mean_jct_s", "paper"})


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A workload under a policy. Times are seconds.

    more: further figures of ours by key: numbers, words, or None where there is none.
    paper: what the paper prints for this row, by the same keys; empty where it prints nothing.
    """

    workload: str
    policy: str
    makespan_s: float
    mean_jct_s: float
    more: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twice = _FIXED & self.more.keys()
        if twice:
            raise ValueError(f"{sorted(twice)} are columns of their own, not further figures")

    def to_json(self) -> dict[str, Any]:
        """Plain values: the further figures stand beside the times."""
        return {
            "workload": self.workload,
            "policy": self.policy,
            "makespan_s": self.makespan_s,
            "mean_jct_s": self.mean_jct_s,
            **self.more,
            "paper": dict(self.paper),
        }


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Rows, and notes: where the paper leaves an input open, and what was chosen."""

    name: str
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "rows": [row.to_json() for row in self.rows], "notes": list(self.notes)}
