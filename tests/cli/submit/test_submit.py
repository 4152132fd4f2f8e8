"""`hpcdl submit`: what it sends, says and refuses."""

import json
import os
import time
from pathlib import Path

import pytest

from hpcdl.cli.submit.job import environment
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row


def test_submit(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", "--name", "a", "--", "true").out == "job 1 queued: a\n"
    value = hpcdl(
        "submit", "--json", "--gpus", "1:3", "--steps", 100, "--", "python", "dir/train.py", "--lr", "3"
    ).value
    assert [(job["id"], job["state"], job["name"]) for job in value["jobs"]] == [(2, "QUEUED", "train.py")]
    assert hpcdl("submit", "--quiet", "true").out == "3\n"
    assert (hpcdl("submit", "--request-id", "r", "true").out, hpcdl("submit", "--request-id", "r", "true").out) == (
        "job 4 queued: true\n",
        "job 4 queued: true\n",
    )


@pytest.mark.parametrize("gpus", [(), ("--gpus", "1")])
def test_a_model_changes_no_number_of_gpus(fake: FakeDaemon, hpcdl: Run, gpus: tuple[str, ...]) -> None:
    assert hpcdl("submit", "--model", "net", *gpus, "--", "true").code == 0
    job = fake.requests[-1][2]["jobs"][0]
    assert (job["model"], job["gpus_min"], job["gpus_max"]) == ("net", 1, 1)
    assert "asked      1 GPU," in hpcdl("show", 1).out


def test_submit_sends_everything(fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_KEY", "s3")
    monkeypatch.setenv("CONDA_TOKEN", "s3")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "s3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    options = (
        "--gpus 2: --nodes 3 --profile p --steps 9 --after 1,2 --after 3 --env A=b=c --env WANDB_KEY --retries 4 "
        "--checkpoint-dir ck --grace 7.5 --signal hf --progress-regex step=(\\d+)"
    )
    assert hpcdl("submit", *options.split(), "--", "python", "-m", "hpcdl.trainer.gate", "x.py").code == 0
    spec = dict(fake.requests[-1][2]["jobs"][0])
    env = dict(spec.pop("env"))
    assert (env["A"], env["WANDB_KEY"], env["OMP_NUM_THREADS"], env["PATH"]) == ("b=c", "s3", "3", os.environ["PATH"])
    assert env["DATA"] == "/data"
    assert not env.keys() & {"CONDA_TOKEN", "AWS_ACCESS_KEY_ID", "SLURM_JOB_ID", "HPCDL_HOME", "PWD"}
    assert spec.pop("user")
    assert spec == {
        "command": ["python", "-m", "hpcdl.trainer.gate", "x.py"], "name": "x.py", "cwd": str(tmp_path),
        "gpus_min": 2, "gpus_max": None, "nodes": 3, "profile": "p", "steps": 9, "after": [1, 2, 3], "retries": 4,
        "checkpoint_dir": str(tmp_path / "ck"), "grace_s": 7.5, "signal": "hf", "progress_regex": "step=(\\d+)",
        "gate": True, "git": None, "gpus_counts": [], "nodes_max": None, "deadline": None, "ect": None, "model": None,
        "accuracy_target": None, "rescale": "restart", "weight": 1.0, "priority": 0, "notify": [], "stall_s": None,
        "stall_restart": False, "continue_from": "", "progress": None, "resumes": None,
        "trainer_library": True,
        "cpus": None, "memory_mib": None, "time_s": None, "batch": None,
        "share": None, "gpu_memory_mib": None, "burst": [], "tags": [], "links": [], "conditions": [],
        "singleton": False, "output": "", "error": "", "batch_size": None, "batch_sweep": "", "kind": "training",
        "light_steps": None,
    }  # fmt: skip


def test_what_a_job_waits_for(fake: FakeDaemon, hpcdl: Run) -> None:
    words = (
        "--after 3-4,7 --after slurm:99 --after-any 5,3 --after-failed 6?LSF:8 --after-start 9 --after 1?2 --singleton"
    )
    assert hpcdl("submit", *words.split(), "--", "x.py").code == 0
    spec = fake.requests[-1][2]["jobs"][0]
    groups = [
        " or ".join(f"{each['kind']} {each['job'] or each['batch']}" for each in group) for group in spec["conditions"]
    ]
    assert spec["after"] == [3, 4, 7]
    assert groups == [
        "done slurm:99", "done 1 or done 2", "ended 5", "ended 3", "failed 6 or failed lsf:8", "started 9",
    ]  # fmt: skip
    assert spec["singleton"] is True
    for words, why in (
        ("--after 1,2?3", "give ID,ID for all of them, or ID?ID for one"),
        ("--after-any slurm:x", "is no batch job: write slurm:1234"),
        ("--after-start slurm:4", "only the end of a batch job"),
        ("--after-failed x", "no job's name is 'x'"),
        ("--after-any 3,x", "'x' is not a job's number, nor a range like 3-7; a name is given alone: --after-any x"),
    ):
        done = hpcdl("submit", *words.split(), "--", "x.py")
        assert (done.code, why in done.err) == (2, True), done


def test_no_option_changes_how_many_gpus_but_those_that_say_so(fake: FakeDaemon, hpcdl: Run) -> None:
    for options, low, high in (
        ("", 1, 1),
        ("--model m", 1, 1),
        ("--gpus 1 --model m", 1, 1),
        ("--gpus 2: --model m", 2, None),
        ("--profile p", 1, None),  # so that it scales as the profile says
        ("--gpus 1 --profile p --model m", 1, 1),
        ("--accuracy 0.9 --steps 9 --weight 2 --priority 3 --nodes 1:2 --signal hf --retries 1 --stall 9", 1, 1),
    ):
        assert hpcdl("submit", *options.split(), "--", "x.py").code == 0
        spec = fake.requests[-1][2]["jobs"][0]
        assert (spec["gpus_min"], spec["gpus_max"]) == (low, high), options


def test_how_likely_a_deadline_is_has_short_lines(fake: FakeDaemon, hpcdl: Run) -> None:
    lines = ["deadline 18:30: 97 % likely to be met", "if nothing else comes, it is done by 17:30"]
    answer = {"schema": 1, "jobs": [{**row(1, name="x.py"), "forecast": {"text": "; ".join(lines), "lines": lines}}]}
    fake.answers["/v1/jobs"] = (200, json.dumps(answer).encode())
    said = hpcdl("submit", "--deadline", "18:30", "x.py").out.splitlines()
    assert said == ["job 1 queued: x.py", *(f"  {line}" for line in lines)]


def test_a_job_that_submits_hands_no_share_of_threads_on(
    fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HPCDL_OMP_NUM_THREADS", "3")
    assert hpcdl("submit", "x.py").code == 0
    assert "OMP_NUM_THREADS" not in dict(fake.requests[-1][2]["jobs"][0]["env"])
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # its script says another
    assert hpcdl("submit", "x.py").code == 0
    assert dict(fake.requests[-1][2]["jobs"][0]["env"])["OMP_NUM_THREADS"] == "4"


def test_submit_says_when_and_on_which_numbers(fake: FakeDaemon, hpcdl: Run) -> None:
    options = "--gpus 1,4,2 --nodes 1:3 --model resnet --accuracy 0.7"
    assert hpcdl("submit", *options.split(), "--deadline", "2030-01-02T03:04:05+00:00", "x.py").code == 0
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["gpus_counts"], spec["gpus_min"], spec["gpus_max"]) == ([1, 2, 4], 1, 4)
    assert (spec["nodes"], spec["nodes_max"]) == (1, 3)
    assert (spec["model"], spec["accuracy_target"], spec["deadline"]) == ("resnet", 0.7, 1893553445.0)
    before = time.time()
    assert hpcdl("submit", "--deadline", "+1h30m", "x.py").code == 0
    assert 5400 <= fake.requests[-1][2]["jobs"][0]["deadline"] - before < 5460
    assert hpcdl("submit", "--deadline", "prior", "--profile", "p", "--steps", 5, "x.py").code == 0
    assert fake.requests[-1][2]["jobs"][0]["ect"] == "prior"
    for option, value in (("--deadline", "soon"), ("--gpus", "1,1"), ("--gpus", "0,2"), ("--nodes", "2:1")):
        done = hpcdl("submit", option, value, "x.py")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done


@pytest.mark.parametrize(
    "options, gpus", [("", (1, 1)), ("--profile p", (1, None)), ("--profile p --gpus 2", (2, 2)), ("-g 1:3", (1, 3))]
)
def test_default_gpus(fake: FakeDaemon, hpcdl: Run, options: str, gpus: tuple[int, int | None]) -> None:
    hpcdl("submit", *options.split(), "true")
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["gpus_min"], spec["gpus_max"]) == gpus


def test_a_command_that_is_not_utf8_arrives(fake: FakeDaemon, hpcdl: Run) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert hpcdl("submit", "--", name).out == "job 1 queued: caf?\n"
    assert os.fsencode(fake.requests[-1][2]["jobs"][0]["command"][0]) == b"caf\xe9"


def test_a_folder_that_is_not_here_is_told(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("submit", "--cwd", "/no/such", "true")
    assert (done.code, done.out) == (0, "job 1 queued: true\n")
    assert done.err == "hpcdl: /no/such is not a folder on this machine; the job needs it where it runs\n"


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            "--gpus 999999999999",
            "999999999999 GPUs on a node are more than any has: at most 1024; several nodes: --nodes",
        ),
        ("--gpus 1:1025", "1025 GPUs on a node are more than any has"),
        ("--gpus 1,2000", "2000 GPUs on a node are more than any has"),
        ("--nodes 100001", "nodes must be from 1 to 100000"),
        ("--nodes 1:100001", "needs MIN <= MAX <= 100000"),
        ("--steps 1000000000001", "'--steps': 1000000000001 is not in the range"),
        ("--retries 1000001", "'--retries': 1000001 is not in the range"),
        ("--priority 1001", "'--priority': 1001 is not in the range"),
        ("--array 1-9 --max-parallel 100001", "'--max-parallel': 100001 is not in the range"),
        ("--array 1-100001", "it may have 100000 at most"),
        (f"--gpus {LONG}", "is not a number or MIN:MAX: 15 digits at most"),
        (f"--gpus 1,{LONG}", "is not a list of numbers"),
        (f"--nodes 1:{LONG}", "is not a number or MIN:MAX: 15 digits at most"),
        (f"--after {LONG}", "is not a job's number"),
    ],
)
def test_more_than_can_be_meant_is_refused(fake: FakeDaemon, hpcdl: Run, options: str, why: str) -> None:
    done = hpcdl("submit", *options.split(), "--", "true")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert why in done.err
    assert len(done.err) < 400
    assert not [method for method, _, _ in fake.requests if method == "POST"]


@pytest.mark.parametrize(
    ("options", "resumes"),
    [
        (("--resumes",), ""),
        (("--resumes", "out/checkpoint-*"), "out/checkpoint-*"),
        (("--resumes=yes",), ""),
        ((), None),
    ],
)
def test_a_program_that_resumes_by_itself(
    fake: FakeDaemon, hpcdl: Run, options: tuple[str, ...], resumes: str | None
) -> None:
    assert hpcdl("submit", "--progress", "hf", *options, "--", "true").code == 0
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["progress"], spec["resumes"]) == ("hf", resumes)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 2 x.py",
        "python -m torch.distributed.run x.py",
        "env A=1 /opt/bin/torchrun x.py",
        "accelerate launch x.py",
        "bash ranks.sh",
        "./ranks.sh",
        "env A=1 ./ranks.sh",
    ],
)
def test_a_launcher_within_ours_is_refused(
    fake: FakeDaemon, hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Two torchruns, one in the other, are two whole trainings with a rank 0 each."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "ranks.sh"
    script.write_text("#!/usr/bin/env bash\ncd data\nexec torchrun --nproc-per-node 2 x.py\n")
    script.chmod(0o700)
    done = hpcdl("submit", "--nodes", "1:2", "--", *command.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "would nest: leave it out" in done.err
    assert not [method for method, _, _ in fake.requests if method == "POST"]


def test_lightning_runs_as_tasks_of_slurm(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("submit", "--signal", "lightning", "--gpus", "2", "--", "env", "A=1", "true")
    assert (done.code, done.err) == (0, "")
    spec = fake.requests[-1][2]["jobs"][0]
    assert (spec["command"], spec["name"]) == (["srun", "env", "A=1", "true"], "env")
    batch = spec["batch"]
    assert (batch["system"], batch["tasks_per_node"], batch["first_only"]) == ("slurm", 2, True)
    assert not batch["variables"]
    assert hpcdl("submit", "--signal", "lightning", "--", "bash", "-c", "true").code == 0
    assert fake.requests[-1][2]["jobs"][0]["batch"]["variables"] == [["SLURM_JOB_NAME", "lightning"]]
    missing = hpcdl("submit", "--signal", "lightning", "--", "./nowhere")
    assert "nowhere is not there" in missing.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--gpus 1:2 -- true", "give a fixed number of them"),
        ("--gpus 1,2 -- true", "give a fixed number of them"),
        ("--nodes 1:2 --gpus 1 -- true", "give a fixed number of them"),
        ("--gpus 2 -- torchrun --nproc-per-node 2 x.py", "within torchrun Lightning would not requeue"),
    ],
)
def test_lightning_needs_a_task_for_each_gpu(fake: FakeDaemon, hpcdl: Run, words: str, why: str) -> None:
    refused = hpcdl("submit", "--signal", "lightning", *words.split())
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert why in refused.err
    assert not [method for method, _, _ in fake.requests if method == "POST"]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("ENCRYPTION_KEY", "SIGNING_KEY", "DB_PASS", "GPG_PASSPHRASE", "GITHUB_PAT")),
        *((name, True) for name in ("DATABASE_URL", "PGPASSWORD", "HF_TOKEN", "openai_api_key", "PASS", "APIKEY")),
        *(
            (name, False)
            for name in ("PATH", "PYTHONPATH", "KEYBOARD", "KEYMAP", "BYPASS", "PATTERN", "URL", "COMPASS")
        ),
    ],
)
def test_names_that_look_like_secrets(name: str, secret: bool) -> None:
    assert environment((), {name: "x"}) == ({} if secret else {name: "x"})
    assert environment((name,), {name: "x"}) == {name: "x"}, "asked for by name"
    function = {f"BASH_FUNC_{name}%%": "() {  echo x\n}"}
    assert environment((), function) == ({} if secret else function), "an exported function of that name"


def test_the_batch_size(fake: FakeDaemon, hpcdl: Run) -> None:
    def sizes(*words: str) -> tuple[object, object]:
        assert hpcdl("submit", *words, "--", "python", "train.py").code == 0
        body = next(body for method, path, body in reversed(fake.requests) if method == "POST")
        return body["jobs"][0]["batch_size"], body["jobs"][0]["batch_sweep"]

    assert sizes() == (None, "")
    assert sizes("--batch", "64") == (64, "")
    assert sizes("--batch", "{bs}", "--sweep", "bs=16,32") == (None, "bs")
    assert sizes("--sweep", "batch=16,32") == (None, "batch")
    assert sizes("--batch", "8", "--sweep", "batch=16,32") == (8, "")
    assert sizes("--sweep", "batch=small,large") == (None, "")


@pytest.mark.parametrize(
    "words, why",
    [
        (("--batch", "0"), "'0' is no batch size: a whole number from 1 to 2147483647 is"),
        (("--batch", "many"), "'many' is no batch size"),
        (("--batch", "{bs}"), "--batch {bs} is of a sweep: add --sweep bs=16,32,64"),
        (("--batch", "{bs}", "--sweep", "lr=1,2"), "the sweep bs, which there is not"),
        (("--batch", "{lr}", "--sweep", "lr=0.1,2"), "'0.1' is no batch size"),
    ],
)
def test_what_is_no_batch_size(fake: FakeDaemon, hpcdl: Run, words: tuple[str, ...], why: str) -> None:
    done = hpcdl("submit", *words, "--", "python", "train.py")
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert not fake.world.jobs
