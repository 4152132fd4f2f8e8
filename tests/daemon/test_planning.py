"""Plans are made in a thread, programs solved in a process, and both are given up when the daemon ends."""

import errno
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from hpcdl.core.model.commands import Command, PlanMade
from hpcdl.core.model.plan import Plan
from hpcdl.daemon import planning
from hpcdl.daemon.planning import PlanThread
from hpcdl.milp.counting import MilpCounts, exact_counts
from hpcdl.milp.model import SolverError, SolverLimits
from hpcdl.milp.problem import Problem, read
from tests.milp.made import problem
from tests.support.waiting import until


def hard(trainers: int = 60, nodes: int = 400) -> Problem:
    """Which takes every solver over nodes far longer than a test may."""
    rows = [
        {
            "id": f"t{at}",
            "max": nodes,
            "scale_up_s": 20 + at % 7,
            "curve": [[n, n ** (0.5 + 0.007 * at)] for n in sizes],
        }
        for at in range(trainers)
        if (sizes := [1, 2, 4, 8, 16, 32, 64, 128, 256])
    ]
    return read(json.dumps({"horizon_s": 120, "nodes": nodes, "trainers": rows}))


@pytest.mark.parametrize("solver", ["counts-highs", "highs", "cbc"])
def test_a_process_of_its_own_answers_as_the_solver_here_does(solver: str) -> None:
    asked = read(json.dumps(problem(5)))
    counts = MilpCounts(solver, 60.0, PlanThread(lambda command: None).solve)
    found = counts(asked.trainers, asked.capacities)
    exact = exact_counts(asked.trainers, asked.capacities)
    assert found.trouble == ""
    assert found.solver == f"{solver} over {'counts' if solver == 'counts-highs' else 'nodes'}: proven optimal"
    assert found.allotment.value == pytest.approx(exact.allotment.value)


def test_a_solver_that_is_not_there_is_said_by_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pulp.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = read(json.dumps(problem(5)))
    answer = PlanThread(lambda command: None).solve(asked, "cbc", SolverLimits(1000, 60.0))
    assert answer.allotment.solver == "highs"
    assert "cbc cannot be used, highs is instead: PuLP cannot be imported: not installed" in answer.warnings[0]


def test_the_controller_is_told_when_a_plan_is_there_or_failed() -> None:
    told: list[Command] = []
    aside = PlanThread(told.append)
    plan = Plan(())
    assert aside(lambda: plan).result(60) is plan

    def fails() -> Plan:
        raise ValueError("no")

    failed = aside(fails)
    assert isinstance(failed.exception(60), ValueError)
    until(lambda: len(told) == 2, "both are told")
    assert told == [PlanMade(), PlanMade()]
    aside.stop()


def test_a_solve_is_given_up_with_all_that_it_started() -> None:
    aside, asked = PlanThread(lambda command: None), hard()
    outcome: list[str] = []

    def solves() -> None:
        try:
            aside.solve(asked, "cbc", SolverLimits(10**9, 600.0))
        except SolverError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=solves)
    before = set(psutil.Process().children(recursive=True))
    thread.start()
    started: set[psutil.Process] = set()

    def cbc_runs() -> bool:
        started.update(set(psutil.Process().children(recursive=True)) - before)
        return any("cbc" in each.name() for each in started if each.is_running())

    until(cbc_runs, "CBC to run")
    aside.stop()
    thread.join(60)
    assert outcome[0].startswith("what its process prints")
    until(lambda: not any(each.is_running() and each.status() != "zombie" for each in started), "all to be gone")


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_solve_ends_with_a_daemon_that_is_killed(solver: str) -> None:
    code = (
        "from tests.daemon.test_planning import *\n"
        "plans = PlanThread(lambda command: None)\n"
        f"plans(lambda: plans.solve(hard(90, 1500), {solver!r}, SolverLimits(10**9, 3600.0))).result()\n"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        seen = psutil.Process(daemon.pid)
        started: set[psutil.Process] = set()

        def solves() -> bool:
            """Whether the solver is at work: CBC runs, or HiGHS has the program."""
            started.update(seen.children(recursive=True))
            if solver == "cbc":
                return any(each.name() == "cbc" for each in started)
            return any("highs" in each.path for one in started for each in one.memory_maps())

        until(solves, "the solver to be at work")
    finally:
        daemon.kill()
        daemon.wait()
    until(lambda: not any(each.is_running() and each.status() != "zombie" for each in started), "all to be gone")
    assert started


NONSENSE = {
    "no JSON": "print('all is well')",
    "half an answer": "print('{\"counts\": [1')",
    "not a number": 'print(\'{"counts": [NaN], "groups": [0], "optimal": true}\')',
    "fewer trainers": 'print(\'{"counts": [1], "groups": [0], "optimal": true}\')',
    "below none": "print(answer([-1] * asked, [0] * asked))",
    "more than there are": "print(answer([10**30] * asked, [0] * asked))",
    "a group that is not there": "print(answer([1] * asked, [99] * asked))",
    "no node of a group that is not there": "print(answer([0] * asked, [99] * asked))",
    "a group before the first": "print(answer([1] * asked, [-1] * asked))",
    "worth what no number is": "print(answer([0] * asked, [None] * asked, '1e999'))",
    "more than anybody reads": "while True: sys.stdout.write('x' * (1 << 20))",
    "for ever": "import time; time.sleep(1e6)",
    "a crash": "import os; os.abort()",
}


@pytest.mark.parametrize("what", NONSENSE)
def test_what_a_solver_answers_does_no_harm(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hard(3, 8)
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nasked = {len(asked.trainers)}\n"
        "def answer(counts, groups, value='1.0'):\n"
        "    return json.dumps(dict(counts=counts, groups=groups, optimal=True, solver='highs'))[:-1] + "
        "', \"value\": ' + value + '}'\n"
        f"sys.stdin.read()\n{NONSENSE[what]}\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(planning, "START_S", 2.0 if what == "for ever" else 60.0)
    found = MilpCounts("highs", 0.1, PlanThread(lambda command: None).solve)(asked.trainers, asked.capacities)
    assert found.allotment == exact_counts(asked.trainers, asked.capacities).allotment
    assert found.trouble.endswith("the exact counts decide then")


def test_a_process_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = read(json.dumps(problem(5)))
    counts = MilpCounts("highs", 5.0, PlanThread(lambda command: None).solve)

    def full(*argv: object, **how: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(subprocess, "Popen", full)
    found = counts(asked.trainers, asked.capacities)
    assert "Cannot allocate memory: the exact counts decide then" in found.trouble


def test_a_process_without_a_descriptor_is_named() -> None:
    asked = read(json.dumps(problem(5)))
    counts = MilpCounts("highs", 5.0, PlanThread(lambda command: None).solve)
    soft, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        for spare in range(8):  # pipes, the process, and what watches them: each may be the one too many
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + spare, hard_limit))
            found = counts(asked.trainers, (asked.capacities[0] + spare, *asked.capacities[1:]))
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard_limit))
            taken.append(found.solver)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard_limit))
    assert "gave no answer" in taken[0]
