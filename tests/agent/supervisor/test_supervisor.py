"""Supervisors with real trainers: start, side channel, exit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.supervisor import REFUSED, main
from tests.agent.conftest import ATTACH, Agent
from tests.support.waiting import until


def test_a_trainer_that_completes(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
say("ready", step=0)
say("progress", step=5, total=10, samples=50)
saved(10, final=False)
say("done", step=10)
print("bye")
"""
    )
    record = agent.exit()
    kinds = [each["type"] for each in agent.records()]
    assert kinds == ["supervisor", "started", "attached", "ready", "saved", "done", "exit"]
    assert record | {"t": 0, "boot": 0} == {
        "v": 1,
        "n": 7,
        "type": "exit",
        "t": 0,
        "boot": 0,
        "code": 0,
        "signal": None,
        "attached": True,
        "still": False,
        "left": False,
        "by_itself": True,
        "ended_by": None,
        "oom": False,
        "killed": None,
        "repeats": 1,
        "node_fault": False,
        "permanent": False,
        "missing": None,
        "stale": False,
        "claimed": 0,
        "drill": False,
        "save_failed": False,
        "save_errno": None,
        "done": True,
        "detail": "",
        "step": 10,
    }
    assert agent.output() == "bye\n"
    assert agent.lock_is_free()
    saved = agent.of("saved")[0]
    assert (saved["incarnation"], saved["membership"], saved["path"], saved["seconds"]) == (2, 1, "/c", 0.5)
    assert oct(agent.log.stat().st_mode & 0o777) == oct((agent.run / "record.jsonl").stat().st_mode & 0o777) == "0o600"


def test_an_exit_code_comes_with_the_last_line(agent: Agent) -> None:
    agent.start("sys.stderr.write('first\\n\\x1b[31mbad \\x07thing' + 'x' * 400 + '\\n\\n'); sys.exit(3)")
    record = agent.exit()
    assert (record["code"], record["signal"], record["ended_by"], record["attached"]) == (3, None, None, False)
    assert record["detail"] == ('printed last "bad thing' + "x" * 400)[:300]


def test_a_trainer_killed_by_somebody(agent: Agent) -> None:
    agent.start(ATTACH + "time.sleep(300)")
    pid = agent.wait("attached")["pid"]
    assert agent.wait("started")["pid"] == pid
    os.kill(pid, signal.SIGKILL)
    record = agent.exit()
    assert (record["code"], record["signal"], record["ended_by"]) == (None, "SIGKILL", None)


def test_the_trainer_inherits_nothing_of_the_supervisor(agent: Agent) -> None:
    agent.start(
        """
print(sorted(os.listdir("/proc/self/fd")), os.getsid(0) == os.getpid())
print([n.name for n in (signal.SIGHUP, signal.SIGTSTP, signal.SIGPIPE) if signal.getsignal(n) is signal.SIG_IGN])
status = open("/proc/self/status").read()
ignored, blocked = (int(status.split(name)[1].split()[0], 16) for name in ("SigIgn:", "SigBlk:"))
# Python itself ignores SIGPIPE and SIGXFSZ; 32 and 33 are the C library's own, and whoever runs this may ignore them.
print("ignored", ignored & ~(1 << 12 | 1 << 24 | 1 << 31 | 1 << 32), "blocked", blocked)
print(os.environ["HPCDL_TAG"], os.environ["HPCDL_SOCKET"], repr(os.environ["CUDA_VISIBLE_DEVICES"]))
""",
        gpu_env={"CUDA_VISIBLE_DEVICES": "GPU-1"},
    )
    agent.exit()
    lines = agent.output().splitlines()
    assert lines[0] == "['0', '1', '2', '3'] True"  # 3 is the listing itself
    assert lines[1] in ("[]", "['SIGPIPE']")  # which Python ignores by itself
    assert lines[2] == "ignored 0 blocked 0"
    assert lines[3] == f"{agent.tag} {agent.run}/s 'GPU-1'"


@pytest.mark.parametrize(
    "argv,cwd,code,detail,node_fault",
    [
        (("no-such-command",), None, 127, "command not found: no-such-command", False),
        (("./plain",), None, 126, "cannot start ./plain: Permission denied", False),
        (("./text",), None, 126, "it is no program", False),
        (("true",), "/no/such/folder", 127, "cannot enter the working directory /no/such/folder", True),
    ],
)
def test_what_cannot_be_started(
    agent: Agent, argv: tuple[str, ...], cwd: str | None, code: int, detail: str, node_fault: bool
) -> None:
    """The command is its user's, in which directory the node lets it work is the node's."""
    (agent.base / "plain").write_text("")
    (agent.base / "text").write_text("hello\n")
    (agent.base / "text").chmod(0o700)
    agent.start(None, argv=argv, cwd=cwd or str(agent.base))
    record = agent.exit()
    assert (record["code"], record["signal"]) == (code, None)
    assert detail in record["detail"]
    assert (record["node_fault"], record["permanent"]) == (node_fault, node_fault)
    assert not agent.of("started")


def test_a_damaged_start_file(agent: Agent) -> None:
    agent.write(argv=("true",))
    (agent.run / "start.json").write_text('{"v": 1, "argv": 3}')
    agent.spawn()
    record = agent.wait("exit")
    assert record["code"] == 126
    assert "argv: expected a list" in record["detail"]


def test_a_run_folder_is_started_once(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    agent.start("print('once')")
    agent.exit()
    before = agent.records()
    agent.spawn()
    assert agent.supervisor is not None
    assert agent.supervisor.wait(180) == REFUSED
    assert agent.records() == before
    assert agent.output() == "once\n"


def test_a_folder_that_is_not_ours_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        tmp_path.chmod(0o755)
        assert main([str(tmp_path)]) == REFUSED
        assert "chmod 700" in capsys.readouterr().err
        assert main([]) == REFUSED
        assert "usage" in capsys.readouterr().err
        assert main([str(tmp_path), "--lock-fd", "x"]) == REFUSED
    finally:
        os.umask(umask)


def test_children_left_behind_are_ended_before_the_exit(agent: Agent) -> None:
    agent.start(
        """
import subprocess
quiet = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
deaf = subprocess.Popen([sys.executable, "-S", "-c", quiet], env={}, start_new_session=True, stdout=subprocess.PIPE)
deaf.stdout.readline()
plain = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
print(deaf.pid, plain.pid)
"""
    )
    record = agent.exit()
    deaf, plain = map(int, agent.output().split())
    assert record["code"] == 0
    terminated, killed = agent.of("signalled")
    assert (terminated["signal"], killed["signal"]) == ("SIGTERM", "SIGKILL")
    assert {deaf, plain} <= set(terminated["pids"])
    assert killed["pids"] == [deaf]
    assert 4.5 < killed["t"] - terminated["t"] < 60
    assert processes.start_ticks(deaf) is None


def test_a_supervisor_that_is_killed_takes_the_trainer_along(agent: Agent) -> None:
    agent.start(ATTACH + "time.sleep(300)")
    pid = agent.wait("attached")["pid"]
    assert not agent.lock_is_free()
    assert agent.supervisor is not None
    agent.supervisor.kill()
    until(lambda: processes.start_ticks(pid) is None, "the death of the trainer")
    until(agent.lock_is_free, "the lock")
    assert not agent.of("exit")


@pytest.mark.parametrize("end,killed", [("os.kill(os.getpid(), 9)", "SIGKILL"), ("os._exit(1)", None)])
def test_a_rank_below_the_first_process_that_is_killed(agent: Agent, end: str, killed: str | None) -> None:
    """As Lightning's own launcher has it: the first rank fails for want of it, and its exit code says only that."""
    agent.start(
        f"""
pid = os.fork()
if not pid:
    channel = connect()
    assert attach(rank=1)["type"] == "attached"
    {end}
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
raise RuntimeError("Connection closed by peer [127.0.0.1]:17795")
"""
    )
    record = agent.exit()
    assert (record["code"], record["signal"], record["killed"]) == (1, None, killed)
    assert record["detail"] == "RuntimeError: Connection closed by peer [127.0.0.1]:17795"


def test_records_are_replayed_to_an_agent_that_comes_again(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
for step in range(1, 200):
    saved(step, final=False)
while not os.path.exists("go"): time.sleep(0.01)
say("progress", step=300, total=1000, samples=None)
saved(300, final=False)
while not os.path.exists("end"): time.sleep(0.01)
"""
    )
    agent.wait("saved", step=199)
    first = agent.connect()
    until(lambda: len(first.numbers()) == 202, "the replay")
    assert first.numbers() == list(range(1, 203))
    first.close()
    (agent.base / "go").touch()
    agent.wait("saved", step=300)
    second = agent.connect(after=200)
    until(lambda: any(each["type"] == "progress" for each in second.poll()), "progress")
    assert second.numbers() == [201, 202, 203]
    third = agent.connect(after=203)
    until(lambda: second.poll() and second.gone, "the end of the second connection")
    assert second.heard[-1]["type"] == "refused"
    (agent.base / "end").touch()
    agent.exit()
    until(lambda: third.poll() and third.gone, "the end")
    assert [each["type"] for each in third.heard if "n" in each] == ["exit"]
    progress = [each for each in first.heard + second.heard + third.heard if each["type"] == "progress"]
    assert progress[-1] == {"v": 1, "type": "progress", "step": 300, "total": 1000, "samples": None}


def test_an_agent_that_does_not_read_delays_nobody(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
for step in range(3000):
    saved(step, final=False, path="/c" * 500)
say("done", step=3000)
"""
    )
    deaf = agent.connect()
    record = agent.exit()
    assert (record["code"], record["done"], len(agent.of("saved"))) == (0, True, 3000)
    deaf.poll()
    assert deaf.numbers() == list(range(1, len(deaf.numbers()) + 1))


def test_a_trainer_that_does_not_read_loses_only_its_connection(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
for n in range(5000):
    channel.send(b'{"v": 1, "type": "unknown"}')
for n in range(20000):
    say("progress", step=n, total=None, samples=None)
say("done", step=20000)
"""
    )
    assert agent.exit()["step"] == 20000


def test_malformed_packets_are_counted_and_ignored(agent: Agent) -> None:
    agent.start(
        ATTACH
        + """
for bad in (b"", b"x", b"[" * 50000, b"{}"[:1], b'"s"', b"9" * 6000, b'{"v":1}', b'{"v":1,"type":"saved","step":-1}',
            b'{"v":1,"type":"ready","step":NaN}', b'{"v":1,"type":"ready","step":1e400}', b"\\xff\\xfe", b" " * 65537,
            json.dumps({"v": 1, "type": "opened", "gpus": ["g"] * 65}).encode(),
            b'{"v":1,"type":"model","layers":[],"parameters":1}'):
    channel.send(bad)
channel.send(b'{"v":1,"type":"made up"}')
say("suspend", grace_s=0)
say("ready", step=4, more=1)
say("saved", incarnation=1, membership=1, step=9, path="", seconds=0, final=True)
while not os.path.exists("go"): time.sleep(0.01)
sys.exit(int(os.environ["HPCDL_JOB_EXIT"]))
""",
        env={"PATH": os.environ["PATH"], "HPCDL_JOB_EXIT": "5"},
    )
    until(lambda: agent.of("note"), "the last of them")  # an empty one reads like the end where the sender is gone
    (agent.base / "go").touch()
    record = agent.exit()
    assert (record["code"], record["step"], record["ended_by"]) == (5, 4, None)
    assert not agent.of("saved")
    notes = [each["text"] for each in agent.of("note")]
    assert notes == ["ignored: a save of attempt 1, membership 1", "14 malformed packets were ignored"]


@pytest.mark.parametrize(
    "changed,why",
    [
        ({"pid": 1}, "pid 1 attached"),
        ({"incarnation": 1}, "attempt 1 attached to attempt 2"),
        ({"membership": 0}, "membership 0 is stale"),
    ],
)
def test_who_is_refused(agent: Agent, changed: dict[str, int], why: str) -> None:
    agent.start(f"channel = connect()\nprint(attach(**{changed!r}))\nprint(hear())")
    assert agent.exit()["attached"] is False
    assert why in agent.output()
    assert "gone" in agent.output()


def test_another_version_is_refused(agent: Agent) -> None:
    agent.start("time.sleep(300)")
    client = agent.connect(after=None)
    client.raw(json.dumps({"v": 2, "type": "agent"}).encode())
    until(lambda: client.poll() is not None and client.gone, "the refusal")
    assert client.heard[0]["type"] == "refused"
    assert "version 2" in client.heard[0]["why"]
    stranger = agent.connect(after=None)
    stranger.send("suspend", grace_s=0)  # who has not said that it is the agent commands nothing
    commander = agent.connect()
    commander.send("end", grace_s=20)
    assert agent.exit()["ended_by"] == "end"


def test_the_gate_opens_with_a_claim(agent: Agent, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    agent.start(
        """
channel = connect()
attach(handler=False)
if os.environ.get("COLD") is None:
    print(repr(os.environ["CUDA_VISIBLE_DEVICES"]), os.environ["HPCDL_GPU_COUNT"])
    say("gate", warm_s=1.5, cuda=True)
    message = hear()
    os.environ.update(message["env"], COLD="1")
    os.execv(sys.executable, [sys.executable, "-S", __file__])
say("opened", gpus=os.environ["CUDA_VISIBLE_DEVICES"].split(","), ok=True)
print("trained")
""",
        gate=True,
        checkpoint_dir=str(checkpoints),
    )
    agent.wait("gate", warm_s=1.5, cuda=True)
    assert not checkpoints.exists()
    client = agent.connect()
    for _ in range(2):
        client.send("open", gpu_env={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "HPCDL_GPU_COUNT": "2"})
    assert agent.exit()["code"] == 0
    kinds = [each["type"] for each in agent.records()]
    assert kinds == ["supervisor", "started", "attached", "gate", "claimed", "attached", "opened", "exit"]
    first, second = agent.of("attached")
    assert first["pid"] == second["pid"]
    assert agent.of("opened", gpus=["GPU-1", "GPU-2"], ok=True)
    assert agent.output() == "'' 0\ntrained\n"
    claim = json.loads((checkpoints / "claim.json").read_text())
    holder = claim.pop("holder")
    assert holder["boot"] == processes.boot_id()
    assert claim == {"v": 1, "job": 7, "incarnation": 2, "tag": agent.tag}
    assert os.listdir(checkpoints) == ["claim.json"]


def test_an_opening_that_comes_early_is_kept(agent: Agent) -> None:
    agent.start(
        """
while not os.path.exists("go"): time.sleep(0.01)
channel = connect()
attach()
say("gate", warm_s=0, cuda=False)
print(hear()["env"]["HPCDL_GPUS"])
""",
        gate=True,
    )
    client = agent.connect()
    client.send("open", gpu_env={"HPCDL_GPUS": "GPU-9"})
    client.send("made up")
    agent.wait("started")
    (agent.base / "go").touch()
    assert agent.exit()["code"] == 0
    assert agent.output() == "GPU-9\n"


@pytest.mark.parametrize("gate", [False, True])
def test_a_newer_claim_ends_the_start(agent: Agent, tmp_path: Path, gate: bool) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    claim = folder / "claim.json"
    claim.write_text('{"v": 1, "job": 7, "incarnation": 3, "tag": "i:7:3"}')
    agent.start("time.sleep(300)", gate=gate, checkpoint_dir=str(folder))
    if gate:
        agent.wait("started")
        agent.connect().send("open", gpu_env={})
    record = agent.exit()
    assert (record["code"], record["signal"], record["stale"], record["ended_by"]) == (75, None, True, None)
    assert "attempt 3 (i:7:3)" in record["detail"]
    assert bool(agent.of("started")) is gate
    assert json.loads(claim.read_text())["incarnation"] == 3


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("there", ["", "step-000000000040.i1/COMPLETE", "damaged-step-000000000040.i1/COMPLETE"])
def test_one_whose_checkpoints_are_away_does_not_begin(agent: Agent, tmp_path: Path, gate: bool, there: str) -> None:
    folder = tmp_path / "checkpoints"
    if there:
        (folder / there).parent.mkdir(parents=True)
        (folder / there).touch()
    grant = {"HPCDL_SAVED_STEP": "40", "HPCDL_NODE_RANK": "0"}
    agent.start("time.sleep(300)", gate=gate, checkpoint_dir=str(folder), gpu_env=None if gate else grant)
    if gate:
        agent.wait("started")
        agent.connect().send("open", gpu_env=grant)
    if there:
        agent.wait("claimed")  # what there is, whole or not, is for the trainer to judge
        return
    record = agent.exit()
    assert (record["code"], record["missing"], record["ended_by"]) == (os.EX_DATAERR, 40, None)
    assert record["detail"] == f"no checkpoint was found in {folder}"
    assert bool(agent.of("started")) is gate
    assert not folder.exists(), "not even a claim is written"


def test_a_trainer_that_says_so_is_ended_whatever_becomes_of_it(agent: Agent) -> None:
    agent.start(
        "channel = connect(); attach(); say('missing', step=40, why='its script begins at step 0'); time.sleep(300)"
    )
    record = agent.exit()
    assert (record["code"], record["missing"], record["detail"]) == (65, 40, "its script begins at step 0")


def test_an_older_claim_is_replaced_and_a_damaged_one(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "claim.json").write_text('{"v": 1, "incarn')
    agent.start("print('ran')", checkpoint_dir=str(tmp_path))
    assert agent.exit()["code"] == 0
    assert agent.of("claimed", incarnation=2)
    assert json.loads((tmp_path / "claim.json").read_text())["incarnation"] == 2


def test_a_claim_that_cannot_be_written(agent: Agent) -> None:
    (agent.base / "file").touch()
    agent.start("print('ran')", checkpoint_dir=str(agent.base / "file" / "below"))
    record = agent.exit()
    assert (record["code"], record["stale"], record["node_fault"], record["permanent"]) == (73, False, True, True)
    assert "cannot write the claim" in record["detail"]
    assert not agent.of("started")


def test_a_trainer_that_sees_itself_stale(agent: Agent) -> None:
    agent.start(ATTACH + "say('save_failed', step=3, errno=116, why='stale')\nsys.exit(75)")
    record = agent.exit()
    assert (record["code"], record["stale"], record["save_failed"]) == (75, True, True)
    assert agent.of("save_failed", step=3, errno=116, why="stale")
