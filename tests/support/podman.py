"""podman in the place of apptainer: a job's command in a container of its own, whose image is an empty one, with the
programs of this machine. What hpcdl does not bind is not there."""

import shutil
import subprocess
import sys
from pathlib import Path

IMAGE = "localhost/hpcdl-test"
PYTHON = "/usr/bin/python3"
"""In the container."""

_PROGRAMS = ("/usr", "/lib", "/lib64", "/bin")

_SCRIPT = """#!{python}
import os, sys
words = sys.argv[1:]
assert words.pop(0) == "exec", sys.argv
more = []
while words[0].startswith("--"):
    option = words.pop(0)
    if option in ("--nv", "--rocm"):
        continue
    value = words.pop(0)
    more += ["--workdir", value] if option == "--pwd" else ["--volume", value + ":" + value]
image = words.pop(0).removeprefix("docker://")
os.execvp("podman", [*{run!r}, *more, image, *words])
"""


class Podman:
    """Its own storage in a folder, which is to have a short name. Raises OSError or CalledProcessError where podman
    does not run here."""

    def __init__(self, folder: Path) -> None:
        self._words = [
            "podman", "--root", str(folder / "root"), "--runroot", str(folder / "run"), "--tmpdir", str(folder / "tmp"),
            "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
            *(["--runtime", "runc"] if shutil.which("runc") else []),
        ]  # fmt: skip
        build = folder / "build"
        build.mkdir()
        (build / "empty").touch()
        (build / "Containerfile").write_text("FROM scratch\nCOPY empty /\n")
        self._call(["build", "--quiet", "--tag", IMAGE, str(build)])
        # As apptainer: the host's network and process ids, and the environment.
        self._run = [
            "run", "--rm", "--network", "host", "--pid", "host", "--ipc", "host", "--env-host",
            "--ulimit", "nofile=1000:1000", "--ulimit", "nproc=1000:1000",
            *(word for each in _PROGRAMS for word in ("--volume", f"{each}:{each}:ro")),
        ]  # fmt: skip
        self._call([*self._run, IMAGE, PYTHON, "-c", "pass"])

    def _call(self, words: list[str]) -> str:
        done = subprocess.run([*self._words, *words], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def containers(self) -> list[str]:
        """Those that there are."""
        return self._call(["ps", "--all", "--quiet"]).split()

    def as_apptainer(self, folder: Path) -> Path:
        """Makes an `apptainer` in this folder, which is to be on PATH; the folder."""
        folder.mkdir()
        path = folder / "apptainer"
        path.write_text(_SCRIPT.format(python=sys.executable, run=[*self._words, *self._run]))
        path.chmod(0o755)
        return folder
