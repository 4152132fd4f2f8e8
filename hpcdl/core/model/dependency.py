"""What a job waits for before it starts: conditions on other jobs of hpcdl's, and on batch jobs.

Values only, and how they are written (`12`, `3-7`, `slurm:1234`). Whether a condition is met, or never can be, is in
`rules/dependencies.py`.
"""

import re
from dataclasses import dataclass

KINDS = ("done", "ended", "failed", "started")
"""What the other job must have come to. `failed`: FAILED or CANCELLED. `started`: it holds GPUs, or did."""

_BATCH = re.compile(r"[a-z]{1,20}:[1-9]\d{0,14}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """What one other job must have come to. Raises ValueError."""

    kind: str  # one of KINDS
    job: int = 0  # of hpcdl's; 0: it is a batch job
    batch: str = ""  # a batch job, `slurm:1234`; "": it is a job of hpcdl's

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a condition must be one of {', '.join(KINDS)}, got {self.kind[:40]!r}")
        if bool(self.job) == bool(self.batch) or self.job < 0:
            raise ValueError("a condition is on one job: of hpcdl's, or of the batch system")
        if self.batch:
            if not _BATCH.fullmatch(self.batch):
                raise ValueError(f"{self.batch[:100]!r} is no batch job: write slurm:1234 or lsf:1234")
            if self.kind == "started":
                raise ValueError(f"{self.batch}: only the end of a batch job can be waited for, not its start")

    @property
    def whose(self) -> str:
        """The other job, for people."""
        return f"batch job {self.batch}" if self.batch else f"job {self.job}"

    def __str__(self) -> str:
        to = {"done": "be DONE", "ended": "end", "failed": "fail", "started": "start"}[self.kind]
        return f"{self.whose} to {to}"
