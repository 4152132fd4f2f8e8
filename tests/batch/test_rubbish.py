"""Adapters whose commands print rubbish: mutated recordings, banners, halves, other commands' output, random bytes.

Nothing but a BatchError comes of it, and no batch job is concluded to be over that nothing speaks of.
"""

import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from hpcdl.batch.adapter import BatchAdapter, Completed, PilotScript
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchState, PilotSpec
from hpcdl.core.model.units import MOST_NODES
from hpcdl.lsf.adapter import Lsf
from hpcdl.lsf.cluster import parse_bhosts
from hpcdl.lsf.jobs import Form, parse_bjobs
from hpcdl.slurm.adapter import Slurm
from hpcdl.slurm.text import entries, expand, moment, number

RECORDINGS = Path(__file__).parents[1] / "recordings"
ROUNDS = 60
NOW = 1769033955.0
PIECES = (
    b"\r\n", b"\n", b"|", b"\x00", b"\xff\xfe", b"[1-99999999999]", b"[1-99999][1-99999]", b"<", b">", b"N/A",
    b"9" * 20, b"9" * 400, b"-1", b"1e400", b"nan", b"inf", b"{}", b"[]", b"null", b'"', b"^", b"*", b":", b"=", b"\t",
    b"1-00:00:00", b"\xc2\xb2", b"\xd9\xa3", b"Job <1> is not found\n", b"PENDING", b"L\xc3\xa4uft", b"Infinity", b"-",
    b"9999-99-99T99:99:99", b"Feb 30 25:61", b"\xe2\x80\xa8", b"\x0c", b"\x1b[31m", b"300:-5", b"[3-1]", b"[", b"]",
    b"9" * 5000,
)  # fmt: skip
NAMED = {
    "squeue": "jobs", "sinfo": "nodes", "sacct": "accounting", "bjobs": "bjobs", "bhist": "bhist", "bhosts": "bhosts",
    "bqueues": "bqueues", "bslots": "bslots", "bsub": "bsub", "lshosts": "lshosts", "lsid": "lsid", "sbatch": "submit",
    "jobstat": "jobstat",
}  # fmt: skip
SHOWN = {"partition": "partitions", "reservation": "reservations", "lic": "licences", "topo": "topology"}


class Rubbish:
    """A `Run` that answers every command with a mutated recording, of that command's most of the time."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        files = sorted((RECORDINGS / kind).glob("*.txt")) + sorted((RECORDINGS / kind).glob("*.json"))
        self.recordings = {path.name: path.read_bytes() for path in files}
        self.rng = rng

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = 30.0,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        rng, text = self.rng, " ".join(argv)
        word = next((name for sign, name in SHOWN.items() if sign in text), NAMED.get(argv[0], ""))
        some = [name for name in self.recordings if word in name and name.endswith(".json") == ("json" in text)]
        name = rng.choice(some if some and rng.random() < 0.9 else list(self.recordings))
        printed = self.recordings[name] if "--version" not in text else b"slurm 23.11.4"
        if rng.random() < 0.8:
            printed = self._mutated(printed)
        err = rng.choice(["", "", "slurm_load_jobs error: Invalid job id specified", "Job <5> is not found", "\x00"])
        return Completed(printed.decode(errors="replace"), err, rng.choice([0, 0, 0, 0, 1, 255, -9]))

    def _mutated(self, text: bytes) -> bytes:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.05:
            return b"" if chance < 0.02 else rng.randbytes(rng.randint(0, 3000))
        if chance < 0.15:
            text = text.replace(b"\n", b"\r\n")
        elif chance < 0.25:
            text = b"*** Welcome ***\nat your own | risk |\n" + text + b"\nslurm: warning: bye\n"
        elif chance < 0.4:
            text = text[: rng.randint(0, len(text))]
        for _ in range(rng.choice([0, 1, 1, 2, 5, 20])):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(PIECES) + text[at + rng.choice([0, 0, 1, 3, 10]) :]
        if (numbers := list(re.finditer(rb"\d+", text))) and rng.random() < 0.7:
            found = rng.choice(numbers)
            text = text[: found.start()] + rng.choice(PIECES) + text[found.end() :]
        return text


def _system(kind: str, run: Rubbish) -> BatchAdapter:
    rng = run.rng
    if kind == "slurm":
        return Slurm(run, rng.choice([(), ("--licenses=sim:1",), ("--reservation=r1",)]), {})
    return Lsf(
        run,
        now=lambda: NOW,
        which=lambda name: f"/x/{name}" if rng.random() < 0.9 else None,
        pause=lambda seconds: None,
        host_name=lambda: "h1",
        environ={},
    )


@pytest.mark.parametrize("kind", ["slurm", "lsf"])
def test_rubbish_is_a_batch_error_at_most(kind: str, tmp_path: Path) -> None:
    script = PilotScript(("x",), "hpcdl:a:p1", "hpcdl-p1", str(tmp_path / "p1.log"))
    answers = 0
    for seed in range(ROUNDS):
        system = _system(kind, Rubbish(kind, random.Random(seed)))
        with suppress(BatchError):
            system.capabilities()
        with suppress(BatchError):
            system.holes(NOW, {"1", "2"})
        with suppress(BatchError):
            system.idle_nodes()
        with suppress(BatchError):
            jobs = system.poll(["1", "777777", "1099"])
            answers += 1
            assert set(jobs) == {"1", "777777", "1099"}
            assert jobs["777777"].state is not BatchState.ENDED, f"seed {seed}: no output speaks of it"
        with suppress(BatchError):
            jobs = system.confirm(["1", "777777"])
            assert jobs["777777"].state is not BatchState.ENDED, f"seed {seed}: no output speaks of it"
        with suppress(BatchError):
            assert all(job.mark.startswith("hpcdl:") for job in system.marked("hpcdl:"))
        with suppress(BatchError):
            assert set(system.topology(["n1", "n2"])) <= {"n1", "n2"}
        with suppress(BatchError):
            assert system.submit(PilotSpec(1, 600.0), script).isdecimal()
        with suppress(BatchError):
            system.cancel(["1"])
    assert answers > ROUNDS / 8, "what is whole can be read"


def test_a_list_of_too_many_hosts_is_not_expanded() -> None:
    assert expand("n[1-99999999999]") == ("n1-99999999999",)
    assert expand("n[1-99999][1-99999]") == ("n[1-99999][1-99999]",)
    assert expand("n[1]" * 5000) == ("n[1]" * 5000,)
    assert len(expand(f"n[1-{MOST_NODES}]")) == MOST_NODES


@pytest.mark.parametrize("text", ['{"RECORDS": null}', '{"RECORDS": 7}', "{}", '{"RECORDS": ' + "[" * 100_000])
def test_json_of_lsf_without_records(text: str) -> None:
    assert parse_bjobs(Form.JSON, text, NOW) is None


def test_numbers_that_are_none() -> None:
    assert moment("9" * 400) is None
    with pytest.raises(ValueError, match="nested"):
        entries("[" * 100_000, "jobs")
    assert [number(each) for each in (float("inf"), float("nan"), 10**400)] == [None, None, None]
    (row,) = parse_bhosts("HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\nh1 ok - ² 0 0 0 0 ²\n")
    assert (row.name, row.most, row.reserved) == ("h1", None, 0)
