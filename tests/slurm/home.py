"""One HPCDL_HOME beside a real Slurm."""

import os
import sys
from pathlib import Path
from typing import Any

from tests.slurm.cluster import SlurmCluster
from tests.system.batch import BatchHome

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jobscripts" / "hpcdl.slurm"


class Home(BatchHome):
    """Its allocations are those of jobscripts/hpcdl.slurm."""

    def __init__(self, slurm: SlurmCluster, folder: Path, **settings: Any) -> None:
        super().__init__(folder, "slurm", **settings)
        self.slurm = slurm
        search = os.pathsep.join([str(Path(sys.executable).parent), slurm.env["PATH"]])
        own = {"HPCDL_HOME": str(folder), "HPCDL_EMULATE_GPUS": "auto", "PATH": search}
        self.environment = {**slurm.env, **own}

    # --- allocations

    def allocate(self, *options: str, script: Path = SCRIPT, up: bool = True) -> str:
        """Submits the job script of hpcdl; the batch job's id. `up`: returns when its agents are connected."""
        output = f"--output={self.slurm.folder}/jobs/%j.out"
        argv = ["sbatch", "--parsable", output, *options, str(script)]
        job = self.slurm.run(*argv, env=self.environment).stdout.strip()
        self.batch_jobs.append(job)
        if up:
            self.slurm.until_state(job, "RUNNING")
            nodes = self.slurm.nodes(job)
            self.until(lambda: set(nodes) <= set(self.connected()))
        return job

    def start_outside(self, gpus: int) -> None:
        """The daemon on a login node, which has emulated GPUs of its own and is called as `node_name` says."""
        self.cli("daemon", "start", "--emulate-gpus", str(gpus), "--json")

    def daemon_node(self) -> str:
        """Where the daemon runs, by the batch system's name of the node; "" outside of any allocation."""
        environ = Path(f"/proc/{self.status()['daemon']['pid']}/environ").read_bytes().split(b"\0")
        return next((each[16:].decode() for each in environ if each.startswith(b"SLURMD_NODENAME=")), "")

    # --- the end

    def logs(self) -> str:
        outputs = [f"--- batch job {job}\n{self.slurm.output(job)[-3000:]}" for job in self.batch_jobs]
        return "\n".join([super().logs(), *outputs])

    def stop(self) -> None:
        """Ends hpcdl as a user would, its allocations and pilots with it, and checks as `Cluster.stop`."""
        self.stop_daemon()
        self.slurm.start_missing()
        self.slurm.end_jobs()
        super().stop()
