"""`hpcdl simulate`: its three outputs, its files and its errors."""

import json
from pathlib import Path

import pytest

from hpcdl.sim.papers import bftrainer
from hpcdl.sim.replay import studies
from tests.cli.conftest import Run

JOBS = """submit_s,model,gpus,steps,duration_s,deadline_s,user
0,Net (batch size 8),4,2000,,,ana
60,Net (batch size 8),1:4,900,,5400,ben
120,Net (batch size 8),2,,300,,ben
"""
TABLE = """model_and_batch_per_gpu,gpu,gpus,steps_per_s
Net (batch size 8),v100,1,2
Net (batch size 8),v100,2,3.8
Net (batch size 8),v100,4,6
Net (batch size 8),k80,1,0.5
"""
POLICIES = "marble,elastic,genie,adaptive,fifo"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "speeds.csv").write_text(TABLE)
    return tmp_path


def asked(files: Path, *more: object) -> tuple[object, ...]:
    nodes = ("--nodes", 4, "--gpus-per-node", 4, "--gpu-type", "v100")
    return ("simulate", "--workload", files / "jobs.csv", "--profiles", files / "speeds.csv", *nodes, *more)


def test_one_json_value_for_all_policies_and_a_page(hpcdl: Run, files: Path) -> None:
    page = files / "out.html"
    done = hpcdl(*asked(files, "--policy", POLICIES, "--seed", 1, "--json", "--report", page))
    assert done.code == 0
    value = done.value
    assert (value["jobs"], value["nodes"], value["gpus"], value["seed"]) == (3, 4, 16, 1)
    assert (value["objective"], value["simulated"]) == ("deadline", True)
    assert [run["policy"] for run in value["runs"]] == POLICIES.split(",")
    for run in value["runs"]:
        assert run["finished"] == len(run["jobs"]) == 3
        assert run["problems"] == []
        assert run["makespan_s"] > run["mean_jct_s"] > 0
        assert (run["deadlines"], run["deadlines_met"]) == (1, 1.0)
        assert {"utilisation", "lost_share", "suspends", "resumes", "rescales", "p95_jct_s", "mean_fairness"} <= set(
            run
        )
        assert run["jobs"][0]["gpus"][0] == [0.0, 4]
    assert page.read_text().startswith("<!DOCTYPE html>")
    again = hpcdl(*asked(files, "--policy", POLICIES, "--seed", 1, "--json", "--report", files / "again.html"))
    assert again.out == done.out
    assert (files / "again.html").read_bytes() == page.read_bytes()


def test_a_table_and_names_alone(hpcdl: Run, files: Path) -> None:
    done = hpcdl(*asked(files, "--policy", "fifo,adaptive", "--jobs"))
    assert done.out.startswith("Simulated: 3 jobs of jobs.csv on 4 nodes with 16 GPUs, objective deadline, seed 0.")
    assert "DEADLINES MET" in done.out
    assert "\nadaptive:\n" in done.out
    assert hpcdl(*asked(files, "--policy", "fifo,adaptive", "-q")).out == "fifo\nadaptive\n"


def test_a_node_that_comes_and_goes_is_one_node(hpcdl: Run, files: Path) -> None:
    trace = files / "idle.csv"
    trace.write_text("node,idle_from_s,idle_until_s\na,0,1000\nb,10,2000\na,1500,90000\n")
    done = hpcdl(
        "simulate", "-w", files / "jobs.csv", "--profiles", files / "speeds.csv", "--idle-trace", trace,
        "--gpus-per-node", 4, "-p", "adaptive", "--json",
    )  # fmt: skip
    assert done.code == 0
    assert (done.value["nodes"], done.value["gpus"]) == (2, 8)
    trace.write_text("node,idle_from_s,idle_until_s\na,0,1000\na,500,2000\n")
    bad = hpcdl("simulate", "-w", files / "jobs.csv", "--profiles", files / "speeds.csv", "--idle-trace", trace)
    assert bad.code == 1
    assert "idle.csv:3: idle_from_s: node a is idle from 500" in bad.err


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("-5,Net (batch size 8),1,10,,,", "jobs.csv:2: submit_s: must be 0 or more"),
        ("nan,Net (batch size 8),1,10,,,", "jobs.csv:2: submit_s: expected a number"),
        ("0,Other,1,10,,,", "jobs.csv:2: model: no profile is called 'Other'"),
        ("0,Net (batch size 8),0,10,,,", "jobs.csv:2: gpus: must be 1 or more"),
        ("9,Net (batch size 8),1,10,,5,", "jobs.csv:2: deadline_s: 5 is not after the submit"),
        ("0,Net (batch size 8),99,10,,,", "can never fit"),
    ],
)
def test_bad_jobs_are_one_line(hpcdl: Run, files: Path, row: str, says: str) -> None:
    (files / "jobs.csv").write_text(f"{JOBS.splitlines()[0]}\n{row}\n")
    done = hpcdl(*asked(files))
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--policy", "nobody"), "no policy 'nobody'; there are adaptive"),
        (("--policy", ","), "no policy is named"),
        (("--nodes", 0), "0 is not in the range"),
        (("--gpus-per-node", 0), "0 is not in the range"),
        (("--objective", "luck"), "no objective 'luck'; there are jct"),
        (("--idle-trace", __file__), "exclude each other"),
    ],
)
def test_bad_options(hpcdl: Run, files: Path, more: tuple[object, ...], says: str) -> None:
    done = hpcdl(*asked(files, *more))
    assert done.code == 2
    assert says in done.err


def test_without_a_workload(hpcdl: Run) -> None:
    done = hpcdl("simulate")
    assert done.code == 2
    assert "--workload FILE is missing" in done.err


def test_a_policy_that_breaks_down_is_told_and_the_others_are_not_lost(hpcdl: Run, files: Path, home: Path) -> None:
    (home / "policies").mkdir(mode=0o700, parents=True)
    (home / "policies" / "broken.py").write_text(
        "class Broken:\n    name = 'broken'\n\n    def decide(self, view):\n"
        "        raise ZeroDivisionError('no GPUs per job')\n"
    )
    (home / "policies" / "broken.py").chmod(0o600)
    done = hpcdl(*asked(files, "--policy", "broken", "--policy", "fifo", "--json"))
    assert done.code == 1
    broken, fifo = json.loads(done.out)["runs"]
    assert any("no GPUs per job" in problem for problem in broken["problems"])
    assert fifo["finished"] == 3
    assert "no GPUs per job" in done.err


def test_the_papers_tables_have_the_schema_that_others_read(hpcdl: Run, tmp_path: Path) -> None:
    page = tmp_path / "papers.html"
    done = hpcdl("simulate", "papers", "--only", "marble", "--seeds", 1, "--json", "--report", page)
    assert done.code == 0
    tables = {table["name"]: table["rows"] for table in done.value["tables"]}
    for rows in tables.values():
        assert rows
        for row in rows:
            assert {"workload", "policy", "makespan_s", "mean_jct_s", "paper"} <= set(row)
    sets = {(row["workload"], row["policy"]): row for row in tables["MARBLE sets 1 to 3"]}
    for number, printed in enumerate((496, 608, 501), 1):
        row = sets[f"set {number}", "marble"]
        assert row["paper"]["makespan_s"] == printed
        assert row["makespan_s"] == pytest.approx(printed, rel=0.05)
    assert all("met" in row for row in tables["Figures to reach"])
    beside = {(row["figure"], row["what"]): row for row in done.value["printed"]}
    assert {row["paper"] for row in beside.values()} == {"MARBLE"}
    total = beside["Figure 6a", "total of MARBLE, s: set 2"]
    assert (total["printed"], total["met"], total["tolerance"]) == (608, True, 0.05)
    assert "six totals" in total["fitted"]
    assert beside["Figure 6c", "gain in GPU memory utilisation: set 1"]["met"] is False
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "Printed against ours" in text
    assert "total of MARBLE, s: set 2" in text
    unknown = hpcdl("simulate", "papers", "--only", "nobody")
    assert unknown.code == 2
    assert "there are marble, sidecar, genie, unknown" in unknown.err


def test_bftrainer_is_compared_on_a_trace_that_is_given(
    hpcdl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("T_FWDS", (10.0, 120.0)), ("FEW_T_FWDS", (120.0,)), ("PARALLEL", (5,)), ("FACTORS", (1,))):
        monkeypatch.setattr(studies, name, few)
    monkeypatch.setattr(bftrainer, "TRAINERS", 7)
    trace, page = tmp_path / "idle.csv", tmp_path / "papers.html"
    rows = "".join(f"n{place},{60 * place},{40_000 - 900 * place}\n" for place in range(12))
    trace.write_text(f"node,idle_from_s,idle_until_s\nbefore,0,100\n{rows}")
    asked = ("simulate", "papers", "--only", "bftrainer", "--seeds", 1)
    theirs = hpcdl(*asked, "--trace", trace, "--json", "--report", page)
    assert theirs.code == 0
    assert "hpcdl: parallel, objective throughput, parallel 5, seed 0 is ready" in theirs.err
    keys = {"paper", "figure", "what", "printed", "here", "met", "tolerance", "fitted"}
    assert {frozenset(row) for row in theirs.value["printed"]} == {frozenset(keys)}
    ran = [row for row in theirs.value["printed"] if row["here"] is not None]
    assert {"Table 3", "Table 4", "Figure 9", "Figure 15", "Section 5.1.2"} <= {row["figure"] for row in ran}
    assert {type(row["met"]) for row in ran} == {bool}
    tables = {table["name"]: table["rows"] for table in theirs.value["tables"]}
    for row in tables["BFTrainer: U of its policies"]:
        assert 0 < row["U"] <= row["bound_U"]
    assert len(tables["BFTrainer table 3: run time, h"]) == 7
    assert "BFTrainer table 4" in page.read_text()
    # Without it the same file stands in for the sample.
    (tmp_path / "workloads").mkdir()
    trace.rename(tmp_path / "workloads" / "idle_sample.csv.gz")
    monkeypatch.setattr(bftrainer, "conf_folder", lambda: tmp_path)
    ours = hpcdl(*asked, "--json").value["printed"]
    timed = "a decision, s"
    assert [row["here"] for row in ours if timed not in row["what"]] == [
        row["here"] for row in theirs.value["printed"] if timed not in row["what"]
    ]
    assert {row["met"] for row in ours} == {None}
    assert "not their trace" in hpcdl(*asked).out


@pytest.mark.parametrize("option", [("--trace", __file__), ("--full",)])
def test_a_trace_without_bftrainer_is_wrong_usage(hpcdl: Run, option: tuple[str, ...]) -> None:
    done = hpcdl("simulate", "papers", "--only", "marble,genie", *option)
    assert (done.code, done.out) == (2, "")
    assert f"{option[0]} is for bftrainer: name it in --only" in done.err
    assert done.err.count("\n") == 1


def test_a_damaged_trace_is_told_before_the_work(hpcdl: Run, tmp_path: Path) -> None:
    trace = tmp_path / "idle.csv"
    trace.write_text("node,idle_from_s,idle_until_s\na,5,5\n")
    done = hpcdl("simulate", "papers", "--only", "marble,bftrainer", "--trace", trace)
    assert (done.code, done.out) == (1, "")
    assert "idle.csv:2: idle_until_s: 5 must be after idle_from_s" in done.err
    assert hpcdl("simulate", "papers", "--trace", tmp_path / "none.csv").code == 1


def test_jobs_share_gpus_unless_they_may_not(hpcdl: Run, files: Path) -> None:
    head = "submit_s,model,gpus,duration_s,share,gpu_memory\n"
    (files / "pair.csv").write_text(f"{head}0,,1,600,foreground,10G\n0,,1,600,background,10G\n")
    command = ("simulate", "--workload", files / "pair.csv", "--nodes", 1, "--policy", "marble,deeppool", "--json")
    shared, kept, small = (
        hpcdl(*command, *more).value
        for more in (("--gpu-memory", "40G"), ("--gpu-memory", "40G", "--no-sharing"), ("--gpu-memory", "16G"))
    )
    assert (shared["sharing"], kept["sharing"]) == (True, False)
    seconds = [[run["shared_gpu_s"] > 0 for run in value["runs"]] for value in (shared, kept, small)]
    assert seconds == [[True, True], [False, True], [False, False]]
    assert hpcdl(*command, "--gpu-memory", "much").code == 2


def test_what_policies_are_told_and_what_starts_cost(hpcdl: Run, files: Path) -> None:
    command = asked(files, "--policy", "adaptive", "--json", "--startup", 30, "--save", 7.5)
    true = hpcdl(*command).value
    assert (true["unknown"], true["wrong"]) == ([], {})
    assert (
        true["runs"][0]["mean_jct_s"] > hpcdl(*asked(files, "-p", "adaptive", "--json")).value["runs"][0]["mean_jct_s"]
    )
    bare = hpcdl(*command, "--unknown", "--jobs").value
    spelt = hpcdl(*command, "--unknown", "curves,startup,save").value
    assert bare == spelt
    assert bare["unknown"] == ["curves", "save", "startup"]
    wrong = hpcdl(*command, "--wrong", "curves:0.5,steps:0.3..3", "--unknown", "save", "--seed", 4).value
    assert (wrong["unknown"], wrong["wrong"]) == (["save"], {"curves": 0.5, "steps": [0.3, 3.0]})
    assert "policies see each point of a profile wrong, by a lognormal factor (sigma 0.5)" in wrong["notes"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--unknown", "nets"), "nothing is called 'nets' that could be unknown"),
        (("--wrong", "curves"), "expected curves:SIGMA or steps:A..B"),
        (("--wrong", "steps:1..2", "--unknown", "steps"), "steps are told wrong or not at all"),
        (("--wrong", "steps:1..2", "--spread", 0.1), "--spread hides the steps of jobs"),
        (("--startup", -1), "-1.0 is not in the range"),
    ],
)
def test_beliefs_that_make_no_sense_are_wrong_usage(
    hpcdl: Run, files: Path, more: tuple[object, ...], says: str
) -> None:
    done = hpcdl(*asked(files, *more))
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_the_bound_is_below_every_policy(hpcdl: Run, files: Path) -> None:
    runs = hpcdl(*asked(files, "--policy", POLICIES, "--bound", "--json")).value["runs"]
    assert len({run["bound_mean_jct_s"] for run in runs}) == 1
    assert all(0 < run["bound_mean_jct_s"] <= run["mean_jct_s"] for run in runs)
    page = files / "out.html"
    assert "BOUND" in hpcdl(*asked(files, "-p", "fifo", "--bound", "--report", page)).out
    assert "JCT, mean: bound" in page.read_text()
    without = hpcdl(*asked(files, "-p", "fifo", "--json")).value["runs"][0]
    assert "bound_mean_jct_s" not in without


def test_jobs_far_above_their_fair_share_are_listed(hpcdl: Run, files: Path) -> None:
    (files / "queue.csv").write_text("submit_s,model,gpus,duration_s\n0,,4,9000\n10,,4:4,60\n")
    command = ("simulate", "-w", files / "queue.csv", "--nodes", 1, "--gpus-per-node", 4, "-p", "fifo")
    page = files / "out.html"
    text = hpcdl(*command, "--report", page).out
    assert "\nfifo: 1 job of 2 took more than 5 times their fair share:\n  job 2 job/2: " in text
    value = hpcdl(*command, "--json").value
    (unfair,) = value["runs"][0]["above_max_slowdown"]
    assert (value["max_slowdown"], unfair["job"], unfair["name"]) == (5.0, 2, "job/2")
    assert unfair["fairness"] == value["runs"][0]["worst_fairness"] > 5
    assert unfair["why"] in text
    assert "1 job took more than 5 times their fair share" in page.read_text()
    assert hpcdl(*command, "--json", "--max-slowdown", 1e4).value["runs"][0]["above_max_slowdown"] == []
    wrong = hpcdl(*command, "--max-slowdown", 0)
    assert (wrong.code, "--max-slowdown must be a finite number, 1 or more" in wrong.err) == (2, True)


def test_a_sweep_prints_means_over_its_draws(hpcdl: Run, files: Path) -> None:
    (files / "more.csv").write_text(JOBS.replace("2000", "1500"))
    page = files / "sweep.html"
    command = asked(files, "-w", files / "more.csv", "-p", "fifo,marble", "--sweep", "load=0.5,2", "--bound")
    value = hpcdl(*command, "--json", "--report", page).value
    assert value["axes"] == {"load": ["0.5", "2"]}
    assert [(row["setting"], row["policy"], row["draws"]) for row in value["rows"]] == [
        ({"load": load}, policy, 2) for load in ("0.5", "2") for policy in ("fifo", "marble")
    ]
    assert len(value["runs"]) == 8
    assert all(row["bound_mean_jct_s"] <= row["mean_jct_s"] for row in value["rows"])
    assert page.read_text().startswith("<!DOCTYPE html>")
    text = hpcdl(*command).out
    assert "AGAINST FIFO" in text
    assert "±" in text
    told = ("--sweep", "unknown=none,curves+steps wrong=none,curves:0.2 seed=3")
    refused = hpcdl(*asked(files, *told))
    assert (refused.code, "curves are told wrong or not at all" in refused.err) == (2, True)
    told = ("--sweep", "unknown=none,steps+save wrong=none,curves:0.2 seed=3 max-slowdown=2 startup=5")
    done = hpcdl(*asked(files, "-p", "adaptive", "--json", *told)).value
    assert [row["setting"]["unknown"] for row in done["rows"]] == ["none", "none", "steps+save", "steps+save"]
    assert [run["setting"]["wrong"] for run in done["runs"]] == ["none", "curves:0.2"] * 2
    assert {run["mean_jct_s"] > 0 for run in done["runs"]} == {True}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--sweep", "colour=red"), "cannot sweep over 'colour=red': there are load, seed"),
        (("--sweep", "load=0"), "cannot sweep over load=0: expected a number above 0"),
        (("--sweep", "objective=luck"), "no objective 'luck'"),
        (("--sweep", "load=1", "--jobs"), "--jobs lists the jobs of one workload"),
        (("-w", __file__), "several workloads are draws of a sweep"),
    ],
)
def test_sweeps_that_make_no_sense(hpcdl: Run, files: Path, more: tuple[object, ...], says: str) -> None:
    done = hpcdl(*asked(files, *more))
    assert (done.code, done.out) == (2, "")
    assert says in done.err
