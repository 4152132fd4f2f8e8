"""What `hpcdl simulate` refuses before it works, and how it names what went wrong in a run."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run

HEAD = "submit_s,model,gpus,duration_s\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(HEAD + "0,,1,100\n")
    return path


@pytest.mark.parametrize(
    ("option", "value"),
    [("jitter", -1), ("jitter", "nan"), ("jitter", "inf"), ("jitter", 1e9), ("mtbf", -1), ("mtbf", "nan")],
)
def test_numbers_that_make_no_sense_are_wrong_usage(hpcdl: Run, jobs: Path, option: str, value: object) -> None:
    done = hpcdl("simulate", "-w", jobs, "--nodes", 1, f"--{option}", value, "--json")
    assert (done.code, done.out) == (2, "")
    assert f"--{option} must be " in done.err or f"Invalid value for '--{option}': nan is not a number" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", [("simulate", "-w"), ("simulate", "papers", "--only", "marble")])
def test_a_report_without_a_folder_is_refused_before_the_work(
    hpcdl: Run, jobs: Path, command: tuple[str, ...], tmp_path: Path
) -> None:
    given = (*command, jobs, "--nodes", 1) if command[-1] == "-w" else command
    done = hpcdl(*given, "--report", tmp_path / "nowhere" / "out.html")
    assert (done.code, done.out) == (1, "")
    assert f"there is no folder {tmp_path / 'nowhere'}: make it first" in done.err
    assert "tmp:" not in done.err


def test_a_problem_names_its_policy(hpcdl: Run, jobs: Path) -> None:
    trace = jobs.with_name("idle.csv")
    trace.write_text("node,idle_from_s,idle_until_s\na,0,50\n")
    done = hpcdl("simulate", "-w", jobs, "--idle-trace", trace, "-p", "fifo,adaptive", "--json")
    assert done.code == 1
    assert done.value["gpus"] == 1
    assert [line.split(": ")[1] for line in done.err.splitlines()] == ["under fifo", "under adaptive"]


def test_the_same_number_of_gpus_again_is_said_once(hpcdl: Run, jobs: Path) -> None:
    done = hpcdl("simulate", "-w", jobs, "--nodes", 1, "-p", "fifo", "--mtbf", 50, "--jobs", "--seed", 1)
    assert done.code == 0
    assert "->" not in done.out


def test_arrivals_keep_their_seed_unless_another_is_given(hpcdl: Run, tmp_path: Path) -> None:
    text = "schema: 1\ncluster: {{nodes: 1, gpus_per_node: 4}}\n"
    text += "arrivals: {{process: poisson, per_hour: 9, hours: 3, seed: {}, "
    drawn = []
    for seed, more in ((5, ()), (6, ()), (6, ("--seed", 5))):
        path = tmp_path / "drawn.yaml"
        path.write_text(text.format(seed) + "mix: [{duration_s: [10, 900]}]}\n")
        drawn.append(hpcdl("simulate", "-w", path, "-p", "fifo", "--json", *more).value["runs"][0]["makespan_s"])
    assert drawn[0] == drawn[2] != drawn[1]
