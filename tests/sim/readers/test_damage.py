"""Whatever is in a file, a reader gives a workload or says in one line what is wrong."""

import json
import random
from pathlib import Path

import pytest

from hpcdl.core.model.profile import Profile
from hpcdl.sim.readers import READERS, read_idle_trace, read_throughputs, read_workload
from hpcdl.sim.workload import WorkloadError, cluster
from tests.report.story import rows, set_three
from tests.sim.readers.test_logs import BACCT, BHIST, SACCT, SWF
from tests.sim.readers.test_tables import RATES, TRACE
from tests.sim.readers.test_yaml import ARRIVALS

PROFILES = {"bert": Profile("BERT", ((1, 1, 1.0),))}
TEXTS = {
    "yaml": ARRIVALS
    + 'jobs: [{submit_s: 1, model: bert, steps: 9, gpus: "1:4"}]\ncluster: {nodes: 1, gpus_per_node: 1}\n',
    "csv": "submit_s,model,gpus,steps,deadline_s,kind\n0,bert,1:2,9,99,training\n5,bert,4,9,,inference\n",
    "swf": SWF,
    "sacct": SACCT,
    "lsf": BHIST + BACCT,
    "ledger": json.dumps({"events": rows(set_three())}),
    "idle": TRACE,
    "throughput": RATES,
}
PIECES = [
    "",
    "0",
    "-1",
    "nan",
    "1e999",
    "9" * 400,
    ",",
    "|",
    ":",
    "\n",
    '"',
    "\0",
    "<",
    "{",
    "[",
    "null",
    "é",
    "\ud7ff",
    "- ",
]


def damaged(text: str, draws: random.Random) -> str:
    for _ in range(draws.randint(1, 4)):
        begin = draws.randrange(len(text))
        end = min(len(text), begin + draws.choice((0, 1, 2, 5, 30)))
        text = text[:begin] + draws.choice(PIECES) + text[end:]
    return text


def read(form: str, path: Path) -> object:
    if form == "idle":
        return read_idle_trace(path, 4)
    if form == "throughput":
        return read_throughputs(path)
    return read_workload(path, PROFILES, cluster(2, 4, "v100"), form=form)


def test_every_reader_is_damaged() -> None:
    assert set(READERS) <= set(TEXTS)


@pytest.mark.parametrize("form", TEXTS)
def test_damage_is_told_in_one_line(tmp_path: Path, form: str) -> None:
    path = tmp_path / "file"
    path.write_text(TEXTS[form])
    assert read(form, path)
    refused = 0
    for seed in range(250):
        path.write_text(damaged(TEXTS[form], random.Random(f"{form} {seed}")), encoding="utf-8")
        try:
            read(form, path)
        except WorkloadError as error:
            told = str(error)
            assert "\n" not in told
            assert told.startswith(str(path))
            assert len(told) < 1000
            refused += 1
    assert refused > 10
