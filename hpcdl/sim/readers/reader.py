"""Chooses the reader of a file: by the file's name where that says it, else by how its text begins.

A new format is a module here and its line in READERS.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcdl.core.model.profile import Profile
from hpcdl.sim.readers.costs import Costs
from hpcdl.sim.readers.csv import read_csv
from hpcdl.sim.readers.job_rules import ReaderDefaults
from hpcdl.sim.readers.ledger import read_ledger
from hpcdl.sim.readers.lsf import read_lsf
from hpcdl.sim.readers.sacct import read_sacct
from hpcdl.sim.readers.source import Place, read_text
from hpcdl.sim.readers.swf import read_swf
from hpcdl.sim.readers.yaml import read_yaml
from hpcdl.sim.workload import NodeSpell, Workload

READERS: dict[str, Callable[[Path, ReaderDefaults], Workload]] = {
    "yaml": read_yaml,
    "csv": read_csv,
    "swf": read_swf,
    "sacct": read_sacct,
    "lsf": read_lsf,
    "ledger": read_ledger,
}
_ENDINGS = {".yaml": "yaml", ".yml": "yaml", ".csv": "csv", ".swf": "swf", ".json": "ledger"}


def read_workload(
    path: Path,
    profiles: Mapping[str, Profile],
    nodes: tuple[NodeSpell, ...] = (),
    gpu_type: str = "",
    seed: int | None = None,
    procs_per_gpu: int = 1,
    costs: Costs | None = None,
    form: str | None = None,
) -> Workload:
    """The workload in a file, plain or gzip; every error is a WorkloadError of one line.

    `profiles` are by casefolded name. `nodes` replace those of the file; without any, `Workload.nodes` is empty.
    `gpu_type`: what durations were measured on (else the type of the first node). `seed`: for the arrivals that a file
    describes. `procs_per_gpu`: for SWF. `costs`: of profiles that say none. `form`: a key of READERS, None: found out.
    """
    path = Path(path)
    given = ReaderDefaults(profiles, tuple(nodes), gpu_type, seed, procs_per_gpu, costs)
    found = form or _form(path)
    if found not in READERS:
        Place(path).wrong("", f"no format is called {found!r}: choose from {', '.join(READERS)}")
    return READERS[found](path, given)


def _form(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    if Path(name).suffix in _ENDINGS:
        return _ENDINGS[Path(name).suffix]
    text = read_text(path)[: 1 << 16]
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    if first.startswith("{"):
        return "ledger"
    if {"jobid", "jobidraw"} & set(first.casefold().split("|")):
        return "sacct"
    if re.search(r"^Job <\d", text, re.MULTILINE):
        return "lsf"
    if first.startswith(";") or re.fullmatch(r"(-?[\d.]+\s+){17}-?[\d.]+(\s.*)?", first):
        return "swf"
    if "submit_s" in first and "," in first:
        return "csv"
    if not re.search(r"^schema:", text, re.MULTILINE):
        Place(path).wrong(
            "",
            "its format is not known: name it .yaml, .csv, .swf or .json, or give what sacct --parsable2, bhist -l, "
            "bacct -l or hpcdl events --json print",
        )
    return "yaml"
