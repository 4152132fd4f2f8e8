"""Runs a script under a real daemon, once as it is and once suspended at some steps, and compares what it trained."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.system.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PYTHON = f"{os.environ['HPCDL_FRAMEWORKS']}/bin/python" if "HPCDL_FRAMEWORKS" in os.environ else ""
OLDER = Path(PYTHON).parents[1] / "older" if PYTHON else Path()  # versions that are not the newest, a folder each
ENDED = ("DONE", "FAILED", "CANCELLED")
PATIENCE_S = 600.0  # TensorFlow's import alone takes a loaded machine a minute


def check_stops(began: Sequence[int], stops: Sequence[int], ranks: int = 1) -> None:
    """Each attempt went on from where the one before was asked to stop; several ranks may agree on the next step."""
    assert began[0] == 0
    assert len(began) == len(stops) + 1, began
    for step, asked in zip(began[1:], stops, strict=True):
        assert asked <= step <= asked + (ranks > 1), began


class Trained:
    """One daemon, for the tests of a file."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._runs = 0
        self.job = 0  # the newest one

    def run(self, argv: Sequence[str], stops: Sequence[int] = (), *options: str, **env: str) -> tuple[str, list[int]]:
        """What `argv`, a script and its arguments, wrote into the file that it is given last, and the step from which
        each attempt went on. It is suspended and resumed at each of `stops`."""
        here = self._folder()
        job = self._submit(here, argv, stops, options, env)
        for step in stops:
            self.suspend(job, here, step)
            self.cluster.cli("resume", str(job))
        self.cluster.until_state(job, *ENDED, seconds=PATIENCE_S)
        assert self.cluster.job(job)["state"] == "DONE", self.log(job)
        return (here / "out").read_text(), self.began(job)

    def fails(self, argv: Sequence[str], stops: Sequence[int], **env: str) -> str:
        """Suspended and resumed at `stops`, it fails; what it says then."""
        here = self._folder()
        job = self._submit(here, argv, stops, ("--retries", "0"), env)
        for step in stops:
            self.suspend(job, here, step)
            self.cluster.cli("resume", str(job))
        self.cluster.until_state(job, *ENDED, seconds=PATIENCE_S)
        assert self.cluster.job(job)["state"] == "FAILED", self.log(job)
        return self.log(job)

    def until_curve(self, name: str) -> None:
        """Until the newest job has a curve of that name: its last numbers come with a heartbeat."""

        def found() -> bool:
            answer = self.cluster.client.get(f"/v1/jobs/{self.job}/series")
            return any(each["name"] == name and each["last"] is not None for each in answer["series"])

        self.cluster.until(found)

    @property
    def newest(self) -> Path:
        """The folder of the newest run."""
        return self.folder / str(self._runs)

    def _folder(self) -> Path:
        self._runs += 1
        here = self.folder / str(self._runs)
        here.mkdir()
        return here

    def _submit(
        self,
        here: Path,
        argv: Sequence[str],
        stops: Sequence[int],
        options: Sequence[str],
        env: Mapping[str, str],
        program: Sequence[str] = (PYTHON,),
    ) -> int:
        told = {
            "PYTHONPATH": str(ROOT),
            "TEST_STOPS_AT": f"{here}:{','.join(map(str, stops))}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KERAS_HOME": str(here / "keras"),
            "OMP_NUM_THREADS": "1",
            **env,
        }
        words = [word for name, value in told.items() for word in ("--env", f"{name}={value}")]
        given = ["--checkpoint-dir", str(here / "checkpoints"), "--grace", "180", *words, *options]
        answer = self.cluster.cli("submit", "--json", *given, "--", *program, *argv, str(here / "out"))
        self.job = int(answer["jobs"][0]["id"])
        return self.job

    def suspend(self, job: int, here: Path, step: int) -> None:
        """Suspends the job that waits for that at `step`, and says so in the folder `here`."""
        self._until(job, here / f"at-{step}")
        self.cluster.cli("suspend", str(job))
        self.cluster.until_state(job, "SUSPENDED", *ENDED, seconds=PATIENCE_S)
        assert self.cluster.job(job)["state"] == "SUSPENDED", self.log(job)
        assert not (here / "out").exists(), "it trained to its end, although it was suspended"

    def _until(self, job: int, path: Path) -> None:
        self.cluster.until(lambda: path.exists() or self.cluster.job(job)["state"] in ENDED, PATIENCE_S)
        assert path.exists(), self.log(job)

    def log(self, job: int) -> str:
        return str(self.cluster.cli("logs", str(job)))[-5000:]

    def began(self, job: int) -> list[int]:
        return [event["body"]["step"] for event in self.cluster.events(job) if event["kind"] == "TrainerReady"]
