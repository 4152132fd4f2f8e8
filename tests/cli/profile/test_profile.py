"""`hpcdl profile`: what events say about speed, the file of runs, the fit, wrong input. Real runs: tests/system."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdl.cli.profile.light_runs import Speed, read_runs, runs_text, shape_text, speed_of
from hpcdl.config.profiles import read_profiles
from hpcdl.core.model.latency import Setting
from hpcdl.estimators.latency import LightRun
from hpcdl.sim.workload import WorkloadError
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


def event(kind: str, at: float, incarnation: int = 1, **body: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, "body": {"job": 1, "incarnation": incarnation, "age_s": 0.0, **body}}


def progress(*reports: tuple[float, int], incarnation: int = 1) -> list[dict[str, Any]]:
    return [event("Progressed", at, incarnation, step=step) for at, step in reports]


BEGUN = [event("StartRequested", 10.0), event("Started", 10.5), event("TrainerReady", 12.0, step=0)]


def test_the_first_report_ends_the_warm_up() -> None:
    told = [*BEGUN, *progress((20, 10), (30, 110), (40, 210))]
    assert speed_of(told, 200) == Speed(10.0, 200, 2.0)
    assert speed_of(told, 201) is None
    assert speed_of([*BEGUN, *progress((20, 10), (40, 210))], 200) is None  # two reports may be an accident
    assert speed_of(BEGUN, 1) is None
    assert speed_of([], 1) is None


def test_what_was_on_its_way_counts_from_when_it_happened() -> None:
    told = [*BEGUN, *progress((20, 10), (30, 110)), event("Progressed", 45.0, step=210, age_s=5.0)]
    assert speed_of(told, 200) == Speed(10.0, 200, 2.0)


def test_a_run_that_is_over_gave_what_it_gave() -> None:
    over = [*BEGUN, *progress((20, 10), (30, 110), (35, 120)), event("Exited", 35.0, code=0)]
    assert speed_of(over, 1000) == Speed(10.0, 100, 2.0)  # the last step was told with the end, after its last save
    assert speed_of([*BEGUN, *progress((20, 10)), event("Exited", 30.0)], 5) is None
    assert speed_of([*BEGUN, *progress((20, 10), (20, 30)), event("Exited", 30.0)], 5) is None
    assert speed_of([*BEGUN, *progress((20, 10), (25, 10)), event("Exited", 30.0)], 5) is None


def test_a_run_that_was_moved_counts_from_its_last_start() -> None:
    told = [*BEGUN, *progress((20, 10), (30, 400)), event("Exited", 31.0), event("StartRequested", 32.0, 2)]
    assert speed_of(told, 10) is None
    told += [event("TrainerReady", 33.0, 2, step=400), *progress((40, 410), (50, 430), (60, 450), incarnation=2)]
    assert speed_of(told, 40) == Speed(2.0, 40, 1.0)


def test_samples_are_steps_times_the_batch() -> None:
    assert Speed(10.0, 200, 2.0).run(Setting(32, 1, 2)) == LightRun(Setting(32, 1, 2), 320.0, 2.0)


RUNS = [
    LightRun(Setting(16), 200.0, 1.5),
    LightRun(Setting(32), 300.0),
    LightRun(Setting(64), 350.0),
    LightRun(Setting(64, 1, 2), 550.0),
    LightRun(Setting(64, 2, 1), 500.0),
]


def test_the_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(runs_text(RUNS))
    assert read_runs(path) == RUNS
    assert path.read_text().splitlines()[1] == "16,1,1,200,1.500,12.5"
    assert [shape_text(run.setting) for run in RUNS[2:]] == [
        "batch 64 on 1 GPU",
        "batch 64 on 2 GPUs",
        "batch 64 on 2 nodes with 1 GPU each",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("batch,nodes,gpus\n1,1,1\n", "1: samples_per_s: missing"),
        ("batch,nodes,gpus,samples_per_s,colour\n", "1: 'colour': an unknown column"),
        ("batch,nodes,gpus,samples_per_s\n16,1,1,nan\n", "2: samples_per_s: expected a number, got 'nan'"),
        ("batch,nodes,gpus,samples_per_s\n16,1,1,5\n32,1,1,0\n", "3: samples_per_s: must be 1e-09 or more, got '0'"),
        ("batch,nodes,gpus,samples_per_s\n16,1,1,inf\n", "2: samples_per_s: must be"),
        ("batch,nodes,gpus,samples_per_s\n0,1,1,5\n", "2: batch: must be 1 or more"),
        ("batch,nodes,gpus,samples_per_s\n16,1.5,1,5\n", "2: nodes: expected a whole number"),
        ("batch,nodes,gpus,samples_per_s\n16,1,1\n", "2: has 3 cells"),
        ("batch,nodes,gpus,samples_per_s,startup_s\n16,1,1,5,-1\n", "2: startup_s: must be 0 or more"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, hpcdl: Run, text: str, says: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as refused:
        read_runs(path)
    assert says in str(refused.value)
    done = hpcdl("profile", "fit", path, "--name", "p")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)


def test_fit_makes_a_profile_that_is_read(tmp_path: Path, hpcdl: Run) -> None:
    path, out = tmp_path / "runs.csv", tmp_path / "made.yaml"
    path.write_text(runs_text(RUNS))
    done = hpcdl("profile", "fit", path, "--name", "ResNet", "-o", out)
    assert (done.code, done.out) == (0, f"wrote {out}: 5 runs, fitted within 0.0%\n")
    (made,) = read_profiles(out)
    assert (made.name, made.startup_s) == ("ResNet", 1.5)
    assert {(nodes, gpus) for nodes, gpus, _ in made.points} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    for run in RUNS[2:]:
        assert made.rate(run.setting.gpus, run.setting.nodes) == pytest.approx(run.samples_per_s / 64, rel=1e-3)
    again = hpcdl("profile", "fit", path, "--name", "ResNet", "-o", out)
    assert (again.code, again.err) == (1, f"hpcdl: {out} is there already: name a new file, or remove it\n")


def test_fit_prints_what_it_does_not_write(tmp_path: Path, hpcdl: Run) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(runs_text(RUNS))
    printed = yaml.safe_load(hpcdl("profile", "fit", path, "--name", "p", "--batch", 32, "--gpus", 4, "--nodes", 1).out)
    points = printed["profiles"]["p"]["points"]
    assert [(point["nodes"], point["gpus"]) for point in points] == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert points[0]["rate"] == pytest.approx(300 / 32, rel=0.01)
    value = hpcdl("profile", "fit", path, "--name", "p", "--json").value
    assert value["runs"] == 5
    assert value["model"]["gamma"] > 0
    alike = hpcdl("profile", "fit", path, "--name", "p", "--json", "--inference")
    assert alike.value["model"]["gamma"] == 0
    assert "off the model on average" in alike.err
    assert hpcdl("profile", "fit", path, "--name", "p", "--quiet").out == "p\n"


def test_fit_says_which_runs_are_missing(tmp_path: Path, hpcdl: Run) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(runs_text(RUNS[:2]))
    done = hpcdl("profile", "fit", path, "--name", "p")
    assert (done.code, done.err) == (
        1,
        f"hpcdl: {path}: needs runs of 3 different batch sizes on 1 GPU for eq. 7, has 16, 32\n",
    )
    path.write_text(runs_text(RUNS))
    assert hpcdl("profile", "fit", path, "--name", " ").err.startswith("hpcdl: a profile's name must be")
    done = hpcdl("profile", "fit", tmp_path / "run.csv", "--name", "p")
    assert (done.code, done.err) == (1, f"hpcdl: there is no file {tmp_path / 'run.csv'}: did you mean {path}?\n")


@pytest.mark.parametrize("value", ["", "16,", "x", "0", "-1", "1.5", "16 32", "99999999999"])
def test_wrong_numbers_are_refused(fake: FakeDaemon, hpcdl: Run, value: str) -> None:
    done = hpcdl("profile", "run", f"--batches={value}", "--", "true")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "is not a number of 1 or more" in done.err
    assert fake.world.jobs == {}


def test_a_wrong_option_of_its_jobs_is_its_own(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("profile", "run", "--batches", "16", "--progress-regex", "(", "--", "true", "{batch}")
    assert (done.code, done.out) == (2, "")
    assert "'--progress-regex'" in done.err
    assert done.err.endswith("(see hpcdl profile run --help)\n")
    assert fake.world.jobs == {}


def test_a_setting_that_no_node_can_hold_is_refused_before_anything_runs(fake: FakeDaemon, hpcdl: Run) -> None:
    # The fake node has one GPU that is ok, and a lost one.
    done = hpcdl("profile", "run", "--light", "--batches", "16,32", "--gpus", "1,2", "--", "true", "{batch}")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "hpcdl: no room for batch 32 on 2 GPUs: 0 of 1 connected nodes could hold it: see hpcdl nodes\n"
    )
    assert fake.world.jobs == {}


def test_without_a_daemon(hpcdl: Run) -> None:
    done = hpcdl("profile", "run", "--batches", "16", "--", "true")
    assert done.code == 1
    assert "hpcdl daemon start" in done.err


def test_a_damaged_file_of_runs_stops_before_anything_runs(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("batch\n")
    done = hpcdl("profile", "run", "--batches", "16", "-o", path, "--", "true", "{batch}")
    assert done.code == 1
    assert "missing from the header" in done.err
    assert fake.world.jobs == {}


def test_what_is_measured_already_is_not_run_again(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(runs_text(RUNS))
    done = hpcdl("profile", "run", "--batches", "16,32", "-o", path, "--json", "--", "true", "{batch}")
    assert done.code == 0
    assert [run["samples_per_s"] for run in done.value["runs"]] == [200.0, 300.0]
    assert done.err == f"hpcdl: {path} holds 5 runs already; they are not repeated\n"
    assert fake.world.jobs == {}


def test_an_unknown_job_is_refused(fake: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("profile", "run", "7", "--light", "--batches", "16")
    assert (done.code, done.err) == (1, "hpcdl: there is no job 7: hpcdl ls --all lists them\n")


def test_runs_that_are_left_to_the_daemon(fake: FakeDaemon, hpcdl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [
        {"name": "net batch 16 @ train.py", "learnt": True, "points": [{"nodes": 1, "gpus": 1}]},
        {"name": "net batch 32 @ train.py", "learnt": True, "points": [{"nodes": 1, "gpus": 2}]},
        {"name": "a file", "learnt": False, "points": [{"nodes": 1, "gpus": 1}]},
    ]
    monkeypatch.setattr(fake, "carry_out", partial(with_profiles, fake.carry_out, {"profiles": seen}))
    words = ("profile", "run", "--when-idle", "--model", "net", "--batches", "16,32,64", "--steps", "40")
    done = hpcdl(*words, "--", "python", "train.py", "--batch", "{batch}")
    assert done.code == 0
    assert done.out == (
        "2 runs left to the daemon, jobs 1-2: on GPUs that idle; hpcdl profile ls shows what is learnt of them\n"
    )
    assert "1 of 3 runs is known already: hpcdl profile ls" in done.err
    body = next(body for method, path, body in reversed(fake.requests) if (method, path) == ("POST", "/v1/jobs"))
    keys = ("command", "batch_size", "light_steps", "priority", "model")
    assert [tuple(job[key] for key in keys) for job in body["jobs"]] == [
        (["python", "train.py", "--batch", str(batch)], batch, 40, -1000, "net") for batch in (32, 64)
    ]
    answer = hpcdl(*words[:-4], "--batches", "16", "--json", "--", "python", "train.py").value
    assert (answer["jobs"], answer["known"]) == ([], 1)


@pytest.mark.parametrize("option", ["--output", "--limit"])
def test_what_runs_that_are_left_to_the_daemon_do_not_have(fake: FakeDaemon, hpcdl: Run, option: str) -> None:
    done = hpcdl("profile", "run", "--when-idle", "--batches", "16", option, "7", "--", "true")
    assert (done.code, f"{option} is of runs that are waited for" in done.err) == (2, True)
    assert fake.world.jobs == {}


def with_profiles(
    carry_out: Callable[[str, str, Any], tuple[int, dict[str, Any]]],
    profiles: dict[str, Any],
    method: str,
    target: str,
    body: Any,
) -> tuple[int, dict[str, Any]]:
    return (200, profiles) if target == "/v1/profiles" else carry_out(method, target, body)
