"""A machine with fake batch commands and the wrappers of jobscripts/ before them."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli.fake import FakeDaemon

ROOT = Path(__file__).parents[2]
WRAPPERS = ROOT / "jobscripts"
FAKE = """#!/bin/sh
# A batch system's command: notes what it gets.
for word; do printf '%s\\n' "$word"; done > "$NOTES/arguments"
cat > "$NOTES/stdin"
env > "$NOTES/environment"
echo "real $0"
echo "to stderr" >&2
exit 3
"""
SLURM = "#!/bin/bash\n#SBATCH --gres=gpu:2 -J net --time=5\npython train.py\n"
LSF = '#!/bin/bash\n#BSUB -gpu "num=2" -J net -W 5\npython train.py\n'


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str


class Place:
    """A machine with fake batch commands, our wrappers before them in PATH, and an `hpcdl`."""

    def __init__(self, tmp_path: Path, home: Path) -> None:
        self.real = tmp_path / "real"
        self.ours = tmp_path / "ours"
        self.notes = tmp_path / "notes"
        self.folder = tmp_path / "here"
        tools = tmp_path / "tools"
        for each in (self.real, self.ours, self.notes, self.folder, tools):
            each.mkdir()
        for name in ("sbatch", "bsub"):
            self.executable(self.real / name, FAKE)
        self.executable(tools / "hpcdl", f'#!/bin/bash -p\nexec "{sys.executable}" -m hpcdl "$@"\n')
        # Not /usr/bin itself: a real sbatch may be there.
        self.system = tmp_path / "bin"
        self.system.mkdir()
        for name in ("sh", "cat", "dirname", "env", "grep", "head", "readlink", "tr"):
            (self.system / name).symlink_to(str(shutil.which(name)))
        self.path = [str(WRAPPERS), str(self.real), str(tools), str(self.system)]
        self.home = home

    def executable(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def script(self, text: str, name: str = "train.sh") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def run(self, *words: str, stdin: str = "", **around: str) -> Done:
        environment = {
            "PATH": ":".join(self.path), "HOME": str(self.folder), "HPCDL_HOME": str(self.home),
            "NOTES": str(self.notes), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **around,
        }  # fmt: skip
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, env=environment, cwd=self.folder, timeout=60
        )
        assert "Traceback" not in done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def got(self) -> tuple[list[str], str] | None:
        """The arguments and the standard input that the batch system's command got; None: it was not called."""
        path = self.notes / "arguments"
        if not path.exists():
            return None
        found = (path.read_text().splitlines(), (self.notes / "stdin").read_text())
        path.unlink()
        return found


def specs(fake: FakeDaemon) -> list[dict[str, object]]:
    return [spec for method, path, body in fake.requests if (method, path) == ("POST", "/v1/jobs")
            for spec in body["jobs"]]  # fmt: skip
