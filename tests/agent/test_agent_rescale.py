"""Real agents whose parts join memberships, go on to others, leave, and come again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor import processes
from hpcdl.core.model.commands import ExpectedIncarnation
from hpcdl.core.model.job import JobSpec
from hpcdl.wire import messages as msg
from tests.agent.conftest import ATTACH, CHANNEL
from tests.agent.daemon import Agents, Daemon
from tests.support.extent import one_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

# A trainer that does at once what it is told, without any process group.
MEMBER = (
    CHANNEL
    + 'mine = lambda name: int(os.environ.get(f"HPCDL_{name}", "0"))\n'
    + ATTACH.replace("attach()", "attach(rank=mine('LOCAL_RANK'), incarnation=1, membership=mine('MEMBERSHIP'))")
    + """
def tell(what, value):  # in one piece: the ranks of a node share their output
    os.write(1, f"{what} {json.dumps(value)}\\n".encode())
tell("env", {name: value for name, value in os.environ.items() if name.startswith("HPCDL_")})
say("join", address="127.0.0.1:7000")
while True:
    packet = hear()
    tell("heard", packet)
    if packet["type"] == "rescale":
        say("reformed", membership=packet["membership"], step=packet["membership"] * 10, seconds=0.25)
        if packet["membership"] == 1:
            say("ready", step=0)
        if packet["membership"] == 9:
            say("broken", step=95, why="a peer is gone")
    else:
        sys.exit(0)
"""
)


def spec(home: Path, script: str = MEMBER, rescale: str = "in-process", **keys: Any) -> JobSpec:
    path = home / "member.py"
    path.write_text(script)
    command = (sys.executable, "-u", "-S", str(path))
    return JobSpec(command, "test", cwd="/", nodes=1, nodes_max=4, rescale=rescale, **keys)


def begin(daemon: Daemon, gpus: tuple[int, ...] = (0,), membership: int = 1, **keys: Any) -> int:
    return daemon.ask("start", 1, gpus=gpus, nodes=("n1",), membership=membership, spec=spec(daemon.home, **keys))


def rescale(daemon: Daemon, membership: int, *nodes: str, address: str = "127.0.0.1:7000") -> int:
    return daemon.ask("rescale", 1, gpus=(0,), membership=membership, nodes=nodes or ("n1",), address=address)


def lines(home: Path, what: str) -> list[Any]:
    log = home / "logs" / "1" / "1.n1.log"
    whole = (log.read_text() if log.exists() else "").split("\n")[:-1]
    return [json.loads(line[len(what) + 1 :]) for line in whole if line.startswith(f"{what} ")]


def heard(home: Path) -> list[tuple[str, int | None]]:
    return [(each["type"], each.get("membership")) for each in lines(home, "heard")]


def test_from_the_gate_into_a_membership_and_out_again(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    begin(daemon)
    assert daemon.wait("AtGate").address == "127.0.0.1:7000"
    environment = until(lambda: lines(home, "env"), "what it prints")[0]
    assert (environment["HPCDL_RESCALE"], environment["HPCDL_ADDRESS"]) == ("in-process", "127.0.0.1")
    rescale(daemon, 1)
    formed = daemon.wait("Reformed")
    assert (formed.membership, formed.step, formed.seconds, formed.node) == (1, 10, 0.25, "n1")
    assert daemon.wait("TrainerReady").membership == 1
    rescale(daemon, 3, "n1", "n2")
    assert daemon.wait("Reformed", count=2).membership == 3
    rescale(daemon, 2)  # overtaken on its way
    rescale(daemon, 3, "n1", "n2")
    rescale(daemon, 9, "n1", "n2")
    broken = daemon.wait("Broken")
    assert (broken.membership, broken.step, broken.why) == (9, 95, "a peer is gone")
    until(lambda: heard(home) == [("rescale", 1), ("rescale", 3), ("rescale", 9)], "what it hears")
    assert lines(home, "heard")[1]["ranks"] == [1, 1]
    daemon.ask("leave", 1, grace_s=30.0)
    daemon.ask("leave", 1, grace_s=30.0)
    exited = daemon.wait("Exited")
    assert (exited.code, exited.ended_by, exited.step, exited.membership) == (0, "leave", None, 9)
    daemon.wait("GpusFreed")
    assert heard(home)[3:] == [("leave", None)]
    assert not processes.tagged(daemon.instance)


def test_who_follows_says_nothing_of_steps(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    begin(daemon)
    daemon.wait("AtGate")
    rescale(daemon, 1, "n0", "n1")
    until(lambda: heard(home), "the membership")
    daemon.ask("suspend", 1, grace_s=30.0)
    exited = daemon.wait("Exited")
    assert (exited.code, exited.ended_by, exited.step) == (0, "suspend", None)
    assert not daemon.of("Reformed")
    assert not daemon.of("TrainerReady")
    assert "Broken" not in daemon.kinds(1)


def test_each_gpu_of_a_node_has_a_rank(daemon: Daemon, agents: Agents, home: Path) -> None:
    agents.start()
    begin(daemon, gpus=(0, 1))
    until(lambda: len(daemon.of("Attached")) == 2, "both ranks")
    until(lambda: len(lines(home, "env")) == 2, "what they print")
    found = {each["HPCDL_LOCAL_RANK"]: each for each in lines(home, "env")}
    uuids = [gpu.uuid for gpu in daemon.inventories[0].gpus]
    assert [found[each]["HPCDL_GPUS"] for each in ("0", "1")] == uuids
    assert {each["HPCDL_LOCAL_RANKS"] for each in found.values()} == {"2"}
    daemon.ask("rescale", 1, gpus=(0, 1), membership=1, nodes=("n1",), address="127.0.0.1:7000")
    until(lambda: len(heard(home)) == 2, "what they hear")
    assert lines(home, "heard")[0]["ranks"] == [2]
    daemon.ask("leave", 1, grace_s=30.0)
    assert daemon.wait("Exited").ended_by == "leave"


def test_an_agent_killed_while_its_part_rescales(daemon: Daemon, agents: Agents, home: Path) -> None:
    agent = agents.start()
    begin(daemon)
    daemon.wait("AtGate")
    agents.kill(agent)
    first = rescale(daemon, 1)
    agent = agents.start()
    assert daemon.wait("Reformed").membership == 1
    until(lambda: first in daemon.taken, "the request to be taken")
    daemon.acknowledge = False
    second = rescale(daemon, 2, "n1", "n2")
    until(lambda: second in daemon.taken, "the next one to be taken")
    agents.kill(agent)  # wherever it stands: it may have passed that on, or not
    daemon.acknowledge = True
    agent = agents.start()
    until(lambda: any(each.membership == 2 for each in daemon.of("Reformed")), "the next membership")
    rescale(daemon, 2, "n1", "n2")
    daemon.ask("leave", 1, grace_s=30.0)
    daemon.wait("GpusFreed")
    assert daemon.wait("Exited").step is None
    assert heard(home) == [("rescale", 1), ("rescale", 2), ("leave", None)]
    kinds = daemon.kinds(1)
    assert (kinds.count("AtGate"), kinds.count("Reformed"), kinds.count("Exited")) == (1, 2, 1)


@pytest.mark.parametrize(
    ("killed", "forget"),
    one_of((True, "before"), (True, "after"), (True, "never"), (False, "before"), (False, "after"), (False, "never")),
)
def test_a_node_that_left_joins_the_same_incarnation_again(
    daemon: Daemon, agents: Agents, home: Path, forget: str, killed: bool
) -> None:
    agent = agents.start()
    first = begin(daemon, membership=2)
    daemon.wait("AtGate")
    daemon.ask("leave", 1, membership=3, grace_s=30.0)
    daemon.wait("GpusFreed")
    until(lambda: daemon.recorded == len(daemon.reports), "the reports to be recorded")
    if forget == "before":
        daemon.say(msg.ForgetMessage(1, 1))
    if killed:
        agents.kill(agent)
    again = begin(daemon, membership=2)
    assert again != first
    if killed:
        daemon.expected = [ExpectedIncarnation(1, 1, 2, True)]
        agent = agents.start()
    if forget == "after":
        daemon.say(msg.ForgetMessage(1, 1))
    daemon.wait("AtGate", count=2)
    rescale(daemon, 2)
    assert daemon.wait("Reformed").membership == 2
    daemon.say(msg.ForgetMessage(1, 1))  # of its first time, and late
    agents.kill(agent)
    agents.start()
    until(lambda: len(daemon.hellos) == 2 + killed, "the next agent")
    daemon.ask("leave", 1, membership=4, grace_s=30.0)
    daemon.wait("Exited", count=2)
    daemon.wait("GpusFreed", count=2)
    assert [each.ended_by for each in daemon.of("Exited")] == ["leave", "leave"]
    assert daemon.of("Exited")[1].code == 0
    assert [kind for kind, _ in heard(home)][-2:] == ["rescale", "leave"]


# torchrun, or what stands in for it

FAKE = """
import json, os, sys
print("argv", json.dumps(sys.argv[1:]), flush=True)
print("env", json.dumps(dict(os.environ)), flush=True)
sys.stdin.read()
import time, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
while True:
    time.sleep(0.01)
"""


@pytest.fixture
def torch(home: Path) -> str:
    """A folder with something that is called torch."""
    package = home / "packages" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text(FAKE)
    return str(home / "packages")


def test_torchrun_is_started_into_its_first_membership(daemon: Daemon, agents: Agents, home: Path, torch: str) -> None:
    agents.start()
    begin(daemon, rescale="torchrun", env=(("PYTHONPATH", torch),))
    gate = daemon.wait("AtGate")
    host, _, port = gate.address.rpartition(":")
    assert host == "127.0.0.1"
    assert 1024 < int(port) < 65536
    assert not (agents.run / "1.1").exists()
    assert daemon.kinds(1) == ["AtGate"]
    rescale(daemon, 1, "n1", "n2", address=gate.address)
    daemon.wait("Started")
    until(lambda: lines(home, "env"), "torchrun")
    options = lines(home, "argv")[0]
    assert f"--rdzv-endpoint={gate.address}" in options
    assert [each for each in options if each.startswith("--rdzv-conf=is_host=true,")]
    assert (options[0], options[1]) == ("--nnodes=1:4", "--nproc-per-node=1")
    assert options[options.index("--no-python") + 1] == sys.executable
    environment = lines(home, "env")[0]
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert (environment["HPCDL_RESCALE"], environment["HPCDL_MEMBERSHIP"]) == ("torchrun", "1")
    rescale(daemon, 2, "n1", address=gate.address)  # those that run take note
    daemon.ask("leave", 1, membership=3, grace_s=30.0)
    exited = daemon.wait("Exited")
    assert (exited.ended_by, exited.membership) == ("leave", 2)
    daemon.wait("GpusFreed")
    assert len(lines(home, "argv")) == 1


def test_one_that_joins_torchrun_does_not_host_it(daemon: Daemon, agents: Agents, home: Path, torch: str) -> None:
    agent = agents.start()
    begin(daemon, rescale="torchrun", membership=4, env=(("PYTHONPATH", torch),))
    daemon.wait("AtGate")
    agents.kill(agent)
    rescale(daemon, 4, "n0", "n1", address="127.0.0.1:7001")
    agents.start()
    until(lambda: lines(home, "argv"), "torchrun")
    options = lines(home, "argv")[0]
    assert "--rdzv-endpoint=127.0.0.1:7001" in options
    assert [each for each in options if each.startswith("--rdzv-conf=is_host=false,")]
    daemon.ask("end", 1, grace_s=0.0)
    daemon.wait("GpusFreed")


@pytest.mark.parametrize("kind", one_of("leave", "end", "suspend"))
def test_one_that_waits_for_its_first_membership_goes(daemon: Daemon, agents: Agents, kind: str) -> None:
    agent = agents.start()
    begin(daemon, rescale="torchrun")
    daemon.wait("AtGate")
    agents.kill(agent)
    agents.start()
    daemon.wait("AtGate", count=2)  # whatever the first one kept is free now
    daemon.ask(kind, 1, grace_s=30.0)
    exited = daemon.wait("Exited")
    assert (exited.code, exited.ended_by, exited.attached) == (0, kind, False)
    daemon.wait("GpusFreed")
    assert not (agents.run / "1.1").exists()


def test_a_job_whose_python_has_no_torchrun(daemon: Daemon, agents: Agents, home: Path, torch: str) -> None:
    agents.start()
    (Path(torch) / "torch" / "distributed" / "run.py").unlink()
    begin(daemon, rescale="torchrun", env=(("PYTHONPATH", torch),))
    gate = daemon.wait("AtGate")
    rescale(daemon, 1, address=gate.address)
    exited = daemon.wait("Exited")
    assert (exited.code, exited.hint, exited.ended_by) == (1, None, None)
    assert "torch.distributed.run" in exited.detail


def test_the_port_is_kept_for_it(daemon: Daemon, agents: Agents) -> None:
    agents.start()
    begin(daemon, rescale="torchrun")
    gate = daemon.wait("AtGate")
    program = "import socket,sys;s=socket.socket();s.bind(('127.0.0.1',int(sys.argv[1])))"
    other = subprocess.run([sys.executable, "-c", program, gate.address.rpartition(":")[2]], capture_output=True)
    assert b"Address already in use" in other.stderr
