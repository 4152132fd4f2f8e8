"""One HPCDL_HOME beside an emulated LSF."""

import sys
from pathlib import Path
from typing import Any

from tests.lsf.cluster import ROOT, LsfCluster, hosts_of
from tests.system.batch import BatchHome

SCRIPT = ROOT / "jobscripts" / "hpcdl.lsf"


class LsfHome(BatchHome):
    """Its allocations are those of jobscripts/hpcdl.lsf."""

    def __init__(self, lsf: LsfCluster, folder: Path, **settings: Any) -> None:
        super().__init__(folder, "lsf", **settings)
        self.lsf = lsf
        self.environment = lsf.environment(
            HPCDL_HOME=str(folder),
            HPCDL_EMULATE_GPUS="auto",
            HPCDL_BIN=str(Path(sys.executable).with_name("hpcdl")),
        )

    def allocate(self, *options: str, nodes: int = 2) -> str:
        """`bsub < jobscripts/hpcdl.lsf` for so many nodes; the id. Returns when its agents are connected."""
        script = SCRIPT.read_text()
        asked = ["-o", f"{self.lsf.home}/jobs/%J.out", "-cwd", str(self.home), *options]
        dropped: tuple[str, ...] = ()
        if self.lsf.config.node_jobs:  # as the script says: -nnodes in place of -n and -R
            dropped = ("#BSUB -n ", "#BSUB -R ")
        asked += ["-nnodes" if self.lsf.config.node_jobs else "-n", str(nodes)]
        kept = [line for line in script.splitlines(keepends=True) if not line.startswith(dropped or "\0")]
        job = self.lsf.submit("".join(kept), *asked, **self.environment)
        self.batch_jobs.append(job)
        names = set(hosts_of(self.lsf.reaches(job, "RUN"))) - {self.lsf.config.launch_node}
        self.until(lambda: names <= set(self.connected()))
        return job

    def told(self, job: str) -> str:
        """What a batch job has printed."""
        path = self.lsf.home / "jobs" / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        outputs = [f"--- batch job {job}\n{self.told(job)[-3000:]}" for job in self.batch_jobs]
        return "\n".join([super().logs(), *outputs, self.lsf.run("bjobs", "-a").stdout])

    def stop(self) -> None:
        """Ends hpcdl as a user would, its allocations and pilots with it, and checks as `Cluster.stop`."""
        self.stop_daemon()
        if self.lsf.run("bkill", "0").returncode == 0:
            self.lsf.until(lambda: not self.lsf.run("bjobs").stdout, "all batch jobs to end")
        super().stop()
