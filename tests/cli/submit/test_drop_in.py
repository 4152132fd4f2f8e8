"""jobscripts/sbatch and bsub: what goes to hpcdl, what goes to the batch system, and that both get all of it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdl.batch.command import run
from hpcdl.batch.options import NotForHpcdl
from hpcdl.cli.submit.drop_in import batch_of
from tests.cli.fake import FakeDaemon
from tests.support.wrapping import LSF, ROOT, SLURM, WRAPPERS, Done, Place, specs


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


MODULE = {"BASH_FUNC_module%%": "() {  echo module $*\n}"}
"""How a shell exports the function by which sites load software."""


def test_functions_of_the_shell_go_with_a_job_wherever_it_goes(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM)
    place.run("sbatch", "train.sh", **MODULE)
    (spec,) = specs(fake)
    assert ["BASH_FUNC_module%%", MODULE["BASH_FUNC_module%%"]] in list(spec["env"])  # type: ignore[call-overload]
    place.executable(place.real / "sbatch", "#!/bin/bash\nmodule load cuda\n")
    assert place.run("sbatch", "--test-only", "train.sh", **MODULE).out == "module load cuda\n"
    # None of them stands for a command that the drop-in itself calls.
    hostile = {f"BASH_FUNC_{name}%%": "() {  echo hijacked\n}" for name in ("head", "grep", "command", "exec")}
    assert place.run("sbatch", "train.sh", **hostile).out == "Submitted batch job 2\n"


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
    ("sbatch", ["--dependency=aftercorr:3", "train.sh"], "another dependency"),
    ("sbatch", ["--gres=gpu:x:y:z", "train.sh"], "nonsense"),
    ("sbatch", ["--what", "train.sh"], "unknown"),
    ("sbatch", ["--gpus"], "no value"),
    ("sbatch", ["missing.sh"], "no script"),
    ("sbatch", ["notes.txt"], "not a script"),
    ("sbatch", ["steps.sh"], "a terminal within"),
    ("sbatch", ["--", "cpu.sh", "--", "x y", ""], "odd words"),
    ("bsub", ["-gpu", "num=1", "sleep 5; echo $X"], "a shell's command"),
    ("bsub", ["-gpu", "num=1", "-K", "python", "x.py"], "waits"),
    ("bsub", ["-gpu", "num=1", "./lsf.sh"], "lines that bsub may read"),
    ("bsub", ["-gpu", "num=1", "-w", "post_done(3)", "x"], "another dependency"),
    ("bsub", ["python", "x.py"], "no GPU"),
]


@pytest.fixture
def scripts(place: Place) -> None:
    place.script(SLURM)
    place.script(LSF, "lsf.sh")
    place.script("#!/bin/sh\ntrue\n", "cpu.sh")
    place.script("x", "notes.txt")
    place.script(SLURM + "  exec srun --pty python x.py\n", "steps.sh")


@pytest.mark.parametrize("name, words, why", PASSED, ids=[why for _, _, why in PASSED])
def test_what_is_in_doubt_is_the_batch_systems(
    scripts: None, place: Place, name: str, words: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    assert why
    with pytest.raises(NotForHpcdl):
        batch_of(name, tuple(words), {})


@pytest.mark.parametrize("name, words, why", [PASSED[0], *PASSED[12:15]], ids=lambda value: str(value)[:20])
def test_the_batch_system_gets_it_as_it_is(
    scripts: None, fake: FakeDaemon, place: Place, name: str, words: list[str], why: str
) -> None:
    done = place.run(name, *words, stdin="left alone\n")
    assert (done.code, done.out) == (3, f"real {place.real / name}\n"), why
    said, theirs = done.err.splitlines()
    assert said.startswith(f"hpcdl: this job is left to {place.real / name}: "), why
    assert theirs == "to stderr"
    assert place.run(name, *words, stdin="left alone\n", HPCDL_QUIET="1").err == "to stderr\n"
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
    assert (done.code, done.err.count("\n")) == (3, 2)
    left = f"hpcdl: this job is left to {place.real / name}: "
    assert done.err.startswith(f"{left}no daemon is running for {place.home} (nothing listens on ")
    assert place.got() == ([], script)
    path = place.path
    place.path = [str(WRAPPERS), str(place.real), str(place.system)]  # not even an hpcdl
    done = place.run(name, stdin=script)
    assert (done.code, done.err) == (
        3, f"{left}there is no hpcdl in PATH\nto stderr\n"
    )  # fmt: skip
    assert place.got() == ([], script)
    (place.home / "access.json").unlink()
    place.path = path
    done = place.run(name, stdin=script)
    assert done.err == f"{left}no daemon of hpcdl has run for {place.home}\nto stderr\n"
    assert place.run(name, stdin=script, HPCDL_QUIET="1").err == "to stderr\n"
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


SHOWN = """#!/bin/sh
case $2 in
node) echo "NodeName=n1 State=IDLE ActiveFeatures=ib,rome Gres=gpu:2"; echo "NodeName=n2 State=IDLE" ;;
config) echo "ClusterName = c"; echo "MpiDefault = pmix" ;;
esac
"""


def test_what_slurm_says_of_its_nodes_and_of_mpi(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM)
    place.script("#!/bin/bash\n#SBATCH --gres=gpu:2\nsrun -n2 python missing.py\n", "steps.sh")
    place.script("#!/bin/bash\n#SBATCH --gres=gpu:2\nsrun -n2 --mpi=pmix python missing.py\n", "mpi.sh")
    assert place.run("sbatch", "-C", "ib", "train.sh").code == 3  # nobody says that the nodes have it
    assert place.run("sbatch", "steps.sh").code == 0
    place.executable(place.real / "scontrol", SHOWN)
    assert place.run("sbatch", "-C", "ib", "train.sh").code == 0
    assert place.run("sbatch", "-C", "milan", "train.sh").code == 3
    done = place.run("sbatch", "steps.sh")
    assert (done.code, done.err.count("\n")) == (3, 2)
    assert "steps.sh:3: srun starts no ranks of MPI inside a job: the default here is --mpi=pmix" in done.err
    done = place.run("sbatch", "mpi.sh")
    assert "mpi.sh:3: --mpi=pmix starts no ranks of MPI inside a job: tasks of hpcdl get no PMI" in done.err
    place.executable(place.real / "scontrol", SHOWN.replace("pmix", "none"))
    assert place.run("sbatch", "steps.sh").code == 0


def test_excluded_nodes(fake: FakeDaemon, place: Place) -> None:
    place.script(SLURM)
    assert place.run("sbatch", "--exclude=bad[1-9]", "train.sh").out == "Submitted batch job 1\n"
    assert place.run("sbatch", "--exclude=bad3,n1", "train.sh").code == 3


def test_numbers_of_gpus_in_a_job_of_one(fake: FakeDaemon, place: Place) -> None:
    place.script("#!/usr/bin/env bash\n#SBATCH --gres=gpu:1\nexport CUDA_VISIBLE_DEVICES=${1:-0}\npython train.py\n")
    assert place.run("sbatch", "train.sh").out == "Submitted batch job 1\n"
    (spec,) = specs(fake)
    command = spec["command"]
    assert isinstance(command, list)
    assert "\nexport CUDA_VISIBLE_DEVICES=$HPCDL_GPUS\n" in Path(command[-1]).read_text()
    place.script("#!/usr/bin/env python3\n#SBATCH --gres=gpu:1\nprint('CUDA_VISIBLE_DEVICES=0')\n", "train.py")
    assert place.run("sbatch", "train.py").code == 3  # in its text nothing stands for another


@pytest.mark.parametrize(
    ("option", "why", "else_"),
    [
        ("--gres=gpu:99", "it needs 99 GPUs on a node, and the largest has 4", "it waits for a larger one"),
        ("-c64", "it asks for 64 processors on a node, and the largest has 2", "it runs with fewer"),
    ],
)
def test_what_no_node_could_run_is_the_batch_systems(
    fake: FakeDaemon, place: Place, option: str, why: str, else_: str
) -> None:
    place.script(SLURM)
    refusal = {"schema": 1, "error": f"refused by --strict: {why}: {else_} (hpcdl nodes)", "code": "strict"}
    fake.answers["/v1/jobs"] = (409, json.dumps(refusal).encode())
    done = place.run("sbatch", option, "train.sh")
    assert done.code == 3
    assert done.err == f"hpcdl: this job is left to {place.real / 'sbatch'}: {why}\nto stderr\n"
    assert place.got() == ([option, "train.sh"], "")
    assert [body["strict"] for method, path, body in fake.requests if method == "POST"] == [True]


@pytest.mark.parametrize(
    "call", ['exec "$hpcdl" allocation --script "$0"', "hpcdl allocation", "python -m hpcdl --home /x allocation",
             "exec /x/python -m hpcdl.allocation", "HPCDL_HOME=x hpcdl daemon start --foreground"],
)  # fmt: skip
def test_hpcdl_itself_is_never_a_job_of_hpcdl(place: Place, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    place.script(f"{SLURM}{call}\n")
    with pytest.raises(NotForHpcdl, match="it runs hpcdl itself"):
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


@pytest.mark.parametrize(
    "name, words, why",
    [
        ("sbatch", ["--gres=gpu:1", "--mail-type=END", "missing.sh"], "there is no script missing.sh here"),
        ("sbatch", ["--gres=gpu:1", "."], ".: Is a directory"),
        (
            "sbatch",
            ["--begin=now+1h", "train.sh"],
            "the command line: --begin=now+1h would be ignored: hpcdl starts it when there are GPUs",
        ),
        (
            "bsub",
            ["-gpu", "num=1", "-foo", "3", "x"],
            "the command line: -foo 3 would be ignored: hpcdl does not know it",
        ),
    ],
)
def test_one_true_reason_for_a_job_that_is_left_to_the_batch_system(
    fake: FakeDaemon, place: Place, name: str, words: list[str], why: str
) -> None:
    place.script(SLURM)
    assert place.run(name, *words).err == f"hpcdl: this job is left to {place.real / name}: {why}\nto stderr\n"
    assert place.got() == (words, "")


def test_a_command_of_bsub_that_is_not_here_is_said(fake: FakeDaemon, place: Place) -> None:
    done = place.run("bsub", "-gpu", "num=1", "-u", "me", "./missing.sh")
    assert (done.code, done.out) == (0, "Job <1> is submitted to queue <hpcdl>.\n")
    assert done.err.splitlines() == [
        "hpcdl: job 1 is hpcdl's, without -u me (HPCDL_BYPASS=1: the batch system's)",
        "hpcdl: ./missing.sh is not there: the job fails where it is not there either",
    ]


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
            f"hpcdl: this job is left to {place.real / 'sbatch'}: it asks for no GPU\n"
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
    assert done.err == "hpcdl: this job is left to sbatch: it asks for no GPU\n"
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
