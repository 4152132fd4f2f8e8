"""How fast submits are: one array of 1,000 jobs in the API and as a process, and single submits by 8 clients.

    .venv/bin/python benchmarks/submits.py

Prints one JSON object. A daemon whose node has no GPU is started in a new folder of TMPDIR; each submit is answered
after its commit is synced. Where Slurm is installed, serial `sbatch` is measured beside it, on the cluster of
tests/slurm.
"""

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hpcdl.client import Client  # noqa: E402

HPCDL = Path(sys.executable).with_name("hpcdl")
CLIENTS = 8
SECONDS = 5.0
SPEC = {"command": ["true"], "name": "true", "cwd": "/", "user": "me", "env": sorted(map(list, os.environ.items()))}


def times_ms(times: list[float]) -> dict[str, float]:
    """Median and worst of seconds, in milliseconds."""
    return {"median_ms": round(1e3 * statistics.median(times), 1), "max_ms": round(1e3 * max(times), 1)}


def arrays(home: Path, rounds: int = 7) -> dict[str, Any]:
    """An array of 1,000 jobs: request sent until its answer is read, over a connection that is there already."""
    found: list[float] = []
    with Client(home) as client:
        client.get("/v1/config")
        for number in range(rounds):
            body = {"request_id": f"array-{number}", "jobs": [SPEC | {"array": {"indices": "1-1000"}}]}
            begun = time.perf_counter()
            answer = client.request("POST", "/v1/jobs", body)
            found.append(time.perf_counter() - begun)
            assert len(answer["jobs"]) == 1000
            cancel(client, answer)
    return {"array_of_1000_in_the_api": times_ms(found)}


def cancel(client: Client, answer: dict[str, Any]) -> None:
    """Ends what was submitted, so that one round is like the other."""
    client.request("POST", "/v1/jobs/verb", {"verb": "cancel", "ids": [row["id"] for row in answer["jobs"]]})
    time.sleep(0.5)


def processes(home: Path, rounds: int = 5) -> dict[str, Any]:
    """The same as a whole process."""
    found: list[float] = []
    for _ in range(rounds):
        command = [str(HPCDL), "--home", str(home), "submit", "--array", "1-1000", "--json", "--", "true"]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        found.append(time.perf_counter() - begun)
        answer = json.loads(done.stdout)
        assert len(answer["jobs"]) == 1000
        with Client(home) as client:
            cancel(client, answer)
    return {"array_of_1000_as_a_process": times_ms(found)}


def submits(home: Path, number: int, seconds: float, ready: Any, waits: Any) -> None:
    """One client: one submit after another for so long; puts what each took."""
    found = []
    with Client(home) as client:
        client.get("/v1/config")
        ready.wait()
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            client.request("POST", "/v1/jobs", {"request_id": f"s{number}-{begun}", "jobs": [SPEC]})
            found.append(time.perf_counter() - begun)
    waits.put(found)


def singles(home: Path, clients: int = CLIENTS, seconds: float = SECONDS) -> dict[str, Any]:
    """Jobs a second by so many clients at once, each a process with a connection of its own."""
    context = multiprocessing.get_context("spawn")
    ready, waits = context.Barrier(clients + 1), context.Queue()
    asked = [context.Process(target=submits, args=(home, n, seconds, ready, waits)) for n in range(clients)]
    for process in asked:
        process.start()
    ready.wait(60)
    found = [seconds for _ in asked for seconds in waits.get(timeout=60)]
    for process in asked:
        process.join()
    return {"clients": clients, "a_second": round(len(found) / seconds), **times_ms(found)}


def sbatch(number: int = 40) -> dict[str, Any]:
    """Serial sbatch, jobs a second; says why where there is no Slurm."""
    from tests.slurm.cluster import SlurmCluster, missing

    if why := missing():
        return {"sbatch_a_second": None, "why": why}
    slurm = SlurmCluster().start()
    try:
        begun = time.perf_counter()
        for _ in range(number):
            slurm.run("sbatch", "--hold", "--output", "/dev/null", "--wrap", "true")
        return {"sbatch_a_second": round(number / (time.perf_counter() - begun), 1)}
    finally:
        slurm.stop()


def main() -> None:
    """Measures and prints."""
    home = Path(tempfile.mkdtemp(prefix="hpcdl-submits-")) / "home"
    daemon = [str(HPCDL), "--home", str(home), "daemon"]
    subprocess.run([*daemon, "start"], check=True, capture_output=True, timeout=60)
    try:
        found = arrays(home) | processes(home) | {"singles": singles(home)}
    finally:
        subprocess.run([*daemon, "stop"], check=False, capture_output=True, timeout=120)
        shutil.rmtree(home.parent, ignore_errors=True)
    found |= sbatch()
    print(json.dumps(found | {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}, indent=2))


if __name__ == "__main__":
    main()
