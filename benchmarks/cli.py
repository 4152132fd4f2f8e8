"""How fast the command line starts: whole processes, against a Python that only imports click, in turns in one run.

    python benchmarks/cli.py [--rounds N] [--jobs N] > result.json

`ls` asks a daemon that answers a given number of rows: the one of HPCDL_HOME if there is one, else a stand-in over TLS
in another process. Prints JSON: medians in milliseconds, and the ratio of each to the import of click.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAND_IN = """
import sys, signal
from pathlib import Path
from tests.cli.fake import FakeDaemon, row
fake = FakeDaemon(Path(sys.argv[1]))
fake.world.jobs = {n: row(n) for n in range(1, int(sys.argv[2]) + 1)}
fake.start()
print("ready", flush=True)
sys.stdin.read()
"""


def median_ms(commands: dict[str, list[str]], rounds: int, env: dict[str, str]) -> dict[str, float]:
    """Median wall time of each command, run one after another, round by round; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            begun = time.perf_counter()
            subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True)
            if number:
                times[name].append((time.perf_counter() - begun) * 1000)
    return {name: round(statistics.median(each), 1) for name, each in times.items()}


@contextlib.contextmanager
def daemon(jobs: int, env: dict[str, str]) -> Iterator[str]:
    """The HPCDL_HOME of a daemon that answers: the user's, else a stand-in's."""
    if "HPCDL_HOME" in os.environ:
        yield os.environ["HPCDL_HOME"]
        return
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-c", STAND_IN, folder, str(jobs)]
        process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield folder
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Start-up time of the command line.")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--jobs", type=int, default=20, help="rows that the stand-in has")
    options = parser.parse_args()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    hpcdl = [sys.executable, "-m", "hpcdl"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "python -c 'import click, http.client, ssl'": [sys.executable, "-c", "import click, http.client, ssl"],
        "hpcdl --version": [*hpcdl, "--version"],
        "hpcdl ls": [*hpcdl, "ls"],
    }  # fmt: skip
    with daemon(options.jobs, env) as home:
        medians = median_ms(commands, options.rounds, {**env, "HPCDL_HOME": home})
    base = medians["python -c 'import click'"]
    report = {
        "schema": 1,
        "rounds": options.rounds,
        "median_ms": medians,
        "of_import_click": {name: round(each / base, 2) for name, each in medians.items()},
    }
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
