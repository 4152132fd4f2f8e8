"""A batch script that submits its own successor: the next link is hpcdl's, whatever stands first in PATH."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdl.core.model.job import BatchTasks
from tests.cli.fake import FakeDaemon, row
from tests.support.batch_machine import Machine
from tests.support.wrapping import FAKE, SLURM, WRAPPERS, specs

SYSTEMS = {"sbatch": BatchTasks("slurm"), "bsub": BatchTasks("lsf")}
LINK = {
    "sbatch": "sbatch --dependency=afterany:$SLURM_JOB_ID next.sh",
    "bsub": 'bsub -w "ended($LSB_JOBID)" < next.lsf',
}
ENDED = {"kind": "ended", "job": 7, "batch": ""}
ANSWER = {"sbatch": "Submitted batch job 2\n", "bsub": "Job <2> is submitted to queue <hpcdl>.\n"}


class Chain(Machine):
    """A node with a job of the fake daemon's, number 7, and a batch system's commands that note what they get."""

    def __init__(self, folder: Path, fake: FakeDaemon) -> None:
        super().__init__(folder, ["n1"])
        self.fake = fake
        self.real = folder / "real"
        self.real.mkdir()
        fake.world.jobs = {7: row(7, state="RUNNING", name="net")}
        self.command("sbatch", FAKE)
        self.command("bsub", FAKE)
        (self.work / "next.sh").write_text(SLURM)
        (self.work / "next.lsf").write_text('#!/bin/bash\n#BSUB -gpu "num=2" -J net\npython train.py\n')
        self.path = f"{self.real}:/usr/bin:/bin"

    def command(self, name: str, text: str) -> None:
        (self.real / name).write_text(text)
        (self.real / name).chmod(0o755)

    def link(self, script: str, name: str = "sbatch", **more: str) -> tuple[int, str, str]:
        around = {"PATH": self.path, "HPCDL_HOME": str(self.fake.home), "NOTES": str(self.folder), **more}
        return self.run(f"#!/bin/bash\n{script}\n", SYSTEMS[name], **around)

    @property
    def got(self) -> list[str]:
        """The arguments that the batch system's command got."""
        path = self.folder / "arguments"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def chain(fake: FakeDaemon) -> Iterator[Chain]:
    folder = Path(tempfile.mkdtemp(prefix="hpcdl-chain-"))  # short, for the socket's path
    machine = Chain(folder, fake)
    yield machine
    machine.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["sbatch", "bsub"])
@pytest.mark.parametrize("first", ["batch system", "drop-in", "known to both"])
def test_the_next_link_goes_to_hpcdl(chain: Chain, fake: FakeDaemon, name: str, first: str) -> None:
    if first == "drop-in":
        chain.path = f"{WRAPPERS}:{chain.path}"
    if first == "known to both":  # the batch system has a job of that number, of which nobody speaks here
        chain.command("scontrol", "#!/bin/sh\necho JobId=7\n")
        chain.command("bjobs", "#!/bin/sh\necho 7 me RUN\n")
    assert chain.link(LINK[name], name)[:2] == (0, ANSWER[name])
    (spec,) = specs(fake)
    assert (spec["conditions"], spec["gpus_min"], spec["name"]) == ([[ENDED]], 2, "net")
    assert chain.got == []


def test_a_link_after_the_next_one(chain: Chain, fake: FakeDaemon) -> None:
    """Its id is one that hpcdl gave."""
    first = "next=$(sbatch --parsable --dependency=afterany:$SLURM_JOB_ID next.sh)"
    assert chain.link(f"{first}\nsbatch -d afterok:$next next.sh")[:2] == (0, "Submitted batch job 3\n")
    assert [each["after"] for each in specs(fake)] == [[], [2]]
    assert chain.got == []


def test_what_waits_for_nothing_or_for_others_is_the_batch_systems(chain: Chain, fake: FakeDaemon) -> None:
    for words in (["next.sh"], ["--dependency=afterok:77", "next.sh"]):
        assert chain.link(f"sbatch {' '.join(words)}")[0] == 3
        assert chain.got == words
    assert specs(fake) == []


def test_without_a_daemon_the_next_link_is_spooled(chain: Chain, fake: FakeDaemon) -> None:
    fake.kill()
    code, out, err = chain.link(LINK["sbatch"])
    assert (code, out) == (0, "")
    assert "1 job spooled as " in err
    (path,) = (fake.home / "spool").glob("*.json")
    assert '"kind": "ended", "job": 7' in path.read_text()
    assert chain.got == []


@pytest.mark.parametrize(
    "script, more, why",
    [
        ("sbatch --dependency=afterany:$SLURM_JOB_ID cpu.sh", {}, "(it asks for no GPU), which cannot wait for it"),
        ("sbatch --dependency=afterany:$SLURM_JOB_ID:5 next.sh", {}, "job 7 is hpcdl's and job 5 is not"),
        ("sbatch --test-only --dependency=afterany:$SLURM_JOB_ID next.sh", {}, "--test-only would be ignored"),
        ("sbatch --hold --dependency=afterany:$SLURM_JOB_ID next.sh", {}, "hpcdl suspend holds a job"),
        ("sbatch --dependency=aftercorr:$SLURM_JOB_ID next.sh", {}, "job 7 is hpcdl's"),
    ],
)
def test_a_link_that_nobody_can_take_is_refused(chain: Chain, script: str, more: dict[str, str], why: str) -> None:
    (chain.work / "cpu.sh").write_text("#!/bin/sh\ntrue\n")
    code, out, err = chain.link(script, **more)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert why in err
    assert chain.got == []


def test_what_a_submit_leaves_out_is_said(chain: Chain, fake: FakeDaemon) -> None:
    """The first link was taken so, and the batch system could not wait for it."""
    code, _, err = chain.link("sbatch -w n9 --dependency=afterany:$SLURM_JOB_ID next.sh")
    assert code == 0
    assert "without -w n9" in err
    assert len(specs(fake)) == 1


def test_members_of_an_array_are_not_guessed(chain: Chain, fake: FakeDaemon) -> None:
    fake.kill()
    code, _, err = chain.link(LINK["sbatch"], HPCDL_ARRAY_JOB="7", HPCDL_ARRAY_INDEX="0")
    assert (code, err.count("\n")) == (1, 1)
    assert not (fake.home / "spool").exists()


def test_in_a_batch_job_that_a_job_submitted_its_own_ids_count(chain: Chain, fake: FakeDaemon) -> None:
    """It has the variables of the job, HPCDL_JOB and the PATH among them."""
    inside = "SLURM_JOB_PARTITION=gpu SLURM_JOB_ID=7 sbatch --dependency=afterany:7 next.sh"
    assert chain.link(inside)[0] == 3
    assert chain.got == ["--dependency=afterany:7", "next.sh"]


@pytest.mark.parametrize(
    "line, said",
    [
        ("sattach $SLURM_JOB_ID.0", "sattach: job 7 is hpcdl's, which the batch system does not know: hpcdl logs"),
        ("sbcast data /tmp/data", "sbcast: hpcdl copies no files to nodes"),
        ("bstop 7", "bstop: job 7 is hpcdl's, which the batch system does not know: hpcdl suspend 7"),
        ("bwait -w 'ended(7)'", "bwait: job 7 is hpcdl's, which the batch system does not know: hpcdl wait 7"),
    ],
)
def test_other_commands_about_the_own_job(chain: Chain, line: str, said: str) -> None:
    chain.command(line.split()[0], FAKE)
    code, out, err = chain.link(line)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"hpcdl: {said}")
    assert chain.got == []
