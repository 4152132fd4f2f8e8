"""Parts of a batch job of hpcdl, each alone: agents, the chain, addresses, signals, and why it cannot run."""

import ipaddress
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.allocation import detect
from hpcdl.allocation.agents import TRIES, AgentOptions, AllocationAgents, agent_argv, wanted_back
from hpcdl.allocation.chain import of_a_chain, script_of, submit_next
from hpcdl.allocation.run import AllocationOptions, AllocationRun, CannotRun, find_allocation, without_gpus
from hpcdl.allocation.signals import Signals
from hpcdl.batch.adapter import Allocation, Completed
from hpcdl.batch.system import BatchError, HalfAnAllocation, Unsupported
from hpcdl.config.settings import Config
from hpcdl.core.model.pilot import BatchJob, BatchState
from hpcdl.lsf.system import SYSTEM as LSF
from hpcdl.slurm.system import SYSTEM as SLURM
from tests.allocation.batchjob import Here
from tests.support.waiting import until

TWO = Allocation("slurm", "7", ("n1", "n2"), 4, until=None, here="n1")


class Scripted(Here):
    """Agents are what `commands` says, by node; n times the same command gives n processes."""

    def __init__(self, folder: Path, **commands: str) -> None:
        super().__init__(folder / "asked")
        self.commands = commands
        self.launched: list[str] = []

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        self.launched.append(node)
        if node not in self.commands:
            raise BatchError(f"{node} is no node of this batch job")
        return ("env", f"NODE={node}", sys.executable, "-c", self.commands[node])


class Clock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def made(system: Here, clock: Clock | None = None) -> tuple[AllocationAgents, list[str]]:
    said: list[str] = []
    options = AgentOptions(Path("/home"))
    return AllocationAgents(system, TWO, options, lambda: 60.0, said.append, monotonic=clock or time.monotonic), said


def looks(agents: AllocationAgents) -> None:
    """Until nothing runs."""

    def idle() -> bool:
        agents.look()
        return not agents.running

    until(idle, "the end of all agents")


def test_what_an_agent_is_started_with() -> None:
    options = AgentOptions(Path("/shared/h"), "auto", 20.0, 120.0)
    argv = agent_argv(options, TWO, "n2", 99.5, ("top", "leaf1"))
    assert argv[:4] == [sys.executable, "-P", "-m", "hpcdl.agent"]
    assert argv[4:] == [
        *("--home", "/shared/h", "--node", "n2", "--allocation", "7", "--left", "99.500", "--place", "top"),
        *("--place", "leaf1", "--grace", "20", "--alone", "120", "--emulate-gpus", "auto"),
    ]
    assert agent_argv(AgentOptions(Path("/h")), TWO, "n1", None)[4:] == [
        "--home",
        "/h",
        "--node",
        "n1",
        "--allocation",
        "7",
    ]


@pytest.mark.parametrize(
    ("known", "left_s"), [({}, 60.0), ({"7": 900.0}, 860.0), ({"7": 50.0}, 10.0), ({"7": None, "8": 50.0}, 60.0)]
)
def test_a_walltime_that_is_changed_counts(tmp_path: Path, known: dict[str, float | None], left_s: float) -> None:
    allocation = replace(TWO, until=100.0)
    options = AllocationOptions(False, None, None, "auto", None)
    run = AllocationRun(tmp_path, Config(), Here(tmp_path / "asked"), allocation, options, lambda: 40.0, print)
    run._served.status = {"allocations": known}
    assert run.left_s() == left_s


def test_a_node_whose_agent_cannot_start_is_left_alone(tmp_path: Path) -> None:
    clock = Clock()
    system = Scripted(tmp_path, n1="raise SystemExit(4)")
    agents, said = made(system, clock)
    for _ in range(20):
        looks(agents)
        clock.at += 8.0
    assert system.launched.count("n1") == system.launched.count("n2") == TRIES
    assert said[0] == "n2: n2 is no node of this batch job; it is started again in 1 s"
    assert "n1: its agent ended with code 4; it is started again in 2 s" in said
    assert said[-1].startswith(f"n1: its agent ended with code 4, for the {TRIES}th time: this node is left alone")
    assert agents.hopeless
    assert not agents.given_back


def test_a_node_on_which_nothing_can_start_an_agent_is_not_tried_again(tmp_path: Path) -> None:
    class Without(Scripted):
        def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
            self.launched.append(node)
            raise Unsupported("neither blaunch, jsrun nor lsrun is on PATH")

    system = Without(tmp_path)
    agents, said = made(system, Clock())
    for _ in range(3):
        agents.look()
    assert system.launched == ["n1", "n2"]
    assert said[0] == "n1: neither blaunch, jsrun nor lsrun is on PATH: this node is left alone"
    assert agents.hopeless
    assert agents.left_alone == dict.fromkeys(("n1", "n2"), "neither blaunch, jsrun nor lsrun is on PATH")


def test_a_node_that_was_lost_has_given_nothing_back(tmp_path: Path) -> None:
    class Shrunk(Scripted):
        def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
            return {each: BatchJob(each, BatchState.RUNNING, nodes=("n1",)) for each in ids}

    agents, said = made(Shrunk(tmp_path, n1="raise SystemExit(0)", n2="raise SystemExit(0)"), Clock())
    looks(agents)
    assert sorted(said) == ["n1: its agent has given the node back", "n2: this node was lost"]


def test_an_agent_that_lasted_is_no_failure_of_its_node(tmp_path: Path) -> None:
    clock = Clock()
    system = Scripted(tmp_path, n1="raise SystemExit(1)", n2="raise SystemExit(0)")
    agents, said = made(system, clock)
    for _ in range(TRIES + 3):
        agents.look()
        clock.at += 100.0
        looks(agents)
        clock.at += 100.0
    assert not agents.hopeless
    assert sum("is started again in 1 s" in line for line in said) == TRIES + 3
    assert "n2: its agent has given the node back" in said
    assert system.launched.count("n2") == 1


def test_agents_that_do_not_hear_are_killed(tmp_path: Path) -> None:
    deaf = "import signal, time\nfor n in range(1, 20): n in (9, 17, 19) or signal.signal(n, signal.SIG_IGN)\n"
    path = tmp_path / "deaf"
    system = Scripted(tmp_path, n1=f"{deaf}open({str(path)!r}, 'w').close()\ntime.sleep(300)", n2="raise SystemExit(0)")
    agents, said = made(system)
    agents.look()

    def deaf_alone() -> bool:
        agents.look()
        return path.exists() and agents.running == ["n1"]

    until(deaf_alone, "the deaf agent alone")
    agents.end(0.3, time.sleep)
    assert not agents.running
    assert said[-1] == "the agents of n1 have not ended in time, and are killed"
    assert (tmp_path / "asked").read_text() == "signal 7 USR1\n"


@pytest.mark.parametrize(
    ("code", "wanted"), [(-15, True), (143, True), (138, True), (-9, False), (137, False), (1, False)]
)
def test_a_signal_before_an_agent_could_hear(code: int, wanted: bool) -> None:
    assert wanted_back(code) is wanted


# --- the chain -------------------------------------------------------------------------------------------------------

SHOWN = (
    "JobId=41 JobName=hpcdl UserId=ada(1000) Priority=1 Account=(null) QOS=normal JobState=RUNNING "
    "TimeLimit=2-00:00:00 Partition=gpu,big NumNodes=4-4 NumCPUs=32 WorkDir=/home/ada/my Power="
)
INSIDE = {
    "SLURM_JOB_ID": "41",
    "SLURM_CONF": "/etc/slurm.conf",
    "CUDA_VISIBLE_DEVICES": "0",
    "PATH": "/bin",
    "LSB_JOBID": "1",
}


def test_the_next_one_of_slurm_is_asked_for_as_this_one_was() -> None:
    ran: list[tuple[list[str], str]] = []
    run = answering(ran, scontrol=Completed(SHOWN, "", 0), sbatch=Completed("812\n", "", 0))
    submit_next(run, replace(TWO, id="41"), "#!/bin/sh\n", 3, INSIDE)
    argv, stdin = ran[-1]
    assert argv == [
        *("env", "-u", "CUDA_VISIBLE_DEVICES", "-u", "LSB_JOBID", "-u", "SLURM_JOB_ID", "HPCDL_CHAIN=3"),
        *("sbatch", "--parsable", "--dependency=afterany:41", "--job-name=hpcdl", "--partition=gpu,big"),
        *("--qos=normal", "--time=2-00:00:00", "--chdir=/home/ada/my", "--nodes=4"),
    ]
    assert stdin == "#!/bin/sh\n"


def test_the_next_one_of_lsf_is_what_its_script_says() -> None:
    ran: list[tuple[list[str], str]] = []
    run = answering(ran, bsub=Completed("Job <10> is submitted to queue <normal>.\n", "", 0))
    around = {"LSB_JOBID": "9", "LSF_ENVDIR": "/lsf", "LSB_DEFAULTQUEUE": "gpu", "HOME": "/h"}
    submit_next(run, replace(TWO, kind="lsf", id="9"), "#BSUB -n 2\n", 0, around)
    assert ran == [(["env", "-u", "LSB_JOBID", "HPCDL_CHAIN=0", "bsub", "-w", "ended(9)"], "#BSUB -n 2\n")]


def answering(ran: list[tuple[list[str], str]] | None = None, **answers: Completed) -> Callable[..., Completed]:
    """Runs nothing: each command answers as it is said here, whatever is before it (env -u NAME). `ran`: with stdin."""

    def run(
        argv: Sequence[str], timeout_s: float = 1.0, *, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> Completed:
        if ran is not None:
            ran.append((list(argv), stdin))
        return next(answers[word] for word in argv if word in answers)

    return run


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        ("slurm", "Welcome\n812\n"),
        ("slurm", "812;east\n"),
        ("lsf", "Project: none\nJob <812> is submitted to queue <normal>.\n"),
    ],
)
def test_the_id_of_the_next_one(kind: str, out: str) -> None:
    done = Completed(out, "", 0)
    run = answering(scontrol=Completed(SHOWN, "", 0), sbatch=done, bsub=done)
    assert submit_next(run, replace(TWO, kind=kind, id="41"), "#!/bin/sh\n", 1, {}) == "812"


@pytest.mark.parametrize(
    ("kind", "answers", "why"),
    [
        (
            "slurm",
            {"sbatch": Completed("", "sbatch: error: QOSMax\n", 1)},
            "the next allocation was not taken: .*QOSMax",
        ),
        ("slurm", {"sbatch": Completed("sbatch: nothing\n", "", 0)}, "no job id"),
        ("slurm", {"scontrol": Completed("", "slurm_load_jobs error: no\n", 1)}, "was not submitted: scontrol: .*no"),
        ("lsf", {"bsub": Completed("", "Request aborted\n", 255)}, "the next allocation was not taken: bsub: Request"),
    ],
)
def test_a_next_one_that_is_refused_is_told_in_its_words(kind: str, answers: dict[str, Completed], why: str) -> None:
    run = answering(None, **{"scontrol": Completed(SHOWN, "", 0), **answers})
    with pytest.raises(BatchError, match=why):
        submit_next(run, replace(TWO, kind=kind, id="41"), "#!/bin/sh\n", 1, {})


def test_how_many_may_follow_is_counted_down() -> None:
    assert of_a_chain({}, None) == 0
    assert of_a_chain({}, 5) == 5
    assert of_a_chain({"HPCDL_CHAIN": "2"}, 5) == 2
    assert of_a_chain({"HPCDL_CHAIN": "0"}, 5) == 0
    assert of_a_chain({"HPCDL_CHAIN": "many"}, 5) == 5


def test_the_script_of_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text("#!/bin/sh\n")
    assert script_of(path, SLURM, {}) == script_of(None, LSF, {"LSB_JOBFILENAME": str(path)}) == "#!/bin/sh\n"
    with pytest.raises(BatchError, match=r'add --script "\$0"'):
        script_of(None, SLURM, {})
    with pytest.raises(BatchError, match=r"none cannot be read: .*No such file"):
        script_of(tmp_path / "none", SLURM, {})
    spooled = tmp_path / "1234.7"
    spooled.write_text("#!/bin/sh\nexport A\n# LSBATCH: User input\n#BSUB -n 2\n# LSBATCH: End user input\nexit $E\n")
    assert script_of(None, LSF, {"LSB_JOBFILENAME": str(spooled)}) == "#BSUB -n 2\n"
    assert script_of(Path(sys.executable), LSF, {"LSB_JOBFILENAME": str(spooled)}) == "#BSUB -n 2\n"
    Path(f"{spooled}.shell").write_text("#!/bin/bash\n")
    assert script_of(None, LSF, {"LSB_JOBFILENAME": str(spooled)}) == "#!/bin/bash\n"


# --- where, and whether at all ---------------------------------------------------------------------------------------


def test_an_address_for_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"n2": ["198.51.100.2"], "n3": ["127.0.0.1"]}
    ways = {"198.51.100.2": "198.51.100.1", "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(detect, "_looked_up", lambda name: names.get(name, []))
    monkeypatch.setattr(detect, "_towards", ways.get)
    assert detect.own_address(["n9", "n3", "n2"]) == "198.51.100.1"
    assert detect.own_address(["n3"]) == "127.0.0.1"
    ways[detect.OUTSIDE[0]] = "203.0.113.7"
    assert detect.own_address([]) == "203.0.113.7"


def test_addresses_of_this_machine() -> None:
    assert detect._looked_up("localhost")
    assert detect._looked_up("no.such.name.invalid") == []
    assert detect._towards("127.0.0.1") == "127.0.0.1"
    assert ipaddress.ip_address(detect.own_address(["localhost"])).version in (4, 6)


class Outside(Here):
    """`found`: what it says of this process."""

    def __init__(self, found: Allocation | BatchError | None) -> None:
        super().__init__(Path(os.devnull))
        self.found = found

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        if isinstance(self.found, BatchError):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("system", "said"),
    [
        (None, "no batch system was found: start it from one .sbatch jobscripts/hpcdl.slurm"),
        (Outside(None), "in no Slurm batch job"),
        (Outside(HalfAnAllocation("SLURM_JOB_NODELIST is missing")), "SLURM_JOB_NODELIST is missing"),
        (Outside(Allocation("slurm", "7", (), None)), "batch job 7 has no nodes"),
    ],
)
def test_outside_of_an_allocation_one_line_says_what_to_do(system: Here | None, said: str) -> None:
    with pytest.raises(CannotRun, match=said):
        find_allocation(system, {})


def test_inside_of_one() -> None:
    system = Outside(TWO)
    assert find_allocation(system, {}) == (system, TWO)


@pytest.mark.parametrize(("kind", "how"), [("slurm", "#SBATCH --gres=gpu:N"), ("lsf", "#BSUB -gpu num=N")])
def test_without_gpus_one_line_says_how_to_ask_for_some(kind: str, how: str) -> None:
    said = without_gpus(kind, driver=False)
    assert "no job will start" in said
    assert how in said
    assert "no job will start" not in without_gpus(kind, driver=True)  # they may just be there


def test_the_first_signal_is_told_and_the_others_are_noise() -> None:
    with Signals((signal.SIGUSR2, signal.SIGURG)) as signals:
        assert signals.wait(0.0) == ""
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        assert signals.wait(60.0) == "SIGUSR2"
        os.kill(os.getpid(), signal.SIGURG)
        assert signals.wait(0.0) == "SIGUSR2"
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
