"""The paper's job sets, from conf/jobsets/marble.yaml."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hpcdl.profiles import conf_folder

FILE = "marble.yaml"


@dataclass(frozen=True, slots=True)
class SetJob:
    """A job of a set; `name` tells jobs of the same model apart."""

    model: str
    steps: int
    name: str


@dataclass(frozen=True, slots=True)
class JobSet:
    """A job set and what the paper prints for it: totals in seconds on its machine, and MARBLE's reduction."""

    number: int
    gpus: int
    jobs: tuple[SetJob, ...]
    lsf_s: float
    marble_s: float
    reduction: float


def load_set(number: int) -> JobSet:
    """Set 1, 2 or 3, those on one node for which totals are printed. ValueError for another; OSError passes through."""
    import yaml

    path: Path = conf_folder() / "jobsets" / FILE
    found = yaml.safe_load(path.read_text())["sets"].get(number)
    if found is None or "lsf_s" not in found["printed"]:
        raise ValueError(f"there is no job set {number} to show: choose 1, 2 or 3")
    models = Counter(job["model"] for job in found["jobs"])
    jobs = tuple(
        SetJob(
            job["model"], job["steps"], job["model"] if models[job["model"]] == 1 else f"{job['model']}/{job['steps']}"
        )
        for job in found["jobs"]
    )
    printed = found["printed"]
    return JobSet(number, found["gpus_per_node"], jobs, printed["lsf_s"], printed["marble_s"], printed["reduction"])
