"""A real Slurm whose commands answer with nothing, garbage or yesterday's rows: nothing is concluded from that."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.home import Home
from tests.support import standins
from tests.support.standins import StandIns
from tests.system.batch import site_file

pytestmark = pytest.mark.timeout(300)

COMMANDS = ("squeue", "sinfo", "scontrol", "sacct", "sbatch", "scancel")
STEPS = 1_000_000


class Scene:
    """An allocation of n1 with a daemon, and a pilot; an elastic job trains on both."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm = slurm
        site = site_file(folder, queues=["scavenge"], walltime_min_s=60, startup_s=5)
        self.home = Home(slurm, folder / "home", policy="bftrainer", pilots=1, site=str(site))
        points = [{"nodes": nodes, "gpus": 4, "rate": 10.0 * nodes} for nodes in (1, 4)]
        self.home.add_profile("scales", points=points, startup_s=1, save_s=1, resume_s=1, grow_s=1, shrink_s=1)
        search = os.pathsep.join([str(Path(sys.executable).parent), slurm.env["PATH"]])
        self.commands = StandIns(folder / "bin", search, *COMMANDS)
        self.home.environment["PATH"] = self.commands.path
        self.batch_job = self.home.allocate("-w", "n1", "-N1", "-t", "20")
        self.job = self.home.elastic("1:2", STEPS, "--step-s", 0.05, "--save-every", STEPS)
        self.home.until(lambda: len(self.home.placement(self.job)) == 2 and self.trains())
        (self.pilot,) = self.home.cli("pilots", "--json")["pilots"]

    def trains(self) -> bool:
        return bool(self.home.job(self.job)["state"] == "RUNNING")

    def polls(self, number: int, command: str = "squeue") -> None:
        """Waits until the daemon has asked so many times more."""
        before = self.commands.asked(command)
        self.home.until(lambda: self.commands.asked(command) >= before + number)

    def pilots(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.home.cli("pilots", "--all", "--json")["pilots"]
        return rows

    def leaving(self) -> list[str]:
        nodes = self.home.cli("ls", "nodes", "--json")["nodes"]
        return [node["name"] for node in nodes if node["leaving"] or node["lost"]]

    def check_nothing_happened(self) -> None:
        """It trains on, in its first attempt, on the same nodes; the pilot is the same, and runs."""
        step = self.home.job(self.job)["step"]
        self.home.until_step(self.job, step + 20)
        assert self.leaving() == []
        assert len(self.home.placement(self.job)) == 2
        assert [(row["id"], row["state"], row["batch_id"]) for row in self.pilots()] == [
            (self.pilot["id"], "RUNNING", self.pilot["batch_id"])
        ]
        kinds = self.home.kinds(self.job)
        assert "SuspendRequested" not in kinds[self.before :], kinds

    before = 0

    def mark(self) -> None:
        """What happened to the job before this is no matter of the test's."""
        self.before = len(self.home.kinds(self.job))


@pytest.fixture
def scene(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(slurm, tmp_path)
    scene.mark()
    yield scene
    scene.home.cli("cancel", str(scene.job))
    scene.home.stop()


WRONG = (standins.EMPTY, standins.GARBAGE, standins.HEADER, standins.ERROR, standins.CUT, standins.FAILS)


@pytest.mark.long
def test_nothing_is_concluded_from_a_squeue_that_answers_wrongly(scene: Scene) -> None:
    """Three polls each of nothing, garbage, no row, an error with exit code 0, a cut row, rows with exit code 3."""
    for wrong in (*WRONG, standins.WITHOUT_LAST):
        scene.commands.say("squeue", wrong)
        scene.polls(5)
        scene.check_nothing_happened()
    scene.commands.restore("squeue")
    scene.home.until(lambda: scene.home.cli("pilots", "--json")["batch"]["troubles"] == [])


def test_nothing_is_concluded_when_every_command_answers_wrongly(scene: Scene) -> None:
    invalid = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    for wrong in (standins.EMPTY, standins.GARBAGE, invalid):
        for command in COMMANDS:
            scene.commands.say(command, wrong)
        scene.polls(5)
        scene.check_nothing_happened()
    scene.commands.restore(*COMMANDS)
    scene.polls(3)
    scene.check_nothing_happened()


@pytest.mark.long
def test_yesterdays_rows_do_no_harm(scene: Scene) -> None:
    """Other nodes, an old start, an end that has passed, states of before: whatever squeue says of our batch jobs."""
    edits = (
        r"s/|N\/A|/|1600000000|/",
        "s/|RUNNING|/|COMPLETING|/",
        "s/|n[0-9]*|/|n9|/",
        r"s/|RUNNING|/|PENDING|/",
        r"s/|RUNNING|/|COMPLETED|/",
        r"s/|1[0-9]\{9\}|/|1600000000|/g",
    )
    for edit in edits:
        scene.commands.say("squeue", f'"$real" "$@" | sed \'{edit}\'')
        scene.polls(5)
        scene.check_nothing_happened()
