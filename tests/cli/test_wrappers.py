"""jobscripts/sbatch and bsub: what goes to hpcdl, what goes to the batch system, and that both get all of it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdl.batch import run
from hpcdl.cli.dropin import NotOurs, batch_of
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
        self.executable(tools / "hpcdl", f'#!/bin/sh\nexec "{sys.executable}" -m hpcdl "$@"\n')
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


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Place:
    return Place(tmp_path, home)


def specs(fake: FakeDaemon) -> list[dict[str, object]]:
    return [spec for method, path, body in fake.requests if (method, path) == ("POST", "/v1/jobs")
            for spec in body["jobs"]]  # fmt: skip


def test_a_training_job_goes_to_hpcdl_in_sbatchs_words(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM)
    done = place.run("sbatch", "--job-name=mine", "-A", "proj", "train.sh", "a b", "--lr=3")
    assert (done.code, done.out) == (0, "Submitted batch job 1\n")
    assert done.err.startswith("hpcdl: job 1 is hpcdl's, without ")
    assert "-A proj" in done.err
    assert done.err.count("\n") == 1
    (spec,) = specs(fake)
    assert (spec["gpus_min"], spec["gpus_max"], spec["nodes"], spec["name"]) == (2, 2, 1, "mine")
    command = spec["command"]
    assert isinstance(command, list)
    kept = Path(command[-3])
    assert command == ["env", f"SLURM_SUBMIT_DIR={place.folder}", "/bin/bash", str(kept), "a b", "--lr=3"]
    assert kept.read_text() == SLURM
    assert place.run("sbatch", "--parsable", "train.sh").out == "2\n"
    assert place.run("sbatch", stdin=SLURM).out == "Submitted batch job 3\n"
    assert place.run("sbatch", "--gpus=1", "--wrap=python x.py | tee y").out == "Submitted batch job 4\n"
    wrapped = specs(fake)[-1]["command"]
    assert isinstance(wrapped, list)
    assert Path(wrapped[-1]).read_text() == "#!/bin/sh\npython x.py | tee y\n"
    assert place.got() is None


def test_a_training_job_goes_to_hpcdl_in_bsubs_words(fake: FakeDaemon, place: Place) -> None:
    done = place.run("bsub", stdin=LSF)
    assert (done.code, done.out) == (0, "Job <1> is submitted to queue <hpcdl>.\n")
    with place.script(LSF).open() as file:  # bsub < train.sh
        done = Done(*_with_file(place, file.fileno(), "bsub", "-J", "other"))
    assert done.out == "Job <2> is submitted to queue <hpcdl>.\n"
    assert place.run("bsub", "-gpu", "num=1", "-q", "long", "python", "train.py", "--lr=3").code == 0
    one, two, three = specs(fake)
    assert (one["gpus_min"], one["name"], two["name"], three["gpus_min"]) == (2, "net", "other", 1)
    assert three["command"] == ["env", f"LS_SUBCWD={place.folder}", "python", "train.py", "--lr=3"]
    assert place.got() is None


def _with_file(place: Place, descriptor: int, *words: str) -> tuple[int, str, str]:
    environment = {"PATH": ":".join(place.path), "HPCDL_HOME": str(place.home), "NOTES": str(place.notes),
                   "PYTHONPATH": str(ROOT), "HOME": str(place.folder)}  # fmt: skip
    done = subprocess.run(
        words, stdin=descriptor, capture_output=True, text=True, env=environment, cwd=place.folder, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


PASSED: list[tuple[str, list[str], str]] = [
    ("sbatch", ["cpu.sh"], "no GPU"),
    ("sbatch", ["--test-only", "train.sh"], "an option that hpcdl cannot carry out"),
    ("sbatch", ["-w", "n[1-2]", "train.sh"], "chosen nodes"),
    ("sbatch", ["--gres=gpu:a100:2", "train.sh"], "a type"),
    ("sbatch", ["-N2", "train.sh"], "several nodes"),
    ("sbatch", ["--dependency=afterany:3", "train.sh"], "another dependency"),
    ("sbatch", ["--gres=gpu:x:y:z", "train.sh"], "nonsense"),
    ("sbatch", ["--what", "train.sh"], "unknown"),
    ("sbatch", ["--gpus"], "no value"),
    ("sbatch", ["missing.sh"], "no script"),
    ("sbatch", ["notes.txt"], "not a script"),
    ("sbatch", ["steps.sh"], "srun within"),
    ("sbatch", ["--", "cpu.sh", "--", "x y", ""], "odd words"),
    ("bsub", ["-gpu", "num=1", "sleep 5; echo $X"], "a shell's command"),
    ("bsub", ["-gpu", "num=1", "-K", "python", "x.py"], "waits"),
    ("bsub", ["-gpu", "num=1", "./lsf.sh"], "lines that bsub may read"),
    ("bsub", ["-gpu", "num=1", "-w", "ended(3)", "x"], "another dependency"),
    ("bsub", ["python", "x.py"], "no GPU"),
]


@pytest.fixture
def scripts(place: Place) -> None:
    place.script(SLURM)
    place.script(LSF, "lsf.sh")
    place.script("#!/bin/sh\ntrue\n", "cpu.sh")
    place.script("x", "notes.txt")
    place.script(SLURM + "  exec srun python x.py\n", "steps.sh")


@pytest.mark.parametrize("name, words, why", PASSED, ids=[why for _, _, why in PASSED])
def test_what_is_in_doubt_is_the_batch_systems(
    scripts: None, place: Place, name: str, words: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    assert why
    with pytest.raises(NotOurs):
        batch_of(name, tuple(words), {})


@pytest.mark.parametrize("name, words, why", [PASSED[0], *PASSED[12:15]], ids=lambda value: str(value)[:20])
def test_the_batch_system_gets_it_as_it_is(
    scripts: None, fake: FakeDaemon, place: Place, name: str, words: list[str], why: str
) -> None:
    done = place.run(name, *words, stdin="left alone\n")
    assert (done.code, done.out, done.err) == (3, f"real {place.real / name}\n", "to stderr\n"), why
    assert place.got() == (words, "left alone\n")
    assert specs(fake) == []
    assert not (place.home / "scripts").exists()


@pytest.mark.parametrize("name, script", [("sbatch", "#!/bin/sh\n#SBATCH -c 4\n"), ("bsub", "#BSUB -n 4\nx\n")])
def test_a_script_on_a_pipe_or_in_a_file_reaches_the_batch_system_whole(
    fake: FakeDaemon, place: Place, name: str, script: str
) -> None:
    whole = script + "x" * 300_000 + "\n"
    assert place.run(name, stdin=whole).code == 3
    assert place.got() == ([], whole)
    with place.script(whole).open() as file:
        assert _with_file(place, file.fileno(), name)[0] == 3
    assert place.got() == ([], whole)


@pytest.mark.parametrize("name, script", [("sbatch", SLURM), ("bsub", LSF)])
def test_without_a_daemon_all_goes_to_the_batch_system(fake: FakeDaemon, place: Place, name: str, script: str) -> None:
    assert place.run(name, stdin=script, HPCDL_BYPASS="1").code == 3
    assert place.got() == ([], script)
    assert fake.requests == []
    fake.kill()  # as after a crash: its access file stays
    done = place.run(name, stdin=script)
    assert (done.code, done.err) == (3, "to stderr\n")
    assert place.got() == ([], script)
    (place.home / "access.json").unlink()
    place.path = [str(WRAPPERS), str(place.real), str(place.system)]  # not even an hpcdl
    assert place.run(name, stdin=script).code == 3
    assert place.got() == ([], script)
    assert not (place.home / "spool").exists()
    assert "HPCDL_WRAPPED=" in (place.notes / "environment").read_text()


def test_what_the_daemon_refuses_is_the_batch_systems(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM)
    refusal = {"schema": 1, "error": "there is no job 77 to wait for", "code": "unknown-job"}
    fake.answers["/v1/jobs"] = (404, json.dumps(refusal).encode())
    words = ["--dependency=afterok:77", "train.sh"]
    assert place.run("sbatch", *words).code == 3
    assert place.got() == (words, "")


@pytest.mark.parametrize(
    "call", ['exec "$hpcdl" allocation --script "$0"', "hpcdl allocation", "python -m hpcdl --home /x allocation",
             "exec /x/python -m hpcdl.allocation", "HPCDL_HOME=x hpcdl daemon start --foreground"],
)  # fmt: skip
def test_hpcdl_itself_is_never_a_job_of_hpcdl(place: Place, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    place.script(f"{SLURM}{call}\n")
    with pytest.raises(NotOurs, match="it runs hpcdl itself"):
        batch_of("sbatch", ("train.sh",), {})
    place.script(f"{SLURM}# {call}\npython -m hpcdl.trainer.gate x.py\n")
    assert batch_of("sbatch", ("train.sh",), {}).asked.gpus == 2


def test_the_projects_own_job_scripts_go_to_the_batch_system(fake: FakeDaemon, place: Place) -> None:
    assert place.run("sbatch", str(WRAPPERS / "hpcdl.slurm")).code == 3
    assert place.run("bsub", stdin=(WRAPPERS / "hpcdl.lsf").read_text()).code == 3


def test_hpcdls_own_commands_pass_the_wrappers_by(
    fake: FakeDaemon, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pilot asks for GPUs, too."""
    monkeypatch.setenv("PATH", ":".join(place.path))
    monkeypatch.setenv("NOTES", str(place.notes))
    monkeypatch.setenv("HPCDL_HOME", str(place.home))
    done = run(["sbatch", "--parsable", "--gpus=1"], stdin=SLURM)
    assert (done.code, place.got()) == (3, (["--parsable", "--gpus=1"], SLURM))
    assert fake.requests == []


def test_nothing_of_hpcdls_own_gets_in_the_way(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM.replace("\n", "\r\n"))
    assert place.run("sbatch", "train.sh").code == 3  # Slurm says that it does not like such lines
    place.script(SLURM)
    assert place.run("sbatch", "-J", "a\x07", "train.sh").code == 3
    (place.home / "access.json").write_text("damaged")
    assert place.run("sbatch", "train.sh").code == 3
    place.home.chmod(0o755)
    assert place.run("sbatch", "train.sh").code == 3
    assert specs(fake) == []


def test_variables_of_sbatch_that_ask_for_more(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM)
    assert place.run("sbatch", "train.sh", SBATCH_ACCOUNT="proj").out == "Submitted batch job 1\n"
    assert place.run("sbatch", "train.sh", SBATCH_CONSTRAINT="a100").code == 3


def test_it_never_calls_itself(fake: FakeDaemon, place: Place) -> None:
    shutil.copy(WRAPPERS / "sbatch", place.ours / "sbatch")  # another copy, and a link
    place.script("#!/bin/sh\n", "cpu.sh")
    place.path = [str(place.ours), *place.path]
    assert place.run("sbatch", "cpu.sh").out == f"real {place.real / 'sbatch'}\n"
    assert place.run(str(WRAPPERS / "sbatch"), "cpu.sh").code == 3
    # Somebody's own wrapper that looks in PATH again, as a child and in place of itself.
    for call in ('sbatch "$@"; exit $?', 'exec sbatch "$@"', 'out=$(sbatch "$@"); exit $?'):
        place.executable(place.real / "sbatch", f"#!/bin/sh\n{call}\n")
        done = place.run("sbatch", "cpu.sh")
        assert done.code == 1
        assert done.err == (
            f"hpcdl: {place.real / 'sbatch'} calls sbatch, which is this file again: "
            "have it call the batch system's by its full path\n"
        )


def test_a_wrapper_without_a_batch_system(fake: FakeDaemon, place: Place) -> None:
    (place.real / "sbatch").unlink()
    place.script(SLURM)
    place.script("#!/bin/sh\n", "cpu.sh")
    assert place.run("sbatch", "train.sh").out == "Submitted batch job 1\n"
    done = place.run("sbatch", "cpu.sh")
    assert (done.code, done.out) == (75, "")
    assert done.err == "hpcdl: not for hpcdl: it asks for no GPU: sbatch takes it\n"
    fake.kill()
    (place.home / "access.json").unlink()
    done = place.run("sbatch", "train.sh")
    assert (done.code, done.err.count("\n")) == (127, 1)
    assert "there is no other sbatch in PATH" in done.err


def test_it_is_called_by_its_name(place: Place) -> None:
    shutil.copy(WRAPPERS / "sbatch", place.ours / "qsub")
    done = place.run(str(place.ours / "qsub"), "x")
    assert (done.code, done.err) == (2, "hpcdl: this file is to be called sbatch or bsub, not qsub\n")
    assert all(os.access(WRAPPERS / name, os.X_OK) for name in ("sbatch", "bsub"))
