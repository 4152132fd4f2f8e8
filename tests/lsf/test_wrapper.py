"""jobscripts/bsub before an LSF-like bsub: a job waits for hpcdl's or for LSF's, never for one of both."""

import os
import sys
from pathlib import Path

from tests.cli.fake import FakeDaemon, row
from tests.lsf.cluster import LsfCluster

ROOT = Path(__file__).parents[2]


def test_ids_of_two_worlds(lsf_cluster: LsfCluster, tmp_path: Path) -> None:
    tools, home = tmp_path / "tools", tmp_path / "hpcdl"
    tools.mkdir()
    home.mkdir(mode=0o700)
    (tools / "hpcdl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hpcdl "$@"\n')
    (tools / "hpcdl").chmod(0o755)
    path = f"{ROOT / 'jobscripts'}:{tools}:{lsf_cluster.environment().get('PATH', os.environ['PATH'])}"
    around = {"PATH": path, "HPCDL_HOME": str(home), "PYTHONPATH": str(ROOT)}
    both = int(lsf_cluster.submit("#!/bin/sh\nsleep 600\n"))
    ours = both + 1000
    fake = FakeDaemon(home).start()
    fake.world.jobs = {both: row(both, state="DONE"), ours: row(ours, state="RUNNING", name="prep")}
    gpus = "#!/bin/sh\n#BSUB -gpu num=1\ntrue\n"
    try:
        refused = [
            lsf_cluster.run("bsub", "-w", value, stdin=gpus, **around)
            for value in (f"post_done({ours})", f"done({both})", "done(prep)", f"done({ours}) || done({both})")
        ]
        waits = lsf_cluster.run("bsub", "-w", f"done({ours})", stdin=gpus, **around)
        theirs = lsf_cluster.run("bsub", "-w", f"started({both + 500})", stdin=gpus, **around)
    finally:
        fake.close()
    for done in refused:
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    assert f"hpcdl and LSF both know job {both}" in refused[1].stderr
    assert waits.stdout == "Job <3> is submitted to queue <hpcdl>.\n"
    assert [body["jobs"][0]["after"] for method, _, body in fake.requests if method == "POST"] == [[ours]]
    assert "/bsub: " in theirs.stderr  # an id that hpcdl does not know is LSF's affair
